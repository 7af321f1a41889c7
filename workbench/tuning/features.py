"""The features of a running job, by which a model foretells other settings.

    reader = FeatureReader(device, recorder)     # the best source that is there
    reader.start()
    ...                                          # the job runs, for an iteration or longer
    found = reader.read()                        # found.values, found.source, and why the rest is missing

Sources are "gpm" (NVML's performance counters) and "nvml" (utilisation, power and clocks), which "gpm"
contains. Names are those of DCGM's fields in lower case; a feature that a source does not report is absent.
docs/explanation/tuning.md has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..device.protocol import Device
from ..errors import DeviceError, GpuLost, MeasurementError, UsageError
from ..records import Capability, Sample

if TYPE_CHECKING:
    from ..measurement.recorder import Recorder

LOAD = ("gpu_utilisation", "memory_utilisation", "power_share", "sm_clock_ratio", "mem_clock_ratio")
COUNTERS = (
    "sm_active", "sm_occupancy", "tensor_active", "fp64_active", "fp32_active", "fp16_active", "dram_active",
)
TRAFFIC = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
NAMES = (*COUNTERS, *TRAFFIC, *LOAD)
FEATURE_SETS: dict[str, tuple[str, ...]] = {"gpm": NAMES, "nvml": LOAD}  # best first

SHORTEST_S = 0.1  # between two samples of GPM counters (nvml.h)
# Utilisation is of the last sixth of a second to second (nvml.h), and so at first of what was before.
HISTORY_S = 1.0


@dataclass(frozen=True)
class Features:
    """Features of a running job, as read.

    Attributes:
        values: By name, one of `NAMES`: shares 0..1, bytes/s, ratios to the default limit and highest clocks.
        source: Where from; a key of `FEATURE_SETS`.
        seconds: How long it was looked at.
        power_w: Mean power meanwhile; None where this GPU does not tell.
        missing: Why features of this source, or better sources, are absent.
    """

    values: dict[str, float]
    source: str
    seconds: float
    power_w: float | None = None
    missing: dict[str, str] = field(default_factory=dict)


class FeatureReader:
    """Reads the features of what runs on a GPU between `start` and `read`. Does not wait.

    Args:
        device: Of which GPU.
        recorder: What samples it; without one, utilisation and clocks are those of the two ends.

    Attributes:
        sources: All of them, best first, each there or not with its reason.
        source: The one in use: the best that is there.

    Raises:
        MeasurementError: there is none.
    """

    def __init__(self, device: Device, recorder: Recorder | None = None) -> None:
        self.device, self.recorder = device, recorder
        reason, needed = _no_counters(device), ("utilisation", "power", "energy", "sm_clock")
        nothing = f"{device.name} tells neither utilisation nor power nor clocks"
        loads = any(device.can(name) for name in needed)
        self.sources = (
            Capability("gpm", not reason, reason),
            Capability("nvml", loads, "" if loads else nothing),
        )
        present = [each.name for each in self.sources if each.present]
        if not present:
            why = "; ".join(f"{each.name}: {each.reason}" for each in self.sources)
            raise MeasurementError(f"{why}: there is nothing to read features from")
        self.source = present[0]
        self._trouble: dict[str, str] = {}
        self._counters: Any = None
        self._first: Sample | None = None

    def start(self) -> None:
        """Begin to look; what was begun before is forgotten."""
        self._trouble = {}
        self._counters = None
        if self.source == "gpm":
            try:
                self._counters = self.device.counters()  # type: ignore[attr-defined]
            except GpuLost:
                raise
            except DeviceError as error:
                self._trouble["gpm"] = str(error)
        self._first = self.device.sample()
        self._start_s = self.device.clock()

    def read(self) -> Features:
        """The features since `start`; may be called again later, for a longer stretch.

        Raises:
            UsageError: before `start`.
            MeasurementError: less than 0.1 s after it.
            GpuLost: the GPU is gone.
        """
        if self._first is None:
            raise UsageError("features are read after start(); nothing was started")
        seconds = self.device.clock() - self._start_s
        if seconds < SHORTEST_S:
            raise MeasurementError(
                f"features need at least {SHORTEST_S:g} s of looking, and only {max(seconds, 0.0):.3f} s "
                "have passed"
            )
        missing = {each.name: each.reason for each in self.sources if not each.present} | self._trouble
        values, power_w = self._load(self._first, seconds)
        counted = self._counted(missing)
        source = self.source if counted or self.source == "nvml" else "nvml"
        values |= counted
        for names, teller in ((LOAD, "NVML"), ((*COUNTERS, *TRAFFIC) if source != "nvml" else (), source)):
            missing.update({name: f"{teller} does not tell it here" for name in names if name not in values})
        ordered = {name: values[name] for name in NAMES if name in values}
        return Features(ordered, source, seconds, power_w, missing)

    def close(self) -> None:
        """Release the first reading of the counters; `start` begins again."""
        self._counters = None

    # what each source tells

    def _counted(self, missing: dict[str, str]) -> dict[str, float]:
        if self._counters is not None:
            try:
                device: Any = self.device
                return dict(device.counted(self._counters, device.counters()))
            except GpuLost:
                raise
            except DeviceError as error:
                missing["gpm"] = str(error)
        return {}

    def _load(self, first: Sample, seconds: float) -> tuple[dict[str, float], float | None]:
        """What NVML tells, and mean power in watts."""
        last, rows = self.device.sample(), None
        names = ("utilisation", "memory_utilisation", "sm_clock_mhz", "mem_clock_mhz")
        if self.recorder is not None:
            rows = self.recorder.rows(self.device.uuid, self._start_s, self.device.clock())
        if rows is not None and len(rows) >= 3:
            later = rows[rows["time_s"] >= self._start_s + min(HISTORY_S, 0.5 * seconds)]
            means = {name: _mean(later[name].tolist()) for name in names}
            power_w = _by_counter(rows["tick_s"].tolist(), rows["energy_j"].tolist())
            power_w = _mean(rows["power_w"].tolist()) if power_w is None else power_w
        else:  # the first looks back at what was before
            means = {name: _mean([getattr(last, name)]) for name in names}
            ends = [first.time_s, last.time_s], [first.energy_j, last.energy_j]
            power_w = _by_counter(*ends) if seconds >= 1.0 else None
            power_w = _mean([last.power_w]) if power_w is None else power_w
        limits = self.device.limits
        full_w = limits.default_power_limit_w or limits.max_power_limit_w
        top_sm = max((max(each) for each in limits.sm_clocks_mhz.values() if each), default=None)
        top_mem = max(limits.sm_clocks_mhz, default=None)
        found = {
            "gpu_utilisation": means["utilisation"], "memory_utilisation": means["memory_utilisation"],
            "power_share": _ratio(power_w, full_w), "sm_clock_ratio": _ratio(means["sm_clock_mhz"], top_sm),
            "mem_clock_ratio": _ratio(means["mem_clock_mhz"], top_mem),
        }
        return {name: value for name, value in found.items() if value is not None}, power_w


def _no_counters(device: Device) -> str:
    """Why the performance counters of a GPU cannot be read; empty where they can."""
    why = getattr(device, "why_not", None)
    if not device.can("gpm"):
        return str(why("gpm")) if why else "this device has no performance counters"
    try:
        device.counters()  # type: ignore[attr-defined]
    except GpuLost:
        raise
    except DeviceError as error:  # a driver may know the question and refuse the answer, as for MIG
        return str(error)
    return ""


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def _by_counter(times_s: list[float], energies_j: list[float]) -> float | None:
    """Mean power (W) between the first and the last reading of the counter; None without two."""
    known = [each for each in zip(times_s, energies_j, strict=True) if all(map(math.isfinite, each))]
    if len(known) < 2:
        return None
    (from_s, from_j), (to_s, to_j) = known[0], known[-1]
    return (to_j - from_j) / (to_s - from_s) if to_s > from_s and to_j >= from_j else None


def _ratio(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None
