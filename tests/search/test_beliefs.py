"""The estimates from a history: costs are counted whole, scored again by any objective, and compared with the
estimated cost of the default.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import optuna
import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.experiments.history import outlook as beliefs
from workbench.experiments.history.attempts import Attempt
from workbench.experiments.history.csv import as_frame, write_csv
from workbench.experiments.history.optuna_bridge import OptunaPolicy
from workbench.experiments.history.outlook import attempts_paid, break_even, outlook_of, recurrences
from workbench.experiments.history.replay import Recorded, space_of
from workbench.search.batch_size.history import Space
from workbench.search.objective import Energy, EnergyDelay, EnergyWithin, Objective, Time, ZeusCost

LIMITS = (150.0, 250.0)
SPACE = Space((32, 64, 128), 128, LIMITS, 50, target=0.6, gpu="V100")
ETA = ZeusCost(0.5, 250.0)
EPOCH_S = {32: 120.0, 64: 110.0, 128: 100.0}
EPOCHS = {32: 20.0, 64: 10.0, 128: 14.0}


def profile(b: int) -> tuple[tuple[float, float, float], ...]:
    """An epoch at 150 W takes a fifth longer and draws 120 W instead of 200."""
    return ((150.0, 1.2 * EPOCH_S[b], 120.0), (250.0, EPOCH_S[b], 200.0))


def ran(number: int, b: int, recurrence: int | None = None, **more: object) -> Attempt:
    """A run at 150 W that reached the target, with its profile."""
    epochs = EPOCHS[b]
    values: dict[str, object] = {
        "state": "reached",
        "epochs": epochs,
        "time_s": epochs * 1.2 * EPOCH_S[b],
        "energy_j": epochs * 1.2 * EPOCH_S[b] * 120.0,
        "power_limit_w": 150.0,
        "profile": profile(b),
        "target": 0.6,
        "gpu": "V100",
    }
    return Attempt(number, b, number if recurrence is None else recurrence, **{**values, **more})  # type: ignore[arg-type]


def seen(
    attempts: list[Attempt],
    objective: Objective = ETA,
    *,
    policy: str = "knowledge-gradient",
    space: Space = SPACE,
) -> beliefs.Outlook:
    made = Recorded(attempts, space, objective, policy)
    return outlook_of(made.ledger, attempts_paid(made.ledger.attempts, space), objective, made.policy)


def rows_of(attempts: list[Attempt], objective: Objective = ETA) -> pl.DataFrame:
    return recurrences(attempts_paid(attempts, SPACE), objective)


# what was paid


def test_a_recurrence_whose_three_runs_did_not_get_there_is_lost_and_one_that_goes_on_is_not() -> None:
    def vain(number: int, recurrence: int, **more: object) -> Attempt:
        return ran(number, 32, recurrence, **{"state": "failed", **more})

    attempts = [
        ran(0, 32, 0), *[vain(n, 1) for n in (1, 2, 3)], vain(4, 2), vain(5, 2), ran(6, 32, 2),
        # A slice is no run, and neither is what crashed.
        vain(7, 3), vain(8, 3, purpose="slice", state="stopped"), vain(9, 3, state="crashed"), vain(10, 3),
    ]
    rows = rows_of(attempts)
    assert rows["lost"].to_list() == [False, True, False, False]
    assert rows["reached"].to_list() == [True, False, True, False]


def test_a_recurrence_costs_all_that_was_spent_on_it() -> None:
    slice_ = ran(
        0,
        64,
        0,
        purpose="slice",
        state="stopped",
        time_s=0.0,
        energy_j=0.0,
        profile_time_s=3.0,
        profile_energy_j=300.0,
    )
    stopped = ran(1, 64, 0, state="stopped", time_s=100.0, energy_j=12_000.0, profile=())
    reached = ran(2, 128, 0, time_s=1000.0, energy_j=100_000.0, profile_time_s=10.0, profile_energy_j=2_000.0)
    (row,) = rows_of([slice_, stopped, reached, ran(3, 128, 1)]).head(1).iter_rows(named=True)
    assert (row["time_s"], row["energy_j"], row["attempts"]) == (1113.0, 114_300.0, 3)
    assert (row["batch_size"], row["reached"]) == (128, True)
    assert row["cost"] == pytest.approx(0.5 * 114_300 + 0.5 * 250 * 1113)


@pytest.mark.parametrize(
    ("objective", "cost"),
    [
        (Energy(), 172_800.0),
        (Time(), 1440.0),
        (EnergyDelay(), 172_800.0 * 1440),
        (EnergyWithin(1.1, 100.0), 172_800.0),
    ],
)
def test_any_objective_scores_the_same_history(objective: Objective, cost: float) -> None:
    run = ran(0, 128, time_s=1440.0, energy_j=172_800.0)
    assert rows_of(
        [run, run.__class__(1, 128, 1, state="reached", time_s=1440.0, energy_j=172_800.0)], objective
    )["spent"].to_list() == (pytest.approx([cost, 2 * cost]))


def test_what_others_gave_up_and_came_late_is_paid_once_and_other_gpus_and_targets_not_at_all() -> None:
    attempts = [
        ran(0, 128),
        ran(1, 128, state="killed", time_s=500.0, energy_j=1.0),
        ran(2, 128, 1, late_for=1),
        ran(3, 128, gpu="P100"),
        ran(4, 128, target=0.7),
        ran(5, 128, state="withdrawn", time_s=0.0, energy_j=0.0),
        ran(6, 128, state="running"),
    ]
    assert attempts_paid(attempts, SPACE)["number"].to_list() == [0, 2]


def test_no_attempt_is_no_recurrence() -> None:
    assert rows_of([]).height == 0
    assert break_even(rows_of([])) is None
    outlook = seen([])
    assert outlook.proposal is not None
    assert (outlook.proposal.batch_size, outlook.default, outlook.profile.height) == (128, None, 0)
    assert outlook.believed["cost"].to_list() == [None] * 3


# beliefs


def test_a_batch_size_that_often_ran_is_estimated_at_its_observed_cost() -> None:
    outlook = seen([ran(0, 128), *(ran(n, 64) for n in range(1, 12)), ran(12, 32)])
    cost = 10 * (0.5 * 132 * 120 + 0.5 * 250 * 132)
    (row,) = outlook.believed.filter(pl.col("batch_size") == 64).iter_rows(named=True)
    assert row["cost"] == pytest.approx(cost, rel=0.02)
    assert row["low"] < row["cost"] < row["high"]
    assert (row["reached"], row["other"]) == (11, 0)
    assert row["best"] == max(outlook.believed["best"])
    assert outlook.believed["best"].sum() == pytest.approx(1.0)


def test_what_ran_once_is_less_certain_than_what_ran_often() -> None:
    believed = seen([ran(0, 128), *(ran(n, 64) for n in range(1, 12))]).believed
    width = (believed["high"] - believed["low"]) / believed["cost"]
    assert width[1] < width[2] < width[0]  # 11 runs, one, none


def test_the_same_look_twice_is_the_same() -> None:
    attempts = [ran(0, 128), ran(1, 64), ran(2, 128)]
    first, second = seen(attempts), seen(attempts)
    assert first.believed.equals(second.believed)
    assert first.proposal == second.proposal


def test_a_batch_size_out_of_memory_is_barred_without_an_estimate() -> None:
    outlook = seen(
        [ran(0, 64), ran(1, 128, state="crashed", oom=True, time_s=1.0, energy_j=100.0, profile=())]
    )
    assert [bool(why) for why in outlook.believed["barred"]] == [False, False, True]
    assert outlook.believed["cost"][2] is None
    assert outlook.batch_size != 128
    assert outlook.default is None  # it cannot be run, so nothing is saved against it


def test_without_a_policy_the_best_estimate_and_the_reason_are_shown() -> None:
    made = Recorded([ran(0, 128), *(ran(n, 64) for n in range(1, 12)), ran(12, 32)], SPACE, ETA)
    policy = OptunaPolicy(optuna.samplers.RandomSampler(seed=1))
    outlook = outlook_of(made.ledger, attempts_paid(made.ledger.attempts, SPACE), ETA, policy)
    assert (outlook.proposal, outlook.batch_size) == (None, 64)
    assert "Optuna" in outlook.reason


# against the default


def test_savings_are_the_default_cost_at_the_highest_limit_less_the_spending() -> None:
    outlook = seen([ran(n, 128) for n in range(12)])
    default = outlook.default
    assert default is not None
    assert (default.batch_size, default.power_limit_w) == (128, 250.0)
    assert default.time_s == pytest.approx(14 * 100, rel=0.02)
    assert default.energy_j == pytest.approx(14 * 100 * 200, rel=0.02)
    assert default.cost == pytest.approx(14 * (0.5 * 20_000 + 0.5 * 250 * 100), rel=0.02)
    assert default.low < default.cost < default.high
    spent = 14 * (0.5 * 14_400 + 0.5 * 250 * 120)
    np.testing.assert_allclose(
        outlook.recurrences["saved"], [(n + 1) * (default.cost - spent) for n in range(12)], rtol=1e-9
    )
    assert outlook.break_even == 1


@pytest.mark.parametrize(
    ("saved", "since"),
    [
        ([1.0, 2.0], 1),
        ([-1.0, 1.0, 2.0], 2),
        ([1.0, -1.0, 0.0, 3.0], 3),
        ([1.0, 2.0, -0.1], None),
        ([], None),
    ],
)
def test_it_breaks_even_where_the_sum_stays_below(saved: list[float], since: int | None) -> None:
    assert break_even(pl.DataFrame({"saved": saved}, schema={"saved": pl.Float64})) == since


def test_a_recurrence_that_did_not_reach_its_target_saves_nothing() -> None:
    done = seen([ran(0, 128), ran(1, 128)]).recurrences
    failed = seen([ran(0, 128), ran(1, 128, state="failed", epochs=5.0, time_s=600.0)]).recurrences
    assert failed["saved"][1] < failed["saved"][0]
    assert done["saved"][0] < done["saved"][1]


# the profile


@pytest.mark.parametrize(("eta", "limit_w"), [(0.0, 250.0), (1.0, 150.0)])
def test_the_best_limit_follows_the_objective(eta: float, limit_w: float) -> None:
    outlook = seen([ran(0, 128)], ZeusCost(eta, 250.0), policy="default-batch-size")
    assert outlook.profile_of == 128
    assert outlook.profile.filter("best")["power_limit_w"].to_list() == [limit_w]
    assert outlook.profile["energy_j"].to_list() == pytest.approx([14_400.0, 20_000.0])


def test_where_the_choice_has_no_profile_the_last_that_has_one_is_shown() -> None:
    outlook = seen([ran(0, 128)], policy="knowledge-gradient")
    assert outlook.proposal is not None
    assert outlook.proposal.batch_size != 128
    assert (outlook.profile_of, outlook.profile.height) == (128, 2)


# records


def test_a_file_and_a_frame_keep_the_content_of_the_attempts(tmp_path: Path) -> None:
    attempts = [
        ran(0, 128),
        ran(1, 64, purpose="slice", state="stopped", time_s=0.0, energy_j=0.0),
        ran(2, 64, 1),
    ]
    write_csv(attempts, tmp_path / "history.csv")
    of_file = Recorded(tmp_path / "history.csv")
    assert of_file.space == Space((64, 128), 128, LIMITS, 14, 0.6, "V100")
    of_frame = Recorded(as_frame(attempts))
    for made in (of_file, of_frame):
        evidence = made.ledger.evidence()
        assert [(run.arm, run.epochs) for run in evidence.runs] == [(1, 14.0), (0, 10.0)]
        assert evidence.epoch_time_s.tolist() == [[132.0, 110.0], [120.0, 100.0]]


def test_an_empty_record_needs_a_space() -> None:
    with pytest.raises(UsageError, match="space=Space"):
        Recorded([])
    assert Recorded([], SPACE).ledger.attempts == []
    assert math.isclose(space_of([ran(0, 128)]).default, 128)


