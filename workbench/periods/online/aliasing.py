"""Guards against rhythms that are not there: beats between a job and the moments at which it is sampled.

A power reading covers often 25 ms of 100 (Yang et al., arXiv 2312.02741): an iteration of 0.104 s seen every
0.101 s looks like one of 3.5 s. Where the polling is slow, another interval moves the beat and leaves a true
rhythm where it is. Where the sensor is slow, the energy counter, which counts every moment, averages a beat
away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...records import Periods
from ..detect import SUSPECTED, confirmed
from ..harmonics import fit, waves

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AliasingParams:
    """Tuned constants, by hand; `benchmarks.tracking` and `benchmarks.periods` score what passes."""

    believed: float = 0.65  # share of the swing that the counter must show for a rhythm to be believed,
    doubted: float = 0.45  # and below which it is doubted
    same: float = 0.03  # a period that another polling interval leaves within 3 % is none of its making
    weak: float = 0.05  # relative swing that shows nothing
    harmonics: int = 3
    # of the share that a rhythm explains at one pace, at another: as fitted (a pace of which it is a multiple
    # shows all harmonics as the first ones) and as predicted
    stays: float = 0.4
    predicted: float = 0.6
    alike: float = 0.7  # cosine of its harmonics' sizes at both
    frequencies: int = 11  # frequencies that are tried for what was seen before, within half a turn of it
    steps: float = 2.5  # between two readings, that a harmonic must last to be told from others


PARAMS = AliasingParams()


class AliasEvidence(NamedTuple):
    """Swing in the counter's differences over that in the readings: `share`, about 1 for a true rhythm."""

    share: float
    swing_w: float
    mean_w: float


def intervals(rows: Array) -> tuple[float, float]:
    """Median seconds between two looks, and between two refreshes of the power reading; NaN: unknown."""
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
    # A value may stay the same over a refresh, so the shorter of the gaps are nearer to the truth.
    return interval_s, float(np.quantile(np.diff(changed), 0.25)) if len(changed) >= 5 else interval_s


def refreshes(tick_s: Array) -> Array:
    """Numbers of the rows that are the first to show a refresh."""
    known = np.flatnonzero(np.isfinite(tick_s))
    if len(known) < 2:
        return known
    # The rows that show one refresh have nearly the same time for it, but for the tracker's drift.
    first: Array = known[np.concatenate([[True], np.diff(tick_s[known]) > 0.004])]
    return first


def near_limit(seconds: float, interval_s: float, refresh_s: float) -> bool:
    """Whether sampling alone could make a period of `seconds`: short, or an even multiple of its step."""
    for step_s in (interval_s, refresh_s):
        if not step_s > 0:
            continue
        steps = seconds / step_s
        if steps < 4.0 or (steps < 6.5 and abs(steps - round(steps)) < 0.01 * steps):
            return True
    return False


def check_aliasing(rows: Array, seconds: float, *, guarded: bool = True) -> str | None:
    """Empty for a rhythm that sampling cannot have made, a sentence for one that it may have made, None where
    another polling interval would tell. `guarded` doubts what is near the sampling's limit without a second
    witness.
    """
    evidence = testimony(rows, seconds)
    share = evidence.share if evidence else None
    if share is not None and share < PARAMS.doubted:
        return (f"aliasing suspected: readings swing every {seconds:.3g} s, and the energy counter, which "
                f"misses nothing, shows {100 * share:.0f} % of that swing")
    interval_s, refresh_s = intervals(rows)
    if guarded and evidence is not None and evidence.swing_w < PARAMS.weak * evidence.mean_w:
        # A sensor that averages over its whole refresh leaves `refresh / seconds` of a faster rhythm's swing
        # in the beat, and no GPU swings by more than it draws: a stronger beat there cannot be.
        faster_w = evidence.swing_w * seconds / refresh_s
        if faster_w < evidence.mean_w:
            return (
                f"aliasing suspected: readings swing by {100 * evidence.swing_w / evidence.mean_w:.1f} % "
                f"every {seconds:.3g} s; what this sensor leaves of an iteration shorter than "
                f"{refresh_s:.3g} s would look the same"
            )
    believed = share is not None and share >= PARAMS.believed
    if not guarded or believed:
        return ""
    if len(refreshes(rows["power_tick_s"])) < 5:  # the polling may be what is slow: beats of any length
        return None
    if not near_limit(seconds, interval_s, refresh_s):
        return ""
    return (f"aliasing suspected: {seconds:.3g} s is too near the {refresh_s:.3g} s at which this sensor "
            "refreshes, and there is no second witness")


def with_counter(found: Periods, rows: Array) -> Periods:
    """What the detector found in a recorder's rows, checked against the energy counter: a rhythm that it does
    not show is doubted, and one whose only fault is that it may be a beat is sure where it does.
    """
    level = found.rhythm
    if level is None:
        return found
    if found.rhythm_sure:
        beat = check_aliasing(rows, level.seconds, guarded=False)
        return found.doubted(beat) if beat else found
    if found.reason.startswith(SUSPECTED) and rows["time_s"][-1] - rows["time_s"][0] >= 4 * level.seconds:
        evidence = testimony(rows, level.seconds)
        if evidence is not None and evidence.share >= PARAMS.believed:
            return confirmed(found)
    return found


def stays(before: Array, after: Array, seconds: float) -> bool | None:
    """Whether a rhythm in readings at one pace is in those at another: a beat with the polling moves away.
    None where there are too few readings to tell.

    Compared are the shares of the variance that the period's first harmonics explain in stretches of one
    length, and the harmonics with one another: a beat may move from the first to the second.
    """
    before, after = (rows[np.isfinite(rows["power_w"])] for rows in (before, after))
    harmonics = _resolved(before, after, seconds)
    least = 4 * len(harmonics) + 4
    if min(len(before), len(after)) < least:
        return None
    span_s = after["time_s"][-1] - after["time_s"][0]
    lately = int(np.count_nonzero(before["time_s"] >= before["time_s"][-1] - span_s))
    shares, swings = [], []
    for rows in (before[-max(lately, least):], after):
        power_w = rows["power_w"].astype(np.float64)
        amplitudes, _, share = swing(rows["time_s"], power_w, seconds, harmonics)
        shares.append(share)
        swings.append(amplitudes)
    return shares[1] >= PARAMS.stays * shares[0] and alike(*swings)


def alike(before: Array, after: Array) -> bool:
    """Whether the amplitudes of a period's harmonics are in about the same proportions."""
    size = float(np.linalg.norm(before) * np.linalg.norm(after))
    return float(before @ after) >= PARAMS.alike * size


def predicted_shares(before: Array, after: Array, seconds: float) -> tuple[float, float]:
    """Shares of the variance that a rhythm's first harmonics explain: in `before`, to which they are fitted,
    and in `after`, which they predict. Below 0 they are worse than a mean: the rhythm moved with the pace.
    """
    first, later = (rows[np.isfinite(rows["power_w"])] for rows in (before, after))
    harmonics = _resolved(first, later, seconds)
    count = 2 * len(harmonics) + 1
    if len(first) < 4 * count or len(later) < count:
        return 0.0, 0.0
    power_w, start_s = first["power_w"].astype(np.float64), first["time_s"][0]
    span_s = float(first["time_s"][-1] - start_s)
    least, best = math.inf, (np.zeros(count), 1 / seconds)
    for shift in np.linspace(-0.5, 0.5, PARAMS.frequencies):
        frequency = 1 / seconds + shift / span_s
        found, rest = fit(first["time_s"] - start_s, power_w, frequency, harmonics)
        if rest < least:
            least, best = rest, (found, frequency)
    variance = max(float(np.var(power_w)), 1e-12)
    missed = later["power_w"] - waves(later["time_s"] - start_s, best[1], harmonics) @ best[0]
    return 1.0 - least / len(first) / variance, 1.0 - float(np.mean(missed**2)) / variance


def jumps(rows: Array) -> float:
    """Mean square (W^2) of the differences from reading to reading."""
    power_w = rows["power_w"][np.isfinite(rows["power_w"])].astype(np.float64)
    return float(np.mean(np.diff(power_w) ** 2)) if len(power_w) > 1 else 0.0


def _resolved(before: Array, after: Array, seconds: float) -> list[int]:
    """The harmonics that both paces show, the first in any case: near two readings to one the fit is nearly
    singular, and says nothing.
    """
    paces_s = [float(np.median(np.diff(rows["time_s"]))) for rows in (before, after) if len(rows) > 1]
    pace_s = max(paces_s, default=0.0)
    return [h for h in range(1, PARAMS.harmonics + 1) if h == 1 or seconds / h >= PARAMS.steps * pace_s]


def testimony(rows: Array, seconds: float) -> AliasEvidence | None:
    """What the energy counter says of a rhythm in the power readings, by the period's first harmonics, with
    what averaging over one step of the counter takes from a true rhythm given back; None where it cannot be
    had.
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
    if seconds < PARAMS.steps * step_s or fine.sum() < 20:
        return None
    mean_w = np.diff(counter["energy_j"])[fine] / spans[fine]
    middle_s = (counter["tick_s"][:-1] + spans / 2)[fine]
    harmonics = [h for h in range(1, PARAMS.harmonics + 1) if seconds / h >= PARAMS.steps * step_s]
    read_w = reading["power_w"].astype(np.float64)
    steady, noise_w, _ = swing(reading["power_tick_s"], read_w, seconds, harmonics)
    averaged, *_ = swing(middle_s, mean_w, seconds, harmonics)
    given_back = np.array([1.0 / np.sinc(h * step_s / seconds) for h in harmonics])
    observed_w = float(np.sqrt(np.sum(steady**2)))
    if observed_w < 3.0 * noise_w:
        return None
    share = float(np.sqrt(np.sum((averaged * given_back) ** 2)) / observed_w)
    return AliasEvidence(share, 2.0 * observed_w, float(np.mean(reading["power_w"])))


def swing(
    time_s: Array, power_w: Array, seconds: float, harmonics: list[int]
) -> tuple[Array, float, float]:
    """Amplitudes of a period's harmonics by least squares, the standard error of one, and the share of the
    variance that they explain, adjusted for their number.

    Args:
        time_s: (n,).
        power_w: (n,).
        seconds: The period.
        harmonics: Multiples of its frequency.
    """
    found, rest = fit(time_s - time_s[0], power_w, 1 / seconds, harmonics)
    n = len(harmonics)
    sd = math.sqrt(rest / max(1, len(time_s) - 2 * n - 1))
    variance = float(np.var(power_w, ddof=1))
    share = max(0.0, 1.0 - sd**2 / variance) if variance > 0 else 0.0
    return np.hypot(found[1 : n + 1], found[n + 1 :]), sd * math.sqrt(2.0 / len(time_s)), share
