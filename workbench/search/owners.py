"""Who runs an attempt, and whether they still do: a process of this machine is asked for, one elsewhere is waited for."""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

PATIENCE_S = 24 * 3600.0  # without a word from another machine
"""An epoch that takes longer than that needs a larger one."""


def me() -> dict[str, Any]:
    """This process, so that another one can tell whether it still runs."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "started": _started(pid)}


def gone(owner: dict[str, Any], seen_unix_s: float, *, patience_s: float = PATIENCE_S, now_unix_s: float | None = None) -> str:
    """Why an attempt is nobody's any more; empty while it may still end."""
    if owner.get("host") == socket.gethostname():
        if owner.get("boot") != _boot() and owner.get("boot") and _boot():
            return "the machine was restarted while it ran"
        now = _started(int(owner.get("pid", 0)))
        return "" if now and now == owner.get("started") else f"its process ({owner.get('pid')}) is gone"
    silent_s = (time.time() if now_unix_s is None else now_unix_s) - seen_unix_s
    return f"nothing was heard from {owner.get('host', 'its machine')} for {silent_s / 3600:.0f} hours" if silent_s > patience_s else ""


@lru_cache(maxsize=1)
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; empty for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] == b"Z" else fields[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self") or pid <= 0:
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "running"
