"""What was found on a GPU before it was changed, on disk, to restore it. Standard library only."""

from __future__ import annotations

import json
import math
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from .. import _paths, _processes
from ..errors import DeviceError
from ..records import Setting
from . import locks

KNOBS = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")
LARGEST_BYTES = 16 * 2**20


@dataclass
class Journal:
    """What was found before the first change, and what was set since.

    Attributes:
        limits_w: Every power limit that this process has set or is about to set, each once.
    """

    uuid: str
    name: str
    pid: int
    started: str
    before_w: float | None
    simulated: str
    touched: list[str] = field(default_factory=list)
    limits_w: list[float] = field(default_factory=list)
    host: str = ""
    boot_id: str = ""
    namespace: str = ""  # that the pid counts in; journals of older versions tell none

    @property
    def path(self) -> Path:
        return _paths.journals() / _paths.named(self.uuid, ".json")

    def write(self) -> None:
        """Replace the file on disk in one step, and wait until the disk has it. Raises DeviceError."""
        try:
            with _paths.replacing(self.path) as file:
                file.write(json.dumps(self.__dict__).encode())
        except OSError as error:
            raise DeviceError(f"{self.name} is not changed: its journal, from which it is put back after a "
                              f"kill, cannot be written ({error}); free space there, or set WORKBENCH_HOME"
                              ) from error

    def note(self, setting: Setting) -> None:
        """Write down what is about to be set."""
        before = self.touched, self.limits_w
        self.touched = [knob for knob in KNOBS if getattr(setting, knob) is not None or knob in self.touched]
        try:
            if setting.power_limit_w is not None:
                limit_w = float(setting.power_limit_w)  # JSON does not take NumPy's
                if math.isfinite(limit_w) and limit_w not in self.limits_w:  # the device refuses others
                    self.limits_w = [*self.limits_w, limit_w]
            self.write()
        except BaseException:
            self.touched, self.limits_w = before
            raise

    def remove(self) -> None:
        """Take the file away, unless another process has written it meanwhile."""
        found = load(self.path)
        if found is not None and found.writer == self.writer:
            self.path.unlink(missing_ok=True)

    @property
    def writer(self) -> tuple[int, str, str]:
        """The process that wrote it: its id, when it started, and the PID namespace."""
        return self.pid, self.started, self.namespace

    @property
    def of_this_host(self) -> bool:
        """Whether it was written on this machine: every start of a container has another host name, and the
        same boot.
        """
        if self.boot_id and self.boot_id == _processes.boot_id():
            return True
        return not self.host or self.host == socket.gethostname()

    @property
    def of_an_earlier_boot(self) -> bool:
        """Settings do not survive a reboot, so such a journal has nothing to restore."""
        now = _processes.boot_id()
        return bool(now and self.boot_id) and self.boot_id != now

    @property
    def of_this_process(self) -> bool:
        pid = os.getpid()
        return self.pid == pid and self.in_this_namespace and self.started == _processes.started_at(pid)

    @property
    def in_this_namespace(self) -> bool:
        """Whether the pid counts in the PID namespace of this process."""
        return self.namespace in ("", _processes.namespace())

    @property
    def writer_runs(self) -> bool:
        """Whether its writer still runs. In another PID namespace the lock in the same home shows it."""
        if self.in_this_namespace:
            return _processes.runs(self.pid, self.started)
        return bool(locks.holder(self.uuid))

    @property
    def is_sound(self) -> bool:
        """Whether every field is of its type: the file may have been damaged, or made by somebody."""
        texts = (self.uuid, self.name, self.started, self.simulated, self.host, self.boot_id, self.namespace)
        return (
            all(isinstance(text, str) and "\0" not in text for text in texts) and type(self.pid) is int
            and 0 < self.pid < 2**31 and (self.before_w is None or _is_power(self.before_w))
            and isinstance(self.touched, list) and all(knob in KNOBS for knob in self.touched)
            and isinstance(self.limits_w, list) and all(_is_power(limit_w) for limit_w in self.limits_w)
        )


def _is_power(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e6  # NaN is not


def of(uuid: str) -> Journal | None:
    """The journal of a GPU; None where there is none."""
    return load(_paths.journals() / _paths.named(uuid, ".json"))


def load(path: Path) -> Journal | None:
    """The journal of a file; None where there is none, or none that can be read."""
    try:
        with open(_paths.open_plain(path, os.O_RDONLY), encoding="utf-8") as file:
            journal = Journal(**json.loads(file.read(LARGEST_BYTES)))
        return journal if journal.is_sound and path.name == _paths.named(journal.uuid, ".json") else None
    except (OSError, ValueError, TypeError, RecursionError, DeviceError):
        return None
