"""Run the blocks of a how-to page in one process, on a stepped simulated GPU: python run_page.py [--write] PAGE

Works in the present directory. Python and cells share one namespace, as in a notebook. Commands of the shell go to
the command line's own `main`. A block of text right below shows its output: each line must be a line of the real
output, numbers apart. With `--write`, other lines become the nearest ones of the real output.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from pages import RUN, blocks, outputs

from workbench import cli
from workbench.measurement import session
from workbench.simulation.machine import simulate


class Both(io.StringIO):
    """Keeps the printed text and prints it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)
        return super().write(text)


def main(page: Path, *, write: bool = False) -> int:
    machine = simulate("V100", stepped=True, seed=1)
    shell = InteractiveShell.instance()
    text = page.read_text(encoding="utf-8")
    shown, wrong = outputs(text), []
    try:
        for block in blocks(text):
            if block.file:
                Path(block.file).write_text(block.body, encoding="utf-8")
            elif block.language in RUN and not block.reason:
                print(f"--- line {block.line}", flush=True)
                with contextlib.redirect_stdout(Both()) as printed, contextlib.redirect_stderr(printed):
                    if block.language == "shell":
                        failed = any(commands(block.body))
                        if "--simulate" in block.body:  # which runs in real time, and stays for this process
                            session.simulate("V100", stepped=True)
                    else:
                        failed = not shell.run_cell(block.body).success
                if failed:
                    print(f"{page.name}, line {block.line}: this block failed", file=sys.stderr)
                    return 1
                if "--simulate" not in block.body:  # in real time, on a busy machine, other lines appear
                    wrong += differences(shown.get(block.line, ""), printed.getvalue())
    finally:
        machine.close()
    if write:
        for line, real in wrong:
            text = text.replace(f"\n{line}\n", f"\n{real}\n")
        page.write_text(text, encoding="utf-8")
    elif wrong:
        print(f"{page.name} shows another output: python tests/docs/run_page.py --write", file=sys.stderr)
        print(*(f"- {line}\n+ {real}" for line, real in wrong), sep="\n", file=sys.stderr)
        return 1
    return 0


def differences(shown: str, printed: str) -> list[tuple[str, str]]:
    """Lines of a page that the real output does not have, each with the nearest one that it has."""
    real = {plain(line): line.rstrip() for line in printed.splitlines() if line.strip()}
    found = []
    for line in filter(str.strip, shown.splitlines()):
        if not line.startswith("...") and "…" not in line and plain(line) not in real:
            nearest = difflib.get_close_matches(plain(line), real, n=1, cutoff=0.0)
            found.append((line, real[nearest[0]] if nearest else "(nothing)"))
    return found


def plain(line: str) -> str:
    """A line without its numbers, identifiers, rulings and spaces."""
    line = re.sub(r"GPU-[0-9a-f-]+|0x[0-9a-f]+", "id", line.removeprefix("Out[0]: "))
    line = re.sub(r"[-−+]?\d[\d.,:]*(?:e[+-]?\d+)?", "#", line)
    line = re.sub(r" ± #", "", line)
    return re.sub(r"[\s─═┬┴┼╪╞╡┌┐└┘├┤]+", " ", line).strip()


def commands(body: str) -> list[int]:
    """Exit statuses of the lines of a block."""
    lines = [shlex.split(line, comments=True) for line in body.replace("\\\n", " ").splitlines()]
    here = Path(sys.executable).name
    statuses = []
    for program, *arguments in filter(None, lines):
        if program == "export":
            os.environ.update([each.split("=", 1) for each in arguments])
            continue
        if program != "workbench":
            raise SystemExit(f"{program}: only `workbench` is run here; mark the block as not run, with the reason")
        arguments = [sys.executable if each in ("python", here) else each for each in arguments]
        statuses.append(cli.main(arguments))
    return statuses


if __name__ == "__main__":
    # At the end nothing is waited for that a page has started.
    status = main(Path(sys.argv[-1]), write="--write" in sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
