"""What may be chosen from, and what was seen."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.search.batch_size.history import MILESTONES, PROFILES, RUNS, Evidence, Run, RunHistory, Space


@pytest.mark.parametrize(
    ("sizes", "default", "words"),
    [
        ((), 8, "at least one"),
        ((8, 16), 12, "default batch size 12"),
        ((0, 8), 8, "below 1"),
        ((16, 8), 8, "ascending"),
        ((8, 8), 8, "twice"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_in_words(
    sizes: tuple[int, ...], default: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        Space(sizes, default)


def run(number: int, batch_size: int, state: str, **other: object) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(RUNS.names())
    return (
        row
        | {
            "run": number,
            "recurrence": number,
            "batch_size": batch_size,
            "state": state,
            "epochs": 5.0,
            "time_s": 10.0,
            "energy_j": 100.0,
        }
        | other
    )


def history(
    *rows: dict[str, object],
    profiles: list[tuple[object, ...]] | None = None,
    milestones: list[tuple[object, ...]] | None = None,
) -> RunHistory:
    return RunHistory(
        pl.DataFrame(list(rows), schema=RUNS),
        pl.DataFrame(profiles or [], schema=PROFILES, orient="row"),
        pl.DataFrame(milestones or [], schema=MILESTONES, orient="row"),
    )


def test_frames_are_counted() -> None:
    seen = history(
        run(0, 8, "reached", profile_time_s=1.0, profile_energy_j=10.0),
        run(1, 16, "stopped"),
        run(2, 16, "crashed"),
        run(3, 16, "running"),
        profiles=[(0, 8, 100.0, 2.0, 90.0, None)],
        milestones=[(0, 0.5, 2.0), (1, 0.5, 4.0)],
    )
    evidence = Evidence.of(seen, Space((8, 16), 8, (100.0, 200.0)))
    assert [r.state for r in evidence.runs] == ["reached", "stopped", "crashed"]
    assert evidence.runs[0].time_s == 11.0
    assert evidence.runs[1].milestones == {0.5: 4.0}
    assert evidence.count.tolist() == [1, 0]
    assert evidence.in_flight.tolist() == [0, 1]
    assert evidence.epoch_time_s[0, 0] == 2.0
    assert evidence.in_profile.tolist() == [True, False]
    assert evidence.spent_energy_j == 110 + 100 + 100


def test_batch_sizes_that_are_no_longer_allowed_are_left_out_and_the_rest_counts() -> None:
    seen = history(run(0, 8, "reached"), run(1, 32, "reached"), profiles=[(1, 32, None, 2.0, 90.0, None)])
    evidence = Evidence.of(seen, Space((8, 16), 8))
    assert len(evidence.runs) == 1


def test_runs_to_another_target_are_kept_apart() -> None:
    seen = history(run(0, 8, "reached", target=0.6), run(1, 8, "reached", target=0.7))
    evidence = Evidence.of(seen, Space((8, 16), 8, target=0.7))
    assert len(evidence.runs) == 1
    assert evidence.others == {0.6: [(0, 5.0)]}


def test_a_profile_that_was_made_again_replaces_the_old_one() -> None:
    seen = history(
        run(0, 8, "reached"), profiles=[(5, 8, 100.0, 3.0, 90.0, None), (0, 8, 100.0, 2.0, 90.0, None)]
    )
    assert Evidence.of(seen, Space((8,), 8, (100.0,))).epoch_time_s[0, 0] == 3.0


def test_a_history_is_counted_once_for_every_space() -> None:
    seen = history(run(0, 8, "reached"), run(1, 16, "reached"))
    small, large = Space((8,), 8), Space((8, 16), 8)
    assert seen.evidence(large) is seen.evidence(Space((8, 16), 8))
    assert (len(seen.evidence(small).runs), len(seen.evidence(large).runs)) == (1, 2)
    own = Evidence.of(seen, large)
    own.add(Run(0, "reached", 5.0, 10.0, 100.0))
    assert len(seen.evidence(large).runs) == 2
    assert len(replace(seen, runs=seen.runs.head(1)).evidence(large).runs) == 1


def test_a_power_limit_is_the_nearest_that_may_be_set() -> None:
    evidence = Evidence(Space((8,), 8, (100.0, 250.0, 200.0)))
    assert [evidence.column(limit_w) for limit_w in (None, 100.0, 130.0, 240.0, 999.0, 130.0)] == [
        1,
        0,
        0,
        1,
        1,
        0,
    ]
    assert Evidence(Space((8,), 8)).column(None) == Evidence(Space((8,), 8)).column(150.0) == 0


def test_a_whole_run_corrects_the_profile_that_a_slice_gave() -> None:
    evidence = Evidence(Space((8, 16), 8, (100.0, 200.0)))
    evidence.add_profile(0, 100.0, 10.0, 90.0)
    evidence.add_profile(0, 200.0, 8.0, 150.0)
    for _ in range(8):
        evidence.add(Run(0, "reached", 5.0, 51.0, 51.0 * 92.0, power_limit_w=100.0))
    assert evidence.epoch_time_s[0, 0] == pytest.approx(10.2, rel=1e-3)
    assert evidence.power_w[0, 0] == pytest.approx(92.0, rel=1e-3)
    assert evidence.epoch_time_s[0, 1] == 8.0
    # Neither one that was profiled inside, nor one that crashed, nor one of another card.
    evidence.add(Run(0, "reached", 5.0, 42.0, 5e3, profile_time_s=3.0, power_limit_w=200.0))
    evidence.add(Run(0, "crashed", 5.0, 42.0, 5e3, power_limit_w=200.0))
    evidence.add(Run(0, "reached", 5.0, 42.0, 5e3, power_limit_w=200.0), local=False)
    assert evidence.epoch_time_s[0, 1] == 8.0
