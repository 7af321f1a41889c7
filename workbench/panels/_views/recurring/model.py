"""Content of the panel of a recurring job, as words and rows, live and in the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ....experiments.history.attempts import Attempt
from ....experiments.history.outlook import Default, Outlook
from ....logbook.quantities import format_change
from ....search.batch_size.history import MOST_RUNS
from ....search.objective import Energy, EnergyDelay, EnergyWithin, Objective, Time, ZeusCost
from ..._core.prefixes import prefixed

MOST_ROWS = 600  # drawn recurrences: any number from 300 to 2000 looks the same
SAVED = ("saved", "saved_low", "saved_high")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RecurringView:
    """Words and rows of the drawing; costs are divided by a power of 1000 that `unit` names.

    Attributes:
        headline, details: The running or next recurrence; cost and saving, excluded batch sizes with reasons.
        eta: Weight of energy in Zeus' cost; None under another objective.
        believed: One row per batch size, as in `Outlook.believed`.
        recurrences: Rows of `Outlook.recurrences`.
        profile: Rows power_limit_w, and time, energy, cost as shares of those at the highest limit.
    """

    outlook: Outlook
    headline: str
    details: tuple[str, ...]
    eta: float | None
    objective: str
    unit: str
    saved_unit: str
    believed: Rows
    recurrences: Rows
    default: dict[str, float] | None
    profile: Rows


def view(outlook: Outlook, running: Sequence[Attempt] = ()) -> RecurringView:
    """The view of an outlook; `running` are the attempts that have not ended."""
    rows, default, kind = outlook.recurrences, outlook.default, unit_of(outlook.objective)
    costs = pl.concat([outlook.believed["cost"], rows["cost"].cast(pl.Float64)]).drop_nulls().to_list()
    scale, unit = prefixed(float(np.median(costs)) if costs else 1.0, kind)
    keep = np.linspace(0, rows.height - 1, min(rows.height, MOST_ROWS)).round().astype(int)
    saved = rows["saved"].fill_nan(0.0).abs().max() if "saved" in rows.columns else None
    saved_scale, saved_unit = prefixed(float(saved or 0.0), kind)  # type: ignore[arg-type]
    drawn = _scaled(rows[np.unique(keep).tolist()], scale, "cost")
    about = None
    if default is not None:
        about = {name: getattr(default, name) / scale for name in ("cost", "low", "high")}
    return RecurringView(
        outlook, headline(outlook, running), tuple(details(outlook)),
        outlook.objective.eta if isinstance(outlook.objective, ZeusCost) else None,
        objective_text(outlook.objective), unit, saved_unit,
        _scaled(outlook.believed, scale, "cost", "low", "high").to_dicts(),
        _scaled(drawn, saved_scale, *(name for name in SAVED if name in rows.columns)).to_dicts(),
        about, _profile(outlook.profile),
    )


# words


def headline(outlook: Outlook, running: Sequence[Attempt]) -> str:
    """The running recurrence, or the next one."""
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
    """Cost, saving and notes; a sentence each."""
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
        sentences.append(f"the job has changed {times}; estimates describe its present state")
    return sentences


def _lost(rows: pl.DataFrame, kind: str) -> list[str]:
    """The cost of recurrences that ended without the target."""
    gone = rows.filter(rows["lost"])
    if not gone.height:
        return []
    price, numbers = amount(float(gone["cost"].sum()), kind), _listed(gone["recurrence"].to_list())
    return [
        f"lost: recurrence{'s' * (gone.height > 1)} {numbers}; {MOST_RUNS} runs each did not reach the "
        f"target and cost {price} in total"
    ]


def _listed(numbers: list[int]) -> str:
    """The first few numbers, and the count of the others."""
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown


def _against(outlook: Outlook, default: Default, kind: str) -> list[str]:
    """The saving against the default, in per cent and in total; a notice if it is unknown."""
    counted = outlook.recurrences.filter(outlook.recurrences["saved"].is_not_nan())
    what = f"the default (batch size {default.batch_size}{_at(default.power_limit_w)})"
    since = f"since recurrence {outlook.since}, when the job changed: " * (outlook.since > 1)
    if not counted["reached"].any():
        return [f"{since}no recurrence has reached the target yet, so the saving is unknown"]
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
    """An objective in words."""
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


# rows


def _scaled(frame: pl.DataFrame, scale: float, *names: str) -> pl.DataFrame:
    """A frame with some columns divided; values that are not finite become null."""
    return frame.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name) / scale) for name in names)


def _profile(frame: pl.DataFrame) -> Rows:
    if frame.height < 2:  # one point is no curve
        return []
    named = frame.select("power_limit_w", "cost", "best", time="time_s", energy="energy_j")
    for name in ("time", "energy", "cost"):
        known = named[name].filter(named[name].is_finite() & (named[name] > 0))
        named = _scaled(named, known[-1] if len(known) else 1.0, name)
    return named.to_dicts()


def known(rows: Rows, *names: str) -> list[float]:
    """The values of some columns that are not null."""
    return [row[name] for name in names for row in rows if row.get(name) is not None]
