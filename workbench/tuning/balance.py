"""Lower clocks for GPUs that wait for the slowest GPU of their job.

Work at a clock f' below f takes at most f / f' times as long. A GPU that waits for `wait_s` of an iteration
may therefore run at f (1 - wait_s / iteration_s). It is then not the last at the synchronisation, and the
iteration takes as long as before. Perseus (SOSP'24, section 3) saves energy on stages of a pipeline in this
way. Work that does not follow the clock leaves some waiting, which the next look finds. Arrivals vary from
iteration to iteration, so one standard deviation of an iteration's length stays unused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..jobs.records import JobWaiting
from ..jobs.waiting import waiting
from ..measurement.process_marks import of_children, synchronous
from ..measurement.recorder import as_trace
from ..records import Setting
from .arrival import LONGEST_S
from .gpus import TunedGpus

FIRST_CHANGE_S = 20.0  # at a setting, until clocks of GPUs that wait are reduced


def reduced_clocks(
    found: JobWaiting, clocks_mhz: Sequence[int], now_mhz: Mapping[str, int]
) -> dict[str, int]:
    """The SM clock (MHz) of each GPU that can run slower without being the last.

    Args:
        found: Work and waiting of each GPU; an unknown wait or one within its uncertainty changes nothing.
        clocks_mhz: The clocks that can be set.
        now_mhz: The clocks that GPUs, by UUID, have already been reduced to.
    """
    reduced = dict(now_mhz)
    varies_s = found.iteration_uncertainty_s / 1.96 * math.sqrt(found.count)
    for gpu in found.gpus if found.known else ():
        slack_s = (gpu.wait_s or 0.0) - (gpu.wait_uncertainty_s or 0.0) - varies_s
        clock_mhz = now_mhz.get(gpu.uuid, gpu.sm_clock_mhz)
        if slack_s <= 0 or not clock_mhz:
            continue
        least_mhz = clock_mhz * (1.0 - slack_s / found.iteration_s)
        able = [each for each in clocks_mhz if least_mhz <= each < clock_mhz]
        if able:
            reduced[gpu.uuid] = min(able)
    return reduced


class Balance:
    """Reduces the clocks of GPUs that wait, and restores them if the job becomes slower.

    Args:
        gpus: The GPUs of the job.
        ends: Returns the ends of the iterations between two times.
        note: Receives a sentence about each change.
    """

    def __init__(
        self, gpus: TunedGpus, ends: Callable[[float, float], Any], note: Callable[[str], None]
    ) -> None:
        self._gpus, self._ends, self._note = gpus, ends, note
        self._setting: Setting | None = None  # that is looked at, since a time
        self._from_s = self._due_s = math.inf
        self._before: JobWaiting | None = None  # the last change, and the clocks before it
        self._clocks_mhz: dict[str, int] = {}
        self._ended: set[Setting] = set()  # settings with nothing left to reduce

    def change(self, now_s: float) -> dict[str, int] | None:
        """New clocks of GPUs at the present setting; None for no change. At the default setting nothing is
        changed, because all savings are relative to it.
        """
        setting = self._gpus.current
        if len(self._gpus.devices) < 2 or setting == Setting() or setting in self._ended:
            return None
        if setting != self._setting:
            self._restart(now_s)
        if now_s < self._due_s:
            return None
        found = self._waiting(now_s)
        if found is None or not found.known:
            self._due_s = now_s + (now_s - self._from_s)  # twice as much data
            return None
        before, self._before = self._before, found
        now_mhz = self._gpus.reductions.get(setting, {})
        if before is not None and found.iteration_s - before.iteration_s > math.hypot(
            found.iteration_uncertainty_s, before.iteration_uncertainty_s
        ):
            self._ended.add(setting)
            self._note("the job became slower: the last change of clocks is taken back")
            return self._clocks_mhz
        wanted = reduced_clocks(found, self._gpus.sm_clocks_mhz(setting), now_mhz)
        if wanted == now_mhz:
            self._ended.add(setting)
            return None
        names = ", ".join(f"GPU {gpu.index} at {wanted[gpu.uuid]} MHz" for gpu in found.gpus
                          if wanted.get(gpu.uuid) != now_mhz.get(gpu.uuid))
        self._note(f"lower clocks for GPUs that wait: {names}")
        self._restart(now_s)
        self._clocks_mhz = dict(now_mhz)
        return wanted

    def moved(self, now_s: float) -> None:
        """Begin a new look: another setting was put."""
        self._restart(now_s)

    def _restart(self, now_s: float) -> None:
        self._setting = self._gpus.current
        self._from_s = now_s + LONGEST_S
        self._due_s = self._from_s + FIRST_CHANGE_S
        if self._setting not in self._gpus.reductions:
            self._before = None

    def _waiting(self, now_s: float) -> JobWaiting | None:
        ends_s = np.asarray(self._ends(self._from_s, now_s))
        if len(ends_s) < 2:
            return None
        recorder, devices = self._gpus.recorder, self._gpus.devices
        if not synchronous(of_children(devices[0].clock, self._from_s, now_s)):
            return None
        traces = {each.uuid: as_trace(recorder.rows(each.uuid, self._from_s, now_s)) for each in devices}
        return waiting(
            traces, ends_s.tolist(), indices={each.uuid: each.index for each in devices},
            windows_s={each.uuid: each.power_window_s for each in devices},
        )
