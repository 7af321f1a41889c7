"""GPM, NVML's way to performance counters, of simulated GPUs: two samples of the counters, and what happened
between them (nvml.h).

Hopper and newer have it. Older cards say so in `nvmlGpmQueryDeviceSupport` and refuse samples; so does a GPU
that is cut into MIG instances. All metrics but the memory's are refused one by one, as by a card without
them.

Standard library only: the sampling process imports this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import activity
from .state import MachineState

OK, INVALID, UNSUPPORTED, NO_DATA, OTHER_VERSION = 0, 2, 3, 21, 25
ON_DEVICE = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
DRAM_UTILISATION = 10  # the metric's number

# Under the number that stands for a sample: its GPU and time, once it was taken.
Samples = dict[int, tuple[int, float] | None]


class GpmAnswers:
    """The GPM functions of a simulated library."""

    state: MachineState
    _now: Callable[[], float]
    _samples: Samples

    def _nvmlGpmQueryDeviceSupport(self, gpu: int, support: Any) -> int:  # noqa: N802
        if support._obj.version != 1:
            return OTHER_VERSION
        support._obj.isSupportedDevice = int(self._counts(gpu))
        return OK

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:  # noqa: N802
        number = max(self._samples, default=0) + 1
        self._samples[number] = None
        ctypes.c_void_p.from_address(ctypes.addressof(sample._obj)).value = number
        return OK

    def _nvmlGpmSampleFree(self, sample: Any) -> int:  # noqa: N802
        return OK if self._samples.pop(_number(sample), 0) != 0 else INVALID

    def _nvmlGpmSampleGet(self, gpu: int, sample: Any) -> int:  # noqa: N802
        if not self._counts(gpu) or self.state.card(gpu, "mig"):
            return UNSUPPORTED
        if _number(sample) not in self._samples:
            return INVALID
        self._samples[_number(sample)] = gpu, self._now()
        return OK

    def _nvmlGpmMigSampleGet(self, _gpu: int, _instance: Any, _sample: Any) -> int:  # noqa: N802
        return UNSUPPORTED

    def _nvmlGpmMetricsGet(self, question: Any) -> int:  # noqa: N802
        asked = question._obj
        if asked.version != 1:
            return OTHER_VERSION
        first, second = self._samples.get(_number(asked.sample1)), self._samples.get(_number(asked.sample2))
        if (
            first is None or second is None or first[0] != second[0]
            or not 0 <= asked.numMetrics <= len(asked.metrics)
        ):
            return INVALID
        (gpu, from_s), (_, to_s) = first, second
        if to_s <= from_s:
            return NO_DATA
        spans = self.state.spans(gpu, from_s, to_s)
        share = sum(span_s * activity.unpack(at.reasons) for span_s, at in spans) / (to_s - from_s)
        for metric in asked.metrics[: asked.numMetrics]:
            known = metric.metricId == DRAM_UTILISATION
            metric.nvmlReturn = OK if known else UNSUPPORTED
            metric.value = 100 * share if known else 0.0
        return OK

    def _counts(self, gpu: int) -> bool:
        return bool(self.state.card(gpu, "architecture") >= activity.SINCE)


def _number(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
