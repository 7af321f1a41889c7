"""Fits of the simulator's physics to measured traces: pure functions that the benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from workbench.simulation.catalogue import CARDS, Law
from workbench.simulation.physics import Card, Load, operate

CALIBRATION = ("cifar100", "librispeech", "squad")
"""Workloads the card's own numbers are fitted on; the others only ever test them."""


@dataclass(frozen=True)
class Sweep:
    """One training configuration at several power limits."""

    workload: str
    optimizer: str
    batch_size: int
    limits_w: np.ndarray
    time_s: np.ndarray
    power_w: np.ndarray

    def at(self, rows: Sequence[int] | slice) -> Sweep:
        """The same configuration at some of its limits."""
        return replace(
            self, limits_w=self.limits_w[rows], time_s=self.time_s[rows], power_w=self.power_w[rows]
        )


@dataclass(frozen=True)
class SweepFit:
    """The four numbers of a configuration: time at the highest clocks, SM-bound and gap shares, dynamic power."""

    time_s: float
    compute: float
    gap: float
    dynamic_w: float


def read_sweeps(path: Path) -> list[Sweep]:
    """The configurations of a Zeus `summary_power_*.csv`, smallest limit first; limits measured twice are averaged."""
    columns = {"power_limit": pl.Float64, "time_per_epoch": pl.Float64, "average_power": pl.Float64}
    rows = pl.read_csv(path).cast(columns).drop_nulls(list(columns))
    keys = ["dataset", "optimizer", "batch_size"]
    rows = rows.group_by(*keys, "power_limit").agg(pl.col("time_per_epoch", "average_power").mean())
    sweeps = []
    for (workload, optimizer, batch_size), part in sorted(rows.group_by(keys)):
        part = part.sort("power_limit")
        arrays = (part[name].to_numpy() for name in columns)
        sweeps.append(Sweep(_workload_key(workload), optimizer, batch_size, *arrays))
    return sweeps


def card_of(path: Path, sweeps: Sequence[Sweep]) -> tuple[Card, bool]:
    """The card a trace file was measured on, and whether its numbers had to be fitted here."""
    key = path.stem.removeprefix("summary_power_")
    by_name = {name.casefold(): card for name, card in CARDS.items()}
    if found := by_name.get(key.casefold().replace("-", "").replace("_", "")):
        return found, False
    limits = np.concatenate([sweep.limits_w for sweep in sweeps])
    blank = replace(
        CARDS["V100"], key=key, name=key, power_limit_w=(limits.min(), limits.max(), limits.max())
    )
    return fit_card(blank, [sweep for sweep in sweeps if sweep.workload in CALIBRATION]), True


def predict(card: Card, fit: SweepFit, limits_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time and mean power of a configuration at some power limits."""
    busy = 1.0 - fit.gap
    compute = min(fit.compute / busy, 1.0) if busy > 0 else 0.0
    load = Load(compute, 0.0, fit.dynamic_w)
    points = [_operate(card, load, power_limit_w=float(limit)) for limit in limits_w]
    busy_s = busy * np.array([point.stretch for point in points])
    power = np.array([point.power_w for point in points])
    total = busy_s + fit.gap
    return fit.time_s * total, (busy_s * power + fit.gap * card.gap_w) / total


def fit_sweep(card: Card, sweep: Sweep) -> SweepFit:
    """The four numbers of a configuration on a card whose own numbers are known."""
    best = min(
        (least_squares(_residuals, _start(card, sweep, k, q), args=(card, sweep), bounds=_bounds(card)) for k, q in _STARTS),
        key=lambda result: result.cost,
    )
    return _numbers(best.x, sweep)


def fit_card(card: Card, sweeps: Sequence[Sweep]) -> Card:
    """The card with static and gap power, knee and lowest clock fitted jointly to all sweeps."""
    fits = [least_squares(_residuals, _start(card, s, 0.5, 0.2), args=(card, s), bounds=_bounds(card)).x for s in sweeps]
    low_power = min(float(sweep.power_w.min()) for sweep in sweeps)
    own = [card.static_w, min(card.gap_w, 1.05 * low_power), card.v_knee, card.knee, card.x_min]
    low = [5.0, 5.0, 0.4, 0.2, 0.05]
    high = [120.0, 1.02*low_power, 0.98, 0.95, 0.6]
    lows, highs = _bounds(card)
    sizes = [2 * len(sweep.limits_w) for sweep in sweeps]
    pattern = lil_matrix((sum(sizes), 5 + 4 * len(sweeps)), dtype=int)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    for i, (start, end) in enumerate(pairwise(edges)):
        pattern[start:end, :5] = 1
        pattern[start:end, 5 + 4 * i : 9 + 4 * i] = 1

    def residuals(values: np.ndarray) -> np.ndarray:
        candidate = _with_own(card, values[:5])
        each = values[5:].reshape(-1, 4)
        return np.concatenate([_residuals(v, candidate, s) for v, s in zip(each, sweeps, strict=True)])

    result = least_squares(
        residuals,
        np.clip(np.concatenate([own, *fits]), low + lows * len(sweeps), high + highs * len(sweeps)),
        bounds=(low + lows * len(sweeps), high + highs * len(sweeps)),
        jac_sparsity=pattern,
        loss="soft_l1",
        f_scale=0.05,
        max_nfev=200,
    )
    return _with_own(card, result.x[:5])


def _with_own(card: Card, values: np.ndarray) -> Card:
    static_w, gap_w, v_knee, knee, x_min = (float(v) for v in values)
    return replace(card, static_w=static_w, gap_w=gap_w, v_knee=v_knee, knee=knee, x_min=x_min)


# Starting shares of SM-bound time and gap: one lands in the wrong valley for configurations that hardly use the GPU.
_STARTS = ((0.7, 0.05), (0.2, 0.3), (0.3, 0.8))


def _start(card: Card, sweep: Sweep, compute: float, gap: float) -> list[float]:
    dynamic_w = (sweep.power_w.max() - gap * card.gap_w) / (1 - gap) - card.static_w
    return [0.0, compute, gap, float(np.clip(dynamic_w, 5.0, 2 * card.power_limit_w[2]))]


def _bounds(card: Card) -> tuple[list[float], list[float]]:
    # Time is a logarithm relative to the fastest epoch; a dynamic power far over the limit only says "always capped".
    return [-0.5, 0.0, 0.0, 1.0], [0.5, 1.0, 0.999, 2.5 * card.power_limit_w[2]]


def _numbers(values: np.ndarray, sweep: Sweep) -> SweepFit:
    # The second number is the SM-bound share of the busy time, so that no pair of shares adds up to more than all.
    log_time, compute, gap, dynamic_w = (float(v) for v in values)
    return SweepFit(float(sweep.time_s.min()) * float(np.exp(log_time)), compute * (1 - gap), gap, dynamic_w)


def _residuals(values: np.ndarray, card: Card, sweep: Sweep) -> np.ndarray:
    time_s, power_w = predict(card, _numbers(values, sweep), sweep.limits_w)
    return np.concatenate([np.log(time_s / sweep.time_s), np.log(power_w / sweep.power_w)])


def fit_law(card: Card, samples: int, sweeps: Sequence[Sweep]) -> Law:
    """The eight numbers of a workload on a card, over all batch sizes and limits."""
    batch = np.array([sweep.batch_size for sweep in sweeps], float)
    iteration_s = np.array([sweep.time_s.min() for sweep in sweeps]) * batch / samples
    per_sample = float((iteration_s / batch).min())

    def law(values: np.ndarray) -> Law:
        overhead, host, half, sample, compute, base, extra, knee, growth = values
        return Law(
            overhead_s=float(np.exp(overhead)),
            host_s=float(np.exp(host)),
            floor_samples=float(np.exp(half)),
            sample_s=float(np.exp(sample)),
            compute=float(compute),
            base_w=float(base),
            batch_w=float(extra),
            half_samples=float(np.exp(knee)),
            host_exponent=float(growth),
        )

    def residuals(values: np.ndarray) -> np.ndarray:
        errors = []
        for sweep in sweeps:
            time_s, power_w = predict_law(card, law(values), samples, sweep.batch_size, sweep.limits_w)
            errors += [np.log(time_s / sweep.time_s), np.log(power_w / sweep.power_w)]
        return np.concatenate(errors)

    limit = card.power_limit_w[2]
    low_bounds = [-16.0, -20.0, -3.0, np.log(per_sample) - 5, 0.0, 0.0, 0.0, -3.0, 0.5]
    high_bounds = [3.0, 3.0, np.log(batch.max()) + 1, np.log(per_sample) + 1, 1.0, 1.0 * limit, 0.8 * limit, np.log(batch.max()) + 2, 1.5]
    best = None
    for overhead in (0.02, 0.5, 0.9):
        for host in (1e-3, 0.2):
            for half in (0.1, 2.0):
                start = [
                    np.log(overhead * iteration_s.min()),
                    np.log(host * per_sample),
                    np.log(half * batch.min()),
                    np.log(0.8 * per_sample),
                    0.5,
                    0.3 * limit,
                    0.4 * limit,
                    np.log(np.median(batch)),
                    1.0,
                ]
                result = least_squares(residuals, np.clip(start, low_bounds, high_bounds), bounds=(low_bounds, high_bounds), max_nfev=80, loss="soft_l1", f_scale=0.1)
                if best is None or result.cost < best.cost:
                    best = result
    assert best is not None
    return law(best.x)


def predict_law(
    card: Card, law: Law, samples: int, batch_size: int, limits_w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Epoch time and mean power that a batch-size law foretells at some power limits."""
    gap_s, busy_s, load = law.at(batch_size)
    fit = SweepFit(
        time_s=(gap_s + busy_s) * samples / batch_size,
        compute=load.compute * busy_s / (gap_s + busy_s),
        gap=gap_s / (gap_s + busy_s),
        dynamic_w=load.dynamic_w,
    )
    return predict(card, fit, limits_w)


def percent_errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Absolute errors in percent of what was measured."""
    return 100 * np.abs(predicted / measured - 1)


# Every evaluation of a fit is at a new load, so the cache of `operate` would only grow.
_operate = operate.__wrapped__

_ALIASES = {"movielens-1m": "movielens"}


def _workload_key(dataset: str) -> str:
    return _ALIASES.get(dataset, dataset)
