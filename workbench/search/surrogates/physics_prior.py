"""Physics of a job over clocks, power limits and batch sizes: random parameter sets of possible cards and
jobs, and their curves.

With x the SM clock, m the memory clock and s the batch size relative to the highest, a sample is clock-bound
work a, memory-bound work b and a gap c that every iteration pays once,

    time   = ((a/f)**n + (b/m)**n)**(1/n) * s**crowd + c/s  n = 1: one after the other, large n: fully
           overlapped
    power  = static + memory_static * m**g + d * V(d)**2 * filled(s) * (e0 + e_a*u_a + e_b*u_b)
           + memory * u_b * m  while busy
    u_a = (a/f)/busy time, u_b = (b/m)/busy time;           in the gap: static, and a share of the e0 term
    f      = x * (1 + (x/boost)**edge)**(-1/edge)           cards are slower than their list: f levels off
    d      = f * (x/f)**asked                               its power follows f, x or a mixture

V falls in a straight line from 1 to `v_knee` at `knee`, and no further. A power limit lowers x until mean
power, or power while busy, or something between (a limit averages over some time), fits under it. The voltage
curve is that of Mei et al., "A survey and measurement study of GPU DVFS on energy conservation", 2017,
section 4. Overlap as a norm becomes the roofline (Williams et al., 2009) at n = infinity. The gap is the
overhead law that fits the traces of Zeus (NSDI'23, figure 4).

Sources: the voltage curve is that of Mei et al., "A survey and measurement study of GPU DVFS on energy
conservation", 2017, section 4. Overlap as a norm becomes the roofline (Williams et al., 2009) at n =
infinity. The gap is the overhead law that fits the traces of Zeus (NSDI'23, figure 4).

The ranges are wide enough for cards from Pascal to Hopper and were not fitted to any. Only the frequency and
the depth of saturating clocks were chosen among a few values on measured grids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

Array = np.ndarray

# Tuned constants of the parameter sets.
#
# `BOOSTED_SHARE` and `BOOST_DEPTH` were chosen among a few values by `benchmarks.clocks --only search`.
# The others were set manually.
PARAMETER_SETS = 1024
# at which the equations are evaluated; between them log time and log power are straight in log clock
GRID_CLOCKS = 40
BOOSTED_SHARE = 0.5  # of cards and jobs never reach the highest clock on the list
BOOST_DEPTH = 0.12  # by how much at most, roughly


@dataclass(frozen=True)
class Knobs:
    """SM clock, memory clock, power limit and batch size of each setting, relative to the highest."""

    x: Array
    mu: Array
    limit: Array
    batch: Array

    @property
    def places(self) -> Array:
        """The settings in a space of logarithms, (settings, knobs)."""
        return np.log(np.column_stack([self.x, self.mu, self.limit, self.batch]))


def _numbers(least_batch: float) -> dict[str, Array]:
    """Parameter sets from ranges that cover any card and job, one value per row each."""
    from scipy.stats import qmc  # it takes a second to load

    u = qmc.Sobol(23, seed=7).random(PARAMETER_SETS)
    # Every fourth row of a Sobol sequence is not a valid sample.
    u = np.random.default_rng(7).permutation(np.clip(u, 1e-4, 1 - 1e-4))
    ratio = 0.3 + 1.8 * ndtri(u[:, 0])  # ln of clock-bound over memory-bound work
    overlap = np.exp(np.log(1.3) + u[:, 1] * np.log(8 / 1.3))
    if least_batch < 1:  # half of an iteration is overhead at a batch size from the largest to far below all
        half = np.exp(0.3 - u[:, 2] * (0.3 + np.log(30 / least_batch)))
        gap = half / (1 + half)
    else:
        gap = 0.5 * u[:, 2] ** 3
    a = (1 + np.exp(-overlap * ratio)) ** (-1 / overlap)
    b = a * np.exp(-ratio)
    p: dict[str, Array] = {"a": a * (1 - gap), "b": b * (1 - gap), "c": gap, "n": overlap}
    p["knee"] = 0.35 + 0.57 * u[:, 3]
    p["v_knee"] = 0.55 + 0.42 * u[:, 4]
    part = np.maximum(u[:, 5] - (1 - BOOSTED_SHARE), 0) / BOOSTED_SHARE
    p["boost"] = np.where(part > 0, 1.04 - BOOST_DEPTH * part, 2.0)
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
    # A small batch leaves some of the core without work; a large one may cost more, where caches overflow.
    p["half_filled"] = gap / (1 - gap) * np.exp(ndtri(u[:, 20]))
    p["least_filled"] = 0.5 * u[:, 21]
    p["crowd"] = np.maximum(-0.02 + 0.06 * ndtri(u[:, 22]), 0.0)
    asked = 1 - 0.25 * np.log(u[:, 14])  # power of a limited job without the limit, over the limit
    p["level"] = np.where(u[:, 15] < 0.3, asked, 0.3 + 0.6 * u[:, 16])
    return {name: value[:, None] for name, value in p.items()}


def _curves(p: dict[str, Array], x: Array, mu: float, batch: float) -> tuple[Array, Array, Array]:
    """A sample's time and mean power, and power while busy, uncapped, in arbitrary units; columns as in x."""
    fast = x * (1 + (x / p["boost"]) ** p["edge"]) ** (-1 / p["edge"])
    drive = fast * (x / fast) ** p["asked"]
    part_a, part_b = p["a"] / fast, p["b"] / mu
    busy = (part_a ** p["n"] + part_b ** p["n"]) ** (1 / p["n"])
    rising = p["v_knee"] + (1 - p["v_knee"]) * (drive - p["knee"]) / (1 - p["knee"])
    volts = np.where(drive <= p["knee"], p["v_knee"], rising)
    clocked = drive * volts**2
    resting = p["static"] + p["memory_static"] * mu ** p["g"]
    u_a, u_b = part_a / busy, part_b / busy
    filled = batch * (1 + p["half_filled"]) / (batch + p["half_filled"])
    filled = p["least_filled"] + (1 - p["least_filled"]) * filled
    drawn = resting + clocked * filled * (p["e0"] + p["e_a"] * u_a + p["e_b"] * u_b) + p["memory"] * u_b * mu
    busy, gap = busy * batch ** p["crowd"], p["c"] / batch
    energy = busy * drawn + gap * (resting + p["idle"] * clocked * p["e0"])
    return busy + gap, energy / (busy + gap), drawn


def bank(knobs: Knobs) -> tuple[Array, Array]:
    """ln time and ln mean power, (sets, settings), in a unit of each set."""
    p = _numbers(float(knobs.batch.min()))
    lowest = float(min(knobs.x.min(), 0.15))
    grid = np.linspace(np.log(lowest), 0.0, GRID_CLOCKS)
    _, top_mean, top_busy = _curves(p, np.array([[1.0]]), 1.0, 1.0)
    # Mean power at the highest of all knobs, if no limit held it back, is `level` limits.
    unit = p["level"] / top_mean
    # What a limit acts on is between mean power (iterations shorter than its averaging) and power while
    # busy. A job that is not held back acts below its limit.
    held = np.maximum(np.log(p["level"]) + p["acts"] * np.log(top_busy / top_mean), 0.0) * (p["level"] < 1)
    times, powers = np.empty((2, PARAMETER_SETS, len(knobs.x)))
    wanted = (np.log(knobs.x) - grid[0]) / (grid[1] - grid[0])
    for mu, batch in np.unique(np.column_stack([knobs.mu, knobs.batch]), axis=0):
        time, mean, busy = _curves(p, np.exp(grid)[None, :], float(mu), float(batch))
        tables = np.log(time), np.log(mean * unit)
        acting = tables[1] + p["acts"] * np.log(busy / mean) - held
        mine = (knobs.mu == mu) & (knobs.batch == batch)
        for limit in np.unique(knobs.limit[mine]):
            here = np.flatnonzero(mine & (knobs.limit == limit))
            place = np.minimum(wanted[here], _crossing(acting, float(np.log(limit))))
            left = np.clip(place.astype(int), 0, GRID_CLOCKS - 2)
            for table, target in zip(tables, (times, powers), strict=True):
                low, high = (np.take_along_axis(table, at, axis=1) for at in (left, left + 1))
                target[:, here] = low + (high - low) * (place - left)
    return times, powers


def _crossing(values: Array, level: float) -> Array:
    """Place between columns at which each row first exceeds a level, (rows, 1); the last if it does not."""
    over = values > level
    high = np.where(over.any(axis=1), over.argmax(axis=1), values.shape[1] - 1)[:, None]
    low = np.maximum(high - 1, 0)
    below, above = (np.take_along_axis(values, at, axis=1) for at in (low, high))
    return low + np.clip((level - below) / np.maximum(above - below, 1e-9), 0.0, 1.0)
