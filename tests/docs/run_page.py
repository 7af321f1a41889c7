"""Run what a how-to page says, in one process, on a stepped simulated GPU: python run_page.py PAGE

Works in the present directory. Python and cells share one namespace, as in a notebook; commands of the shell go to
the command line's own `main`.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from pages import RUN, blocks

from workbench import cli
from workbench.measurement import session
from workbench.simulation.machine import simulate


def main(page: Path) -> int:
    machine = simulate("V100", stepped=True, seed=1)
    shell = InteractiveShell.instance()
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            if block.file:
                Path(block.file).write_text(block.body, encoding="utf-8")
            elif block.language in RUN and not block.reason:
                print(f"--- line {block.line}", flush=True)
                if block.language == "shell":
                    failed = any(commands(block.body))
                    if "--simulate" in block.body:  # which runs in real time, and stays for this process
                        session.simulate("V100", stepped=True)
                else:
                    failed = not shell.run_cell(block.body).success
                if failed:
                    print(f"{page.name}, line {block.line}: this block failed", file=sys.stderr)
                    return 1
    finally:
        machine.close()
    return 0


def commands(body: str) -> list[int]:
    """Exit statuses of the lines of a block."""
    lines = [shlex.split(line, comments=True) for line in body.replace("\\\n", " ").splitlines()]
    here = Path(sys.executable).name
    statuses = []
    for program, *arguments in filter(None, lines):
        if program != "workbench":
            raise SystemExit(f"{program}: only `workbench` is run here; mark the block as not run, with the reason")
        arguments = [sys.executable if each in ("python", here) else each for each in arguments]
        statuses.append(cli.main(arguments))
    return statuses


if __name__ == "__main__":
    # At the end nothing is waited for that a page has started.
    status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
