"""`workbench doctor`: what this machine's driver and sensors do, and what it means for joules. Reads only.

    machine_findings()                    versions, rights, container
    gpu_findings(device, load, seconds)   modes, limits, cost of calls, refreshes, the counter
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..device import nvml
from ..device.nvml import NvmlDevice
from ..errors import DeviceError
from . import glimpses
from .counter_kind import CounterKind
from .recorder import Recorder

PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"
CALLS = 60
FEWEST = 20  # readings that tell a mean
SLOW_MS, TOO_SLOW_MS = 1.0, 5.0
NEAR, FAR = 0.03, 0.10  # of counter over readings from one
SYS_ADMIN = 21  # bit of CapEff
CLOCKS_SET = 0x2  # event reason: somebody has set clocks


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        grade: "PASS", "INFO", "WARN" or "FAIL".
        what: What was looked at.
        found: What was seen, with its unit.
        means: What it means for the joules or the settings of whoever measures here.
    """

    grade: str
    what: str
    found: str
    means: str

    def __str__(self) -> str:
        return f"{self.grade:4}  {self.what:24} {self.found}\n{'':32}{self.means}"


def machine_findings() -> list[Finding]:
    """What holds for all GPUs of this machine."""
    found = []
    versions = {"Python": platform.python_version(), "kernel": platform.release()}
    for package in ("nvidia-ml-py", "gpu-energy-workbench"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    try:
        versions["driver"] = nvml.driver_version()
        found.append(Finding(PASS, "versions", _listed(versions), "what was found is kept for this driver"))
    except DeviceError as error:
        found.append(Finding(FAIL, "driver", str(error), "there are no joules without a driver"))
    found.append(Finding(
        INFO, "rights", "may set limits and clocks" if _is_administrator() else "may read, not set",
        "measuring needs none; power limits and clocks take root or CAP_SYS_ADMIN",
    ))
    if kind := _container():
        found.append(Finding(
            WARN, "container", kind,
            "processes of others cannot be named, and a changed setting outlives a container that is killed: "
            "keep WORKBENCH_HOME on a volume, and the next start puts it back",
        ))
    found.append(_after_fork())
    return found


def gpu_findings(
    device: NvmlDevice, load: Callable[[], Iterable[Any]] | None = None, *, seconds: float = 20.0
) -> list[Finding]:
    """What holds for one GPU. It takes three times `seconds` of the device's clock.

    Args:
        device: It is read, never set.
        load: Makes a training that changes its power within a tenth of a second; None: nothing to run.
        seconds: How long the GPU is watched at rest, and under the load.
    """
    found = [*_modes(device), _call_cost(device), _processes_named(device)]
    recorder = Recorder([device])
    try:
        rest_s = _wait(device, seconds)
        found += [_refreshes(device, recorder), _counter_over_readings(device, recorder, rest_s, "at rest")]
        if load is None:
            found.append(Finding(
                INFO, "under load", "not looked at: nothing to run (PyTorch with CUDA is not here)",
                "whether the counter looks all the time is found out in the first cells that are measured",
            ))
            return found
        load_s = _run(device, load, seconds)
        found.append(_counter_over_readings(device, recorder, load_s, "under load"))
        found.append(_looks_all_the_time(device, recorder, load_s))
    finally:
        recorder.stop()
    return found


def report(machine: Sequence[Finding], gpus: dict[NvmlDevice, Sequence[Finding]]) -> dict[str, Any]:
    """Findings as JSON, without names of users, hosts or paths; GPUs by a hash of their UUID."""
    every = [*machine, *(each for found in gpus.values() for each in found)]
    return {
        "machine": [asdict(each) for each in machine],
        "gpus": [
            {
                "name": device.name, "simulated": device.simulated,
                "id": hashlib.sha256(device.uuid.encode()).hexdigest()[:12],
                "findings": [asdict(each) for each in found],
            }
            for device, found in gpus.items()
        ],
        "fail": sum(each.grade == FAIL for each in every), "warn": sum(each.grade == WARN for each in every),
    }


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _is_administrator() -> bool:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return True
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> SYS_ADMIN & 1)
    return False


def _container() -> str:
    """What kind of container this process is in; empty outside."""
    if Path("/.dockerenv").exists():
        return "Docker"
    if Path("/run/.containerenv").exists():
        return "Podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    return ""


def _after_fork() -> Finding:
    """Whether a forked child can start the driver's library anew."""
    if not hasattr(os, "fork"):
        return Finding(INFO, "NVML after a fork", "this system does not fork", "nothing to watch for")
    pid = os.fork()
    if pid == 0:  # nothing of the parent may run here: not its handlers, nor its exits
        try:
            nvml.initialise()
            os._exit(0 if nvml.count() >= 0 else 1)
        except BaseException:
            os._exit(1)
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            good = os.waitstatus_to_exitcode(status) == 0
            return Finding(
                PASS if good else WARN, "NVML after a fork", "works" if good else "fails",
                "workers may measure too" if good else "measure in the parent, not in workers",
            )
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return Finding(WARN, "NVML after a fork", "hangs", "measure in the parent, not in workers")


def _modes(device: NvmlDevice) -> list[Finding]:
    """Modes of the driver and settings that somebody has made."""
    found, modes = [], nvml.modes(device)
    if modes.get("mig"):
        found.append(Finding(
            WARN, "MIG", "on", "power and energy are those of the whole GPU, not of one instance of it"
        ))
    if "persistence" in modes:
        kept = bool(modes["persistence"])
        found.append(Finding(
            PASS if kept else WARN, "persistence", "on" if kept else "off",
            "limits and the counter stay while nobody uses the GPU" if kept
            else "limits, locks and the counter are lost when the last program leaves the GPU",
        ))
    requested_w, enforced_w = modes.get("requested_limit_w"), modes.get("enforced_limit_w")
    if requested_w and enforced_w:
        differ = abs(requested_w - enforced_w) > 1.0
        found.append(Finding(
            WARN if differ else PASS, "power limit",
            f"{requested_w:g} W requested, {enforced_w:g} W enforced",
            "something else caps this GPU: limits above the enforced one do nothing" if differ
            else "the limit that is set is the one that holds",
        ))
    if int(modes.get("reasons", 0)) & CLOCKS_SET:
        found.append(Finding(
            WARN, "clocks", "set by somebody", "a lock of this workbench would take their place for good"
        ))
    absent = [each.name for each in device.capabilities if not each.present]
    found.append(Finding(
        INFO, "cannot", ", ".join(absent) or "nothing is missing",
        device.note or f"one power reading is the mean of {1000 * device.power_window_s:.0f} ms",
    ))
    return found


def _call_cost(device: NvmlDevice) -> Finding:
    """How long one look at the sensors takes."""
    costs = []
    for _ in range(CALLS):
        before = time.perf_counter()
        with contextlib.suppress(DeviceError):
            device.sample(None)
        costs.append(1000 * (time.perf_counter() - before))
    median_ms, worst_ms = np.percentile(costs, [50, 95])
    grade = PASS if median_ms < SLOW_MS else WARN if median_ms < TOO_SLOW_MS else FAIL
    means = {
        PASS: "sampling costs next to nothing",
        WARN: "the driver is slow: windows begin and end less sharply, bars are wider",
        FAIL: "the driver is very slow, and each look holds the lock that trainings wait for",
    }
    return Finding(grade, "cost of a look", f"{median_ms:.2f} ms (95 %: {worst_ms:.2f} ms)", means[grade])


def _processes_named(device: NvmlDevice) -> Finding:
    """Who computes on the GPU, and how many of them cannot be named from here."""
    try:
        there = device.processes()
    except DeviceError as error:
        return Finding(WARN, "processes", str(error), "whether others use the GPU is not known")
    hidden = sum(each.name == "?" for each in there)
    if hidden:
        return Finding(
            WARN, "processes", f"{len(there)}, {hidden} of them cannot be named from here",
            "they belong to another container or user; their energy is in every figure",
        )
    return Finding(
        PASS, "processes", f"{len(there)} on this GPU, all named",
        "whoever else uses the GPU is told with each measurement",
    )


def _wait(device: NvmlDevice, seconds: float) -> tuple[float, float]:
    """Let time pass at rest; returns from when to when on the device's clock."""
    from_s = device.clock()
    device.clock.sleep(seconds)
    return from_s, device.clock()


def _run(
    device: NvmlDevice, load: Callable[[], Iterable[Any]], seconds: float
) -> tuple[float, float]:
    from_s = device.clock()
    work = iter(load())
    for _ in work:
        if device.clock() > from_s + seconds:
            break
    return from_s, device.clock()


def _refreshes(device: NvmlDevice, recorder: Recorder) -> Finding:
    """How often the sensors refresh, and whether that can be followed."""
    update_s = recorder.update_s(device.uuid)
    if update_s is None:
        return Finding(
            INFO, "refresh of the sensors", "no steps seen at rest",
            "edges of a window are known to a look, not to a refresh; a load may show the steps",
        )
    return Finding(
        PASS, "refresh of the sensors", f"every {1000 * update_s:.1f} ms",
        "edges of a window are known much better than one refresh",
    )


def _counter_over_readings(
    device: NvmlDevice, recorder: Recorder, span: tuple[float, float], when: str
) -> Finding:
    """The energy of the counter against that of the power readings."""
    what = f"counter / readings, {when}"
    if not device.can("energy"):
        return Finding(INFO, what, "there is no energy counter", "energy is integrated from power readings")
    rows = recorder.rows(device.uuid, *span)
    rows = rows[np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    if len(rows) < FEWEST or not rows["power_w"].sum() > 0:
        return Finding(WARN, what, f"{len(rows)} readings are too few", "it is not known whether they agree")
    spans = np.diff(rows["time_s"])
    read_w = float(np.sum(0.5 * (rows["power_w"][1:] + rows["power_w"][:-1]) * spans) / spans.sum())
    counted_w = float((rows["energy_j"][-1] - rows["energy_j"][0]) / spans.sum())
    ratio = counted_w / read_w
    # Readings are a sample of a load that moves; the counter may be off by a refresh at either end.
    doubt = 1.96 * float(np.std(rows["power_w"])) / read_w / math.sqrt(len(rows)) + 2.0 / len(rows)
    off = max(0.0, abs(ratio - 1.0) - doubt)
    grade = PASS if off < NEAR else WARN if off < FAR else FAIL
    means = {
        PASS: "both tell the same", WARN: "one of them is calibrated otherwise; joules are the counter's",
        FAIL: "they tell different stories: do not compare this GPU's joules with another's",
    }
    return Finding(
        grade, what, f"{counted_w:.1f} W / {read_w:.1f} W = {ratio:.3f} ± {doubt:.3f}", means[grade]
    )


def _looks_all_the_time(
    device: NvmlDevice, recorder: Recorder, span: tuple[float, float]
) -> Finding:
    """Whether the counter sums more than the power readings see."""
    what, kind = "part-time counter?", CounterKind(device, recorder)
    kind.learn()
    share = glimpses.share_off(recorder.rows(device.uuid, *span))
    seen = "" if share is None else f"{100 * share:.0f} % of its steps are not what the readings say"
    if kind.part_time is None:
        return Finding(INFO, what, seen or "the load does not tell", "bars assume that it looks all the time")
    if kind.part_time:
        return Finding(WARN, what, seen or "found before", "it adds up glimpses: bars say what they may miss")
    return Finding(PASS, what, seen or "a reading covers all of a step", "its steps are exact")
