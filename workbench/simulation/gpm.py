"""GPM, NVML's way to performance counters, of simulated GPUs: two samples of the counters, and what happened
between them (nvml.h).

Hopper and newer have it. Older cards say so in `nvmlGpmQueryDeviceSupport` and refuse samples; so does a GPU
that is cut into MIG instances. Metrics that are not modelled (NVLink, codecs, integer pipes) are refused one
by one, as by a card without them.

Standard library only: the sampling process imports this.
"""


from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import counters
from .state import MachineState

OK, INVALID, UNSUPPORTED, NO_DATA, OTHER_VERSION = 0, 2, 3, 21, 25
ON_DEVICE = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
_SAMPLES_AT = 0x6D0000
_TX_SHARE = 1 / 16  # of what is received over PCIe goes back

# Metric -> short name, unit, and its value from the mean utilisation and activity.
METRICS: dict[int, tuple[bytes, bytes, Callable[[float, counters.Activity], float]]] = {
    1: (b"graphics_util", b"%", lambda busy, _: 100 * busy),
    2: (b"sm_util", b"%", lambda _, activity: 100 * activity.sm_active),
    3: (b"sm_occupancy", b"%", lambda _, activity: 100 * activity.sm_occupancy),
    5: (b"any_tensor_util", b"%", lambda _, activity: 100 * activity.tensor_active),
    10: (b"dram_bw_util", b"%", lambda _, activity: 100 * activity.dram_active),
    11: (b"fp64_util", b"%", lambda _, activity: 100 * activity.fp64_active),
    12: (b"fp32_util", b"%", lambda _, activity: 100 * activity.fp32_active),
    13: (b"fp16_util", b"%", lambda _, activity: 100 * activity.fp16_active),
    20: (b"pcie_tx_per_sec", b"MiB/s", lambda _, activity: _TX_SHARE * activity.pcie_rx_mib_per_s),
    21: (b"pcie_rx_per_sec", b"MiB/s", lambda _, activity: activity.pcie_rx_mib_per_s),
}


# under the number that stands for a sample: its GPU and time, once it was taken
Samples = dict[int, tuple[int, float] | None]


class GpmAnswers:
    """The GPM functions of a simulated library."""

    state: MachineState
    _now: Callable[[], float]
    _samples: Samples
    _next_sample = _SAMPLES_AT

    def _nvmlGpmQueryDeviceSupport(self, gpu: int, support: Any) -> int:  # noqa: N802
        if support._obj.version != 1:
            return OTHER_VERSION
        support._obj.isSupportedDevice = int(self._counts(gpu))
        return OK

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:  # noqa: N802
        self._next_sample += 16
        self._samples[self._next_sample] = None
        ctypes.c_void_p.from_address(ctypes.addressof(sample._obj)).value = self._next_sample
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
        spans = [(span_s, at.utilisation, at.reasons) for span_s, at in self.state.spans(gpu, from_s, to_s)]
        busy, activity = counters.mean(spans, to_s - from_s)
        for metric in asked.metrics[: asked.numMetrics]:
            known = METRICS.get(metric.metricId)
            metric.nvmlReturn = OK if known else UNSUPPORTED
            if known:
                metric.metricInfo.shortName, metric.metricInfo.unit, value = known
                metric.value = value(busy, activity)
        return OK

    def _counts(self, gpu: int) -> bool:
        return bool(self.state.card(gpu, "architecture") >= counters.SINCE)


def _number(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
