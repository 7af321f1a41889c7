"""EaCO follows its published algorithm, on clusters small enough to follow."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from audit import Recording, log, run

from workbench.cluster.policies import Eaco
from workbench.cluster.simulator import Result

# Two jobs of utilisation 0.3 on one GPU: 0.078 * 0.6 = 4.68 % slower.
PAIR = 1.0468


def simulate(*rows: dict[str, Any], nodes: int = 1, **options: Any) -> tuple[Recording, Result]:
    filled = [
        {"utilisation": 0.3, "memory_bytes": 200, "duration_s": 1000.0, "submit_s": float(at), **row}
        for at, row in enumerate(rows)
    ]
    costs = {name: options.pop(name) for name in ("checkpoint_s", "restart_s") if name in options}
    return run(log(*filled), nodes, Eaco(sleep_after_s=None, **options), **costs)


def places(simulation: Recording) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    return [what for _, kind, what in simulation.changes if kind == "stay" and what[1]]


def test_a_job_joins_the_gpu_of_the_highest_utilisation() -> None:
    simulation, _ = simulate(
        {"num_gpus": 1},
        {"utilisation": 0.45, "num_gpus": 4, "memory_bytes": 900},
        {"utilisation": 0.2},
        nodes=2,
    )
    # the wide one fills the second node to 90 % of memory; the third may only join the first
    assert places(simulation)[2] == (2, ((0, 0),))
    simulation, _ = simulate(
        {"utilisation": 0.2, "memory_bytes": 900},
        {"utilisation": 0.4, "memory_bytes": 800},
        {},
        {"memory_bytes": 100},
    )
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 1, 2, 1]


def test_a_gpu_takes_at_most_so_many_jobs_and_so_much_load() -> None:
    late = [{"submit_s": at * 200.0} for at in range(4)]
    simulation, _ = simulate(*late, max_jobs=2)
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 0, 1, 1]
    simulation, _ = simulate(*late, max_jobs=3)
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 0, 0, 1]
    simulation, _ = simulate(*late, max_jobs=3, load_threshold=0.8)
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 0, 1, 1]


def test_a_gpu_under_observation_takes_nobody_until_all_have_passed_an_epoch() -> None:
    # epochs of 60 s: the second has passed its own at 1 + 60 * 1.0468 s = 63.8 s
    simulation, _ = simulate({}, {}, {"submit_s": 63.0}, {"submit_s": 64.0})
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 0, 1, 0]


def test_a_placement_that_breaks_a_residents_deadline_is_undone_at_the_newcomers_epoch() -> None:
    # predicted 4.68 % fits into 6 %; the resident turns out three times as sensitive
    resident = {"deadline_s": 1060.0, "sensitivity": 3.0, "epoch_s": 90.0}
    simulation, result = simulate(
        resident, {"submit_s": 10.0, "epoch_s": 60.0}, checkpoint_s=3.0, restart_s=7.0
    )
    jobs = result.jobs
    assert jobs["undos"].to_list() == [0, 1]
    # the resident's epoch ends at 10 + 90 * (1 + 3 * 0.0468) = 112.6 s; the newcomer's second at 10 + 120 *
    # 1.0468 = 135.6 s, then 3 s of checkpoint
    left_s = next(time_s for time_s, kind, what in simulation.changes if kind == "stay" and what == (1, ()))
    assert left_s == pytest.approx(10 + 120 * PAIR + 3)
    assert jobs["end_s"][0] <= 1060
    assert places(simulation)[2] == (1, ((0, 1),))  # not to the same neighbour again
    assert jobs["end_s"][1] == pytest.approx(left_s + 1000 - 120 + 7)


def test_a_placement_that_is_predicted_to_break_a_deadline_is_not_tried() -> None:
    simulation, result = simulate({"deadline_s": 1040.0}, {})
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 1]
    assert result.jobs["undos"].sum() == 0
    simulation, _ = simulate({}, {"deadline_s": 1041.0})
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 1]


def test_a_refused_gpu_is_asked_again_when_its_residents_slack_has_grown() -> None:
    # 0.295 beside 0.3 is 4.641 %: at 130 s 870 s are left and 910 until the deadline, which is 0.4 s too
    # little; from 138 s on it is enough
    rows = [
        {"submit_s": at, "utilisation": 0.295, "memory_bytes": size}
        for at, size in ((130.0, 690), (137.0, 250), (139.0, 250))
    ]
    simulation, result = simulate({"deadline_s": 1040.0}, *rows, max_jobs=2)
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 1, 2, 0]
    assert result.jobs["end_s"][0] <= 1040


def test_a_measured_slowdown_is_used_for_the_next_job_of_the_model() -> None:
    rows = [
        {"sensitivity": 2.0, "model": "slow"},
        {"sensitivity": 2.0, "model": "slow"},
        {"submit_s": 2000.0, "deadline_s": 3055.0, "model": "slow"},
    ]
    simulation, _ = simulate(*rows, {"submit_s": 2001.0, "model": "slow"})
    # before anything was measured 4.68 % would have fitted into 5.5 %; the pair was measured at 9.36 %, so 7
    # % are expected
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 0, 0, 1]


def test_high_priority_shares_with_nobody() -> None:
    simulation, result = simulate({}, {"priority": 1}, {"submit_s": 200.0}, {"submit_s": 400.0}, max_jobs=2)
    assert [gpus[0][1] for _, gpus in places(simulation)] == [0, 1, 0, 2]
    assert result.jobs["run_s"][1] == 1000


def test_who_finds_no_place_waits_and_is_tried_again_when_a_job_ends() -> None:
    full = {"memory_bytes": 900, "num_gpus": 4}
    simulation, result = simulate(
        full, {"memory_bytes": 500}, {"num_gpus": 2, "memory_bytes": 500}, max_jobs=2
    )
    assert result.jobs["start_s"].to_list() == [0.0, 1000.0, 1000.0]
    # the first takes a GPU; the second takes the shared one and a free one, as the highest utilisation says
    assert sorted(gpu for _, gpu in places(simulation)[2][1]) in ([0, 1], [1, 2])


def test_a_deadline_that_is_lost_holds_nobody_back() -> None:
    blocked = {"memory_bytes": 900, "num_gpus": 4}
    simulation, result = simulate(
        blocked, {"deadline_s": 1100.0, "submit_s": 1.0}, {"deadline_s": 1100.0, "submit_s": 2.0}
    )
    assert result.jobs["start_s"].to_list() == [0.0, 1000.0, 1000.0]
    assert places(simulation)[1][1] == places(simulation)[2][1]


def test_a_wide_job_takes_the_best_gpus_of_one_node() -> None:
    rows = [
        {"utilisation": 0.5, "submit_s": 0.0},
        {"utilisation": 0.3, "memory_bytes": 850, "submit_s": 1.0},
        {"num_gpus": 3, "submit_s": 2.0},
    ]
    simulation, result = simulate(*rows, nodes=2)
    assert places(simulation)[2][1] == ((0, 0), (0, 2), (0, 3))
    assert result.jobs["run_s"][2] == pytest.approx(1000 * 1.0624, rel=2e-3)
    assert pl.Series(result.nodes["hosting_s"]).to_list()[1] == 0.0
