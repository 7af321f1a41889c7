"""Checks of a machine and its GPUs for `workbench doctor`: results, and their effect on joules. Read-only.

    machine_findings()                    versions, privileges, container
    gpu_findings(device, load, seconds)   modes, limits, time per sample, processes, sensors, energy counter
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import random
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..device import driver
from ..device.gpu import OpenGpu
from ..errors import DeviceError, NotSupported, UsageError, checked, shown
from ..samples import refreshes
from .counter_kind import CounterKind
from .energy_estimate import MOVING_S
from .foreign import foreign_processes
from .recorder import Recorder
from .sampled_counter import step_to_reading_ratio

PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"
LONGEST_S = 300.0  # of each check
FEWEST = 20  # readings for a mean, calls for a median
SLOW_MS = 1.0  # of one sample
NEAR, FAR = 0.03, 0.10  # difference of counter and readings, as a share


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        grade: "PASS", "INFO", "WARN" or "FAIL".
        what: The checked property.
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
    found = clash()
    try:
        versions = {**_versions(), "driver": driver.current().driver_version()}
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        found.append(Finding(PASS, "versions", listed, "sensor checks are kept for this driver version"))
    except DeviceError as error:
        found.append(Finding(FAIL, "driver", str(error), "no energy can be measured without a driver"))
    found.append(Finding(
        INFO, "privileges", "root or SYS_ADMIN" if driver.current().is_privileged() else "none",
        "measuring needs none; changing power limits or clocks needs root or SYS_ADMIN",
    ))
    if kind := _container():
        found.append(Finding(
            WARN, "container", kind,
            "a killed container leaves its GPU settings changed; with WORKBENCH_HOME on a volume, the next "
            "start restores them",
        ))
    return found


def clash() -> list[Finding]:
    """The package of PyPI that has our import name, where it is installed; else nothing."""
    try:
        version = importlib.metadata.version("workbench")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Finding(
        FAIL, "import name", f"the package workbench {version} is installed and has the same import name",
        "files of both are mixed: `pip uninstall workbench`, then `pip install --force-reinstall --no-deps "
        "gpu-energy-workbench`",
    )]


@checked
def gpu_findings(
    device: OpenGpu, load: Callable[[], Iterable[Any]] | None = None, *, seconds: float = 20.0
) -> list[Finding]:
    """Checks of one GPU; they take twice `seconds`, or once without a load.

    Args:
        device: The GPU; it is only read.
        load: Makes a training whose power changes within 0.1 s; None: run nothing.
        seconds: Time at rest, and under the load, on the device's clock.

    Raises:
        UsageError: seconds that are not above 0 and at most `LONGEST_S`.
    """
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{seconds:g} seconds for each check; give more than 0, at most {LONGEST_S:g}")
    if load is not None and (not callable(load) or isinstance(load, type)):
        raise UsageError(f"load={shown(load)} makes no training; give a function, or None to run nothing")
    found = [*_modes(device), _call_cost(device), _processes_named(device)]
    recorder = Recorder([device])
    try:
        from_s = device.clock()
        device.clock.sleep(seconds)
        rest_s = (from_s, device.clock())
        found.append(_refreshes(device, recorder, rest_s))
        found.append(_counter_over_readings(device, recorder, rest_s, "at rest"))
        found += _idle_clocks(device, recorder.rows(device.uuid, *rest_s))
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


def report(machine: Sequence[Finding], gpus: dict[OpenGpu, Sequence[Finding]]) -> dict[str, Any]:
    """Findings as JSON, without names of users, hosts or paths; GPUs by a hash of their UUID."""
    grades = [each.grade for found in (machine, *gpus.values()) for each in found]
    text = json.dumps({
        "versions": _versions(), "machine": [asdict(each) for each in machine],
        "gpus": [
            {
                "name": device.name, "simulated": device.simulated,
                "id": hashlib.sha256(device.uuid.encode()).hexdigest()[:12],
                "findings": [asdict(each) for each in found],
            }
            for device, found in gpus.items()
        ],
        "fail": grades.count(FAIL), "warn": grades.count(WARN),
    }, ensure_ascii=False)
    text = re.sub(driver.current().UUID, "[uuid]", text)
    text = re.sub(r"(?<![\w.])~?/[\w.+@~-]+(?:/[\w.+@~-]*)*", "[path]", text)
    names = [("user", Path.home().name), ("host", socket.gethostname())]
    with contextlib.suppress(OSError, KeyError):  # a container's user may have no name
        names.append(("user", getpass.getuser()))
    for kind, name in names:
        if len(name) > 2 and name != "root":
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", f"[{kind}]", text)
    anonymous: dict[str, Any] = json.loads(text)
    return anonymous


def _versions() -> dict[str, str]:
    """Versions of what a measurement rests on."""
    versions = {"Python": platform.python_version(), "kernel": platform.release()}
    for package in ("nvidia-ml-py", "gpu-energy-workbench"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _container() -> str:
    """What kind of container this process is in; empty outside."""
    if Path("/.dockerenv").exists():
        return "Docker"
    if Path("/run/.containerenv").exists():
        return "Podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    return ""


def _modes(device: OpenGpu) -> list[Finding]:
    """Driver modes, and settings made by anybody."""
    found, modes = [], device.modes()
    if modes.get("mig"):
        found.append(Finding(
            WARN, "MIG", "on", "power and energy are those of the whole GPU, not of one instance"
        ))
    if modes.get("mps_clients"):
        found.append(Finding(
            INFO, "MPS", f"{modes['mps_clients']:g} client{'s' * (modes['mps_clients'] != 1)}",
            "kernels of several processes run side by side: energy is that of all of them",
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
    if (applications_mhz := device.application_clock_mhz()) is not None:
        found.append(Finding(
            INFO, "application clocks", f"{applications_mhz} MHz (`nvidia-smi -ac`)",
            "a clock that the workbench locks goes before them, and they hold again when it ends",
        ))
    elif (locked := _clocks_are_set(device)) is not False:
        found.append(Finding(
            WARN if locked else INFO, "clocks", "set by a user" if locked else "a lock cannot be read now",
            "to what cannot be read: the workbench leaves them alone and tunes power limits only" if locked
            else "a user's lock shows only while the GPU computes",
        ))
    absent = [each.name for each in device.capabilities if not each.present]
    found.append(Finding(
        INFO, "not supported", ", ".join(absent) or "nothing",
        device.note or f"a power reading is an average over {1000 * device.power_window_s:.0f} ms",
    ))
    return found


def _clocks_are_set(device: OpenGpu) -> bool | None:
    with contextlib.suppress(DeviceError):
        return device.clocks_are_set()
    return None


def _call_cost(device: OpenGpu) -> Finding:
    """The time that one sample of the sensors takes, in ms."""
    costs = []
    for _ in range(FEWEST):
        before = time.perf_counter()
        try:
            device.sample(None)
        except DeviceError as error:
            return Finding(FAIL, "time per sample", str(error), "this GPU cannot be measured now")
        costs.append(1000 * (time.perf_counter() - before))
    median_ms = float(np.median(costs))
    if median_ms < SLOW_MS:
        return Finding(PASS, "time per sample", f"{median_ms:.2g} ms", "no effect on the training")
    return Finding(WARN, "time per sample", f"{median_ms:.2g} ms",
                   "the driver is slow: bars are wider, and sampling may delay the training's own calls")


def _processes_named(device: OpenGpu) -> Finding:
    """Other processes on the GPU, and how many of them have no name here."""
    try:
        foreign = foreign_processes(device)
        if not device.can("processes"):
            raise NotSupported(device.why_not("processes"))
    except DeviceError as error:
        return Finding(WARN, "other processes", str(error), "energy may include that of other processes")
    found = foreign.names or "none"
    if foreign.unnamed:
        found += f", and {foreign.unnamed} without a name here (another container or user)"
    if foreign.named or foreign.unnamed:
        return Finding(WARN, "other processes", found, "measured energy includes theirs")
    if device.modes().get("mig"):
        return Finding(INFO, "other processes", found,
                       "energy includes that of other MIG instances, whose processes may be hidden")
    return Finding(PASS, "other processes", found, "measured energy is that of your own work")


def _run(device: OpenGpu, load: Callable[[], Iterable[Any]], seconds: float) -> tuple[float, float]:
    """Run a load; returns start and end (s) on the device's clock.

    Pauses of different lengths keep its iterations from falling in step with the sensors.
    """
    from_s, pauses = device.clock(), random.Random(0)
    for _ in load():
        if device.clock() > from_s + seconds:
            break
        device.clock.sleep(pauses.uniform(0.0, 0.1))
    return from_s, device.clock()


def _refreshes(device: OpenGpu, recorder: Recorder, span: tuple[float, float]) -> Finding:
    """The time between two refreshes of the sensors, and how many were missed or came at another time."""
    what, update_s = "sensor refresh", recorder.update_s(device.uuid)
    if update_s is None:
        return Finding(
            INFO, what, "not detected at rest",
            "error bars of short cells are wider until a load shows the refreshes",
        )
    if update_s < MOVING_S:
        return Finding(
            PASS, what, "the counter changes at every sample",
            "its joules are those of the moment of the call",
        )
    found = f"every {1000 * update_s:.1f} ms"
    spans_s = np.diff(refreshes(recorder.rows(device.uuid, *span), update_s)["tick_s"])
    if not len(spans_s):
        return Finding(INFO, what, f"{found}, found too late to be checked", "--seconds 5 leaves time for it")
    missed = int(np.sum(np.round(spans_s / update_s) > 1))
    off = int(np.sum(np.abs(spans_s / update_s - 1) > 0.1))
    if off > len(spans_s) / 50:  # fewer may be looks that came late
        return Finding(
            WARN, what,
            f"{found}; of {len(spans_s)}, {off - missed} came early or late and {missed} were missed",
            "each refresh is watched for, and error bars are wider",
        )
    return Finding(PASS, what, found, "a cell's energy is known better than one refresh")


def _is_busy(rows: np.ndarray) -> bool:
    """Whether a GPU that should be at rest computes; its power shows it where it reports no utilisation."""
    shares = [rows["utilisation"] - FAR, rows["power_w"] / rows["power_limit_w"] - 0.5]
    return len(rows) > 0 and bool(np.any(np.median(shares, axis=1) > 0))  # NaN is not


def _idle_clocks(device: OpenGpu, rows: np.ndarray) -> list[Finding]:
    """Whether a program keeps the clocks of an idle GPU high; nothing for a busy GPU, or without clocks.

    DCGM's profiling metrics do: an idle A100 drew 100 W in place of 50 W (dcgm-exporter, issue 464).
    """
    highest_mhz = max((mhz for clocks in device.limits.sm_clocks_mhz.values() for mhz in clocks), default=0)
    sm_mhz = float(np.median(rows["sm_clock_mhz"])) if len(rows) else math.nan
    if not highest_mhz or math.isnan(sm_mhz) or _is_busy(rows):
        return []
    what, found = "idle clocks", f"SM {sm_mhz:.0f} of {highest_mhz} MHz, {np.median(rows['power_w']):.0f} W"
    if sm_mhz <= highest_mhz / 2:
        return [Finding(PASS, what, found, "no program keeps the idle GPU at a high clock")]
    return [Finding(
        WARN, what, found,
        "a program keeps the idle GPU at a high clock, such as DCGM with profiling metrics or an open CUDA "
        "context; this power is part of every measurement",
    )]


def _counter_over_readings(
    device: OpenGpu, recorder: Recorder, span: tuple[float, float], when: str
) -> Finding:
    """The mean power of the energy counter against that of the power readings."""
    rows = recorder.rows(device.uuid, *span)
    if when == "at rest" and _is_busy(rows):
        when = "while another program computes"
    what = f"counter / readings, {when}"
    if not device.can("energy"):
        if not device.can("power"):
            return Finding(FAIL, what, "no energy counter and no power readings", "no energy can be measured")
        return Finding(INFO, what, "no energy counter", "energy is integrated from power readings")
    rows = rows[np.isfinite(rows["energy_j"]) & np.isfinite(rows["power_w"])]
    if len(rows) < FEWEST or not rows["power_w"].sum() > 0:
        return Finding(WARN, what, f"not enough readings ({len(rows)})", "whether they agree is unknown")
    spans = np.diff(rows["time_s"])
    read_w = float(np.sum(0.5 * (rows["power_w"][1:] + rows["power_w"][:-1]) * spans) / spans.sum())
    counted_w = float((rows["energy_j"][-1] - rows["energy_j"][0]) / spans.sum())
    ratio = counted_w / read_w
    # Readings are a sample of a load that moves; the counter may be off by its longest refresh at either end.
    changed = np.flatnonzero(np.diff(rows["energy_j"], prepend=math.nan))
    longest_s = np.diff(rows["time_s"][changed]).max(initial=0.0)
    doubt = 1.96 * float(np.std(rows["power_w"])) / read_w / math.sqrt(len(rows))
    doubt += 2.0 * float(longest_s / spans.sum())
    off = max(0.0, abs(ratio - 1.0) - doubt)
    grade = INFO if doubt > FAR > off else PASS if off < NEAR else WARN if off < FAR else FAIL
    means = {
        INFO: "too few readings to compare them; use more --seconds",
        PASS: "they agree", WARN: "they differ in calibration; joules are those of the counter",
        FAIL: "they disagree: do not compare joules of this GPU with those of another",
    }
    return Finding(
        grade, what, f"{counted_w:.1f} W / {read_w:.1f} W = {ratio:.3f} ± {doubt:.3f}", means[grade]
    )


def _integrates(device: OpenGpu, recorder: Recorder, span: tuple[float, float]) -> Finding:
    """Whether the energy counter integrates power all the time, or only sums power readings."""
    what, kind = "energy counter", CounterKind(device, recorder)
    kind.learn()
    compared = step_to_reading_ratio(recorder.rows(device.uuid, *span))
    why = ""
    if compared is not None:
        why = f" (its steps change {compared[0]:.2f} ± {compared[1]:.2f} times as much as the power readings)"
    if kind.part_time is None:
        means = "error bars allow for a counter that only sums readings"
        return Finding(INFO, what, f"not decided{why}", means)
    if kind.part_time:
        return Finding(WARN, what, f"only sums power readings{why}", "error bars cover values between them")
    return Finding(PASS, what, f"integrates all the time{why}", "its joules are exact between two refreshes")
