"""Where the panel of a tuner has its view from: a tuner that is given, or whichever tunes in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ....errors import UsageError

if TYPE_CHECKING:
    from ....tuning.api import Tuning
    from ....tuning.results import TuningView


class Tunable(Protocol):
    """What the panel asks of a tuner; `tuning.state_machine.Tuner` does it. Everything may be called from
    any thread and returns at once.
    """

    def view(self) -> TuningView: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step_once(self) -> None: ...
    def hold_here(self) -> None: ...
    def stop(self) -> None: ...
    def change(self, *, objective: str | None = None, max_slowdown: float | None = None) -> None: ...


class TunerSource(Protocol):
    """A tuner, or the lack of one."""

    given: bool  # it was given, and no other takes its place

    @property
    def tuner(self) -> Tunable | None:
        """The one to look at; None where nothing is tuned."""
        ...

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        """Tune what this process runs on the GPU from now on."""
        ...


class GivenTuner:
    """One tuner, to its end. It begins and ends with what it tunes."""

    given = True

    def __init__(self, tuner: Tunable) -> None:
        self.tuner: Tunable | None = tuner

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        raise UsageError(
            "this tuning is over; run the cell again, or tune what this kernel runs on the GPU: "
            "workbench.panels.clocks()"
        )


class LatestTuner:
    """The tuner that was begun last in this process, by a cell, a script or from here, also when it has
    ended.
    """

    given = False

    def __init__(self) -> None:
        self._own: Tuning | None = None  # begun from here

    @property
    def tuner(self) -> Tunable | None:
        from ....tuning.state_machine import latest

        return latest()

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        from ....tuning import api, state_machine

        if state_machine.running():
            raise UsageError("something is being tuned already; stop that first, or let it end")
        self._own = api.tune(max_slowdown, objective=objective or "energy").begin()

    def end(self) -> None:
        """End what was begun from here."""
        own, self._own = self._own, None
        if own is not None:
            own.end()


def objectives() -> Mapping[str, str]:
    """Names of the objectives that can be chosen, and what they are in words."""
    from ....tuning.results import OBJECTIVES

    return OBJECTIVES


def source(what: Any) -> TunerSource:
    """Of a tuner, of what `workbench.tune` returns, or of None.

    Raises:
        UsageError: none of these.
    """
    if what is None:
        return LatestTuner()
    tuner = getattr(what, "tuner", what)
    if not callable(getattr(tuner, "view", None)) or not callable(getattr(tuner, "change", None)):
        raise UsageError(
            f"a tuner can be looked at, or what workbench.tune() returns, not {type(what).__name__}"
        )
    return GivenTuner(tuner)
