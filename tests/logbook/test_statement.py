"""A table and a statement for a paper, in four formats; `verify` finds every number that was changed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench import cli
from workbench.errors import UsageError
from workbench.logbook.statement import FORMATS, MARK, NUMBER
from workbench.logbook.store import Store
from workbench.records import GpuMeasurement, IterationSummary, Measurement, Process, WorkDone


@pytest.fixture(autouse=True)
def log() -> None:
    store = Store()
    for number in range(4):
        label = ("base", "new_50%")[number % 2]
        gpu = GpuMeasurement("NVIDIA A100", "GPU-1", 1000.0 - 100 * (number % 2) + number, 5.0, "counter", False,
                             power_limit_w=400.0)
        found = IterationSummary(10, 0.5, 0.01, 100.0 + number, 1.0, "marks")
        store.save(Measurement(f"id{number}", label, 1.79e9 + number, 5.0, (gpu,), iterations=found))


def test_a_row_for_each_label_and_a_statement_of_the_method() -> None:
    found = workbench.report(pue=1.2, location="Norway", g_co2_per_kwh=30.0)
    assert [row[0] for row in found.rows] == ["base", "new_50%"]
    assert found.rows[0][2:4] == ("400 W", "2")
    assert found.rows[0][4] == "1.001 ± 0.013 kJ"
    for description in ("NVIDIA A100", "energy counter", "95 % intervals", "PUE of 1.2", "Norway", "400 W",
                  "Idle power"):
        assert description in found.text
    assert "simulated" not in found.text


def test_the_statement_reports_simulation_failures_and_other_processes() -> None:
    gpu = GpuMeasurement("A100 (simulated)", "GPU-2", 5.0, 1.0, "counter", True,
                         other_processes=(Process(1, "python"),))
    Store().save(Measurement("s", "sim", 1.79e9, 5.0, (gpu,), outcome="error"))
    found = workbench.report("sim")
    assert "not real" in found.text
    assert "1 of 1" in found.text
    assert "other processes" in found.text
    assert found.rows == []


def saved(number: int, energy_j: float, **more: Any) -> None:
    limit_w = more.pop("limit_w", 400.0)
    gpu = GpuMeasurement("NVIDIA A100", "GPU-1", energy_j, 1.0, "counter", False, power_limit_w=limit_w)
    Store().save(Measurement(f"x{number}", "runs", 1.79e9 + number, 5.0, (gpu,), **more))


def test_an_interrupted_run_is_left_out_and_counted() -> None:
    for number in range(4):
        saved(number, 100.0 + number % 2)
    saved(4, 5.0, outcome="interrupted")
    found = workbench.report("runs")
    assert [(row[3], row[4]) for row in found.rows] == [("4", "100.5 ± 1.0 J")]
    assert "1 of 5" in found.text
    assert "4 runs" in found.text


def test_runs_at_other_settings_batch_sizes_or_of_other_work_have_rows_of_their_own() -> None:
    saved(0, 100.0)
    saved(1, 60.0, limit_w=250.0)
    saved(2, 90.0, batch_size=64)
    saved(3, 80.0, work=(WorkDone("samples", 64.0),))
    saved(4, 70.0, iterations=IterationSummary(10, 0.5, 0.01, 7.0, 1.0, "marks"))
    saved(5, 40.0, iterations=IterationSummary(5, 0.5, 0.01, 7.0, 1.0, "marks"))
    assert [row[3] for row in workbench.report("runs").rows] == ["1"] * 6
    assert [re.findall(r"\d+", row[2]) for row in workbench.report("runs").rows][:3] == [["400"], ["250"], ["400", "64"]]


def test_three_runs_kept_as_one_share_a_row_with_a_fourth_of_the_same_work() -> None:
    saved(0, 90.0, repeats=3, work=(WorkDone("samples", 300.0),))
    saved(1, 94.0, work=(WorkDone("samples", 300.0),))
    assert [row[3] for row in workbench.report("runs").rows] == ["4"]


def test_the_total_counts_every_call_of_a_comparison() -> None:
    saved(0, 3.6, repeats=5, calls=200)
    assert "1.00 Wh" in workbench.report("runs").text


@pytest.mark.parametrize("ending", FORMATS)
def test_text_next_to_the_mark_is_verified_too(tmp_path: Path, ending: str) -> None:
    path = workbench.report("base").write(tmp_path / f"energy{ending}")
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        for forged in (f"We saved 50 %. <!-- {MARK} -->", f"{line} and saved 50 % more {MARK}"):
            path.write_text("\n".join([*lines[:number], forged, *lines[number + 1 :], ""]))
            with contextlib.suppress(UsageError):  # some of them are no reports any more
                assert workbench.verify(path)


@pytest.mark.parametrize("ending", FORMATS)
def test_every_number_that_was_changed_is_found(tmp_path: Path, ending: str) -> None:
    around = {"location": 'Zürich, "north"', "g_co2_per_kwh": 0.0}
    assert workbench.verify(workbench.report(**around).write(tmp_path / f"around{ending}")) == []
    path = workbench.report(pue=1.2).write(tmp_path / f"energy{ending}")
    assert workbench.verify(path) == []
    text = path.read_text()
    body = text[: text.index(MARK)]
    places = [found for found in NUMBER.finditer(body) if found[0].strip("+-").isdigit() or "." in found[0]]
    for found in places[:: max(1, len(places) // 20)]:
        other = str(int(float(found[0])) + 7)
        path.write_text(text[: found.start()] + other + text[found.end():])
        assert workbench.verify(path), found[0]


def test_a_measurement_that_was_changed_in_the_log_is_found(tmp_path: Path) -> None:
    path = workbench.report("base").write(tmp_path / "energy.md")
    for each in Store().directory.rglob("m-*-id0.parquet"):
        each.unlink()
    gpu = GpuMeasurement("NVIDIA A100", "GPU-1", 900.0, 5.0, "counter", False)
    Store().save(Measurement("id0", "base", 1.79e9, 5.0, (gpu,)))
    reported = workbench.verify(path)
    assert "digest" in reported[0]
    assert any("should be" in each for each in reported)


def test_latex_is_escaped_and_compiles(tmp_path: Path) -> None:
    path = workbench.report().write(tmp_path / "energy.tex")
    text = path.read_text()
    assert r"new\_50\%" in text
    assert r"\toprule" in text
    assert not re.search(r"(?<!\\)%(?! needs| workbench)", text)
    if not shutil.which("pdflatex"):
        pytest.skip("there is no pdflatex")
    (tmp_path / "all.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,textcomp}\\begin{document}\\input{energy}\\end{document}")
    subprocess.run(["pdflatex", "-interaction=batchmode", "-halt-on-error", "all"], cwd=tmp_path, check=True)


def test_json_has_where_each_number_is_from(tmp_path: Path) -> None:
    whole = json.loads(workbench.report("base").json())
    assert whole["prov:wasDerivedFrom"] == [each["@id"] for each in whole["measurements"]]
    assert [each["energy_j"] for each in whole["measurements"]] == [1000.0, 1002.0]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "base", "--latex"]) == 0
    assert r"\bottomrule" in capsys.readouterr().out
    path = tmp_path / "energy.md"
    assert cli.main(["report", "--last", "2", "--pue", "1.1", "-o", str(path)]) == 0
    assert cli.main(["verify", str(path)]) == 0
    assert "all numbers match" in capsys.readouterr().out
    path.write_text(path.read_text().replace("400 W", "300 W"))
    assert cli.main(["verify", str(path)]) == 1
    assert re.search("300 .*400", capsys.readouterr().out)


@pytest.mark.parametrize(("options", "description"), [
    ({"label": "none"}, "labelled 'none'"),
    ({"pue": 0.5}, "1 or more"),
    ({"g_co2_per_kwh": -1.0}, "0 or more"),
    ({"since": "yesterday"}, "2026-11-22"),
    ({"since": "2030-01-01"}, "no measurement was selected"),
    ({"last": 0}, "1 or more"),
])
def test_invalid_input_is_an_error(options: dict[str, object], description: str) -> None:
    with pytest.raises(UsageError, match=description):
        workbench.report(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mark", ['{"ids":[],"sha256":"","surroundings":{"unknown":1}}',
                                  '{"ids":' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_a_damaged_mark_is_an_error_and_not_a_traceback(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "energy.md"
    path.write_text(f"<!-- {MARK} {mark} -->\n")
    with pytest.raises(UsageError, match="no line"):
        workbench.verify(path)


def test_a_file_that_is_no_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ends with"):
        workbench.report().write(tmp_path / "energy.doc")
    (tmp_path / "a.md").write_text("hello")
    with pytest.raises(UsageError, match="no line"):
        workbench.verify(tmp_path / "a.md")
    path = workbench.report("base").write(tmp_path / "b.md")
    for each in Store().directory.rglob("m-*.parquet"):
        each.unlink()
    with pytest.raises(UsageError, match="no measurement"):
        workbench.verify(path)
