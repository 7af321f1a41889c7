"""Detects false periods: beats between a job and its sampling.

A power reading often covers 25 ms of 100 (Yang et al., arXiv 2312.02741): an iteration of 0.104 s sampled
every 0.101 s looks like one of 3.5 s. If the polling is slow, another polling interval moves the beat, but
not a true period. If the sensor is slow, the energy counter, which counts every moment, averages a beat away.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...records import Periods
from ..detect import SUSPECTED, confirmed
from ..harmonics import STEPS, amplitudes, fit, nearest, resolved, waves

Array = np.ndarray

# Tuned constants, set manually; `benchmarks.tracking` and `benchmarks.periods` score accepted periods.

# share of a period that second evidence must show. Energy counter: share of the swing (about all for a
# true period, a tenth for a beat with an iteration shorter than its step). Other pace: share of the
# explained variance
STAYS = 0.6
WEAK_SWING = 0.05  # relative swing that is no evidence
JUMP_RATIO = 1.5  # ratio of differences between readings that shows a moved beat


class AliasEvidence(NamedTuple):
    """Swing in the counter's differences over that in the readings: `share`, about 1 for a true period."""

    share: float
    swing_w: float
    mean_w: float


def intervals(rows: Array) -> tuple[float, float]:
    """Median seconds between two polls, and between two refreshes of the power reading; NaN: unknown."""
    times = rows["time_s"]
    gaps = np.diff(times)
    gaps = gaps[gaps > 0]
    if len(gaps) < 4:
        return math.nan, math.nan
    interval_s = float(np.median(gaps))
    ticks = refreshes(rows["power_tick_s"])
    if len(ticks) >= 5:
        return interval_s, float(np.median(np.diff(rows["power_tick_s"][ticks])))
    changed = times[1:][np.diff(rows["power_w"]) != 0]
    # A value may be unchanged by a refresh, so the shorter gaps are closer to the truth.
    return interval_s, float(np.quantile(np.diff(changed), 0.25)) if len(changed) >= 5 else interval_s


def refreshes(tick_s: Array) -> Array:
    """Indices of the rows that are the first to show a refresh."""
    known = np.flatnonzero(np.isfinite(tick_s))
    if len(known) < 2:
        return known
    # Rows of one refresh have nearly the same time for it, except for the tracker's drift.
    first: Array = known[np.concatenate([[True], np.diff(tick_s[known]) > 0.004])]
    return first


def near_limit(seconds: float, interval_s: float, refresh_s: float) -> bool:
    """Whether sampling alone could cause a period of `seconds`: short, or an even multiple of its step."""
    for step_s in (interval_s, refresh_s):
        if not step_s > 0:
            continue
        steps = seconds / step_s
        if steps < 4.0 or (steps < 6.5 and abs(steps - round(steps)) < 0.01 * steps):
            return True
    return False


def check_aliasing(rows: Array, seconds: float, *, guarded: bool = True) -> str | None:
    """Empty for a period that sampling cannot have caused, a message for one that it may have caused. None if
    another polling interval would decide. `guarded` doubts periods close to the sampling's limit without
    second evidence.
    """
    evidence = testimony(rows, seconds)
    share = evidence.share if evidence else None
    if share is not None and share < STAYS:
        return (f"aliasing suspected: readings swing every {seconds:.3g} s, and the energy counter, which "
                f"covers all time, shows {100 * share:.0f} % of that swing")
    interval_s, refresh_s = intervals(rows)
    if guarded and evidence is not None and evidence.swing_w < WEAK_SWING * evidence.mean_w:
        # A sensor that averages over its whole refresh leaves `refresh / seconds` of a faster period's swing
        # in the beat. A GPU's swing is limited by its power, so a stronger beat is impossible.
        faster_w = evidence.swing_w * seconds / refresh_s
        if faster_w < evidence.mean_w:
            return (
                f"aliasing suspected: readings swing by {100 * evidence.swing_w / evidence.mean_w:.1f} % "
                f"every {seconds:.3g} s; an iteration shorter than "
                f"{refresh_s:.3g} s would look the same with this sensor"
            )
    if not guarded or share is not None:
        return ""
    if len(refreshes(rows["power_tick_s"])) < 5:  # the polling may be slow: beats of any length
        return None
    if not near_limit(seconds, interval_s, refresh_s):
        return ""
    return (f"aliasing suspected: {seconds:.3g} s is too close to the refresh interval of this sensor, "
            f"{refresh_s:.3g} s, and there is no second evidence")


def with_counter(found: Periods, rows: Array) -> Periods:
    """Periods detected in a recorder's rows, checked against the energy counter. A period without support in
    the counter is doubted. A period whose only doubt was a beat becomes sure with its support.
    """
    level = found.main
    if level is None:
        return found
    if found.main_sure:
        beat = check_aliasing(rows, level.period_s, guarded=False)
        return found.doubted(beat) if beat else found
    if found.reason.startswith(SUSPECTED) and rows["time_s"][-1] - rows["time_s"][0] >= 4 * level.period_s:
        evidence = testimony(rows, level.period_s)
        if evidence is not None and evidence.share >= STAYS:
            return confirmed(found)
    return found


class PaceEvidence(NamedTuple):
    """Shares of the variance that a period's first harmonics explain: of readings at one pace, to which they
    are fitted, of later ones at another pace as predicted, and fitted again. Below 0 a prediction is worse
    than a mean. `moved`: the later ones also differ more from reading to reading, which shows a beat.
    """

    before: float
    predicted: float
    fitted: float
    moved: bool


def at_another_pace(before: Array, after: Array, seconds: float) -> PaceEvidence | None:
    """Evidence for a period in readings at two paces; None if there are too few readings."""
    first, later = (rows[np.isfinite(rows["power_w"])] for rows in (before, after))
    if min(len(first), len(later)) < 2:
        return None
    pace_s = max(float(np.median(np.diff(rows["time_s"]))) for rows in (first, later))
    harmonics = resolved(seconds, pace_s)
    free = 2 * len(harmonics) + 1
    if len(first) < 3 * free or len(later) < 2 * free:
        return None
    first_w, later_w = (rows["power_w"].astype(np.float64) for rows in (first, later))
    found = nearest(first["time_s"], first_w, 1 / seconds, harmonics)
    again = nearest(later["time_s"], later_w, 1 / seconds, harmonics)
    foretold_w = waves(later["time_s"] - first["time_s"][0], found.frequency, harmonics) @ found.coefficients
    predicted = 1.0 - float(np.mean((later_w - foretold_w) ** 2)) / max(float(np.var(first_w)), 1e-12)
    jumps = [float(np.mean(np.diff(watts) ** 2)) for watts in (first_w, later_w)]
    moved = predicted < 0.0 and jumps[1] > JUMP_RATIO * jumps[0]
    return PaceEvidence(1.0 - found.left, predicted, 1.0 - again.left, moved)


def testimony(rows: Array, seconds: float) -> AliasEvidence | None:
    """Evidence of the energy counter for a period in the power readings, by the period's first harmonics. It
    is corrected for the counter's averaging over one step. None if unavailable.
    """
    rows = rows[rows["time_s"] >= rows["time_s"][-1] - max(8 * seconds, 4.0)]
    counter, reading = rows[refreshes(rows["tick_s"])], rows[refreshes(rows["power_tick_s"])]
    reading = reading[np.isfinite(reading["power_w"])]
    counter = counter[np.isfinite(counter["energy_j"])]
    if len(counter) < 20 or len(reading) < 20:
        return None
    spans = np.diff(counter["tick_s"])
    step_s = float(np.median(spans))
    fine = spans < 2.5 * step_s
    if seconds < STEPS * step_s or fine.sum() < 20:
        return None
    mean_w = np.diff(counter["energy_j"])[fine] / spans[fine]
    middle_s = (counter["tick_s"][:-1] + spans / 2)[fine]
    harmonics = resolved(seconds, step_s)
    read_w = reading["power_w"].astype(np.float64)
    steady = fit(reading["power_tick_s"], read_w, 1 / seconds, harmonics)
    averaged = amplitudes(fit(middle_s, mean_w, 1 / seconds, harmonics))
    given_back = 1.0 / np.sinc(np.array(harmonics) * step_s / seconds)
    observed_w = float(np.linalg.norm(amplitudes(steady)))
    # The standard error of an amplitude.
    noise_w = math.sqrt(2.0 * steady.left * float(np.var(read_w)) / len(read_w))
    if observed_w < 3.0 * noise_w:
        return None
    share = float(np.linalg.norm(averaged * given_back)) / observed_w
    return AliasEvidence(share, 2.0 * observed_w, float(np.mean(read_w)))
