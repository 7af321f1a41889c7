"""The structure of the package in numbers: `make house`, or `python -m tools.house`.

Counts entries of `workbench/`, floors (the longest path of imports from room to room), circles among modules
(imports inside functions and for type checkers count too), the largest class with its own bases, class names
that exist twice, the longest functions, code tokens, constants, and lines. Exits with 1 where one is beyond
its limit: `LIMITS`, and `../shared/house_limits.json` where that file is present.

Code tokens are the measure of size: packing more code into a line does not lower them. Comments, docstrings,
indentation and line ends do not count. A constant is a module's named number, or a number in the default of a
field of a `Params` class.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# The budget of the product, as measured last: a change that adds code removes as much elsewhere, and a change
# that removes code lowers the limits.
LIMITS = {
    "entries": 25, "floors": 8, "circles": 0, "equal_class_names": 0, "lines_over_110": 0,
    "code_tokens": 404_900, "constants": 408, "js_lines": 2_952,
}
SHARED_LIMITS = ROOT.parent / "shared" / "house_limits.json"
WIDTH = 110

# Which rooms a room may import. Ground files are for all; a room may use what its rooms may use.
GROUND = {"records", "errors", "clock", "samples", "trace", "tariff", "_paths", "_processes"}
GROUND |= {"_shared_memory", "_html"}
ROOMS: dict[str, set[str]] = {
    "simulation": set(),
    "search": set(),
    "cluster": set(),
    "periods": set(),
    "logbook": {"periods"},
    "device": {"simulation"},
    "measurement": {"device", "logbook"},
    "experiments": {"measurement", "search"},
    "sharing": {"measurement", "cluster"},
    "jobs": {"measurement", "search"},
    "tuning": {"experiments", "jobs"},
    "panels": {"tuning", "sharing"},
}
EVERYTHING = {"__init__", "callbacks", "cli", "kernels_ext"}  # may import every room


class Import(NamedTuple):
    """One imported module or name: where, and whether it happens when the module is loaded."""

    source: Path
    module: str
    target: str
    line: int
    at_load: bool

    def __str__(self) -> str:
        return f"{self.source.relative_to(ROOT)}:{self.line} imports {self.target}"


@cache
def files() -> tuple[Path, ...]:
    """Every Python file of the product."""
    found = [path for base in ("workbench", "kernels_ext") for path in (ROOT / base).rglob("*.py")]
    return tuple(sorted(path for path in found if "_notebooks" not in path.parts))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree."""
    return tuple(ast.walk(tree(path)))


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(path) for path in files())


@cache
def imports() -> tuple[Import, ...]:
    """Every import of every file, with absolute names: a module where the name is one, else `module.name`."""
    return tuple(each for path in files() for each in _imports(path))


def _imports(path: Path) -> Iterator[Import]:
    mine = module_name(path)
    package = mine.split(".") if path.name == "__init__.py" else mine.split(".")[:-1]

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(path, mine, alias.name, child.lineno, at_load)
            elif isinstance(child, ast.ImportFrom):
                stem = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*stem, *([child.module] if child.module else [])])
                for alias in child.names:
                    yield Import(path, mine, f"{base}.{alias.name}", child.lineno, at_load)
            if isinstance(child, ast.expr):
                continue  # no expression holds an import
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            )
            yield from visit(child, at_load and not lazy)

    yield from visit(tree(path), True)


def room(name: str) -> str | None:
    """The room of a dotted name; None for what is not ours."""
    parts = name.split(".")
    if parts[0] == "kernels_ext":
        return "kernels_ext"
    if parts[0] != "workbench":
        return None
    if len(parts) > 1 and (parts[1] in ROOMS or parts[1] in GROUND or parts[1] in EVERYTHING):
        return parts[1]
    return "__init__"


def allowed(name: str) -> set[str]:
    """The rooms that a room may import, directly or because one of its own may."""
    if name in EVERYTHING:
        return {*ROOMS, *GROUND, *EVERYTHING}
    if name in GROUND:
        return set(GROUND)
    found, waiting = set(GROUND), list(ROOMS[name])
    while waiting:
        other = waiting.pop()
        found.add(other)
        waiting += ROOMS[other]
    return found


def upward() -> list[str]:
    """Imports of a room that the plan does not allow."""
    found = []
    for each in imports():
        mine, other = room(each.module), room(each.target)
        if mine is not None and other is not None and other != mine and other not in allowed(mine):
            found.append(str(each))
    return found


def circles() -> list[list[str]]:
    """Modules that import one another, directly or round several; a package and its own modules are none."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for each in imports():
        for target in (each.target, each.target.rpartition(".")[0]):
            if target in graph:
                graph[each.module].add(target)
                break
    found = [part for part in _components(graph) if len(part) > 1]
    return [
        part for part in found if not all(name == part[0] or name.startswith(part[0] + ".") for name in part)
    ]


def floors() -> int:
    """Rooms on the longest path of imports between rooms."""
    graph: dict[str, set[str]] = {}
    for each in imports():
        mine, other = room(each.module), room(each.target)
        if mine and other and mine != other and mine not in EVERYTHING and other not in EVERYTHING:
            graph.setdefault(_floor(mine), set()).add(_floor(other))

    @cache
    def height(name: str) -> int:
        return 1 + max((height(other) for other in graph.get(name, ()) if other != name), default=0)

    return max(map(height, list(graph)), default=0) + 1  # and those who may import everything


def _floor(name: str) -> str:
    return "ground" if name in GROUND else name


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of a graph, each sorted (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            cut = stack.index(name)
            found.append(sorted(stack[cut:]))
            del stack[cut:]

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def classes() -> tuple[Counter[str], str, int]:
    """How often each class name is defined; the largest class with its bases of our own, and its lines."""
    count: Counter[str] = Counter()
    bases: dict[str, list[str]] = {}
    size: dict[str, int] = {}
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                count[node.name] += 1
                bases[node.name] = [
                    base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
                    for base in node.bases
                ]
                size[node.name] = max(
                    size.get(node.name, 0), (node.end_lineno or node.lineno) - node.lineno + 1
                )

    def tower(name: str, seen: tuple[str, ...] = ()) -> int:
        own = [base for base in bases.get(name, []) if base in size and base not in seen and base != name]
        return size.get(name, 0) + sum(tower(base, (*seen, name)) for base in own)

    largest = max(size, key=tower)
    return count, largest, tower(largest)


def longest_javascript() -> tuple[str, int, int]:
    """The longest top-level function or class of the views, its lines, and the lines of all JavaScript."""
    begins = re.compile(
        r"^(export\s+)?(default\s+)?(async\s+)?(function|class)\b|^(export\s+)?const \w+ = (async "
        r")?(\(|function)"
    )
    where, most, total = "", 0, 0
    for path in sorted((ROOT / "workbench").rglob("*.js")):
        if {"node_modules", "dist"} & set(path.parts):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        total += len(lines)
        for first, line in enumerate(lines):
            if begins.match(line):
                depth, last = 0, first
                while last < len(lines):
                    depth += lines[last].count("{") - lines[last].count("}")
                    if depth <= 0 and last > first:
                        break
                    last += 1
                if last - first + 1 > most:
                    where, most = f"{path.name}:{first + 1}", last - first + 1
    return where, most, total


LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}


def tokens(path: Path) -> int:
    """The code tokens of a file: all but layout, comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in nodes(path)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    }
    with path.open("rb") as file:
        found = list(tokenize.tokenize(file.readline))
    return sum(each.type not in LAYOUT and each.start not in docstrings for each in found)


def constants(path: Path) -> int:
    """The module's named numbers, and the numbers in the defaults of its `Params` classes."""
    count = 0
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Params"):
            fields = [each.value for each in node.body if isinstance(each, ast.AnnAssign) and each.value]
            count += sum(map(_numbers, fields))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            count += isinstance(target, ast.Name) and target.id.isupper() and _numbers(node.value)
    return count


def _numbers(value: ast.expr) -> int:
    literals = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
    return sum(isinstance(each, int | float) and not isinstance(each, bool) for each in literals)


def longest_functions(count: int = 3) -> list[str]:
    """The functions with the most lines: where they are, and how many lines."""
    found = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.lineno}")
        for path in files()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [f"{where} ({lines})" for lines, where in sorted(found, reverse=True)[:count]]


def facts() -> dict[str, int | str | list[str]]:
    """All counts by name."""
    count, largest, tower = classes()
    function, longest, javascript = longest_javascript()
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files()]
    entries = [
        path for path in (ROOT / "workbench").iterdir()
        if path.name not in ("__pycache__", "py.typed") and not path.name.startswith("_notebooks")
    ]
    return {
        "entries": len(entries),
        "floors": floors(),
        "circles": len(circles()),
        "upward_imports": len(upward()),
        "equal_class_names": sum(times > 1 for times in count.values()),
        "tower": tower,
        "largest_class": largest,
        "code_tokens": sum(map(tokens, files())),
        "constants": sum(map(constants, files())),
        "longest_functions": longest_functions(),
        "longest_js": longest,
        "longest_js_function": function,
        "python_lines": sum(map(len, texts)),
        "js_lines": javascript,
        "lines_over_110": sum(len(line) > WIDTH for lines in texts for line in lines),
    }


def shared_limits() -> dict[str, int]:
    """The limits that several checkouts share; empty without their file."""
    return dict(json.loads(SHARED_LIMITS.read_text(encoding="utf-8"))) if SHARED_LIMITS.is_file() else {}


def exceeded(found: Mapping[str, object]) -> list[str]:
    """One sentence per count that is above its limit, the lower one of `LIMITS` and the shared limits."""
    shared = shared_limits()
    limits = {name: min(LIMITS.get(name, limit), limit) for name, limit in shared.items()}
    return [
        f"{name}: {found[name]} is above the limit of {limit}: remove as much elsewhere"
        for name, limit in {**LIMITS, **limits}.items() if int(str(found[name])) > limit
    ]


def main() -> int:
    found = facts()
    print(json.dumps(found))
    for circle in circles():
        print("circle:", " ".join(circle))
    print(*upward(), sep="\n", end="\n" if upward() else "")
    beyond = exceeded(found)
    print(*beyond, sep="\n", end="\n" if beyond else "")
    return bool(beyond)


if __name__ == "__main__":
    raise SystemExit(main())
