"""Sources of the tuner's panel: a given tuner, or the newest one of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....errors import UsageError

if TYPE_CHECKING:
    from ....tuning import Tuner, Tuning


class GivenTuner:
    """One tuner, to its end. It begins and ends with the tuned work."""

    given = True  # no other takes its place

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        raise UsageError(
            "this tuning has ended; run the cell again, or tune this kernel's GPU work with "
            "workbench.panels.clocks()"
        )


class LatestTuner:
    """The tuner that was started last in this process, even after its end."""

    given = False

    def __init__(self) -> None:
        self._own: Tuning | None = None  # started by this panel

    @property
    def tuner(self) -> Tuner | None:
        """The newest tuner; None before the first."""
        from ....tuning import latest

        return latest()

    def begin(self, objective: str | None, max_slowdown: float | None) -> None:
        """Tune the GPU work of this process from now on."""
        from ....tuning import running, tune

        if running():
            raise UsageError("a tuner is already running; stop it first, or wait for its end")
        self._own = tune(max_slowdown, objective=objective or "energy").begin()

    def end(self) -> None:
        """End the tuning that this panel started."""
        own, self._own = self._own, None
        if own is not None:
            own.end()


TunerSource = GivenTuner | LatestTuner


def source(what: Any) -> TunerSource:
    """The source for a tuner, a result of `workbench.tune` or None. Raises UsageError for other objects."""
    if what is None:
        return LatestTuner()
    tuner = getattr(what, "tuner", what)
    if not callable(getattr(tuner, "view", None)) or not callable(getattr(tuner, "change", None)):
        kind = type(what).__name__
        raise UsageError(f"expected a tuner or the result of workbench.tune(), got {kind}")
    return GivenTuner(tuner)
