"""How a job's process begins: it dies with its parent, and a function is passed by value. Standard
library only.

The arguments are the starter's pid, the signal that its end sends, then `command`, a program and its
arguments, or `function`, a file of a pickled function and a list of import paths.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: nobody's module is hidden by one of ours
from workbench import _processes


def call(path: str) -> None:
    """Run a pickled function; a returned iterator is exhausted, each item being an iteration.
    """
    with open(path, "rb") as file:
        function: Any = pickle.load(file)
    result = function()
    if hasattr(result, "__next__"):
        from workbench.measurement import marks

        for _ in result:
            marks.step()


def main(arguments: list[str]) -> None:
    parent, number, kind, *rest = arguments
    _processes.die_with(int(parent), int(number))  # the reaper sees to the processes that it begins
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
