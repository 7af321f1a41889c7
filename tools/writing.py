"""Plain English: the patterns that a reader stumbles over, in every text that a person reads.

    python -m tools.writing [PATH ...]     each place with a pattern; exit status 1 if there is one
    python -m tools.writing --count        sentences by length, and places by file

Texts are Markdown files, Markdown cells of notebooks, docstrings of public names and strings of four words or
more in Python, and strings in the views' JavaScript. Of tests only docstrings and names are read. Code in
backticks and code blocks are left out.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("workbench", "kernels_ext", "benchmarks", "tests")
GUIDES = ("README.md", "docs/how-to", "docs/index.md", "docs/tutorials", "notebooks")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST = {"guide": 25, "other": 40}  # words per sentence
UNITS = (
    "iteration|second|task|GPU|run|minute|hour|job|page|token|step|day|week|epoch|sample|year|cell|row|file|line"
)
_CLAUSES = "is|was|are|were|it|they|has|can|could|may|must"
_QUANTITIES = "J|W|ms|kJ|joules?|watts?|times?|[0-9.,]+ ?(?:s|J|W|%|ms|kB|MB|minutes?|seconds?)|one|two|once"
# Name of a pattern: the expression, and what to write instead.
PATTERNS = {
    "clause as a noun": (
        r"\b[Ww]hoever\b|\b[Ww]hatever (?!else|happens\b)|"
        rf"(?:^|[.;:] )What (?:{_CLAUSES}|the|a|an|no)\b[^?]*$|"
        rf"(?<!\bof )(?<!\band )(?<!\bor )\bwhat (?:{_CLAUSES}|holds|had|would|comes|goes|lies|stands|runs|"
        r"remains|nobody|somebody)\b(?![^.;:]*\?)",
        "name the thing",
    ),
    "software that speaks": (
        r"\b(?:told|tells?|said|says?|hears?|heard|owes?|owed|believes?|believed|talked into)\b(?!\()",
        "reports, shows, returns, logs, estimates, marks",
    ),
    "private word": (
        r"\bstands? (?:for itself|in|at|on|beside|next|there|here|apart|above|below)\b|"
        r"\blies? (?:in|at|on|between|beside|next|within|under|outside|inside)\b|"
        r"\b(?:beside|besides|anew|mend(?:s|ed|ing)?|in vain|at once|in force|rhythms?|purse|foretold|"
        r"puts? back|put back|brought back|kind cards?|rough cards?|of its own making|for want of)\b",
        "is, is in, next to, again, fixed, active, restore, period",
    ),
    "rate without per": (rf"\b(?:{_QUANTITIES}|an? (?:minute|page|row|line|file)) an? (?:{UNITS})\b", "per"),
}
# Strings that are program text, markup or lists; where an entry of a docstring begins.
PROGRAM = re.compile(r"\s*(?:[<{.\[(;]|let |import |async |style=|device = |\w+\.\w+\()")
ENTRY = re.compile(r"\n\s*\n|\n(?= *\S.*?\S  +\S)|\n(?= {4,12}\w+(?:, \w+)*: )|\n(?=\||[\w%, ]+\n {4})")
QUOTED = re.compile(r"([\"'`])((?:(?!\1).)*)\1")
_PATTERNS = {name: re.compile(pattern) for name, (pattern, _) in PATTERNS.items()}


class Place(NamedTuple):
    """A place that a reader stumbles over."""

    path: str
    line: int
    pattern: str
    sentence: str


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """The paragraphs, list items and table cells of Markdown, with the line each begins at."""
    blocks = r"(?ms)^\s*(```|~~~).*?^\s*\1[^\n]*$|<!--.*?-->"
    text = re.sub(blocks, lambda block: "\n" * block.group().count("\n"), text)
    paragraph: list[str] = []
    begun = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        fresh = re.match(r"([-*] |\d+\. |#|\||>|:\w|\(\w+\)=)", stripped) or line.startswith("    ")
        if paragraph and (not stripped or fresh):
            yield begun, " ".join(paragraph)
            paragraph = []
        if stripped.startswith("|"):
            yield from ((number, cell.strip()) for cell in stripped.strip("|").split("|"))
        elif stripped and not (line.startswith("    ") and not paragraph):
            begun = begun if paragraph else number
            paragraph.append(stripped.lstrip("#>-* "))


def python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings of public names, and strings of four words or more."""
    tree = ast.parse(text)
    docstrings = {}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            name = getattr(node, "name", "module")
            docstrings[id(node.body[0].value)] = name.startswith("_") and not name.startswith("__")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 4:
            if docstrings.get(id(node), False) or re.match(PROGRAM, node.value):
                continue
            for paragraph in ENTRY.split(node.value.split(">>>")[0]):
                yield node.lineno, " ".join(re.sub(r"^\s*\w+: ", "", paragraph).split())


def tests(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, and the names of test functions and classes as sentences."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            name, line = getattr(node, "name", ""), getattr(node, "lineno", 1)
            if name.startswith(("test_", "Test")):
                yield line, name.removeprefix("test_").replace("_", " ").capitalize() + "."
            for paragraph in filter(None, ENTRY.split(ast.get_docstring(node) or "")):
                yield line, " ".join(paragraph.split())


def texts(paths: list[Path]) -> Iterator[tuple[str, int, str]]:
    """Each paragraph: its file, its line, the text without code."""
    for path in paths:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            found = tests(text) if "tests" in Path(name).parts else python(text)
        elif path.suffix == ".js":
            lines = enumerate(text.splitlines(), 1)
            found = ((number, each[2]) for number, line in lines for each in QUOTED.finditer(line))
        elif path.suffix == ".ipynb":
            cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
            found = (each for cell in cells for each in markdown("".join(cell["source"])))
        else:
            found = markdown(text)
        for line, paragraph in found:
            yield name, line, re.sub(r"``?[^`]*``?|\w+\.\w+\(", "`X`", re.sub(r"\]\([^)]*\)", "]", paragraph))


def sentences(paragraph: str) -> list[str]:
    return [each for each in re.split(r"(?<=[.!?:])[*\")]*\s+(?=[A-Z`*\[(\"0-9])", paragraph) if each.strip()]


def places(paths: list[Path], lengths: Counter[str] | None = None) -> Iterator[Place]:
    """Every place with a pattern; `lengths` counts the sentences by their words."""
    for name, line, paragraph in texts(paths):
        longest = LONGEST["guide" if name.startswith(GUIDES) else "other"]
        for sentence in sentences(paragraph):
            words = len(re.findall(r"[\w`][^\s]*", sentence))
            if lengths is not None:
                lengths[f"{words // 10 * 10:2} to {words // 10 * 10 + 9:2}"] += 1
            for pattern, expression in _PATTERNS.items():
                if expression.search(sentence):
                    yield Place(name, line, pattern, sentence)
            if words > longest:
                yield Place(name, line, f"{words} words, at most {longest}", sentence)
            if sentence.count(";") > 1:
                yield Place(name, line, "semicolons", sentence)


def files() -> list[Path]:
    """All files that a person reads."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    found += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found += (ROOT / "workbench/panels/static").glob("*.js")
    return sorted(found)


def main(arguments: list[str]) -> int:
    asked = [Path(each).resolve() for each in arguments if not each.startswith("-")]
    chosen = [each for each in files() if not asked or {each, *each.parents} & set(asked)]
    lengths: Counter[str] = Counter()
    found = list(places(chosen, lengths))
    if "--count" in arguments:
        counts = [*sorted(lengths.items()), *Counter(each.path for each in found).most_common()]
        lines = [f"{count:6} {what}{' words' if ' to ' in what else ''}" for what, count in counts]
    else:
        lines = [f"{each.path}:{each.line}: {each.pattern}: {each.sentence[:160]}" for each in found]
        lines += [f"Instead of a {name}: {instead}" for name, (_, instead) in PATTERNS.items() if found]
    print(*lines, f"{len(found)} places", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
