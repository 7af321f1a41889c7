"""The history of a recurring job as one frame: rows survive the round trip and count as before."""

from __future__ import annotations

import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.experiments.history.attempts import Attempt
from workbench.experiments.history.csv import HISTORY, as_frame, of_frame
from workbench.experiments.history.replay import Recorded
from workbench.search.batch_size.history import Evidence, Space

ATTEMPTS = [
    Attempt(0, 8, 0, "slice", "stopped", profile=((100.0, 2.0, 90.0),), profile_time_s=3.0),
    Attempt(
        1, 8, 0, state="reached", power_limit_w=100.0, epochs=5.0, time_s=10.0, energy_j=100.0,
        profile_time_s=1.0, profile_energy_j=10.0, target=0.7, gpu="A",
    ),
    Attempt(2, 16, 2, state="crashed", time_s=10.0, energy_j=100.0, target=0.7, oom=True, reason="memory"),
    Attempt(3, 16, 2, epochs=1.0, target=0.7),
    Attempt(4, 16, 2, state="killed", epochs=1.0, metric=0.4, target=0.7, late_for=3, heartbeat_unix_s=1e9),
]


def evidence_of(*attempts: Attempt, space: Space) -> Evidence:
    return Recorded(as_frame(attempts), space).ledger.evidence()


def test_attempts_are_rows_and_come_back_from_them() -> None:
    frame = as_frame(ATTEMPTS)
    assert frame.schema == HISTORY
    assert of_frame(frame) == ATTEMPTS
    assert as_frame([]).schema == HISTORY


def test_a_frame_of_what_is_needed_is_enough() -> None:
    frame = pl.DataFrame(
        {"batch_size": [8], "state": ["reached"], "epochs": [5.0], "time_s": [10.0], "energy_j": [100.0]}
    )
    assert of_frame(frame) == [Attempt(0, 8, state="reached", epochs=5.0, time_s=10.0, energy_j=100.0)]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("state", "flying", "row 1 .*flying"),
        ("batch_size", 0, "row 1 .*batch size 0"),
        ("energy_j", -1.0, "row 1 .*-1 J"),
        ("time_s", None, "row 1 .*time_s"),
    ],
)
def test_a_row_that_cannot_be_is_named(column: str, value: object, text: str) -> None:
    frame = as_frame(ATTEMPTS).with_columns(
        pl.when(pl.col("number") == 1).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
    )
    with pytest.raises(UsageError, match=text):
        of_frame(frame)
    with pytest.raises(UsageError, match=column):
        of_frame(frame.drop(column))


def test_a_frame_counts_as_its_attempts_do() -> None:
    evidence = evidence_of(*ATTEMPTS, space=Space((8, 16), 8, (100.0, 200.0), target=0.7, gpu="A"))
    assert [(run.state, run.time_s) for run in evidence.runs] == [("reached", 11.0), ("crashed", 10.0)]
    assert evidence.count.tolist() == [1, 0]
    assert evidence.epoch_time_s[0, 0] == 2.0
    assert evidence.in_profile.tolist() == [True, False]
    assert (evidence.spent_time_s, evidence.spent_energy_j) == (3.0 + 11.0 + 10.0, 110.0 + 100.0)


def test_runs_for_another_target_or_batch_size_are_kept_apart() -> None:
    reached = Attempt(0, 8, state="reached", epochs=5.0, time_s=1.0, energy_j=10.0, target=0.6)
    other = Attempt(1, 32, state="reached", epochs=5.0, time_s=2.0, energy_j=20.0, target=0.7)
    evidence = evidence_of(reached, other, space=Space((8, 16), 8, target=0.7))
    assert (len(evidence.runs), evidence.others, evidence.spent_energy_j) == (0, {0.6: [(0, 5.0)]}, 20.0)


def test_a_profile_that_was_made_again_replaces_the_old_one() -> None:
    old, new = (
        Attempt(number, 8, purpose="slice", state="stopped", profile=((100.0, time_s, 90.0),))
        for number, time_s in ((0, 2.0), (5, 3.0))
    )
    assert evidence_of(old, new, space=Space((8,), 8, (100.0,))).epoch_time_s[0, 0] == 3.0
