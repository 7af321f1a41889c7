"""What panels ask of the Jupyter kernel that they live in, and of the front end behind it."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any


def kernel() -> Any:
    """The Jupyter kernel of this process, None outside of one."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


def has_widgets() -> bool:
    """Whether the request that is being executed came from a front end that draws widgets.

    JupyterLab and its relatives name the cell that they execute; programs that run notebooks for their output
    do not, and what they keep would show no widget later.
    """
    present = kernel()
    if present is None:
        return False
    try:
        metadata = present.get_parent("shell").get("metadata", {})
    except Exception:
        return False
    return "cellId" in metadata


def cell_is_running() -> bool:
    """Whether the main thread executes a cell now: IPython's `run_code` is among what it is in."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != "run_code":
        frame = frame.f_back
    return frame is not None


def unblock(widget: Any) -> None:
    """Let a widget's messages be handled while a cell runs, its parts' too.

    JupyterLab sends them to a subshell. ipykernel 7.4.0 gives them back to the shell that last published on
    the comm, which for a widget made in a cell is the one that is busy. Kernels without that method need
    nothing.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
    for part in (
        getattr(widget, "layout", None), getattr(widget, "style", None), *getattr(widget, "children", ()),
    ):
        if hasattr(part, "comm"):
            unblock(part)


def interrupt_cell() -> None:
    """Interrupt the running cell as the front end's own stop button does; from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
