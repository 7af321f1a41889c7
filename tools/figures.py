"""Figures of README and of the validation overview: from benchmarks, through one JSON file, into the pages.

    python -m tools.figures run [NAME ...] [--data DIR]   run benchmarks and keep their figures
    python -m tools.figures write                         write the tables of the pages
    python -m tools.figures check                         exit 1 where a page and the file differ

A page has its table between `<!-- figures NAME -->` and `<!-- /figures -->`. The file names the commit and the
command of each benchmark.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "validation" / "figures.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "validation" / "index.md")
WITH_DATA = ("measurement", "periods", "limits")

METHODS = {
    "driver default": "driver default", "tuner": "**workbench**", "limit 80 %": "fixed power limit, 80 % of the default",
    "Zeus, 5 %": "Zeus, least energy within 5 %", "Zeus": "Zeus, its cost at eta 0.5",
    "GPOEO": "GPOEO's search over clocks",
}
# What is measured, its benchmark, the figure's place in the JSON of that, how it is written, what is required, the page.
OVERVIEW = (
    ("intervals of energy that contain the truth, mean of cards", "measurement", "summary.covered", ".3f", "0.92 to 0.98"),
    ("the same, irregular cards", "measurement", "summary.rough_covered", ".3f", "0.92 to 0.98"),
    ("error relative to ZeusMonitor, windows of 0.1 s, worst card", "measurement", "summary.error_over_zeus_at_0_1_s", ".2f", "at most 0.5"),
    ("period found, of the observable traces", "periods", "summary.ours.rhythm_sure", ".2f", "at least 0.78"),
    ("wrong, of the periods reported as sure", "periods", "summary.ours.rhythm_wrong", ".3f", "at most 0.015"),
    ("wrong, of the iterations reported as sure", "periods", "summary.ours.role_wrong", ".3f", "at most 0.04"),
    ("slowdown limit kept, jobs with steps", "truth", "summary.bound_kept_marked", ".2f", "at least 0.98"),
    ("slowdown limit kept, jobs without steps", "truth", "summary.bound_kept_unmarked", ".2f", "at least 0.98"),
    ("share of the oracle's saving, jobs with steps", "truth", "summary.share_of_oracle_marked", ".2f", "at least 0.75"),
    ("reported savings whose interval contains the truth", "truth", "summary.saving_covered_reported", ".2f", "0.92 to 0.99"),
    ("jobs with over 1 % more energy and no less time", "truth", "summary.worse_by_1_percent", ".0f", "at most 0"),
    ("energy of the chosen power limit above the least energy, measured curves", "limits", "summary.regret_1", ".3f", "-"),
    ("savings of sharing whose interval contains the truth", "sharing", "summary.saving_held", ".3f", "at least 0.95"),
    ("slowdowns of sharing whose interval contains the truth", "sharing", "summary.slowdown_held", ".3f", "at least 0.95"),
)


def at(found: Mapping[str, Any], place: str) -> Any:
    """The value at a dotted place of nested mappings.

    >>> at({"a": {"b": 1}}, "a.b")
    1
    """
    value: Any = found
    for name in place.split("."):
        value = value[name]
    return value


def run(names: Sequence[str], data: str | None) -> None:
    """Run benchmarks and store the figures that the pages show."""
    for name in names or dict.fromkeys(row[1] for row in OVERVIEW):
        more = ["--data", data] if data and name in WITH_DATA else []
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "found.json"
            command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", *more, "--json", str(path)]
            subprocess.run(command, cwd=ROOT, check=True)
            keep(name, json.loads(path.read_text()))


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Store the figures of a benchmark's JSON with the commit."""
    stored = json.loads(FILE.read_text()) if FILE.is_file() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    figures = {place: at(found, place) for _, each, place, *_ in OVERVIEW if each == name}
    if name == "truth":
        figures |= {"summary.jobs": at(found, "summary.jobs"), "methods": found["methods"]}
    shown = f"python -m benchmarks.{name} --quick" + " --data DIR" * (name in WITH_DATA)
    stored[name] = {"command": shown, "commit": commit, "figures": figures}
    FILE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def tables(stored: Mapping[str, Any]) -> dict[str, str]:
    """The tables by the name that pages have for them."""
    overview = [["figure", "measured", "required", "met", "command"], ["---"] * 5]
    for text, name, place, form, required in OVERVIEW:
        if name in stored:
            value = format(stored[name]["figures"][place], form)
            overview.append([text, value, required, met(value, required), f"`{stored[name]['command']}`"])
    found = {"overview": _lines(overview)}
    if "truth" in stored:
        methods = [["method", "share of the possible saving", "slowdown limit kept", "worst slowdown"], ["---"] * 4]
        for name, text in METHODS.items():
            each = stored["truth"]["figures"]["methods"][name]
            methods.append([text, f"{each['share_of_possible_saving'] or 0:.2f}", f"{100 * each['bound_kept']:.0f} %",
                            f"{100 * each['worst_slowdown']:.1f} %"])
        found["methods"] = _lines(methods)
    return found


def met(value: str, required: str) -> str:
    """Whether a figure, as it is shown, meets its requirement.

    >>> met("0.93", "0.92 to 0.98"), met("0.97", "at least 0.98"), met("0", "at most 0"), met("0.02", "-")
    ('yes', 'no', 'yes', '-')
    """
    if required == "-":
        return "-"
    limits = [float(word) for word in required.split() if word[0].isdigit()]
    low = -math.inf if required.startswith("at most") else limits[0]
    high = math.inf if required.startswith("at least") else limits[-1]
    return "yes" if low <= float(value) <= high else "no"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written(text: str, shown: Mapping[str, str]) -> str:
    """A page with its tables."""
    def table(match: re.Match[str]) -> str:
        return f"<!-- figures {match[1]} -->\n\n{shown.get(match[1], '')}\n\n<!-- /figures -->"

    return re.sub(r"<!-- figures (\w+) -->.*?<!-- /figures -->", table, text, flags=re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("run", "write", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--data", metavar="DIR", help="measured data for the benchmarks that take some")
    options = parser.parse_args(argv)
    if options.work == "run":
        run(options.names, options.data)
    shown, differ = tables(json.loads(FILE.read_text())), 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := written(text, shown)) != text:
            differ += 1
            print(f"{page.relative_to(ROOT)}: its tables are not those of {FILE.name}")
            if options.work != "check":
                page.write_text(new, encoding="utf-8")
    return int(options.work == "check" and differ > 0)


if __name__ == "__main__":
    sys.exit(main())
