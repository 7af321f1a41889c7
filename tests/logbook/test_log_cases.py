"""Logs as they are in practice: sessions, clocks, units, several sources, MIG, counters that fail, imports again.

Each case is a file and its right energy. The files of `tests/fixtures/logs` follow reports of other tools' users.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import workbench
from workbench import cli
from workbench.cluster.readers import read as read_jobs
from workbench.errors import UsageError
from workbench.logbook.log_readers import import_log, read_log
from workbench.logbook.store import Store

FILES = Path(__file__).parents[1] / "fixtures" / "logs"
START_S = 1_790_000_000


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.setenv("TZ", before) if before else monkeypatch.delenv("TZ")
    time.tzset()


def check(path: Path, right_j: float, time_s: float | None = None, rows: int | None = None, note: str = "",
          every_s: float | None = None) -> None:
    """The right energy is that of the log, or in its interval; `note` (a pattern) is in a note."""
    log = read_log(path, every_s=every_s)
    energies = log.energies
    low_j, high_j = (energies[name].sum() for name in ("low_j", "high_j"))
    assert energies["energy_j"].sum() == pytest.approx(right_j, rel=0.02, abs=40)
    if energies["low_j"].count():
        assert low_j - 1e-6 * right_j <= right_j <= high_j + 1e-6 * right_j
    if time_s is not None:
        assert energies["time_s"].sum() == pytest.approx(time_s, rel=0.02)
    if rows is not None:
        assert energies.height == rows
    assert re.search(note, "; ".join(energies["note"])), energies["note"].to_list()


@pytest.mark.parametrize(("name", "right_j", "time_s", "rows", "note"), [
    ("smi_appended.csv", 360e3, 1200, 2, "session 2 of 2; the 23 h 50 min before it were not recorded"),
    ("smi_ntp_fwd.csv", 12e3, 120, 1, "not recorded .* 60 min 1 s"),
    ("smi_dst_fall.csv", 2.16e6, 10_800, 1, "set back by 60 min"),
    ("smi_thousands_us.csv", 4202, 4, 1, ""),
    ("mw.csv", 132, 4, 1, ""),
    ("pat_mw.csv", 6e3, 60, 1, ""),
    ("pat_stats.csv", 6e3, 60, 1, ""),
    ("wandb_ui_minmax.csv", 6e3, 60, 1, ""),
    ("mig_energy.prom", 6e3, 60, 1, ""),
    ("mlflow_nodes.csv", 24e3, 120, 2, ""),
    ("smi_two_nodes.csv", 24e3, 120, 2, "another host or process"),
    ("emissions_base_tasks.csv", 191_160, 670, 3, ""),
    ("cc_joined.csv", 108e3, 100, 1, "1 row of cc_joined.csv could not be read"),
    ("sacct_32nodes.txt", 691.2e6, 3600, 1, "32 whole nodes"),
    ("zeus_short.csv", 5.8, None, 2, ""),
    ("counter_glitch.csv", 6e3, 60, 1, "impossible reading"),
    ("iso_z.csv", 400, 4, 1, ""),
    ("again_sacct_a.txt", 10.8e6, 3 * 3600, 3, ""),
    ("again_sacct_b.txt", 10.8e6, 3 * 3600, 3, ""),
    ("again_zeus_a.csv", 2e3, 20, 2, ""),
    ("again_zeus_b.csv", 2e3, 20, 2, ""),
    ("waste_mig.prom", 17.7e3, 59, 1, ""),
])
def test_files(name: str, right_j: float, time_s: float | None, rows: int, note: str) -> None:
    check(FILES / name, right_j, time_s, rows, note)


def test_hosts_of_one_file_keep_their_energies() -> None:
    assert dict(read_log(FILES / "mlflow_nodes.csv").energies["gpu", "energy_j"].iter_rows()) == {
        "node_0 0": 6e3, "node_1 0": 18e3}
    assert read_log(FILES / "smi_two_nodes.csv").energies["energy_j"].to_list() == [6e3, 18e3]


def test_a_zero_is_as_wide_as_one_refresh_of_the_counter() -> None:
    first, second = read_log(FILES / "zeus_short.csv").energies.to_dicts()
    assert (first["energy_j"], first["low_j"]) == (0.0, 0.0)
    assert first["high_j"] == pytest.approx(0.1 * 5.8 / 0.02)
    assert second["high_j"] > 5.8


def test_a_mig_gpu_whose_instance_works_wastes_nothing() -> None:
    assert str(workbench.waste(read_log(FILES / "waste_mig.prom"))) == "no waste found in 60 readings"


def test_submit_times_of_slurm_in_other_formats() -> None:
    (submit_s,) = read_jobs(FILES / "cl_sacct_slash.txt")["submit_s"]
    assert submit_s == datetime(2026, 10, 1, 8, tzinfo=UTC).timestamp()


# texts in the manner of the files


def smi(*parts: tuple[Sequence[int], int, float], heads: bool = True, pace_s: int = 1) -> str:
    """Rows of nvidia-smi: (month, day, hour, minute, second), count and watts of each part."""
    lines = []
    for number, (start, count, watts) in enumerate(parts):
        if heads or not number:
            lines.append("timestamp, index, power.draw [W]")
        times = (datetime(2026, *start) + timedelta(seconds=pace_s * row) for row in range(count))  # type: ignore[arg-type]
        lines += [f"{at:%Y/%m/%d %H:%M:%S}.000, 0, {watts:.2f} W" for at in times]
    return "\n".join([*lines, ""])


def day(number: int, hour: int = 10, minute: int = 0, second: int = 0) -> tuple[int, ...]:
    return 11, number, hour, minute, second


def cells(cell: str, separator: str = ",", column: str = "power.draw") -> str:
    lines = [f"2026/11/20 10:00:0{row}.000{separator}0{separator}{cell}" for row in range(5)]
    return "\n".join([f"timestamp{separator}index{separator}{column}", *lines, ""])


def power(column: str, *watts: str) -> str:
    return "\n".join([f"timestamp,{column}", *(f"{START_S + 15 * row},{','.join(watts)}" for row in range(5)), ""])


def scrapes(labels: str, value: Callable[[int, int], object], boards: int = 2,
            metric: str = "DCGM_FI_DEV_POWER_USAGE") -> str:
    return "".join(
        f"{metric}{{{labels.format(board=board, instance=instance)}}} {value(row, board)} {1000 * (START_S + 15 * row)}\n"
        for row in range(5) for board in range(boards) for instance in range(4))


def counter(*joules: float) -> str:
    head = "timestamp,gpu,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\n"
    return head + "".join(f"{START_S + 15 * row},0,{1000 * value:.0f}\n" for row, value in enumerate(joules))


LINE = [1000 + 1500 * row for row in range(9)]  # J, 100 W
MIG = 'gpu="{board}",UUID="GPU-{board}",GPU_I_ID="{instance}",Hostname="n"'
BACK = smi(((11, 1, 0, 30), 90, 100), ((11, 1, 1, 0), 91, 200), heads=False, pace_s=60)
SESSIONS = {
    "three sessions": (smi((day(20), 61, 300), (day(21), 61, 300), (day(22), 61, 100)), 42e3, 180, "session 3 of 3"),
    "sessions with one head": (smi((day(20), 61, 300), (day(21), 61, 300), heads=False), 36e3, 120, "not recorded"),
    "sessions of three rows": (
        smi(*((day(each), 3, 300) for each in (20, 21, 22)), heads=False), 1800, 6, "not recorded"),
    "a gap at the start": (smi((day(20, 9), 1, 300), (day(20), 61, 300), heads=False), 18e3, 60, "not recorded"),
    "another pace from the second session on": (
        smi((day(20), 61, 300)) + smi((day(21), 61, 300), pace_s=60), 18e3 + 3600 * 300, 3660, "session 2"),
    "a head before each row": (smi(*((day(20, 10, 0, row), 1, 100) for row in range(60))), 5900, 59, ""),
    "other columns in the second session": (
        smi((day(20), 61, 300)) + smi((day(21), 61, 300)).replace("index,", "index, name,").replace(" 0, ", " 0, A, "),
        36e3, 120, "session 2"),
    "a clock that was set back": (smi((day(20), 61, 100), (day(20, 10, 0, 31), 60, 100), heads=False), 12e3, 120, "back"),
    "a clock that was set forward by days": (
        smi(((1, 1), 61, 100), (day(20), 60, 100), heads=False), 12e3, 119, "set forward"),
    "a skipped hour in spring": (
        smi(((3, 29, 1, 30), 30, 100), ((3, 29, 3), 31, 100), heads=False, pace_s=60), 360e3, 3600, ""),
    "the repeated hour of New York": (BACK, 89 * 6e3 + 9e3 + 90 * 12e3, 10_800, "set back by 60 min"),
    "the repeated half hour of Lord Howe": (
        smi(((4, 5, 1, 30), 30, 100), ((4, 5, 1, 30), 31, 300), heads=False, pace_s=60), 726e3, 3600, "set back by 30"),
    "three machines": (smi(*((day(20), 61, watts) for watts in (100, 300, 200))), 36e3, 180, "another host"),
    "two machines, one later": (smi((day(20), 61, 100), (day(20, 10, 0, 30), 61, 300)), 24e3, 120, "another host"),
    "a log twice": (2 * smi((day(20), 31, 100), (day(20, 10, 0, 31), 30, 200)), 9050, 60, "61 rows .* twice"),
}
CELLS = {
    "1.050,50 W": (cells("1.050,50 W", ";"), 4202), "1'050.50 W": (cells("1'050.50 W"), 4202),
    "1 050,50 W": (cells("1 050,50 W", ";"), 4202), "0.21 kW": (cells("0.21 kW"), 840),
    "0,21 kW": (cells("0,21 kW", ";"), 840), "1,050 W": (cells('"1,050 W"'), 4200),
    "98,123 W": (cells("98,123 W", ";"), 4 * 98.123), "33,000 mW": (cells('"33,000 mW"'), 132),
    "[mW]": (cells("33000", column="power.draw [mW]"), 132), "tabs": (cells("210.5 W", "\t"), 842),
    "some with thousands": (power("gpu0_power_w,gpu1_power_w", "950.5", '"1,050.5"'), 60 * 2001.0),
    "avg before peak": (power("gpu0_power_peak,gpu0_power_avg", "300", "100"), 6e3),
    "no percent, limit or cap": (
        power("gpu0_power_percent,gpu0_power_w,gpu0_power_limit_w,gpu0_power_cap", "40", "100", "300", "300"), 6e3),
    "GPU 0 Power (mW)": (power("GPU 0 Power (mW),GPU 1 Power (mW)", "100000", "50000"), 9e3),
    "p95, mean, std": (power("gpu_0/power/p95,gpu_0/power/mean,gpu_0/power/std", "300", "100", "5"), 6e3),
    "camel case": (power("gpu0PowerMax,gpu0PowerMean", "300", "100"), 6e3),
    "not that of the processor": (power("cpu_power_w,gpu_0_power_w", "300", "100"), 6e3),
}
SOURCES = {
    "two runs of W&B": (power(",".join(f"run-{run} - system/gpu.0.powerWatts{end}" for run in "ab" for end in (
        "__MAX", "", "__MIN")), "300", "100", "50", "400", "200", "50").replace("timestamp", "Relative Time (Wall)"), 18e3, 2),
    "two boards with MIG": (scrapes(MIG, lambda row, board: 10**11 + 1_500_000 * row * (board + 1),
                                    metric="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"), 18e3, 2),
    "the power of instances": (scrapes(MIG, lambda *_: 100), 12e3, 2),
    "UUIDs of instances": (scrapes(MIG.replace("GPU-{board}", "MIG-{board}-{instance}"), lambda *_: 100), 12e3, 2),
    "GPU 0 of two hosts with MIG": (scrapes('gpu="0",GPU_I_ID="{instance}",Hostname="n{board}"', lambda *_: 100), 12e3, 2),
    "instances in the answer of Prometheus": (json.dumps({"data": {"result": [
        {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "GPU_I_ID": str(instance)},
         "values": [[START_S + 15 * row, "100"] for row in range(5)]} for instance in range(7)]}}), 6e3, 1),
    "a GPU whose pod changes": (json.dumps({"data": {"result": [
        {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "pod": pod},
         "values": [[START_S + 15 * row, "100"] for row in found]} for pod, found in (("b", range(3, 7)), ("a", range(4)))
    ]}}), 9e3, 1),
    "nodes of Kubernetes": (scrapes('gpu="0",kubernetes_node="n{board}",pod="p"', lambda _, board: 100 * (board + 1)), 18e3, 2),
    "a label that no one knows": (scrapes('gpu="0",worker="n{board}"', lambda _, board: 100 * (board + 1)), 18e3, 2),
    "runs of MLflow": ("run_uuid,key,value,timestamp\n" + "".join(
        f"{run},system/gpu_0_power_usage_watts,{watts},{1000 * (START_S + 10 * row)}\n"
        for run, watts in (("a", 100), ("b", 300)) for row in range(7)), 24e3, 2),
    "processes that share a file": ("at_unix_s,step,name,value,process\n" * 3 + "".join(
        f"{START_S + 5 * row + 0.1 * process:.3f},0,gpu_energy/energy_j,{500.0 * (process + 1) * row},h:{process}\n"
        for row in range(13) for process in range(3)), 36e3, 3),
}
COUNTERS = {
    "two zeros": ([*LINE[:3], 0, 0, *LINE[5:]], "2 impossible"), "a jump": ([*LINE[:4], 1e10, *LINE[5:]], "impossible"),
    "back": ([*LINE[:4], LINE[1], *LINE[5:]], "impossible"), "zero at the end": ([*LINE[:8], 0], "estimate"),
    "zero at the start": ([0, *LINE[1:]], "estimate"),
    "a new start": ([*(1e7 + each for each in LINE[:4]), *(each - LINE[4] for each in LINE[4:])], "estimate"),
    "a jump that stays": ([*LINE[:4], *(1e9 + each for each in LINE[4:])], "estimate"),
}


@pytest.mark.parametrize("case", SESSIONS)
def test_time_that_was_not_recorded(tmp_path: Path, case: str) -> None:
    text, right_j, time_s, note = SESSIONS[case]
    (tmp_path / "smi.csv").write_text(text)
    check(tmp_path / "smi.csv", right_j, time_s, note=note)


@pytest.mark.parametrize("case", CELLS)
def test_units_separators_and_statistics(tmp_path: Path, case: str) -> None:
    text, right_j = CELLS[case]
    (tmp_path / "log.csv").write_text(text)
    check(tmp_path / "log.csv", right_j)


@pytest.mark.parametrize("case", SOURCES)
def test_several_sources_and_boards(tmp_path: Path, case: str) -> None:
    text, right_j, gpus = SOURCES[case]
    (tmp_path / "log.txt").write_text(text)
    check(tmp_path / "log.txt", right_j, rows=gpus)


@pytest.mark.parametrize("entities", ["GPU-I {}", "GPU 0\nGPU-I {}"])
def test_instances_of_dmon_are_their_board(tmp_path: Path, entities: str) -> None:
    rows_of = "".join(f"{name.format(number)}   100.0\n" for number in range(4) for name in entities.split("\n")[-1:])
    board = "GPU 0   100.0\n" * ("\n" in entities)
    (tmp_path / "dmon.txt").write_text("#Entity   POWER\nID    W\n" + 5 * (board + rows_of))
    check(tmp_path / "dmon.txt", 6e3, 60, 1, every_s=15)


@pytest.mark.parametrize("case", COUNTERS)
def test_impossible_readings_of_a_counter(tmp_path: Path, case: str) -> None:
    joules, note = COUNTERS[case]
    (tmp_path / "dcgm.csv").write_text(counter(*joules))
    check(tmp_path / "dcgm.csv", 12e3, 120, note=note)


def test_a_counter_that_does_not_move_is_no_energy(tmp_path: Path) -> None:
    (tmp_path / "dcgm.csv").write_text(counter(*[5000] * 9))
    assert read_log(tmp_path / "dcgm.csv").energies["energy_j"].to_list() == [None]


@pytest.mark.parametrize(("zone", "ahead_h"), [
    ("Z", 0), ("+00:00", 0), ("+0200", 2), ("-05:00", -5), ("+02", 2), (" UTC", 0), ("", 1)])
def test_times_are_read_in_their_zone(tmp_path: Path, zone: str, ahead_h: int) -> None:
    lines = [f"2026-11-20T10:00:0{row}{zone},0,100.0" for row in range(5)]
    (tmp_path / "log.csv").write_text("\n".join(["timestamp,gpu,power_w", *lines, ""]))
    began = datetime(2026, 11, 20, 10, tzinfo=UTC) - timedelta(hours=ahead_h)
    assert read_log(tmp_path / "log.csv").energies["started_unix_s"].to_list() == [began.timestamp()]


def test_the_repeated_hour_with_its_zone(tmp_path: Path) -> None:
    lines = [f"2026-10-25T02:{minute:02d}:00{zone},0,100.0" for zone in ("+02:00", "+01:00") for minute in range(60)]
    (tmp_path / "log.csv").write_text("\n".join(["timestamp,gpu,power_w", *lines, ""]))
    check(tmp_path / "log.csv", 119 * 6e3, 7140, 1)


@pytest.mark.parametrize("spoiled", ["100.00 W2026/11/20 10:00:31.000, 0, 100.00 W", "1", "100.00 W, 7"])
def test_rows_that_cannot_be_read_are_counted(tmp_path: Path, spoiled: str) -> None:
    lines = smi((day(20), 61, 100)).splitlines()
    lines[31] = lines[31].replace("100.00 W", spoiled).replace(" 0, 1", " 0" if spoiled == "1" else " 0, 1")
    (tmp_path / "smi.csv").write_text("\n".join([*lines, ""]))
    check(tmp_path / "smi.csv", 6e3, 60, note="1 row of smi.csv could not be read")
    assert "1 row" in repr(read_log(tmp_path / "smi.csv"))


@pytest.mark.parametrize(("table", "right_j"), [
    ("ElapsedRaw|ConsumedEnergyRaw|AllocNodes\n1|3600|691200000|32\n", 691.2e6),
    ("Elapsed|ConsumedEnergyRaw|AllocTRES\n1|01:00:00|691200000|cpu=2,gres/gpu=256,node=32\n", 691.2e6),
    ("Elapsed|ConsumedEnergyRaw\n1|01:00:00|691200000\n", 691.2e6),
    ("Elapsed|ConsumedEnergy|NNodes\n1|1-00:00:00|691.20M|1\n", 691.2e6),
    ("Elapsed|ConsumedEnergyRaw|NNodes|\n1|01:00:00|3600000|1|\n1.0|01:00:00|3600000|1|\n", 3.6e6),
    ("Elapsed|ConsumedEnergyRaw|NNodes\n1|01:00:00|691200000|1\n", None),
])
def test_the_limit_of_a_job_is_that_of_its_nodes(tmp_path: Path, table: str, right_j: float | None) -> None:
    (tmp_path / "sacct.txt").write_text(f"JobID|{table}")
    assert read_log(tmp_path / "sacct.txt").energies["energy_j"].to_list() == [right_j]


@pytest.mark.parametrize(("text", "reason"), [
    (cells("33000"), r"power.draw of 33000, which no GPU draws in watts .* power.draw \[mW\]"),
    (power("gpu0_power_max,gpu0_power_std", "300", "5"), "no power of an NVIDIA GPU"),
    (power("cpu_power_w", "300"), "no power of an NVIDIA GPU"),
    (cells("55 %", column="utilization.gpu"), "is a log of nvidia-smi: it has .* --query-gpu"),
    ("JobID|Start|Elapsed\n1|2026-11-20T10:00:00|01:00:00\n", "Slurm without ConsumedEnergyRaw or ConsumedEnergy"),
    ("run_id,emissions,duration,timestamp\n1,2,3,4\n", "codecarbon without gpu_energy"),
    ("SQLite format 3\0" + "\1\2\3" * 90, "SQLite database, as MLflow's mlflow.db .*sqlite3 -csv"),
    ("PK\3\4" + "\1\2\3" * 90, "ZIP archive"),
    ("\1\2\3\4" * 90, "binary file of no known kind"),
    ("timestamp,index,power.draw [W]\n" + "".join(
        f"2026/11/20 10:00:0{second}.00{machine},0,{100 * machine + second} W\n" for second in range(9) for machine in (1, 2)),
     "several GPUs, hosts or processes"),
])
def test_the_message_of_a_refused_file_names_its_kind(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(UsageError, match=reason) as error:
        read_log(tmp_path / "log.txt")
    assert str(error.value).isprintable()
    assert "part of the file" not in str(error.value)


# imports


def labels_and_joules() -> list[tuple[str, float]]:
    return Store().log().sort("label").select("label", "energy_j").rows()


def test_jobs_and_windows_are_imported_once_and_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("again_sacct_a.txt", "again_sacct_b.txt", "again_zeus_a.csv", "again_zeus_b.csv")
    assert cli.main(["import", *(str(FILES / name) for name in names)]) == 0
    assert labels_and_joules() == [("e0", 1e3), ("e1", 1e3), ("e2", 1e3), *((f"job{n}", 3.6e6) for n in (1, 2, 3, 4))]
    grown = (FILES / names[0]).read_text().replace("01:00:00|3600000\n3", "02:00:00|7200000\n3")
    (tmp_path / "sacct.txt").write_text(grown)
    capsys.readouterr()
    assert cli.main(["import", str(tmp_path / "sacct.txt")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job1: already imported", "job2: 7.20 MJ (whole node, error unknown), 2 h 0 min, 1000 W (in place of an earlier import)",
        "job3: already imported"]
    import_log(FILES / names[0])  # an older list takes nothing back
    assert ("job2", 7.2e6) in labels_and_joules()
    assert len(labels_and_joules()) == 7


def test_a_replaced_import_outlives_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.logbook.store.COMPACT_AT", 3)
    for joules in (1, 2, 3):
        (tmp_path / "sacct.txt").write_text("JobID|JobName|Start|Elapsed|ConsumedEnergyRaw\n" + "".join(
            f"{job}|job{job}|2026-11-0{job}T10:00:00|0{joules}:00:00|{joules}000000\n" for job in (1, 2, 3)))
        import_log(tmp_path / "sacct.txt")
        assert labels_and_joules() == [(f"job{job}", joules * 1e6) for job in (1, 2, 3)]


def test_sessions_are_measurements_and_a_log_may_grow(tmp_path: Path) -> None:
    lines = smi((day(20), 61, 300), (day(21), 61, 100)).splitlines(keepends=True)
    for count in (32, 62, len(lines), 62):
        (tmp_path / "smi.csv").write_text("".join(lines[:count]))
        import_log(tmp_path / "smi.csv")
    assert labels_and_joules() == [("smi", 18e3), ("smi", 6e3)]
    (tmp_path / "other.csv").write_text("".join(lines[:62]).replace("300.00", "200.00"))  # of another machine
    import_log(tmp_path / "other.csv")
    assert len(labels_and_joules()) == 3


def test_tasks_of_codecarbon_and_runs_without_a_gpu(tmp_path: Path) -> None:
    import_log(FILES / "emissions_base_tasks.csv")
    assert labels_and_joules() == [("proj: evaluate", 10.8e3), ("proj: load dataset", 360.0), ("proj: train", 180e3)]
    (tmp_path / "emissions.csv").write_text(
        "timestamp,project_name,run_id,duration,emissions,gpu_energy,gpu_count,gpu_model\n"
        "2026-11-20T10:00:00,p,r,60,1,0.0,,\n")
    with pytest.raises(UsageError, match="codecarbon found no GPU"):
        import_log(tmp_path / "emissions.csv")


# limits of size


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    return path


def bomb(path: Path) -> Path:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(140):
            file.write(bytes(2**20))
    return path


@pytest.mark.parametrize("make", [sparse, bomb])
@pytest.mark.parametrize("read", [
    read_log, read_jobs, workbench.verify, lambda path: workbench.simulate(recording=path),
    lambda path: workbench.simulate(recording=path.rename(path.with_name("a.jsonl.gz")))])
def test_large_files_are_refused(tmp_path: Path, make: Callable[[Path], Path], read: Callable[[Path], object]) -> None:
    with pytest.raises(workbench.WorkbenchError, match=r"(10,737 MB|unpacks to more); files of up to 134 MB are read\. Split"):
        read(make(tmp_path / "log.csv"))


def test_a_log_may_be_packed(tmp_path: Path) -> None:
    (tmp_path / "smi.csv.gz").write_bytes(gzip.compress((FILES / "smi_appended.csv").read_bytes()))
    check(tmp_path / "smi.csv.gz", 360e3, 1200, 2)


def test_no_device_is_read(tmp_path: Path) -> None:
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    with pytest.raises(workbench.WorkbenchError, match="no regular file"):
        workbench.simulate(recording=tmp_path / "zero.jsonl")
