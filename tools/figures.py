"""Figures of README and docs: from benchmarks, through one JSON file, into the pages.

    python -m tools.figures run [NAME ...] [--data DIR]   run benchmarks and store the figures that pages show
    python -m tools.figures keep [NAME ...]               store them again from the last runs, without running
    python -m tools.figures write                         write the figures into the pages
    python -m tools.figures check                         exit 1 where a page and the file differ

`docs/validation/tables.toml` has the command of each benchmark and what each table shows. A page has a table
between `<!-- figures NAME -->` and `<!-- /figures -->`, and a figure in a sentence between
`<!-- f BENCHMARK PLACE FORMAT -->` and `<!-- / -->`. A place is the way through the benchmark's JSON, with
slashes. In a list of mappings, `KEY=VALUE` selects: `runs/policy=ours/energy_kwh`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "validation" / "figures.json"
RUNS = ROOT / "build" / "figures"  # whole JSON of the last run of each benchmark
TABLE = re.compile(r"<!-- figures (\w+) -->.*?<!-- /figures -->", re.DOTALL)
FIGURE = re.compile(r"<!-- f (\w+) (.+?) (\S+) -->.*?<!-- / -->")
ABSENT = "Not measured on this commit: `python -m tools.figures run {}`."

Stored = Mapping[str, Mapping[str, Any]]


def definitions() -> dict[str, Any]:
    """Commands and tables."""
    return tomllib.loads((FILE.parent / "tables.toml").read_text(encoding="utf-8"))


def stored() -> dict[str, dict[str, Any]]:
    """Each benchmark's command, commit, seconds and figures by place."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def pages() -> Iterator[Path]:
    """README and the pages of the site."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def at(found: Any, place: str) -> Any:
    """The value at a place of nested mappings and lists.

    >>> at({"a": [{"b": 1, "c": 2}, {"b": 3, "c": 4}]}, "a/b=3/c")
    4
    """
    for step in place.split("/"):
        if isinstance(found, list):
            key, selects, wanted = step.partition("=")
            if selects:
                found = [row for row in found if str(row[key]) == wanted]
                continue
            found = found[0]
        found = found[step]
    return found


def cells(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Benchmark and place of each figure of a table."""
    if "columns" not in table:
        yield from ((name, place) for _, name, place, *_ in table["rows"])
        return
    for row in table["rows"]:
        yield from ((table["benchmark"], _joined(table, row, place)) for _, place, _ in table["columns"])


def _joined(table: Mapping[str, Any], row: str, column: str) -> str:
    return "/".join(part for part in (table.get("of", ""), row, column) if part)


def places(benchmark: str) -> list[str]:
    """Where the figures are that tables and pages show of a benchmark."""
    found = {place for table in definitions()["tables"].values() for name, place in cells(table) if name == benchmark}
    for page in pages():
        found |= {place for name, place, _ in FIGURE.findall(page.read_text(encoding="utf-8")) if name == benchmark}
    return sorted(found)


def run(name: str, data: str | None) -> None:
    """Run a benchmark; its whole JSON, with commit and seconds, is below `build`."""
    shown = f"python -m {definitions()['benchmarks'][name]}"
    RUNS.mkdir(parents=True, exist_ok=True)
    scratch = RUNS / f"{name}.part"
    words = [data or word if word == "DIR" else word for word in shlex.split(shown)[1:]]
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", "workbench", "kernels_ext", "benchmarks"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.strip()
    begun_s = time.monotonic()
    if words[1].startswith("tools."):  # it prints its JSON
        done = subprocess.run([sys.executable, *words], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
        scratch.write_text(done.stdout.splitlines()[0])
    else:
        subprocess.run([sys.executable, *words, "--json", str(scratch)], cwd=ROOT, check=True)
    about = {"command": shown, "commit": commit, "seconds": round(time.monotonic() - begun_s)}
    (RUNS / f"{name}.json").write_text(json.dumps({**about, "found": json.loads(scratch.read_text())}))
    scratch.unlink()


def keep(name: str) -> None:
    """Store the figures that pages show of a benchmark's last run."""
    about = json.loads((RUNS / f"{name}.json").read_text())
    found = about.pop("found")
    figures = {place: at(found, place) for place in places(name)}
    kept = {**stored(), name: {**about, "figures": figures}}
    FILE.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def shown(kept: Stored, benchmark: str, place: str, form: str) -> str:
    """A figure as text; "-" for none.

    >>> shown({"truth": {"figures": {"a": 0.876}}}, "truth", "a", ".0%")
    '88 %'
    """
    value = kept[benchmark]["figures"][place] if benchmark in kept else None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else format(value, form).replace("%", " %")


def text(table: Mapping[str, Any], kept: Stored) -> str:
    """A table's lines."""
    wanted = dict.fromkeys(name for name, _ in cells(table))
    if not any(name in kept for name in wanted):
        return ABSENT.format(" ".join(wanted))
    if "columns" in table:
        lines = [[table["head"], *(head for head, *_ in table["columns"])]]
        for row, title in table["rows"].items():
            found = [(_joined(table, row, place), form) for _, place, form in table["columns"]]
            lines.append([title, *(shown(kept, table["benchmark"], *each) for each in found)])
    else:
        required = any(len(row) > 4 for row in table["rows"])
        lines = [["figure", "measured", *["required", "met"] * required]]
        for title, name, place, form, *limit in table["rows"]:
            value = shown(kept, name, place, form)
            more = [limit[0], met(value, limit[0])] if limit else ["-", "-"] * required
            lines.append([title, value, *more])
    return _lines(lines)


def commands(kept: Stored) -> str:
    """The command, commit and duration of each benchmark."""
    rows = [[f"`{each['command']}`", each["commit"], str(each["seconds"])] for each in kept.values()]
    return _lines([["command", "commit", "seconds"], *rows])


def met(value: str, required: str) -> str:
    """Whether a figure, as it is shown, meets its requirement.

    >>> met("0.93", "0.92 to 0.98"), met("97 %", "at least 98 %"), met("0", "at most 0"), met("-", "at most 1")
    ('yes', 'no', 'yes', '-')
    """
    limits = [float(word) for word in required.split() if word[0].isdigit()]
    low = -math.inf if required.startswith("at most") else limits[0]
    high = math.inf if required.startswith("at least") else limits[-1]
    return "-" if value == "-" else "yes" if low <= float(value.rstrip(" %")) <= high else "no"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def written(page: str, kept: Stored) -> str:
    """A page with its figures."""
    tables = definitions()["tables"]

    def table(match: re.Match[str]) -> str:
        lines = commands(kept) if match[1] == "commands" else text(tables[match[1]], kept)
        return f"<!-- figures {match[1]} -->\n\n{lines}\n\n<!-- /figures -->"

    def figure(match: re.Match[str]) -> str:
        return f"<!-- f {match[1]} {match[2]} {match[3]} -->{shown(kept, match[1], match[2], match[3])}<!-- / -->"

    return FIGURE.sub(figure, TABLE.sub(table, page))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("run", "keep", "write", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks (default: all)")
    parser.add_argument("--data", metavar="DIR", help="measured data for the benchmarks that take some")
    options = parser.parse_args(argv)
    if options.work in ("run", "keep"):
        for name in options.names or definitions()["benchmarks"]:
            if options.work == "run":
                run(name, options.data)
            keep(name)
    differ, kept = 0, stored()
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (after := written(before, kept)) != before:
            differ += 1
            print(f"{page.relative_to(ROOT)}: its figures are not those of {FILE.name}")
            if options.work != "check":
                page.write_text(after, encoding="utf-8")
    return int(options.work == "check" and differ > 0)


if __name__ == "__main__":
    sys.exit(main())
