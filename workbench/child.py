"""How this package's own processes are started: the interpreter's modules come before the user's.

Standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command(module: str, function: str, *arguments: str) -> list[str]:
    """The command line of a process that calls a function of this package with a list of arguments.

    The user's directories come last on its path: a `random.py` in one of them must not be taken for Python's.
    """
    paths = [
        str(Path(__file__).resolve().parent.parent),
        *(path for path in sys.path if path and os.path.isdir(path)),
    ]
    code = (
        f"import sys; sys.path += sys.argv[1].split('\\n'); from {module} import {function}; "
        f"{function}(sys.argv[2:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, "\n".join(paths), *arguments]
