"""Time and power of a training iteration against the power limit: a curve of known shape, fitted to a few
measured limits.

What a limit does is known physics. With x the SM clock relative to the highest and V(x) the core's voltage
relative to that there,

    busy power = static + dynamic * x * V(x)**2        V falls in a straight line from 1 to `v_knee` at
                                                       `knee`, and no further
    busy time  = busy * (1 + compute * (1/x - 1))      only what is bound by the clock gets longer
    iteration  = busy time at busy power + a gap at gap power that no limit changes

and a limit lowers x until busy power fits under it (Zeus, NSDI'23, figure 4, has such curves; the voltage
curve is that of Mei et al., "A survey and measurement study of GPU DVFS on energy conservation", 2017,
section 4). Two halves of the busy time may differ in dynamic power, as forward and backward passes do. Nine
numbers are more than three or four limits can tell, so each has a prior that holds for any card and job; what
the shape leaves over is a smooth deviation. Powers are in units of the highest limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

CLOCKS = np.linspace(0.1, 1.0, 181)
# Prior mean, standard deviation, lowest, highest: log of the time of an iteration at the highest clock,
# compute share, gap's share of the time, log dynamic power, difference of the halves, static power, knee,
# voltage at the knee, gap power.
PRIOR = np.array([
    (0.0, 5.0, -30.0, 30.0), (0.7, 0.35, 0.0, 1.2), (0.1, 0.15, 0.0, 0.97), (-0.3, 0.5, -3.0, 1.0),
    (0.1, 0.1, 0.0, 0.6), (0.18, 0.08, 0.02, 0.5), (0.70, 0.12, 0.3, 0.95), (0.78, 0.10, 0.4, 1.0),
    (0.20, 0.08, 0.02, 0.6),
])


@dataclass(frozen=True, slots=True)
class PowerLimitCurveParams:
    """Tuned constants of `fit`, beside the prior `PRIOR` of its nine numbers.

    Set by hand; `benchmarks.power_profile` scores the profiles that are made with them.
    """

    deviation_sd: float = 0.006  # of log time and log power from the shape; grows where the residuals say so
    # of log time and log power of a limit alone; tables of short epochs have such
    rough_sds: tuple[float, float, float] = (0.0, 0.015, 0.05)
    plain_log_odds: float = 2.0  # that there is none
    reach: float = 0.2  # over which part of the highest limit a deviation is alike


PARAMS = PowerLimitCurveParams()


@dataclass(frozen=True)
class PowerLimitCurve:
    """Posterior draws of the time and power of an iteration at every limit, one a row.

    Attributes:
        time_s, power_w: Best estimate at each limit, of one GPU.
        times_s, powers_w: Draws, one a row; equally likely.
        residual: Root mean square of what the shape leaves over at the measured limits, relative.
    """

    limits_w: np.ndarray
    time_s: np.ndarray
    power_w: np.ndarray
    times_s: np.ndarray
    powers_w: np.ndarray
    residual: float


def model(parameters: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log time and log mean power at limits (relative to the highest)."""
    log_time, compute, gap, log_dynamic, spread, static, knee, v_knee, gap_power = parameters
    volts = np.where(knee >= CLOCKS, v_knee, v_knee + (1 - v_knee) * (CLOCKS - knee) / (1 - knee))
    shape = CLOCKS * volts**2
    time = np.full(len(limits), gap)
    energy = np.full(len(limits), gap * gap_power)
    for factor in (1 + spread, 1 - spread):
        power = static + np.exp(log_dynamic) * factor * shape
        x = np.interp(limits, power, CLOCKS)
        busy = 0.5 * (1 - gap) * (1 + compute * (1 / x - 1))
        time += busy
        energy += busy * np.interp(x, CLOCKS, power)
    return log_time + np.log(time), np.log(energy / time)


def fit(
    limits_w: np.ndarray, measured: np.ndarray, time_s: np.ndarray, power_w: np.ndarray, errors: np.ndarray,
    *, draws: int = 64,
) -> PowerLimitCurve:
    """Fit the shape to measured limits and say what it leaves open at all limits.

    Args:
        limits_w: All limits that may be set.
        measured: Their indices that were measured.
        time_s, power_w: Of an iteration at those, one GPU.
        errors: Relative standard errors, (measured, 2): of time and of power.
    """
    unit_w = float(limits_w.max())
    at = limits_w / unit_w
    scale_s = float(np.median(time_s))
    seen = np.column_stack([np.log(time_s / scale_s), np.log(power_w / unit_w)])
    # Where power stays far below the limit it is the job's, not the limit's: the best first guess of what the
    # card could draw.
    start = PRIOR[:, 0].copy()
    highest = seen[:, 1].max()
    busy = max(highest, -2.5) and max(np.exp(highest) * 1.1 - start[5], 0.08)
    start[3] = np.clip(np.log(busy), -2.9, 0.9)
    # How far single limits lie beside any smooth curve is not known: the roughness that explains the slices
    # best, of a few. Two limits cannot tell.
    levels = PARAMS.rough_sds if len(measured) > 2 else PARAMS.rough_sds[:1]
    squares = errors**2 + PARAMS.deviation_sd**2
    fits = [(*_solve(start, at[measured], seen, np.sqrt(squares + rough**2)), rough) for rough in levels]
    found, jacobian, _, rough = max(fits, key=lambda fit: fit[2] + PARAMS.plain_log_odds * (fit[3] == 0))
    deviation = PARAMS.deviation_sd
    for _ in range(2):
        sigma = np.sqrt(errors**2 + deviation**2 + rough**2)
        rest = seen - np.column_stack(model(found, at[measured]))
        residual = float(np.sqrt(np.mean(rest**2)))
        # More data than shape can explain: then the deviation is larger than thought. Two points cannot tell
        # that.
        worse = float(np.sqrt(np.mean((rest / sigma) ** 2) * len(measured) / max(len(measured) - 1.5, 1)))
        if len(measured) < 3 or worse < 1.2:
            break
        deviation = deviation * worse
        found, jacobian, _ = _solve(found, at[measured], seen, np.sqrt(errors**2 + deviation**2 + rough**2))
    return _curve(
        limits_w, at, measured, found, jacobian, rest, errors, deviation, rough, scale_s, unit_w, residual,
        draws,
    )


def _solve(
    start: np.ndarray, at: np.ndarray, seen: np.ndarray, sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Parameters, the Jacobian of the rests, and the log evidence there (Laplace's approximation)."""
    mean, sd, low, high = PRIOR.T

    def rests(parameters: np.ndarray) -> np.ndarray:
        off = (np.column_stack(model(parameters, at)) - seen) / sigma
        return np.concatenate([off.ravel(), (parameters - mean) / sd])

    inside = np.clip(start, low + 1e-6, high - 1e-6)
    inside[0] += float(np.mean(seen[:, 0] - model(inside, at)[0]))
    solution = least_squares(rests, inside, bounds=(low, high), x_scale=sd, max_nfev=20)
    log_volume = np.linalg.slogdet(solution.jac.T @ solution.jac)[1]
    evidence = -solution.cost - np.log(sigma).sum() - 0.5 * log_volume
    return solution.x, solution.jac, float(evidence)


def _curve(
    limits_w: np.ndarray, at: np.ndarray, measured: np.ndarray, found: np.ndarray, jacobian: np.ndarray,
    rest: np.ndarray, errors: np.ndarray, deviation: float, rough: float, scale_s: float, unit_w: float,
    residual: float, draws: int,
) -> PowerLimitCurve:
    # The same luck for every call: what is compared differs in what was measured.
    rng = np.random.default_rng(0)
    spread = np.linalg.cholesky(np.linalg.pinv(jacobian.T @ jacobian) + 1e-12 * np.eye(len(found)))
    parameters = found + rng.standard_normal((draws, len(found))) @ spread.T
    parameters = np.clip(parameters, PRIOR[:, 2], PRIOR[:, 3])
    shapes = np.array([model(each, at) for each in parameters])  # draws x (time, power) x limits
    best = np.array(model(found, at))
    smooth = deviation**2 * np.exp(-0.5 * ((at[:, None] - at[None, :]) / PARAMS.reach) ** 2)
    kernel = smooth + (rough**2 + 1e-10) * np.eye(len(at))
    logs, drawn = np.empty((2, len(at))), np.empty((2, draws, len(at)))
    for which in (0, 1):
        noise = np.diag(errors[:, which] ** 2)
        gain = kernel[:, measured] @ np.linalg.inv(kernel[np.ix_(measured, measured)] + noise)
        logs[which] = best[which] + gain @ rest[:, which]
        # A draw of the shape, a draw of the deviation, and both corrected by what was measured (Matheron's
        # rule).
        free = rng.standard_normal((draws, len(at))) @ np.linalg.cholesky(kernel).T
        said = shapes[:, which] + free
        slips = rng.standard_normal((draws, len(measured))) * errors[:, which]
        seen = best[which][measured] + rest[:, which]
        drawn[which] = said + (seen + slips - said[:, measured]) @ gain.T
    return PowerLimitCurve(
        limits_w, np.exp(logs[0]) * scale_s, np.exp(logs[1]) * unit_w, np.exp(drawn[0]) * scale_s,
        np.exp(drawn[1]) * unit_w, residual,
    )
