"""How a job's process begins: it dies with whoever started it, and a function comes to it by value. Standard
library only.

The arguments are the starter's pid, then `command`, a program and its arguments, or `function`, a file of a
pickled function and a list of import paths.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when the starter is, at once; the guardian sees to the processes that it begins."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we had asked
        os.kill(os.getpid(), signal.SIGKILL)


def call(path: str) -> None:
    """Run a pickled function; what it returns is gone through if it is an iterator, each item being an
    iteration.
    """
    with open(path, "rb") as file:
        function: Any = pickle.load(file)
    result = function()
    if hasattr(result, "__next__"):
        from workbench.measurement import marks

        for _ in result:
            marks.step()


def main(arguments: list[str]) -> None:
    parent, kind, *rest = arguments
    die_with(int(parent))
    # A shell that starts the comparison in the background leaves the interrupt ignored; it is how a job is
    # asked to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL if kind == "command" else signal.default_int_handler)
    if kind == "command":
        try:
            os.execvp(rest[0], rest)
        except OSError as error:
            print(f"{rest[0]}: {error.strerror}", file=sys.stderr)
            sys.exit(127)
    sys.path[:] = rest[1].split("\n")
    try:
        call(rest[0])
    except KeyboardInterrupt:
        sys.exit(130)
