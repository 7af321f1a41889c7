"""Parts of the site that are made from the code when it is built, so that they cannot go stale.

A page has `<!-- made from the code: NAME -->` where such a part belongs. `made(NAME)` is its Markdown. Nothing
here needs Sphinx but `add_to`.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gallery_pages import cards, write

import workbench

MARKER = re.compile(r"<!-- made from the code: ([\w-]+) -->")

# The public names of `workbench`, by what one does with them. A test holds that none is missing.
API = {
    "Measure": "measure track step phase work trace_of iterations_of BlockResult TrackedLoop Measurement "
    "GpuMeasurement "
        "IterationSummary SegmentedIterations",
    "Compare and report": "compare EnergyComparison waste report verify EnergyStatement log_to read_log read_job",
    "Find iterations": "find_periods Periods DetectedPeriod",
    "GPUs and settings": "devices open_device Device Limits Setting Configuration gpu_settings gpu_control "
    "simulate",
    "Tune and search": "tune Tuning TuningResult sweep Sweep Observation frontier best_configuration "
    "RecurringJob JobRun "
        "example_training",
    "Share a GPU": "share SharingResult",
    "Show": "show",
    "Errors": "WorkbenchError",
}
# Modules whose names are public, too.
MODULES = {
    "panels": "panels for results; `workbench.show(x)` selects the right one.",
    "callbacks": "hooks for Hugging Face, Lightning and Keras.",
    "cluster": "job logs and policies.",
    "chosen": "the last applied choice: `configuration`, `batch_size`, `setting`.",
}
CALLBACKS = ("HuggingFaceCallback", "LightningCallback", "KerasCallback")
VARIABLES = {
    "WORKBENCH_HOME": "The directory of measurements, traces, studies and journals. Default: the user's data "
        "directory, `~/.local/share/gpu-energy-workbench` on Linux.",
    "WORKBENCH_READ_ONLY": "`1`, `yes`, `true` or any other text: no limit or clock is ever changed. `clocks`: power "
        "limits only. `0` or empty: no restriction.",
    "WORKBENCH_DRIVER": "The Python module of a driver other than NVIDIA's (`workbench/device/driver.py`).",
    "WORKBENCH_SIMULATED_GPUS": "The file of a simulated machine, which this process and its children use in place of "
        "the driver. Set by `workbench.simulate` and `--simulate`.",
    "WORKBENCH_MARKS": "Directory for the marks of child processes. Set by `workbench run`, `workbench share` and "
        "measurements in a process.",
    "WORKBENCH_DATA": "A directory of measured data; its folder `cluster` appears in the cluster panel.",
    "CUDA_VISIBLE_DEVICES": "GPUs that this process measures by default, in CUDA's order.",
    "CUDA_DEVICE_ORDER": "How CUDA numbers GPUs: `PCI_BUS_ID` or by speed.",
    "CUDA_MPS_PIPE_DIRECTORY": "Directory of the MPS service. The result of sharing reports whether it was used.",
    "ZEUSD_SOCK_PATH": "The socket of a Zeus daemon, which sets limits and clocks for this process.",
    "ZEUSD_GPU_ID": "The daemon's number of each visible GPU, as `3,5`, if only some GPUs are visible.",
    "ZEUSD_TOKEN": "The token of the daemon, if it requires one.",
}
COLUMNS = {
    "id": "name of the measurement", "label": "name given by the user", "started_unix_s": "start, Unix time",
    "time_s": "length of the window", "energy_j": "energy of all its GPUs",
    "energy_uncertainty_j": "half width of the 95 % interval", "mean_power_w": "energy over time",
    "source": "`counter`, `integrated`, or both; source of the energy",
    "simulated": "whether a GPU was simulated", "outcome": "`ok`, `error` or `interrupted`",
    "repeats": "runs of the cell", "time_sd_s": "standard deviation over the repeats",
    "energy_sd_j": "standard deviation over the repeats", "cpu_energy_j": "CPU packages (RAPL), where readable",
    "dram_energy_j": "memory (RAPL), where readable", "iteration_s": "mean length of an iteration",
    "iteration_s_uncertainty": "half width of its 95 % interval", "iteration_j": "mean energy of an iteration",
    "iteration_j_uncertainty": "half width of its 95 % interval", "iteration_count": "number of iterations",
    "iteration_source": "`marks` or `detected`", "iteration_sure": "whether both period and role are sure",
    "iteration_reason": "reason if it is not sure", "iteration_detected_s": "the detected period if there were step marks",
    "iteration_check": "how marks and detection agree", "iteration_levels": "a row for each level: micro-step, cycle",
    "gpus": "a row for each GPU: energy, the setting that was active longest, `segments` with each setting, its time "
        "and energy if it changed during the run, other processes, notes", "notes": "messages about the measurement",
    "schema_version": "of this table", "work": "counted work: names and amounts",
    "batch_size": "batch size, if a sweep or a recurring job chose it",
    "calls": "of a comparison: number of calls per run; values are per call",
    "tick_s": "last refresh of the source of the energy",
    "power_w": "power", "power_tick_s": "last refresh of the power reading", "power_limit_w": "enforced limit",
    "sm_clock_mhz": "SM clock", "mem_clock_mhz": "memory clock", "utilisation": "of the GPU, 0..1",
    "memory_utilisation": "of its memory interface, 0..1", "temperature_c": "temperature",
    "throttle": "the driver's bits for the causes of low clocks", "uuid": "of the GPU",
    "iteration": "its number; a part of one has the same", "kind": "cell, tuned cell, block, loop, command, tuned command, sweep, "
        "recurring job, shared GPU, comparison or imported; of an iteration: "
        "iteration, evaluation, checkpoint",
    "start_s": "start, on the clock of the trace", "end_s": "end, on the clock of the trace",
}


def made(name: str) -> str:
    """The Markdown of a part."""
    return _PARTS[name]()


def fill(text: str) -> str:
    """A page with its parts."""
    return MARKER.sub(lambda found: made(found[1]), text)


def documented() -> set[str]:
    """Names that the reference documents: `measure`, `panels.frontier`."""
    return set(re.findall(r"^\.\. (?:auto\w+|py:\w+):: workbench\.([\w.]+)", "\n".join(objects().values()), flags=re.M))


def _groups() -> Iterator[tuple[str, str, list[str]]]:
    """Sections of the overview: title, introduction, names in it."""
    for title, names in API.items():
        yield title, "", [f"workbench.{name}" for name in names.split()]
    for module, words in MODULES.items():
        yield module.title(), f"`workbench.{module}`: {words}\n", [f"workbench.{module}.{name}" for name in public(module)]


def _page(path: str) -> str:
    """File of an object's page. Classes and functions of one name differ, also where case does not count."""
    name = path.removeprefix("workbench.")
    return f"{name}.class" if name.split(".")[-1][0].isupper() else name


def objects() -> dict[str, str]:
    """A page for each public object, by its file."""
    return {_page(path): f"# {path.removeprefix('workbench.')}\n\n{_entry(path)}" for _, _, paths in _groups() for path in paths}


def api() -> str:
    """The overview: a table of each group, and the pages in the order of the tables."""
    parts, listed = [], []
    for title, introduction, paths in _groups():
        rows = [(f"[`{path.removeprefix('workbench.')}`](objects/{_page(path)}.md)", _summary(path)) for path in paths]
        parts += [f"## {title}\n", introduction, _table(("name", "summary"), rows)]
        listed += [f"objects/{_page(path)}" for path in paths]
    return "\n".join([*parts, "```{toctree}", ":hidden:", ":maxdepth: 1", "", *listed, "```", ""])


def _summary(path: str) -> str:
    """First line of what an object says of itself."""
    _, *names = path.split(".")
    if names[0] == "callbacks":
        return f"Marks iterations in the training loop of {names[1].removesuffix('Callback')}."
    thing: Any = workbench
    for name in names:
        thing = getattr(thing, name)
    described = inspect.isclass(thing) or callable(thing)
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()) if described else _shape(thing)


def public(module: str) -> list[str]:
    """Names of a public module, in order."""
    if module == "chosen":
        return ["choose"]
    if module == "callbacks":
        return [*CALLBACKS]
    return list(getattr(workbench, module).__all__)


def _entry(path: str) -> str:
    """What autodoc makes of a name; a callback needs its framework, so its docstring is taken as it is."""
    _, *parts = path.split(".")
    if parts[0] == "callbacks":
        return _callback(parts[1])
    thing: Any = workbench
    for part in parts:
        thing = getattr(thing, part)
    if inspect.isclass(thing):
        kind, options = "autoclass", ["   :members:"]
    elif callable(thing):
        kind, options = "autofunction", []
    else:
        return f"```{{eval-rst}}\n.. py:data:: {path}\n\n   {_shape(thing)}\n```\n"
    return "\n".join(["```{eval-rst}", f".. {kind}:: {path}", *options, "```", ""])


def _callback(name: str) -> str:
    from workbench import callbacks

    hooks = getattr(callbacks, f"_{name.removesuffix('Callback')}Hooks")
    words = textwrap.indent(_plain(f"{inspect.getdoc(hooks)}\n\n{inspect.getdoc(callbacks._Hooks)}"), "   ")
    return f"```{{eval-rst}}\n.. py:class:: workbench.callbacks.{name}\n\n{words}\n```\n"


def _shape(thing: Any) -> str:
    kind = type(thing).__name__
    return "Column names and types of a DataFrame." if kind == "Schema" else f"A ``{kind}``."


def magics() -> str:
    from kernels_ext import cells
    from kernels_ext.magics import EnergyMagics

    parsers = {"%%energy": cells.parser, "%energy_log": cells.log_parser, "%energy_compare": cells.compare_parser}
    parts = []
    for kind, sign in (("cell", "%%"), ("line", "%")):
        for name, function in sorted(EnergyMagics.magics[kind].items()):
            function = getattr(EnergyMagics, function) if isinstance(function, str) else function
            words = inspect.getdoc(function) or ""
            parts += [f"## `{sign}{name}`\n", _block(words)]
            if f"{sign}{name}" in parsers and "usage:" not in words:
                parts.append(_block(_help(parsers[f"{sign}{name}"]())))
    rows = [
        (f"`EnergyMagics.{name}`", repr(trait.default_value), trait.help)
        for name, trait in sorted(EnergyMagics.class_traits(config=True).items())
        if trait.this_class is EnergyMagics
    ]
    parts += ["## Configuration\n", "Set with `%config EnergyMagics.live = False`, or in IPython's configuration file.\n"]
    return "\n".join([*parts, _table(("option", "default", "meaning"), rows)])


def command_line() -> str:
    from workbench.cli import _parser

    return "\n".join(_commands(_parser(), 2))


def _commands(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for each in dict.fromkeys(action.choices.values()):
            yield f"{'#' * level} `{each.prog}`\n"
            yield _block(_help(each))
            yield from _commands(each, level + 1)


def _help(parser: argparse.ArgumentParser) -> str:
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="96", NO_COLOR="1")
    try:
        return parser.format_help()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def variables() -> str:
    return _table(("variable", "meaning"), [(f"`{name}`", words) for name, words in VARIABLES.items()])


def error_list() -> str:
    from workbench import errors

    tree = (errors.__doc__ or "").split("\n\n")[1]
    parts = [_block(textwrap.dedent(tree))]
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.WorkbenchError):
            also = [base.__name__ for base in error.__bases__ if not issubclass(base, errors.WorkbenchError)]
            caught = f" Also caught as `{'`, `'.join(also)}`." if also and also != ["Exception"] else ""
            parts.append(f"**`workbench.errors.{name}`**: {inspect.getdoc(error)}{caught}\n")
    return "\n".join(parts)


def store() -> str:
    from workbench.logbook import store as stored
    from workbench.periods import segment

    parts = [_block(textwrap.dedent((stored.__doc__ or "").split("\n\n")[1]))]
    for title, schema in (
        ("Measurements", stored.SCHEMA), ("Traces", stored._TRACE),
        ("Iterations", segment.SCHEMA),
    ):
        rows = [(f"`{name}`", _type(kind), COLUMNS.get(name, "")) for name, kind in schema.items()]
        parts += [f"## {title}\n", _table(("column", "type", "meaning"), rows)]
    return "\n".join(parts)


def _type(kind: Any) -> str:
    return re.split(r"[({]", str(kind))[0] if "Struct" in str(kind) else str(kind)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(head)]
    lines += [("---",) * len(lines[0]), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _plain(words: str) -> str:
    """A docstring for reStructuredText: what stands in backticks, or apart and indented, is code."""
    words = re.sub(r"(?<!`)`([^`\n]+)`(?![`_])", r"``\1``", words)
    return re.sub(r"(?<=[^:]\n)\n(?= {4}\S)", "\n::\n\n", words)


_PARTS: dict[str, Callable[[], str]] = {
    "api": api, "magics": magics, "command-line": command_line, "variables": variables, "errors": error_list,
    "store": store, "gallery": cards,
}


def add_to(app: Any) -> None:
    """Tie it to a Sphinx application."""

    def prepare(app: Any) -> None:
        folder = app.srcdir / "reference" / "objects"
        folder.mkdir(exist_ok=True)
        pages = {folder / f"{name}.md": text for name, text in objects().items()}
        for old in set(folder.glob("*.md")) - pages.keys():
            old.unlink()
        for path, text in pages.items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")

    def read(app: Any, page: str, source: list[str]) -> None:
        source[0] = fill(source[0])

    def docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
        lines[:] = _plain("\n".join(lines)).split("\n")
        if what in ("attribute", "property"):  # else what stands before a colon would be taken for a type
            lines.insert(0, "")

    def finish(app: Any, problem: Exception | None) -> None:
        if problem is None and app.builder.format == "html":
            write(app.outdir / "gallery")

    app.connect("builder-inited", prepare)  # before Sphinx looks for pages
    app.connect("source-read", read)
    app.connect("build-finished", finish)
    app.connect("autodoc-process-docstring", docstring, priority=100)
