"""The paper's policy decides as Zeus' own code does, and keeps its feet where that stumbles."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.search.batch_size.history import Evidence, Run, Space
from workbench.search.batch_size.policy import Progress, stop_reason
from workbench.search.batch_size.zeus import DefaultBatchSize, ZeusPolicy
from workbench.search.objective import Energy

SIZES = (8, 16, 32, 64, 128, 256)


def ended(arm: int, cost: float, state: str = "reached", recurrence: int = 0, epochs: float = 10.0) -> Run:
    return Run(arm, state, epochs, cost, cost, recurrence=recurrence)


def asked(policy: ZeusPolicy, evidence: Evidence, seed: int = 0) -> int:
    return policy.ask(evidence, Energy(), np.random.default_rng(seed)).batch_size


@pytest.mark.parametrize("seed", range(8))
def test_the_same_draws_give_the_same_batch_sizes_as_zeus_own_code(seed: int) -> None:
    legacy = pytest.importorskip("zeus._legacy.policy.optimizer", reason="Zeus is not installed")
    from zeus._legacy.job import Job  # type: ignore[import-untyped]

    world = np.random.default_rng(seed)
    window = 6 if seed % 2 else 0
    base = 100 * (1 + np.abs(np.arange(6) - world.integers(6)) * world.uniform(0.02, 0.3))
    fails = {0} if seed % 3 == 0 else set()
    theirs = legacy.PruningGTSBatchSizeOptimizer(seed=seed, window_size=window, verbose=False)
    job = Job("d", "n", "o", 1.0, 100, 64)
    theirs.register_job(job, list(SIZES))
    ours, rng = ZeusPolicy(window=window, faithful=True), np.random.default_rng(seed)
    evidence = Evidence(Space(SIZES, 64))
    picked = []
    for recurrence in range(80):
        expected = int(theirs.predict(job))
        picked.append(expected)
        assert ours.ask(evidence, Energy(), rng).batch_size == expected, (
            f"recurrence {recurrence} after {picked}"
        )
        arm = SIZES.index(expected)
        cost = float(base[arm] * world.lognormal(0, 0.05))
        reached = arm not in fails
        theirs.observe(job, expected, cost, reached)
        evidence.add(ended(arm, cost, "reached" if reached else "stopped", recurrence))


def test_pruning_goes_down_then_up_and_starts_again_at_the_cheapest() -> None:
    evidence = Evidence(Space((16, 32, 64, 128), 64))
    seen = []
    for cost, state in [
        (10, "reached"),
        (8, "reached"),
        (20, "stopped"),
        (12, "reached"),
        (8, "reached"),
        (10, "reached"),
    ]:
        size = asked(ZeusPolicy(), evidence)
        seen.append(size)
        evidence.add(ended((16, 32, 64, 128).index(size), cost, state, len(seen)))
    # 16 failed in the first round; the second starts at 32, where nothing smaller is left.
    assert seen == [64, 32, 16, 128, 32, 64]


def test_a_batch_size_that_crashes_is_not_proposed_for_ever() -> None:
    evidence = Evidence(Space((64, 128, 256), 64))
    for n in range(2):
        evidence.add(ended([0, 1][n], 10, recurrence=n))
    assert asked(ZeusPolicy(), evidence) == 256
    evidence.add(Run(2, "crashed", 0.0, 1.0, 1.0, recurrence=2))
    for n in range(3, 30):
        size = asked(ZeusPolicy(), evidence, n)
        assert size != 256
        evidence.add(ended((64, 128, 256).index(size), 10 + 0.1 * n, recurrence=n))


def test_where_nothing_survives_pruning_the_default_is_left() -> None:
    evidence = Evidence(Space((64, 128), 64))
    evidence.add(ended(0, 10, "stopped"))
    evidence.add(ended(1, 10, "stopped"))
    assert asked(ZeusPolicy(), evidence) == 64


def test_while_a_run_is_in_flight_the_best_known_is_launched() -> None:
    evidence = Evidence(Space((32, 64, 128), 64))
    evidence.add(ended(1, 10))
    evidence.add(ended(0, 8))
    evidence.in_flight[2] = 1
    assert asked(ZeusPolicy(), evidence) == 32


def test_a_late_result_of_another_batch_size_does_not_disturb_the_pruning() -> None:
    evidence = Evidence(Space((32, 64, 128), 64))
    evidence.add(ended(1, 10))
    evidence.add(ended(1, 11))  # a concurrent run; the exploration waits for 32
    assert asked(ZeusPolicy(), evidence) == 32


def test_the_early_stop_is_before_the_epoch_that_would_cross_beta_times_the_least_cost() -> None:
    evidence = Evidence(Space((32, 64), 64))
    evidence.add(ended(1, 100))
    proposal = ZeusPolicy(beta=2).ask(evidence, Energy(), np.random.default_rng(0))
    assert proposal.stop_after_cost == 200
    assert not stop_reason(Progress(5, 150), epochs=100, cost=200)  # the next makes 180
    assert stop_reason(Progress(6, 180), epochs=100, cost=200)  # the next makes 210
    assert stop_reason(Progress(6, 1), epochs=6, cost=200)


def test_a_run_that_failed_cheaply_is_not_the_cheapest() -> None:
    space = Space((32, 64), 64)
    evidence = Evidence(space)
    for n, (arm, cost) in enumerate([(1, 100), (0, 90), (0, 91), (1, 101)]):
        evidence.add(ended(arm, cost, recurrence=n))
    for n in range(4, 8):
        evidence.add(ended(0, 1.0, "failed", n, epochs=1))
    picks = [asked(ZeusPolicy(), evidence, seed) for seed in range(50)]
    assert picks.count(64) > 40


def test_the_default_batch_size_is_kept_at_its_best_limit_once_that_is_known() -> None:
    evidence = Evidence(Space((32, 64), 64, (100.0, 200.0)))
    policy = DefaultBatchSize()
    assert policy.ask(evidence, Energy(), np.random.default_rng(0)).power_limit_w is None
    evidence.add_profile(1, 100.0, 12.0, 90.0)
    evidence.add_profile(1, 200.0, 10.0, 150.0)
    proposal = policy.ask(evidence, Energy(), np.random.default_rng(0))
    assert (proposal.batch_size, proposal.power_limit_w) == (64, 100.0)
