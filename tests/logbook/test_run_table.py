"""The log as a person reads it."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import polars as pl

from workbench.logbook.run_table import SHOWN, RunLog, as_text, rows
from workbench.logbook.store import as_frame, export
from workbench.records import GpuMeasurement, IterationSummary, Measurement, Setting, SettingSegment, WorkDone

NOW_S = time.mktime((2026, 3, 14, 15, 0, 0, 0, 0, -1))
FOREIGN = "other processes used this GPU and are in the figure: python (7085)"
GPU = GpuMeasurement(
    "Tesla V100 (simulated)", "GPU-1", 123.4321, 1.8342, "counter", True, setting=Setting(200.0, 1380),
    power_limit_w=200.0, notes=(FOREIGN, "3 gaps in sampling; their energy comes from the counter"),
)
RUN = Measurement(
    "abc", "train", NOW_S - 60, 9.98, (GPU, replace(GPU, uuid="GPU-2")),
    iterations=IterationSummary(24, 0.41, 0.003, 96.04, 2.1, "detected"), kind="loop", batch_size=64,
)


def test_a_row_has_every_column() -> None:
    (row,) = rows(as_frame([RUN]), {"abc": "before"}, now_unix_s=NOW_S)
    assert {name: row[name] for name in row if name not in ("GPU", "note")} == {"id": "abc", "when": "today 14:59:00", "label": "train", "what": "loop", "batch size": "64", "energy": "246.9 ± 2.6 J", "time": "9.98 s", "J/iteration": "96.0 ± 2.1 J", "work": "24 iterations", "setting": str(GPU.setting)}
    assert re.fullmatch("2 .*Tesla V100.*simulated", row["GPU"])
    assert re.fullmatch("before.*other processes.*", row["note"])


def test_a_run_without_energy_has_a_reason_and_a_failed_run_a_note() -> None:
    bare = Measurement("id", "", NOW_S, 0.05, notes=("there is no driver",), outcome="error")
    (row,) = rows(as_frame([bare]), now_unix_s=NOW_S)
    assert (row["energy"], row["GPU"], row["what"]) == ("-", "", "cell")
    assert re.fullmatch("error.*no driver", row["note"])
    assert as_text(rows(as_frame([]))).startswith("Nothing")


def test_the_log_is_a_frame_that_shows_itself_as_the_table() -> None:
    log = RunLog.of(as_frame([replace(RUN, id=str(n), label=f"<{n}>") for n in range(SHOWN + 2)]), {})
    assert isinstance(log, pl.DataFrame)
    assert log.filter(pl.col("label") == "<0>").height == 1
    page = log._repr_html_()
    assert page.count("<tr>") == 1 + SHOWN
    assert page.index("&lt;41&gt;") < page.index("&lt;40&gt;")  # newest first
    assert "&lt;1&gt;" not in page
    assert "of 42 runs" in repr(log)
    assert "<tr>" not in RunLog.of(as_frame([]), {})._repr_html_()


def test_a_spreadsheet_begins_with_what_a_person_reads(tmp_path: Path) -> None:
    read = pl.read_csv(export(as_frame([RUN]), tmp_path / "runs.csv"))
    assert read.columns[:5] == ["label", "started", "gpu", "setting", "note"]
    assert read["setting"].to_list() == [str(Setting(200.0, 1380))]
    assert {"gpus", "energy_j", "notes"} <= set(read.columns)


def test_a_row_shows_each_setting_that_was_active_with_its_time() -> None:
    segments = (SettingSegment(Setting(250.0), 3.0, 500.0), SettingSegment(Setting(150.0, 1380), 7.0, 700.0))
    (row,) = rows(as_frame([replace(RUN, gpus=(replace(GPU, segments=segments),))]), now_unix_s=NOW_S)
    assert re.findall(r"\d+ \w+", row["setting"]) == ["250 W", "3 s", "150 W", "1380 MHz", "7 s"]


def test_a_row_shows_the_work_that_was_done() -> None:
    counted = replace(RUN, work=(WorkDone("samples", 3072.0),), gpus=(GPU,))
    (row,) = rows(as_frame([counted]), now_unix_s=NOW_S)
    assert re.fullmatch("3072 samples.*24 iterations", row["work"])
