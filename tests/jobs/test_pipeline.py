"""Plans of pipelines: cases on paper, brute force, the promises of every plan, measured profiles."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.jobs.pipeline import PipelineFrontier, PipelinePlan, frontier

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "clocks"


def profile(stages: list[dict[int, tuple[float, float]]], backward: float = 2.0) -> pl.DataFrame:
    """Clocks of each stage with (time_s, energy_j) of its forward; a backward takes `backward` times both."""
    return pl.DataFrame([
        {"stage": number, "instruction": name, "sm_clock_mhz": clock, "time_s": time_s * factor, "energy_j": energy_j * factor}
        for number, clocks in enumerate(stages) for clock, (time_s, energy_j) in clocks.items()
        for name, factor in (("forward", 1.0), ("backward", backward))
    ])


FAST_ONLY = {1000: (1.0, 100.0)}
TWO = {500: (2.0, 60.0), 1000: (1.0, 100.0)}


def random_profile(seed: int, stages: int, clocks: int) -> pl.DataFrame:
    """Times and energies without any order in the clock."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame([
        {"stage": stage, "instruction": name, "sm_clock_mhz": 100 * (clock + 1), "time_s": rng.uniform(1, 2), "energy_j": rng.uniform(100, 300)}
        for stage in range(stages) for name in ("forward", "backward") for clock in range(clocks)
    ])


def schedule(plan: PipelinePlan) -> dict[tuple[int, str, int], tuple[float, float]]:
    return {(row["stage"], row["instruction"], row["microbatch"]): (row["start_s"], row["start_s"] + row["time_s"])
            for row in plan.clocks.iter_rows(named=True)}


def energy_j(plan: PipelinePlan, stages: int, blocking_power_w: float) -> float:
    return float(plan.clocks["energy_j"].sum() + blocking_power_w * (stages * plan.time_s - plan.clocks["time_s"].sum()))


def test_the_time_of_a_balanced_pipeline_is_that_of_the_textbook() -> None:
    for name in ("1f1b", "gpipe"):
        plans = frontier(profile([FAST_ONLY] * 4), 6, blocking_power_w=10.0, schedule=name)
        assert plans.default.time_s == pytest.approx((6 + 4 - 1) * 3.0)
        # Every stage works 18 s of 27 s, at 100 W, and waits for the rest.
        assert plans.default.energy_j == pytest.approx(4 * (6 * 300 + 10 * 9))


def test_1f1b_alternates_after_its_warm_up() -> None:
    plan = frontier(profile([FAST_ONLY] * 3), 4, blocking_power_w=0.0).default
    order = ["".join(row["instruction"][0] + str(row["microbatch"]) for row in plan.clocks.filter(stage=stage).iter_rows(named=True))
             for stage in range(3)]
    assert order == ["f0f1f2b0f3b1b2b3", "f0f1b0f2b1f3b2b3", "f0b0f1b1f2b2f3b3"]


def test_a_stage_with_slack_slows_down_without_delay() -> None:
    # Stage 1 is half as long: one microbatch leaves it no slack, so that slack can only come from several.
    half = {500: (1.0, 30.0), 1000: (0.5, 50.0)}
    plan = frontier(profile([FAST_ONLY, half]), 4, blocking_power_w=0.0).at(max_slowdown=0.0)
    assert plan.slowdown <= 0
    slowed = plan.clocks.filter(pl.col("sm_clock_mhz") == 500)
    assert len(slowed)
    assert set(slowed["stage"]) == {1}


def test_one_stage_takes_the_least_energy_by_hand() -> None:
    # Without blocking power, 4 operations of 1, 2, 1, 2 s; each may double its time and save 40 %. 2 s of slack
    # pay for one backward or two forwards: 80 J each way.
    plans = frontier(profile([TWO]), 2, blocking_power_w=0.0)
    assert plans.at(iteration_s=8.0).energy_j == pytest.approx(600 - 80)
    # A clock for the stage has to double everything.
    assert plans.at(iteration_s=8.0, per="stage").energy_j == pytest.approx(600)
    assert plans.at(iteration_s=12.0, per="stage").energy_j == pytest.approx(360)


def test_waiting_costs_blocking_power() -> None:
    # Slowing saves 40 J and adds 1 s: worth it alone below 40 W of the other stage.
    for power_w, clock in ((30.0, 500), (50.0, 1000)):
        plans = frontier(profile([TWO, {1000: (1.0, 1000.0)}]), 1, blocking_power_w=power_w)
        plan = plans.at(max_slowdown=1.0)
        assert plan.clocks.filter(stage=0)["sm_clock_mhz"].unique().to_list() == [clock]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_plans_against_brute_force(seed: int, name: str) -> None:
    plans = frontier(random_profile(seed, 2, 3), 2, blocking_power_w=40.0, schedule=name)
    every = [plans._cost(choice) for choice in itertools.product(range(3), repeat=8)]
    stages = [plans._cost([pair[task.stage] for task in plans._tasks]) for pair in itertools.product(range(3), repeat=2)]
    for limit_s in np.linspace(plans.fastest_s, 1.3 * plans.fastest_s, 4):
        best_j = min(energy for time_s, energy in every if time_s <= limit_s + 1e-9)
        plan = plans.at(iteration_s=limit_s)
        assert plan.bound_j <= best_j + 1e-6
        # Three clocks leave large gaps between the hull's points: worst of these 48 cases 4 %.
        assert best_j - 1e-6 <= plan.energy_j <= 1.05 * best_j
        single = [energy for time_s, energy in stages if time_s <= limit_s]
        if single:
            assert plans.at(iteration_s=limit_s, per="stage").energy_j <= 1.001 * min(single)
        else:
            with pytest.raises(UsageError, match="no single clock per stage"):
                plans.at(iteration_s=limit_s, per="stage")


def promises(plans: PipelineFrontier, plan: PipelinePlan, limit_s: float) -> None:
    """What holds for every plan."""
    assert plan.time_s <= limit_s + 1e-8
    assert plan.energy_j == pytest.approx(energy_j(plan, plans.stages, plans.blocking_power_w))
    assert plan.energy_j >= plan.bound_j - 1e-6 * plan.energy_j
    assert len(plan.clocks) == 2 * plans.stages * plans.microbatches
    when = schedule(plan)
    assert plan.time_s == pytest.approx(max(end for _, end in when.values()))
    for (stage, name, microbatch), (start_s, _) in when.items():
        other = (stage - 1 if name == "forward" else stage + 1, name, microbatch)
        assert start_s >= when.get(other, (0.0, 0.0))[1] - 1e-9
        if name == "backward":
            assert start_s >= when[stage, "forward", microbatch][1] - 1e-9
    for stage in range(plans.stages):
        rows = plan.clocks.filter(stage=stage)
        ends = (rows["start_s"] + rows["time_s"]).to_numpy()
        assert (rows["start_s"].to_numpy()[1:] >= ends[:-1] - 1e-9).all()


@pytest.mark.parametrize("seed", range(4))
def test_every_plan_keeps_the_limit_and_the_order(seed: int) -> None:
    plans = frontier(random_profile(seed, 3, 6), 5, blocking_power_w=30.0)
    for slowdown in (0.0, 0.03, 0.2):
        for per in ("microbatch", "stage"):
            promises(plans, plans.at(slowdown, per=per), plans.default.time_s * (1 + slowdown))


def test_the_frontier_falls() -> None:
    points = frontier(random_profile(1, 3, 8), 6, blocking_power_w=30.0).points
    assert len(points) > 5
    assert (np.diff(points["time_s"]) > 0).all()
    assert (np.diff(points["energy_j"]) < 0).all()


def test_repeated_rows_and_the_names_of_perseus_files_are_read() -> None:
    ours = profile([TWO, TWO])
    theirs = ours.rename({"sm_clock_mhz": "frequency", "time_s": "time", "energy_j": "energy"})
    plans = [frontier(each, 3, blocking_power_w=5.0).at(0.1) for each in (ours, theirs, pl.concat([ours, ours]))]
    assert len({round(plan.energy_j, 9) for plan in plans}) == 1


GOOD = profile([TWO, TWO])


@pytest.mark.parametrize(("table", "message"), [
    (GOOD.drop("energy_j"), "no column energy_j"),
    (GOOD.filter(pl.col("stage") != 0), "stage 0 of 0 to 1 has 0 clocks"),
    (GOOD.filter((pl.col("instruction") == "forward") | (pl.col("sm_clock_mhz") == 500)), "only one of them has 1000 MHz"),
    (GOOD.with_columns(pl.lit("optimizer").alias("instruction")), "choose forward, backward"),
    (GOOD.with_columns(pl.col("time_s") * -1), "row 0 has a time_s of -2 s"),
    (GOOD.with_columns(pl.lit(None).alias("sm_clock_mhz")), "8 of 8 rows"),
    (GOOD.with_columns(pl.lit("first").alias("stage")), "whole numbers"),
    (GOOD.clear(), "no points yet"),
    ([1, 2], "polars DataFrame"),
])
def test_a_profile_that_cannot_be_used_is_refused(table: pl.DataFrame, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        frontier(table, 2, blocking_power_w=1.0)


@pytest.mark.parametrize(("options", "message"), [
    ({"microbatches": 0}, "microbatches=0"),
    ({"blocking_power_w": -1.0}, "blocking_power_w=-1 W"),
    ({"schedule": "1f1"}, "did you mean 1f1b"),
])
def test_options_without_meaning_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        frontier(GOOD, **{"microbatches": 2, "blocking_power_w": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "message"), [
    ({}, "give one of max_slowdown"), ({"max_slowdown": 0.1, "iteration_s": 9.0}, "give one of"),
    ({"max_slowdown": 5}, "500 %"), ({"iteration_s": 8.9}, "below the fastest iteration of these profiles, 9 s"),
    ({"iteration_s": float("nan")}, "below the fastest"), ({"max_slowdown": 0.1, "per": "gpu"}, "choose 'microbatch' or 'stage'"),
])
def test_limits_that_cannot_be_kept_are_refused(limit: dict[str, object], message: str) -> None:
    plans = frontier(GOOD, 2, blocking_power_w=1.0)
    with pytest.raises(UsageError, match=message):
        plans.at(**limit)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(DATA.glob("perseus_*.csv")) or [None], ids=lambda path: path.stem if path else "none")
def test_measured_profiles(path: Path | None) -> None:
    if path is None:
        pytest.skip("there are no measured profiles here: ../shared/data/clocks")
    plans = frontier(pl.read_csv(path), 8, blocking_power_w=80.0)
    for slowdown in (0.0, 0.05):
        plan = plans.at(slowdown)
        promises(plans, plan, plans.default.time_s * (1 + slowdown))
        assert plan.energy_j < 1.01 * plan.bound_j
        promises(plans, plans.at(slowdown, per="stage"), plans.default.time_s * (1 + slowdown))
    assert (np.diff(plans.points["energy_j"]) < 0).all()
