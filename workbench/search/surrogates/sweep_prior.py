"""Worlds: what time and energy might be at every configuration of a space, drawn from the physics of GPUs
before anything is measured.

A world is one training job on one card. With x and u the SM and memory clock relative to the highest, b the
batch size and per sample,

    busy time   = S (k/S x**-n + m/S u**-n)**(1/n) + 1 - S,  S = k + m       compute and memory bound shares,
                overlapping by n
    sample time = busy time + overhead / b                                    launches, data, optimizer: paid
                                                                              once an iteration
    busy power  = static + memory static * u + core (b) x V(x)**2 * activity + memory * u,    V falls in a
                line to `v_knee` at `knee`
    a limit lowers x until busy power fits under it; the overhead is spent at gap power

(Zeus, NSDI'23, figure 4; Mei et al., "A survey and measurement study of GPU DVFS", 2017, section 4; for batch
sizes the same overhead law that fits the traces of Zeus). Every number has a prior that holds for any card;
nothing is fitted to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ...errors import UsageError

Array = np.ndarray
AXES = ("batch_size", "power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
GRID = np.linspace(0.08, 1.0, 47)  # relative SM clocks at which busy power is tabulated


@dataclass(frozen=True)
class CandidateGrid:
    """Candidate configurations as arrays; NaN where the driver decides.

    Attributes:
        axes: Shape (configurations, 4): batch size, power limit, SM clock, memory clock.
        top: The highest of each axis, 1 where nothing is told of it.
    """

    axes: Array
    top: Array

    def __len__(self) -> int:
        return len(self.axes)

    @property
    def features(self) -> Array:
        """A configuration's place in logarithms to the highest; what the driver decides counts as that."""
        return np.asarray(np.nan_to_num(np.log(self.axes / self.top), nan=0.0))


def grid(configurations: pl.DataFrame) -> CandidateGrid:
    """Read candidates from the columns of `AXES` that are there.

    Raises:
        UsageError: no candidate, none of the columns, or a value that is none.
    """
    there = [axis for axis in AXES if axis in configurations.columns]
    if not there:
        raise UsageError(
            f"the candidates have none of the columns {', '.join(AXES)}; give at least one to choose along"
        )
    if configurations.is_empty():
        raise UsageError("there are no candidate configurations; give at least one")
    axes = np.full((len(configurations), len(AXES)), np.nan)
    for number, axis in enumerate(AXES):
        if axis in there:
            axes[:, number] = configurations[axis].cast(pl.Float64).fill_null(np.nan).to_numpy()
            if (axes[:, number] <= 0).any():
                raise UsageError(
                    f"{axis} is {np.nanmin(axes[:, number]):g} in a candidate; it is above 0, or null for "
                    "the driver's choice"
                )
    known = ~np.isnan(axes).all(axis=0)
    top = np.ones(len(AXES))
    top[known] = np.nanmax(axes[:, known], axis=0)
    return CandidateGrid(axes, top)


def draw(space: CandidateGrid, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Log time and log energy per sample in `count` worlds, (count, configurations), in each world's unit."""
    b = np.where(np.isnan(space.axes[:, 0]), 1.0, space.axes[:, 0])
    limit = np.nan_to_num(space.axes[:, 1] / space.top[1], nan=np.inf)
    clock = np.nan_to_num(space.axes[:, 2] / space.top[2], nan=1.0)
    memory = np.nan_to_num(space.axes[:, 3] / space.top[3], nan=1.0)
    sample = _prior(count, b, rng)
    # How much of the core is at work: a small batch leaves some of it without.
    filled = b / (b + sample.half_core_b) * (b.max() + sample.half_core_b) / b.max()
    filled = sample.least + (1 - sample.least) * filled
    fixed = sample.static + (sample.memory_static + sample.memory_core * sample.memory) * memory
    x = np.broadcast_to(clock, filled.shape).copy()
    # Few memory clocks, many limits.
    cores = {u: sample.core * _core(sample, GRID, u) for u in set(memory[np.isfinite(limit)].tolist())}
    for i in np.flatnonzero(np.isfinite(limit)):
        free = _under(limit[i], fixed[:, [i]] + filled[:, [i]] * cores[memory[i]])
        x[:, i] = np.minimum(x[:, i], free)
    busy = _busy(sample, x, memory)
    power = fixed + sample.core * filled * _core(sample, x, memory)
    crowded = (b / b.max()) ** sample.crowding
    overhead = sample.half_b / b
    waiting = np.minimum(sample.gap_power + 0.5 * sample.static, power)
    return np.log(busy * crowded + overhead), np.log(busy * crowded * power + overhead * waiting)


@dataclass(frozen=True)
class _PriorSamples:
    """Parameters of many worlds, each of shape (worlds, 1); powers relative to the highest limit."""

    compute: Array
    memory: Array
    rest: Array
    overlap: Array
    knee: Array
    v_knee: Array
    static: Array
    memory_static: Array
    core: Array
    memory_core: Array
    clocked: Array
    gap_power: Array
    half_b: Array
    half_core_b: Array
    least: Array
    crowding: Array


def _prior(count: int, b: Array, rng: np.random.Generator) -> _PriorSamples:
    def uniform(low: float, high: float) -> Array:
        return rng.uniform(low, high, (count, 1))

    shares = rng.dirichlet((1.6, 1.0, 0.5), count)
    # The batch size whose iteration is half overhead: anywhere from far below the smallest to the largest.
    half_b = b.max() * np.exp(uniform(-np.log(30.0 * max(b.max() / b.min(), 1.0)), 0.3))
    return _PriorSamples(
        compute=shares[:, [0]],
        memory=shares[:, [1]],
        rest=shares[:, [2]],
        overlap=np.exp(uniform(0.0, np.log(8.0))),
        knee=uniform(0.35, 0.95),
        v_knee=uniform(0.55, 0.95),
        static=uniform(0.08, 0.3),
        memory_static=uniform(0.0, 0.12),
        core=np.exp(rng.normal(-0.35, 0.45, (count, 1))),
        memory_core=uniform(0.0, 0.25),
        clocked=uniform(0.4, 1.0),
        gap_power=uniform(0.12, 0.3),
        half_b=half_b,
        half_core_b=half_b * np.exp(rng.normal(0.0, 1.0, (count, 1))),
        least=uniform(0.0, 0.5),
        # Large batches that cost more a sample, as where caches overflow.
        crowding=np.maximum(rng.normal(-0.02, 0.06, (count, 1)), 0.0),
    )


def _busy(sample: _PriorSamples, x: Array, u: Array | float) -> Array:
    bound = sample.compute + sample.memory
    mean = (sample.compute * x**-sample.overlap + sample.memory * np.asarray(u) ** -sample.overlap) / bound
    return np.asarray(sample.rest + bound * mean ** (1 / sample.overlap))


def _core(sample: _PriorSamples, x: Array, u: Array | float) -> Array:
    """Core power relative to the highest clock's: clock, voltage squared, busy share beside the memory."""
    volts = sample.v_knee + (1 - sample.v_knee) * np.clip((x - sample.knee) / (1 - sample.knee), 0.0, None)
    activity = sample.clocked + (1 - sample.clocked) / np.maximum(x * _busy(sample, x, u), 1e-9)
    return np.asarray(x * volts**2 * activity)


def _under(limit: float, power: Array) -> Array:
    """The highest relative clock whose busy power on `GRID` (worlds, clocks) is at most `limit`."""
    over = power > limit
    first = np.where(over.any(axis=1), over.argmax(axis=1), len(GRID))
    after = np.clip(first, 1, len(GRID) - 1)
    rows = np.arange(len(power))
    low, high = power[rows, after - 1], power[rows, after]
    share = np.clip((limit - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
    between = GRID[after - 1] + (GRID[after] - GRID[after - 1]) * share
    return np.asarray(np.where(first == 0, GRID[0], np.where(first == len(GRID), 1.0, between)))
