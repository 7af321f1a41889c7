"""Reads the `%%energy` line of a cell, which itself runs natively; the command line's options too."""

from __future__ import annotations

import argparse
import contextlib
import keyword
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from workbench.errors import (
    NoDriver,
    SimulationError,
    UnknownGpu,
    UsageError,
    WorkbenchError,
    listed,
    near,
    shortened,
)

MAGIC = "%%energy"
# Those whose body is a cell of Python; what stands below any other magic (`%%writefile`) is its text.
TRANSPARENT = (MAGIC, "%%time", "%%capture", "%%prun")


@dataclass(frozen=True)
class Options:
    """The options of a `%%energy` line; None leaves one to the configuration."""

    label: str = ""
    gpus: str | None = None
    live: bool | None = None
    repeat: int = 1
    quiet: bool | None = None
    output: str | None = None
    sync: bool | None = None
    settle: bool = True
    period: bool | None = None
    tune: dict[str, Any] | None = None  # keywords of a tuner; None tunes nothing


class BadOptions(Exception):
    """Options that cannot be understood; the message is for the person who wrote them."""


class LineParser(argparse.ArgumentParser):
    """A parser of a magic's line. It raises `BadOptions` and never exits."""

    def error(self, message: str) -> NoReturn:
        known = (option for action in self._actions for option in action.option_strings)
        raise BadOptions(explained(message, known))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise BadOptions(message or "see %%energy?")

    def parse_line(self, line: str) -> argparse.Namespace:
        """Raises BadOptions with the line in its sentence."""
        try:
            return self.parse_args(without_empty(shlex.split(line)))
        except (ValueError, BadOptions) as error:
            parts = sentence(shortened(f"{self.prog} {line}: {error}"))
            raise BadOptions(f"{parts} {self.prog}? lists the options") from error


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends with a question."""
    return text if text.endswith("?") else f"{text}."


def explained(message: str, known: Iterable[str]) -> str:
    """An error of argparse in plain words, with a similar one of the `known` options or choices."""
    if given := re.fullmatch(r"argument (\S+): invalid (int|float) value: '(.*)'", message):
        return f"{given[1]} {given[3]}: give a {'whole ' * (given[2] == 'int')}number"
    if given := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        choices = re.findall(r"[-\w]+", given[2])
        return f"{given[1]!r} is unknown{near(given[1], choices, f'choose {listed(choices, 20)}')}"
    if given := re.match(r"unrecognized arguments: (\S+)", message):
        return f"{given[1]} is unknown{near(given[1], known)}"
    return message


def without_empty(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments of a line. Raises BadOptions for an empty one, which selects nothing or everything."""
    before = "the command"
    for word in arguments:
        if not word.strip() or re.fullmatch("-.*=", word):
            raise BadOptions(f"{word or before}: an empty value follows; give one, or leave it out")
        before = word
    return arguments


def percent(text: str) -> float:
    """A percentage of an option. A value below 1 that may be meant as a share is refused without "%".

    >>> percent("5"), percent("0.5%")
    (5.0, 0.5)
    """
    value = float(text.removesuffix("%"))
    if 0 < value < 1 and not text.endswith("%"):
        meant = f"{text} means {text} %; did you mean {100 * value:g}? Write {text}% for {text} %"
        raise argparse.ArgumentTypeError(meant)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is outside 0 to 100; 5 allows 5 % more time")
    return value


def add_measuring(options: argparse.ArgumentParser) -> None:
    """Options of a measured cell or command: GPUs, iterations, tuning."""
    options.add_argument("--gpus", action="append", metavar="GPU[,GPU...]",
                         help="count these GPUs only: index, UUID or its beginning, PCI id")
    options.add_argument("--period", action=argparse.BooleanOptionalAction, default=None,
                         help="find the training's iterations and what one costs (by default from 3 s on, or "
                              "where workbench.step() is called)")
    options.add_argument("--tune", action="store_true",
                         help="while it runs, find the power limit and clocks that cost least, and hold them")
    options.add_argument("--objective", metavar="NAME",
                         help="objective that --tune minimises: energy (the default), edp, ed2p, zeus, time")
    options.add_argument("--max-slowdown", type=percent, metavar="PERCENT",
                         help="how much longer it may take with --tune (default: 5)")
    options.add_argument("--over", choices=("power", "clocks", "both", "memory"),
                         help="what --tune may set (default: both)")
    options.add_argument("--warm-start", action="store_true", default=None,
                         help="--tune first tries the best setting that earlier runs of this label have "
                              "measured on this GPU model; the events list them")


def tuning_options(found: argparse.Namespace) -> dict[str, Any] | None:
    """What `--tune` asks of a tuner; None without it. Raises BadOptions for values that make no sense."""
    names = ("objective", "max_slowdown", "over", "warm_start")
    given = [name for name in names if getattr(found, name) is not None]
    if not found.tune:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise BadOptions(f"{option} needs --tune. Add --tune, or remove {option}")
        return None
    from workbench.search.objective import OBJECTIVES

    objective, over = found.objective or "energy", found.over or "both"
    if objective not in OBJECTIVES:
        raise BadOptions(f"--objective {objective} is unknown{near(objective, OBJECTIVES)}")
    slowdown = 0.05 if found.max_slowdown is None else found.max_slowdown / 100
    opted = {"warm_start": True} if found.warm_start else {}
    return {"objective": objective, "max_slowdown": slowdown, "over": over} | opted


def add_log(options: argparse.ArgumentParser) -> None:
    """Options of what shows the log of measurements."""
    options.add_argument("--last", type=int, metavar="N", help="the newest of them only")
    options.add_argument("--label", help="those with this label only")
    options.add_argument("--export", metavar="FILE", help="write them to a .parquet, .csv or .json file")
    options.add_argument("--compare", nargs=2, metavar=("A", "B"),
                         help="two by label or id: the ratio of their energies, with its 95 %% interval")


def log_parser() -> LineParser:
    """The options of `%energy_log`."""
    options = LineParser(prog="%energy_log", add_help=False)
    add_log(options)
    return options


def compare_parser() -> LineParser:
    """The options of `%energy_compare`."""
    options = LineParser(prog="%energy_compare", add_help=False)
    options.add_argument("names", nargs=2, metavar="NAME",
                         help="two functions of this notebook; with --paired cells by their labels")
    options.add_argument("--labels", action="store_true", help="compare the logged runs of two labels")
    options.add_argument("--paired", type=int, metavar="N",
                         help="run both again, taking turns, in N pairs at most")
    options.add_argument("--gpus", metavar="GPU[,GPU...]", help="count these GPUs only")
    return options


def parser() -> LineParser:
    """The options of `%%energy`, also the source of its help and completion."""
    options = LineParser(prog=MAGIC, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("label", nargs="*", help="name of the measurement in the log")
    options.add_argument("--live", action=argparse.BooleanOptionalAction, default=None,
                         help="plot power while the cell runs")
    options.add_argument("--repeat", "-r", type=int, default=1, metavar="N",
                         help="run the cell N times: mean and deviation")
    options.add_argument("--quiet", "-q", action="store_true", default=None,
                         help="measure and store, show nothing")
    options.add_argument("-o", dest="output", metavar="NAME", help="put the measurement into this variable")
    options.add_argument("--sync", action=argparse.BooleanOptionalAction, default=None,
                         help="wait for queued GPU work of torch, JAX and CuPy at both edges")
    options.add_argument("--settle", action=argparse.BooleanOptionalAction, default=True,
                         help="wait one sensor refresh after the cell (about 0.1 s) for a smaller error")
    add_measuring(options)
    return options


def parse(line: str) -> Options:
    """The options of a line (without the magic's name). Raises BadOptions with a sentence for the person."""
    found = parser().parse_line(line)
    if found.repeat < 1:
        raise BadOptions(f"--repeat {found.repeat}: give 1 or more")
    if found.output is not None and (not found.output.isidentifier() or keyword.iskeyword(found.output)):
        raise BadOptions(f"-o {found.output} is not a variable name; use letters, digits and _")
    if found.live and found.quiet:
        raise BadOptions("--quiet shows nothing and --live shows a plot; remove one of them")
    return Options(
        " ".join(found.label), ",".join(found.gpus) if found.gpus else None, found.live, found.repeat,
        found.quiet, found.output, found.sync, found.settle, found.period, tuning_options(found),
    )


def energy_line(cell: str) -> str | None:
    """What follows `%%energy` among the magics at the top of a cell; None where it is not used."""
    return next((rest for _, magic, rest in _stacked(cell.splitlines()) if magic == MAGIC), None)


def strip(lines: Sequence[str]) -> list[str]:
    """An IPython input transformer: the cell without its `%%energy` line.

    A line that asks for help stays, and one with a wrong option: the magic then refuses to run the cell.
    """
    ours = {number for number, magic, rest in _stacked(lines) if magic == MAGIC and not problem(rest)}
    return [line for number, line in enumerate(lines) if number not in ours]


def problem(line: str) -> str:
    """The error in the options of a line, an unknown GPU included; empty where there is none."""
    try:
        check_gpus(parse(line).gpus)
    except BadOptions as error:
        return str(error)
    return ""


def check_gpus(gpus: str | None) -> None:
    """Raise BadOptions if a named GPU does not exist. A driver that cannot answer now is no reason."""
    if gpus is None:
        return
    from workbench.measurement import session

    with contextlib.suppress(WorkbenchError):
        try:
            session.current().uuids(gpus)
        except (NoDriver, SimulationError, UnknownGpu, UsageError) as error:
            raise BadOptions(f"--gpus {gpus}: {error}") from error


def runner(shell: Any, body: str) -> Callable[[], bool] | None:
    """Runs a cell once more, without its value, and reports whether it went well; None where it awaits."""
    if shell.should_run_async(body, transformed_cell=shell.transform_cell(body)):
        return None
    return lambda: bool(shell.run_cell(body, store_history=False, silent=True).success)


def _stacked(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """The magics at the top of a cell that are seen through: line number, name, what follows it."""
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    indent = len(lines[first]) - len(lines[first].lstrip()) if first < len(lines) else 0
    for number in range(first, len(lines)):
        line = lines[number]
        magic, *rest = line[indent:].split(maxsplit=1) or [""]
        if magic not in TRANSPARENT or line[:indent].strip() or not line[indent:].startswith("%%"):
            return
        yield number, magic, rest[0].strip() if rest else ""
