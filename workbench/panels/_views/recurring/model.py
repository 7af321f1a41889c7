"""What the panel of a recurring job shows, as words and columns, live and in the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from ....experiments.history.attempts import Attempt
from ....experiments.history.outlook import Default, Outlook
from ....logbook.quantities import format_change
from ....search.batch_size.history import MOST_RUNS
from ....search.objective import Energy, EnergyDelay, EnergyWithin, Objective, Time, ZeusCost
from ..._core.prefixes import prefixed

MOST_ROWS = 600  # of recurrences that are drawn: more would not be seen
TALLEST = 3.0  # times the least estimated cost; what lies above is marked at the edge
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class RecurringView:
    """Words, columns and ranges; costs are divided by a power of 1000 that `unit` names.

    Attributes:
        headline, details: What comes next, or runs; what was paid and saved, what is barred, why.
        eta: Of Zeus' cost; None under another objective.
        believed: A column each of batch, middle, low, high, best, reached, other, barred.
        arm: Row of `believed` that is chosen.
        rows: Columns recurrence, cost, batch, reached, lost, saved, saved_low, saved_high.
        profile: Columns limit_w, time, energy, cost as shares of those at the highest limit.
        optimum: Row of `profile` that costs least.
        ranges: Of the axes "believed", "cost", "saved" and "profile".
    """

    headline: str
    details: tuple[str, ...]
    eta: float | None
    objective: str
    unit: str
    saved_unit: str
    believed: Columns
    arm: int | None
    rows: Columns
    default: dict[str, float] | None
    break_even: int | None
    profile: Columns
    optimum: int | None
    profile_of: int | None
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)


def view(outlook: Outlook, running: list[Attempt] | None = None) -> RecurringView:
    """An outlook, to be drawn; `running` are the attempts that have not ended."""
    believed = outlook.believed
    drawn = [value for value in believed["cost"].to_list() if value is not None]
    recurrences = outlook.recurrences
    default = outlook.default
    kind = unit_of(outlook.objective)
    typical = [*drawn, *recurrences["cost"].to_list(), *([default.cost] if default else [])]
    scale, unit = prefixed(float(np.median(typical)) if typical else 1.0, kind)
    columns = {
        "batch": believed["batch_size"].to_list(),
        "middle": _scaled(believed["cost"], scale),
        **{name: _scaled(believed[name], scale) for name in ("low", "high")},
        **{name: believed[name].to_list() for name in ("best", "reached", "other", "barred")},
    }
    keep = np.linspace(0, recurrences.height - 1, min(recurrences.height, MOST_ROWS)).round().astype(int)
    shown = recurrences[np.unique(keep).tolist()] if recurrences.height > MOST_ROWS else recurrences
    rows: Columns = {
        "recurrence": shown["recurrence"].to_list(), "cost": _scaled(shown["cost"], scale),
        "batch": shown["batch_size"].to_list(), "reached": shown["reached"].to_list(),
        "lost": shown["lost"].to_list(),
    }
    saved_unit = unit
    if "saved" in shown.columns:
        most = max(np.nanmax(np.abs(shown["saved"].to_numpy()), initial=0.0), 1e-12)
        saved_scale, saved_unit = prefixed(most, kind)
        rows |= {name: _scaled(shown[name], saved_scale) for name in ("saved", "saved_low", "saved_high")}
    profile, optimum = _profile(outlook)
    about = None
    if default is not None:
        about = {name: getattr(default, name) / scale for name in ("cost", "low", "high")}
    return RecurringView(
        headline(outlook, running or []), tuple(details(outlook)),
        outlook.objective.eta if isinstance(outlook.objective, ZeusCost) else None,
        objective_text(outlook.objective), unit, saved_unit, columns, outlook.arm, rows, about,
        outlook.break_even, profile, optimum, outlook.profile_of, _ranges(columns, rows, about, profile),
    )


# words


def headline(outlook: Outlook, running: list[Attempt]) -> str:
    """What runs, or would be done next."""
    if running:
        each = [_running(attempt) for attempt in running[:3]]
        why = f": {running[0].reason}" if len(running) == 1 and running[0].reason else ""
        return f"Running: {'; '.join(each)}{why}" + (f"; {len(running) - 3} more" if len(running) > 3 else "")
    proposal = outlook.proposal
    if proposal is None:
        if outlook.batch_size is None:
            return outlook.reason[:1].upper() + outlook.reason[1:]
        return f"Estimated to cost least: batch size {outlook.batch_size}{_sure(outlook)}"
    what = "a few seconds of batch size" if proposal.purpose == "slice" else "batch size"
    profiled = ", power limits profiled in its first iterations" * bool(outlook.space.power_limits_w)
    limits = _at(proposal.power_limit_w) or profiled
    return f"Next: {what} {proposal.batch_size}{limits}: {proposal.reason}{_sure(outlook)}"


def _running(attempt: Attempt) -> str:
    what = "a few seconds of batch size" if attempt.purpose == "slice" else "batch size"
    done = f", {attempt.epochs:g} epoch{'s' * (attempt.epochs != 1)} done" if attempt.epochs else ""
    return f"{what} {attempt.batch_size}{_at(attempt.power_limit_w)}{done}"


def details(outlook: Outlook) -> list[str]:
    """What was paid and saved, and what else there is to know; a sentence each."""
    rows, default, kind = outlook.recurrences, outlook.default, unit_of(outlook.objective)
    sentences = []
    if rows.height:
        spent = amount(float(rows["spent"][-1]), kind)
        cost = f"{rows.height} recurrence{'s' * (rows.height > 1)} cost {spent}"
        if default is None or not rows["reached"].any():
            sentences.append(cost)
        else:
            sentences += [cost, *_against(outlook, default, kind)]
    sentences += _lost(outlook.recurrences, kind)
    if outlook.proposal is None and outlook.reason and outlook.batch_size is not None:
        sentences.append(outlook.reason)
    sentences += sorted({why for why in outlook.believed["barred"].to_list() if why})
    if outlook.changes:
        times = "once" if outlook.changes == 1 else f"{outlook.changes} times"
        sentences.append(f"the job has changed {times} on the way; estimates are of what it is now")
    return sentences


def _lost(rows: pl.DataFrame, kind: str) -> list[str]:
    """What the recurrences have cost that ended without the target."""
    gone = rows.filter(rows["lost"])
    if not gone.height:
        return []
    price, numbers = amount(float(gone["cost"].sum()), kind), _listed(gone["recurrence"].to_list())
    return [
        f"lost: recurrence{'s' * (gone.height > 1)} {numbers}, whose {MOST_RUNS} runs did not reach the "
        f"target and cost {price}"
    ]


def _listed(numbers: list[int]) -> str:
    """The first few of them, and how many more."""
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown


def _against(outlook: Outlook, default: Default, kind: str) -> list[str]:
    """What is saved against the default, in per cent and in sum; only that it is unknown where it is."""
    counted = outlook.recurrences.filter(outlook.recurrences["saved"].is_not_nan())
    what = f"the default (batch size {default.batch_size}{_at(default.power_limit_w)})"
    since = f"since recurrence {outlook.since}, when the job changed: " * (outlook.since > 1)
    if not counted["reached"].any():
        return [f"{since}no recurrence has reached the target yet, so nothing is known of the saving"]
    paid = float(counted["cost"].sum())
    low, high = (float(counted[name][-1]) for name in ("saved_low", "saved_high"))
    if low <= 0 <= high:
        return [f"{since}no measurable difference from what {what} would have cost"]
    shares = sorted(abs(100 * saved / (paid + saved)) for saved in (low, high))
    share = " to ".join(dict.fromkeys(f"{each:.0f}" for each in shares))
    parts = []
    for name, column in (("energy", "energy_j"), ("time", "time_s")):
        taken, usual = float(counted[column].sum()), float(counted[f"usual_{column}"].sum())
        if usual > 0:  # otherwise it was not measured
            parts.append(f"{name} {format_change(taken / usual - 1, digits=0)}")
    less = f"{share} % {'less' if low > 0 else 'more'}"
    sentences = [f"{since}{less} than {what} would have cost ({', '.join(parts)})"]
    if low > 0 and outlook.break_even is not None:
        sentences.append(f"paid for itself from recurrence {outlook.break_even} on")
    elif high < 0:
        sentences.append(f"{amount(-float(counted['saved'][-1]), kind)} short of breaking even")
    return sentences


def _sure(outlook: Outlook) -> str:
    if outlook.arm is None or (best := outlook.believed["best"][outlook.arm]) is None:
        return ""
    share = "more than 99 %" if best > 0.99 else "less than 1 %" if best < 0.01 else f"{100 * best:.0f} %"
    return f"; {share} likely the cheapest"


def _at(limit_w: float | None) -> str:
    return f" at {limit_w:g} W" if limit_w else ""


def objective_text(objective: Objective) -> str:
    """An objective as a person says it."""
    if isinstance(objective, ZeusCost):
        energy, time = 100 * objective.eta, 100 * (1 - objective.eta)
        return f"eta {objective.eta:g}: {energy:.0f} % energy, {time:.0f} % time"
    if isinstance(objective, EnergyDelay):
        return "energy x time" if objective.delay == 1 else f"energy x time^{objective.delay}"
    if isinstance(objective, EnergyWithin):
        return f"least energy within {100 * (objective.slowdown - 1):g} % more time"
    if isinstance(objective, Energy):
        return "energy"
    return "time" if isinstance(objective, Time) else type(objective).__name__


def unit_of(objective: Objective) -> str:
    """The unit of a cost. Zeus' cost is in joule equivalents, as it prices time at the highest power."""
    if isinstance(objective, EnergyDelay):
        return "J·s" if objective.delay == 1 else f"J·s^{objective.delay}"
    if isinstance(objective, Time):
        return "s"
    return "J eq." if isinstance(objective, ZeusCost) and objective.eta < 1 else "J"


def amount(value: float, unit: str) -> str:
    """Three digits and a unit."""
    scale, text = prefixed(abs(value), unit)
    return f"{value / scale:.3g} {text}" if abs(value / scale) < 1000 else f"{value / scale:.0f} {text}"


# columns


def _scaled(values: pl.Series, scale: float) -> list[float | None]:
    return [None if value is None or not math.isfinite(value) else value / scale for value in values]


def _profile(outlook: Outlook) -> tuple[Columns, int | None]:
    frame = outlook.profile
    if frame.height < 2:  # one point is no curve
        return {"limit_w": [], "time": [], "energy": [], "cost": []}, None
    columns: Columns = {"limit_w": frame["power_limit_w"].to_list()}
    for name in ("time", "energy", "cost"):
        values = frame[{"time": "time_s", "energy": "energy_j"}.get(name, name)].to_numpy()
        finite = values[np.isfinite(values)]
        whole = values[-1] if np.isfinite(values[-1]) and values[-1] > 0 else finite.max(initial=1.0)
        columns[name] = [float(value / whole) if np.isfinite(value) else None for value in values]
    return columns, int(np.flatnonzero(frame["best"].to_numpy())[0])


def _ranges(
    believed: Columns, rows: Columns, default: dict[str, float] | None, profile: Columns
) -> dict[str, tuple[float, float]]:
    middles = _known(believed, "middle")
    top = min(max(_known(believed, "high"), default=1.0), TALLEST * min(middles, default=1.0))
    tallest = max([*_known(rows, "cost"), default["high"] if default else 0.0], default=0.0) or 1.0
    saved = _known(rows, "saved_low", "saved_high") or [0.0, 1.0]
    room = 0.08 * ((max(saved) - min(saved)) or 1.0)
    shares = _known(profile, "time", "energy", "cost") or [0.0, 1.0]
    return {
        "believed": (0.0, 1.18 * top), "cost": (0.0, 1.1 * tallest),
        "saved": (min(min(saved), 0.0) - room, max(max(saved), 0.0) + room),
        "profile": (0.95 * min(shares), 1.12 * max(shares)),
    }


def _known(columns: Columns, *names: str) -> list[float]:
    return [value for name in names for value in columns.get(name, ()) if value is not None]
