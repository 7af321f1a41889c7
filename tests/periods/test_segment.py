"""Iterations as frames: found in the trace or given by marks. Their energies add up, and their means have
error bars.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from workbench.errors import UsageError
from workbench.measurement.energy_estimate import EnergyTimeline
from workbench.measurement.iterations import energies_of
from workbench.measurement.recorder import as_rows
from workbench.periods import segment
from workbench.periods.segment import SCHEMA, compare, from_marks, mean_interval, per_iteration
from workbench.records import DetectedPeriod, IterationSummary, Marks, Periods, Phase

GAP_W, BUSY_W = 60.0, 200.0


def training(
    lengths_s: list[float],
    *,
    pauses: dict[int, float] | None = None,
    begin_s: float = 0.5,
    every_s: float = 0.02,
    jitter: float = 0.0,
    slope: float = 0.0,
) -> tuple[pl.DataFrame, list[float]]:
    """A trace of iterations (80 % busy, then a gap) with idle pauses after some of them, and where the
    iterations begin.
    """
    rng = np.random.default_rng(0)
    starts, edges, at_s = [], [(0.0, GAP_W)], begin_s
    for number, length_s in enumerate(lengths_s):
        starts.append(at_s)
        edges += [(at_s, BUSY_W), (at_s + 0.8 * length_s, GAP_W)]
        at_s += length_s + (pauses or {}).get(number, 0.0)
    end_s = at_s + 0.5
    times = np.arange(0.0, end_s, every_s) + jitter * every_s * rng.uniform(
        -0.4, 0.4, int(np.ceil(end_s / every_s))
    )
    begins = np.array([edge[0] for edge in edges])
    watts = np.array([edge[1] for edge in edges])[np.searchsorted(begins, times, side="right") - 1] * (
        1 + slope * times
    )
    return pl.DataFrame({"time_s": times, "power_w": watts}), [*starts, at_s]


def iterations(trace: pl.DataFrame, periods: Periods, **options: Any) -> pl.DataFrame:
    """With the energies of the trace."""
    return segment.iterations(trace, periods, **{"energies": energies_of([trace]), **options})


def known(seconds: float, phase_s: float = 0.5, **others: float) -> Periods:
    levels = [DetectedPeriod("iteration", seconds, 0.01 * seconds, 0.9, phase_s, 0.8)]
    levels += [
        DetectedPeriod(name.replace("_", "-"), length, 0.01 * length, 0.9, phase_s, 0.5)
        for name, length in others.items()
    ]
    return Periods(tuple(levels), sure=True)


def lengths(frame: pl.DataFrame, kind: str = "iteration") -> list[float]:
    return frame.filter(pl.col("kind") == kind)["time_s"].to_list()


# finding


def test_each_iteration_has_its_true_start_and_energy() -> None:
    trace, starts = training([1.0] * 20)
    frame = iterations(trace, known(1.0))
    assert frame.schema == SCHEMA
    assert frame["iteration"].drop_nulls().to_list() == list(range(20))
    found = frame.filter(pl.col("kind") == "iteration")
    assert found["start_s"].to_list() == pytest.approx(starts[:-1], abs=0.02)
    assert found["energy_j"].to_list() == pytest.approx([0.8 * BUSY_W + 0.2 * GAP_W] * 20, rel=0.03)  # 172 J
    assert found["mean_power_w"].mean() == pytest.approx(172.0, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_jitter_and_a_wrong_period_are_followed(seed: int) -> None:
    true = np.random.default_rng(seed).normal(1.0, 0.04, 60).tolist()
    trace, starts = training(true, jitter=1.0)
    frame = iterations(trace, known(1.012))  # a rigid ruler would be off by 70 % of a period at the end
    off = [
        min((at - start for start in starts), key=abs)
        for at in frame.filter(pl.col("kind") == "iteration")["start_s"]
    ]
    assert np.quantile(np.abs(off - np.median(off)), 0.95) < 0.03
    assert len(off) >= 58
    assert sum(lengths(frame)) == pytest.approx(sum(true), abs=0.1)


def test_drift_is_followed() -> None:
    true = np.linspace(0.9, 1.15, 60).tolist()
    frame = iterations(training(true)[0], known(1.02))
    assert len(lengths(frame)) == pytest.approx(60, abs=1)
    assert lengths(frame)[2:55] == pytest.approx(true[-len(lengths(frame)) :][2:55], abs=0.05)


def test_a_different_setting_is_a_row_of_its_own() -> None:
    trace, _ = training([1.0] * 30, pauses={9: 3.3, 19: 3.3})
    frame = iterations(trace, known(1.0))
    assert lengths(frame, "pause") == pytest.approx([3.3, 3.3], abs=0.1)
    assert lengths(frame) == pytest.approx([1.0] * 30, abs=0.05)
    assert frame.filter(pl.col("kind") == "pause")["energy_j"].to_list() == pytest.approx(
        [3.3 * GAP_W] * 2, rel=0.05
    )
    assert frame["kind"].to_list()[0] == "other"  # before the first
    costs = {cost.name: cost for cost in per_iteration(frame).levels}
    assert (costs["pause"].count, costs["pause"].every) == (2, None)  # two repeat nothing


def test_a_hole_in_the_trace_holds_no_iterations() -> None:
    trace, _ = training([1.0] * 30)
    frame = iterations(trace.filter(~pl.col("time_s").is_between(10.7, 14.3)), known(1.0))
    inside = frame.filter((pl.col("start_s") < 14.0) & (pl.col("end_s") > 11.0))
    assert "iteration" not in inside.filter(pl.col("start_s").is_between(11.0, 13.5))["kind"].to_list()
    assert len(lengths(frame)) == pytest.approx(25, abs=2)


def test_few_readings_an_iteration_do_with_the_ruler() -> None:
    times = np.arange(0.0, 30.0, 1.0)
    trace = pl.DataFrame({"time_s": times, "power_w": np.full(30, 100.0)})
    frame = iterations(trace, known(2.5, phase_s=1.0))
    assert lengths(frame) == pytest.approx([2.5] * 11)
    assert frame["energy_j"].sum() == pytest.approx(2900.0)
    summary = per_iteration(
        frame, periods=known(2.5, phase_s=1.0)
    )  # all its marks err alike
    assert summary.time_uncertainty_s == pytest.approx(0.025)
    assert summary.energy_uncertainty_j == pytest.approx(100.0 * 0.025)


def test_without_a_period_everything_is_something_else() -> None:
    trace, _ = training([1.0] * 5)
    frame = iterations(trace, Periods(reason="flat"))
    assert frame["kind"].to_list() == ["other"]
    summary = per_iteration(frame, periods=Periods(reason="flat"))
    assert (summary.count, summary.time_s, summary.sure, summary.reason) == (
        0,
        None,
        False,
        "flat",
    )


def test_bad_rows_are_dropped_and_too_few_are_refused() -> None:
    trace, _ = training([1.0] * 10)
    bad = pl.concat(
        [
            trace.reverse(),
            trace.head(3),
            pl.DataFrame({"time_s": [3.0, float("nan")], "power_w": [float("nan"), 9.0]}),
        ]
    )
    assert lengths(iterations(bad, known(1.0))) == pytest.approx(lengths(iterations(trace, known(1.0))))
    with pytest.raises(UsageError, match="has 1; at least 2"):
        iterations(trace.head(1), known(1.0))


def test_a_second_gpu_counts_too() -> None:
    trace, _ = training([1.0] * 10)
    both = iterations(trace, known(1.0), energies=energies_of([trace, trace]))
    assert both["energy_j"].to_list() == pytest.approx(
        [2 * each for each in iterations(trace, known(1.0))["energy_j"]]
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.5, 1.5), min_size=3, max_size=25),
    st.floats(0.3, 2.0),
    st.floats(0.0, 3.0),
    st.dictionaries(st.integers(0, 24), st.floats(0.0, 4.0), max_size=3),
    st.booleans(),
)
def test_energies_add_up_to_the_windows(
    true: list[float], guess_s: float, phase_s: float, pauses: dict[int, float], marked: bool
) -> None:
    """Rows never overlap and leave nothing out, and their energies add up to the window's."""
    trace, starts = training(true, pauses=pauses, jitter=1.0)
    within_s = (0.7, float(trace["time_s"][-1]) - 0.2)
    marks = Marks((tuple(at for at in starts if within_s[0] <= at <= within_s[1]),), edges=True)
    if marked and marks.count:
        frame = from_marks(marks, energies=energies_of([trace]), within_s=within_s)
    else:
        frame = iterations(trace, known(guess_s, phase_s), within_s=within_s)
    whole = EnergyTimeline(as_rows(trace)).between(*within_s)
    assert whole is not None
    assert frame["energy_j"].sum() == pytest.approx(whole.energy_j, rel=1e-9)
    assert (frame["start_s"][0], frame["end_s"][-1]) == within_s
    assert frame["start_s"].to_list()[1:] == frame["end_s"].to_list()[:-1]
    assert frame["time_s"].min() > 0
    numbers = frame["iteration"].drop_nulls().unique(maintain_order=True).to_list()
    assert numbers == list(range(len(numbers)))


def test_on_published_traces_the_mean_is_right_once_the_period_is_roughly_known(data_dir: Path) -> None:
    """Simulated trainings of several shapes and sensors; the period given is 1 % off, the phase a true
    boundary.
    """
    families = ["plain", "drift", "micro_heavy"]
    truth = pl.read_csv(data_dir / "period" / "truth.csv").filter(
        pl.col("observable") & pl.col("family").is_in(families)
    )
    traces = pl.read_parquet(data_dir / "period" / "traces.parquet")
    starts = np.load(data_dir / "period" / "iters.npz")
    right = covered = 0
    cases = truth.rows(named=True)[::4]
    for case in cases:
        trace = traces.filter(pl.col("case") == case["case"]).select(
            time_s="t", power_w=pl.col("power_w").cast(pl.Float64)
        )
        marks = [
            float(at)
            for at in starts[f"iter_{case['case']:03d}"]
            if trace["time_s"][0] <= at <= trace["time_s"][-1]
        ]
        summary = per_iteration(iterations(trace, known(1.01 * case["T_med"], marks[len(marks) // 3])))
        true_s = (marks[-1] - marks[0]) / (len(marks) - 1)
        assert summary.time_s is not None
        assert summary.time_uncertainty_s is not None
        right += abs(summary.time_s / true_s - 1) < 0.01
        covered += abs(summary.time_s - true_s) < summary.time_uncertainty_s
    assert right >= 0.85 * len(cases)
    assert covered >= 0.8 * len(cases)


# being told


def test_marks_cut_exactly_where_they_are() -> None:
    trace, starts = training([1.0, 1.2, 0.8, 1.0])
    frame = from_marks(Marks((tuple(starts),)), energies=energies_of([trace]))
    assert lengths(frame) == pytest.approx([1.0, 1.2, 0.8, 1.0])
    assert frame["kind"].to_list() == ["iteration"] * 4


def test_a_phase_is_no_iteration_and_may_interrupt_one() -> None:
    trace = pl.DataFrame({"time_s": [0.0, 10.0], "power_w": [100.0, 100.0]})
    frame = from_marks(
        Marks(((0.0, 1.0, 4.0, 5.0),), (Phase("evaluation", 1.5, 3.5),)), energies=energies_of([trace]),
        within_s=(0.0, 10.0),
    )
    assert frame.select("iteration", "kind", "start_s", "end_s").rows() == [
        (0, "iteration", 0.0, 1.0),
        (1, "iteration", 1.0, 1.5),
        (None, "evaluation", 1.5, 3.5),
        (1, "iteration", 3.5, 4.0),
        (2, "iteration", 4.0, 5.0),
        (None, "other", 5.0, 10.0),
    ]
    summary = per_iteration(frame, source="marks")
    assert (summary.count, summary.time_s, summary.energy_j) == (3, pytest.approx(1.0), pytest.approx(100.0))
    assert summary.source == "marks"
    assert {cost.name: (cost.count, cost.each_s, cost.each_j) for cost in summary.levels} == {
        "iteration": (3, pytest.approx(1.0), pytest.approx(100.0)),
        "evaluation": (1, 2.0, pytest.approx(200.0)),
        "other": (1, 5.0, pytest.approx(500.0)),
    }


def test_marks_at_one_end_of_the_loop_have_an_iteration_at_the_other() -> None:
    steps = Marks(((1.0, 2.0, 3.0),), edges=True)
    assert (
        len(lengths(from_marks(steps, within_s=(0.1, 3.1)))) == 3
    )  # what lies before the first is about as long
    assert len(lengths(from_marks(steps, within_s=(0.9, 4.1)))) == 3
    assert len(lengths(from_marks(steps, within_s=(0.9, 9.0)))) == 2


def test_a_checkpoint_that_nobody_marked_is_a_long_iteration() -> None:
    trace = pl.DataFrame({"time_s": [0.0, 60.0], "power_w": [100.0, 100.0]})
    borders = Marks((tuple(np.cumsum([0.0, *([1.0] * 9 + [4.0]) * 3]).tolist()),))
    summary = per_iteration(from_marks(borders, energies=energies_of([trace])), source="marks")
    assert (summary.count, summary.time_s) == (27, pytest.approx(1.0))
    (long,) = (cost for cost in summary.levels if cost.name == "long iteration")
    assert (long.count, long.each_s, long.every) == (3, pytest.approx(4.0), 10.0)


def test_a_compilation_is_a_long_iteration_also_where_the_others_vary() -> None:
    steps_s = np.random.default_rng(2).choice([0.004, 0.005, 0.012], 50, p=[0.4, 0.3, 0.3])
    moments = Marks((tuple(np.cumsum([0.0, *steps_s[:10], 2.4, *steps_s[10:]]).tolist()),))
    summary = per_iteration(from_marks(moments), source="marks")
    assert (summary.count, summary.time_s) == (50, pytest.approx(np.mean(steps_s)))
    (long,) = (cost for cost in summary.levels if cost.name == "long iteration")
    assert (long.count, long.each_s) == (1, pytest.approx(2.4))


@pytest.mark.parametrize(("lengths_s", "every"), [
    ([*[1.0] * 20, *[5.0] * 4, *[1.0] * 20], None),  # two jobs in one window
    ([1.0, 5.0, *[1.0] * 11, 5.0, *[1.0] * 2, 5.0, *[1.0] * 20], None),  # here and there
    ([*[1.0] * 11, 5.0] * 2, None),
    ([*[1.0] * 11, 5.0] * 3, 12.0),
    ([*[1.0] * 11, 5.0, *[1.0] * 12, 5.0, *[1.0] * 10, 5.0, *[1.0] * 11, 5.0], 12.0),  # nearly even
    ([*[1.0] * 11, 5.0] * 8 + [1.0] * 12 + [*[1.0] * 11, 5.0] * 2, 12.0),  # once it did not come
])
def test_repeating_phases_are_described_by_every(lengths_s: list[float], every: float | None) -> None:
    summary = per_iteration(from_marks(Marks((tuple(np.cumsum([0.0, *lengths_s]).tolist()),))), source="marks")
    (long,) = (cost for cost in summary.levels if cost.name == "long iteration")
    assert (long.count, long.each_s, long.every) == (lengths_s.count(5.0), pytest.approx(5.0), every)


def test_without_a_trace_marks_give_times_and_no_energy() -> None:
    summary = per_iteration(from_marks(Marks(((0.0, 1.0, 2.0),))), source="marks")
    assert (summary.count, summary.time_s, summary.energy_j, summary.energy_uncertainty_j) == (
        2,
        1.0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("marks_s", "sentence"),
    [([1.0], "there are 1"), ([], "there are 0"), ([2.0, 1.0], "ascending")],
)
def test_impossible_steps_are_refused(marks_s: list[float], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        from_marks(Marks((tuple(marks_s),)))


# means


@pytest.mark.parametrize(("count", "correlation"), [(9, 0.5), *(pytest.param(*each, marks=pytest.mark.slow) for each in (
    (5, 0.5), (9, -0.5), (9, 0.0), (9, 0.9), (15, -0.5), (15, 0.9), (50, 0.9), (200, 0.0), (200, 0.9),
))])
def test_the_interval_of_the_mean_covers_it_also_where_neighbours_are_correlated(
    count: int, correlation: float
) -> None:
    draw = np.random.default_rng(3)
    noise = draw.standard_normal((count, 300))
    noise[1:] *= np.sqrt(1 - correlation**2)
    runs = lfilter([1.0], [1.0, -correlation], noise, axis=0).T
    means = [mean_interval(run) for run in runs]
    covered = np.mean([abs(mean) <= half for mean, half in means if half is not None])
    assert 0.91 <= covered <= 0.995


def test_the_interval_of_many_independent_values_is_students() -> None:
    values = np.random.default_rng(1).standard_normal(2000)
    students = 1.961 * np.std(values, ddof=1) / np.sqrt(2000)
    assert mean_interval(values) == (np.mean(values), pytest.approx(students, rel=0.05))


def test_one_slow_value_at_an_end_is_no_sign_of_correlation() -> None:
    values = 1.0 + 0.02 * np.random.default_rng(4).standard_normal(20)
    values[0] = 1.5
    _, half = mean_interval(values)
    assert half is not None
    assert half < 2 * 2.09 * np.std(values, ddof=1) / np.sqrt(20)  # Student's


def test_one_value_has_no_interval_and_equal_values_have_none_to_either_side() -> None:
    assert mean_interval(np.array([2.0])) == (2.0, None)
    assert mean_interval(np.array([2.0] * 9)) == (2.0, 0.0)


def test_the_interval_of_the_energy_holds_the_measurements_own_error() -> None:
    frame = from_marks(Marks(((0.0, 0.9, 2.0, 3.0),)), energies=energies_of([pl.DataFrame({"time_s": [0.0, 4.0], "power_w": [100.0, 100.0]})]))
    summary = per_iteration(frame, source="marks", own_error_j=30.0)
    half_s = summary.time_uncertainty_s
    assert half_s is not None
    assert half_s > 4.3 * np.std([0.9, 1.1, 1.0], ddof=1) / np.sqrt(3)  # Student's, of independent values
    assert summary.energy_uncertainty_j == pytest.approx(np.hypot(100 * half_s, 30.0 / 3))


def test_misplaced_borders_between_neighbours_do_not_widen_the_mean() -> None:
    misplaced = np.arange(41) + 0.1 * np.random.default_rng(0).standard_normal(41)
    trace = pl.DataFrame({"time_s": [-1.0, 50.0], "power_w": [100.0, 100.0]})
    summary = per_iteration(from_marks(Marks((tuple(misplaced.tolist()),)), energies=energies_of([trace])))
    plain = 2.02 * np.std(np.diff(misplaced), ddof=1) / np.sqrt(40)
    assert summary.time_uncertainty_s is not None
    assert summary.time_uncertainty_s < 0.7 * plain
    assert summary.time_uncertainty_s > abs(np.mean(np.diff(misplaced)) - 1.0)


def test_micro_steps_and_cycles_share_the_iterations_energy() -> None:
    trace, _ = training([1.0] * 20)
    periods = known(1.0, micro_step=0.25, cycle=5.0)
    costs = {cost.name: cost for cost in per_iteration(iterations(trace, periods), periods=periods).levels}
    assert (costs["micro-step"].count, costs["cycle"].count) == (80, 4)
    assert costs["micro-step"].each_j == pytest.approx(172.0 / 4, rel=0.02)
    assert costs["cycle"].each_j == pytest.approx(172.0 * 5, rel=0.02)
    assert costs["cycle"].every == pytest.approx(5.0, rel=1e-3)


def test_a_cycle_that_has_begun_only_is_not_shared_out_over_the_whole_ones() -> None:
    trace, _ = training([1.0] * 18)
    periods = known(1.0, cycle=5.0)
    cycle = next(
        cost
        for cost in per_iteration(iterations(trace, periods), periods=periods).levels
        if cost.name == "cycle"
    )
    assert (cycle.count, cycle.each_s, cycle.time_s) == (3, pytest.approx(5.0), pytest.approx(15.0))
    assert cycle.every == pytest.approx(5.0, rel=0.01)


def test_a_best_guess_is_not_sure_and_gives_the_reason() -> None:
    trace, _ = training([1.0] * 10)
    guess = Periods(known(1.0).levels, sure=False, reason="too short: 10 s")
    summary = per_iteration(iterations(trace, guess), periods=guess)
    assert (summary.sure, summary.reason, summary.count) == (False, "too short: 10 s", 10)


# both


@pytest.mark.parametrize(
    ("periods", "sentence"),
    [
        (known(1.004), "1.004 s: 0.4 %"),
        (known(3.02), "3.02 s: 3 marked iterations"),
        (known(0.25), "0.25 s: 1/4 of"),
        (known(1.37), "1.37 s, .* disagree"),
        (Periods(reason="flat"), "no iteration .flat."),
        (
            Periods(known(1.0).levels, reason="x"),
            "1 s, unsure: 0.0 %",
        ),
    ],
)
def test_a_detected_period_is_checked_against_the_marks(periods: Periods, sentence: str) -> None:
    assert re.search(sentence, compare(periods, IterationSummary(10, 1.0, source="marks")))


def test_without_marks_there_is_nothing_to_check() -> None:
    assert compare(known(1.0), IterationSummary(0)) == ""
