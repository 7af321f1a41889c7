"""The view of a running tuner, and its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from .._html import HtmlFacts
from ..logbook.report import format_duration, format_energy
from ..records import Setting
from ..search.objective import OBJECTIVES

if TYPE_CHECKING:
    from ..search.clocks.knowledge import Choice

__all__ = ["OBJECTIVES", "PROBES", "Saved", "TuningResult", "TuningView"]

PROBES = pl.Schema({
    "power_limit_w": pl.Float64, "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64, "iterations": pl.Int64,
    "time_s": pl.Float64, "energy_j": pl.Float64, "energy_uncertainty_j": pl.Float64,
    "time_ratio": pl.Float64, "energy_ratio": pl.Float64, "time_sd": pl.Float64, "energy_sd": pl.Float64,
    "kind": pl.String, "outcome": pl.String, "reason": pl.String, "at_s": pl.Float64, "cost_s": pl.Float64,
    "cost_j": pl.Float64,
})
COUNTED = 0.8  # of the time, from which on a saving is taken to be of the whole job


@dataclass(frozen=True)
class Saved(HtmlFacts):
    """What tuning has saved so far, all of tuning included; 95 % half widths.

    The saving is the energy of the counted iterations at the default setting, less their actual energy. Time
    that belongs to no iteration (evaluations, pauses, time before the baseline) is on neither side.

    Attributes:
        energy_j: Saved; below zero where tuning has cost more than it gave.
        share: Of what the same iterations would have taken.
        slowdown: Time of the counted iterations over their time at the default, less 1.
        iterations, time_s: How many are counted, and the time that they took.
    """

    energy_j: float
    uncertainty_j: float
    share: float
    share_uncertainty: float
    slowdown: float
    slowdown_uncertainty: float
    iterations: float
    time_s: float = 0.0


@dataclass(frozen=True)
class TuningView(HtmlFacts):
    """A tuner at one moment. Frozen, and cheap to make.

    Attributes:
        state: "wait", "detect", "baseline", "search", "hold", "done" or "refused".
        text: What goes on and what is next, one sentence.
        paused: Whether the tuner waits to be resumed.
        belief: The expected time and energy of every setting; None before any was measured.
        trials: One row per trial, in order (`PROBES`); ratios are to the baseline, `cost_s` and `cost_j` its
            total time and energy.
        choice: The held setting; before one is held, the best known. None where the job ended before.
        why: Why it is that, from the numbers of `choice`; one sentence.
        current: The current setting of the GPU.
        period_s: Length of an iteration at the default setting, 95 % half width `period_uncertainty_s`.
        period_source: "marks", "power", "counter", "clocks" (the clocks alone keep the limit) or empty.
        iterations: Counted since the tuner began.
        spent_s, spent_j: Time and energy of tuning itself: waits, trials and baselines.
        saved: The saving so far; None before any stretch has a baseline.
        settled_s, settled_iterations: When a setting was first held, since the tuner began.
        held_since_s: When the held setting was found.
        events: (seconds since the tuner began, words), newest last.
        refused: Why not, where the state is "refused".
    """

    state: str
    text: str
    paused: bool = False
    label: str = ""
    gpu: str = ""
    uuid: str = ""
    index: int = 0
    simulated: bool = False
    over: str = "both"
    objective: str = "energy"
    max_slowdown: float | None = None
    reference: Setting = field(default_factory=Setting)
    current: Setting = field(default_factory=Setting)
    choice: Choice | None = None
    why: str = ""
    belief: pl.DataFrame | None = None
    trials: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PROBES))
    period_s: float | None = None
    period_uncertainty_s: float | None = None
    period_source: str = ""
    elapsed_s: float = 0.0
    iterations: int = 0
    spent_s: float = 0.0
    spent_j: float = 0.0
    saved: Saved | None = None
    settled_s: float | None = None
    settled_iterations: int | None = None
    held_since_s: float | None = None
    events: tuple[tuple[float, str], ...] = ()
    refused: str = ""
    model: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.text}"


@dataclass(frozen=True)
class TuningResult(HtmlFacts):
    """Result of a tuning: setting, saving and why it ended.

    Attributes:
        state: In which state it was when the job ended.
        setting: The last held setting; None if there was none.
        saved: See `Saved`; None where no baseline was measured.
        settled_s, settled_iterations: Until a setting was first held.
        held_since_s: Until `setting` was found: later, where it is not the first.
        trials: How many were made, baselines and re-checks included.
        spent_s, spent_j: Time and energy of tuning itself, with its re-checks after the setting was found.
        retuned: How often the job had changed.
        reason: Why it was refused, or where it stood.
        not_restored: Sentences about settings that could not be restored.
        notes: Sentences about limitations: a knob that may not be set, a model that
            could not be used.
    """

    state: str
    setting: Setting | None = None
    saved: Saved | None = None
    settled_s: float | None = None
    settled_iterations: int | None = None
    source: str = ""
    trials: int = 0
    spent_s: float = 0.0
    spent_j: float = 0.0
    retuned: int = 0
    elapsed_s: float = 0.0
    reason: str = ""
    not_restored: tuple[str, ...] = ()
    events: tuple[tuple[float, str], ...] = ()
    notes: tuple[str, ...] = ()
    simulated: bool = False
    held_since_s: float | None = None

    @property
    def text(self) -> str:
        """What tuning has saved, or why it has not: one sentence."""
        left = "".join(f"; {each}" for each in (*self.notes, *self.not_restored) if each not in self.reason)
        saved, refused = self.saved, self.state == "refused"
        if self.settled_s is None or (refused and saved is None):
            return f"not tuned: {self.reason or 'no setting was found in time'}{left}"
        settled = f"setting found after {format_duration(self.settled_s)}"
        if self.settled_iterations:
            settled += f" / {self.settled_iterations} iterations"
        if self.setting is not None:
            last_s = self.held_since_s or self.settled_s
            later = f", the last one after {format_duration(last_s)}" * (last_s > self.settled_s)
            settled += f"{later}: {self.setting}"
        settled += f"; tuning took {format_duration(self.spent_s)} in all"
        if self.retuned:
            settled += f"; the job changed {'once' if self.retuned == 1 else f'{self.retuned} times'}"
        if refused:
            settled += f"; ended early: {self.reason}"
        if saved is None:
            return f"tuned, saving not measured; {settled}{left}"
        share, error = f"{abs(100 * saved.share):.1f}", f"{100 * saved.share_uncertainty:.1f}"
        what = f"saved {share} ± {error} %" if saved.share > 0 else f"spent {share} ± {error} % more"
        if abs(saved.share) <= saved.share_uncertainty:
            what = "no measurable saving"
        joules = f", {format_energy(saved.energy_j, saved.uncertainty_j)}" if what.startswith("saved") else ""
        if 0.0 < saved.time_s < COUNTED * self.elapsed_s:  # the share is of that alone
            counted_s, whole_s = format_duration(saved.time_s), format_duration(self.elapsed_s)
            joules += f", counted over {counted_s} of {whole_s}"
        bound = ", estimated from the clocks" if self.source == "clocks" else ""
        slowdown = f"{100 * saved.slowdown:.1f} ± {100 * saved.slowdown_uncertainty:.1f} % slowdown{bound}"
        ending = ", simulated" if self.simulated else ""
        return f"{what} (tuning included{joules}) at {slowdown}; {settled}{ending}{left}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__
