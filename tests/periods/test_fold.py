"""Folding, shape, spectrum and idle share of traces that one can work out on paper, and of simulated
trainings.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from workbench.device.discovery import devices
from workbench.errors import UsageError
from workbench.measurement.recorder import Recorder
from workbench.periods import fold
from workbench.records import DetectedPeriod
from workbench.simulation import catalogue
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

ONE = DetectedPeriod("iteration", 1.0, 0.01, 0.99, 0.0, 0.9)


def square(
    *,
    length_s: float = 20.0,
    every_s: float = 0.05,
    busy: float = 0.75,
    low_w: float = 50.0,
    noise_w: float = 0.0,
    used: float | None = None,
) -> pl.DataFrame:
    """Each second begins with `busy` seconds of 250 W; the rest waits. Noise alternates between its two
    signs.
    """
    times = np.arange(0.0, length_s, every_s) + every_s / 2
    noise = np.where(np.arange(len(times)) % 2, noise_w, -noise_w)
    columns = {"time_s": times, "power_w": np.where(times % 1.0 < busy, 250.0, low_w) + noise}
    if used is not None:
        columns["utilisation"] = np.full(len(times), used)
    return pl.DataFrame(columns)


def jittered(seed: int = 1, count: int = 60) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Iterations of 0.8 to 1.2 s, a quarter of each a wait; a trace and where the iterations are."""
    lengths = np.random.default_rng(seed).uniform(0.8, 1.2, count)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    times = np.arange(0.0, edges[-1], 0.02)
    number = np.searchsorted(edges, times, side="right") - 1
    phase = (times - edges[number]) / lengths[number]
    return (
        pl.DataFrame({"time_s": times, "power_w": np.where(phase < 0.75, 250.0, 50.0)}),
        pl.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]}),
    )


# fold and shape


def test_all_iterations_lie_over_one_another() -> None:
    folded = fold.fold(square(), ONE)
    assert folded.columns == ["iteration", "phase", "time_in_iteration_s", "power_w"]
    assert folded["iteration"].unique().sort().to_list() == list(
        range(18)
    )  # the ruler's whole periods: from 1 s to 19 s
    assert folded.filter(pl.col("phase") < 0.75)["power_w"].unique().to_list() == [250.0]
    assert folded.filter(pl.col("phase") > 0.75)["power_w"].unique().to_list() == [50.0]
    assert (folded["phase"] - folded["time_in_iteration_s"]).abs().max() < 1e-9  # an iteration of one second


def test_the_ruler_lays_whole_periods_from_the_phase() -> None:
    ruler = fold.uniform_grid(square(length_s=3.2), DetectedPeriod("iteration", 1.0, 0.01, 0.9, 7.25, 0.9))
    assert ruler.rows() == [pytest.approx((0.25, 1.25)), pytest.approx((1.25, 2.25))]


def test_given_spans_follow_iterations_of_any_length() -> None:
    trace, spans = jittered()
    folded = fold.fold(trace, ONE, spans)
    assert folded.filter(pl.col("phase") < 0.74)["power_w"].unique().to_list() == [250.0]
    assert folded.filter(pl.col("phase") > 0.76)["power_w"].unique().to_list() == [50.0]
    rigid = fold.fold(trace, ONE)
    assert rigid.filter(pl.col("phase") < 0.5)["power_w"].n_unique() == 2  # a ruler has drifted off


def test_an_iteration_with_few_readings_is_dropped_and_others_keep_their_numbers() -> None:
    trace = square().filter(~pl.col("time_s").is_between(5.1, 5.9))
    spans = pl.DataFrame({"start_s": np.arange(0.0, 20.0), "end_s": np.arange(1.0, 21.0)})
    assert sorted(set(range(20)) - set(fold.fold(trace, ONE, spans)["iteration"])) == [5]


def test_the_shape_is_the_median_and_the_band_of_eight_in_ten() -> None:
    rows = [(number, 0.25, 0.25, 100.0 + number) for number in range(11)] + [
        (number, 0.75, 0.75, 200.0) for number in range(11)
    ]
    folded = pl.DataFrame(rows, schema=["iteration", "phase", "time_in_iteration_s", "power_w"], orient="row")
    shape = fold.shape(folded, ONE)
    assert shape.height == fold.FEWEST_BINS // 4  # the bins between the two moments have no readings
    assert shape.drop("phase").rows() == [(101.0, 105.0, 109.0), (200.0, 200.0, 200.0)]


@pytest.mark.parametrize(("refresh", "most"), [(0.02, 100), (0.1, 20), (None, fold.MOST_BINS)])
def test_a_shape_has_no_more_bins_than_readings_and_sensor_bear(refresh: float | None, most: int) -> None:
    many = fold.shape(fold.fold(square(length_s=200.0, every_s=0.0201), ONE), ONE, refresh=refresh)
    assert 0.9 * most <= many.height <= most
    few = fold.fold(square(length_s=3.0), ONE)
    assert (few.height, fold.shape(few, ONE).height) == (20, fold.FEWEST_BINS)


def test_nothing_to_fold_is_an_empty_frame() -> None:
    empty = pl.DataFrame(schema={"time_s": pl.Float64, "power_w": pl.Float64})
    for trace in (
        empty,
        square(length_s=0.4),
        square().with_columns(pl.lit(None, pl.Float64).alias("power_w")),
    ):
        folded = fold.fold(trace, ONE)
        assert folded.height == fold.shape(folded, ONE).height == 0
        assert fold.idle_share(trace, ONE) is None


def test_impossible_questions_get_a_sentence() -> None:
    with pytest.raises(UsageError, match="seconds, not 0"):
        fold.uniform_grid(square(), DetectedPeriod("iteration", 0.0, 0.0, 0.0, 0.0, 0.0))


# spectrum


def sine(
    period_s: float, *, length_s: float = 60.0, every_s: float = 0.1, seed: int | None = None
) -> pl.DataFrame:
    times = np.arange(0.0, length_s, every_s)
    if seed is not None:
        times = np.sort(times + np.random.default_rng(seed).uniform(-0.3, 0.3, len(times)) * every_s)
    return pl.DataFrame(
        {"time_s": times, "power_w": 200 + 40 * np.sin(2 * np.pi * times / period_s) + 0.5 * times}
    )


@pytest.mark.parametrize("period_s", [0.7, 2.0, 9.3])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_spectrum_peaks_at_the_period_for_any_trend_and_polling(
    period_s: float, seed: int | None
) -> None:
    found = fold.spectrum(sine(period_s, seed=seed))
    assert found.sort("amplitude")["period_s"][-1] == pytest.approx(period_s, rel=0.02)
    assert found["amplitude"].max() == 1.0
    assert found["period_s"].is_sorted()
    assert (found["period_s"] * found["frequency_hz"] - 1).abs().max() < 1e-9
    assert found["period_s"].max() <= 30.1  # half of the trace


def test_amplitudes_are_to_one_another_as_in_the_power() -> None:
    both = sine(1.0).with_columns(pl.col("power_w") + sine(4.0)["power_w"] / 2)
    found = fold.spectrum(both)
    half = found.filter(pl.col("period_s").is_between(3.5, 4.5))["amplitude"].max()
    assert half == pytest.approx(0.5, abs=0.03)


def test_a_gap_is_no_period() -> None:
    trace = sine(1.0).filter(~pl.col("time_s").is_between(20, 41))
    found = fold.spectrum(trace)
    assert found.sort("amplitude")["period_s"][-1] == pytest.approx(1.0, rel=0.02)
    assert found.filter(pl.col("period_s") > 2)["amplitude"].max() < 0.05  # type: ignore[operator]


def test_a_sampler_that_rests_leaves_no_gaps() -> None:
    times = np.sort(
        np.concatenate([np.arange(0, 60, 0.2), np.arange(0, 60, 0.2) + 0.02])
    )  # two looks at once, then a rest
    trace = pl.DataFrame({"time_s": times, "power_w": 200 + 40 * np.sin(2 * np.pi * times / 3.0)})
    assert fold.spectrum(trace).sort("amplitude")["period_s"][-1] == pytest.approx(3.0, rel=0.02)


def test_a_thinned_spectrum_keeps_its_peak() -> None:
    whole, thin = fold.spectrum(sine(0.7)), fold.spectrum(sine(0.7), points=100)
    assert thin.height <= 100 < whole.height
    assert thin.sort("amplitude").row(-1) == whole.sort("amplitude").row(-1)


@pytest.mark.parametrize(
    "trace",
    [sine(1.0, length_s=1.0), sine(1.0).with_columns(pl.lit(200.0).alias("power_w"))],
    ids=["short", "flat"],
)
def test_without_evidence_the_spectrum_is_empty(trace: pl.DataFrame) -> None:
    assert fold.spectrum(trace).height == 0


# waiting


def waiting(**more: float) -> pl.DataFrame:
    """Readings of a sensor with a new value at every refresh."""
    return square(noise_w=0.5, **more)


@pytest.mark.parametrize("busy", [0.6, 0.75, 0.9])
def test_the_idle_share_counts_power_below_half_way_to_the_waiting_level(busy: float) -> None:
    idle = fold.idle_share(waiting(busy=busy), ONE)
    assert idle is not None
    assert idle.share == pytest.approx(1 - busy, abs=0.01)
    assert idle.longest_s == pytest.approx(1 - busy, abs=0.01)
    assert idle.at_s == pytest.approx(busy, abs=0.03)
    shown = [f"{100 * (1 - busy):.0f} %", f"{1000 * idle.longest_s:.0f} ms", f"{1000 * idle.at_s:.0f} ms"]
    assert re.findall(r"\d+ (?:%|ms)", idle.text) == shown


def test_a_light_phase_is_no_wait() -> None:
    idle = fold.idle_share(waiting(low_w=160.0), ONE)
    assert idle is not None
    assert idle.share == 0.0
    assert "75 ms" in idle.text


def test_a_deep_phase_with_kernels_running_is_no_wait() -> None:
    idle = fold.idle_share(waiting(used=1.0), ONE)
    assert idle is not None
    assert idle.share == 0.0
    observed = fold.idle_share(waiting(used=0.75), ONE)
    assert observed is not None
    assert observed.share == pytest.approx(0.25, abs=0.01)


def test_a_slow_sensor_gives_no_answer_about_waits() -> None:
    assert fold.idle_share(waiting(every_s=0.3), ONE) is None
    hidden = waiting(low_w=240.0, used=0.7)  # utilisation tells of waits that the power has smeared away
    assert fold.idle_share(hidden, ONE) is None


@pytest.mark.parametrize(
    ("card", "workload", "options"),
    [
        ("V100", "imagenet", {}),
        ("V100", "squad", {}),
        ("V100", "librispeech", {}),
        ("V100", "imagenet", {"accumulate": 4}),
    ],
)
def test_the_idle_share_of_a_simulated_training_is_that_of_its_phases(
    simulated: Callable[..., Machine], card: str, workload: str, options: dict[str, int]
) -> None:
    machine = simulated(card, stepped=True)
    gpus = devices()
    recorder = Recorder(gpus)
    machine.step(1.0)
    job = TrainingJob(workload, iterations=20, **options)
    start_s = machine.clock()
    job.run()
    trace = recorder.trace(gpus[0].uuid, start_s, machine.clock())
    recorder.stop()
    marks = np.array(job.marks)
    seconds = float(np.diff(marks).mean())
    spans = pl.DataFrame({"start_s": marks[:-1], "end_s": marks[1:]})
    phases = catalogue.iteration(machine.card(0), job.workload, job.batch_size)
    waits_s = sum(phase.time_s for phase in phases if phase.load is None) * options.get("accumulate", 1)
    idle = fold.idle_share(trace, DetectedPeriod("iteration", seconds, 0.0, 1.0, marks[0], 1.0), spans)
    assert idle is not None
    assert idle.share == pytest.approx(waits_s / seconds, abs=0.012)
