"""Checks of a machine and its GPUs for `workbench doctor`: results, and their effect on joules. Read-only.

    machine_findings()                    versions, privileges, container, fork
    gpu_findings(device, load, seconds)   modes, limits, time per sample, processes, sensors, energy counter
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
from ..errors import DeviceError, UsageError
from .counter_kind import CounterKind
from .foreign import foreign_processes
from .recorder import Recorder
from .sampled_counter import unexplained_share

PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"
CALLS = 60  # of the driver that are timed
FEWEST = 20  # readings for a mean
SLOW_MS, TOO_SLOW_MS = 1.0, 5.0
NEAR, FAR = 0.03, 0.10  # difference of counter and readings, as a share
FORK_FAILS = "measure in the parent process, not in workers"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        grade: "PASS", "INFO", "WARN" or "FAIL".
        what: What was checked.
        found: The result, with its unit.
        means: Its effect on measured joules, or on settings.
    """

    grade: str
    what: str
    found: str
    means: str

    def __str__(self) -> str:
        return f"{self.grade:4}  {self.what:24} {self.found}\n{'':32}{self.means}"


def machine_findings() -> list[Finding]:
    """Checks of the machine."""
    found = []
    versions = {"Python": platform.python_version(), "kernel": platform.release()}
    for package in ("nvidia-ml-py", "gpu-energy-workbench"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    try:
        versions["driver"] = nvml.driver_version()
        found.append(Finding(
            PASS, "versions", _listed(versions), "sensor checks are kept for this driver version"
        ))
    except DeviceError as error:
        found.append(Finding(FAIL, "driver", str(error), "no energy can be measured without a driver"))
    found.append(Finding(
        INFO, "privileges", "root or SYS_ADMIN" if nvml.is_privileged() else "none",
        "measuring needs none; changing power limits or clocks needs root or SYS_ADMIN",
    ))
    if kind := _container():
        found.append(Finding(
            WARN, "container", kind,
            "a killed container leaves its GPU settings changed; with WORKBENCH_HOME on a volume, the next "
            "start restores them",
        ))
    found.append(_after_fork())
    return found


def gpu_findings(
    device: NvmlDevice, load: Callable[[], Iterable[Any]] | None = None, *, seconds: float = 20.0
) -> list[Finding]:
    """Checks of one GPU; they take twice `seconds`, or once without a load.

    Args:
        device: The GPU; it is only read.
        load: Makes a training whose power changes within 0.1 s; None: run nothing.
        seconds: Time at rest, and under the load, on the device's clock.

    Raises:
        UsageError: seconds that are no positive number.
    """
    if not 0 < seconds < math.inf:
        raise UsageError(f"the seconds of each check must be a positive number, not {seconds:g}")
    found = [*_modes(device), _call_cost(device), _processes_named(device)]
    recorder = Recorder([device])
    try:
        rest_s = _wait(device, seconds)
        found += [_refreshes(device, recorder), _counter_over_readings(device, recorder, rest_s, "at rest")]
        if load is None:
            found.append(Finding(
                INFO, "under load", "not checked: no training was run (it needs PyTorch with CUDA)",
                "the energy counter is checked in the first cells that you measure",
            ))
            return found
        load_s = _run(device, load, seconds)
        found.append(_counter_over_readings(device, recorder, load_s, "under load"))
        found.append(_integrates(device, recorder, load_s))
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
        return Finding(INFO, "NVML after a fork", "this system does not fork", "no effect")
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
                "worker processes can measure too" if good else FORK_FAILS,
            )
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return Finding(WARN, "NVML after a fork", "hangs", FORK_FAILS)


def _modes(device: NvmlDevice) -> list[Finding]:
    """Driver modes, and settings made by anybody."""
    found, modes = [], nvml.modes(device)
    if modes.get("mig"):
        found.append(Finding(
            WARN, "MIG", "on", "power and energy are those of the whole GPU, not of one instance"
        ))
    if "persistence" in modes:
        kept = bool(modes["persistence"])
        found.append(Finding(
            PASS if kept else WARN, "persistence", "on" if kept else "off",
            "settings and the energy counter stay while no program uses the GPU" if kept
            else "settings and the energy counter are reset when no program uses the GPU",
        ))
    requested_w, enforced_w = modes.get("requested_limit_w"), modes.get("enforced_limit_w")
    if requested_w and enforced_w:
        differ = abs(requested_w - enforced_w) > 1.0
        found.append(Finding(
            WARN if differ else PASS, "power limit",
            f"{requested_w:g} W requested, {enforced_w:g} W enforced",
            "another limit applies: power limits above the enforced one have no effect" if differ
            else "the requested limit is the active one",
        ))
    if int(modes.get("reasons", 0)) & nvml.CLOCKS_SET:
        found.append(Finding(
            WARN, "clocks", "set by a user",
            "after tuning they are reset to the driver's default, not restored",
        ))
    absent = [each.name for each in device.capabilities if not each.present]
    found.append(Finding(
        INFO, "not supported", ", ".join(absent) or "nothing",
        device.note or f"a power reading is an average over {1000 * device.power_window_s:.0f} ms",
    ))
    return found


def _call_cost(device: NvmlDevice) -> Finding:
    """The time that one sample of the sensors takes, in ms."""
    costs = []
    for _ in range(CALLS):
        before = time.perf_counter()
        with contextlib.suppress(DeviceError):
            device.sample(None)
        costs.append(1000 * (time.perf_counter() - before))
    median_ms, high_ms = np.percentile(costs, [50, 95])
    grade = PASS if median_ms < SLOW_MS else WARN if median_ms < TOO_SLOW_MS else FAIL
    means = {
        PASS: "no effect on the training",
        WARN: "the driver is slow: error bars are wider",
        FAIL: "the driver is very slow: sampling may delay the training's own calls",
    }
    return Finding(grade, "time per sample", f"{median_ms:.2g} ms (95 %: {high_ms:.2g} ms)", means[grade])


def _processes_named(device: NvmlDevice) -> Finding:
    """Other processes on the GPU, and how many of them have no name here."""
    try:
        foreign = foreign_processes(device)
    except DeviceError as error:
        return Finding(WARN, "other processes", str(error), "energy may include that of other processes")
    found = foreign.names or "none"
    if foreign.unnamed:
        found += f", and {foreign.unnamed} without a name here (another container or user)"
    if foreign.named or foreign.unnamed:
        return Finding(WARN, "other processes", found, "measured energy includes theirs")
    return Finding(PASS, "other processes", found, "measured energy is that of your own work")


def _wait(device: NvmlDevice, seconds: float) -> tuple[float, float]:
    """Wait at rest; returns start and end (s) on the device's clock."""
    from_s = device.clock()
    device.clock.sleep(seconds)
    return from_s, device.clock()


def _run(
    device: NvmlDevice, load: Callable[[], Iterable[Any]], seconds: float
) -> tuple[float, float]:
    """Run a load; returns start and end (s) on the device's clock."""
    from_s = device.clock()
    for _ in load():
        if device.clock() > from_s + seconds:
            break
    return from_s, device.clock()


def _refreshes(device: NvmlDevice, recorder: Recorder) -> Finding:
    """The time between two refreshes of the sensors."""
    update_s = recorder.update_s(device.uuid)
    if update_s is None:
        return Finding(
            INFO, "sensor refresh", "not detected at rest",
            "error bars of short cells are wider until a load shows the refreshes",
        )
    return Finding(
        PASS, "sensor refresh", f"every {1000 * update_s:.1f} ms",
        "a cell's energy is known better than one refresh",
    )


def _counter_over_readings(
    device: NvmlDevice, recorder: Recorder, span: tuple[float, float], when: str
) -> Finding:
    """The mean power of the energy counter against that of the power readings."""
    what = f"counter / readings, {when}"
    if not device.can("energy"):
        return Finding(INFO, what, "no energy counter", "energy is integrated from power readings")
    rows = recorder.rows(device.uuid, *span)
    rows = rows[np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    if len(rows) < FEWEST or not rows["power_w"].sum() > 0:
        return Finding(WARN, what, f"not enough readings ({len(rows)})", "whether they agree is unknown")
    spans = np.diff(rows["time_s"])
    read_w = float(np.sum(0.5 * (rows["power_w"][1:] + rows["power_w"][:-1]) * spans) / spans.sum())
    counted_w = float((rows["energy_j"][-1] - rows["energy_j"][0]) / spans.sum())
    ratio = counted_w / read_w
    # Readings are a sample of a load that moves; the counter may be off by a refresh at either end.
    doubt = 1.96 * float(np.std(rows["power_w"])) / read_w / math.sqrt(len(rows)) + 2.0 / len(rows)
    off = max(0.0, abs(ratio - 1.0) - doubt)
    grade = PASS if off < NEAR else WARN if off < FAR else FAIL
    means = {
        PASS: "they agree", WARN: "they differ in calibration; joules are those of the counter",
        FAIL: "they disagree: do not compare joules of this GPU with those of another",
    }
    return Finding(
        grade, what, f"{counted_w:.1f} W / {read_w:.1f} W = {ratio:.3f} ± {doubt:.3f}", means[grade]
    )


def _integrates(device: NvmlDevice, recorder: Recorder, span: tuple[float, float]) -> Finding:
    """Whether the energy counter integrates power all the time, or only sums power readings."""
    what, kind = "energy counter", CounterKind(device, recorder)
    kind.learn()
    share = unexplained_share(recorder.rows(device.uuid, *span))
    why = "" if share is None else f" ({100 * share:.0f} % of its changes are not in the power readings)"
    if kind.part_time is None:
        return Finding(INFO, what, f"not decided{why}", "error bars assume that it integrates all the time")
    if kind.part_time:
        return Finding(WARN, what, f"only sums power readings{why}", "error bars include what they may miss")
    return Finding(PASS, what, f"integrates all the time{why}", "its joules are exact between two refreshes")
