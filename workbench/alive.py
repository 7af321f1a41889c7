"""Whether a process of this machine still runs, and not another one under its number. Standard library only."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path


def runs(pid: int, started: str) -> bool:
    """Whether a process that started then still runs (and not another one under its number)."""
    now = started_at(pid)
    return bool(now) and (not started or now == started)


def started_at(pid: int) -> str:
    """When a process started, as the kernel counts; empty for one that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] == b"Z" else fields[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "running"


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Of this start of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
