"""Features of candidate periods, all independent of scale: correlations, shares and ratios."""

from __future__ import annotations

import numpy as np

from .candidates import Candidate, LevelBank, SignalView, propose, refine, signal_views, view_between
from .shapes import SHAPE_NAMES, shape_table
from .signals import LEAST_REFRESHES, Pauses, SignalGrid, pauses

Array = np.ndarray
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
_LINES = 600  # lowest lines of a density: with 14 periods in a window, they include its 40th harmonic
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


def describe(grid: SignalGrid) -> tuple[Array, Array]:
    """Candidates' periods (n,) in seconds, and their features (n, len(NAMES))."""
    views = signal_views(grid.signals, grid.step_s)
    resting = pauses(grid.signals[0], grid.step_s)
    if resting is not None:
        views.append(view_between(grid.signals[0], grid.step_s, resting))
    candidates = propose(grid, views)
    if not candidates:
        return np.empty(0), np.empty((0, len(NAMES)))
    periods = np.array([_refined(views, one.period_s) for one in candidates])
    keep = _distinct(periods)
    candidates = [candidates[k] for k in keep]
    periods = periods[keep]
    rows = np.hstack([_proposals(views, grid, candidates, periods), _correlations(views, periods)])
    rests = np.array([_rests(resting, period_s) for period_s in periods.tolist()])
    others = (_shapes(grid, periods), rests, _relations(rows, periods, candidates))
    return periods, np.hstack([rows, *others])


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
    """Power refreshes per refresh of a utilisation: a period that both show is not a beat with either."""
    other = next((by_name[name].signal for name in SIGNALS[1:3] if name in by_name), None)
    if other is None or other.sd <= 0:
        return float("nan")
    return float(np.clip(other.shortest_s / by_name["power_w"].signal.shortest_s, 0.1, 10.0))


def _jumps(view: SignalView | None, step_s: float) -> float:
    """Variance of a reading's differences from refresh to refresh over twice its own (von Neumann 1941). It
    is near 1 if each refresh shows another part of a faster period.
    """
    if view is None or view.signal.sd <= 0:
        return float("nan")
    values = view.signal.values
    every = round(view.signal.shortest_s / LEAST_REFRESHES / step_s)
    every = min(max(every, 1), len(values) - 1)
    return float(np.mean((values[every:] - values[:-every]) ** 2) / (2 * view.signal.sd**2))


def _correlations(views: list[SignalView], periods: Array) -> Array:
    """Columns of the correlations and of the spectra of all signals, (candidates, 4 * WIDTH)."""
    found = np.full((len(periods), len(SIGNALS), WIDTH), np.nan)
    moving = [view for view in views if view.signal.sd > 0]
    place = [SIGNALS.index(view.signal.name) for view in moving]
    shortest_s = np.array([view.signal.shortest_s for view in moving])
    allowed = periods[:, None] >= 0.95 * shortest_s
    found[:, place, 0] = allowed
    row, view = np.nonzero(allowed)
    if len(row):
        bank, at_s = LevelBank(moving), periods[row]
        own = np.array(place)[view]
        found[row, own, 1 : 1 + CORRELATED] = _lagged(bank, view, at_s, shortest_s[view])
        found[row, own, 1 + CORRELATED :] = _spectral(bank, view, at_s)
    return found.reshape(len(periods), -1)


def _lagged(bank: LevelBank, view: Array, periods: Array, shortest_s: Array) -> Array:
    """NSDF at parts and multiples of each period, (n, CORRELATED), from one window length of its view."""
    near, far = bank.level_for(view, periods, 9), bank.level_for(view, periods, 9, longer=2)
    values = bank.at(near, np.multiply.outer(periods, LAGS))
    multiples = bank.highest(near, np.multiply.outer(periods, MULTIPLES))
    parts = np.multiply.outer(periods, 1 / np.array(PARTS))
    fractions = np.where(parts >= shortest_s[:, None], bank.highest(near, parts), np.nan)
    longer = bank.highest(far, np.multiply.outer(periods, LONGER))
    middle = bank.at(near, periods[:, None], middle=True)
    around = _around(bank, near, periods, multiples[:, 0])
    return np.hstack([values, multiples, fractions, longer, middle, around])


def _around(bank: LevelBank, near: Array, periods: Array, height: Array) -> Array:
    """The NSDF around peaks, (n, 5): mean lift, valley, best rivals inside and after it, place of the former.
    """
    found = np.full((len(near), 5), np.nan)
    for row, level, top, place in zip(found, near, height, periods / bank.step_s[near], strict=True):
        own = bank.values[bank.first[level] :][: bank.count[level]]
        after = own[int(1.08 * place) : int(1.92 * place)]
        if len(after):
            row[3] = after.max() - top
        inside = own[max(int(0.08 * place), 2) : max(int(0.92 * place), 3)]
        if not len(inside):
            continue
        valley = inside.min()
        # After the hill at lag 0.
        low = np.flatnonzero(inside < max(0.0, valley) + 0.25 * (top - valley))
        past = low[0] if len(low) else 0
        best = past + int(inside[past:].argmax())
        row[[0, 1, 2, 4]] = top - inside.mean(), valley, inside[best] - top, best / place + 0.08
    return found


def _spectral(bank: LevelBank, view: Array, periods: Array) -> Array:
    """Shares of the variance at harmonics of 1/period and between them, (n, SPECTRAL)."""
    level = bank.level_for(view, periods, 14)
    density, bin_hz, count = bank.densities, bank.bin_hz[level], bank.bins[level]
    places = np.rint(np.multiply.outer(1 / periods, COMB + BETWEEN) / bin_hz[:, None]).astype(np.int64)
    known = (places >= 1) & (places <= count[:, None] - 2)
    k, lines = np.where(known, places, 1), level[:, None]
    # Within one and a half bins of a frequency.
    shares = np.where(known, density[lines, k - 1] + density[lines, k] + density[lines, k + 1], np.nan)
    comb = np.where(known[:, : len(COMB)], shares[:, : len(COMB)], 0.0)
    total, top = comb.sum(axis=1), density.max(axis=1)[level]
    end = np.minimum(np.maximum((0.75 / periods / bin_hz).astype(np.int64), 1), count)
    below = np.cumsum(density, axis=1)[level, end - 1]
    return np.column_stack([
        shares, total, comb[:, 0:6:2].sum(axis=1) / np.maximum(total, 1e-9), below,
        shares[:, 0] / np.maximum(3 * top, 1e-9), comb[:, 0] / np.maximum(total, 1e-9), 1.0 - total - below,
        *_off_comb(density[level, :_LINES], periods * bin_hz, top),
    ])


def _off_comb(density: Array, bin_periods: Array, top: Array) -> tuple[Array, Array]:
    """The strongest lines (n,) above 1/period that are no multiple of it, of densities (n, lines) whose bins
    are so many (n,) of 1/period apart. Returns their height over the highest line's, and their place in
    multiples of 1/period. A line that does not repeat with a period comes from another or a faster source.
    """
    place = np.multiply.outer(bin_periods, np.arange(density.shape[1]))
    width = np.minimum(1.6 * bin_periods, 0.3)[:, None]
    off = (np.abs(place - np.rint(place)) > width) & (place > 1.0)
    lines = np.where(off, density, 0.0)
    best = lines.argmax(axis=1)
    rows = np.arange(len(density))
    return lines[rows, best] / np.maximum(top, 1e-12), np.minimum(place[rows, best], 64.0)


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
    ratio = periods[:, None] / periods
    others = heights - np.diag(np.full(len(heights), np.inf))
    strong = periods[heights >= min(0.7 * heights.max(), heights.max())].min()
    return np.column_stack([
        *_kin(ratio, heights), *_kin(1 / ratio, heights), _best(ratio > 1 / 0.95, heights),
        _best(ratio < 1 / 1.05, heights), np.minimum(periods / strong, 40.0), order, by_period / len(periods),
        np.clip(periods / fft, 0.02, 50), np.clip(periods / nsdf, 0.02, 50),
        heights - others.max(axis=1) if len(heights) > 1 else np.full(1, np.nan),
    ])


def _best(those: Array, heights: Array) -> Array:
    """Difference of the highest of those others (n, n) to each candidate; NaN if there are none."""
    top = np.where(those, heights, -np.inf).max(axis=1)
    return np.where(those.any(axis=1), top - heights, np.nan)


def _kin(ratio: Array, heights: Array) -> tuple[Array, Array, Array]:
    """The strongest candidates of which each is a multiple 2..40: strength, its height less ours, factor."""
    whole = np.round(ratio)
    least = np.maximum(whole, 1)
    fits = (whole >= 2) & (whole <= 40) & (np.abs(ratio / least - 1) < np.minimum(0.03, 0.3 / least))
    best = np.argmax(np.where(fits, heights, -2), axis=1)
    none = np.where(fits.any(axis=1), 0.0, np.nan)
    return heights[best] + none, heights[best] - heights + none, whole[np.arange(len(whole)), best] + none
