"""Faulty logs are refused with the row, the value and a remedy. Columns that a log lacks are drawn by rule
and seed.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from audit import TINY, log

from workbench.cluster.generator import MODELS, draw, generate
from workbench.cluster.jobs import SCHEMA, check
from workbench.cluster.policies import Fifo
from workbench.cluster.power import V100_NODE, Cluster
from workbench.cluster.simulator import Simulator
from workbench.errors import UsageError

TWO = Cluster.of(2, TINY)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"duration_s": 0.0}, r"row 1 \(job b\): duration_s is 0, a job takes more than 0 s"),
        ({"duration_s": -5.0}, r"row 1 \(job b\): duration_s is -5"),
        ({"duration_s": float("nan")}, r"duration_s is nan, a finite number is needed"),
        ({"duration_s": float("inf")}, r"duration_s is inf, a finite number is needed"),
        ({"duration_s": None}, r"duration_s is missing"),
        ({"submit_s": float("nan")}, r"submit_s is nan"),
        ({"job_id": "a"}, r"row 1 \(job a\): job_id is 'a', that id is a duplicate"),
        ({"num_gpus": 0}, r"num_gpus is 0, a job holds at least one GPU"),
        ({"num_gpus": 9}, r"row 1 \(job b\): num_gpus is 9, the cluster has no more than 8 GPUs"),
        ({"memory_bytes": 1001}, r"memory_bytes is 1001, a T has 1000 bytes"),
        ({"gpu_type": "H100"}, r"gpu_type is 'H100', this cluster has T"),
        ({"utilisation": 50.0}, r"utilisation is 50, utilisation is a share, 0..1.*Divide percent by 100"),
        ({"utilisation": None}, r"utilisation is missing.*cluster.draw"),
        ({"deadline_s": -1.0}, r"deadline_s is -1, a deadline must be after the submission"),
        ({"epoch_s": 0.0}, r"epoch_s is 0, a positive number or null"),
    ],
)
def test_a_wrong_row_is_named_with_its_value_and_left_out_only_if_asked(
    row: dict[str, Any], words: str
) -> None:
    frame = log({}, row, {})
    with pytest.raises(UsageError, match=words) as told:
        Simulator(frame, TWO, Fifo())
    assert "keep_valid=True" in str(told.value)
    assert check(frame, TWO, keep_valid=True)["job_id"].to_list() == ["a", "c"]


def test_rows_out_of_order_are_named_and_sorted_only_if_asked() -> None:
    frame = log({"submit_s": 5.0}, {"submit_s": 3.0}, {"submit_s": 9.0})
    with pytest.raises(UsageError, match=r"row 1 \(job b\): submit_s is 3, earlier than the row before"):
        check(frame)
    assert check(frame, keep_valid=True)["job_id"].to_list() == ["b", "a", "c"]


def test_columns_that_are_missing_or_hold_words_are_named() -> None:
    with pytest.raises(UsageError, match=r"no column 'duration_s'; they have job_id, submit_s, num_gpus"):
        check(log({}).select("job_id", "submit_s", "num_gpus"))
    with pytest.raises(UsageError, match=r"column 'duration_s' holds String.*'long'"):
        check(log({}).with_columns(pl.lit("long").alias("duration_s")))
    with pytest.raises(UsageError, match=r"row 0: num_gpus is 1.5, where a whole number is expected"):
        check(log({}).with_columns(pl.lit(1.5).alias("num_gpus")))


def test_a_log_without_jobs_is_refused() -> None:
    with pytest.raises(UsageError, match="the log has 0 jobs"):
        Simulator(log({}).head(0), TWO, Fifo())
    with pytest.raises(UsageError, match="none of the 1 rows is valid"):
        check(log({"duration_s": -1.0}), keep_valid=True)


def test_whole_numbers_and_numbers_as_ids_are_taken() -> None:
    frame = check(
        pl.DataFrame(
            {
                "job_id": [1, 2],
                "submit_s": [0, 1],
                "duration_s": [3, 4],
                "num_gpus": [1.0, 2.0],
                "colour": ["red", "blue"],
            }
        )
    )
    assert frame.schema == SCHEMA
    assert frame["priority"].to_list() == [0, 0]


def test_a_draw_depends_on_the_seed_alone_and_keeps_logged_values() -> None:
    bare = pl.DataFrame(
        {
            "job_id": range(4000),
            "submit_s": [10.0] * 4000,
            "duration_s": [100.0] * 4000,
            "num_gpus": [1] * 4000,
        }
    )
    first, again, other = draw(bare, 1), draw(bare, 1), draw(bare, 2)
    assert first.equals(again)
    assert not first.equals(other)
    assert first["deadline_s"].min() >= 115.0
    assert first["deadline_s"].max() <= 160.0
    assert first["sensitivity"].median() == pytest.approx(1.0, abs=0.03)
    assert sorted(first["model"].unique()) == sorted(MODELS)
    medians = first.group_by("model").agg(pl.col("memory_bytes").median() / V100_NODE.memory_bytes)
    for model, share in medians.iter_rows():
        assert share == pytest.approx(MODELS[model][1], rel=0.05)
    told = bare.with_columns(
        pl.lit("mine").alias("model"), pl.lit(0.3).alias("utilisation"), pl.lit(7).alias("memory_bytes")
    )
    kept = draw(told, 1)
    assert set(kept["model"]) == {"mine"}
    assert set(kept["memory_bytes"]) == {7}
    assert kept["deadline_s"].equals(first["deadline_s"])


def test_a_deadline_before_the_duration_has_passed_is_no_slack() -> None:
    with pytest.raises(UsageError, match=r"slack 0.9..1.5 must rise from at least 1"):
        draw(log({}), 0, slack=(0.9, 1.5))


def test_a_generated_log_offers_the_load_that_was_asked_for() -> None:
    jobs = check(generate(3000, gpus=64, seed=3, load=0.5), Cluster.of(8))
    work = float((jobs["duration_s"] * jobs["num_gpus"]).sum())
    assert work / (64 * (jobs["submit_s"].max() - jobs["submit_s"].min())) == pytest.approx(0.5, rel=0.01)
    assert jobs["duration_s"].min() >= 60
    with pytest.raises(UsageError, match="a log needs 1 to"):
        generate(0, gpus=64, seed=1)
