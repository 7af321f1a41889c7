"""Physics of an iteration over clocks and power limits: many sets of numbers that any card and job may have,
and the curves they give.

With x the SM clock and m the memory clock relative to the highest, an iteration is clock-bound work a,
memory-bound work b and a gap c,

    time   = ((a/f)**n + (b/m)**n)**(1/n) + c               n = 1: one after the other, large n: fully
           overlapped
    power  = static + memory_static * m**g + d * V(d)**2 * (e0 + e_a*u_a + e_b*u_b) + memory * u_b * m
           while busy
    u_a = (a/f)/busy time, u_b = (b/m)/busy time;           in the gap: static, and a share of the e0 term
    f      = x * (1 + (x/boost)**edge)**(-1/edge)           no card goes as fast as its list says: f levels
           off
    d      = f * (x/f)**asked                               what it draws follows f, x or something between

V falls in a straight line from 1 to `v_knee` at `knee`, and no further. A power limit lowers x until mean
power, or power while busy, or something between (a limit averages over some time), fits under it. The voltage
curve is that of Mei et al., "A survey and measurement study of GPU DVFS on energy conservation", 2017,
section 4; overlap as a norm becomes the roofline (Williams et al., 2009) at n = infinity.

The ranges are wide enough for cards from Pascal to Hopper and were not fitted to any; only how often and how
soon clocks level off was chosen among a few values on measured grids.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from ..space import SettingSpace


@dataclass(frozen=True, slots=True)
class ClockPriorParams:
    """Tuned constants of the sets of numbers that the equations are evaluated with.

    `boosted` and `boost_depth` were chosen among a few values by `benchmarks.clocks --only search`
    (docs/validation/clocks.md), the others by hand.
    """

    sets: int = 1024
    # at which the equations are evaluated; between them log time and log power are straight in log clock
    grid_clocks: int = 40
    boosted: float = 0.5  # of cards and jobs never reach the highest clock on the list
    boost_depth: float = 0.12  # by how much at most, roughly
    wait_sd: float = 0.05  # relative, of the share of an iteration in which the GPU waits, where it was seen
    most_wait: float = 0.98  # of that share
    capped: float = 0.96  # of the power limit: mean power above it is taken for the limit's


PARAMS = ClockPriorParams()


def _numbers(power_share: float | None, wait_share: float | None = None) -> dict[str, np.ndarray]:
    """Sets of numbers from ranges that hold for any card and job, one value a row each."""
    u = qmc.Sobol(20, seed=7).random(PARAMS.sets)
    # Every fourth row of a Sobol sequence is no sample.
    u = np.random.default_rng(7).permutation(np.clip(u, 1e-4, 1 - 1e-4))
    ratio = 0.3 + 1.8 * ndtri(u[:, 0])  # ln of clock-bound over memory-bound work
    overlap = np.exp(np.log(1.3) + u[:, 1] * np.log(8 / 1.3))
    gap = 0.5 * u[:, 2] ** 3
    if wait_share is not None:  # a job that mostly waits for its host is beyond the range of what is drawn
        observed = np.clip(wait_share * (1 + PARAMS.wait_sd * ndtri(u[:, 2])), 0.0, PARAMS.most_wait)
        gap = np.where(np.arange(PARAMS.sets) % 2 == 0, observed, gap)
    a = (1 + np.exp(-overlap * ratio)) ** (-1 / overlap)
    b = a * np.exp(-ratio)
    p: dict[str, np.ndarray] = {"a": a * (1 - gap), "b": b * (1 - gap), "c": gap, "n": overlap}
    p["knee"] = 0.35 + 0.57 * u[:, 3]
    p["v_knee"] = 0.55 + 0.42 * u[:, 4]
    part = np.maximum(u[:, 5] - (1 - PARAMS.boosted), 0) / PARAMS.boosted
    p["boost"] = np.where(part > 0, 1.04 - PARAMS.boost_depth * part, 2.0)
    p["edge"] = np.exp(np.log(8) + u[:, 17] * np.log(60 / 8))
    p["asked"] = u[:, 18]
    p["acts"] = u[:, 19]
    p["static"] = 0.22 * np.exp(0.45 * ndtri(u[:, 6]))
    p["memory_static"] = 0.10 * np.exp(0.7 * ndtri(u[:, 7]))
    p["e0"] = 0.20 * np.exp(0.7 * ndtri(u[:, 8]))
    p["e_a"] = 0.30 * np.exp(0.6 * ndtri(u[:, 9]))
    p["e_b"] = 0.12 * np.exp(0.7 * ndtri(u[:, 10]))
    p["memory"] = 0.16 * np.exp(0.7 * ndtri(u[:, 11]))
    p["g"] = 0.5 + 1.0 * u[:, 12]
    p["idle"] = 0.3 + 0.5 * u[:, 13]  # of clock power that remains in a gap
    asked = 1 - 0.25 * np.log(u[:, 14])  # what a capped job would draw, of the limit
    if power_share is None:
        p["level"] = np.where(u[:, 15] < 0.3, asked, 0.3 + 0.6 * u[:, 16])
    elif power_share >= PARAMS.capped:
        p["level"] = asked
    else:
        p["level"] = np.full(PARAMS.sets, power_share)
    return {name: value[:, None] for name, value in p.items()}


def _curves(p: dict[str, np.ndarray], x: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An iteration's time and energy, and power while busy, uncapped, in arbitrary units; columns as in x."""
    fast = x * (1 + (x / p["boost"]) ** p["edge"]) ** (-1 / p["edge"])
    drive = fast * (x / fast) ** p["asked"]
    part_a, part_b = p["a"] / fast, p["b"] / mu
    busy = (part_a ** p["n"] + part_b ** p["n"]) ** (1 / p["n"])
    rising = p["v_knee"] + (1 - p["v_knee"]) * (drive - p["knee"]) / (1 - p["knee"])
    volts = np.where(drive <= p["knee"], p["v_knee"], rising)
    clocked = drive * volts**2
    resting = p["static"] + p["memory_static"] * mu ** p["g"]
    u_a, u_b = part_a / busy, part_b / busy
    drawn = resting + clocked * (p["e0"] + p["e_a"] * u_a + p["e_b"] * u_b) + p["memory"] * u_b * mu
    energy = busy * drawn + p["c"] * (resting + p["idle"] * clocked * p["e0"])
    return busy + p["c"], energy, drawn


@lru_cache(maxsize=8)
def bank(
    space: SettingSpace, power_share: float | None, wait_share: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """ln time and ln mean power over the reference's, (sets, settings), from the power there alone."""
    p = _numbers(power_share, wait_share)
    lowest = float(min(space.x.min(), 0.15))
    grid = np.exp(np.linspace(np.log(lowest), 0.0, PARAMS.grid_clocks))
    top_time, top_energy, top_busy = _curves(p, np.array([[1.0]]), float(space.mu[space.reference_row]))
    # Mean power at the reference, if no limit held it back, is `level` limits.
    unit = p["level"] / (top_energy / top_time)
    # What a limit acts on lies between mean power (iterations shorter than its averaging) and power while
    # busy.
    rise_to_busy = p["acts"] * np.log(top_busy / (top_energy / top_time))
    # A job that is not held back acts below its limit.
    held = np.maximum(np.log(p["level"]) + rise_to_busy, 0.0) * (p["level"] < 1)
    times, powers = np.empty((PARAMS.sets, len(space))), np.empty((PARAMS.sets, len(space)))

    log_step = -float(np.log(lowest)) / (PARAMS.grid_clocks - 1)
    for mu in np.unique(space.mu):
        mine = np.flatnonzero(space.mu == mu)
        time, energy, busy = _curves(p, grid[None, :], float(mu))
        log_time, log_power = np.log(time), np.log(energy / time * unit)
        log_acting = log_power + p["acts"] * np.log(busy / (energy / time)) - held
        for limit in np.unique(space.limit[mine]):
            here = mine[space.limit[mine] == limit]
            over = log_acting > np.log(limit)
            first = np.where(over.any(axis=1), np.argmax(over, axis=1), PARAMS.grid_clocks)
            line = np.arange(PARAMS.sets)
            low, high = (np.clip(each, 0, PARAMS.grid_clocks - 1) for each in (first - 1, first))
            rise = log_acting[line, high] - log_acting[line, low]
            above = np.log(limit) - log_acting[line, low]
            part = np.where(rise > 1e-9, above / np.maximum(rise, 1e-9), 0.0)
            inside = np.where(first == 0, 0.0, low + np.clip(part, 0, 1))
            cap = np.where(first >= PARAMS.grid_clocks, PARAMS.grid_clocks - 1.0, inside)
            wanted = (np.log(space.x[here]) - np.log(lowest)) / log_step
            place = np.minimum(wanted[None, :], cap[:, None])
            left = np.clip(place.astype(int), 0, PARAMS.grid_clocks - 2)
            share = place - left
            for table, target in ((log_time, times), (log_power, powers)):
                low_, high_ = (np.take_along_axis(table, at, axis=1) for at in (left, left + 1))
                target[:, here] = low_ * (1 - share) + high_ * share
    at = space.reference_row
    return times - times[:, [at]], powers - powers[:, [at]]
