"""Benchmarks on data sets that are smaller than ours, or have cells that were not measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import clocks, clocks_search, limits
from benchmarks.clocks_grids import grids
from benchmarks.frontier_sweeps import problems
from workbench.errors import UsageError

HOLES = ("nan", "NaN", "")


def _written(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")


def _kernels(data: Path, count: int = 2, *, extra: tuple[tuple[Any, ...], ...] = ()) -> None:
    rows: list[tuple[Any, ...]] = [
        (f"kernel{k}", clock, 1e3 * (k + 2) / clock, 40 + (50 + 5 * k) * (clock / 1500) ** 2)
        for k in range(count)
        for clock in range(600, 1501, 100)
    ]
    _written(data / "clocks" / "x1.csv", "kernel,sm_clock_mhz,time_ms,power_w", [*rows, *extra])


def test_clocks_without_memory_clocks_are_read_and_empty_cells_left_out(tmp_path: Path) -> None:
    holes = (*(("kernel0", 1550, hole, 80) for hole in HOLES), ("kernel0", "", 1.0, 80))
    _kernels(tmp_path, 1, extra=(*holes, *(("bare", 900 + i, hole, 80) for i, hole in enumerate(HOLES))))
    (grid,) = grids(tmp_path)
    assert grid.problem == "kernel0"
    assert grid.points.height == 10
    assert grid.mem_clocks_mhz == (None,)


def test_curves_over_limits_lose_their_empty_cells_before_points_are_counted(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [("x1", "a", w, 300 / w, 300 - 0.1 * w) for w in (100, 150, 200, 250)]
    rows += [("x1", "a", 300, hole, 250.0) for hole in HOLES] + [("x1", "a", "", 1.0, 250.0)]
    rows += [("x1", "b", 100 + 10 * i, 2.0, 200 if i < 2 else hole) for i, hole in enumerate(("", *HOLES))]
    _written(tmp_path / "limits" / "x1.csv", "gpu,workload,power_limit_w,time_s,energy_j", rows)
    (grid,) = limits.measured(tmp_path)
    assert grid.points["power_limit_w"].to_list() == [100.0, 150.0, 200.0, 250.0]


def test_a_sweep_has_no_point_that_was_not_measured(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [
        ("squad", "bert", size, "adamw", limit, 100 / size, 0.9 * limit)
        for size in (8, 16, 32)
        for limit in (100, 150)
    ]
    rows += [("squad", "bert", 64, "adamw", 100 + i, hole, 90.0) for i, hole in enumerate(HOLES)]
    header = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"
    _written(tmp_path / "zeus" / "summary_power_x1.csv", header, rows)
    (frame,) = problems(tmp_path, least=1).values()
    assert frame.height == 6
    assert sum(frame.null_count().row(0)) == 0


@pytest.mark.parametrize("few", [0, clocks_search.FEW])
def test_a_quick_search_leaves_something_of_the_main_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(clocks_search, "FEW", few)
    kernels = 2
    _kernels(tmp_path, kernels)
    rows = [("app", f"in{i}", mhz, 5000, 1e3 / mhz + i, 90) for i in range(3) for mhz in (800, 900, 1000)]
    header = "application,argument,sm_clock_mhz,mem_clock_mhz,time_ms,power_w"
    _written(tmp_path / "clocks" / "a_first.csv", header, rows)
    tasks = clocks_search._tasks(grids(tmp_path), ["model-guided"], True)
    main = {task[0].name for task in tasks if task[0].kind in clocks_search.MAIN}
    assert len(main) == kernels


def _part(name: str, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | Exception) -> None:
    def run(data: Path, quick: bool) -> dict[str, Any]:
        if isinstance(found, Exception):
            raise found
        return found

    module = ModuleType(f"benchmarks.clocks_{name}")
    setattr(module, name, run)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_failing_part_gives_its_reason_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _part("predictor", monkeypatch, UsageError("there are no counters"))
    _part("search", monkeypatch, IndexError("nothing there"))
    _part("online", monkeypatch, {"summary": {"saving": 0.1}})
    target = tmp_path / "found.json"
    assert clocks.main(["--data", str(tmp_path), "--json", str(target)]) == 0
    summary = json.loads(target.read_text())["summary"]
    assert summary == {"predictor": {}, "search": {}, "online": {"saving": 0.1}}
    assert "no counters" in capsys.readouterr().out
    assert clocks.main(["--only", "search", "--data", str(tmp_path), "--json", str(target)]) == 1
    assert json.loads(target.read_text())["search"]["not_run"] == "IndexError: nothing there"
