"""A tracker finds the iteration, follows it and notices changes. It reports when there is nothing to find."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
import pytest

from benchmarks.period_live import follow, live
from workbench.device.discovery import open_device
from workbench.measurement.follow import Following
from workbench.measurement.recorder import Recorder, as_rows
from workbench.periods.detect import find_periods
from workbench.periods.online.buffer import Memory
from workbench.periods.online.search import Search
from workbench.periods.tracker import PeriodTracker
from workbench.records import DetectedPeriod, Periods, Setting
from workbench.samples import ROWS
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

Simulated = Callable[..., Machine]
Rows = np.ndarray


def plain(trace: pl.DataFrame) -> Periods:
    """A plain detector (McLeod's normalised autocorrelation): these tests are about the tracker, not about
    detection.
    """
    known = trace.select("time_s", "power_w").drop_nulls()
    time_s, power_w = known["time_s"].to_numpy(), known["power_w"].to_numpy()
    step_s = float(np.median(np.diff(time_s)))
    even = np.interp(np.arange(time_s[0], time_s[-1], step_s), time_s, power_w)
    even -= even.mean()
    n = len(even)
    squares = np.concatenate([[0.0], np.cumsum(even**2)])
    lags = np.arange(1, n // 2)
    likeness = np.array(
        [2 * even[: n - k] @ even[k:] / max(squares[n - k] + squares[n] - squares[k], 1e-9) for k in lags]
    )
    below = np.flatnonzero(likeness < 0)
    if not len(below):
        return Periods(reason="no period", longer_s=0.0)
    peaks = [
        k for k in range(below[0] + 1, len(lags) - 1) if likeness[k - 1] < likeness[k] >= likeness[k + 1]
    ]
    top = max((likeness[k] for k in peaks), default=0.0)
    if top < 0.45:
        return Periods(reason="no period", longer_s=0.0)
    k = next(k for k in peaks if likeness[k] >= 0.85 * top)
    a, b, c = likeness[k - 1 : k + 2]
    seconds = (lags[k] + 0.5 * (a - c) / (a - 2 * b + c)) * step_s
    return Periods((DetectedPeriod("iteration", seconds, 0.01 * seconds, 0.9, float(time_s[0]), float(b)),), sure=True)


def says(seconds: float, calls: list[float] | None = None) -> Callable[[pl.DataFrame], Periods]:
    """A detector that gives one answer to everything, and takes note of being asked."""

    def detect(trace: pl.DataFrame) -> Periods:
        if calls is not None:
            calls.append(float(trace["time_s"][-1]))
        return Periods(
            (DetectedPeriod("iteration", seconds, 0.01 * seconds, 0.9, float(trace["time_s"][0]), 0.9),), sure=True
        )

    return detect


def rows_of(time_s: Rows, power_w: Rows, **others: object) -> Rows:
    columns = {
        "power_limit_w": 300.0,
        "sm_clock_mhz": 1400.0,
        "utilisation": 1.0,
        "power_tick_s": time_s,
        **others,
    }
    full = {name: np.broadcast_to(np.asarray(values, float), len(time_s)) for name, values in columns.items()}
    return as_rows(pl.DataFrame({"time_s": time_s, "power_w": power_w, **full}))


def wave(phase: Rows) -> Rows:
    """Power over an iteration of period 1: a forward pass, a heavier backward pass, a wait for data."""
    into = phase % 1.0
    return np.select([into < 0.3, into < 0.8], [180.0, 260.0], 90.0)


def watched(tracker: PeriodTracker, rows: Rows, every_s: float = 0.25) -> Iterator[float]:
    """Feed rows a few times per second, as a live view does; yields the time after each."""
    times = rows["time_s"]
    at = np.searchsorted(times, np.arange(times[0], times[-1] + every_s, every_s))
    for low, high in itertools.pairwise(np.unique(np.append(at, len(times)))):
        tracker.feed(rows[low:high])
        yield float(times[high - 1])


class Training:
    """Runs jobs on a stepped machine and lets a tracker follow."""

    def __init__(self, machine: Machine, detect: Callable[[pl.DataFrame], Periods] = plain) -> None:
        self.machine, self.device = machine, open_device()
        self.following = Following(
            Recorder([self.device]), self.device.uuid, make=lambda: PeriodTracker(detect)
        )
        self.tracker = self.following.tracker
        self.seen: list[tuple[float, str, float | None]] = []

    def observe(self) -> None:
        tracker = self.following.update()
        level = tracker.periods.main if tracker.periods.main_sure else None
        self.seen.append((self.machine.clock(), tracker.state, level.period_s if level else None))

    def idle(self, seconds: float) -> None:
        for _ in range(int(4 * seconds)):
            self.machine.step(0.25)
            self.observe()

    def train(self, workload: str, batch_size: int, seconds: float, **options: object) -> TrainingJob:
        begin_s = self.machine.clock()
        job = TrainingJob(workload, batch_size, iterations=10**6, machine=self.machine, **options)  # type: ignore[arg-type]
        for _ in job:
            self.observe()
            if self.machine.clock() - begin_s > seconds:
                break
        return job

    def states(self, from_s: float, to_s: float = np.inf) -> set[str]:
        return {state for at_s, state, _ in self.seen if from_s <= at_s <= to_s}

    def locked_s(self, seconds: float, from_s: float) -> float:
        """When the tracker was first sure of about this period, after a time."""
        return next(
            at_s
            for at_s, _, known_s in self.seen
            if at_s >= from_s and known_s and abs(known_s / seconds - 1) < 0.05
        )


@pytest.fixture
def training(simulated: Simulated) -> Training:
    return Training(simulated("V100", stepped=True, seed=2))  # the plain detector is not right with every luck


def typical_s(job: TrainingJob, last: int = 20) -> float:
    return float(np.median(np.diff(job.marks)[-last:]))


# looking


@pytest.mark.parametrize(
    ("card", "workload", "batch_size"),
    [
        ("V100", "imagenet", 256),
        ("V100", "squad", 32),
        ("V100", "librispeech", 48),
        ("A100", "librispeech", 96),
        ("H100", "librispeech", 192),
    ],
)
def test_the_iteration_of_a_training_is_found_and_followed(
    simulated: Simulated, card: str, workload: str, batch_size: int
) -> None:
    training = Training(simulated(card, stepped=True))
    job = training.train(workload, batch_size, 50.0, evaluate=False)
    true_s = float(np.mean(np.diff(job.marks)))
    assert training.tracker.state == "locked"
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(true_s, rel=0.02)
    found_s = training.locked_s(true_s, 0.0) - job.marks[0]
    assert found_s < max(6.0, 6 * true_s)
    assert training.tracker.text.startswith("one iteration takes ")


@pytest.mark.slow
def test_boundaries_stay_on_the_same_point_of_the_iteration(training: Training) -> None:
    """Iterations vary by a hundredth each, so a fixed raster would be lost after some hundred of them."""
    job, late = TrainingJob("squad", 32, iterations=200, machine=training.machine, evaluate=False), []
    for batch in job:
        training.observe()
        level = training.tracker.periods.iteration
        if batch.iteration > 20 and level is not None:
            marks = np.array(job.marks)
            near_s = marks[np.argmin(np.abs(marks - level.phase_s))]
            late.append((level.phase_s - near_s) / level.period_s)
    around = np.exp(2j * np.pi * np.array(late))
    spread = np.sqrt(-2 * np.log(np.abs(around.mean()))) / (
        2 * np.pi
    )  # circular standard deviation, in periods
    assert spread < 0.05


def test_a_sure_detection_counts_after_a_second_one_agrees() -> None:
    answers = itertools.cycle([0.9, 1.7, 0.5, 2.6, 0.7, 1.2, 2.1])
    tracker = PeriodTracker(lambda trace: says(next(answers) if trace["time_s"][-1] < 6.0 else 1.0)(trace))
    time_s = np.arange(0, 6, 0.1)
    tracker.feed(rows_of(time_s, wave(time_s)))
    assert (tracker.state, tracker.periods.sure) == ("looking", False)
    assert "second measurement" in tracker.periods.reason
    assert tracker.periods.longer_s is not None
    assert 0 < tracker.periods.longer_s < 3
    time_s = np.arange(6, 12, 0.1)
    tracker.feed(rows_of(time_s, wave(time_s)))
    assert tracker.state == "locked"


def test_without_a_period_the_answer_is_no_and_the_looking_goes_on() -> None:
    rng = np.random.default_rng(4)
    time_s = np.arange(0, 300, 0.1)
    noise = np.zeros(len(time_s))
    for i in range(1, len(noise)):
        noise[i] = 0.9 * noise[i - 1] + rng.normal(0, 10)
    tracker = PeriodTracker(plain)
    states = {tracker.state for _ in watched(tracker, rows_of(time_s, 200 + noise))}
    assert states == {"looking", "none"}
    assert (tracker.state, tracker.periods.levels, tracker.text) == ("none", (), "no period")
    later_s = np.arange(300, 400, 0.1)
    tracker.feed(rows_of(later_s, wave(later_s / 2.0)))
    assert tracker.state == "locked"
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(2.0, rel=0.01)


def test_irregular_readings_with_holes_do_no_harm() -> None:
    rng = np.random.default_rng(5)
    time_s = np.cumsum(rng.uniform(0.04, 0.16, 1500))
    time_s = time_s[(time_s % 40 < 33) | (time_s < 20)]  # now and then nobody looks for seven seconds
    tracker = PeriodTracker(plain)
    states = [
        tracker.state
        for at_s in watched(tracker, rows_of(time_s, wave(time_s / 1.7) + rng.normal(0, 5, len(time_s))))
        if at_s > 15
    ]
    assert set(states) == {"locked"}
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(1.7, rel=0.01)


# keeping step


def test_drift_is_followed_without_asking_the_detector() -> None:
    """A period that grows from 1 to 1.25 s in five minutes; the detector would go on saying 1."""
    calls: list[float] = []
    tracker = PeriodTracker(says(1.0, calls))
    time_s = np.arange(0, 300, 0.1)
    phase = 1200 * np.log1p(time_s / 1200)  # its slope is 1 / (1 + time / 1200)
    worst = 0.0
    for at_s in watched(tracker, rows_of(time_s, wave(phase))):
        if at_s > 30:
            assert tracker.periods.iteration is not None
            worst = max(worst, abs(tracker.periods.iteration.period_s / (1 + at_s / 1200) - 1))
            assert tracker.state == "locked"
    assert worst < 0.025
    assert len(calls) < 20


def test_the_other_levels_are_carried_along() -> None:
    def detect(trace: pl.DataFrame) -> Periods:
        found = says(2.0)(trace).levels[0]
        return Periods(
            (DetectedPeriod("micro-step", 0.5, 0.01, 0.8, 0.0, 0.2), found, DetectedPeriod("cycle", 20.0, 0.1, 0.7, 0.0, 0.1)),
            sure=True,
        )

    tracker = PeriodTracker(detect)
    time_s = np.arange(0, 120, 0.1)
    tracker.feed(rows_of(time_s, wave(time_s / 2.06)))  # 3 % longer than the detector says
    micro, iteration, cycle = tracker.periods.levels
    assert iteration.period_s == pytest.approx(2.06, rel=0.005)
    assert (micro.period_s / 0.5, cycle.period_s / 20.0) == pytest.approx((iteration.period_s / 2.0,) * 2)


# changes


def test_a_power_limit_makes_a_new_period_which_is_found_within_five_iterations(training: Training) -> None:
    training.train("imagenet", 256, 25.0)
    changed_s = training.machine.clock()
    training.device.write(Setting(power_limit_w=150))
    job = training.train("imagenet", 256, 20.0)
    slow_s = typical_s(job)
    assert "changed" in training.states(changed_s)
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(slow_s, rel=0.03)
    assert training.locked_s(slow_s, changed_s) - changed_s < 5 * slow_s
    assert any("from 250 to 150 W" in note for note in training.tracker.periods.notes)


def test_a_power_limit_that_does_not_bind_changes_nothing(training: Training) -> None:
    training.train("squad", 8, 20.0, evaluate=False)
    before_s = training.machine.clock()
    low_w = 245.0
    training.device.write(Setting(power_limit_w=low_w))
    training.train("squad", 8, 15.0, evaluate=False)
    assert training.states(before_s) == {"locked"}


def test_a_locked_clock_scales_the_period(training: Training) -> None:
    training.train("imagenet", 256, 25.0)
    changed_s = training.machine.clock()
    training.device.write(Setting(sm_clock_mhz=900))
    job = training.train("imagenet", 256, 25.0)
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(typical_s(job), rel=0.03)
    assert training.locked_s(typical_s(job), changed_s) - changed_s < 8.0
    assert any("MHz" in note for note in training.tracker.periods.notes)


def test_another_batch_size_is_noticed(training: Training) -> None:
    training.train("imagenet", 256, 30.0)
    changed_s = training.machine.clock()
    job = training.train("imagenet", 128, 40.0)
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(typical_s(job), rel=0.02)
    # Without a pause or a changed setting it could be an evaluation, for a third of the time that the
    # training took.
    assert training.locked_s(typical_s(job), changed_s) - changed_s < 15.0
    assert training.tracker.state == "locked"


def test_another_workload_after_a_pause_is_noticed_quickly(training: Training) -> None:
    training.train("imagenet", 256, 30.0)
    training.idle(5.0)
    changed_s = training.machine.clock()
    job = training.train("librispeech", 48, 30.0)
    true_s = typical_s(job)
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(true_s, rel=0.03)
    assert training.locked_s(true_s, changed_s) - changed_s < max(6 * true_s, 8.0)


def test_data_from_before_a_change_is_not_mixed_in() -> None:
    observed: list[tuple[float, float]] = []

    def detect(trace: pl.DataFrame) -> Periods:
        observed.append((float(trace["time_s"][0]), float(trace["time_s"][-1])))
        return plain(trace)

    tracker = PeriodTracker(detect)
    time_s = np.arange(0, 80, 0.1)
    limit = np.where(time_s < 40, 300.0, 200.0)
    power = np.where(time_s < 40, wave(time_s), 0.7 * wave(time_s / 1.4))
    for _ in watched(tracker, rows_of(time_s, power, power_limit_w=limit)):
        pass
    after = [first for first, last in observed if last > 41]
    assert after
    assert min(after) >= 40.0
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(1.4, rel=0.01)


# what is no change


@pytest.mark.slow
def test_evaluations_are_held_and_reported(training: Training) -> None:
    job = training.train("cifar100", 1024, 60.0)
    assert len([event for event in job.events if event.kind == "evaluation"]) >= 6
    assert training.states(job.marks[0] + 6.0) == {"locked"}
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(typical_s(job, 300), rel=0.02)
    assert any("evaluations or checkpoints" in note for note in training.tracker.periods.notes)


def test_a_long_evaluation_with_a_period_of_its_own_is_held() -> None:
    time_s = np.arange(0, 200, 0.1)
    evaluates = (time_s > 120) & (time_s < 145)
    power = np.where(evaluates, 150 + 40 * np.sign(np.sin(2 * np.pi * time_s / 0.83)), wave(time_s / 1.3))
    tracker = PeriodTracker(plain)
    states, text = set(), set()
    for at_s in watched(tracker, rows_of(time_s, power)):
        if at_s > 20:
            states.add(tracker.state)
            if 130 < at_s < 144:
                text.add(tracker.text.rpartition(";")[2].lstrip().rpartition(" for ")[0])
    assert states == {"locked"}
    assert text == {"different readings"}
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(1.3, rel=0.01)


def test_a_pause_is_reported_and_the_same_iteration_resumes(training: Training) -> None:
    training.train("squad", 32, 25.0, evaluate=False)
    training.idle(20.0)
    assert training.tracker.text.startswith("paused")
    assert "one iteration took 0.6" in training.tracker.text
    again_s = training.machine.clock()
    job = training.train("squad", 32, 25.0, evaluate=False, seed=5)
    assert training.states(8.0) == {"locked"}
    assert training.tracker.periods.iteration is not None
    assert training.tracker.periods.iteration.period_s == pytest.approx(typical_s(job), rel=0.02)
    assert any(f"paused until {again_s:.0f}"[:-1] in note for note in training.tracker.periods.notes)


def test_an_idle_gpu_is_reported(training: Training) -> None:
    training.idle(20.0)
    assert training.tracker.text.endswith("idle for 20 s")
    assert "is idle" in training.tracker.periods.reason


# the guard against beats


def blinking(simulated: Simulated, card: str, seconds: float) -> PeriodTracker:
    """A load that goes on and off, followed through a card's own sensors for 40 s."""
    machine = simulated(card, stepped=True)
    machine.step(0.5)
    device = open_device()
    following = Following(Recorder([device]), device.uuid, make=lambda: PeriodTracker(plain))
    at_s = machine.clock()
    for _ in range(8):
        plan = [
            (seconds / 2, 280.0, 1400, 877, 1.0, 0.5, 0),
            (seconds / 2, 140.0, 1400, 877, 1.0, 0.5, 0),
        ] * round(5 / seconds)
        machine.state.publish(0, at_s, plan, (140.0, 1400, 877, 1.0, 0.5, 0))
        at_s += sum(part[0] for part in plan)
        machine.step(at_s - machine.clock())
        following.update()
    return following.tracker


@pytest.mark.parametrize(
    ("card", "seconds"), [("A100", 0.104), ("V100", 0.0205), ("H100", 0.052), ("RTX6000", 0.104)]
)
def test_a_beat_with_the_sensor_is_no_iteration(simulated: Simulated, card: str, seconds: float) -> None:
    tracker = blinking(simulated, card, seconds)
    assert tracker.state == "none"
    assert not tracker.periods.sure
    assert tracker.periods.reason.startswith("aliasing suspected")
    assert tracker.text == tracker.periods.reason


@pytest.mark.parametrize(
    ("card", "seconds"), [("A100", 3.5), ("A100", 0.9), ("V100", 0.104), ("RTX6000", 2.6)]
)
def test_a_period_confirmed_by_the_energy_counter_is_accepted(
    simulated: Simulated, card: str, seconds: float
) -> None:
    tracker = blinking(simulated, card, seconds)
    assert tracker.state == "locked"
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(seconds, rel=0.01)


def polled(
    seconds: float,
    *,
    obeys: bool,
    until_s: float = 60.0,
    detect: Callable[[pl.DataFrame], Periods] = plain,
    each: Callable[[PeriodTracker], None] = lambda tracker: None,
) -> tuple[PeriodTracker, list[float]]:
    """A sensor without steps of its own, read every 0.1 s or as the tracker requests; also the requests."""
    tracker, at_s, asked = PeriodTracker(detect), 0.0, []
    while at_s < until_s:
        wanted_s = tracker.wanted_interval_s
        if wanted_s is not None:
            asked.append(wanted_s)
        at_s += wanted_s if obeys and wanted_s is not None else 0.1
        tracker.feed(
            rows_of(
                np.array([at_s]),
                200 + 50 * np.sin(2 * np.pi * np.array([at_s / seconds])),
                power_tick_s=np.nan,
            )
        )
        each(tracker)
    return tracker, asked


@pytest.mark.slow
def test_near_the_limit_another_polling_interval_confirms_the_period() -> None:
    tracker, asked = polled(0.37, obeys=True)
    assert asked
    assert asked == pytest.approx([0.1 / 1.37] * len(asked))
    assert tracker.state == "locked"
    assert tracker.wanted_interval_s is None
    assert tracker.periods.iteration is not None
    assert tracker.periods.iteration.period_s == pytest.approx(0.37, rel=0.02)


@pytest.mark.slow
def test_a_beat_of_the_polling_moves_and_is_rejected() -> None:
    states, reasons = set(), set()

    def note(tracker: PeriodTracker) -> None:
        states.add(tracker.state)
        reasons.add(tracker.periods.reason)

    _, asked = polled(0.137, obeys=True, each=note)  # seen every 0.1 s it looks like 0.37 s
    assert asked
    assert "locked" not in states
    assert any("disappeared" in reason for reason in reasons)


def test_a_period_that_stays_at_another_polling_interval_needs_a_second_measurement() -> None:
    """A detector that is sure once, and of nothing before and after."""
    asked_at: list[float] = []

    def once(trace: pl.DataFrame) -> Periods:
        asked_at.append(float(trace["time_s"][-1]))
        return says(0.37)(trace) if len(asked_at) == 1 else Periods(reason="no period", longer_s=0.0)

    states: set[str] = set()
    tracker, asked = polled(
        0.37, obeys=True, until_s=20.0, detect=once, each=lambda tracker: states.add(tracker.state)
    )
    assert asked
    assert tracker.wanted_interval_s is None
    assert len(asked_at) > 2
    assert "locked" not in states


def test_too_few_readings_are_no_verdict_on_a_period_and_it_is_sampled_again() -> None:
    """Some readings fail at first, and another pace has hardly anything to be compared with."""
    kept, search, at_s, reasons, found = Memory(), Search(0.0, says(0.76)), 0.0, [], None
    while at_s < 30.0 and not (found is not None and found.sure):
        at_s += search.wanted_interval_s or 0.1
        time_s = np.array([at_s])
        power_w = np.nan if 0.35 < at_s < 0.85 else wave(time_s / 0.76)
        kept.add(rows_of(time_s, power_w, power_tick_s=np.nan))
        kept.next(at_s)
        found = search.step(kept, at_s)
        reasons += [found.reason] if found is not None else []
    assert found is not None
    assert found.sure
    assert any("too few readings" in reason for reason in reasons)
    assert not any("disappeared" in reason for reason in reasons)


def test_without_another_sampling_interval_it_stays_a_suspicion() -> None:
    tracker, asked = polled(0.37, obeys=False)
    assert asked
    assert (tracker.state, tracker.wanted_interval_s) == ("none", None)
    assert tracker.periods.reason.startswith("aliasing suspected: 0.37")
    assert "every 0.1 s" in tracker.periods.reason


def test_a_recorded_trace_can_be_followed_without_the_guard() -> None:
    time_s = np.arange(0, 60, 0.1)
    tracker = PeriodTracker(plain, guard=False)
    tracker.feed(rows_of(time_s, 200 + 50 * np.sin(2 * np.pi * time_s / 0.37), power_tick_s=np.nan))
    assert tracker.state == "locked"


# cost


def traced_bytes() -> int:
    """Memory that calls from this file still hold: threads that other tests left running allocate too."""
    return sum(
        trace.size for trace in tracemalloc.take_snapshot().traces
        if any(frame.filename == __file__ for frame in trace.traceback)
    )


@pytest.mark.slow
def test_memory_does_not_grow_after_an_hour_of_samples_and_hardly_anything_is_detected() -> None:
    calls: list[float] = []
    tracker = PeriodTracker(says(30.0, calls))

    def feed(first_s: int, end_s: int) -> None:
        time_s = np.arange(10 * first_s, 10 * end_s) / 10
        rows = rows_of(time_s, wave(time_s / 30.0))
        for first in range(0, len(rows), 200):
            tracker.feed(rows[first : first + 200])

    feed(0, 3600)
    tracemalloc.start(12)  # slow: only the time in which memory may not grow is traced
    try:
        feed(3600, 4200)
        before = traced_bytes()
        feed(4200, 6000)
        grown = traced_bytes() - before
    finally:
        tracemalloc.stop()
    assert tracker.state == "locked"
    assert before > 0
    assert abs(grown) < 4_000  # a reference to one row that is fed would hold 200 rows
    assert len(calls) < 18  # one in ten minutes, once the period is known


@pytest.mark.slow
def test_hours_without_a_period_stay_cheap() -> None:
    calls = 0

    def detect(trace: pl.DataFrame) -> Periods:
        nonlocal calls
        calls += 1
        assert trace.height <= 4096
        return Periods(reason="no period")

    tracker = PeriodTracker(detect)
    tracker.feed(rows_of(np.arange(72_000) / 10, np.full(72_000, 200.0)))
    assert calls < 150  # about one per minute
    assert tracker.state == "none"


def test_rows_that_come_twice_count_once() -> None:
    time_s = np.arange(0, 30, 0.1)
    rows = rows_of(time_s, wave(time_s / 1.1))
    once, twice = PeriodTracker(plain), PeriodTracker(plain)
    for low in range(0, 300, 5):
        once.feed(rows[low : low + 5])
        twice.feed(rows[max(0, low - 2) : low + 5])
    assert once.periods == twice.periods
    once.feed(np.empty(0, ROWS))
    assert once.periods == twice.periods


def test_the_version_grows_with_each_new_result() -> None:
    time_s = np.arange(0, 30, 0.1)
    tracker, before = PeriodTracker(plain), (0, Periods())
    for _ in watched(tracker, rows_of(time_s, wave(time_s / 1.1))):
        assert tracker.version >= before[0]
        if tracker.periods is not before[1]:
            assert tracker.version > before[0]
        before = tracker.version, tracker.periods


# with the detector that is shipped


def never_wrong(training: Training, *true_s: float) -> bool:
    return all(
        any(abs(known_s / each - 1) < 0.05 for each in true_s)
        for _, _, known_s in training.seen
        if known_s is not None
    )


@pytest.mark.parametrize(
    ("card", "workload", "batch_size"),
    [
        ("V100", "librispeech", 24),
        ("V100", "squad", 32),
        ("A100", "librispeech", 96),
        ("H100", "librispeech", 192),
        ("P100", "imagenet", 128),
    ],
)
def test_the_shipped_detector_locks_on_and_is_never_sure_of_anything_else(
    simulated: Simulated, card: str, workload: str, batch_size: int
) -> None:
    training = Training(simulated(card, stepped=True), find_periods)
    job = training.train(workload, batch_size, 40.0, evaluate=False)
    true_s = float(np.mean(np.diff(job.marks)))
    level = training.tracker.periods.iteration
    assert training.tracker.state == "locked"
    assert level is not None
    assert level.period_s == pytest.approx(true_s, rel=0.015)
    assert training.locked_s(true_s, 0.0) - job.marks[0] < 16 * max(1.0, true_s)
    for (
        at_s,
        _,
        known_s,
    ) in (
        training.seen
    ):  # beside the iterations so far: where the data gap is long, the first few may all be short
        if known_s is not None:
            assert known_s == pytest.approx(
                np.mean(np.diff([mark for mark in job.marks if mark <= at_s])), rel=0.05
            )


def test_the_shipped_detector_locks_on_again_under_another_power_limit(simulated: Simulated) -> None:
    training = Training(simulated("V100", stepped=True), find_periods)
    fast_s = typical_s(training.train("imagenet", 256, 25.0))
    changed_s = training.machine.clock()
    training.device.write(Setting(power_limit_w=150))
    slow_s = typical_s(training.train("imagenet", 256, 25.0))
    assert slow_s > 1.2 * fast_s
    assert training.locked_s(slow_s, changed_s) - changed_s < 16 * slow_s
    assert training.tracker.state == "locked"
    for at_s, _, known_s in training.seen:
        if known_s is not None and changed_s < at_s < changed_s + 16 * slow_s:
            assert 0.95 * fast_s < known_s < 1.05 * slow_s  # readings of both
        elif known_s is not None:
            assert min(abs(known_s / each - 1) for each in (fast_s, slow_s)) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(24, 48), (48, 24)])
def test_the_shipped_detector_locks_on_again_at_another_batch_size(
    simulated: Simulated, sizes: tuple[int, int]
) -> None:
    training = Training(simulated("V100", stepped=True), find_periods)
    before_s = typical_s(training.train("librispeech", sizes[0], 30.0))
    changed_s = training.machine.clock()
    after_s = typical_s(training.train("librispeech", sizes[1], 40.0))
    assert training.locked_s(after_s, changed_s) - changed_s < 16.0
    assert training.tracker.state == "locked"
    assert never_wrong(training, before_s, after_s)


def test_while_a_period_appears_all_of_it_is_analysed_soon() -> None:
    observed: list[tuple[float, float]] = []

    def likely(trace: pl.DataFrame) -> Periods:
        observed.append((float(trace["time_s"][0]), float(trace["time_s"][-1])))
        return Periods((DetectedPeriod("iteration", 22.0, 0.1, 0.4, 0.0, 0.9, 0.7),), reason="too short")

    time_s = np.arange(0.0, 120.0, 0.1)
    for _ in watched(PeriodTracker(likely, guard=False), rows_of(time_s, wave(time_s / 22.0))):
        pass
    late = [(first_s, last_s) for first_s, last_s in observed if last_s > 30]
    assert {first_s for first_s, _ in late} == {0.0}
    assert all(b / a < 1.3 for (_, a), (_, b) in itertools.pairwise(late))


# beats


@pytest.mark.parametrize("seed", [(4711, 1, 6), (4711, 1, 16), (4713, 1, 10)])
def test_a_beat_is_known_within_ten_seconds_and_never_followed(seed: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    row = follow(live(rng, beat=True), rng)
    assert row["followed_s"] is None
    assert row["doubted_s"] - row["named_s"] < 10.0


@pytest.mark.parametrize("seed", [(4713, 0, 2), (4713, 0, 3)])
def test_a_period_that_comes_as_predicted_at_another_pace_is_followed_by_its_eighth_period(
    seed: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(seed)
    row = follow(live(rng, beat=False), rng)
    assert row["followed_s"] < 8 * row["seen_s"]


# with a recorder


def test_following_asks_the_recorder_and_leaves_it_as_it_was(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100", stepped=True)
    device = open_device()
    recorder = Recorder([device])
    tracker = PeriodTracker(plain)
    following = Following(recorder, device.uuid, make=lambda: tracker)
    monkeypatch.setattr(PeriodTracker, "wanted_interval_s", 0.037)
    machine.step(1.0)
    assert following.update() is tracker
    machine.step(10.0)
    fast = recorder.rows(device.uuid, 2.0, 11.0)
    assert np.median(np.diff(fast["time_s"])) == pytest.approx(0.037, rel=0.05)
    following.end()
    machine.step(10.0)
    usual = recorder.rows(device.uuid, 12.0, 21.0)
    assert np.median(np.diff(usual["time_s"])) == pytest.approx(0.101, rel=0.01)
