"""How an iteration's time and energy answer to clocks and power limits: physics before any probe, corrected
by every probe.

Nobody knows the numbers of a running job, so many sets of them are drawn once from ranges that hold for any
card (`clock_prior.bank`). A fit weighs the sets by what the probes say, moves them by an ensemble Kalman
step where they are too few to fit (Evensen, 2003), and lets a smooth deviation explain the rest (Matheron's
rule: every draw goes through the probes as closely as their errors ask). A prediction made elsewhere enters
as soft probes with errors that are alike at settings that lie near each other; curves of other workloads of
the card (`library`) enter as further sets, and earlier runs of the same job (`space.known`) as soft probes
with a unit of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve
from scipy.special import logsumexp

from ..earlier import PlacedCurve
from ..space import SettingSpace
from .clock_prior import bank


@dataclass(frozen=True, slots=True)
class ResponseSurfaceParams:
    """Tuned constants of `fit`.

    `deviation_time_sd` and `deviation_power_sd` were chosen among three to five values each by
    `benchmarks.clocks --only search` (docs/validation/clocks.md), the rough `samples` among four sets by
    `benchmarks.limits` on the generated cards of its `CHOSEN_ON`, the others by hand.
    """

    draws: int = 256  # of what a fit leaves open
    # draws that weights must leave; below it they are tempered, and the Kalman step does the rest
    least_effective: float = 48.0
    deviation_time_sd: float = 0.003  # of log time from the equations
    deviation_power_sd: float = 0.012  # of log power from the equations
    # over which part of ln SM clock, ln memory clock, ln limit a deviation is alike
    reach: tuple[float, float, float] = (0.35, 0.6, 0.35)
    # times the smooth deviation, sd of log time and of log power of a rough one (jumps, plateaus), and the
    # log of what is believed of each world beforehand
    samples: tuple[tuple[float, float, float, float], ...] = (
        (0.5, 0.0, 0.0, -0.7), (1.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, -0.7), (4.0, 0.0, 0.0, -2.0),
        (1.0, 0.01, 0.015, -0.7), (1.0, 0.025, 0.03, -1.5), (4.0, 0.04, 0.06, -3.0),
    )
    rough_reach: float = 0.05  # over which part of a ln clock or limit a rough deviation is alike
    least_share: float = 0.02  # of the belief, below which a world is left out
    soft_probes: int = 10  # settings at which a prediction is taken as a soft probe
    mixtures: int = 64  # of other jobs' curves that are known from before; of the equations there are 1,024
    soft_reach: float = 0.7  # over which part of a ln clock its errors are alike
    free_sd: float = 3.0  # of the log of the unknown time and energy at the reference
    unusual: float = 0.5  # share of rough draws, or
    unusual_scale: float = 3.0  # scale of the smooth deviation, from which on a card is called unusual
    outlier_sds: float = 3.0  # beyond which a probe's stated error is not believed


PARAMS = ResponseSurfaceParams()


@dataclass(frozen=True)
class Response:
    """Posterior of time and energy at every setting of a space, as equally likely draws.

    Attributes:
        log_times, log_energies: ln of time and energy of an iteration relative to the reference, (draws,
            settings).
        log_time_s, log_energy_j: ln of time and energy of an iteration at the reference, (draws,).
        deviation: How far the smooth deviation had to be widened, 1 where the equations fit as well as
            expected.
        rough: Share of the draws that have jumps or plateaus beside the equations, 0..1.
    """

    space: SettingSpace
    log_times: np.ndarray
    log_energies: np.ndarray
    log_time_s: np.ndarray
    log_energy_j: np.ndarray
    deviation: float
    rough: float = 0.0

    @property
    def unusual(self) -> bool:
        """Whether the probes lie beside the curves that the equations make."""
        return self.rough > PARAMS.unusual or self.deviation >= PARAMS.unusual_scale

    @property
    def time_ratio(self) -> np.ndarray:
        """Best estimate per setting, relative to the reference (median in log)."""
        return np.asarray(np.exp(self.log_times.mean(axis=0)))

    @property
    def energy_ratio(self) -> np.ndarray:
        return np.asarray(np.exp(self.log_energies.mean(axis=0)))

    @property
    def time_sd(self) -> np.ndarray:
        """Relative standard deviation per setting."""
        return np.asarray(self.log_times.std(axis=0))

    @property
    def energy_sd(self) -> np.ndarray:
        return np.asarray(self.log_energies.std(axis=0))


def fit(
    space: SettingSpace, rows: Any, time_s: Any, energy_j: Any, errors: Any, *, prior: Any = None,
    power_share: float | None = None, wait_share: float | None = None, rough: bool = True,
) -> Response:
    """What probes (and a prediction) say of every setting.

    Args:
        space: The settings, and what is `known` of them from before.
        rows: Row of the space that each probe was at; repeated probes pool. May be empty.
        time_s, energy_j: Time and energy of an iteration in each probe.
        errors: Relative standard errors, (probes, 2): of time and of energy.
        prior: A prediction, or a `Library` of other workloads' curves. A prediction has `frame` with
            log_time, log_time_sd, log_energy and log_energy_sd per setting, relative to the reference.
        power_share: Mean power at the reference over the power limit in force there, where both are known.
            Else None.
        wait_share: Of an iteration at the reference, in which the GPU waits (1 - utilisation), where that is
            known.
        rough: Weigh all of `Params.worlds`; else the draws are of the likeliest one that is smooth.
    """
    rows = np.asarray(rows, dtype=int).reshape(-1)
    observed = np.log(np.column_stack([np.asarray(each, float).reshape(-1) for each in (time_s, energy_j)]))
    sigma = np.asarray(errors, float).reshape(len(rows), 2).copy()
    waits = None if wait_share is None else round(20 * min(max(wait_share, 0.0), 1.0)) / 20
    share = None if power_share is None else round(min(max(power_share, 0.02), 1.0), 2)
    times, powers = bank(space, share, waits)
    # Curves of other workloads: as many as of physics, and the probes decide between them.
    known = space.known
    more = [prior.mixtures(times, powers)] if hasattr(prior, "mixtures") else []
    if known is not None and known.others is not None:
        more.append(known.others.mixtures(times, powers, PARAMS.mixtures))
    times = np.concatenate([times, *(each for each, _ in more)])
    powers = np.concatenate([powers, *(each for _, each in more)])
    middle = observed.mean(axis=0) if len(rows) else np.zeros(2)
    predicted = None if hasattr(prior, "mixtures") else _soft(space, prior)
    soft = _joined([predicted, *(map(_earlier, known.same) if known is not None else ())])
    for again in (True, False):
        fitted, deviation, jumps = _mixed(
            space, times, powers, _evidence(rows, observed - middle, sigma, soft), rough
        )
        worst = np.min([each[-1] for each in fitted], axis=0)
        if not again or len(rows) < 4 or not np.any(worst > PARAMS.outlier_sds):
            break
        # Such a probe says little more than that something happened.
        sigma *= np.maximum(worst / (0.5 * PARAMS.outlier_sds), 1.0)
    log_times, log_energies, scale = (np.concatenate([each[i] for each in fitted]) for i in range(3))
    return Response(
        space, log_times, log_energies, scale[:, 0] + middle[0], scale[:, 1] + middle[1], deviation,
        jumps,
    )


def prepare(space: SettingSpace) -> None:
    """Work out beforehand what every fit over a space needs."""
    for sample in PARAMS.samples:
        _deviations(space, *sample[:3])


@dataclass(frozen=True)
class _Soft:
    """A prediction as soft probes: rows, (ln time, ln energy) there, covariance of its errors for either."""

    rows: np.ndarray
    values: np.ndarray
    covariances: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Evidence:
    """Hard probes first, then soft ones.

    Attributes:
        at: Their rows.
        hard: How many are hard.
        target: ln times of all, then ln energies.
        noise: Covariance of the errors of `target`; the reference itself is not known, which is common to
            all hard probes.
    """

    at: np.ndarray
    hard: int
    target: np.ndarray
    noise: np.ndarray

    def cover(self, deviations: tuple[tuple[np.ndarray, np.ndarray], ...]) -> np.ndarray:
        """Covariance of what a world's deviations and the errors make of `target`."""
        time, power = (kernel[np.ix_(self.at, self.at)] for kernel, _ in deviations)
        return np.asarray(np.block([[time, time], [time, time + power]]) + self.noise)


def _evidence(rows: np.ndarray, observed: np.ndarray, sigma: np.ndarray, soft: _Soft | None) -> _Evidence:
    hard = len(rows)
    at = np.concatenate([rows, soft.rows]).astype(int) if soft is not None else rows
    count = len(at)
    noise = np.zeros((2 * count, 2 * count))
    target = np.zeros(2 * count)
    for which in (0, 1):
        start = which * count
        noise[range(start, start + hard), range(start, start + hard)] = sigma[:, which] ** 2
        noise[start : start + hard, start : start + hard] += PARAMS.free_sd**2
        target[start : start + hard] = observed[:, which]
        if soft is not None:
            noise[start + hard : start + count, start + hard : start + count] = soft.covariances[which]
            target[start + hard : start + count] = soft.values[:, which]
    return _Evidence(at, hard, target, noise)


def _mixed(
    space: SettingSpace, times: np.ndarray, powers: np.ndarray, evidence: _Evidence, rough: bool
) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]], float, float]:
    """Draws of each world, as many as the probes make likely; mean scale of the deviation; share of rough."""
    at = evidence.at
    rests = evidence.target - np.concatenate([times[:, at], times[:, at] + powers[:, at]], axis=1)
    samples = [_deviations(space, *sample[:3]) for sample in PARAMS.samples]
    found = [
        _likelihood(rests, evidence.cover(each)) if len(at) else np.zeros(len(times)) for each in samples
    ]
    pairs = zip(found, PARAMS.samples, strict=True)
    believed = np.array([float(logsumexp(each)) + sample[3] for each, sample in pairs])
    smooth = np.array([sample[1] == 0 == sample[2] for sample in PARAMS.samples])
    if not rough:
        believed = np.where(smooth & (believed >= believed[smooth].max()), believed, -np.inf)
    share = np.exp(believed - logsumexp(believed))
    share = np.where(share < PARAMS.least_share, 0.0, share)
    draws = np.diff(np.round(PARAMS.draws * np.cumsum(share) / share.sum()).astype(int), prepend=0)
    # The same luck for every call: what is compared differs in what was measured.
    rng = np.random.default_rng(0)
    fitted = [
        _condition(space, times, powers, evidence, found[i], samples[i], int(draws[i]), rng)
        for i in np.flatnonzero(draws)
    ]
    scales = np.array([sample[0] for sample in PARAMS.samples])
    return fitted, float(draws @ scales / draws.sum()), float(draws[~smooth].sum() / draws.sum())


def _condition(
    space: SettingSpace, times: np.ndarray, powers: np.ndarray, evidence: _Evidence, likelihood: np.ndarray,
    deviations: tuple[tuple[np.ndarray, np.ndarray], ...], draws: int, rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws of one world given the probes: ln times, ln energies, ln scales, and how odd each probe is."""
    at, hard, target, noise = evidence.at, evidence.hard, evidence.target, evidence.noise
    cover = evidence.cover(deviations)
    n, count = len(space), len(at)
    both = np.concatenate([at, at + n])  # in the state, ln times of all settings come first, then ln energies
    (kernel_time, root_time), (kernel_power, root_power) = deviations
    beta, weights = _tempered(likelihood)
    chosen = _systematic(weights, draws, rng)
    state = np.concatenate([times[chosen], times[chosen] + powers[chosen]], axis=1)
    if count and beta < 1 and draws > 1:
        anomalies = state - state.mean(axis=0)
        reach = anomalies[:, both]
        gain = anomalies.T @ reach / (len(state) - 1)
        factor = cho_factor(reach.T @ reach / (len(state) - 1) + cover / (1 - beta))
        slips = rng.standard_normal((len(state), 2 * count)) @ np.linalg.cholesky(cover / (1 - beta)).T
        state = state + cho_solve(factor, (target + slips - state[:, both]).T).T @ gain.T
    free_time = rng.standard_normal((draws, root_time.shape[1])) @ root_time.T
    free_power = rng.standard_normal((draws, root_power.shape[1])) @ root_power.T
    state = state + np.concatenate([free_time, free_time + free_power], axis=1)
    scales = PARAMS.free_sd * rng.standard_normal((len(state), 2))
    worst = np.zeros((hard, 2))
    if count:
        plain = noise.copy()
        lift = np.zeros((2 * count, 2))
        for which in (0, 1):
            start = which * count
            plain[start : start + hard, start : start + hard] -= PARAMS.free_sd**2
            lift[start : start + hard, which] = 1.0
        triangle = np.linalg.cholesky(plain + 1e-12 * np.eye(2 * count))
        slips = rng.standard_normal((len(state), 2 * count)) @ triangle.T
        factor = cho_factor(cover)
        answer = cho_solve(factor, (target - slips - state[:, both] - scales @ lift.T).T).T
        half_t, half_e = answer[:, :count], answer[:, count:]
        shift_time = (half_t + half_e) @ kernel_time[:, at].T
        shift_power = half_e @ kernel_power[:, at].T
        state = state + np.concatenate([shift_time, shift_time + shift_power], axis=1)
        scales = scales + PARAMS.free_sd**2 * answer @ lift
        inverse = np.diag(cho_solve(factor, np.eye(2 * count)))
        # What each probe says against all the others.
        forecast = np.concatenate([times[:, at], times[:, at] + powers[:, at]], axis=1)[chosen]
        left = cho_solve(factor, target - forecast.mean(axis=0))
        spread = np.var(forecast, axis=0)
        odd = np.abs(left) / inverse / np.sqrt(1 / inverse + spread)
        worst = np.column_stack([odd[:hard], odd[count : count + hard]])
    here = space.reference_row
    log_times, log_energies = state[:, :n] - state[:, [here]], state[:, n:] - state[:, [n + here]]
    return log_times, log_energies, scales + state[:, [here, n + here]], worst


def _likelihood(rests: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Log likelihood of each row, up to nothing: scales are compared by it."""
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, rests.T)
    return np.asarray(-0.5 * np.sum(white**2, axis=0) - np.sum(np.log(np.diag(lower))))


def _tempered(likelihood: np.ndarray) -> tuple[float, np.ndarray]:
    """The largest power of the likelihood, 1 at most, whose weights leave enough draws; and the weights."""

    def weights(beta: float) -> np.ndarray:
        powered = np.exp(beta * (likelihood - likelihood.max()))
        return np.asarray(powered / powered.sum())

    low, high = 0.0, 1.0
    if 1 / np.sum(weights(1.0) ** 2) >= PARAMS.least_effective:
        return 1.0, weights(1.0)
    for _ in range(12):
        middle = (low + high) / 2
        enough = 1 / np.sum(weights(middle) ** 2) >= PARAMS.least_effective
        low, high = (middle, high) if enough else (low, middle)
    return low, weights(low)


def _systematic(weights: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    places = (np.arange(draws) + rng.random()) / draws
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)


def _soft(space: SettingSpace, prior: Any) -> _Soft | None:
    if prior is None:
        return None
    frame = prior.frame
    values = np.column_stack([frame["log_time"].to_numpy(), frame["log_energy"].to_numpy()]).astype(float)
    spreads = np.column_stack([frame[name].to_numpy() for name in ("log_time_sd", "log_energy_sd")])
    spreads = spreads.astype(float)
    good = np.isfinite(values).all(axis=1) & np.isfinite(spreads).all(axis=1) & (spreads > 1e-6).all(axis=1)
    good[space.reference_row] = False
    left = np.flatnonzero(good)
    if not len(left):
        return None
    places = _places(space) / PARAMS.soft_reach
    rows, near = [], np.sum((places - places[space.reference_row]) ** 2, axis=1)
    for _ in range(min(PARAMS.soft_probes, len(left))):  # farthest first: they cover the space
        pick = int(left[np.argmax(near[left])])
        if near[pick] <= 1e-9:
            break
        rows.append(pick)
        near = np.minimum(near, np.sum((places - places[pick]) ** 2, axis=1))
    if not rows:
        return None
    chosen = np.array(rows)
    apart = np.sum((places[chosen][:, None] - places[chosen][None, :]) ** 2, axis=2)
    alike = 0.9 * np.exp(-0.5 * apart) + 0.1 * np.eye(len(chosen))
    covariances = tuple(alike * np.outer(spreads[chosen, which], spreads[chosen, which]) for which in (0, 1))
    return _Soft(chosen, values[chosen], (covariances[0], covariances[1]))


def _earlier(curve: PlacedCurve) -> _Soft:
    """An earlier run of this job as soft probes; nobody knows its unit."""
    covariance = curve.sd**2 * np.eye(len(curve.rows)) + PARAMS.free_sd**2
    return _Soft(curve.rows, curve.logs - curve.logs.mean(axis=0), (covariance, covariance))


def _joined(parts: Iterable[_Soft | None]) -> _Soft | None:
    """Soft probes whose errors have nothing to do with each other's, as one."""
    there = [each for each in parts if each is not None]
    if not there:
        return None
    rows, values = (np.concatenate([getattr(each, name) for each in there]) for name in ("rows", "values"))
    time, power = (block_diag(*(each.covariances[which] for each in there)) for which in (0, 1))
    return _Soft(rows, values, (time, power))


def _places(space: SettingSpace) -> np.ndarray:
    return np.asarray(np.log(np.column_stack([space.x, space.mu, space.limit])))


@lru_cache(maxsize=32)
def _deviations(
    space: SettingSpace, scale: float, rough_time: float, rough_power: float
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Covariances of the deviations of log time and log power from the reference's, and roots of them."""
    smooth, rough = _kernel(space, PARAMS.reach, 2), _kernel(space, (PARAMS.rough_reach,) * 3, 1)
    found = []
    for sd, rough_sd in ((PARAMS.deviation_time_sd, rough_time), (PARAMS.deviation_power_sd, rough_power)):
        kernel = (scale * sd) ** 2 * smooth + rough_sd**2 * rough
        values, vectors = np.linalg.eigh(kernel)
        keep = values > 1e-4 * max(values[-1], 1e-12)
        found.append((kernel, vectors[:, keep] * np.sqrt(values[keep])))
    return tuple(found)


@lru_cache(maxsize=8)
def _kernel(space: SettingSpace, reach: tuple[float, float, float], power: int) -> np.ndarray:
    """Covariance of a unit deviation relative to the reference: smooth for a power of 2, rough for 1."""
    places = _places(space) / np.array(reach)
    apart = np.sqrt(np.sum((places[:, None] - places[None, :]) ** 2, axis=2))
    kernel = np.exp(-0.5 * apart**2) if power == 2 else np.exp(-apart)
    here = space.reference_row
    kernel = kernel - kernel[[here]] - kernel[:, [here]] + 1.0
    return np.asarray(kernel + 1e-9 * np.eye(len(space)))
