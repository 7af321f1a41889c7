"""Who calls a tuner's `advance`: a thread next to the cell, or a stepped clock as it moves."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._processes import interrupts_later

if TYPE_CHECKING:
    from .state_machine import Tuner


GRACE_S = 0.5  # for the hooks of a cell that is over
CELL = "run_cell"  # IPython's function, in the stack of the thread that a cell runs in


def cell_over() -> Callable[[], bool]:
    """Whether the cell or task that asks now is over: an interrupt in IPython's own code, between two hooks
    of a cell, calls none of them.
    """
    thread = threading.get_ident()

    def out_of_stack() -> bool:
        stack = traceback.walk_stack(sys._current_frames().get(thread))
        return not any(frame.f_code.co_name == CELL for frame, _ in stack)

    if not out_of_stack():
        return out_of_stack
    try:
        return asyncio.current_task().done  # type: ignore[union-attr]
    except (RuntimeError, AttributeError):  # neither a cell nor a task
        return bool


class TunerThread:
    """Advances a tuner until `end`, which also ends the tuner; on a stepped clock as the clock moves.

    Args:
        tuner: The tuner.
        over: Whether the tuned job is over without a call of `end`; the thread then ends the tuner.
    """

    def __init__(self, tuner: Tuner, over: Callable[[], bool] = bool) -> None:
        self.tuner, self.over = tuner, over
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: Any = None
        clock: Any = tuner.clock
        if getattr(clock, "stepped", False):
            alive, last_s = weakref.ref(tuner), [float("-inf")]

            def listener(target_s: float) -> None:
                tuner = alive()
                if tuner is not None and clock() >= last_s[0] + tuner.pace_s - 1e-9:
                    last_s[0] = clock()
                    tuner.advance()

            clock.on_step.append(listener)
            self._listener = listener
        else:
            thread = threading.Thread(target=self._run, name="energy-tuner", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:  # none is left
                tuner.refuse(str(error))

    def _run(self) -> None:
        scale = float(getattr(self.tuner.clock, "scale", 1.0))
        while not self._stop.wait(max(self.tuner.pace_s / scale, 0.002)):
            if self.over() and not self._stop.wait(GRACE_S) and self.over():
                self.tuner.end()
            self.tuner.advance()
            if self.tuner.ended:
                return

    def end(self) -> None:
        """No more steps, and the GPU as it was. May be called again."""
        clock: Any = self.tuner.clock
        with interrupts_later():
            self._stop.set()  # an event that is interrupted keeps its lock for ever
            self.tuner.end()
            if self._listener is not None:
                if self._listener in clock.on_step:
                    clock.on_step.remove(self._listener)
                self._listener = None
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(timeout=2.0)
