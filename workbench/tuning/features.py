"""The features of a running job, by which a model predicts other settings.

    reader = FeatureReader(device, recorder)     # of the best source that is there
    reader.start()
    ...                                          # the job runs, for an iteration or longer
    found = reader.read()                        # found.values and found.source

Sources are "gpm" (NVML's performance counters) and "nvml" (utilisation, power and clocks), which "gpm"
contains. Names are those of DCGM's fields in lower case; a feature that a source does not report is absent.
docs/developers/tuning.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device.protocol import Device
from ..errors import DeviceError, GpuLost, MeasurementError, UsageError
from ..measurement.recorder import Recorder
from .change_detection import mean_power_w

LOAD = ("gpu_utilisation", "memory_utilisation", "power_share", "sm_clock_ratio", "mem_clock_ratio")
COUNTERS = (
    "sm_active", "sm_occupancy", "tensor_active", "fp64_active", "fp32_active", "fp16_active", "dram_active",
)
TRAFFIC = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
NAMES = (*COUNTERS, *TRAFFIC, *LOAD)

SHORTEST_S = 0.1  # between two samples of GPM counters (nvml.h)
# Utilisation is of the last sixth of a second to second (nvml.h), and so at first of what was before.
HISTORY_S = 1.0


@dataclass(frozen=True)
class Features:
    """Features of a running job, as read.

    Attributes:
        values: By name, one of `NAMES`: shares 0..1, bytes/s, ratios to the default limit and highest clocks.
        source: "gpm" or "nvml".
    """

    values: dict[str, float]
    source: str


class FeatureReader:
    """Reads the features of what runs on a GPU between `start` and `read`. Does not wait.

    Args:
        device: Of which GPU.
        recorder: What samples it.

    Attributes:
        source: The best that is there.

    Raises:
        MeasurementError: there is none.
    """

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self.device, self.recorder = device, recorder
        self.source = "gpm" if device.can("gpm") and _counters(device) is not None else "nvml"
        needed = ("utilisation", "power", "energy", "sm_clock")
        if self.source == "nvml" and not any(device.can(name) for name in needed):
            raise MeasurementError(f"{device.name} reports neither utilisation nor power nor clocks")
        self._start_s: float | None = None

    def start(self) -> None:
        """Begin; an earlier begin is dropped."""
        self._before = _counters(self.device) if self.source == "gpm" else None
        self._start_s = self.device.clock()

    def read(self) -> Features:
        """The features since `start`; may be called again later, for a longer stretch.

        Raises:
            UsageError: before `start`.
            MeasurementError: less than 0.1 s after it.
            GpuLost: the GPU is gone.
        """
        if self._start_s is None:
            raise UsageError("features are read after start(); nothing was started")
        seconds = self.device.clock() - self._start_s
        if seconds < SHORTEST_S:
            raise MeasurementError(f"features need {SHORTEST_S:g} s, and only {seconds:.3f} s have passed")
        values = self._load(self._start_s, seconds)
        now = _counters(self.device) if self._before is not None else None
        if now is not None:
            values |= self.device.counted(self._before, now)  # type: ignore[attr-defined]
        return Features(values, "nvml" if now is None else "gpm")

    def _load(self, start_s: float, seconds: float) -> dict[str, float]:
        """What NVML reports."""
        rows = self.recorder.rows(self.device.uuid, start_s, start_s + seconds)
        later = rows[rows["time_s"] >= start_s + min(HISTORY_S, 0.5 * seconds)]
        power_w = mean_power_w(rows) or _mean(rows["power_w"])
        limits = self.device.limits
        clocks = [max(each) for each in limits.sm_clocks_mhz.values() if each]
        found = {
            "gpu_utilisation": (_mean(later["utilisation"]), 1.0),
            "memory_utilisation": (_mean(later["memory_utilisation"]), 1.0),
            "power_share": (power_w, limits.default_power_limit_w or limits.max_power_limit_w),
            "sm_clock_ratio": (_mean(later["sm_clock_mhz"]), max(clocks, default=None)),
            "mem_clock_ratio": (_mean(later["mem_clock_mhz"]), max(limits.sm_clocks_mhz, default=None)),
        }
        return {name: value / whole for name, (value, whole) in found.items() if value is not None and whole}


def _counters(device: Any) -> Any:
    """A reading of the performance counters; None where the driver refuses it, as for MIG."""
    try:
        return device.counters()
    except GpuLost:
        raise
    except DeviceError:
        return None


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
