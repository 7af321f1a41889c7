"""Readers of logs from other systems take the columns that are there and invent none."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import polars as pl
import pytest

from workbench.cluster.joblogs import parts, trim
from workbench.cluster.jobs import SCHEMA, check
from workbench.cluster.readers import read
from workbench.errors import UsageError

SACCT = """JobID|User|Submit|Start|End|ElapsedRaw|AllocTRES|State
12|ann|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-02T11:06:07|90067|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|COMPLETED
12.batch||2024-05-01T10:05:00|2024-05-01T10:05:00|2024-05-02T11:06:07|90067|cpu=8,gres/gpu=2|COMPLETED
13_4|bob|2024-05-01T09:00:00|2024-05-01T09:00:10|Unknown|600|cpu=1,gres/gpu:v100=1|RUNNING
14|bob|2024-05-01T11:00:00|2024-05-01T11:00:00|2024-05-01T11:02:00|120|cpu=4,mem=4G|FAILED
"""


def test_sacct_gives_gpu_counts_types_and_held_time(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    jobs = read(path)
    assert jobs.schema == SCHEMA
    assert jobs["job_id"].to_list() == ["13_4", "12", "14"]  # by submission; the step is part of its job
    assert jobs["num_gpus"].to_list() == [1, 2, 0]
    assert jobs["gpu_type"].to_list() == ["v100", "a100", None]
    assert jobs["duration_s"].to_list() == [None, 86400 + 3600 + 67, 120]
    assert jobs["submit_s"][1] - jobs["submit_s"][0] == 3600
    assert jobs["utilisation"].null_count() == 3
    with pytest.raises(UsageError, match=r"job 13_4.*duration_s is missing"):
        check(jobs)
    assert check(jobs, keep_valid=True)["job_id"].to_list() == ["12"]


def test_sacct_without_a_word_of_gpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text("JobID|Submit|ElapsedRaw\n1|2024-05-01T10:00:00|10\n")
    with pytest.raises(UsageError, match=r"Add AllocTRES to --format"):
        read(path)


def test_alibaba_pods_that_share_a_gpu_give_their_fraction() -> None:
    pods = pl.DataFrame(
        {
            "name": ["a", "b", "c"],
            "num_gpu": [1, 2, 0],
            "gpu_milli": [250, 1000, 0],
            "gpu_spec": ["T4", "V100M16|V100M32", None],
            "creation_time": [100, 50, 70],
            "deletion_time": [400, 90, 80],
            "scheduled_time": [110, 50, 70],
        }
    )
    jobs = read(pods)
    assert jobs["job_id"].to_list() == ["b", "c", "a"]
    assert jobs["duration_s"].to_list() == [40, 10, 290]
    assert jobs["utilisation"].to_list() == [None, None, 0.25]
    assert jobs["gpu_type"].to_list() == [None, None, "T4"]
    with pytest.raises(UsageError, match=r"job c\): num_gpus is 0, a job holds at least one GPU"):
        check(jobs)


def test_pai_tasks_ask_in_percent_and_times_instances() -> None:
    tasks = pl.DataFrame(
        {
            "job_name": ["j", "k"],
            "task_name": ["worker", "tensorflow"],
            "inst_num": [4.0, 1.0],
            "plan_gpu": [100.0, 25.0],
            "start_time": [10.0, 20.0],
            "end_time": [110.0, None],
            "gpu_type": ["V100", "MISC"],
        }
    )
    jobs = read(tasks)
    assert jobs["job_id"].to_list() == ["j/worker", "k/tensorflow"]
    assert jobs["num_gpus"].to_list() == [4, 1]
    assert jobs["utilisation"].to_list() == [None, 0.25]
    assert jobs["duration_s"].to_list() == [100.0, None]
    assert jobs["gpu_type"].to_list() == ["V100", None]


def test_philly_keeps_its_virtual_cluster_as_the_user() -> None:
    jobs = read(
        pl.DataFrame({"job_id": [7], "vc": ["x"], "submit_s": [5], "duration_s": [9], "num_gpus": [2]})
    )
    assert jobs.row(0)[:5] == ("7", 5.0, 9.0, 2, "x")


def test_a_table_of_something_else_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the format of this job log is unknown: its columns are x"):
        read(pl.DataFrame({"x": [1]}))
    with pytest.raises(UsageError, match="no file"):
        read(tmp_path / "nothing.parquet")
    with pytest.raises(UsageError, match=r"job_id, submit_s, num_gpus\. Expected are job_id, submit_s, duration_s"):
        read(pl.DataFrame({"job_id": [1], "submit_s": [1], "num_gpus": [1]}))


@pytest.mark.parametrize("value", [float("inf"), 2e306, -1e308, [[1], [2]], None, b"x", "many"])
@pytest.mark.parametrize("column", ["name", "num_gpu", "gpu_milli", "creation_time", "deletion_time"])
def test_a_value_that_cannot_be_is_missing_or_refused(column: str, value: object) -> None:
    pods = pl.DataFrame(
        {"name": ["a", "b"], "num_gpu": [1, 1], "gpu_milli": [250, 1000], "creation_time": [10, 20],
         "deletion_time": [300, 400]}
    ).with_columns(pl.lit(value).alias(column))  # fmt: skip
    with contextlib.suppress(UsageError):
        jobs = read(pods)
        assert jobs.schema == SCHEMA
        parts(trim(jobs).jobs)


def test_a_log_of_other_columns_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(UsageError, match=r"its columns are c0, c1, .* and 388 more\. Expected are"):
        read(pl.DataFrame({f"c{number}": [1] for number in range(400)}))


def test_no_damaged_file_gives_another_error_than_the_readers_own(tmp_path: Path) -> None:
    """Some of these make Polars panic, which is no Exception."""
    rng = random.Random(12)
    path = tmp_path / "jobs.parquet"
    pl.DataFrame(
        {"job_id": ["a", "b"], "submit_s": [0.0, 1.0], "duration_s": [9.0, 8.0], "num_gpus": [1, 2]}
    ).write_parquet(path)
    whole, refused = path.read_bytes(), 0
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8, 64))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])
        try:
            read(path)
        except UsageError:
            refused += 1
    assert refused > 100


def test_a_panic_of_polars_is_the_readers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(_: Path) -> pl.DataFrame:
        raise pl.exceptions.PanicException("index out of bounds")

    (tmp_path / "jobs.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pl, "scan_parquet", panics)
    with pytest.raises(UsageError, match=r"jobs\.parquet cannot be read as a .*table: index out of bounds"):
        read(tmp_path / "jobs.parquet")
