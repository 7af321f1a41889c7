"""What the panel of a tuner says: the state, the choice, what was spent and saved, the commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....logbook.quantities import format_change, format_seconds
from ....logbook.report import format_duration, format_energy
from ....search.tradeoff import Z95
from ....tuning.results import OBJECTIVES

if TYPE_CHECKING:
    from ....search.clocks.make import Choice
    from ....tuning.results import TuningView

# The three states that a person cares about, and those of the tuner that each stands for.
STEPS = ("measuring", "searching", "holding")
STEP_OF = {
    "wait": 0, "detect": 0, "baseline": 0, "search": 1, "hold": 2, "watch": 2,
}
ENDED = ("done", "refused")
MOST_EVENTS = 4
# Where the period is from.
FOUND = {"marks": " (marked)", "power": " (from the power)", "counter": " (your counter)"}


@dataclass(frozen=True)
class TuningText:
    """What is said of a tuner.

    Attributes:
        state: The tuner's, in one word; `step` is its place in `STEPS`, None where it is in none of them.
        headline: What goes on, and what is next.
        details: What is chosen, what was spent, what was found; a sentence each.
        saved: What was saved; empty while nothing is known.
        events: Seconds and words, newest last.
        objective, objective_text: What is to be small, by its name, and with the bound in words.
        bound: The allowed slowdown in per cent; None where any is.
        commands: What can be asked for now.
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
    """What there is to be said of a tuner."""
    return TuningText(
        tuning.state, STEP_OF.get(tuning.state), tuning.paused,
        headline(tuning), tuple(details(tuning)), saved_text(tuning), tuple(tuning.events[-MOST_EVENTS:]),
        tuning.objective, objective_text(tuning),
        None if tuning.max_slowdown is None else 100 * tuning.max_slowdown, commands(tuning),
    )


def commands(tuning: TuningView) -> dict[str, bool]:
    """What can be asked of the tuner in its state."""
    going = tuning.state not in ENDED
    known = going and tuning.state in ("search", "hold", "watch")
    return {
        "start": going and tuning.paused, "step": going, "pause": going and not tuning.paused, "hold": known,
        "stop": going, "change": going,
    }


def headline(tuning: TuningView) -> str:
    """What goes on and what is next; why not, where it was refused."""
    lines = f"not tuned: {tuning.refused}" if tuning.refused else tuning.text
    if tuning.paused and tuning.state not in ENDED and not lines.lower().startswith("paused"):
        lines = f"paused: {lines}"
    return lines[:1].upper() + lines[1:]


def objective_text(tuning: TuningView) -> str:
    """The objective with its bound, as a person says it."""
    bound = "however long it takes"
    if tuning.max_slowdown is not None:
        bound = f"at most {100 * tuning.max_slowdown:g} % slower"
    return f"objective: {OBJECTIVES.get(tuning.objective, tuning.objective)}, {bound}"


def details(tuning: TuningView) -> list[str]:
    """What is chosen, and what tuning has cost; a sentence each."""
    lines = []
    if tuning.choice is not None:
        lines.append(choice_text(tuning.choice, tuning))
    count = 0 if tuning.probes is None else sum(kind == "probe" for kind in tuning.probes["kind"])
    if tuning.spent_s:
        probes = f", {count} probe{'s' * (count != 1)}" if count else ""
        spent = f"{format_duration(tuning.spent_s)} and {format_energy(tuning.spent_j, None)}"
        lines.append(f"tuning has taken {spent} of the job{probes}")
    if tuning.period_s is not None:
        takes = format_seconds(tuning.period_s, tuning.period_uncertainty_s or None)
        lines.append(f"an iteration takes {takes}{FOUND.get(tuning.period_source, '')}")
    elif tuning.period_source == "rate":
        lines.append("no iterations were found; settings are compared by the rate of work")
    return lines


def choice_text(choice: Choice, tuning: TuningView) -> str:
    """What is chosen and what is known of it."""
    state = tuning.state
    first = "held" if state in ("hold", "watch") else "best so far" if state not in ENDED else "chosen"
    if choice.setting == tuning.reference:
        best = "nothing is known to be better within the bound"
        return f"{first}: the default setting ({choice.setting}); {best}"
    energy, time = (
        format_change(ratio - 1, Z95 * ratio * deviation or None)
        for ratio, deviation in ((choice.energy_ratio, choice.energy_sd), (choice.time_ratio, choice.time_sd))
    )
    predicted = "" if choice.measured else ", predicted"
    return f"{first}: {choice.setting}: energy {energy}, time {time}{predicted}"


def saved_text(tuning: TuningView) -> str:
    """What was saved, tuning included; empty while nothing is known."""
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
