"""Kills at a random moment, in every surrounding of a kernel: is the GPU restored, are measurements kept?

Each trial has its own machine and home. The machine is simulated, or one of a third-party stand-in driver
(`--driver` or `WORKBENCH_TEST_DRIVER`, or built from `mock_driver` next to the measured data). A process
measures cell after cell, lowers the power limit, locks the clock, and reports each stored measurement. At a
random moment after its first change it is killed. The watchdog has 10 s to restore limit and clock. If it
does not, a new session starts in the same surrounding, and must restore or report them.

`restored`: limit and clock are as before, by the watchdog or by the next start. `watchdog_failed`: the
watchdog survived the kill, but did not restore. `told`: the home with the journal has ended too, and the next
start reported a setting that is not the default. `hidden`: the next start could not reach the journal or the
GPU (another user's, fewer GPUs, a driver that fails); the start after it is charged. `not_restored`: still
changed after that, for no such reason. `silent`: still changed, and the next start reported nothing.
`disturbed`: a second process took the setting of a living one for a dead one's. `ended_early`: the
surrounding itself ended the process before its first change; no trial. `journals_lost`: still changed, and
no journal is left. With `--faults` the stand-in driver fails from the kill on, for 0.1 to 2 s at a random
call (and at the next start, where that restores), and nothing else is tried.

    python -m benchmarks.kills [--driver LIBRARY | --simulated] [--json FILE] [--quick] [--minutes M]
        [--stopped SECONDS] [--trials N] [--faults]

With `--minutes` no further trial begins after that time, and those of an earlier run in FILE are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measurement_drivers
from benchmarks.common import arguments, finish, table

TRIALS, QUICK_TRIALS = 1000, 40
CGROUPS = Path("/sys/fs/cgroup")
WATCHDOG_S = 10.0
STOPPED_S = 60.0  # how long a process is stopped before it is killed
USERS = (65533, 65534)
CARDS = ("A100", "V100", "H100", "RTX3090", "GH200", "B200")  # of the stand-in's machines
SLOW_S = 120.0  # for a start, on a machine with other work
CODES = (1, 2, 3, 4, 10, 13, 15, 19, 23, 26, 999)  # of a driver that fails
CALLS = (
    "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit*", "nvmlDeviceGet*", "nvml*",
    "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetHandleByUUID*", "nvmlDeviceGetUUID", "nvmlDeviceGetSupported*", "nvmlDeviceGetPower*",
)
MODULES = (
    "random", "copy", "types", "queue", "select", "code", "token", "abc", "datetime", "calendar",
    "string", "typing", "signal", "logging", "json", "enum", "socket", "inspect", "operator", "functools",
    "platform", "collections", "struct", "heapq", "email", "keyword", "http", "array", "bisect", "ast",
)

# What a notebook does first: a terminal's dispositions, the imports, its own directory first on the path.
BEGIN = """
import json, os, random, signal, sys, time
for each in (signal.SIGHUP, signal.SIGTERM, signal.SIGABRT):
    signal.signal(each, signal.SIG_DFL)
import polars
from workbench.measurement import session
from workbench.device import lease
from workbench.errors import DeviceError
from workbench.records import Setting
from workbench.logbook.store import Store
if own := os.environ.get("KILLS_OWN_MODULES"):
    sys.path.insert(0, own)
mine = session.current()
meter = mine.meter
print(json.dumps(mine.messages), flush=True)
"""
WORK = (
    BEGIN
    + """
work, store, rng = sys.argv[2], Store(), random.Random(int(sys.argv[3]))
device = mine.devices[0]
clocks = max(device.limits.sm_clocks_mhz.values(), key=len)

low_w, high_w = device.limits.min_power_limit_w, device.limits.max_power_limit_w

def drawn():
    limit_w = float(rng.randrange(int(low_w) + 5, int(high_w) - 5))
    return Setting(power_limit_w=limit_w, sm_clock_mhz=rng.choice(clocks))

def cell():
    mine.set_power_limit(device.uuid, drawn().power_limit_w)
    lease.change(device, Setting(sm_clock_mhz=drawn().sm_clock_mhz))
    print("changed", flush=True)
    time.sleep(rng.uniform(0.0, 0.08))
    mine.set_power_limit(device.uuid, drawn().power_limit_w)

def tune():
    if rng.random() < 0.1:
        way.restore()
    for _ in range(rng.randrange(2, 12)):
        way.apply(drawn())
        print("changed", flush=True)
        time.sleep(rng.uniform(0.0, 0.05))

way, refused = lease.Lease([device]), 0
while True:
    window = meter.open("cell")
    try:
        cell() if work == "cell" else tune()
    except DeviceError as error:  # another process holds it
        refused += 1
        if refused > 500:
            sys.exit(f"refused: {error}")
        time.sleep(0.02)
    window = meter.close(window)
    measurement = meter.measure(window, settle=False)
    if not session.keep(measurement, window, meter, store):
        print("stored", measurement.id, flush=True)
    if rng.random() < 0.03:
        mine.restore_all()
"""
)

# Commands that change the surrounding and then become, or run, the process.
_PRIVATE_SHM = "mount -t tmpfs none /dev/shm && "
_FIRST = ("--pid --fork --mount-proc", _PRIVATE_SHM + 'exec "$@"')  # the first process: all end with it
_BELOW = ("--pid --fork --mount-proc", _PRIVATE_SHM + '{ "$@" & wait; sleep 300; }')
_OWN_TMP = ("--mount", 'mount -t tmpfs none /tmp && exec "$@"')  # systemd's PrivateTmp, or a Slurm job's
_FULL = ("--mount", "mount -t tmpfs -o size=64k none /dev/shm && "
                    'head -c $(({pages} * 4096)) /dev/zero >/dev/shm/full && exec "$@"')


@dataclass(frozen=True)
class Surrounding:
    """Where a process runs and how it is killed.

    Args:
        name: Name of the row in the report.
        kills: Killed processes, in this order: "kernel", "group", "watchdog", "sampler", "second", "cgroup".
        with_signal: Their signal.
        at_once: Without a pause in between.
        work: "cell" or "tune".
        within: `unshare`'s options and the shell line that starts the process.
        next_within: The same for the next start.
        second: Whether a second process of the same user works on the same GPU, from the first change on.
        own_tmp: Every process has its own TMPDIR.
        own_modules: The user's directory has a module named like one of Python's own, each name in its turn.
        gpus: Simulated GPUs.
        home_goes: The home ends with the process, and the journal in it.
        stopped: Stopped for a while before the kill.
        reload: Reloaded part after the kill: "driver" (it has no users left) or "machine".
        users: The next start is another user's.
        seen: GPUs that the next start sees.
        disk: The home's file system: "full" from the first change on, or "read-only" from the start.
        faults: The driver fails at a random call from the kill on.
    """

    name: str
    kills: tuple[str, ...] = ("kernel",)
    with_signal: signal.Signals = signal.SIGKILL
    at_once: bool = False
    work: str = "cell"
    within: tuple[str, str] | None = None
    next_within: tuple[str, str] | None = None
    second: bool = False
    own_tmp: bool = False
    own_modules: bool = False
    gpus: int = 1
    home_goes: bool = False
    stopped: bool = False
    reload: str = ""
    users: bool = False
    seen: str = ""
    disk: str = ""
    faults: bool = False

    @property
    def hides(self) -> bool:
        """Whether the next start reaches neither the journal nor the GPU."""
        return self.users or bool(self.seen)

    @property
    def spares_watchdog(self) -> bool:
        return not {"watchdog", "cgroup"} & set(self.kills) and self.within is not _FIRST


SURROUNDINGS = (
    Surrounding("the kernel"),
    Surrounding("its process group", ("group",)),
    Surrounding("watchdog, then kernel", ("watchdog", "kernel")),
    Surrounding("kernel, watchdog and sampler together", ("kernel", "watchdog", "sampler"), at_once=True),
    Surrounding("sampler, then kernel", ("sampler", "kernel")),
    Surrounding("modules named like Python's", own_modules=True),
    Surrounding("SIGTERM", with_signal=signal.SIGTERM),
    Surrounding("SIGHUP", with_signal=signal.SIGHUP),
    Surrounding("os.abort", with_signal=signal.SIGABRT),
    Surrounding("changes as in tune", work="tune"),
    Surrounding("changes as in tune, group", ("group",), work="tune"),
    Surrounding("a TMPDIR each, watchdog too", ("kernel", "watchdog"), own_tmp=True, at_once=True),
    Surrounding("a TMPDIR each, two kernels", ("kernel", "second"), own_tmp=True, second=True),
    Surrounding("kernel in a PID namespace", within=_BELOW),
    Surrounding("end of a PID namespace", within=_FIRST, next_within=_FIRST, own_tmp=True),
    Surrounding("a PID namespace each, two kernels", ("kernel", "second"),
                within=_FIRST, next_within=_FIRST, second=True, own_tmp=True),
    Surrounding("/dev/shm nearly full", within=_FULL, next_within=_FULL, gpus=4),
    Surrounding("a private /tmp", within=_OWN_TMP, next_within=_OWN_TMP),
    Surrounding("a private /tmp, watchdog too", ("kernel", "watchdog"), at_once=True,
                within=_OWN_TMP, next_within=_OWN_TMP),
    Surrounding("a cgroup's end", ("cgroup",)),
    Surrounding("end of a PID namespace and of its home",
                within=_FIRST, next_within=_FIRST, own_tmp=True, home_goes=True),
    Surrounding("modules named like Python's, /tmp and watchdog", ("kernel", "watchdog"), at_once=True,
                within=_OWN_TMP, next_within=_OWN_TMP, own_modules=True),
)
_ALL = ("kernel", "watchdog", "sampler")
STOPS_AND_DISKS = (
    Surrounding("stopped, then killed", stopped=True),
    Surrounding("stopped with a second kernel, both killed", ("kernel", "second"), stopped=True, second=True),
    Surrounding("the home's disk full", disk="full"),
    Surrounding("the home's disk full, all together", _ALL, at_once=True, disk="full"),
    Surrounding("the home read-only", disk="read-only"),
    Surrounding("the home read-only, all together", _ALL, at_once=True, disk="read-only"),
)
OF_THE_STAND_IN = (
    Surrounding("the driver reloaded", _ALL, at_once=True, reload="driver"),
    Surrounding("the machine reloaded", _ALL, at_once=True, reload="machine"),
    Surrounding("another user's start", _ALL, at_once=True, users=True),
    Surrounding("another user's second kernel", ("kernel", "second"), second=True, users=True),
    Surrounding("a start that sees another GPU only", _ALL, at_once=True, gpus=2, seen="1"),
)
FAULTS = (
    Surrounding("the driver fails, the watchdog restores", faults=True),
    Surrounding("the driver fails, changes as in tune", work="tune", faults=True),
    Surrounding("the driver fails, the next start restores", _ALL, at_once=True, faults=True),
)
_ABOUT_SETTINGS = re.compile("restor|changed|journal")


@dataclass
class Outcome:
    """How one trial ended."""

    surrounding: str
    trial: int
    ended_early: str = ""
    changed_at_kill: bool = False
    restored_by: str = ""  # "itself" (before the kill), "watchdog", "next start", or nobody
    delay_s: float | None = None  # of the watchdog
    said: list[str] = field(default_factory=list)  # by the next start
    disturbed: bool = False
    stored: int = 0
    lost: int = 0
    watchdog_failed: bool = False  # it was spared, and did not restore
    home_gone: bool = False  # and the journal in it
    hidden: bool = False  # from the next start; a start after it has restored
    journal_lost: bool = False  # while it was changed
    fault: str = ""  # of the driver

    @property
    def silent(self) -> bool:
        """Still changed, without a report, or with a false report of a restore."""
        said = [each for each in self.said if not each.endswith("is restored")]
        return not self.ended_early and (self.hidden or not self.restored_by) and not said

    @property
    def told(self) -> bool:
        """Still changed, without a journal, but the next start has reported it."""
        return self.home_gone and not self.restored_by and not self.silent and not self.ended_early


class SimulatedMachine:
    """A machine of the simulator."""

    def __init__(self, directory: Path, gpus: int, seed: int) -> None:
        from workbench.simulation import machine
        from workbench.simulation.state import MachineState

        path = directory / "gpus"
        machine.create(["A100"] * gpus, path, seed=seed)
        self.state = MachineState(path)
        self.environment = {"WORKBENCH_SIMULATED_GPUS": str(path)}

    def settings(self) -> list[float]:
        names = ("limit_w", "lock_sm_max", "lock_mem_max")
        return [self.state.control(gpu, name) for gpu in range(self.state.count) for name in names]

    def close(self) -> None:
        self.state.close()


class StandInMachine:
    """A machine of a stand-in driver; another process, which is no client of it, looks at its settings."""

    LOOK = """
import ctypes, sys, threading
driver = ctypes.CDLL(sys.argv[1])
driver.mock_get.restype = ctypes.c_double
for line in sys.stdin:
    driver.mock_attach()
    seconds, _, rule = line.strip().partition(" ")
    if rule:
        driver.mock_fault(rule.encode())
        threading.Timer(float(seconds), driver.mock_clear_faults).start()
    names = ("limit_w", "lock_hi", "mlock_hi")
    gpus = range(int(sys.argv[2]))
    print(*(driver.mock_get(gpu, each.encode()) for gpu in gpus for each in names), flush=True)
"""

    def __init__(self, directory: Path, gpus: int, seed: int, library: Path, keeps: bool) -> None:
        self._gpus, self._library, self._state = gpus, library, directory / "state"
        config = directory / "machine.json"
        card = {"model": CARDS[seed % len(CARDS)], "count": gpus, "load": 2, "persistence": int(keeps)}
        config.write_text(json.dumps({"driver": "570.124.06", "seed": seed, "root": 0, "gpus": [card]}))
        self.environment = {
            "LD_LIBRARY_PATH": str(library.parent), "MOCKNVML_CONFIG": str(config),
            "MOCKNVML_STATE": str(self._state),
        }
        self._look()
        self.settings()
        self._state.chmod(0o666)

    def _look(self) -> None:
        self._looker = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self.LOOK, str(self._library), str(self._gpus)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **self.environment},
        )

    def settings(self, fault: str = "") -> list[float]:
        """The active settings; `fault` begins before that: seconds and a rule of the stand-in."""
        assert self._looker.stdin is not None
        assert self._looker.stdout is not None
        self._looker.stdin.write(f"{fault}\n")
        self._looker.stdin.flush()
        return [float(each) for each in self._looker.stdout.readline().split()]

    def reload(self) -> None:
        """The machine starts again: nothing that was set is left."""
        self.close()
        self._state.unlink()
        self._look()
        self.settings()

    def close(self) -> None:
        self._looker.kill()
        self._looker.communicate()


class Trial:
    """One process and its machine, from the start to the next start.

    Args:
        number: Of the trial; it seeds everything.
        nth: Of this surrounding's trials.
        surrounding: Where it runs.
        unshare: The command that takes namespaces apart here.
        library: Of a stand-in driver; None for the simulator.
    """

    def __init__(
        self, number: int, nth: int, surrounding: Surrounding, unshare: str = "unshare",
        library: Path | None = None,
    ) -> None:
        self.number, self.nth, self.surrounding, self.unshare = number, nth, surrounding, unshare
        self.library = library
        self.rng = random.Random(f"kills {number}")
        self.outcome = Outcome(surrounding.name, number)
        private = _OWN_TMP in (surrounding.within, surrounding.next_within)  # hides what lies in /tmp
        self.directory = Path(tempfile.mkdtemp(prefix="kills-", dir="/var/tmp" if private else None))
        self.cgroup = CGROUPS / self.directory.name if "cgroup" in surrounding.kills else None
        self.home = self.directory / "home"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> Outcome:
        """The whole trial; nothing of it is left afterwards."""
        gpus, keeps = self.surrounding.gpus, self.surrounding.reload != "driver"
        self.machine: SimulatedMachine | StandInMachine = (
            SimulatedMachine(self.directory, gpus, self.number) if self.library is None
            else StandInMachine(self.directory, gpus, self.number, self.library, keeps)
        )
        self._found = self.machine.settings()
        try:
            self._make_home()
            self._run()
        finally:
            self._end()
        return self.outcome

    def _run(self) -> None:
        outcome, surrounding = self.outcome, self.surrounding
        self._start("kernel", WORK, surrounding.within)
        if not self._has("kernel", "changed"):
            outcome.ended_early = self._last_words("kernel")
            return
        self._fill_home()
        if surrounding.second:
            self._start("second", WORK, surrounding.next_within)
            if self._has("second", "["):
                said = self._lines("second")[0]  # the first one lives
                outcome.disturbed = "process that is gone" in said or "left alone" in said
        time.sleep(self.rng.uniform(0.0, 1.2))
        if surrounding.stopped:
            for pid in self._processes("kernel"):
                _send(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
        self._kill()
        killed_s = time.monotonic()
        if not outcome.changed_at_kill and self._back():
            outcome.restored_by = "itself"
        elif self._wait(self._back, WATCHDOG_S, partial(self._gone, "watchdog")):
            outcome.restored_by, outcome.delay_s = "watchdog", time.monotonic() - killed_s
        self._count()
        if surrounding.home_goes:
            shutil.rmtree(self.home, ignore_errors=True)
            outcome.home_gone = True
        if isinstance(self.machine, StandInMachine) and surrounding.reload == "machine":
            self.machine.reload()
            outcome.restored_by = ""  # whatever was before it
        if not outcome.restored_by:
            outcome.watchdog_failed = surrounding.spares_watchdog
            self._start_next("next")
            if not outcome.restored_by and (surrounding.hides or surrounding.faults):
                outcome.hidden = True
                self._start_next("owner")

    def _fail(self) -> None:
        """Have the driver fail from now on, for a while."""
        if self.surrounding.faults and isinstance(self.machine, StandInMachine):
            func, code, p = (self.rng.choice(each) for each in (CALLS, CODES, (0.3, 1)))
            rule = {"func": func, "code": code, "p": p}
            self.outcome.fault = f"{self.rng.uniform(0.1, 2.0):.2f} {json.dumps(rule)}"
            self.machine.settings(self.outcome.fault)

    def _kill(self) -> None:
        self._fail()
        for number, role in enumerate(self.surrounding.kills):
            if number and not self.surrounding.at_once:
                time.sleep(self.rng.uniform(0.0, 0.8 if role == "second" else 0.05))
            if role == "group":
                os.killpg(self._started["kernel"].pid, self.surrounding.with_signal)
                continue
            if self.cgroup is not None:
                (self.cgroup / "cgroup.kill").write_text("1")
                continue
            for pid in self._processes(role):
                _send(pid, self.surrounding.with_signal)
        self.outcome.changed_at_kill = self.machine.settings() != self._found
        for role in ("kernel", "second"):
            self._wait(partial(self._gone, role), SLOW_S)

    def _start_next(self, role: str) -> None:
        """The next start of a session, which restores or says why not."""
        outcome = self.outcome
        outcome.journal_lost |= self.surrounding.faults and self._is_lost()
        self._start(role, BEGIN, self.surrounding.next_within)
        if role == "next" and self.surrounding.faults:
            time.sleep(self.rng.uniform(0.3, 1.5))
            self._fail()
        self._started[role].wait(SLOW_S)
        lines = self._lines(role)
        if not outcome.hidden:
            outcome.said = [*filter(_ABOUT_SETTINGS.search, json.loads(lines[0]) if lines else [])]
        outcome.journal_lost |= self.surrounding.faults and self._is_lost()
        if self._wait(self._back, WATCHDOG_S, partial(self._gone, "watchdog")):
            outcome.restored_by = "next start"
        elif not lines:
            print(f"\ntrial {self.number}: the next start failed: {self._last_words(role)}")

    def _count(self) -> None:
        """Measurements that were reported as stored, and those of them that are not there."""
        from workbench.logbook.store import Store

        lines = self._lines("kernel") + self._lines("second")
        told = {line.split()[1] for line in lines if line.startswith("stored ")}
        homes = self.home, self.home.with_name("other"), *self.directory.glob("tmp*/gpu-energy-workbench-*/")
        stores = [Store(home) for home in homes if home.exists()]
        kept = {each for store in stores for each in store.log()["id"].to_list()}
        damaged = sum(len(store.messages()) for store in stores)
        self.outcome.stored, self.outcome.lost = len(told), len(told - kept) + damaged

    def _gone(self, role: str) -> bool:
        return not self._processes(role)

    def _back(self) -> bool:
        """Whether every GPU is as it was found and nothing is owed that a disk would let go."""
        owed = not self.surrounding.disk and list(self.home.glob("journals/*.json"))
        return self.machine.settings() == self._found and not owed

    def _is_lost(self) -> bool:
        return self.machine.settings() != self._found and not list(self.home.glob("journals/*.json"))

    def _make_home(self) -> None:
        users = self.surrounding.users
        self.directory.chmod(0o755)
        for home, uid in zip((self.home, self.home.with_name("other")), USERS, strict=True):
            if users or self.surrounding.disk:
                home.mkdir()
            if users:
                os.chown(home, uid, uid)
        if self.surrounding.disk:
            _mount("-t", "tmpfs", "-o", "size=1m", "none", self.home)
        if self.surrounding.disk == "read-only":
            _mount("-o", "remount,ro", self.home)

    def _fill_home(self) -> None:
        if self.surrounding.disk == "full":
            with contextlib.suppress(OSError), open(self.home / "full", "wb", buffering=0) as file:
                while True:
                    file.write(b"0" * 4096)

    # processes

    def _start(self, role: str, code: str, within: tuple[str, str] | None) -> None:
        surrounding = self.surrounding
        tmp = self.directory / (f"tmp-{role}" if surrounding.own_tmp else "tmp")
        if within is _OWN_TMP:
            tmp = Path("/tmp")
        if not tmp.exists():
            tmp.mkdir()
            tmp.chmod(0o1777)
        stranger = surrounding.users and role in ("second", "next")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")},
            **self.machine.environment, "KILLS_TRIAL": str(self.directory),
            "WORKBENCH_HOME": str(self.home.with_name("other") if stranger else self.home),
            "TMPDIR": str(tmp), "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        }
        if surrounding.own_modules:
            environment["KILLS_OWN_MODULES"] = str(self._modules())
        if surrounding.seen and role == "next":
            environment["MOCKNVML_VISIBLE"] = surrounding.seen
        command = [sys.executable, "-c", code, role, surrounding.work, str(self.number)]
        if surrounding.users:
            # rights on the GPU, and to read Python where it is root's
            uid, may = str(USERS[stranger]), "+sys_admin,+dac_read_search"
            rights = ["--inh-caps", may, "--ambient-caps", may]
            command = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *rights, *command]
        if within is not None:
            options, line = within
            line = line.replace("{pages}", str(13 + self.nth % 3))  # of 16
            command = [*shlex.split(self.unshare), *options.split(), "sh", "-c", line, "sh", *command]
        if self.cgroup is not None and role == "kernel":
            self.cgroup.mkdir()
            joins = f"echo $$ > {self.cgroup}/cgroup.procs && exec " + '"$@"'
            command = ["sh", "-c", joins, "sh", *command]
        log = self.directory / role
        with open(log.with_suffix(".out"), "wb") as out, open(log.with_suffix(".err"), "wb") as err:
            self._started[role] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                   env=environment, start_new_session=True)

    def _modules(self) -> Path:
        directory = self.directory / "src"
        directory.mkdir(exist_ok=True)
        name = MODULES[self.nth % len(MODULES)]
        (directory / f"{name}.py").write_text("SEED = 1  # a module of the user's own\n", encoding="utf-8")
        return directory

    def _processes(self, role: str = "") -> list[int]:
        """Living processes of this trial, in whatever namespace: their environment tells."""
        started = self._started.get(role)
        found = []
        for pid, argv in _of_environment(f"KILLS_TRIAL={self.directory}".encode()):
            if role in ("", "watchdog", "sampler"):
                ours = not role or any(role.encode() in part for part in argv)
            elif self.surrounding.within is None and started is not None:
                ours = pid == started.pid
            else:
                ours = argv[0] == sys.executable.encode() and role.encode() in argv[3:4]
            if ours:
                found.append(pid)
        return found

    def _lines(self, role: str) -> list[str]:
        path = self.directory / f"{role}.out"
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
        return whole.splitlines()

    def _last_words(self, role: str) -> str:
        said = (self.directory / f"{role}.err").read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in said if line.strip()]
        return said[-1] if said else f"exit status {self._started[role].poll()}"

    def _has(self, role: str, word: str) -> bool:
        """Wait for a line that begins so; False where the process ends before, or nothing comes."""
        process = self._started[role]

        def there() -> bool:
            return any(line.startswith(word) for line in self._lines(role))

        return self._wait(there, SLOW_S, lambda: process.poll() is not None)

    def _wait(
        self, true: Callable[[], bool], timeout_s: float, hopeless: Callable[[], bool] = lambda: False
    ) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not true():
            for process in self._started.values():
                process.poll()
            if hopeless() or time.monotonic() > deadline_s:
                return true()
            time.sleep(0.005)
        return True

    def _end(self) -> None:
        """Kill whatever of the trial still runs, and remove its files."""
        while pids := self._processes():
            for pid in pids:
                _send(pid, signal.SIGKILL)
            for process in self._started.values():
                process.poll()
            time.sleep(0.005)
        for process in self._started.values():
            process.wait()
        self.machine.close()
        if os.path.ismount(self.home):
            subprocess.run(["umount", str(self.home)], check=True)
        if self.cgroup is not None and self.cgroup.exists():
            self.cgroup.rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)


def _of_environment(variable: bytes) -> Iterable[tuple[int, list[bytes]]]:
    """Pid and arguments of the living processes with this variable."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if variable in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # gone, or of somebody else
            continue


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def permitted(surrounding: Surrounding) -> tuple[str, str]:
    """The `unshare` that may be called here for a surrounding, and why there is none (else empty)."""
    problem = ""
    if "cgroup" in surrounding.kills and not os.access(CGROUPS / "cgroup.procs", os.W_OK):
        return "unshare", f"no cgroup can be made in {CGROUPS}"
    if (surrounding.disk or surrounding.users) and os.geteuid() != 0:
        return "unshare", "it takes root"
    if surrounding.disk:
        with tempfile.TemporaryDirectory() as place:
            try:
                _mount("-t", "tmpfs", "none", place)
            except (OSError, subprocess.CalledProcessError) as error:
                return "unshare", f"nothing can be mounted here ({error})"
            subprocess.run(["umount", place], check=True)
    for unshare in ("unshare", "unshare --user --map-root-user"):
        for options, _ in filter(None, (surrounding.within, surrounding.next_within)):
            command = [*shlex.split(unshare), *options.split(), "mount", "-t", "tmpfs", "none", "/dev/shm"]
            try:
                tried = subprocess.run(command, capture_output=True, text=True, timeout=SLOW_S)
            except OSError as error:
                return unshare, str(error)
            if tried.returncode:
                problem = tried.stderr.strip() or f"exit status {tried.returncode}"
                break
        else:
            return unshare, ""
    return "unshare", problem


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts of some trials, and the watchdog's delays in seconds."""
    killed = [each for each in outcomes if not each.ended_early]
    delays_s = sorted(each.delay_s for each in killed if each.delay_s is not None)
    return {
        "trials": len(killed), "unchanged_at_kill": sum(each.restored_by == "itself" for each in killed),
        "restored": sum(bool(each.restored_by) for each in killed),
        "by_watchdog": sum(each.restored_by == "watchdog" for each in killed),
        "by_next_start": sum(each.restored_by == "next start" for each in killed),
        "watchdog_failed": sum(each.watchdog_failed for each in killed),
        "hidden": sum(each.hidden for each in killed), "told": sum(each.told for each in killed),
        "not_restored": sum(not each.restored_by and not each.told for each in killed),
        "silent": sum(each.silent for each in killed),
        "journals_lost": sum(each.journal_lost for each in killed),
        "disturbed": sum(each.disturbed for each in killed), "ended_early": len(outcomes) - len(killed),
        "stored": sum(each.stored for each in killed), "lost": sum(each.lost for each in killed),
        "restore_median_s": delays_s[len(delays_s) // 2] if delays_s else None,
        "restore_max_s": delays_s[-1] if delays_s else None,
    }


def by_surrounding(surroundings: Iterable[Surrounding], outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """The `summary` of each surrounding's trials, by its name."""
    return {each.name: summary([o for o in outcomes if o.surrounding == each.name]) for each in surroundings}


def trial(
    number: int, nth: int, surrounding: Surrounding, unshare: str = "unshare", library: Path | None = None
) -> Outcome:
    """One trial, begun and ended."""
    return Trial(number, nth, surrounding, unshare, library).run()


def run(
    trials: int, surroundings: Iterable[Surrounding], unshare: dict[str, str], *, minutes: float = math.inf,
    before: Iterable[Outcome] = (), library: Path | None = None,
) -> list[Outcome]:
    """So many trials over these surroundings, one after the other, two at a time.

    Args:
        trials: How many, those of an earlier run (`before`) among them.
        surroundings: They take turns.
        unshare: What each is started with, by name.
        minutes: No further trial begins after so long.
        before: Outcomes of the trials of an earlier run.
        library: Of a stand-in driver.
    """
    outcomes, until_s = list(before), time.monotonic() + 60 * minutes
    plan = list(itertools.islice(itertools.cycle(enumerate(surroundings)), trials))
    counted: dict[int, int] = {}

    def attempt(number: int, nth: int, surrounding: Surrounding) -> Outcome | None:
        if time.monotonic() > until_s:
            return None
        return trial(number, nth, surrounding, unshare[surrounding.name], library)

    with ThreadPoolExecutor(2) as pool:
        ready = []
        for number, (which, surrounding) in enumerate(plan):
            nth = counted[which] = counted.get(which, -1) + 1
            if number >= len(outcomes):
                ready.append(pool.submit(attempt, number, nth, surrounding))
        for each in ready:
            if (outcome := each.result()) is None:
                continue
            outcomes.append(outcome)
            now = summary(outcomes)
            line = f"restored {now['restored']} of {now['trials']}, told {now['told']}, "
            line += f"silent {now['silent']}, measurements stored {now['stored']}, lost {now['lost']}"
            print(f"\r{len(outcomes)}/{trials}: {line}  ", end="", flush=True)
    print()
    return outcomes


def main() -> None:
    global STOPPED_S
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--stopped", type=float, default=STOPPED_S)
    parser.add_argument("--driver", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--faults", action="store_true")
    pieces, rest = parser.parse_known_args()
    options, STOPPED_S = arguments(__doc__ or "", rest), pieces.stopped
    before = []
    if math.isfinite(pieces.minutes) and options.json and options.json.exists():
        before = [Outcome(**row) for row in json.loads(options.json.read_text())["outcomes"]]
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with tempfile.TemporaryDirectory() as scratch:
        path = pieces.driver.resolve() if pieces.driver else None
        if path is None and not pieces.simulated:
            path = measurement_drivers.library(options.data, Path(scratch))
        every = SURROUNDINGS + STOPS_AND_DISKS + (OF_THE_STAND_IN if path else ())
        every = FAULTS if pieces.faults else every
        asked = {each: permitted(each) for each in every}
        unshare = {each.name: command for each, (command, problem) in asked.items() if not problem}
        left_out = {each.name: problem for each, (_, problem) in asked.items() if problem}
        if path is None:
            left_out |= {each.name: "no stand-in driver" for each in OF_THE_STAND_IN}
        counted = [each for each in every if each.name in unshare]
        trials = pieces.trials or (QUICK_TRIALS if options.quick else TRIALS)
        Path(scratch).chmod(0o755)
        outcomes = run(trials, counted, unshare, minutes=pieces.minutes, before=before, library=path)
    result, rows = summary(outcomes), by_surrounding(counted, outcomes)
    left = ("stored", "lost", "restored", "unchanged_at_kill")
    heads = [head for head in result if head not in left]
    shown = [(name, *(row[head] for head in heads)) for name, row in rows.items()]
    print(table(("killed", *heads), shown))
    for name, problem in left_out.items():
        print(f"left out: {name} ({problem})")
    line = f"restored {result['restored']} of {result['trials']}, {result['silent']} silent"
    line += f", {result['ended_early']} ended early"
    print(f"\n{line}; {result['lost']} of {result['stored']} stored measurements lost")
    failures = [asdict(o) for o in outcomes if not (o.restored_by or o.told) or o.watchdog_failed
                or o.disturbed or o.lost or o.journal_lost or o.silent]
    told = {"driver": "stand-in" if path else "simulator", "summary": result, "surroundings": rows,
            "left_out": left_out, "failures": failures}
    finish({**told, "outcomes": [asdict(each) for each in outcomes]}, options.json)


if __name__ == "__main__":
    main()
