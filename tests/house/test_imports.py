"""Which room may import which. A new room finds its place in `ROOMS`, or this says that it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted([*(REPOSITORY / "workbench").rglob("*.py"), *(REPOSITORY / "kernels_ext").rglob("*.py")])

_NOUNS = {"records", "errors", "clock"}
_MEASURING = {*_NOUNS, "device", "trace", "estimate", "recorder", "meter", "store", "synchronise"}
_TUNING = {*_MEASURING, "search", "trial", "period", "workloads"}
ROOMS: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "clock": set(),
    "places": set(),
    "alive": set(),
    "synchronise": set(),
    "estimate": set(),  # pure functions over arrays
    "device": {*_NOUNS, "places", "alive"},
    "shared_file": set(),
    "simulation": {"records", "errors", "shared_file"},
    "trace": {"records", "errors"},
    "periodicity": {"errors"},  # what the door `period` is made of: pure functions over arrays
    "period": {"records", "errors", "periodicity"},
    "fold": {"records", "errors"},  # pure functions over traces
    "search": {"records", "errors", "alive"},
    "cluster": {"records", "errors", "trace"},
    "finder": {*_NOUNS, "device", "simulation"},  # opens either kind: the one place where a name chooses
    "sampler": {*_NOUNS, "device", "finder", "shared_file"},  # the child process opens its GPUs by UUID
    "recorder": {*_NOUNS, "device", "trace", "sampler"},
    "tracking": {"records", "recorder"},  # what `tracker` is made of; memory keeps a recorder's rows
    "tracker": {"records", "period", "tracking"},
    "following": {"records", "recorder", "tracker"},
    "steps": {"records", "estimate"},  # pure functions over a recorder's rows
    "marks": {"records"},
    "energy_curve": set(),  # pure functions over traces
    "iterations": {"records", "errors", "periodicity", "energy_curve"},
    "counting": {"records", "errors", "period", "iterations", "recorder", "tracking"},
    "readers": {"errors", "trace"},
    "meter": {*_NOUNS, "device", "trace", "estimate", "steps", "recorder", "synchronise", "marks", "iterations", "counting"},
    "store": {"records", "errors", "trace", "places", "iterations"},
    "report": {"records", "errors", "trace", "tuner"},  # the last for its types only
    "gpu_table": {"records", "errors", "device", "recorder"},
    "workloads": {"records", "errors", "device", "simulation"},
    "trial": {*_NOUNS, "device", "meter", "workloads"},
    "runner": {"records", "errors", "search"},
    "dcgm": {"clock", "device"},  # reads what NVIDIA's `dcgmi` writes
    "features": {*_NOUNS, "device", "dcgm", "recorder"},
    "models": {"places"},
    "graded": {*_NOUNS, "device", "simulation"},
    "gpu_profile": {*_MEASURING, "features", "graded"},
    "profile_gpu": {*_MEASURING, "features", "graded", "gpu_profile", "models", "session", "search"},
    "tuner": {*_TUNING, "marks", "following", "tracking", "tracker", "report", "features", "models", "session", "finder"},
    "tuning": {"tuner"},  # its door
    "profiling": {*_NOUNS, "meter", "search"},  # slices inside a running job
    "recurrence": {*_TUNING, "profiling", "marks", "recurring"},  # the last for its types only
    "recurring": {*_TUNING, "profiling", "recurrence", "session", "places"},
    "executors": {"errors"},  # where trials run
    "sweeping": {"records", "errors", "places", "session", "store", "trial", "executors", "search"},
    "chosen": {"records"},
    "in_force": {"records", "errors", "device"},
    "applying": {*_NOUNS, "device", "places", "session", "recurring", "tuning", "chosen", "in_force"},
    "trade_off": {"records", "errors", "report", "search"},  # pure functions over frames
    "sharing": {*_MEASURING, "cluster", "marks", "period", "report", "session"},
    "callbacks": {"errors", "marks"},
    "session": {*_MEASURING, "finder", "simulation"},  # `simulate` chooses simulated GPUs by name
    "scripting": {*_MEASURING, "session", "iterations", "counting"},
}
EVERYTHING = {"__init__", "cli", "panels", "kernels_ext"}  # these may know all rooms
# What stands against the plan, each with its reason; an entry that no code needs any more fails too.
EXCEPTIONS = {
    ("device", "finder"): "restoring.recover opens the GPU that a journal of a dead process names",
    ("device", "simulation"): "restoring.recover attaches to the simulated machine of such a journal",
}
ONLY_IN = {
    "pynvml": ("workbench/device/nvml.py", "workbench/simulation/nvml_library.py"),
    "bokeh": ("workbench/panels/",),
    "ipywidgets": ("workbench/panels/",),
    "anywidget": ("workbench/panels/",),
    "IPython": ("kernels_ext/", "workbench/panels/"),
    "ipykernel": ("kernels_ext/", "workbench/panels/"),
    "traitlets": ("kernels_ext/", "workbench/panels/"),
}
ONLY_LAZILY = {"torch", "jax", "cupy", "lightgbm", "optuna", "dask", "distributed", "lightning", "transformers", "keras"}


class Import(NamedTuple):
    source: Path
    module: str  # dotted, absolute
    line: int
    at_load: bool  # not inside a function, not for type checkers only


def imports(path: Path) -> Iterator[Import]:
    package = path.relative_to(REPOSITORY).with_suffix("").parts[:-1]

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(path, alias.name, child.lineno, at_load)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else ()
                module = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:  # `from . import x` imports a module, `from .x import y` a name
                    yield Import(path, f"{module}.{alias.name}", child.lineno, at_load)
            lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            )
            yield from visit(child, at_load and not lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), True)


ALL = [each for path in FILES for each in imports(path)]


def room(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return parts[1] if parts[0] == "workbench" else parts[0]


def target(module: str) -> str | None:
    """The room that an import leads to; None for what is not ours."""
    parts = module.split(".")
    if parts[0] == "kernels_ext":
        return "kernels_ext"
    if parts[0] != "workbench":
        return None
    here = REPOSITORY / "workbench" / (parts[1] if len(parts) > 1 else "")
    return parts[1] if len(parts) > 1 and (here.is_dir() or here.with_suffix(".py").exists()) else "__init__"


def where(each: Import) -> str:
    return f"{each.source.relative_to(REPOSITORY)}:{each.line} imports {each.module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_room_knows_only_the_rooms_that_the_plan_gives_it(path: Path) -> None:
    mine = room(path)
    assert mine in ROOMS or mine in EVERYTHING, f"{mine} is no room of the plan; say in ROOMS what it may know"
    if mine in EVERYTHING:
        return
    for each in imports(path):
        other = target(each.module)
        if other is None or other == mine or (mine, other) in EXCEPTIONS:
            continue
        assert other in ROOMS[mine], where(each)


def test_every_exception_is_still_needed() -> None:
    used = {(room(each.source), target(each.module)) for each in ALL}
    assert set(EXCEPTIONS) <= used


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_met_in_its_room_only(library: str) -> None:
    strangers = [
        where(each) for each in ALL
        if each.module.split(".")[0] == library
        and not str(each.source.relative_to(REPOSITORY)).startswith(ONLY_IN[library])
    ]  # fmt: skip
    assert strangers == []


def test_heavy_libraries_are_imported_where_they_are_used_and_never_at_load() -> None:
    assert [where(each) for each in ALL if each.at_load and each.module.split(".")[0] in ONLY_LAZILY] == []


def test_nothing_of_ours_imports_the_tests_or_the_benchmarks() -> None:
    assert [where(each) for each in ALL if each.module.split(".")[0] in ("tests", "benchmarks", "notebooks")] == []


def test_the_side_that_other_processes_load_needs_the_standard_library_only() -> None:
    """The sampling process and the watchdog start in 50 ms: nothing they import may import numpy."""
    heavy = {"numpy", "polars", "scipy", "bokeh", "IPython"}
    light = ("sampler", "device", "finder", "places", "clock", "records", "errors")
    found = [where(each) for each in ALL if each.at_load and room(each.source) in light and each.module.split(".")[0] in heavy]
    assert found == []


def test_there_is_no_circle() -> None:
    """Among the imports that happen when a module is loaded."""
    names = {".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for each in ALL:
        if not each.at_load:
            continue
        mine = ".".join(each.source.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for candidate in (each.module, each.module.rpartition(".")[0]):
            if candidate in names and candidate not in (mine, "workbench"):
                graph[mine].add(candidate)
                break
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(names):
        walk(name, ())
