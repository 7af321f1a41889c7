"""What was found on a GPU before it was changed, on disk, for whoever has to put it back. Standard library only."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from .. import alive, places
from ..records import Setting

KNOBS = ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz")


@dataclass
class Journal:
    """What was found before the first change, and everything that was set since."""

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

    @property
    def path(self) -> Path:
        return places.journals() / f"{self.uuid}.json"

    def write(self) -> None:
        """Replace the file on disk in one step, and wait until the disk has it."""
        scratch = self.path.with_suffix(f".{os.getpid()}.tmp")
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(self.__dict__, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self.path)

    def note(self, setting: Setting) -> None:
        """Write down what is about to be set."""
        self.touched += [knob for knob in KNOBS if getattr(setting, knob) is not None and knob not in self.touched]
        if setting.power_limit_w is not None:
            self.limits_w.append(setting.power_limit_w)
        self.write()

    @property
    def of_this_host(self) -> bool:
        return not self.host or self.host == socket.gethostname()

    @property
    def of_an_earlier_boot(self) -> bool:
        """Settings do not survive a reboot, so such a journal has nothing to restore."""
        now = alive.boot_id()
        return bool(now and self.boot_id) and self.boot_id != now

    @property
    def writer_runs(self) -> bool:
        return alive.runs(self.pid, self.started)


def of(uuid: str) -> Journal | None:
    """The journal of a GPU; None where there is none."""
    return load(places.journals() / f"{uuid}.json")


def load(path: Path) -> Journal | None:
    """The journal of a file; None where there is none, or none that can be read."""
    try:
        return Journal(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None
