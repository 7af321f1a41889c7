"""Each package imports only the packages and libraries that the plan in `tools/house.py` allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import house

ONLY_IN = {
    "pynvml": ("workbench/device/nvml/", "workbench/simulation/nvml_library.py"),
    "bokeh": ("workbench/panels/",),
    "ipywidgets": ("workbench/panels/",),
    "anywidget": ("workbench/panels/",),
    "IPython": ("kernels_ext/", "workbench/panels/"),
    "ipykernel": ("kernels_ext/", "workbench/panels/"),
    "traitlets": ("kernels_ext/", "workbench/panels/"),
}
ONLY_LAZILY = {
    "torch",
    "jax",
    "cupy",
    "lightgbm",
    "optuna",
    "dask",
    "distributed",
    "lightning",
    "transformers",
    "keras",
}


def place(each: house.Import) -> str:
    return str(each.source.relative_to(house.ROOT))


def test_no_import_goes_up() -> None:
    assert house.upward() == []


def test_there_is_no_circle_counting_imports_in_functions_and_for_types() -> None:
    assert house.circles() == []


@pytest.fixture(scope="module")
def facts() -> dict[str, object]:
    return dict(house.facts())


@pytest.mark.parametrize("name", house.LIMITS)
def test_the_house_keeps_its_size(name: str, facts: dict[str, object]) -> None:
    assert int(str(facts[name])) <= house.LIMITS[name], "see `make house`"


def test_the_limits_are_never_higher_than_the_shared_ones() -> None:
    shared = house.shared_limits()
    if not shared:
        pytest.skip(f"{house.SHARED_LIMITS} is missing")
    assert {name: house.LIMITS[name] for name in shared if house.LIMITS[name] > shared[name]} == {}


def test_a_count_above_a_shared_limit_fails(
    facts: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(house, "SHARED_LIMITS", tmp_path / "limits.json")
    monkeypatch.setattr(house, "facts", lambda: facts)
    assert house.main() == 0  # without the file
    limits = {"code_tokens": facts["code_tokens"], "js_lines": 10}
    (tmp_path / "limits.json").write_text(json.dumps(limits), encoding="utf-8")
    assert house.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"js_lines: {facts['js_lines']} is above the limit of 10: remove as much elsewhere"
    )
    assert house.exceeded({**facts, "js_lines": 10, "code_tokens": int(str(facts["code_tokens"])) + 1})


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_met_in_its_room_only(library: str) -> None:
    found = [
        str(each)
        for each in house.imports()
        if each.target.split(".")[0] == library and not place(each).startswith(ONLY_IN[library])
    ]
    assert found == []


def test_heavy_libraries_are_imported_where_they_are_used_and_never_at_load() -> None:
    assert [str(each) for each in house.imports() if each.at_load and each.target.split(".")[0] in ONLY_LAZILY] == []


def test_nothing_of_ours_imports_tests_benchmarks_or_tools() -> None:
    assert [
        str(each)
        for each in house.imports()
        if each.target.split(".")[0] in ("tests", "benchmarks", "notebooks", "tools")
    ] == []


def test_the_side_that_other_processes_load_needs_the_standard_library_only() -> None:
    """The sampling process and the watchdog start in 50 ms: nothing they import may import numpy."""
    heavy = {"numpy", "polars", "scipy", "bokeh", "IPython", "psutil", "platformdirs"}
    light = (
        "workbench/measurement/sampler.py",
        "workbench/measurement/ring.py",
        "workbench/measurement/edges.py",
        "workbench/measurement/__init__.py",
        "workbench/device/",
        "workbench/_paths.py",
        "workbench/_processes.py",
        "workbench/clock.py",
        "workbench/records.py",
        "workbench/errors.py",
    )
    found = [
        str(each)
        for each in house.imports()
        if each.at_load and place(each).startswith(light) and each.target.split(".")[0] in heavy
    ]
    assert [each for each in found if not each.startswith("workbench/device/control.py")] == []  # for panels
