"""Where the panel of a tuner has its view from: a tuner that is given, or whichever tunes in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....errors import UsageError

if TYPE_CHECKING:
    from ....tuning.api import Tuning
    from ....tuning.state_machine import Tuner


class GivenTuner:
    """One tuner, to its end. It begins and ends with what it tunes."""

    given = True  # no other takes its place

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        raise UsageError(
            "this tuning is over; run the cell again, or tune what this kernel runs on the GPU: "
            "workbench.panels.clocks()"
        )


class LatestTuner:
    """The tuner that was begun last in this process, also when it has ended."""

    given = False

    def __init__(self) -> None:
        self._own: Tuning | None = None  # begun from here

    @property
    def tuner(self) -> Tuner | None:
        """None where nothing is tuned."""
        from ....tuning.state_machine import latest

        return latest()

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        """Tune what this process runs on the GPU from now on."""
        from ....tuning import api, state_machine

        if state_machine.running():
            raise UsageError("something is being tuned already; stop that first, or let it end")
        self._own = api.tune(max_slowdown, objective=objective or "energy").begin()

    def end(self) -> None:
        """End what was begun from here."""
        own, self._own = self._own, None
        if own is not None:
            own.end()


TunerSource = GivenTuner | LatestTuner


def source(what: Any) -> TunerSource:
    """Raises UsageError where `what` is neither a tuner, what `workbench.tune` returns, nor None."""
    if what is None:
        return LatestTuner()
    tuner = getattr(what, "tuner", what)
    if not callable(getattr(tuner, "view", None)) or not callable(getattr(tuner, "change", None)):
        kind = type(what).__name__
        raise UsageError(f"a tuner can be looked at, or what workbench.tune() returns, not {kind}")
    return GivenTuner(tuner)
