"""Access of the panels to their Jupyter kernel, and to the front end behind it."""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import threading
from typing import Any

CONTROL = "jupyter.widget.control"  # the comm that restores widgets


def kernel() -> Any:
    """The Jupyter kernel of this process, None outside of one."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)


def has_widgets() -> bool:
    """Whether the request that is being executed came from a front end that draws widgets.

    JupyterLab and similar front ends name the cell that they execute. Programs that run notebooks for their
    output do not, and a widget in that output would stay empty.
    """
    return bool(executed()[0])


def executed() -> tuple[str, str]:
    """The ids of the cell that is being executed and of the request for it; empty where unknown."""
    try:
        parent = kernel().get_parent("shell")
        return parent.get("metadata", {}).get("cellId", ""), parent["header"]["msg_id"]
    except Exception:
        return "", ""


def cell_is_running() -> bool:
    """Whether the main thread executes a cell now: its stack contains IPython's `run_code`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != "run_code":
        frame = frame.f_back
    return frame is not None


def unblock(widget: Any) -> None:
    """Handle messages of a widget and of its parts while a cell runs.

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


def answer_while_busy() -> None:
    """Let a reloaded page find its widgets while a cell runs.

    JupyterLab asks the main shell for them, which a cell blocks. Here ipykernel 7's thread for the shell
    channel answers these requests itself. Other kernels are left as they are.
    """
    present = kernel()
    thread, stream = (getattr(present, name, None) for name in ("shell_channel_thread", "shell_stream"))
    if not thread or not stream or hasattr(present, "_workbench_answers"):
        return

    async def receive(frames: Any) -> None:
        idents, rest = present.session.feed_identities(frames, copy=False)
        with contextlib.suppress(Exception):  # the kernel reports an invalid message
            message = present.session.deserialize(rest, content=False, copy=False)
            kind, content = message["header"]["msg_type"], present.session.unpack(message["content"])
            if _asks_for_widgets(present, kind, content) and cell_is_running():
                handled = present.shell_handlers[kind](stream, idents, message | {"content": content})
                if inspect.isawaitable(handled):
                    await handled
                present._publish_status("idle", "shell", parent=message)
                return
        await present.shell_channel_thread_main(frames)

    present._workbench_answers = receive
    thread.io_loop.add_callback(stream.on_recv, receive, copy=False)


def _asks_for_widgets(kernel: Any, kind: str, content: dict[str, Any]) -> bool:
    """Whether a message on the shell channel is one of those that a page sends to restore its widgets."""
    if kind == "comm_msg":
        comm = kernel.comm_manager.get_comm(content["comm_id"])
        return content["data"].get("method") == "request_state" or getattr(comm, "target_name", "") == CONTROL
    return kind in ("kernel_info_request", "comm_info_request") or content.get("target_name") == CONTROL


def interrupt_cell() -> None:
    """Interrupt the running cell as the front end's own stop button does; from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
