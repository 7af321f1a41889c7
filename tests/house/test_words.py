"""Private expressions appear on no screen and in no document: a term that a reader must learn first is one
too many.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = (
    "what is believed of", "believed cost", "in force", "energy not told", "cheaper in sum",
    "are missing", "surely on the frontier", "pale: beaten", "chosen by hand",
    "that can be told from the errors", "no sure difference", "the power trace alone says", "of the marks",
    "which the marks contradict", "laid over one another", "nothing is run yet",
    "everything is simulated, the jobs too", "deadlines' slack", "vary nothing", "policy's own", "was awake",
    "recurrences to go", "per hour at the default", "the hand on the gpu", "nobody is asked for rights",
    "left to the driver", "what is in force and whose it is", "points appear here as they are",
    "no joule of theirs is real", "take it along", "look again", "an honest no", "the work changes",
    "the map of the rooms", "an administrator would type", "the command stands here", "at once",
    "worth a try",
)
# Theirs is another meaning: "at once" of time, in documents for those who build.
BUILDERS = ("docs/decisions.md", "docs/validation", "CONTRIBUTING.md", "CHANGELOG.md")
_FOUND = re.compile("|".join(rf"\b{re.escape(each)}\b" for each in PRIVATE), re.IGNORECASE)


def _strings(path: Path) -> Iterator[str]:
    """The strings of a module except its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value) for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def _texts() -> Iterator[tuple[str, str]]:
    """Each place that is read on a screen or in a document, and its text."""
    for folder in ("workbench", "kernels_ext"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield str(path.relative_to(REPOSITORY)), "\n".join(_strings(path))
    for path in sorted((REPOSITORY / "workbench/panels/static").glob("*.js")):
        code = re.sub(r"(?m)^\s*(//|\*|/\*).*$|\s//\s.*$", "", path.read_text(encoding="utf-8"))
        yield str(path.relative_to(REPOSITORY)), code
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        name = str(path.relative_to(REPOSITORY))
        if not name.startswith(BUILDERS):
            yield name, path.read_text(encoding="utf-8")
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield str(path.relative_to(REPOSITORY)), "\n".join(cell.source for cell in cells)


def private_terms() -> list[str]:
    """Where a private expression stands: "file: expression"."""
    return [f"{name}: {found.group().lower()}" for name, text in _texts() for found in _FOUND.finditer(text)]


def test_no_screen_and_no_document_speaks_a_language_of_its_own() -> None:
    assert private_terms() == []


IDENTIFIERS = {"told", "said", "seen", "look", "looks", "looked", "hand", "words", "purse", "turn", "turns", "world", "worlds"}
LIBRARIES = {"get_world_size", "num_input_tokens_seen"}  # names of PyTorch's and of transformers'


def _names(path: Path) -> Iterator[tuple[int, str]]:
    """Each name that a module binds or asks for, and its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), name


def test_identifiers_use_the_terms_of_the_field() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for folder in ("workbench", "kernels_ext") for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for line, name in _names(path)
        if name not in LIBRARIES and IDENTIFIERS & {each.lower() for each in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    ]
    assert found == []
