"""Reads the `%%energy` line of a cell: finds it among stacked magics, strips it, parses its options.

The cell itself then runs natively: its value, errors, top-level `await`, `;` and interrupts are IPython's
own.
"""

from __future__ import annotations

import argparse
import keyword
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

MAGIC = "%%energy"
# Those whose body is a cell of Python. What stands below any other magic, `%%writefile` say, is that magic's
# text.
SEEN_THROUGH = (MAGIC, "%%time", "%%capture", "%%prun")


@dataclass(frozen=True, slots=True)
class Options:
    """What a `%%energy` line asks for; None leaves it to the configuration."""

    label: str = ""
    gpu: str | None = None
    live: bool | None = None
    repeat: int = 1
    quiet: bool | None = None
    output: str | None = None
    sync: bool | None = None
    settle: bool = True
    period: bool | None = None
    tune: bool = False
    objective: str = "energy"
    max_slowdown: float = 5.0  # %
    over: str = "both"


class BadOptions(Exception):
    """A `%%energy` line that cannot be understood; the message is for the person who wrote it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOptions(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise BadOptions(message or "see %%energy?")


def parser() -> argparse.ArgumentParser:
    """The options of `%%energy`, also the source of its help and completion."""
    options = _Parser(prog=MAGIC, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("label", nargs="*", help="name of the measurement in the log")
    options.add_argument(
        "--gpu", metavar="GPU[,GPU...]", help="count these GPUs only: index, UUID or its beginning, PCI id"
    )
    options.add_argument(
        "--live", action=argparse.BooleanOptionalAction, default=None, help="plot power while the cell runs"
    )
    options.add_argument(
        "--repeat", "-r", type=int, default=1, metavar="N", help="run the cell N times: mean and deviation"
    )
    options.add_argument(
        "--quiet", "-q", action="store_true", default=None, help="measure and store, show nothing"
    )
    options.add_argument("-o", dest="output", metavar="NAME", help="put the measurement into this variable")
    options.add_argument("--sync", action=argparse.BooleanOptionalAction, default=None,
                         help="wait for queued GPU work of torch, JAX and CuPy at both edges")
    options.add_argument("--settle", action=argparse.BooleanOptionalAction, default=True,
                         help="wait one sensor refresh after the cell (about 0.1 s) for a smaller error")
    options.add_argument(
        "--period", action=argparse.BooleanOptionalAction, default=None,
        help="find the training's iterations and what one costs (by default from 3 s on, or where the cell "
             "calls "
        "workbench.step())",
    )
    options.add_argument(
        "--tune", action="store_true",
        help="while the cell runs, find the power limit and clocks that cost least, and hold them",
    )
    options.add_argument(
        "--objective", metavar="NAME",
        help="what --tune makes small: energy (the default), edp, ed2p, zeus, time",
    )
    options.add_argument(
        "--max-slowdown", type=float, metavar="PERCENT",
        help="how much longer it may take with --tune (default: 5)",
    )
    options.add_argument(
        "--over", choices=("power", "clocks", "both"), help="what --tune may set (default: both)"
    )
    return options


def parse(line: str) -> Options:
    """The options of a line (without the magic's name).

    Raises:
        BadOptions: with a sentence that says what is wrong and where help is.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadOptions(f"{MAGIC} {line}: {error}") from error
    try:
        found = parser().parse_args(words)
    except BadOptions as error:
        raise BadOptions(f"{MAGIC} {line}: {error}; %%energy? lists the options") from error
    if found.repeat < 1:
        raise BadOptions(f"--repeat {found.repeat}: a cell runs at least once")
    if found.output is not None and (not found.output.isidentifier() or keyword.iskeyword(found.output)):
        raise BadOptions(f"-o {found.output}: that is no name for a variable")
    return Options(
        " ".join(found.label), found.gpu, found.live, found.repeat, found.quiet, found.output, found.sync,
        found.settle, found.period, *_tuning(found),
    )


def _tuning(found: argparse.Namespace) -> tuple[bool, str, float, str]:
    """What `--tune` asks for: whether, objective, percent of slowdown, and what may be set."""
    given = [name for name in ("objective", "max_slowdown", "over") if getattr(found, name) is not None]
    if not found.tune:
        if given:
            raise BadOptions(f"--{given[0].replace('_', '-')} belongs to --tune, which is not there")
        return False, "energy", 5.0, "both"
    from workbench.tuning.results import OBJECTIVES

    if found.objective is not None and found.objective not in OBJECTIVES:
        raise BadOptions(
            f"--objective {found.objective}: there is none of that name; choose {', '.join(OBJECTIVES)}"
        )
    percent = 5.0 if found.max_slowdown is None else found.max_slowdown
    if not 0 <= percent <= 100:
        raise BadOptions(
            f"--max-slowdown {percent:g}: give a percentage from 0 to 100; 5 allows 5 % more time"
        )
    return True, found.objective or "energy", percent, found.over or "both"


def energy_line(cell: str) -> str | None:
    """What follows `%%energy` in a cell, on its first line or among stacked cell magics; None where it is
    not used.
    """
    return next((rest for _, magic, rest in _stacked(cell.splitlines()) if magic == MAGIC), None)


def strip(lines: Sequence[str]) -> list[str]:
    """An IPython input transformer: the cell without its `%%energy` line. A line that asks for help stays."""
    ours = {number for number, magic, _ in _stacked(lines) if magic == MAGIC}
    return [line for number, line in enumerate(lines) if number not in ours]


def _stacked(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """The magics at the top of a cell that are seen through: number of the line, name, and what follows
    it.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    indent = len(lines[first]) - len(lines[first].lstrip()) if first < len(lines) else 0
    for number in range(first, len(lines)):
        line = lines[number]
        magic, *rest = line[indent:].split(maxsplit=1) or [""]
        if magic not in SEEN_THROUGH or line[:indent].strip() or not line[indent:].startswith("%%"):
            return
        yield number, magic, rest[0].strip() if rest else ""
