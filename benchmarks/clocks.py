"""Predict and search the clocks, and tune a running job: everything that docs/validation/clocks.md
claims, measured.

    python -m benchmarks.clocks [--only predictor|search|online] [--data DIR] [--json FILE] [--quick]

The three parts have modules of their own: `clocks_predictor`, `clocks_search`, `clocks_online`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # the matrices are small; threads only wait for each other

from workbench.errors import WorkbenchError  # noqa: E402

from .common import data_directory, finish  # noqa: E402

PARTS = ("predictor", "search", "online")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, default=data_directory(), metavar="DIR",
        help="measured data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given twice")
    options = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # tables appear as they are made, into files too
    summary: dict[str, Any] = {}
    result: dict[str, Any] = {"summary": summary}
    ended = False
    for part in options.only or PARTS:
        began = time.monotonic()
        try:
            run = getattr(importlib.import_module(f"{__package__}.clocks_{part}"), part)
            found = dict(run(options.data, options.quick))
            ended = True
        except Exception as error:  # what one part lacks costs no other its figures
            found = {"not_run": f"{type(error).__name__}: {error}"}
            if not isinstance(error, WorkbenchError | ImportError):
                traceback.print_exc()
            print(f"\n{part} was not run: {error}")
        summary[part] = found.pop("summary", {})
        result[part] = found | {"seconds": time.monotonic() - began}
        print(f"\n{part}: {time.monotonic() - began:.0f} s")
        finish(result, options.json)  # after every part: an interruption loses the running one only
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
