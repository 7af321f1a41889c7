"""Power traces of made-up jobs with known periods, for training and checking the period detector.

A job is a row of phases, each with a duration, a power and utilisations, laid out in time by a `shape`: plain iterations, gradient
accumulation, pipelines of micro-batches, alternating networks, evaluation, checkpoints, stalling loaders, drift, and twelve kinds
without a period. The powers are those of the catalogue's cards. A board low-pass, a sensor as measured by Yang et al. (arXiv
2312.02741: refresh, averaging window, noise, resolution), latched whole percents of utilisation and a polling loop with jitter,
late and lost samples stand between the job and its trace. Everything is drawn wide, on purpose: the real world is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .catalogue import CARDS

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]
GRID_S = 0.002
OBSERVABLE_SHARE = 0.05  # of some signal's variance that the true phase must explain
REFRESHES = 2.2  # a period must span so many refreshes of the sensor and polls


@dataclass(slots=True)
class Truth:
    """What was put into a trace. `low_s`..`high_s` is where an answer for the iteration may lie, before any tolerance."""

    iteration_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    levels_s: dict[str, float] = field(default_factory=dict)
    starts_s: Array = field(default_factory=lambda: np.empty(0))
    ends_s: Array = field(default_factory=lambda: np.empty(0))
    observable: bool = False

    @property
    def periodic(self) -> bool:
        return self.iteration_s is not None


@dataclass(frozen=True, slots=True)
class Case:
    """One trace with its truth; arrays by the names of `trace.SCHEMA`."""

    family: str
    columns: dict[str, Array]
    truth: Truth
    refresh_s: float
    poll_s: float

    @property
    def trace(self) -> pl.DataFrame:
        import polars as pl

        return pl.DataFrame(self.columns)

    @property
    def periodic(self) -> bool:
        return self.truth.periodic


class _Line:
    """A timeline under construction: segments of (duration, power share, SM and memory utilisation)."""

    def __init__(self) -> None:
        self.parts: list[Array] = []
        self.end_s = 0.0

    def add(self, rows: Array) -> float:
        """Append (n, 4) rows; returns where they start."""
        start_s = self.end_s
        if len(rows):
            self.parts.append(rows)
            self.end_s += float(rows[:, 0].sum())
        return start_s

    @property
    def rows(self) -> Array:
        return np.concatenate(self.parts)


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _phases(rng: np.random.Generator, seconds: float, count: int | None = None, waiting: float | None = None) -> Array:
    """A random unit of work: (n, 4) rows that last `seconds`; a part of it may wait for data, a part may ripple by layers."""
    count = count or int(rng.integers(1, 6))
    share = rng.dirichlet(np.full(count, rng.choice([0.7, 2.0, 6.0])))
    base = rng.uniform(0.35, 1.0)
    level = np.clip(base + rng.normal(0, rng.choice([0.04, 0.12, 0.3]), count), 0.05, 1.0)
    sm = np.clip(rng.uniform(0.6, 1.0, count) + 0.3 * (level - base), 0.05, 1.0) if rng.random() < 0.7 else np.ones(count)
    rows = np.column_stack([share * seconds, level, sm, np.clip(level * rng.uniform(0.2, 0.9) + rng.normal(0, 0.1, count), 0, 1)])
    if rng.random() < 0.25:  # layers: one phase is itself a fast ripple, of which only a part of the iteration is made
        which, layers = int(rng.integers(count)), int(rng.integers(4, 40))
        ripple = np.repeat(rows[which : which + 1], 2 * layers, axis=0)
        ripple[:, 0] /= 2 * layers
        ripple[::2, 1] = np.clip(ripple[::2, 1] - rng.uniform(0.03, 0.3), 0.02, 1)
        rows = np.concatenate([rows[:which], ripple, rows[which + 1 :]])
    wait = rng.random() < 0.55 if waiting is None else waiting > 0
    if wait:
        portion = rng.beta(1.2, 4.0) if waiting is None else waiting
        rows[:, 0] *= 1 - portion
        rows = np.concatenate([[[portion * seconds, rng.uniform(0, 0.08), rng.choice([0.0, 0.0, 0.1]), 0.0]], rows])
    return rows


def _jittered(rng: np.random.Generator, rows: Array, count: int, jitter: float, gap_jitter: float, wander: float = 0.0) -> Array:
    """(count, n, 4): a unit repeated, durations varying by kernel, by gap, and slowly together."""
    many = np.repeat(rows[None], count, axis=0)
    whole = rng.lognormal(0, jitter, (count, 1))
    if wander:
        steps = rng.normal(0, 1, count)
        slow = np.empty(count)
        value, keep = 0.0, rng.uniform(0.8, 0.995)
        for i in range(count):
            value = keep * value + np.sqrt(1 - keep * keep) * steps[i]
            slow[i] = value
        whole = whole * np.exp(wander * slow)[:, None]
    own = rng.lognormal(0, jitter / 2, (count, rows.shape[0]))
    gap = rng.lognormal(0, gap_jitter, (count, rows.shape[0]))
    many[:, :, 0] *= whole * np.where(rows[:, 1] < 0.1, gap, own)
    many[:, :, 1] *= rng.lognormal(0, 0.3 * jitter + 0.002, (count, 1))
    return many


@dataclass(slots=True)
class _Draw:
    """What every shape is given: a source of chance, the period aimed at, how long, and how regular."""

    rng: np.random.Generator
    period_s: float
    seconds: float
    jitter: float
    gap_jitter: float
    wander: float

    def units(self, rows: Array, count: int) -> Array:
        return _jittered(self.rng, rows, count, self.jitter, self.gap_jitter, self.wander)

    @property
    def count(self) -> int:
        return int(self.seconds / self.period_s) + 2


Shape = Callable[[_Draw, _Line], Truth]


def _lay(line: _Line, units: Array) -> tuple[Array, Array]:
    """Append units one after another; their starts and ends."""
    spans = units[:, :, 0].sum(axis=1)
    start_s = line.add(units.reshape(-1, 4))
    ends = start_s + np.cumsum(spans)
    return ends - spans, ends


def _truth(starts: Array, ends: Array, **levels_s: float) -> Truth:
    spans = np.diff(starts) if len(starts) > 1 else ends - starts
    mean, median = float(spans.mean()), float(np.median(spans))
    return Truth(mean, min(mean, median), max(mean, median), levels_s, starts, ends)


def _between_pauses(starts: Array, ends: Array) -> Truth:
    """The same where pauses lie between iterations: they are no iteration's time."""
    spans = ends - starts
    low_s, high_s = sorted((float(spans.mean()), float(np.median(spans))))
    return Truth(float(spans.mean()), low_s, high_s, {}, starts, ends)


def _plain(draw: _Draw, line: _Line) -> Truth:
    return _truth(*_lay(line, draw.units(_phases(draw.rng, draw.period_s), draw.count)))


def _accumulated(rng: np.random.Generator, period_s: float, micro: int) -> tuple[Array, float]:
    """One optimizer step of so many micro-steps; the rows and the micro-step's seconds."""
    tail = rng.uniform(0.02, 0.3) if micro < 6 else rng.uniform(0.02, 0.2)
    if rng.random() < 0.3:
        tail = min(0.5, rng.uniform(1.0, 3.0) / (micro + 2))  # the optimizer takes as long as a micro-step or more
    micro_s = period_s * (1 - tail) / micro
    one = _phases(rng, micro_s)
    optimizer = _phases(rng, period_s * tail, count=int(rng.integers(1, 3)))
    if rng.random() < 0.5:  # a memory-bound optimizer draws visibly less
        optimizer[:, 1] *= rng.uniform(0.3, 0.9)
    return np.concatenate([*[one] * micro, optimizer]), micro_s


def _accumulation(draw: _Draw, line: _Line) -> Truth:
    micro = int(draw.rng.choice([2, 2, 3, 4, 4, 5, 6, 8, 8, 10, 12, 16, 24, 32]))
    rows, micro_s = _accumulated(draw.rng, draw.period_s, micro)
    starts, ends = _lay(line, draw.units(rows, draw.count))
    truth = _truth(starts, ends)
    assert truth.iteration_s is not None
    truth.levels_s = {"micro-step": micro_s * truth.iteration_s / draw.period_s}
    return truth


def _pipeline(draw: _Draw, line: _Line) -> Truth:
    """Many micro-batches through pipeline stages: a burst of short steps, then a bubble and the optimizer."""
    rng = draw.rng
    micro = int(rng.integers(8, 48))
    busy = rng.uniform(0.6, 0.92)
    micro_s = draw.period_s * busy / micro
    one = _phases(rng, micro_s, count=int(rng.integers(1, 3)), waiting=rng.uniform(0.05, 0.4))
    bubble = np.array([[draw.period_s * (1 - busy) * 0.6, rng.uniform(0.02, 0.2), rng.uniform(0, 0.3), 0.05]])
    optimizer = _phases(rng, draw.period_s * (1 - busy) * 0.4, count=1, waiting=0.0)
    starts, ends = _lay(line, draw.units(np.concatenate([*[one] * micro, bubble, optimizer]), draw.count))
    truth = _truth(starts, ends)
    assert truth.iteration_s is not None
    truth.levels_s = {"micro-step": micro_s * truth.iteration_s / draw.period_s}
    return truth


def _alternating(draw: _Draw, line: _Line) -> Truth:
    """Two networks in turn (generator and discriminator, actor and critic): an iteration has two alike but unequal halves."""
    rng, part = draw.rng, draw.rng.uniform(0.38, 0.62)
    first = _phases(rng, draw.period_s * part)
    second = first.copy() if rng.random() < 0.5 else _phases(rng, draw.period_s)
    second[:, 0] *= draw.period_s * (1 - part) / second[:, 0].sum()
    second[:, 1] = np.clip(second[:, 1] * rng.uniform(0.6, 1.3) + rng.normal(0, 0.03, len(second)), 0.02, 1)
    return _truth(*_lay(line, draw.units(np.concatenate([first, second]), draw.count)))


def _stalling(draw: _Draw, line: _Line) -> Truth:
    """Every k-th iteration waits for the data loader's workers."""
    rng, every = draw.rng, int(draw.rng.integers(2, 17))
    rows = _phases(rng, draw.period_s)
    units = draw.units(np.concatenate([rows, [[1e-9, rng.uniform(0, 0.06), 0.0, 0.0]]]), draw.count + every)
    stall_s = draw.period_s * _log(rng, 0.15, 2.5)
    at = np.arange(int(rng.integers(every)), len(units), every)
    units[at, -1, 0] = stall_s * rng.lognormal(0, rng.uniform(0.05, 0.5), len(at))
    starts, ends = _lay(line, units)
    truth = _truth(starts, ends)
    truth.levels_s = {"cycle": float(np.diff(starts[at]).mean())} if len(at) > 2 else {}
    return truth


def _hiccups(draw: _Draw, line: _Line) -> Truth:
    """Irregular stalls: a shared disk, a network."""
    rng = draw.rng
    rows = np.concatenate([_phases(rng, draw.period_s), [[1e-9, rng.uniform(0, 0.06), 0.0, 0.0]]])
    units = draw.units(rows, draw.count)
    hit = rng.random(len(units)) < rng.uniform(0.02, 0.2)
    units[hit, -1, 0] = draw.period_s * rng.exponential(rng.uniform(0.3, 2.0), int(hit.sum()))
    return _truth(*_lay(line, units))


def _interrupted(draw: _Draw, line: _Line) -> Truth:
    """Evaluation or checkpoints between stretches of iterations."""
    rng = draw.rng
    inner, levels = _phases(rng, draw.period_s), {}
    if rng.random() < 0.35:
        micro = int(rng.choice([2, 3, 4, 4, 6, 8, 8, 10, 12, 16]))
        inner, micro_s = _accumulated(rng, draw.period_s, micro)
        levels["micro-step"] = micro_s
    every = int(rng.choice([rng.integers(4, 16), rng.integers(10, 80)]))
    evaluates = rng.random() < 0.5
    starts: list[Array] = []
    ends: list[Array] = []
    heads: list[float] = []
    step = _phases(rng, draw.period_s * rng.uniform(0.2, 0.6))
    steps = int(rng.integers(3, 25))
    pause_s = draw.period_s * _log(rng, 0.8, 12)
    first = int(rng.integers(1, every + 1))
    while line.end_s < draw.seconds:
        one = _lay(line, draw.units(inner, first or every))
        first = 0
        starts.append(one[0])
        ends.append(one[1])
        heads.append(line.end_s)
        if evaluates:
            line.add(draw.units(step, steps).reshape(-1, 4))
        else:
            line.add(np.array([[pause_s * rng.lognormal(0, 0.1), rng.uniform(0, 0.15), rng.uniform(0, 0.1), 0.0]]))
    truth = _between_pauses(np.concatenate(starts), np.concatenate(ends))
    assert truth.iteration_s is not None
    scale = truth.iteration_s / draw.period_s
    truth.levels_s = {name: value * scale for name, value in levels.items()}
    if len(heads) > 2:
        truth.levels_s["cycle"] = float(np.median(np.diff(heads)))
    if evaluates:
        truth.levels_s["evaluation-step"] = float(step[:, 0].sum())
    return truth


def _nested(draw: _Draw, line: _Line) -> Truth:
    """Data-parallel training: loop steps inside optimizer steps inside checkpoint cycles."""
    rng, micro = draw.rng, int(draw.rng.choice([4, 5, 6, 8, 10, 10, 12, 16]))
    rows, micro_s = _accumulated(rng, draw.period_s, micro)
    every = int(rng.integers(3, 12))
    starts, ends, heads = [], [], []
    pause_s = draw.period_s * _log(rng, 0.2, 3.0)
    first = int(rng.integers(1, every + 1))
    while line.end_s < draw.seconds:
        one = _lay(line, draw.units(rows, first or every))
        first = 0
        starts.append(one[0])
        ends.append(one[1])
        heads.append(line.end_s)
        line.add(np.array([[pause_s * rng.lognormal(0, 0.15), rng.uniform(0, 0.15), 0.0, 0.0]]))
    truth = _between_pauses(np.concatenate(starts), np.concatenate(ends))
    assert truth.iteration_s is not None
    truth.levels_s = {"micro-step": micro_s * truth.iteration_s / draw.period_s}
    if len(heads) > 2:
        truth.levels_s["cycle"] = float(np.median(np.diff(heads)))
    return truth


def _drifting(draw: _Draw, line: _Line) -> Truth:
    """The period changes along the way: heat, clocks, a step of the power limit."""
    rng = draw.rng
    units = draw.units(_phases(rng, draw.period_s), int(draw.count * 1.3) + 2)
    position = np.linspace(0, 1, len(units))
    size = rng.choice([-1, 1]) * rng.uniform(0.02, 0.22)
    form = rng.integers(3)
    factor = 1 + size * (position if form == 0 else position > rng.uniform(0.2, 0.8) if form == 1 else 1 - np.exp(-4 * position))
    units[:, :, 0] *= factor[:, None]
    units[:, :, 1] *= (factor**-0.7)[:, None]
    starts, ends = _lay(line, units)
    keep = starts < draw.seconds
    truth = _truth(starts[keep], ends[keep])
    spans = np.diff(starts[keep])
    quarter = max(1, len(spans) // 4)
    edges = (float(spans[:quarter].mean()), float(spans[-quarter:].mean()))
    truth.low_s, truth.high_s = min(edges), max(edges)
    return truth


def _varying(draw: _Draw, line: _Line) -> Truth:
    """Sequences of unlike lengths: freely, or in a few buckets."""
    rng = draw.rng
    units = draw.units(_phases(rng, draw.period_s), draw.count + 4)
    if rng.random() < 0.6:
        factor = rng.lognormal(0, rng.uniform(0.06, 0.28), len(units))
    else:
        factor = rng.choice(rng.uniform(0.75, 1.3, int(rng.integers(2, 5))), len(units))
    fixed = rng.random(units.shape[1]) < 0.2  # the optimizer does not depend on the sequence
    units[:, :, 0] *= np.where(fixed[None, :], 1.0, factor[:, None])
    return _truth(*_lay(line, units))


def _warming(draw: _Draw, line: _Line) -> Truth:
    """Idle, loading and a slow start before the iterations, and perhaps an end before the trace's."""
    rng = draw.rng
    line.add(np.array([[draw.seconds * rng.uniform(0.01, 0.15), rng.uniform(0, 0.1), 0.0, 0.0]]))
    if rng.random() < 0.6:
        line.add(_phases(rng, draw.seconds * rng.uniform(0.02, 0.12), count=int(rng.integers(1, 8))))
    units = draw.units(_phases(rng, draw.period_s), draw.count)
    slow = min(int(rng.integers(0, 12)), len(units))
    units[:slow, :, 0] *= np.linspace(rng.uniform(1.0, 2.5), 1.0, slow)[:, None]
    if rng.random() < 0.25:
        units = units[: max(6, int(len(units) * rng.uniform(0.5, 0.8)))]
    starts, ends = _lay(line, units)
    line.add(np.array([[draw.seconds, rng.uniform(0, 0.06), 0.0, 0.0]]))
    return _truth(starts, ends)


PERIODIC: dict[str, Shape] = {
    "plain": _plain,
    "accumulation": _accumulation,
    "pipeline": _pipeline,
    "alternating": _alternating,
    "stalling": _stalling,
    "hiccups": _hiccups,
    "interrupted": _interrupted,
    "nested": _nested,
    "drifting": _drifting,
    "varying": _varying,
    "warming": _warming,
}


# what has no period


def _idle(draw: _Draw, line: _Line) -> Truth:
    rng = draw.rng
    while line.end_s < draw.seconds:
        line.add(np.array([[rng.exponential(draw.seconds / rng.uniform(1, 8)), rng.uniform(0, 0.02), 0.0, 0.0]]))
        if rng.random() < 0.5:
            line.add(np.array([[rng.uniform(0.05, 2.0), rng.uniform(0.02, 0.3), rng.uniform(0, 0.3), 0.0]]))
    return Truth()


def _burning(draw: _Draw, line: _Line) -> Truth:
    """One long kernel after another, at the cap: nothing to see but noise."""
    rng = draw.rng
    level, spread = rng.uniform(0.6, 1.0), rng.choice([0.001, 0.005, 0.02])
    count = int(draw.seconds / 0.25) + 1
    line.add(np.column_stack([np.full(count, 0.25), np.clip(level + _red(rng, count, rng.uniform(0, 0.99)) * spread, 0, 1),
                              np.ones(count), np.full(count, rng.uniform(0, 1))]))  # fmt: skip
    return Truth()


def _requests(draw: _Draw, line: _Line) -> Truth:
    """Inference: requests come at random (Poisson), each as long as it is."""
    rng, rate = draw.rng, 1 / draw.period_s
    count = int(draw.seconds * rate * 1.5) + 20
    waits = rng.exponential(1 / rate, count) if rng.random() < 0.6 else rng.gamma(rng.uniform(0.3, 2.0), 1, count) / rate
    work = draw.period_s * rng.uniform(0.1, 0.9) * rng.lognormal(0, rng.uniform(0.1, 0.9), count)
    gaps = np.maximum(0, waits - work) + 1e-4
    rows = np.empty((2 * count, 4))
    level = rng.uniform(0.3, 1.0) * rng.lognormal(0, rng.uniform(0, 0.2), count)
    rows[::2] = np.column_stack([gaps, np.full(count, rng.uniform(0, 0.08)), np.zeros(count), np.zeros(count)])
    rows[1::2] = np.column_stack([work, np.clip(level, 0, 1), np.full(count, rng.uniform(0.5, 1)), np.full(count, rng.uniform(0, 0.6))])
    line.add(rows)
    return Truth()


def _red(rng: np.random.Generator, count: int, keep: float) -> Array:
    from scipy.signal import lfilter

    return np.asarray(lfilter([np.sqrt(1 - keep * keep)], [1, -keep], rng.normal(0, 1, count)))


def _wandering(draw: _Draw, line: _Line) -> Truth:
    """A load that wanders (Ornstein-Uhlenbeck, or a sum of several)."""
    rng, step = draw.rng, 0.02
    count = int(draw.seconds / step) + 1
    level = np.zeros(count)
    for _ in range(int(rng.integers(1, 4))):
        level += _red(rng, count, np.exp(-step / _log(rng, 0.03, 60))) * rng.uniform(0.3, 1)
    level = np.clip(rng.uniform(0.3, 0.8) + rng.uniform(0.02, 0.3) * level / level.std(), 0, 1)
    line.add(np.column_stack([np.full(count, step), level, np.clip(level * rng.uniform(0.8, 1.2), 0, 1), level * rng.uniform(0, 0.7)]))
    return Truth()


def _renewals(draw: _Draw, line: _Line) -> Truth:
    """Pieces of work and pauses of heavy-tailed length."""
    rng = draw.rng
    count = int(3 * draw.seconds / draw.period_s) + 50
    tail = rng.uniform(1.1, 2.5)
    spans = draw.period_s * (rng.pareto(tail, count) + 0.05) * 0.5
    levels = np.where(np.arange(count) % 2, rng.uniform(0.3, 1, count), rng.uniform(0, 0.15, count))
    line.add(np.column_stack([spans, levels, np.where(levels > 0.2, rng.uniform(0.4, 1, count), 0), levels * rng.uniform(0, 0.6)]))
    return Truth()


def _telegraph(draw: _Draw, line: _Line) -> Truth:
    """A few levels, changed at random moments."""
    rng, count = draw.rng, int(4 * draw.seconds / draw.period_s) + 50
    states = np.column_stack([rng.uniform(0, 1, 4), rng.uniform(0.1, 1, 4), rng.uniform(0, 0.6, 4)])
    pick = rng.integers(0, int(rng.integers(2, 5)), count)
    line.add(np.column_stack([rng.exponential(draw.period_s, count) + 1e-3, states[pick]]))
    return Truth()


def _person(draw: _Draw, line: _Line) -> Truth:
    """Somebody at a notebook: cells of all lengths, pauses to think."""
    rng = draw.rng
    while line.end_s < draw.seconds:
        line.add(np.array([[_log(rng, 0.5, 60), rng.uniform(0, 0.06), 0.0, 0.0]]))
        line.add(_phases(rng, _log(rng, 0.05, 30), count=int(rng.integers(1, 6))))
    return Truth()


def _ramp(draw: _Draw, line: _Line) -> Truth:
    """A slow change and nothing else: heat, a growing batch, a fading queue; perhaps a step."""
    rng, count = draw.rng, 400
    at = np.linspace(0, 1, count)
    level = rng.uniform(0.2, 0.7) + rng.uniform(-0.3, 0.3) * at ** rng.uniform(0.5, 3) + (at > rng.random()) * rng.uniform(-0.2, 0.2)
    level = level + rng.choice([0.001, 0.01, 0.05]) * _red(rng, count, 0.9)
    line.add(np.column_stack([np.full(count, draw.seconds / count + 1e-3), np.clip(level, 0, 1), np.ones(count), np.clip(level, 0, 1)]))
    return Truth()


def _episodes(draw: _Draw, line: _Line) -> Truth:
    """Reinforcement learning with episodes of any length: rollouts at low power, learning at high."""
    rng = draw.rng
    spread = rng.uniform(0.6, 1.2)
    roll, learn = _phases(rng, 1.0, waiting=rng.uniform(0.2, 0.7)), _phases(rng, 1.0)
    while line.end_s < draw.seconds:
        one = roll.copy()
        one[:, 0] *= draw.period_s * rng.lognormal(0, spread) * rng.dirichlet(np.ones(len(one))) / one[:, 0] * one[:, 0]
        two = learn.copy()
        two[:, 0] *= draw.period_s * rng.lognormal(-0.5, spread)
        line.add(one)
        line.add(two)
    return Truth()


def _shuffled(draw: _Draw, line: _Line) -> Truth:
    """Kernels in no order: phases as in training, their lengths and sequence drawn anew each time."""
    rng = draw.rng
    rows = np.concatenate([_phases(rng, draw.period_s) for _ in range(4)])
    count = int(6 * draw.seconds / draw.period_s) + 60
    many = rows[rng.integers(0, len(rows), count)].copy()
    many[:, 0] = np.maximum(many[:, 0], draw.period_s / 20) * rng.lognormal(0, rng.uniform(0.5, 1.0), count)
    line.add(many)
    return Truth()


def _single(draw: _Draw, line: _Line) -> Truth:
    """One job that starts, and ends, and no rhythm inside."""
    rng = draw.rng
    line.add(np.array([[draw.seconds * rng.uniform(0.05, 0.5), rng.uniform(0, 0.05), 0.0, 0.0]]))
    for _ in range(int(rng.integers(1, 4))):
        line.add(np.array([[draw.seconds * rng.uniform(0.1, 0.6), rng.uniform(0.2, 1), rng.uniform(0.3, 1), rng.uniform(0, 0.8)]]))
    line.add(np.array([[draw.seconds, rng.uniform(0, 0.05), 0.0, 0.0]]))
    return Truth()


def _compiling(draw: _Draw, line: _Line) -> Truth:
    """Bursts whose distance grows or shrinks all the time: a search, a solver, a profiler."""
    rng, growth = draw.rng, draw.rng.choice([-1, 1]) * draw.rng.uniform(0.06, 0.3)
    span = draw.period_s
    while line.end_s < draw.seconds:
        one = _phases(rng, span)
        one[:, 0] *= rng.lognormal(0, 0.15, len(one))
        line.add(one)
        span = float(np.clip(span * (1 + growth * rng.uniform(0.5, 1.5)), 0.05, draw.seconds))
        if not 0.08 < span < draw.seconds / 4:
            growth = -growth
    return Truth()


APERIODIC: dict[str, Shape] = {
    "idle": _idle,
    "burning": _burning,
    "requests": _requests,
    "wandering": _wandering,
    "renewals": _renewals,
    "telegraph": _telegraph,
    "person": _person,
    "ramp": _ramp,
    "episodes": _episodes,
    "shuffled": _shuffled,
    "single": _single,
    "compiling": _compiling,
}


def random_case(rng: np.random.Generator, family: str | None = None, *, negatives: float = 0.25) -> Case:
    """Draw a job, a card, a sensor and a polling loop.

    Args:
        rng: The only source of chance.
        family: A name in `PERIODIC` or `APERIODIC`; drawn where None.
        negatives: Share of aperiodic jobs among the drawn.
    """
    if family is None:
        names = list(APERIODIC if rng.random() < negatives else PERIODIC)
        family = str(names[int(rng.integers(len(names)))])
    poll_s = float(rng.choice([0.01, 0.02, 0.05, 0.1, 0.1, 0.1, 0.105, 0.2, 0.25, 0.5, 1.0]))
    refresh_s = float(rng.choice([0.02, 0.02, 0.1, 0.1, 0.1, _log(rng, 0.015, 0.2)]))
    shortest = REFRESHES * max(poll_s, refresh_s)
    hidden = rng.random() < 0.22  # below what the sensor can show
    period_s = _log(rng, 0.2 * shortest, 0.95 * shortest) if hidden else _log(rng, shortest, max(12 * shortest, 40.0))
    # How many periods a trace has says nothing about the period: the length is drawn from the period's own multiples and cut.
    seconds = float(np.clip(period_s * _log(rng, 3.2, 400), 32 * max(poll_s, 0.02), 420.0))
    if seconds < 3.2 * period_s:
        period_s = seconds / rng.uniform(3.2, 8)
    jitter = float(rng.choice([_log(rng, 0.001, 0.01), _log(rng, 0.004, 0.04), _log(rng, 0.02, 0.07)]))
    draw = _Draw(rng, period_s, seconds, jitter, rng.uniform(0.02, 0.4), rng.choice([0.0, 0.0, rng.uniform(0.002, 0.03)]))
    line = _Line()
    truth = {**PERIODIC, **APERIODIC}[family](draw, line)
    seconds = min(seconds, line.end_s)
    columns = _seen(rng, line.rows, seconds, poll_s, refresh_s, whole=family not in APERIODIC)
    if truth.periodic:
        keep = truth.ends_s <= seconds
        truth.starts_s, truth.ends_s = truth.starts_s[keep], truth.ends_s[keep]
        slowest = REFRESHES * max(poll_s, refresh_s)
        assert truth.iteration_s is not None
        seen = max((explained(columns["time_s"], columns[name], truth.starts_s, truth.ends_s) for name in list(columns)[1:]), default=0.0)
        truth.observable = len(truth.starts_s) >= 3 and truth.iteration_s >= slowest and seen >= OBSERVABLE_SHARE
    return Case(family, columns, truth, refresh_s, poll_s)


def explained(time_s: Array, values: Array, starts_s: Array, ends_s: Array, bins: int = 12) -> float:
    """Adjusted share of a signal's variance inside iterations that the true phase explains (as `observable` in the truth)."""
    if len(starts_s) < 3:
        return 0.0
    number = np.searchsorted(starts_s, time_s, side="right") - 1
    inside = (number >= 0) & (time_s < ends_s[np.maximum(number, 0)])
    if inside.sum() < 3 * bins:
        bins = max(2, int(inside.sum() // 6))
    number, at, x = number[inside], time_s[inside], values[inside]
    if len(x) < 12 or x.std() < 1e-9:
        return 0.0
    phase = (at - starts_s[number]) / (ends_s[number] - starts_s[number])
    which = np.minimum((phase * bins).astype(int), bins - 1)
    counts = np.maximum(np.bincount(which, minlength=bins), 1)
    means = np.bincount(which, x, bins) / counts
    rest = float(((x - means[which]) ** 2).sum() / ((x - x.mean()) ** 2).sum())
    return 1 - rest * (len(x) - 1) / max(1, len(x) - bins)


def _seen(rng: np.random.Generator, rows: Array, seconds: float, poll_s: float, refresh_s: float, *, whole: bool) -> dict[str, Array]:
    """What a polling loop reads of a job: through board, sensor and driver."""
    from scipy.signal import lfilter

    card = list(CARDS.values())[int(rng.integers(len(CARDS)))]
    top_w, gap_w = card.power_limit_w[1], card.gap_w
    ends = np.cumsum(rows[:, 0])
    grid = np.arange(0.0, seconds + GRID_S, GRID_S)

    def integral(values: Array) -> Array:
        total: Array = np.interp(grid, np.concatenate([[0.0], ends]), np.concatenate([[0.0], np.cumsum(values * rows[:, 0])]))
        return total

    level = np.diff(integral(rows[:, 1]), prepend=0.0) / GRID_S
    level[0] = level[1]
    depth = _log(rng, 0.06, 1.0) if whole else 1.0  # how far power follows the phases at all
    centre = float(level.mean())
    true_w = gap_w + (top_w - gap_w) * np.clip(centre + depth * (level - centre), 0, 1.05)
    board_s = _log(rng, 0.002, 0.06)
    keep = np.exp(-GRID_S / board_s)
    true_w = lfilter([1 - keep], [1, -keep], true_w, zi=[keep * true_w[0]])[0]
    walk = _red(rng, len(grid) // 50 + 2, rng.choice([0.9, 0.99, 0.999]))
    true_w = true_w * (1 + rng.uniform(0, 0.01) * np.interp(grid, np.arange(len(walk)) * 50 * GRID_S, walk))
    energy = np.concatenate([[0.0], np.cumsum(true_w) * GRID_S])
    energy_at = np.arange(len(energy)) * GRID_S

    phase = rng.uniform(0, refresh_s)
    ticks = np.arange(phase - 2 * refresh_s, seconds + refresh_s, refresh_s)
    ticks = ticks + rng.normal(0, 0.01 * refresh_s, len(ticks))
    kind = rng.choice(["short", "full", "long", "rc"], p=[0.45, 0.25, 0.2, 0.1])
    window_s = {"short": refresh_s * rng.uniform(0.2, 0.6), "full": refresh_s, "long": rng.choice([0.5, 1.0, 1.0]), "rc": refresh_s}[kind]
    window_s = max(window_s, GRID_S)
    mean_w = (np.interp(ticks, energy_at, energy) - np.interp(ticks - window_s, energy_at, energy)) / window_s
    early = ticks < window_s
    mean_w[early] = np.interp(ticks[early], grid, true_w)
    if kind == "rc":
        rc = np.exp(-refresh_s / _log(rng, 0.05, 0.6))
        mean_w = lfilter([1 - rc], [1, -rc], mean_w, zi=[rc * mean_w[0]])[0]
    white = rng.choice([_log(rng, 0.0005, 0.008), _log(rng, 0.004, 0.03)])
    mean_w = mean_w * (1 + white * rng.normal(0, 1, len(mean_w))) + rng.normal(0, _log(rng, 0.02, 1.5), len(mean_w))
    step_w = float(rng.choice([0.001, 0.001, 0.01, 0.1, 1.0]))
    reading = np.maximum(0, np.round(mean_w / step_w) * step_w)

    times = _polls(rng, seconds, poll_s)
    at = np.clip(np.searchsorted(ticks, times, side="right") - 1, 0, len(ticks) - 1)
    columns = {"time_s": times, "power_w": reading[at]}
    if rng.random() < 0.92:
        window = float(rng.choice([0.1, 1 / 6, 1 / 6, 0.2, 0.5, 1.0, 1.0]))
        shift = rng.uniform(0, window)
        latch = (np.floor((times - shift) / window) * window + shift).clip(0)
        for name, column in (("utilisation", 2), ("memory_utilisation", 3)):
            total = integral(np.clip(rows[:, column], 0, 1))
            mean = (np.interp(latch, grid, total) - np.interp(latch - window, grid, total)) / window
            columns[name] = np.round(np.clip(mean, 0, 1), 2)
    return columns


def _polls(rng: np.random.Generator, seconds: float, poll_s: float) -> Array:
    """Times of the readings: a timer, or a loop that sleeps; some late, some lost, seldom a gap."""
    if rng.random() < 0.5:
        times = np.arange(0, seconds, poll_s)
        times = times + np.abs(rng.normal(0, _log(rng, 1e-5, 0.05 * poll_s), len(times)))
    else:
        steps = poll_s + rng.gamma(2.0, _log(rng, 2e-4, 0.06 * poll_s) / 2, int(seconds / poll_s) + 1)
        times = np.cumsum(steps) - steps[0]
    late = rng.random(len(times)) < rng.choice([0.0, 0.002, 0.02])
    times = times + late * rng.exponential(2 * poll_s, len(times))
    lost = rng.random(len(times)) < rng.choice([0.0, 0.0, 0.005, 0.03])
    if rng.random() < 0.05:
        middle = rng.uniform(0.1, 0.9) * seconds
        lost |= np.abs(times - middle) < rng.uniform(0.005, 0.03) * seconds
    kept: Array = np.unique(times[~lost])
    inside: Array = kept[kept < seconds]
    return inside
