"""Features of candidate periods, all free of scale: correlations, shares and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np

from .candidates import Candidate, SignalView, look_between, propose, refine, signal_views
from .shape_table import shape_table
from .shapes import SHAPE_NAMES
from .signals import PARAMS as SIGNAL_PARAMS
from .signals import Pauses, SignalGrid, pauses

Array = np.ndarray[Any, Any]
LAGS = (0.2, 0.25, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.75, 0.8, 4 / 3, 1.5, 5 / 3)
MULTIPLES = (1, 2, 3, 4, 5, 6)
PARTS = (2, 3, 4, 5, 6, 8)
COMB = (1, 2, 3, 4, 5, 6, 8)
BETWEEN = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 3 / 2, 5 / 2, 4 / 3, 5 / 3)
LONGER = (1, 2, 4, 8)
AROUND = ("middle", "lift", "valley", "best_before", "best_after", "place_before")
CORRELATED = len(LAGS) + len(MULTIPLES) + len(PARTS) + len(LONGER) + len(AROUND)
SPECTRAL = len(COMB) + len(BETWEEN) + 8
WIDTH = 1 + CORRELATED + SPECTRAL
_LINES = 600  # of a density, the lowest: 14 periods in a window put its 40th harmonic there
SIGNALS = ("power_w", "utilisation", "memory_utilisation", "between_pauses")


def names() -> list[str]:
    found = ["votes_share", "votes_rank", "clarity_share", "peak", "limit_ratio"]
    found += [
        "candidates", "top_clarity", "depth", "sm_spread", "memory_spread", "polls_a_refresh",
        "after_refresh", "clocks", "power_jumps", "sm_jumps",
    ]
    for name in SIGNALS:
        found += [f"{name}:allowed"]
        found += [f"{name}:lag{lag:.2f}" for lag in LAGS]
        found += [f"{name}:x{k}" for k in MULTIPLES]
        found += [f"{name}:part{k}" for k in PARTS]
        found += [f"{name}:long{k}" for k in LONGER]
        found += [f"{name}:{what}" for what in AROUND]
        found += [f"{name}:comb{k}" for k in COMB]
        found += [f"{name}:between{k:.2f}" for k in BETWEEN]
        found += [f"{name}:{what}" for what in ("comb", "odd", "below", "peakshare", "pure")]
        found += [f"{name}:{what}" for what in ("rest", "off_comb", "off_comb_at")]
    for name in SIGNALS[:3]:
        found += [f"{name}:{what}" for what in SHAPE_NAMES]
    found += ["pause", "piece", "cycle"]
    found += [
        "divisor", "divisor_x", "divisor_k", "multiple", "multiple_x", "multiple_k", "shorter", "longer",
        "shorter_strong", "rank_x", "rank_period", "to_fft", "to_nsdf", "best_other",
    ]
    return found


NAMES = names()


def describe(grid: SignalGrid) -> tuple[Array, Array, list[SignalView]]:
    """Candidates' periods (n,) in seconds, their features (n, len(NAMES)), and the signals' views."""
    views = signal_views(grid.signals, grid.step_s)
    resting = pauses(grid.signals[0], grid.step_s)
    if resting is not None:
        views.append(look_between(grid.signals[0], grid.step_s, resting))
    candidates = propose(grid, views)
    if not candidates:
        return np.empty(0), np.empty((0, len(NAMES))), views
    periods = np.array([_refined(views, one.period_s) for one in candidates])
    keep = _distinct(periods)
    candidates = [candidates[k] for k in keep]
    periods = periods[keep]
    rows = np.hstack([_proposals(views, grid, candidates, periods), _correlations(views, periods)])
    rests = np.array([_rests(resting, period_s) for period_s in periods.tolist()])
    others = (_shapes(grid, periods), rests, _relations(rows, periods, candidates))
    return periods, np.hstack([rows, *others]), views


def _refined(views: list[SignalView], period_s: float) -> float:
    """A period (s) refined by the signal that shows it best."""
    best, height = None, -1.0
    for view in views:
        if view.signal.sd > 0 and period_s >= 0.95 * view.signal.shortest_s and view.levels:
            value = view.levels[view.level_for(period_s, 5)].near(period_s, 0.03)[1]
            if np.isfinite(value) and value > height + (0.1 if best is not None else 0.0):
                best, height = view, value
    return refine(best, period_s) if best is not None else period_s


def _distinct(periods: Array) -> list[int]:
    kept: list[int] = []
    for k, period_s in enumerate(periods):
        if all(abs(np.log(period_s / periods[other])) > 0.02 for other in kept):
            kept.append(k)
    return kept


def _proposals(
    views: list[SignalView], grid: SignalGrid, candidates: list[Candidate], periods: Array
) -> Array:
    """Columns of the proposing estimators and of the whole trace, (candidates, 15)."""
    by_name = {view.signal.name: view for view in views}
    power = views[0]
    votes = np.array([one.votes for one in candidates])
    clarity = np.array([one.clarity for one in candidates])
    shortest = min((view.signal.shortest_s for view in views if view.signal.sd > 0), default=1.0)
    spreads = [by_name[name].signal.sd if name in by_name else np.nan for name in SIGNALS[1:3]]
    whole = [
        float(len(candidates)), float(clarity.max()), power.signal.sd / max(power.signal.centre, 1e-9),
        *spreads, min(grid.refresh_s / grid.poll_s, 10.0), power.levels[-1].at(grid.refresh_s),
        _clocks(by_name), *(_jumps(by_name.get(name), grid.step_s) for name in SIGNALS[:2]),
    ]
    own = np.column_stack([
        votes / votes.max(), np.arange(len(candidates)), clarity / max(clarity.max(), 1e-6),
        [one.peak for one in candidates], np.minimum(periods / shortest, 12.0),
    ])
    return np.hstack([own, np.tile(whole, (len(candidates), 1))])


def _clocks(by_name: dict[str, SignalView]) -> float:
    """How often power refreshes to one refresh of a utilisation: what both show is no beat with either."""
    other = next((by_name[name].signal for name in SIGNALS[1:3] if name in by_name), None)
    if other is None or other.sd <= 0:
        return float("nan")
    return float(np.clip(other.shortest_s / by_name["power_w"].signal.shortest_s, 0.1, 10.0))


def _jumps(view: SignalView | None, step_s: float) -> float:
    """Variance of a reading's differences from refresh to refresh over twice its own (von Neumann 1941): near
    1 where each refresh shows another part of something faster.
    """
    if view is None or view.signal.sd <= 0:
        return float("nan")
    values = view.signal.values
    every = round(view.signal.shortest_s / SIGNAL_PARAMS.refreshes / step_s)
    every = min(max(every, 1), len(values) - 1)
    return float(np.mean((values[every:] - values[:-every]) ** 2) / (2 * view.signal.sd**2))


def _correlations(views: list[SignalView], periods: Array) -> Array:
    by_name = {view.signal.name: view for view in views}
    blocks = []
    for name in SIGNALS:
        view = by_name.get(name)
        block = np.full((len(periods), WIDTH), np.nan)
        if view is not None and view.signal.sd > 0:
            allowed = periods >= 0.95 * view.signal.shortest_s
            block[:, 0] = allowed
            near = np.array([view.level_for(period_s, 9) for period_s in periods])
            wide = np.array([view.level_for(period_s, 14) for period_s in periods])
            for index in set(near[allowed]):
                rows = np.flatnonzero(allowed & (near == index))
                block[rows, 1 : 1 + CORRELATED] = _lagged(view, int(index), periods[rows])
            for index in set(wide[allowed]):
                rows = np.flatnonzero(allowed & (wide == index))
                block[rows, 1 + CORRELATED :] = _spectral(view, int(index), periods[rows])
        blocks.append(block)
    return np.hstack(blocks)


def _lagged(view: SignalView, index: int, periods: Array) -> Array:
    """NSDF at parts and multiples of each period, (n, CORRELATED), from one window length."""
    near, far = view.levels[index], view.levels[max(0, index - 2)]
    places = np.multiply.outer(periods, LAGS) / near.step_s
    values = np.interp(places, np.arange(len(near.values)), near.values, right=np.nan)
    multiples = near.highest(np.multiply.outer(periods, MULTIPLES))
    parts = np.multiply.outer(periods, 1 / np.array(PARTS))
    fractions = np.where(parts >= view.signal.shortest_s, near.highest(parts), np.nan)
    longer = far.highest(np.multiply.outer(periods, LONGER))
    each = zip(periods / near.step_s, multiples[:, 0], strict=True)
    around = np.array([_around(near.values, float(place), float(height)) for place, height in each])
    middle = np.interp(periods / near.step_s, np.arange(len(near.middle)), near.middle, right=np.nan)
    return np.hstack([values, multiples, fractions, longer, middle[:, None], around])


def _around(values: Array, place: float, height: float) -> list[float]:
    """The NSDF around a peak: mean lift, valley, best rivals inside and after it, the former's place."""
    first, last = max(2, int(0.08 * place)), max(3, int(0.92 * place))
    inside = values[first:last]
    after = values[int(1.08 * place) : int(1.92 * place)]
    beyond = float(after.max()) - height if len(after) else np.nan
    if not len(inside):
        return [np.nan, np.nan, np.nan, beyond, np.nan]
    valley = float(inside.min())
    below = inside < max(0.0, valley) + 0.25 * (height - valley)
    past = int(np.argmax(below)) if below.any() else 0
    best = past + int(np.argmax(inside[past:]))
    lift, rival = height - float(inside.sum()) / len(inside), float(inside[best]) - height
    return [lift, valley, rival, beyond, best / place + 0.08]


def _spectral(view: SignalView, index: int, periods: Array) -> Array:
    """Shares of the variance at harmonics of 1/period and between them, (n, SPECTRAL)."""
    density, bin_hz = view.densities[index], view.resolution_hz[index]
    mass = density[:-2] + density[1:-1] + density[2:]  # within one and a half bins of a frequency
    places = np.rint(np.multiply.outer(1 / periods, COMB + BETWEEN) / bin_hz).astype(np.int64)
    known = (places >= 1) & (places <= len(mass))
    shares = np.where(known, mass[np.clip(places - 1, 0, len(mass) - 1)], np.nan)
    comb = np.nan_to_num(shares[:, : len(COMB)])
    total = comb.sum(axis=1)
    running = np.concatenate([[0.0], np.cumsum(density)])
    below = running[np.clip((0.75 / periods / bin_hz).astype(np.int64), 1, len(density))]
    return np.column_stack([
        shares, total, comb[:, 0:6:2].sum(axis=1) / np.maximum(total, 1e-9), below,
        shares[:, 0] / max(3 * float(density.max()), 1e-9), comb[:, 0] / np.maximum(total, 1e-9),
        1.0 - total - below, *_off_comb(density, bin_hz, periods),
    ])


def _off_comb(density: Array, bin_hz: float, periods: Array) -> tuple[Array, Array]:
    """The strongest line above 1/period that is no multiple of it: its height over the highest line's, and
    its place in multiples of 1/period. What does not repeat with a period is of something else, or faster.
    """
    top = float(density.max())
    kept = density[: _LINES]
    place = np.multiply.outer(periods * bin_hz, np.arange(len(kept)))
    width = np.clip(1.6 * periods * bin_hz, 0.0, 0.3)[:, None]
    off = (np.abs(place - np.rint(place)) > width) & (place > 1.0)
    lines = np.where(off, kept, 0.0)
    best = lines.argmax(axis=1)
    rows = np.arange(len(periods))
    return lines[rows, best] / max(top, 1e-12), np.minimum(place[rows, best], 64.0)


def _shapes(grid: SignalGrid, periods: Array) -> Array:
    """Columns of the mean shapes, (candidates, 39)."""
    found = np.full((3, len(periods), len(SHAPE_NAMES)), np.nan)
    own = [signal for signal in grid.signals if signal.name in SIGNALS[:3]]
    found[[SIGNALS.index(signal.name) for signal in own]] = shape_table(own, grid.step_s, periods)
    return np.hstack(list(found))


def _rests(resting: Pauses | None, period_s: float) -> list[float]:
    """Lengths of a pause, of the work between two, and of both together, in periods."""
    if resting is None:
        return [np.nan] * 3
    lengths = (resting.pause_s, resting.piece_s, resting.pause_s + resting.piece_s)
    return [min(seconds / period_s, 60.0) for seconds in lengths]


def _relations(rows: Array, periods: Array, candidates: list[Candidate]) -> Array:
    """Columns of each candidate against the others, (candidates, 14)."""
    column = {name: k for k, name in enumerate(NAMES)}
    own = rows[:, [column[f"{name}:x1"] for name in SIGNALS]]
    with np.errstate(invalid="ignore"):
        heights = np.nanmax(np.where(np.isnan(own), -1.0, own), axis=1)
    peaks = np.array([one.peak for one in candidates])
    fft = periods[int(np.argmax(peaks))]
    nsdf = periods[int(np.argmax(heights))]
    order = np.argsort(np.argsort(-heights))
    by_period = np.argsort(np.argsort(periods))
    found = []
    for k, period_s in enumerate(periods):
        ratio = period_s / periods
        divisor = _kin(ratio, heights, k)
        multiple = _kin(1 / ratio, heights, k)
        shorter = heights[(periods < 0.95 * period_s)]
        longer = heights[(periods > 1.05 * period_s)]
        strong = periods[heights >= min(0.7 * heights.max(), heights.max())].min()
        others = np.delete(heights, k)
        found.append([*divisor, *multiple,
                      float(shorter.max()) - heights[k] if len(shorter) else np.nan,
                      float(longer.max()) - heights[k] if len(longer) else np.nan,
                      min(period_s / strong, 40.0), float(order[k]), float(by_period[k]) / len(periods),
                      float(np.clip(period_s / fft, 0.02, 50)), float(np.clip(period_s / nsdf, 0.02, 50)),
                      heights[k] - float(others.max()) if len(others) else np.nan])
    return np.array(found, dtype=float)


def _kin(ratio: Array, heights: Array, own: int) -> list[float]:
    """The strongest candidate of which this is a multiple 2..40: (strength, its height less ours, factor)."""
    whole = np.round(ratio)
    least = np.maximum(whole, 1)
    fits = (whole >= 2) & (whole <= 40) & (np.abs(ratio / least - 1) < np.minimum(0.03, 0.3 / least))
    if not fits.any():
        return [np.nan, np.nan, np.nan]
    best = int(np.argmax(np.where(fits, heights, -2)))
    return [float(heights[best]), float(heights[best] - heights[own]), float(whole[best])]
