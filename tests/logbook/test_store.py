"""Measurements are stored whole or not at all, through kills, full disks and two concurrent writers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workbench.errors import StoreError, UsageError
from workbench.logbook import store as stores
from workbench.logbook.store import SCHEMA, SCHEMA_VERSION, Store, as_frame, export, from_row
from workbench.records import GpuMeasurement, IterationSummary, LevelCost, Measurement, Process, Setting
from workbench.trace import SCHEMA as TRACE

FULL = Measurement(
    id="0123456789ab",
    label="train ☂",
    started_unix_s=1_700_000_000.125,
    time_s=9.98,
    gpus=(
        GpuMeasurement(
            "A100",
            "GPU-1",
            123.4,
            1.8,
            "counter",
            True,
            mean_power_w=12.4,
            peak_power_w=30.0,
            idle_share=0.25,
            mean_utilisation=0.75,
            setting=Setting(200.0, 1005, 1215),
            power_limit_w=200.0,
            sm_clock_mhz=1005.0,
            throttle_reasons=("power cap", "thermal (hardware)"),
            other_processes=(Process(1, "python", None), Process(2, "jax", 1 << 40)),
            samples=99,
            gaps=1,
            notes=("a", "b"),
        ),
        GpuMeasurement("P100", "GPU-2", 1.0, 0.5, "integrated", False),
    ),
    cpu_energy_j=40.0,
    dram_energy_j=2.0,
    repeats=3,
    time_sd_s=0.1,
    energy_sd_j=0.2,
    outcome="interrupted",
    notes=("c",),
    iterations=IterationSummary(
        24,
        0.412,
        0.003,
        96.0,
        2.0,
        "marks",
        (
            LevelCost("iteration", 24, 9.9, 2304.0, 0.412, 96.0),
            LevelCost("checkpoint", 2, 6.0, None, 3.0, None, every=12.0),
        ),
        sure=True,
        reason="",
        detected_s=0.41,
        check="0.5 % off",
    ),
)
BARE = Measurement("b", "", 1_700_000_001.0, 0.5)
NO_ENERGY = Measurement(
    "c", "lost", 1_700_000_002.0, 0.5, (GpuMeasurement("A100", "GPU-1", None, None, "none", False),)
)


def a_trace(rows: int = 3) -> pl.DataFrame:
    return pl.DataFrame({name: list(range(rows)) for name in TRACE.names()}, schema=TRACE)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def files(store: Store) -> list[str]:
    return sorted(path.name for path in store.directory.rglob("*") if path.is_file())


# there and back


@pytest.mark.parametrize("m", [FULL, BARE, NO_ENERGY], ids=["full", "bare", "no energy"])
def test_a_measurement_comes_back_equal(store: Store, m: Measurement) -> None:
    store.save(m)
    log = Store(store.directory).log()
    assert log.schema == SCHEMA
    assert from_row(log.row(0, named=True)) == m
    row = log.row(0, named=True)
    assert (row["energy_j"], row["source"], row["simulated"]) == (m.energy_j, m.source, m.simulated)
    assert row["schema_version"] == SCHEMA_VERSION


def test_the_log_has_the_cost_of_an_iteration_only_where_iterations_were_detected(store: Store) -> None:
    store.save(FULL)
    store.save(BARE)
    columns = [
        "iteration_s", "iteration_s_uncertainty", "iteration_j", "iteration_j_uncertainty", "iteration_count",
        "iteration_source",
    ]
    assert store.log().select(columns).rows() == [(0.412, 0.003, 96.0, 2.0, 24, "marks"), (None,) * 6]


def test_iterations_come_back_and_go_with_their_trace(store: Store) -> None:
    frame = pl.DataFrame({"iteration": [0, None], "kind": ["iteration", "other"], "time_s": [0.4, 0.1]})
    store.save(FULL, {"GPU-1": a_trace()}, frame)
    store.save(BARE, {"GPU-1": a_trace()}, frame.clear())
    kept = store.iterations(FULL.id)
    assert kept is not None
    assert kept.equals(frame)
    assert store.iterations(BARE.id) is None
    store.quota_bytes = sum(path.stat().st_size for path in (store.directory / "traces").iterdir()) - 1
    store.save(replace(BARE, id="d", started_unix_s=1_700_000_009.0), {"GPU-1": a_trace()})
    assert store.trace(FULL.id) is None
    assert store.trace("d") is not None


def test_a_log_is_ordered_by_time_not_by_the_order_of_writing(store: Store) -> None:
    for m in (NO_ENERGY, FULL, BARE):
        store.save(m)
    assert store.log()["id"].to_list() == ["0123456789ab", "b", "c"]


def test_an_empty_store_has_an_empty_log_and_writes_nothing(store: Store) -> None:
    assert store.log().equals(pl.DataFrame(schema=SCHEMA))
    assert not store.directory.exists()


def test_traces_come_back_with_the_gpu_they_are_of(store: Store) -> None:
    store.save(FULL, {"GPU-1": a_trace(), "GPU-2": a_trace(2), "GPU-3": a_trace(0)})
    trace = store.trace(FULL.id)
    assert trace is not None
    assert trace.drop("uuid").schema == TRACE
    assert trace["uuid"].to_list() == ["GPU-1"] * 3 + ["GPU-2"] * 2
    assert store.trace("unknown") is None


def test_a_measurement_is_found_by_label_or_the_beginning_of_its_id(store: Store) -> None:
    store.save(replace(FULL, label="train"))
    store.save(replace(BARE, label="train"))
    assert store.find("train").id == "b"  # the newest
    assert store.find("0123").label == "train"
    with pytest.raises(UsageError, match=r"'eval'.*train"):
        store.find("eval")


def test_a_label_is_found_before_an_id_that_begins_like_it(store: Store) -> None:
    store.save(replace(FULL, label="b", outcome="ok"))
    store.save(replace(BARE, started_unix_s=FULL.started_unix_s + 1))
    assert store.find("b").id == FULL.id


def test_an_empty_store_reports_that_there_is_nothing_to_find(store: Store) -> None:
    with pytest.raises(UsageError, match="empty"):
        store.find("train")


def test_a_label_like_a_pattern_or_a_path_is_a_label(store: Store) -> None:
    for label in ("a/b", "../x", ".*", "ü\n"):
        store.save(replace(BARE, id=label.encode().hex(), label=label))
        assert store.find(label).label == label


# what can happen to files


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from workbench.records import GpuMeasurement, Measurement
from workbench.logbook.store import Store
store = Store(Path(sys.argv[1]))
m = Measurement("", "w", 0.0, 1.0, (GpuMeasurement("A100", "GPU-1", 1.0, 0.1, "counter", True, notes=("x" * 20000,)),))
for number in range(int(sys.argv[3])):
    store.save(replace(m, id=f"{sys.argv[2]}-{number:04d}", started_unix_s=float(number)))
    if number == 1:
        print("ready", flush=True)
"""


def writer(store: Store, name: str, times: int) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(store.directory), name, str(times)],
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_killed_writer_leaves_whole_files_only(store: Store) -> None:
    for kill in range(6):
        process = writer(store, f"k{kill}", 100_000)
        time.sleep(0.03 + 0.023 * kill)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    reader = Store(store.directory)
    log = reader.log()
    assert log.height > 6
    assert reader.messages() == []
    assert not list(store.directory.rglob("*.damaged"))
    for kill in range(6):  # of each writer the first ones, without a hole
        numbers = [int(i[3:]) for i in log["id"].to_list() if i.startswith(f"k{kill}-")]
        assert sorted(numbers) == list(range(len(numbers)))


def test_two_processes_write_simultaneously_and_nothing_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [writer(store, name, 60) for name in "ab"]
    monkeypatch.setattr(stores, "COMPACT_AT", 10)
    for number in range(20):  # and a third, which turns many files into one meanwhile
        store.save(replace(BARE, id=f"c-{number}"))
        assert store.log()["id"].n_unique() >= number + 1
    for process in both:
        process.communicate()
        assert process.returncode == 0
    assert store.log()["id"].n_unique() == 140
    assert store.messages() == []


def test_a_log_read_while_files_are_made_one_misses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        store.save(replace(BARE, id=str(number)))
    reader = Store(store.directory)
    read = pl.read_parquet

    def compacted_meanwhile(*arguments: Any, **options: Any) -> pl.DataFrame:
        monkeypatch.setattr(pl, "read_parquet", read)
        monkeypatch.setattr(stores, "COMPACT_AT", 2)
        store.save(replace(BARE, id="5"))
        return read(*arguments, **options)

    monkeypatch.setattr(pl, "read_parquet", compacted_meanwhile)
    assert {"0", "1", "2", "3", "4"} <= set(reader.log()["id"])
    assert len(files(store)) == 1


def test_many_files_become_one_and_keep_their_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "COMPACT_AT", 10)
    for number in range(25):
        store.save(replace(FULL, id=f"{number}", started_unix_s=float(number)))
    assert len(files(store)) < 10
    assert store.log()["id"].to_list() == [str(number) for number in range(25)]
    assert from_row(store.log().row(3, named=True)) == replace(FULL, id="3", started_unix_s=3.0)


def test_a_row_that_is_there_twice_counts_once(store: Store) -> None:
    store.save(BARE)
    (path,) = store.directory.glob("measurements/*.parquet")
    path.with_name("log-crashed.parquet").write_bytes(
        path.read_bytes()
    )  # compacted, and killed before removing
    assert store.log()["id"].to_list() == ["b"]


@pytest.mark.parametrize("content", [b"", b"PAR1 no more", b"\0" * 5000])
def test_a_damaged_file_is_set_aside_and_reported_and_the_rest_is_read(store: Store, content: bytes) -> None:
    store.save(FULL)
    (store.directory / "measurements" / "m-1.000-bad.parquet").write_bytes(content)
    assert store.log()["id"].to_list() == [FULL.id]
    (message,) = store.messages()
    assert re.search(r"m-1\.000-bad\.parquet.*m-1\.000-bad\.damaged", message)
    assert "m-1.000-bad.damaged" in files(store)
    assert store.messages() == []  # said once
    assert store.log().height == 1


def test_a_foreign_parquet_file_is_set_aside(store: Store) -> None:
    store.save(FULL)
    pl.DataFrame({"a": [1]}).write_parquet(store.directory / "measurements" / "m-x.parquet")
    assert store.log().height == 1
    assert "columns" in store.messages()[0]


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_what_another_version_wrote_is_left_alone(store: Store, version: int) -> None:
    store.save(BARE)
    newer = as_frame([FULL]).with_columns(pl.lit(version).alias("schema_version")).drop("label")
    path = store.directory / "measurements" / "m-9.000-new.parquet"
    newer.write_parquet(path)
    assert store.log()["id"].to_list() == ["b"]
    assert "m-9.000-new.parquet" in store.messages()[0]
    assert path.exists()


def test_a_file_that_may_not_be_read_is_not_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(BARE)
    store.save(FULL)
    real = pl.read_parquet

    def refused(path: Path, *arguments: object) -> pl.DataFrame:
        if path.name.endswith("-b.parquet"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(pl, "read_parquet", refused)
    assert store.log()["id"].to_list() == [FULL.id]
    assert "Permission denied" in store.messages()[0]
    monkeypatch.undo()
    assert store.log().height == 2


def test_the_quota_takes_the_oldest_traces_and_no_measurement(tmp_path: Path) -> None:
    size = _trace_bytes(tmp_path / "probe")
    store = Store(tmp_path / "home", quota_bytes=int(3.5 * size))
    for number in range(8):
        store.save(replace(BARE, id=f"m{number}", started_unix_s=1e9 + number), {"GPU-1": a_trace(2000)})
    assert store.log().height == 8
    kept = [number for number in range(8) if store.trace(f"m{number}") is not None]
    assert kept == [5, 6, 7]


def _trace_bytes(directory: Path) -> int:
    Store(directory).save(BARE, {"GPU-1": a_trace(2000)})
    (path,) = directory.glob("traces/*")
    return path.stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="limits of file sizes are Unix's")
def test_a_full_disk_is_reported_and_leaves_nothing_half_written(store: Store) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from workbench.errors import StoreError
from workbench.records import Measurement
from workbench.logbook.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    Store(Path(sys.argv[1])).save(Measurement("a", "x", 0.0, 1.0))
except StoreError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "WORKBENCH_HOME" in done.stderr
    assert files(store) == []


def test_a_directory_that_cannot_be_written_to_is_an_error_at_saving_not_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    with pytest.raises(StoreError, match="not stored"):
        store.save(BARE)


def test_an_unwritable_home_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    store = Store()
    (message,) = store.messages()
    assert str(tmp_path / "file" / "home") in message
    assert store.messages() == []
    store.save(BARE)
    assert store.log().height == 1


# exporting


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json"])
def test_an_export_holds_every_measurement(store: Store, tmp_path: Path, ending: str) -> None:
    for m in (FULL, BARE):
        store.save(m)
    path = export(store.log(), tmp_path / f"energy{ending}")
    read = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".json": pl.read_json}[ending](path)  # type: ignore[operator]
    assert read["id"].to_list() == [FULL.id, "b"]
    assert read["label"].to_list()[0] == "train ☂"
    assert read["energy_j"].to_list() == [124.4, None]
    gpus = read["gpus"].to_list()
    first = json.loads(gpus[0]) if ending == ".csv" else gpus[0]
    assert first[0]["setting"]["sm_clock_mhz"] == 1005


def test_an_id_is_no_pattern_and_a_pipe_no_tag(store: Store) -> None:
    assert [store.trace("**"), store.iterations("**")] == [None, None]
    (store.directory / "tags").mkdir(parents=True, exist_ok=True)
    os.mkfifo(store.directory / "tags" / "a")
    assert store.tags() == {}


def test_an_export_takes_a_name_that_is_no_utf_8(store: Store, tmp_path: Path) -> None:
    name = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    assert export(store.log(), name).exists()


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\tx"])
def test_a_spreadsheet_runs_no_label_of_an_export(store: Store, tmp_path: Path, label: str) -> None:
    store.save(replace(BARE, label=label))
    assert pl.read_csv(export(store.log(), tmp_path / "e.csv"))["label"].to_list() == [f"'{label}"]
    assert pl.read_parquet(export(store.log(), tmp_path / "e.parquet"))["label"].to_list() == [label]


def test_an_export_of_nothing_is_a_file_with_the_columns(store: Store, tmp_path: Path) -> None:
    read = pl.read_csv(export(store.log(), tmp_path / "e.csv")).columns
    assert set(SCHEMA.names()) == set(read) - {"started", "gpu", "setting", "note"}


@pytest.mark.parametrize("name", ["energy.xlsx", "energy", "csv"])
def test_an_unknown_ending_is_reported_with_those_that_work(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=rf"'{name}'.*\.parquet, \.csv, \.json"):
        export(store.log(), tmp_path / name)


def test_an_export_into_no_directory_is_reported(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absent"):
        export(store.log(), tmp_path / "absent" / "e.csv")


def test_an_export_goes_home_with_a_tilde(store: Store) -> None:
    assert export(store.log(), "~/e.csv") == Path(os.environ["HOME"]) / "e.csv"


def test_an_export_that_does_not_fit_is_an_error_of_ours(store: Store, tmp_path: Path) -> None:
    (tmp_path / "e.csv").mkdir()
    with pytest.raises(StoreError, match=r"e\.csv"):
        export(store.log(), tmp_path / "e.csv")


# whatever lies in the directory


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Some file that once was this one."""
    content = bytearray(whole)
    kind = rng.choice(("cut", "flip", "overwrite", "noise", "footer"))
    if kind == "cut":
        return whole[: rng.randrange(len(whole))]
    if kind == "noise":
        return rng.randbytes(rng.randrange(3000))
    if kind == "flip":
        for _ in range(rng.choice((1, 2, 8, 64))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "overwrite":
        at = rng.randrange(len(content))
        content[at : at + rng.randrange(1, 64)] = rng.randbytes(rng.randrange(1, 64))
    else:  # what says where the columns lie
        content[-rng.randrange(1, min(len(content), 3000))] = rng.randrange(256)
    return bytes(content)


def shown(log: pl.DataFrame) -> None:
    """Read the rows of a log as its panel and its command do."""
    log.select(pl.from_epoch((pl.col("started_unix_s") * 1000).cast(pl.Int64), "ms"))
    for row in log.rows(named=True):
        from_row(row)


def test_no_damaged_file_keeps_the_others_from_being_read(store: Store) -> None:
    """Some of these make Polars panic, which is no Exception."""
    rng = random.Random(12)
    store.save(FULL, {"GPU-1": a_trace(50), "GPU-2": a_trace(50)})
    whole, trace = (
        next(store.directory.glob(name)).read_bytes() for name in ("measurements/m-*", "traces/t-*")
    )
    store.save(BARE)
    unreadable = 0
    for number in range(200):
        (store.directory / "measurements" / f"m-1-{number}.parquet").write_bytes(damaged(whole, rng))
        (store.directory / "traces" / f"t-1-x{number}.parquet").write_bytes(damaged(trace, rng))
        found = store.trace(f"x{number}")
        assert found is None or all(found.schema[name] == TRACE[name] for name in TRACE if name in found.columns)
        unreadable += found is None
        if number % 20 == 19:
            log = store.log()
            shown(log)
            assert {"b", FULL.id} <= set(log["id"])
            assert store.find("b") == BARE
    reported = store.messages()
    assert unreadable > 100
    assert len(reported) > unreadable
    assert all("parquet" in message for message in reported)


@pytest.mark.parametrize("folder", ["measurements", "traces"])
def test_a_panic_of_polars_sets_the_file_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    store.save(FULL, {"GPU-1": a_trace()})
    store.save(BARE, {"GPU-1": a_trace()})
    real = pl.read_parquet

    def panics(path: Path) -> pl.DataFrame:
        if path.parent.name == folder and FULL.id in path.name:
            raise pl.exceptions.PanicException("index out of bounds")
        return real(path)

    monkeypatch.setattr(pl, "read_parquet", panics)
    assert store.log().height == (1 if folder == "measurements" else 2)
    assert (store.trace(FULL.id) is None) == (folder == "traces")
    assert store.trace(BARE.id) is not None
    (message,) = store.messages()
    assert "out of bounds" in message


def test_an_interrupt_while_a_file_is_read_sets_nothing_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(BARE)

    def interrupted(_: Path) -> pl.DataFrame:
        raise KeyboardInterrupt

    monkeypatch.setattr(pl, "read_parquet", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.log()
    monkeypatch.undo()
    assert store.log().height == 1


WRONG = (
    -1, 1.5, float("nan"), float("inf"), "x", True, None, b"x", ["x"], [None], {"a": 1}, [{"name": None}],
)


@pytest.mark.parametrize("column", SCHEMA.names())
def test_a_column_of_another_type_is_converted_or_set_aside(
    store: Store, column: str
) -> None:
    store.save(BARE)
    frame = as_frame([FULL])
    for number, value in enumerate(WRONG):
        frame.with_columns(pl.Series(column, [value])).write_parquet(
            store.directory / "measurements" / f"m-1-{number}.parquet"
        )
    log = store.log()
    assert log.schema == SCHEMA
    assert "b" in log["id"]
    shown(log)
    assert store.find("b") == BARE


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are Unix's")
def test_a_file_that_is_not_regular_is_set_aside(store: Store) -> None:
    """A pipe of this name blocked the log for ever."""
    store.save(BARE, {"GPU-1": a_trace()})
    os.mkfifo(store.directory / "measurements" / "m-1-pipe.parquet")
    (store.directory / "measurements" / "m-1-folder.parquet").mkdir()
    os.mkfifo(store.directory / "traces" / "t-1-pipe.parquet")
    assert store.log()["id"].to_list() == ["b"]
    assert store.trace("pipe") is None
    reported = store.messages()
    assert len(reported) == 3
    assert all("no regular file" in message for message in reported)


def test_what_cannot_be_made_a_row_is_reported_and_nothing_half_written(store: Store) -> None:
    with pytest.raises(StoreError, match="not stored"):
        store.save(replace(BARE, outcome="tr\udce9n"))
    assert files(store) == []


def test_a_store_without_any_place_to_write_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file" / "none"))
    assert Store().log().height == 0
    assert ["No usable" in each for each in Store().messages()] == [True]
