"""The texts of the tuner's panel: the state, the choice, cost and saving, the commands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ....logbook.quantities import format_change, format_seconds
from ....logbook.report import format_duration, format_energy
from ....records import Setting
from ....search.tradeoff import Z95
from ....tuning import OBJECTIVES, TuningView

if TYPE_CHECKING:
    from ....search.clocks.knowledge import Choice

# The three states that a person sees, and the states of the tuner that each one includes.
STEPS = ("measuring", "searching", "holding")
STEP_OF = {
    "wait": 0, "detect": 0, "baseline": 0, "search": 1, "hold": 2,
}
ENDED = ("done", "refused")
MOST_EVENTS = 4
CHANGED = "the work has changed"  # an event
SAME = 0.001  # of the energy
# Source of the period.
FOUND = {"marks": " (from step())", "power": " (from the power trace)", "counter": " (from your counter)"}


@dataclass(frozen=True)
class TuningText:
    """The texts of a tuner.

    Attributes:
        state: The tuner's state in one word; `step` is its place in `STEPS`, None for other states.
        headline: The present action and the next one.
        details: The choice, the cost and the period; a sentence each.
        saved: The saving; empty while it is unknown.
        events: Seconds and words, newest last.
        objective, objective_text: The objective's name, and its text with the slowdown limit.
        bound: The slowdown limit in per cent; None for no limit.
        commands: Whether each command is possible now.
    """

    state: str
    step: int | None
    paused: bool
    headline: str
    details: tuple[str, ...]
    saved: str
    events: tuple[tuple[float, str], ...]
    objective: str
    objective_text: str
    bound: float | None
    commands: dict[str, bool]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it, the weightiest first."""
        return (*([self.saved] if self.saved else []), self.headline, *self.details, self.objective_text)


def describe(tuning: TuningView) -> TuningText:
    """The texts of a tuner's view."""
    return TuningText(
        tuning.state, STEP_OF.get(tuning.state), tuning.paused,
        headline(tuning), tuple(details(tuning)), saved_text(tuning), tuple(tuning.events[-MOST_EVENTS:]),
        tuning.objective, objective_text(tuning),
        None if tuning.max_slowdown is None else 100 * tuning.max_slowdown, commands(tuning),
    )


def commands(tuning: TuningView) -> dict[str, bool]:
    """Whether each command is possible in the tuner's state."""
    going = tuning.state not in ENDED
    known = going and tuning.state in ("search", "hold")
    return {
        "start": going and tuning.paused, "step": going, "pause": going and not tuning.paused, "hold": known,
        "stop": going, "change": going,
    }


def headline(tuning: TuningView) -> str:
    """The present action and the next one; the reason if tuning was refused."""
    lines = f"not tuned: {tuning.refused}" if tuning.refused else tuning.text
    if tuning.state == "hold" and not tuning.paused and tuning.choice is not None:
        lines = f"holding {lines}"
    if tuning.paused and tuning.state not in ENDED and not lines.lower().startswith("paused"):
        lines = f"paused: {lines}"
    return lines[:1].upper() + lines[1:]


def objective_text(tuning: TuningView) -> str:
    """The objective with its slowdown limit in words."""
    bound = "without a slowdown limit"
    if tuning.max_slowdown is not None:
        bound = f"at most {100 * tuning.max_slowdown:g} % slower"
    return f"objective: {OBJECTIVES.get(tuning.objective, tuning.objective)}, {bound}"


def details(tuning: TuningView) -> list[str]:
    """The choice and the cost of tuning; a sentence each."""
    lines = []
    if tuning.choice is not None:
        lines.append(choice_text(tuning.choice, tuning))
        if tuning.why and tuning.state in ENDED and tuning.choice.setting != tuning.reference:
            lines.append(tuning.why.replace(f"{tuning.choice.setting}: ", "why: "))
        if rejected := rejected_text(tuning.choice, tuning):
            lines.append(rejected)
    count = 0 if tuning.trials is None else sum(kind == "probe" for kind in tuning.trials["kind"])
    if tuning.spent_s:
        probes = f", {count} trial{'s' * (count != 1)}" if count else ""
        spent = f"{format_duration(tuning.spent_s)} and {format_energy(tuning.spent_j, None)}"
        lines.append(f"tuning took {spent} of the job{probes}")
    if tuning.period_s is not None:
        takes = format_seconds(tuning.period_s, tuning.period_uncertainty_s or None)
        lines.append(f"an iteration takes {takes}{FOUND.get(tuning.period_source, '')}")
    elif tuning.period_source == "clocks":
        lines.append("no iterations found: the clocks alone keep the slowdown limit")
    return lines


def choice_text(choice: Choice, tuning: TuningView) -> str:
    """The choice with its measured or predicted change."""
    state = tuning.state
    first = "held" if state == "hold" else "best so far" if state not in ENDED else "chosen"
    if choice.setting == tuning.reference:
        best = "no better setting is known within the slowdown limit"
        return f"{first}: the default setting ({choice.setting}); {best}"
    energy, time = (
        format_change(ratio - 1, Z95 * ratio * deviation or None)
        for ratio, deviation in ((choice.energy_ratio, choice.energy_sd), (choice.time_ratio, choice.time_sd))
    )
    predicted = "" if choice.measured else ", predicted"
    return f"{first}: {choice.setting}: energy {energy}, time {time}{predicted}"


def rejected_text(choice: Choice, tuning: TuningView) -> str:
    """Why the trial with the least measured energy is not the choice; empty if it is, or before any trial."""
    measured = pl.col("energy_ratio").is_finite() & (pl.col("kind") == "probe")
    trials = tuning.trials.filter(measured & (pl.col("at_s") >= work_since_s(tuning))).sort("energy_ratio")
    if tuning.belief is None or trials.is_empty():
        return ""
    knobs = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
    setting = Setting(*trials.select(knobs).row(0))
    if setting == choice.setting:
        return ""
    least = format_change(trials["energy_ratio"][0] - 1, None)
    known = tuning.belief.filter(*(pl.col(knob).eq_missing(getattr(setting, knob)) for knob in knobs))
    if known.is_empty():
        return ""
    now = known.row(0, named=True)
    slower, error = 100 * (now["time_ratio"] - 1), 100 * Z95 * now["time_ratio"] * now["time_sd"]
    limit = math.inf if tuning.max_slowdown is None else 100 * tuning.max_slowdown
    if slower > limit:
        why = f"it is {slower:.1f} ± {error:.1f} % slower, and {limit:g} % are allowed"
    elif now["energy_ratio"] >= choice.energy_ratio - SAME:
        why = "all measurements together give it no less energy"
    elif slower + error > limit:
        why = f"it may be {slower + error:.1f} % slower, and {limit:g} % are allowed"
    elif tuning.objective != "energy":
        why = "it is more expensive by the objective"
    else:
        why = f"it may be {slower + error:.1f} % slower, and slow trials have used a part of the {limit:g} %"
    return f"least energy in a trial: {setting} ({least}), not chosen: {why}"


def work_since_s(tuning: TuningView) -> float:
    """When the present work began. Earlier trials measured other work."""
    return max((at_s for at_s, text in tuning.events if text == CHANGED), default=0.0)


def saved_text(tuning: TuningView) -> str:
    """The saving, tuning included; empty while it is unknown."""
    saved = tuning.saved
    if saved is None:
        return ""
    if abs(saved.energy_j) <= saved.uncertainty_j:
        return "no measurable saving, tuning included"
    joules = format_energy(abs(saved.energy_j), saved.uncertainty_j)
    error = f" ± {100 * saved.share_uncertainty:.1f}" if saved.share_uncertainty else ""
    verb, share = "saved" if saved.energy_j >= 0 else "spent more", f"{abs(100 * saved.share):.1f}{error} %"
    slower = f"{abs(100 * saved.slowdown):.1f} % {'slower' if saved.slowdown >= 0 else 'faster'}"
    return f"{joules} {verb} ({share}), {slower}, tuning included"
