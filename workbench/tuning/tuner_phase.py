"""What every state of a tuner has, and the two states that are not work: interrupted and finished."""

from __future__ import annotations

from ..records import Setting
from .tuned_job import TunedJob, Workplace


class TunerPhase:
    """A state of the tuner.

    Attributes:
        state: Its name, as `TuningView.state`.
        stops_idle: Whether nothing can be done in it while the GPUs are idle.
        work: The GPUs that are tuned; None before any has worked.
        job: The work that is tuned; None before its clocks are known.
    """

    state = ""
    stops_idle = True
    work: Workplace | None = None
    job: TunedJob | None = None

    def step(self, now_s: float) -> TunerPhase:
        """Do the next short thing; returns the state that is true now."""
        return self

    def resume(self, now_s: float, *, crowded: bool) -> TunerPhase:
        """Go on after an interruption, in which others may have used the GPUs."""
        return self

    def leave(self) -> TunerPhase:
        """Give up the current step; returns the state to go on from."""
        return self

    def cut(self, to_s: float) -> None:
        """Put everything until a time on the account, and nothing after it."""

    def conclude(self, now_s: float) -> None:
        """Put everything that was measured until now on the account."""

    def close(self) -> None:
        """Release its sources."""


class Interrupted(TunerPhase):
    """Others use the GPUs, or these are idle: the current step waits, and nothing is counted.

    Attributes:
        text: Why, one sentence.
        crowded: Whether others have used the GPUs, which are at the default setting then.
    """

    work: Workplace

    def __init__(self, phase: TunerPhase, work: Workplace) -> None:
        self.work, self.text, self.crowded = work, "", False
        self.go_on_with(phase)
        work.log.ledger.pause()

    def go_on_with(self, phase: TunerPhase) -> None:
        """Set the next state."""
        self.phase = phase
        self.state, self.job = phase.state, phase.job

    def step(self, now_s: float) -> TunerPhase:
        work, before = self.work, self.text
        if work.company.observe(now_s):
            self.text = f"{work.company.text}: tuning waits until they are gone"
            if not self.crowded:
                self.crowded = True
                work.log.note(work.company.text)
                work.gpus.put(Setting())
            return self
        if self.phase.stops_idle and work.idle_s(now_s) > 0.0:
            self.text = "the GPU is idle: tuning waits until it works again"
            if self.text != before:
                work.log.note("the GPU is idle")
            return self
        work.log.note("the GPU is this job's alone again" if self.crowded else "the GPU works again")
        return self.phase.resume(now_s, crowded=self.crowded)

    def leave(self) -> TunerPhase:
        return self.phase

    def conclude(self, now_s: float) -> None:
        self.phase.conclude(now_s)

    def close(self) -> None:
        self.phase.close()


class Finished(TunerPhase):
    """The tuner has ended: "done" where it was reported to, "refused" where it could not go on.

    Attributes:
        was: The state that it was in then; "refused" where it was refused.
        reason: Why it was refused.
    """

    def __init__(self, last: TunerPhase, reason: str = "") -> None:
        self.state, self.reason = "refused" if reason else "done", reason
        self.was = "refused" if reason else last.state
        self.work, self.job = last.work, last.job

    @property
    def text(self) -> str:
        """One sentence: how it ended."""
        return f"not tuned: {self.reason}" if self.reason else "tuning has ended"
