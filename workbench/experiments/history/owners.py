"""Who runs an attempt, and whether they still do: a process of this machine is asked for, one elsewhere is
waited for.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from ... import _processes

PATIENCE_S = 24 * 3600.0  # without a word from another machine
"""An epoch that takes longer than that needs a larger one."""


def current_owner() -> dict[str, Any]:
    """This process, so that another one can tell whether it still runs."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(), "boot": _processes.boot_id(), "pid": pid,
        "started": _processes.started_at(pid),
    }


def is_abandoned(
    owner: dict[str, Any], seen_unix_s: float, *, patience_s: float = PATIENCE_S,
    now_unix_s: float | None = None,
) -> str:
    """Why an attempt is nobody's any more; empty while it may still end."""
    if owner.get("host") == socket.gethostname():
        if owner.get("boot") != _processes.boot_id() and owner.get("boot") and _processes.boot_id():
            return "the machine was restarted while it ran"
        pid = int(owner.get("pid", 0))
        return (
            ""
            if pid > 0 and _processes.runs(pid, owner.get("started", ""))
            else f"its process ({owner.get('pid')}) is gone"
        )
    silent_s = (time.time() if now_unix_s is None else now_unix_s) - seen_unix_s
    return (
        f"nothing was heard from {owner.get('host', 'its machine')} for {silent_s / 3600:.0f} hours"
        if silent_s > patience_s else ""
    )
