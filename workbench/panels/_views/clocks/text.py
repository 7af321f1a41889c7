"""What the panel of a tuner says: the state, the choice, what was spent and saved, what can be asked for
now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....measurement.report import format_duration, format_energy
from ..._core.words import percent, period
from .surface import SURE

if TYPE_CHECKING:
    from ....search.clocks.make import Choice
    from ....tuning.results import TuningView

STEPS = (
    "wait", "detect", "features", "baseline", "predict", "search", "hold", "watch",
)  # the way through; "re-tune" goes back
ENDED = ("done", "refused")
MOST_EVENTS = 4


@dataclass(frozen=True)
class Words:
    """What is said of a tuner.

    Attributes:
        state: The tuner's, in one word; `step` is its place in `STEPS`, None where it is in none of them.
        headline: What goes on, and what is next.
        details: What is chosen, what was spent, what was found; a sentence each.
        saved: What was saved; empty while nothing is known.
        events: Seconds and words, newest last.
        objective, objective_words: What is to be small, by its name, and with the bound in words.
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
    objective_words: str
    bound: float | None
    commands: dict[str, bool]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it, the weightiest first."""
        return (self.headline, *([self.saved] if self.saved else []), *self.details, self.objective_words)


def words(tuning: TuningView, objectives: Mapping[str, str]) -> Words:
    """What there is to be said.

    Args:
        tuning: What the tuner tells of itself.
        objectives: Names of objectives, and what they are in words.
    """
    return Words(
        tuning.state, STEPS.index(tuning.state) if tuning.state in STEPS else None, tuning.paused,
        headline(tuning), tuple(details(tuning)), saved_words(tuning), tuple(tuning.events[-MOST_EVENTS:]),
        tuning.objective, objective_words(tuning, objectives),
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
    said = f"not tuned: {tuning.refused}" if tuning.refused else tuning.words
    if tuning.paused and tuning.state not in ENDED and not said.lower().startswith("paused"):
        said = f"paused: {said}"
    return said[:1].upper() + said[1:]


def objective_words(tuning: TuningView, objectives: Mapping[str, str]) -> str:
    """The objective with its bound, as a person says it."""
    words = objectives.get(tuning.objective, tuning.objective)
    bound = (
        "however long it takes"
        if tuning.max_slowdown is None
        else f"at most {100 * tuning.max_slowdown:g} % slower"
    )
    return f"objective: {words}, {bound}"


def details(tuning: TuningView) -> list[str]:
    """What is chosen, and what tuning has cost; a sentence each."""
    said = []
    if tuning.choice is not None:
        said.append(choice_words(tuning.choice, tuning))
    count = 0 if tuning.probes is None else sum(kind == "probe" for kind in tuning.probes["kind"])
    if tuning.spent_s:
        probes = f", {count} probe{'s' * (count != 1)}" if count else ""
        said.append(
            f"tuning has taken {format_duration(tuning.spent_s)} and {format_energy(tuning.spent_j, None)} "
            f"of the job{probes}"
        )
    if tuning.period_s is not None:
        found = {"marks": " (marked)", "power": " (from the power)", "counter": " (your counter)"}.get(
            tuning.period_source, ""
        )
        takes = period(tuning.period_s, tuning.period_uncertainty_s or None)
        said.append(f"an iteration takes {takes}{found}")
    elif tuning.period_source == "rate":
        said.append("no iterations were found; settings are compared by the rate of work")
    return said


def choice_words(choice: Choice, tuning: TuningView) -> str:
    """What is chosen and what is known of it."""
    state = tuning.state
    first = "held" if state in ("hold", "watch") else "best so far" if state not in ENDED else "chosen"
    if choice.setting == tuning.reference:
        return (
            f"{first}: the default setting ({choice.setting}); nothing is known to be better within the bound"
        )
    return f"{first}: {choice.setting}: {_change(choice)}{'' if choice.measured else ', predicted'}"


def _change(choice: Choice) -> str:
    energy, time = choice.energy_ratio, choice.time_ratio
    energy_error, time_error = SURE * energy * choice.energy_sd, SURE * time * choice.time_sd
    return f"energy {percent(energy - 1, energy_error or None)}, time {percent(time - 1, time_error or None)}"


def saved_words(tuning: TuningView) -> str:
    """What was saved, tuning included; empty while nothing is known."""
    saved = tuning.saved
    if saved is None:
        return ""
    joules = format_energy(abs(saved.energy_j), saved.uncertainty_j)
    error = f" ± {100 * saved.share_uncertainty:.1f}" if saved.share_uncertainty else ""
    verb, share = "saved" if saved.energy_j >= 0 else "spent more", f"{abs(100 * saved.share):.1f}{error} %"
    slower = f"{abs(100 * saved.slowdown):.1f} % {'slower' if saved.slowdown >= 0 else 'faster'}"
    return f"{joules} {verb} ({share}), {slower}, tuning included"



