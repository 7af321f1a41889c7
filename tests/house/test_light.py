"""Imports stay small: an import of the package loads nothing that is not used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "numpy",
    "polars",
    "scipy",
    "bokeh",
    "IPython",
    "ipywidgets",
    "anywidget",
    "lightgbm",
    "optuna",
    "dask",
    "pynvml",
    "platformdirs",
    "psutil",
    "torch",
    "traitlets",
    "jupyter_client",
    "pandas",
    "matplotlib",
}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh process has after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def heavy(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules} & HEAVY


def test_importing_the_package_imports_nothing_else() -> None:
    before, after = loaded_by("pass"), loaded_by("import workbench")
    assert heavy(after) == set()
    assert {name for name in after if name.startswith("workbench")} == {"workbench"}
    assert len(after - before) < 15


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("from workbench import Limits, Measurement, Setting, WorkbenchError", set()),
        (
            "import workbench.logbook.report, workbench.clock, workbench._paths, "
            "workbench.measurement.synchronise",
            set(),
        ),
        ("from workbench import open_device, devices", {"pynvml"}),
        ("import workbench.measurement.sampler", set()),
        ("import workbench.device.lease", set()),
        ("import workbench.cli; workbench.cli._parser()", set()),
        ("import kernels_ext", set()),
    ],
)
def test_a_part_imports_only_the_libraries_it_needs(code: str, allowed: set[str]) -> None:
    assert heavy(loaded_by(code)) <= allowed


def test_the_helper_processes_load_neither_numpy_nor_polars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampling process and the watchdog, with everything they load when they work."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))  # the kernel tells them its own
    code = (
        "from workbench.simulation import machine; made = machine.simulate('V100', stepped=True)\n"
        "from workbench.measurement import sampler; from workbench.device import lease as control, restore "
        "as restoring; from workbench.device.discovery import open_device\n"
        "from workbench.records import Setting; device = open_device()\n"
        "restoring.recover(); control.change(device, Setting(power_limit_w=200.0)); control.restore(device); "
        "made.close()"
    )
    assert heavy(loaded_by(code)) <= {"pynvml"}


def test_measuring_loads_no_plots_and_no_notebook() -> None:
    code = (
        "import workbench; workbench.simulate('V100')\n"
        "with workbench.measure('x') as result: pass\n"
        "assert result.energy_j is not None"
    )
    assert (
        heavy(loaded_by(code))
        & {"bokeh", "IPython", "ipywidgets", "anywidget", "lightgbm", "optuna", "dask", "torch"}
        == set()
    )


@pytest.mark.parametrize("extension", ["kernels_ext", "workbench"])
def test_loading_the_extension_loads_no_library(extension: str) -> None:
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(); import sys; known = set(sys.modules)\n"
        f"shell.run_line_magic('load_ext', '{extension}')\n"
        "assert shell.find_cell_magic('energy') is not None\n"
        "new = set(sys.modules) - known\n"
        "for name in list(sys.modules):\n"
        "    if name not in new: del sys.modules[name]\n"
        "import sys; sys.modules['sys'] = sys"
    )
    new = loaded_by(code)
    assert (
        heavy(new) & {"numpy", "polars", "scipy", "bokeh", "ipywidgets", "anywidget", "lightgbm", "pynvml"}
        == set()
    )
    # What keeps an interrupt from tearing the hooks of a cell apart.
    assert {name for name in new if name.startswith("workbench.")} <= {"workbench._processes", "workbench.errors"}
