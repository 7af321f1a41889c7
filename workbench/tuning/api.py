"""`workbench.tune`: a training tuned while it runs, in a script or a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .._processes import interrupts_later
from ..device.discovery import Gpus
from ..errors import Suggesting, UsageError, checked
from ..measurement import session
from ..search.objective import Objective, with_eta
from .driver import TunerThread, cell_over
from .options import TuningRequest
from .results import TuningResult, TuningView
from .state_machine import Tuner


class Tuning(Suggesting):
    """A context manager that tunes the training inside. `begin` and `end` do the same without a block.

    Attributes:
        tuner: The state machine; None before `begin`.
    """

    def __init__(self, gpus: Gpus = None, **options: Any) -> None:
        self._gpus, self._options = gpus, options
        self.tuner: Tuner | None = None
        self._driver: TunerThread | None = None

    def begin(self) -> Tuning:
        """Begin to tune the job on the GPU."""
        return self._begin()

    def _begin(self, *, own_thread: bool = False) -> Tuning:
        try:
            with interrupts_later():
                self._make(own_thread)
        except KeyboardInterrupt:
            if self._driver is not None:
                self._driver.end()
            raise
        return self

    def _make(self, own_thread: bool) -> None:
        if self._driver is not None:
            raise UsageError("this tuning has begun already; workbench.tune() makes another one")
        mine = session.current()
        uuids, meter = mine.uuids(self._gpus), mine.meter
        if uuids == ():
            raise UsageError("gpus=[] names no GPU to tune; leave it out for those that work")
        no_gpu = "" if meter.devices else mine.why_no_gpu()
        self.tuner = Tuner(meter, uuids=uuids, no_gpu=no_gpu, own_thread=own_thread, **self._options)
        self._driver = TunerThread(self.tuner, cell_over() if own_thread else bool)

    def end(self) -> TuningResult:
        """End it and restore the GPU. May be called again."""
        tuner = self._begun()
        if self._driver is not None:
            self._driver.end()
        return tuner.end()

    def _begun(self) -> Tuner:
        if self.tuner is None:
            raise UsageError("this tuning has not begun; use `with workbench.tune():`, or begin()")
        return self.tuner

    @property
    def result(self) -> TuningResult:
        """The result; during the tuning, the result as if it ended now."""
        return self._begun().result

    def __repr__(self) -> str:
        return f"Tuning: {'not begun' if self.tuner is None else self.result.text}"

    def _repr_html_(self) -> str | None:
        return None if self.tuner is None else self.result._repr_html_()

    def view(self) -> TuningView:
        """The current view."""
        return self._begun().view()

    def __enter__(self) -> Tuning:
        self._begin(own_thread=True)
        if refused := self._begun().refused:
            warnings.warn(f"not tuned: {refused}", RuntimeWarning, stacklevel=2)
        self._warned = bool(refused)
        return self

    def __exit__(self, kind: object, error: BaseException | None, *trace: object) -> None:
        try:
            result = self.end()
        except KeyboardInterrupt:  # it came before the end had begun
            self.end()
            raise
        if result.state == "refused" and error is None and not self._warned:
            warnings.warn(result.text, RuntimeWarning, stacklevel=2)


@checked
def tune(
    max_slowdown: float | None = 0.05, *, objective: str | float | Objective = "energy",
    eta: float | None = None, over: str = "both", gpus: Gpus = None,
    progress: Callable[[], float] | None = None, search: str = "model-guided",
    model: Any = None, label: str = "", recheck: bool = True,
    warm_start: bool = False,
) -> Tuning:
    """Tune the GPU's power limit and clocks to a training while it runs.

        with workbench.tune(max_slowdown=0.05) as tuning:
            for batch in loader:
                train(batch)
                workbench.step()          # optional: iterations that are reported need not be found
        print(tuning.result)

    Args:
        max_slowdown: Allowed share of additional time (0.05 is 5 %), 0..1; None for no limit.
        objective: What to minimise: a name ("energy", "edp", "ed2p", "zeus", "time"), Zeus' eta from 0 (time
            only) to 1 (energy only), or an objective of `workbench.search.objective`.
        eta: Zeus' weight of energy, 0 to 1, in place of an objective.
        over: The knobs to set: "power" limits, "clocks", "both", or "memory" for memory clocks too.
        gpus: Which GPUs, as `devices` takes them; those that work where None.
        progress: A counter of iterations for loops that cannot call `step`: returns a number that grows.
        search: "model-guided" (ours), or "gpoeo".
        model: For "gpoeo": a model of this GPU or its file; the user's own where None, False for none.
        label: For views; and the name of the job, by which the next run of it knows this one.
        recheck: Measure the default setting again from time to time, for an exact saving.
        warm_start: First try the best setting of earlier measurements of a job of this name (tuned, swept or
            recurring) on this GPU model. The events list them.

    Raises:
        UsageError: a bound, objective, search or knob that makes no sense; immediately, before anything runs.
    """
    options: dict[str, Any] = {
        "max_slowdown": max_slowdown, "objective": with_eta(objective, eta, "energy"), "over": over,
        "progress": progress, "search": search, "model": model, "label": label,
        "recheck": recheck, "warm_start": warm_start,
    }
    TuningRequest(**options)
    return Tuning(gpus, **options)
