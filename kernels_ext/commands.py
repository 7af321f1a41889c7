"""Shared by the sub-commands of `workbench`: examples in their help, `--json`, short errors.

With `--json` a command's answer is one JSON object on standard output, and its messages go to standard error.
Each object has "schema" (a number that grows when a key goes or changes its meaning) and "command".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from workbench.errors import printable, shortened

from .cells import explained

SCHEMA = 1  # of what --json writes
STDOUT = "-"


class Parser(argparse.ArgumentParser):
    """Errors name a similar command or option; long values are shortened."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(shortened(explained(message, ()))))


def write_json(arguments: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """The answer of a command where `--json` asks for it, on standard output or in a file."""
    if not arguments.json:
        return
    text = json.dumps({"schema": SCHEMA, "command": arguments.name, **document}, indent=2)
    if arguments.json == STDOUT:
        print(text, file=arguments.stdout, flush=True)
    else:
        Path(arguments.json).write_text(text, encoding="utf-8")


class Commands:
    """The sub-commands: each with the examples in its help, and with `--json` where it has an answer."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers: Any = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        self, name: str, act: Callable[[argparse.Namespace], int], summary: str, *lines: str,
        **options: Any,
    ) -> argparse.ArgumentParser:
        """Add a command; `lines` are examples that can be typed, explained after `#`."""
        made: argparse.ArgumentParser = self._parsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=examples(*lines),
            formatter_class=argparse.RawDescriptionHelpFormatter, **options,
        )
        made.set_defaults(act=act, name=name, known=made._option_string_actions)
        return made


def examples(*lines: str, more: str = "") -> str:
    parts = [[part.strip() for part in line.split("#")] for line in lines]
    width = max(len(line) for line, _ in parts)
    rows = [f"  {line:{width}}  # {summary}" for line, summary in parts]
    return "\n".join(["Examples:", *rows, *filter(None, [more and f"\n{more}"])])


def json_option(parser: argparse.ArgumentParser, *, named: bool = False) -> None:
    """`--json [FILE]`; `named` where words follow that would be taken for the file."""
    where: dict[str, Any] = {} if named else {"nargs": "?", "const": STDOUT}
    parser.add_argument("--json", metavar="FILE", **where,
                        help="write the answer as JSON to a file; - is standard output"
                             + ("" if named else ", as is no FILE"))
