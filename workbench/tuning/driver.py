"""Who calls a tuner's `advance`: a thread beside the cell, or a stepped clock as it moves."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from .._processes import interrupts_later

if TYPE_CHECKING:
    from .state_machine import Tuner


class TunerThread:
    """Advances a tuner until `end`, which also ends the tuner; on a stepped clock as the clock moves."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner = tuner
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
            self._thread = threading.Thread(target=self._run, name="energy-tuner", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        scale = float(getattr(self.tuner.clock, "scale", 1.0))
        while not self._stop.wait(max(self.tuner.pace_s / scale, 0.002)):
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
