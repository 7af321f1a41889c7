"""Jobs in trouble: no GPU is counted twice or lost, and each trouble is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fixtures.job_nodes import AROUND_S, Case, cases

NAMES = (
    "dead rank", "restart", "two jobs on a node", "changed index order", "MIG", "clock skew of 30 s", "late start",
    "killed node", "full disk", "lost GPU", "elastic resize",
)
_found: dict[str, Case] = {}


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if not _found:  # once, in the surroundings of a test
        _found.update(cases(tmp_path, 5))
    return _found[request.param]


@pytest.mark.slow
def test_all_are_tried(tmp_path: Path) -> None:
    _found.update(cases(tmp_path, 5))
    assert tuple(_found) == NAMES


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_a_job_in_trouble_is_counted_and_reported(case: Case) -> None:
    assert case.counted
    assert case.reported, case.job.notes
    assert case.job.measurement.iterations is not None
    assert case.job.measurement.iterations.count == case.iterations


@pytest.mark.parametrize("case", ["dead rank"], indirect=True)
def test_a_dead_rank_keeps_its_energy(case: Case) -> None:
    alive, dead = case.job.ranks
    assert (alive.outcome, dead.outcome) == ("ok", "died")
    assert dead.energy_j is not None
    assert alive.energy_j is not None
    assert dead.energy_j == pytest.approx(alive.energy_j * dead.ended_s / alive.ended_s, rel=0.15)
    assert case.job.measurement.work[0].amount == 8 * (30 + 15)


@pytest.mark.parametrize("case", ["restart"], indirect=True)
def test_both_attempts_of_a_restarted_rank_are_listed(case: Case) -> None:
    assert [(each.rank, each.outcome) for each in case.job.ranks] == [
        (0, "restarted"), (0, "ok"), (1, "restarted"), (1, "ok")]


@pytest.mark.parametrize("case", ["changed index order"], indirect=True)
def test_a_rank_has_the_gpu_that_cuda_gives_it(case: Case) -> None:
    names = {gpu.uuid: gpu.name for gpu in case.job.measurement.gpus}
    assert ["A100" in names[each.gpus[0]] for each in case.job.ranks] == [True, False]


@pytest.mark.parametrize("case", ["MIG"], indirect=True)
def test_ranks_on_one_gpu_share_its_energy(case: Case) -> None:
    one, other = case.job.ranks
    assert one.energy_j is not None
    assert other.energy_j == pytest.approx(one.energy_j, rel=1e-3)
    assert 2 * one.energy_j < (case.job.measurement.energy_j or 0.0) < 2.2 * one.energy_j


@pytest.mark.parametrize("case", ["clock skew of 30 s"], indirect=True)
def test_the_difference_of_clocks_is_estimated(case: Case) -> None:
    first, second = case.job.nodes
    assert first.skew_s == 0.0
    assert second.skew_s == pytest.approx(30.0, abs=second.skew_uncertainty_s)
    assert second.skew_uncertainty_s < 0.01
    assert case.job.measurement.time_s == pytest.approx(first.measurement.time_s, abs=2 * AROUND_S)


@pytest.mark.parametrize("case", ["killed node"], indirect=True)
def test_a_killed_node_keeps_its_data_up_to_then(case: Case) -> None:
    assert [each.outcome for each in case.job.nodes] == ["ok", "unfinished"]
    assert case.job.measurement.outcome == "unfinished"
    assert [each.outcome for each in case.job.ranks] == ["ok", "ok", "died", "died"]


@pytest.mark.parametrize("case", ["lost GPU"], indirect=True)
def test_a_lost_gpu_leaves_the_energy_of_the_others(case: Case) -> None:
    assert [gpu.energy_j is None for gpu in case.job.measurement.gpus] == [False, True]
    assert [each.energy_j is None for each in case.job.ranks] == [False, True]


@pytest.mark.parametrize("case", ["elastic resize"], indirect=True)
def test_a_job_that_grows_has_iterations_of_both_sizes(case: Case) -> None:
    assert [each.iterations for each in case.job.ranks] == [9, 19, 9, 19, 19, 19]
