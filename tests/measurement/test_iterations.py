"""From a measured window to its iterations, marked by a simulated training or found in the power trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import workbench
from workbench.errors import MeasurementError, UsageError
from workbench.logbook.report import describe_iterations
from workbench.logbook.store import Store
from workbench.measurement import iterations as counting
from workbench.measurement import session as sessions
from workbench.measurement.blocks import BlockResult
from workbench.measurement.iterations import count, from_stored, pooled
from workbench.measurement.meter import Meter
from workbench.periods import detect
from workbench.periods.segment import SegmentedIterations
from workbench.records import DetectedPeriod, Measurement, Periods, Window
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

Simulated = Callable[..., Machine]


@pytest.fixture
def session(simulated: Simulated) -> Iterator[Callable[[str], Machine]]:
    sessions.current().close()

    def begin(cards: str = "V100") -> Machine:
        machine = simulated(cards, stepped=True)
        _ = sessions.current().meter
        machine.step(3.0)
        return machine

    yield begin
    sessions.current().close()


def finds(monkeypatch: pytest.MonkeyPatch, periods: Periods) -> None:
    """Replace the detector, which has its own tests: here only the use of its answer counts."""
    monkeypatch.setattr(detect, "find_periods", lambda trace: periods)


def sure(seconds: float, phase_s: float) -> Periods:
    return Periods((DetectedPeriod("iteration", seconds, 0.01 * seconds, 0.95, phase_s, 0.8),), sure=True)


def trained(
    machine: Machine, *, iterations: int = 30, marked: bool = False, **options: object
) -> tuple[BlockResult, TrainingJob]:
    job = TrainingJob("imagenet", 128, iterations=iterations, machine=machine, **options)  # type: ignore[arg-type]
    with workbench.measure("train") as result:
        for _ in job:
            if marked:
                workbench.step()
    machine.step(0.5)
    return result, job


def test_marks_and_detection_agree_on_a_training(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session()
    result, job = trained(machine, marked=True)
    marked = result.measurement.iterations
    true_s = (job.marks[-1] - job.marks[0]) / (len(job.marks) - 1)
    assert marked is not None
    assert marked.source == "marks"
    assert marked.time_s == pytest.approx(true_s, rel=0.01)

    finds(monkeypatch, sure(1.01 * true_s, job.marks[3]))
    again, job = trained(machine)
    detected = again.measurement.iterations
    assert detected is not None
    assert (detected.source, detected.sure) == ("detected", True)
    assert detected.count == pytest.approx(30, abs=1)
    assert detected.time_s == pytest.approx(true_s, rel=0.01)
    assert detected.time_uncertainty_s is not None
    assert abs(detected.time_s - true_s) < max(detected.time_uncertainty_s, 0.003 * true_s)
    assert detected.energy_j == pytest.approx(marked.energy_j, rel=0.01)
    assert again.periods.sure


@pytest.mark.parametrize(
    ("cards", "workload"), [("V100", "cifar100"), ("A100", "imagenet"), ("A100", "squad")]
)
def test_iterations_of_few_readings_each_are_followed_with_their_neighbours(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, cards: str, workload: str
) -> None:
    """The A100's sensor refreshes ten times per second and measures a quarter of the time: three readings per
    iteration, none alike.
    """
    machine = session(cards)
    job = TrainingJob(workload, iterations=10**6, machine=machine)
    with workbench.measure() as result:
        begun_s = machine.clock()
        for _ in job:
            if machine.clock() - begun_s > 25.0:
                break
    machine.step(0.5)
    lost_s = sum(event.end_s - event.start_s for event in job.events)
    true_s = (job.marks[-1] - job.marks[0] - lost_s) / (len(job.marks) - 1)
    finds(monkeypatch, sure(1.01 * true_s, job.marks[len(job.marks) // 2]))
    found = result.measurement.iterations
    assert found is not None
    assert found.time_s == pytest.approx(true_s, rel=0.005)
    assert found.count == pytest.approx(len(job.marks), rel=0.06)


@pytest.mark.parametrize("cards", ["V100", "A100", "P100"])
def test_the_rows_add_up_to_the_measured_total(session: Callable[..., Machine], cards: str) -> None:
    """Also on a card without a counter, and in a window that begins and ends within steps of one."""
    result, _ = trained(session(cards), iterations=12, marked=True)
    assert result.iterations["energy_j"].sum() == pytest.approx(result.energy_j, rel=1e-6)
    assert result.iterations["time_s"].sum() == pytest.approx(result.time_s, rel=1e-9)


def test_energies_of_iterations_are_the_true_ones(session: Callable[..., Machine]) -> None:
    machine = session()
    result, _ = trained(machine, marked=True)
    rows = result.iterations.filter(pl.col("kind") == "iteration")
    assert result.opened is not None
    begun_s = result.opened.start_s
    true_j = [
        machine.true_energy_j(0, begun_s + a, begun_s + b) * machine.gain(0)
        for a, b in rows.select("start_s", "end_s").rows()
    ]
    assert np.abs(rows["energy_j"].to_numpy() / np.array(true_j) - 1).max() < 0.03
    summary = result.measurement.iterations
    assert summary is not None
    assert summary.energy_uncertainty_j is not None
    assert abs(summary.energy_j - np.mean(true_j)) < summary.energy_uncertainty_j  # type: ignore[operator]


def test_energies_of_several_gpus_are_summed_and_the_busiest_has_the_period(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session("V100,A100")
    asked: list[float] = []

    def find(trace: pl.DataFrame) -> Periods:
        asked.append(float(trace["power_w"].mean()))  # type: ignore[arg-type]
        return sure(0.36, 4.0)

    monkeypatch.setattr(detect, "find_periods", find)
    result, _ = trained(machine)
    assert result.iterations["energy_j"].sum() == pytest.approx(result.energy_j)
    powers = [gpu.mean_power_w for gpu in result.measurement.gpus]
    assert asked[0] == pytest.approx(max(power for power in powers if power is not None), rel=0.1)


def test_phases_are_apart_from_iterations(session: Callable[..., Machine]) -> None:
    machine = session()
    with workbench.measure() as result:
        for _ in range(3):
            for _ in range(4):
                machine.step(0.25)
                workbench.step()
            with workbench.phase("evaluation"):
                machine.step(1.0)
    machine.step(0.2)
    summary = result.measurement.iterations
    assert summary is not None
    assert (summary.count, summary.time_s) == (12, pytest.approx(0.25, rel=1e-3))
    (evaluation,) = (level for level in summary.levels if level.name == "evaluation")
    assert (evaluation.count, evaluation.each_s, evaluation.every) == (3, pytest.approx(1.0), 4.0)
    assert evaluation.each_j == pytest.approx(
        evaluation.time_s / 3 * result.energy_j / result.time_s, rel=0.05
    )


def test_a_tracked_loop_reports_the_window_around_it(session: Callable[..., Machine]) -> None:
    machine = session()
    with workbench.measure() as result:
        for _ in (loop := workbench.track(range(5))):
            machine.step(0.3)
    machine.step(0.2)
    outer, inner = result.measurement.iterations, loop.measurement.iterations
    assert outer is not None
    assert inner is not None
    assert (outer.count, outer.time_s, outer.source) == (5, pytest.approx(0.3), "marks")
    assert inner == replace(
        outer, energy_j=inner.energy_j, energy_uncertainty_j=inner.energy_uncertainty_j, levels=inner.levels
    )


def test_a_guess_can_be_looked_at_and_is_in_no_mean(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session()
    finds(monkeypatch, replace(sure(0.36, 4.0), sure=False, reason="too short: 11 s"))
    result, _ = trained(machine)
    summary = result.measurement.iterations
    assert summary is not None
    assert (summary.count, summary.time_s, summary.sure, summary.reason) == (
        0, None, False, "too short: 11 s",
    )
    assert summary.detected_s == pytest.approx(0.36, rel=0.05)
    assert result.iterations["kind"].to_list().count("iteration") > 20


@pytest.mark.parametrize(
    ("cards", "workload", "batch_size"), [("V100", "librispeech", 24), ("P100", "imagenet", 128)]
)
def test_without_marks_the_shipped_detector_reports_what_marks_would(
    session: Callable[..., Machine], cards: str, workload: str, batch_size: int
) -> None:
    machine = session(cards)
    job = TrainingJob(workload, batch_size, iterations=25, machine=machine)
    with workbench.measure("train") as result:
        job.run()
    machine.step(0.5)
    true_s = (job.marks[-1] - job.marks[0]) / (len(job.marks) - 1)
    true_j = machine.true_energy_j(0, job.marks[0], job.marks[-1]) * machine.gain(0) / (len(job.marks) - 1)
    found = result.measurement.iterations
    assert found is not None
    assert (found.source, found.sure, found.reason) == ("detected", True, "")
    assert found.count == pytest.approx(25, abs=1)
    assert found.time_s == pytest.approx(true_s, rel=0.01)
    assert found.energy_j == pytest.approx(true_j, rel=0.02)

    with workbench.measure("marked") as marked:
        for _ in TrainingJob(workload, batch_size, iterations=25, machine=machine):
            workbench.step()
    machine.step(0.5)
    reported = marked.measurement.iterations
    assert reported is not None
    assert reported.source == "marks"
    assert reported.detected_s == pytest.approx(reported.time_s, rel=0.02)
    assert "off the reported steps" in reported.check


@pytest.mark.parametrize("cards", ["V100", "A100", "P100"])
def test_a_gpu_at_rest_has_no_iterations(session: Callable[..., Machine], cards: str) -> None:
    machine = session(cards)
    with workbench.measure("rest") as result:
        machine.step(20.0)
    machine.step(0.5)
    found = result.measurement.iterations
    assert found is not None
    assert (found.count, found.time_s, found.sure, found.detected_s) == (0, None, False, None)
    assert found.reason
    assert result.iterations["kind"].to_list() == ["other"]


def test_a_short_window_is_not_kept_waiting(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session()
    finds(monkeypatch, Periods(reason="asked"))
    with workbench.measure() as result:
        machine.step(2.9)
    machine.step(0.2)
    assert result.measurement.iterations is None
    assert result.periods.reason == "asked"  # who asks is answered
    assert result.iterations["kind"].to_list() == ["other"]
    with workbench.measure() as longer:
        machine.step(3.1)
    machine.step(0.2)
    assert longer.measurement.iterations is not None
    assert (longer.measurement.iterations.count, longer.measurement.iterations.reason) == (0, "asked")


def test_looking_can_be_forbidden_and_asked_for(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session()
    finds(monkeypatch, Periods(reason="asked"))
    meter = sessions.current().meter
    window = meter.open()
    machine.step(4.0)
    window = meter.close(window)
    measurement = meter.measure(window)
    assert window.end_s is not None
    timelines = {meter.devices[0].uuid: meter.timeline(0, window.start_s, window.end_s, window)}
    assert count(window, measurement, timelines, detect_periods=False) is None
    found = count(window, measurement, timelines, detect_periods=True)
    assert found is not None
    assert found.summary.reason == "asked"
    assert count(window, replace(measurement, gpus=()), {}) is None
    unseen = count(window, measurement, {})
    assert unseen is not None
    assert ("not recorded" in unseen.summary.reason, unseen.frame.height) == (True, 0)


def test_marks_count_where_no_gpu_is() -> None:
    clock = iter([0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 3.0]).__next__
    meter = Meter([])
    meter.clock = clock
    window = meter.open(sync=False)
    for _ in range(3):
        workbench.step()
    window = meter.close(window, sync=False)
    found = meter.count(window, Measurement("i", "", 0.0, 3.0))
    assert found is not None
    assert (found.summary.time_s, found.summary.energy_j, found.periods) == (1.0, None, None)


def test_an_error_of_the_detector_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: pl.DataFrame) -> Periods:
        raise UsageError("backwards")

    monkeypatch.setattr(detect, "find_periods", fail)
    assert counting.detect(pl.DataFrame({"time_s": [0.0, 1.0], "power_w": [1.0, 2.0]})).reason == "backwards"


def test_of_a_long_trace_the_end_is_looked_at_and_all_of_it_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.arange(0.0, 400.0, 0.1)
    trace = pl.DataFrame(
        {"time_s": times, "power_w": np.where(times % 2.0 < 1.4, 200.0, 60.0), "uuid": "GPU-1"}
    )
    observed: list[float] = []

    def find(part: pl.DataFrame) -> Periods:
        observed.append(float(part["time_s"][0]))
        return sure(2.01, 390.0)

    monkeypatch.setattr(detect, "find_periods", find)
    found = from_stored(trace)
    assert observed == [pytest.approx(399.9 - counting.SEARCH_S, abs=0.11)]
    assert found.summary.count == pytest.approx(199, abs=1)
    assert found.summary.time_s == pytest.approx(2.0, abs=0.002)


def test_runs_of_one_cell_are_counted_together(session: Callable[..., Machine]) -> None:
    machine = session()
    results = [trained(machine, iterations=number, marked=True)[0] for number in (6, 9)]
    whole = pooled([result.found for result in results], [result.measurement for result in results])
    assert whole.summary.count == sum(result.found.summary.count for result in results)
    assert whole.frame["iteration"].drop_nulls().is_unique().all()
    assert whole.frame["energy_j"].sum() == pytest.approx(sum(result.energy_j or 0.0 for result in results))
    found = results[0].found
    assert pooled([found], [results[0].measurement]) is found


def test_a_stored_measurement_is_looked_at_again(
    session: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = session()
    meter, store = sessions.current().meter, Store()
    window = meter.open("train")
    job = TrainingJob("imagenet", 128, iterations=20, machine=machine)
    for _ in job:
        workbench.step()
    window = meter.close(window)
    machine.step(0.6)
    measurement = meter.measure(window)
    found = meter.count(window, measurement)
    assert found is not None
    marked = replace(measurement, iterations=found.summary)
    assert sessions.keep(marked, window, meter, store, found) == []
    finds(monkeypatch, sure(0.36, job.marks[5]))
    again = workbench.iterations_of("train")
    assert again.frame.equals(found.since(window.start_s).frame)
    assert again.summary == found.summary
    assert again.periods is not None
    assert again.periods.iteration is not None
    assert again.periods.iteration.period_s == 0.36
    (whole,) = again.frame.select(pl.col("end_s").max() - pl.col("start_s").min()).row(0)
    assert whole == pytest.approx(measurement.time_s)
    detected = workbench.iterations_of(replace(marked, iterations=None))
    assert detected.summary.source == "detected"
    assert detected.frame["time_s"].sum() == pytest.approx(
        measurement.time_s, abs=0.03
    )  # not the seconds around it that are kept too
    assert detected.summary.time_s == pytest.approx(again.summary.time_s, rel=0.02)


def test_a_trace_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    Store().save(Measurement("i", "old", 0.0, 3.0))
    with pytest.raises(MeasurementError, match="'old'"):
        workbench.iterations_of("old")
    with pytest.raises(MeasurementError, match="0 rows"):
        from_stored(pl.DataFrame(schema={"time_s": pl.Float64, "power_w": pl.Float64}))


def test_a_damaged_trace_of_another_time_than_its_measurement_is_reported() -> None:
    readings = pl.DataFrame({"time_s": np.arange(0.0, 20.0, 0.1), "power_w": 200.0})
    frame = pl.DataFrame({"start_s": [30.0], "end_s": [40.0]})
    for trace, kept in ((readings, frame), (readings.reverse(), None)):
        with pytest.raises(MeasurementError, match="not of the same time"):
            from_stored(trace, kept)


def test_a_block_without_gpu_and_marks_has_no_iterations() -> None:
    meter = Meter([])
    with BlockResult(meter) as result:
        pass
    with pytest.raises(MeasurementError, match=r"workbench\.step\(\)"):
        _ = result.iterations
    assert isinstance(result.closed, Window)


@pytest.mark.parametrize(
    ("cards", "before", "after"),
    [
        ("V100", None, workbench.Setting(power_limit_w=150)),
        ("A100", None, workbench.Setting(sm_clock_mhz=900)),
        ("V100", workbench.Setting(power_limit_w=120), workbench.Setting(power_limit_w=250)),
    ],
)
def test_iterations_under_each_setting_are_counted(
    session: Callable[..., Machine], cards: str, before: workbench.Setting | None, after: workbench.Setting
) -> None:
    """One period would leave the iterations before the change, or after it, to "other"."""
    machine = session(cards)
    job = TrainingJob("imagenet", 256, iterations=100, machine=machine)
    with contextlib.ExitStack() as held:
        if before is not None:
            held.enter_context(workbench.gpu_settings(before))
        with workbench.measure("train") as result:
            for number, _ in enumerate(job):
                if number == 50:
                    held.enter_context(workbench.gpu_settings(after))
        machine.step(0.5)
        found = result.measurement.iterations
    assert found is not None
    assert (found.source, found.sure) == ("detected", True)
    assert found.count == pytest.approx(100, abs=2)
    under = [each for each in found.levels if each.setting]
    lengths = np.diff(job.marks)
    assert len(under) == 2
    for each, true_s in zip(under, (lengths[5:48].mean(), lengths[52:].mean()), strict=True):
        assert each.each_s == pytest.approx(true_s, rel=0.02)
        assert each.count == pytest.approx(50, abs=3)
    whole = found.levels[0]
    assert whole.name == "iteration"
    assert sum(each.energy_j or 0.0 for each in under) == pytest.approx(whole.energy_j)
    assert sum(each.count for each in under) == whole.count == found.count
    assert result.iterations["energy_j"].sum() == pytest.approx(result.energy_j)
    assert under[0].each_j != pytest.approx(under[1].each_j, rel=0.1)
    assert f"J at {under[1].setting}" in describe_iterations(found)


def test_settings_that_come_back_share_a_period(session: Callable[..., Machine]) -> None:
    """As a search leaves them: two limits in turn, the second too shortly for a look at each of its parts."""
    machine = session()
    job = TrainingJob("imagenet", 256, iterations=120, machine=machine)
    with workbench.measure("train") as result, workbench.gpu_settings(power_limit_w=250):
        for number, _ in enumerate(job):
            if number % 40 in (25, 35):
                _ = sessions.current().set_power_limit(
                    sessions.current().meter.devices[0].uuid, 160.0 if number % 40 == 25 else 250.0
                )
    machine.step(0.5)
    found = result.measurement.iterations
    assert found is not None
    assert found.sure
    assert found.count == pytest.approx(120, abs=4)
    under = {each.setting: each for each in found.levels if each.setting}
    assert sorted(under) == ["160 W", "250 W"]
    lengths = np.diff(job.marks)
    slow = np.isin(np.arange(len(lengths)) % 40, range(27, 34))
    assert under["160 W"].each_s == pytest.approx(lengths[slow].mean(), rel=0.03)
    assert under["160 W"].count == pytest.approx(30, abs=4)


def stepped(number: int, first_w: float, then_w: float) -> SegmentedIterations:
    """A run of 40 s, with another limit after 20 s."""
    times = np.arange(0.0, 40.0, 0.05)
    limit = np.where(times < 20, first_w, then_w)
    length = np.where(limit < 200, 1.3, 0.9)
    power = np.where(times % 20 % length < 0.7 * length, 220.0, 90.0) if first_w != then_w else (
        np.where(times % length < 0.7 * length, 220.0, 90.0))
    power += np.random.default_rng(number).normal(0.0, 2.0, len(times)) - 0.4 * (250 - limit)
    return from_stored(pl.DataFrame({
        "time_s": 50.0 * number + times, "power_w": power, "power_limit_w": limit,
    }))


RUNS = [Measurement(str(number), "cell", 0.0, 40.0) for number in range(2)]


@pytest.mark.parametrize(
    "limits_w", [((250, 150), (250, 150)), ((250, 150), (250, 250)), ((250, 250), (250, 150)),
                 ((250, 250), (150, 150))],
)
def test_repeats_keep_what_each_setting_costs(limits_w: Sequence[tuple[float, float]]) -> None:
    """Whether a limit changed inside each of them, inside one, or in between."""
    founds = [stepped(number, *pair_w) for number, pair_w in enumerate(limits_w)]
    together = pooled(founds, RUNS).summary
    under = {each.setting: each for each in together.levels if each.setting}
    assert list(under) == ["250 W", "150 W"]
    assert [each.each_s for each in under.values()] == pytest.approx([0.9, 1.3], rel=0.03)
    assert sum(each.count for each in under.values()) == together.count


def test_a_repeat_under_an_unknown_setting_is_counted_apart() -> None:
    founds = [stepped(0, 250, 150), replace(stepped(1, 250, 250), parts=())]
    under = {each.setting: each for each in pooled(founds, RUNS).summary.levels if each.setting}
    assert list(under) == ["250 W", "150 W", "an unknown setting"]
    same = pooled([replace(found, parts=()) for found in founds], RUNS)
    assert not [each for each in same.summary.levels if each.setting]
    assert not [each for each in pooled([stepped(0, 250, 250), stepped(1, 250, 250)], RUNS).summary.levels
                if each.setting]
