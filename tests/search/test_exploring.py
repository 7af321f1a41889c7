"""Failures have a price, slices have an error, and what was tried and lost is summed up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workbench.search.batch_size.epochs import EpochPosterior, EpochPrior, believe
from workbench.search.batch_size.failures import failures
from workbench.search.batch_size.history import Evidence, Run, Space
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient, run_costs, weigh
from workbench.search.batch_size.reasons import exploration_cost, why_untried
from workbench.search.objective import Energy, ZeusCost

SIZES = (64, 128, 256, 512)
LIMITS = (150.0, 200.0, 250.0)
COST = ZeusCost(0.5, 250)


def evidence_of(max_epochs: int = 100, sizes: tuple[int, ...] = SIZES, default: int = 512) -> Evidence:
    return Evidence(Space(sizes, default, LIMITS, max_epochs))


def profile(evidence: Evidence, arm: int, epoch_s: float, *, columns: tuple[int, ...] = (0, 1, 2)) -> None:
    """An epoch takes as long and costs as much at every limit: what is best is the lowest power."""
    for column in columns:
        evidence.add_profile(arm, LIMITS[column], epoch_s, 0.8 * LIMITS[column])


def run(evidence: Evidence, arm: int, epochs: float, state: str = "reached", recurrence: int = -1) -> None:
    number = recurrence if recurrence >= 0 else len(evidence.runs)
    evidence.add(Run(arm, state, epochs, 10 * epochs, 1200 * epochs, recurrence=number))


def belief_of(evidence: Evidence, draws: int = 2000) -> EpochPosterior:
    return believe(evidence, COST, EpochPrior(), draws, np.random.default_rng(0))


# the hard limit of epochs, and failures


def test_a_batch_size_that_needs_more_epochs_than_it_may_take_is_no_bargain() -> None:
    evidence = evidence_of(max_epochs=30)
    for arm in range(4):
        profile(evidence, arm, 10.0 if arm else 1.0)  # an epoch at 64 costs a tenth
    for epochs in (10, 10, 11):
        run(evidence, 3, epochs)
    for epochs in (28, 27, 29):
        run(evidence, 1, epochs)
    belief = belief_of(evidence)
    belief = replace(belief, log_epochs=np.where(np.arange(4) == 0, np.log(60.0), belief.log_epochs))
    costs = run_costs(belief, COST).mean(axis=0)
    # 60 epochs would cost 6 of the 10 of a run at 512; it takes 30, gets nowhere, and the run at 512 follows.
    assert costs[0] == pytest.approx(costs[3] + 3.0 / 10 * costs[3], rel=0.1)


def test_what_fails_at_times_is_priced_with_its_failures_and_given_up_in_time() -> None:
    evidence = evidence_of()
    for n in range(12):
        run(evidence, 3, 10 + n % 2)
        run(evidence, 3, 100, "failed")
    found = failures(evidence)
    assert found.failed[3] / (found.failed[3] + found.reached[3]) == pytest.approx(0.5, abs=0.05)
    assert 11 <= found.stop_epochs[3] <= 25


def test_where_nothing_has_failed_yet_only_a_run_far_beyond_its_like_is_given_up() -> None:
    evidence = evidence_of()
    for arm, epoch_s in enumerate((100.0, 100.0, 100.0, 10.0)):
        profile(evidence, arm, epoch_s)
    for _ in range(4):
        run(evidence, 3, 10)
    proposal = KnowledgeGradient().ask(evidence, COST, np.random.default_rng(0))
    # Of 100 epochs that it may take: the first failure is not paid in full.
    assert proposal.batch_size == 512
    assert 15 <= proposal.stop_after_epochs <= 30


def test_runs_that_were_given_up_count_as_failures_where_nobody_was_ever_so_late() -> None:
    evidence = evidence_of()
    for n in range(40):
        run(evidence, 3, 10 + n % 2)
        if n % 4 == 0:
            run(evidence, 3, 13, "stopped")  # 13 is not far from 10, and 40 runs got there before
    found = failures(evidence)
    assert found.failed[3] / (found.failed[3] + found.reached[3]) == pytest.approx(0.2, abs=0.05)
    assert found.stop_epochs[3] <= 16
    assert run_costs(belief_of(evidence), COST)[:, 3].mean() > 0  # and are priced


def test_the_default_that_failed_before_it_ever_got_there_has_failed_and_is_not_out_of_reach() -> None:
    evidence = evidence_of()
    for arm in range(4):
        profile(evidence, arm, 10.0)
    run(evidence, 3, 100, "failed")
    run(evidence, 2, 10)
    assert not failures(evidence).bounds
    # At most a doubling of the batch size away, where runs take 10 epochs.
    assert np.median(np.exp(belief_of(evidence).log_epochs[:, 3])) < 30


def test_a_try_is_stopped_before_all_epochs_where_the_rest_of_its_belief_gets_nowhere() -> None:
    evidence = evidence_of(max_epochs=400, sizes=(256, 512, 1024, 2048, 4096), default=512)
    for arm in range(5):
        profile(evidence, arm, 10.0 * 0.6**arm)
    for epochs in (10, 10, 11):
        run(evidence, 1, epochs)
    options = weigh(belief_of(evidence, 256), evidence, COST, KnowledgeGradient())
    assert options.stop[4] < 200


def test_runs_in_vain_in_a_row_that_no_failure_rate_explains_are_another_job() -> None:
    evidence = evidence_of()
    for _ in range(20):
        run(evidence, 3, 10)
    for n in range(3):  # training takes three times as long now: each is given up before it gets there
        assert evidence.since == 0, n
        run(evidence, 3, 22, "stopped", recurrence=100)
    assert evidence.since > 0
    proposal = KnowledgeGradient().ask(evidence, COST, np.random.default_rng(0))
    assert proposal.stop_after_epochs == 100


def test_runs_in_vain_of_what_fails_at_times_are_no_other_job() -> None:
    evidence = evidence_of()
    for n in range(20):
        run(evidence, 3, 10, recurrence=n)
        run(evidence, 3, 22, "stopped", recurrence=n)
    for _ in range(6):
        run(evidence, 3, 22, "stopped", recurrence=100)
    assert evidence.since == 0


# safe mode


@pytest.mark.parametrize(("safe", "batch_size"), [(True, 512), (False, 128)])
def test_in_safe_mode_the_last_run_of_a_recurrence_is_the_default(safe: bool, batch_size: int) -> None:
    evidence = evidence_of()
    for arm in range(4):
        profile(evidence, arm, 10.0)
    run(evidence, 3, 60, recurrence=0)
    for n in range(8):
        run(evidence, 1, 10, recurrence=n + 1)
    for _ in range(2):
        run(evidence, 1, 15, "stopped", recurrence=9)
    proposal = KnowledgeGradient(safe=safe).ask(evidence, COST, np.random.default_rng(0))
    assert proposal.batch_size == batch_size
    assert (proposal.stop_after_epochs == 100) is safe


def test_in_safe_mode_the_default_is_given_up_only_where_what_was_saved_pays_for_another_run() -> None:
    saved, none = evidence_of(), evidence_of()
    for evidence, power_w in ((saved, (20.0, 30.0, 200.0)), (none, (200.0, 200.0, 200.0))):
        for limit_w, watts in zip(LIMITS, power_w, strict=True):
            evidence.add_profile(3, limit_w, 10.0, watts)
        for arm in range(3):
            profile(evidence, arm, 1000.0)
        for n in range(9):
            energy_j = 100 * power_w[0]
            evidence.add(Run(3, "reached", 10, 100, energy_j, recurrence=n, power_limit_w=150.0))
    stops = [
        KnowledgeGradient(safe=True).ask(evidence, COST, np.random.default_rng(0)).stop_after_epochs
        for evidence in (saved, none)
    ]
    assert stops[0] < 40
    assert stops[1] == 100


def test_the_purse_knows_what_the_default_would_have_cost_where_it_ran() -> None:
    evidence = evidence_of()
    profile(evidence, 3, 10.0)
    policy = KnowledgeGradient(safe=True)
    for _ in range(3):  # at the highest limit each epoch takes 10 s and 200 W; these cost the same time at 120 W
        evidence.add(Run(3, "reached", 10, 100, 12_000, recurrence=len(evidence.runs), power_limit_w=150.0))
    one = float(COST.cost(10.0, 2000.0))
    spent = 3 * float(COST.cost(100, 12_000))
    purse = policy._budget(evidence, COST, belief_of(evidence))
    # Three runs of 10 epochs at the highest limit for certain, one more at a careful price.
    assert 30 * one + 9 * one - spent < purse <= 30 * one + 10 * one - spent


def test_a_job_that_has_changed_saved_nothing_before_as_far_as_the_purse_knows() -> None:
    evidence = evidence_of()
    profile(evidence, 3, 10.0)
    for n in range(7):
        run(evidence, 2, 10, recurrence=n)
    for n in (7, 8):
        run(evidence, 2, 30, recurrence=n)
    assert evidence.since > 0
    run(evidence, 3, 30, recurrence=9)
    one = float(COST.cost(10.0, 2000.0))
    purse = KnowledgeGradient(safe=True)._budget(evidence, COST, belief_of(evidence))
    # Ten recurrences at 30 epochs would have cost 300 epochs; seven of them were another job's, of 10.
    assert purse < 60 * one


def test_in_safe_mode_the_default_runs_again_where_it_failed_and_needs_no_purse() -> None:
    evidence = evidence_of()
    profile(evidence, 3, 10.0)
    for _ in range(3):
        run(evidence, 3, 100, "failed", recurrence=0)
        assert KnowledgeGradient(safe=True).ask(evidence, COST, np.random.default_rng(0)).batch_size == 512
    options = KnowledgeGradient().ask(evidence, COST, np.random.default_rng(0))
    assert options.batch_size != 512


@pytest.mark.parametrize("seed", range(5))
def test_after_a_lost_try_the_best_so_far_runs(seed: int) -> None:
    evidence = evidence_of()
    for arm in range(4):
        profile(evidence, arm, 1.0 if arm < 3 else 10.0)  # all others look ten times as cheap
    for _ in range(3):
        run(evidence, 3, 20)
    rng = np.random.default_rng(seed)
    first = KnowledgeGradient().ask(evidence, COST, rng)
    assert first.batch_size != 512
    run(evidence, evidence.index[first.batch_size], 30, "stopped", recurrence=3)
    second = KnowledgeGradient().ask(evidence, COST, rng)
    assert (second.batch_size, second.purpose) == (512, "run")


def test_a_recurrence_that_has_ended_bars_nothing() -> None:
    evidence = evidence_of()
    run(evidence, 2, 30, "stopped", recurrence=0)
    assert evidence.lost_now == [2]
    run(evidence, 3, 20, recurrence=0)
    assert evidence.lost_now == []


def test_a_crash_is_no_run_in_vain() -> None:
    evidence = evidence_of()
    for arm in (3, 2, 1):
        run(evidence, arm, 0, "crashed", recurrence=0)
    assert (evidence.lost_now, evidence.last_run_now) == ([1, 2, 3], False)


# a job that changes


@pytest.mark.parametrize("many", [4, 8])
def test_several_runs_a_little_off_are_a_change(many: int) -> None:
    evidence = evidence_of()
    for number in range(24):
        run(evidence, 3, (18, 20, 22, 24)[number % 4])
    farther = 1.35 if many == 4 else 1.2
    for number in range(many):
        assert evidence.changes == 0 or number > many // 2
        run(evidence, 3, round(farther * (20, 22, 21, 23)[number % 4]))
    assert evidence.changes == 1


def test_how_batch_sizes_compare_outlives_a_change_of_the_epochs() -> None:
    """Where it was a false alarm nothing better is forgotten."""
    evidence = evidence_of()
    for arm, epochs in ((2, 20), (3, 40)):
        profile(evidence, arm, 10.0)
        for number in range(8):
            run(evidence, arm, epochs + number % 2)
    for _ in range(2):  # two odd runs
        run(evidence, 3, 120)
    assert (evidence.changes, evidence.count[2]) == (1, 0)
    epochs = np.exp(np.median(belief_of(evidence).log_epochs, axis=0))
    assert epochs[3] == pytest.approx(120, rel=0.1)
    assert epochs[2] < 85


# what an epoch costs


def test_one_slice_at_one_limit_is_not_the_cost_of_an_epoch() -> None:
    evidence = evidence_of()
    run(evidence, 3, 20)
    profile(evidence, 3, 10.0)
    profile(evidence, 2, 10.0, columns=(2,))
    spread = np.log(belief_of(evidence).epoch_cost).std(axis=0)
    assert spread[3] == pytest.approx(0, abs=1e-9)
    assert 0.03 < spread[2] < 0.1
    profile(evidence, 2, 10.0)
    assert np.log(belief_of(evidence).epoch_cost).std(axis=0)[2] == pytest.approx(0, abs=1e-9)


# turns


def hopeful(recurrences: int) -> Evidence:
    """256 is the best of what was run, 512 stands next to it: believed dearer, perhaps cheaper."""
    evidence = evidence_of(default=256)
    for arm, epoch_s in enumerate((12.0, 11.0, 10.0, 9.2)):
        profile(evidence, arm, epoch_s)
    for arm in (0, 1):
        for _ in range(3):
            run(evidence, arm, 20)
    for _ in range(recurrences):
        run(evidence, 2, 20)
    return evidence


def test_the_largest_batch_size_is_not_left_untried_for_ever() -> None:
    # 512 takes 21 epochs of 9.2 s, 256 takes 20 of 10 s: 3 % less, and all that is known says otherwise.
    evidence, rng, policy = evidence_of(default=256), np.random.default_rng(3), KnowledgeGradient()
    epochs, epoch_s = (24, 21, 20, 21), (14.0, 12.0, 10.0, 9.2)
    tried = set()
    for recurrence in range(60):
        for _ in range(30):
            proposal = policy.ask(evidence, COST, rng)
            arm = evidence.index[proposal.batch_size]
            if proposal.purpose == "slice":
                profile(evidence, arm, epoch_s[arm], columns=(evidence.column(proposal.power_limit_w),))
                evidence.add_slice(3.0, 500.0)
                continue
            profile(evidence, arm, epoch_s[arm])
            tried.add(arm)
            done = min(epochs[arm], int(proposal.stop_after_epochs))
            state = "reached" if done >= epochs[arm] else "stopped"
            run(evidence, arm, done, state, recurrence)
            if state == "reached":
                break
    assert 3 in tried
    assert evidence.count[3] > evidence.count[[0, 1]].max()


# what a person reads


def test_what_exploring_and_failures_have_cost_is_summed_up() -> None:
    evidence = evidence_of(default=256)
    for arm in range(4):
        profile(evidence, arm, 10.0)
    for _ in range(8):
        run(evidence, 2, 20)
    run(evidence, 3, 10, "stopped")
    found = exploration_cost(evidence, belief_of(evidence), Energy())
    assert found is not None
    assert found.lost_runs == 1
    assert found.lost_cost == pytest.approx(12_000)


def test_a_batch_size_that_cannot_get_there_is_named_with_the_reason() -> None:
    evidence = evidence_of(max_epochs=30)
    for arm in range(4):
        profile(evidence, arm, 10.0)
    for _ in range(8):
        run(evidence, 3, 10)
        run(evidence, 2, 20)
    belief = belief_of(evidence)
    belief = replace(belief, log_epochs=np.where(np.arange(4) == 0, np.log(60.0), belief.log_epochs))
    found = why_untried(evidence, belief, COST)
    assert 64 in found["likely to need more than the 30 epochs that a run may take"]


def test_plans_price_failures_too() -> None:
    evidence = evidence_of(max_epochs=30)
    for arm in range(4):
        profile(evidence, arm, 10.0)
    for _ in range(6):
        run(evidence, 3, 10)
    belief = belief_of(evidence)
    sure = weigh(belief, evidence, COST, KnowledgeGradient())
    failing = replace(belief, failure_rate=np.where(np.arange(4) == 2, 0.8, belief.failure_rate))
    doubtful = weigh(failing, evidence, COST, KnowledgeGradient())
    assert doubtful.value[2] > sure.value[2]
