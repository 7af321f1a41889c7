"""The period part of the live view and the inspection view, without a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.panels.listening import bundle
from workbench import trace as traces
from workbench.device.discovery import devices
from workbench.errors import UsageError
from workbench.logbook.quantities import format_seconds
from workbench.logbook.store import Store
from workbench.measurement import iterations as counting
from workbench.measurement.iterations import energies_of
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import Recorder
from workbench.measurement.session import keep
from workbench.panels._core.jupyter import has_widgets
from workbench.panels._core.svg import Picture
from workbench.panels._views.period.figure import draw_period
from workbench.panels._views.period.follower import PACE_S, PeriodFollower
from workbench.panels._views.period.model import PeriodView, period_view
from workbench.panels._views.period.panel import PeriodPanel, period
from workbench.panels._views.power import panel as power_panel
from workbench.panels._views.power.panel import PowerView
from workbench.panels._views.power.series import WINDOW_S
from workbench.periods.segment import SegmentedIterations, from_marks, iterations, per_iteration
from workbench.records import DetectedPeriod, Marks, Measurement, Periods
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

ONE = DetectedPeriod("iteration", 1.0, 0.01, 0.97, 0.0, 0.9)
MICRO = DetectedPeriod("micro-step", 0.25, 0.002, 0.9, 0.0, 0.5)
SURE = Periods((MICRO, ONE), sure=True)


def square(
    length_s: float = 20.0, *, every_s: float = 0.02, pause: tuple[float, float] | None = None
) -> pl.DataFrame:
    """Iterations of one second, three quarters at 250 W, with a little noise; idle in a pause."""
    times = np.arange(0.0, length_s, every_s)
    power = np.where(times % 1.0 < 0.75, 250.0, 50.0) + np.random.default_rng(1).normal(0, 0.5, len(times))
    if pause:
        power[(times >= pause[0]) & (times < pause[1])] = 120.0
    return pl.DataFrame({"time_s": times, "power_w": power})


class Tracker:
    """Finds the periods that a test gives."""

    def __init__(self) -> None:
        self.periods, self.version, self.state, self.since_s = Periods(reason="too short"), 0, "looking", -np.inf

    def find(self, periods: Periods) -> None:
        self.periods, self.version, self.state = (
            periods,
            self.version + 1,
            "locked" if periods.sure else "looking",
        )


class Following:
    """Takes the place of `following.Following`."""

    def __init__(self, recorder: Recorder, uuid: str, from_s: float) -> None:
        self.uuid, self.from_s, self.tracker, self.ended = uuid, from_s, Tracker(), False

    def update(self) -> Tracker:
        return self.tracker

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def watched(
    simulated: Callable[..., Machine],
) -> Iterator[Callable[..., tuple[PeriodFollower, Machine, list[Following]]]]:
    """A follower on a stepped machine, its source, and a processor that takes no time."""
    made: list[Recorder] = []

    def make(cards: str = "V100", **more: Any) -> tuple[PeriodFollower, Machine, list[Following]]:
        machine = simulated(cards, stepped=True)
        gpus = devices()
        recorder = Recorder(gpus)
        made.append(recorder)
        followed: list[Following] = []

        def follow(*arguments: Any) -> Following:
            followed.append(Following(*arguments))
            return followed[-1]

        more = {"follow": follow, **more}
        return PeriodFollower(recorder, gpus, recorder.clock(), **more), machine, followed

    yield make
    for recorder in made:
        recorder.stop()


def train(machine: Machine, **options: Any) -> TrainingJob:
    job = TrainingJob("imagenet", **{"iterations": 12, **options})
    job.run()
    return job


def periods_of(job: TrainingJob) -> Periods:
    """The job's true iteration in the form of a detector's answer."""
    seconds = float(np.diff(job.marks).mean())
    return Periods((DetectedPeriod("iteration", seconds, 0.004, 0.97, job.marks[0], 0.9),), sure=True)


# what is shown


def test_a_view_has_text_iterations_fold_and_spectrum() -> None:
    observed = period_view(square(), SURE, start_s=-5.0)
    assert observed.sure
    assert re.search(r" (99\d\.\d|1\.00\d) .* J, 97 % sure$", observed.headline)
    assert "24 % of each iteration" in observed.details[1]
    assert observed.level == ONE
    starts = [span.start_s for span in observed.spans]
    assert np.diff(starts) == pytest.approx(1.0, abs=0.03)
    assert 5.0 <= starts[0] <= 6.1  # on the view's clock
    assert observed.waits == pytest.approx((0.75, 1.0), abs=0.04)
    assert observed.shape[observed.shape[:, 0] < 0.7, 2] == pytest.approx(250.0, abs=2)
    assert np.isnan(observed.folded[:, 0]).sum() == len(observed.spans) - 1  # the pen is lifted between two
    assert observed.spectrum[np.argmax(observed.spectrum[:, 1]), 0] == pytest.approx(1.0, rel=0.02)


def test_a_pause_is_no_iteration() -> None:
    observed = period_view(square(30.0, pause=(12.0, 15.0)), SURE)
    (pause,) = [span for span in observed.spans if span.pause]
    assert (pause.start_s, pause.end_s) == pytest.approx((12.0, 15.0), abs=0.3)
    assert len([span for span in observed.spans if not span.pause]) >= 25


def test_a_wait_before_a_pause_counts_within_its_iteration_only() -> None:
    trace = square(30.0).with_columns(
        pl.when(pl.col("time_s").is_between(12.0, 15.0))
        .then(50.0)
        .otherwise(pl.col("power_w"))
        .alias("power_w")
    )
    assert "24 % of each" in period_view(trace, SURE).details[1]


def test_a_guess_is_marked_as_one_and_not_drawn_as_known() -> None:
    guess = Periods((ONE,), reason="aperiodic: no period stands out", longer_s=7.0)
    observed = period_view(square(), guess)
    assert all(part in observed.headline for part in ("Perhaps", "1.00 s (97 % sure)", guess.reason, "7 s more"))
    assert (observed.sure, observed.spans, observed.waits) == (False, (), None)
    assert len(observed.folded) > 0
    live = period_view(square(), guess, looking=True)
    assert live.headline.endswith(" 7 s more")
    assert guess.reason not in live.headline


def test_without_an_iteration_the_view_shows_the_reason_and_the_spectrum() -> None:
    reason = "flat: the power hardly changes"
    observed = period_view(square(), Periods(reason=reason))
    assert observed.headline == f"No iteration found: {reason}"
    assert (len(observed.folded), len(observed.shape), observed.level) == (0, 0, None)
    assert len(observed.spectrum) > 50


def test_another_level_can_be_folded() -> None:
    times = np.arange(0.0, 20.0, 0.01)
    power = np.where(times % 0.25 < 0.2, 250.0, 50.0) + np.where(
        times % 1.0 > 0.9, 20.0, 0.0
    )  # each fourth is a little different
    observed = period_view(pl.DataFrame({"time_s": times, "power_w": power}), SURE, level=MICRO)
    assert observed.level == MICRO
    assert re.search(r"micro-step takes 2(49|50)\.\d", observed.headline)
    assert np.nanmax(observed.folded[:, 0]) <= 0.25


def test_a_period_of_ones_own_is_laid_on_like_a_ruler() -> None:
    observed = period_view(square(), SURE, level=DetectedPeriod("own", 0.9, 0.0, 0.0, 0.0, 0.0))
    assert observed.headline.startswith("Folded at 900 ms")
    assert observed.cycle_name == "cycle"
    assert observed.marks[-1] == ("yours 900 ms", 0.9, True)
    assert not any("each iteration" in message for message in observed.details)  # no iteration is meant
    assert np.diff([span.start_s for span in observed.spans]) == pytest.approx(0.9)
    # The shape is blurred: at every phase some iterations were busy, at the right period none is at its end.
    assert observed.shape[:, 3].min() > 150.0
    assert period_view(square(), SURE).shape[:, 3].min() < 60.0


def test_the_spectrum_shows_the_marked_and_the_detected_iteration() -> None:
    marked = DetectedPeriod("iteration", 0.7389, 0.001, 1.0, 0.0, 0.0)
    observed = PeriodView(level=marked, levels=(DetectedPeriod("iteration", 0.185, 0.001, 0.9, 0.0, 0.9),))
    assert [(message, chosen) for message, _, chosen in observed.marks] == [("detected 185 ms", False), ("iteration 739 ms", True)]


def test_a_fast_long_trace_stays_a_small_message() -> None:
    fast = Periods((DetectedPeriod("iteration", 0.25, 0.001, 0.9, 0.0, 0.9),), sure=True)
    observed = period_view(square(WINDOW_S), fast)
    assert sum(table.nbytes for table in (observed.folded, observed.shape, observed.spectrum)) < 40_000


def test_marks_take_precedence_over_the_power_trace() -> None:
    trace, at = square(), tuple(np.arange(1.5, 19.0))
    frame = from_marks(Marks((at,)), energies=energies_of([trace]), within_s=(0.0, 20.0))
    known = SegmentedIterations(frame, per_iteration(frame, source="marks"), SURE)
    observed = period_view(trace, Periods(reason="too short"), known=known)
    assert observed.sure
    assert observed.headline.endswith(", reported by step()")
    assert [span.start_s for span in observed.spans] == pytest.approx(at[:-1])


@pytest.mark.parametrize(
    ("seconds", "error", "message"),
    [
        (0.4123, 0.0031, "412.3 ± 3.1 ms"),
        (12.34, 0.21, "12.34 ± 0.21 s"),
        (0.5, None, "500 ms"),
        (250.0, 31.0, "250 ± 31 s"),
    ],
)
def test_a_period_is_written_to_the_digit_that_its_error_has(
    seconds: float, error: float | None, message: str
) -> None:
    assert format_seconds(seconds, error) == message


# live


def test_news_come_when_something_changed_and_twice_a_second_at_most(watched: Any) -> None:
    follower, machine, followed = watched()
    machine.step(1.0)
    assert follower.update(machine.clock())
    assert follower.view.headline.startswith("Looking for")
    assert not follower.update(machine.clock())
    job = train(machine)
    followed[0].tracker.find(periods_of(job))
    assert follower.update(machine.clock())
    count = len(follower.view.spans)
    assert count >= 10
    machine.step(PACE_S / 2)
    followed[0].tracker.version += 1
    assert not follower.update(machine.clock())
    machine.step(PACE_S)
    assert follower.update(machine.clock())


def test_a_new_iteration_is_news_without_a_new_answer(watched: Any) -> None:
    follower, machine, followed = watched()
    follower.choose(0)
    job = train(machine, iterations=10)
    followed[0].tracker.find(periods_of(job))
    follower.update(machine.clock())
    before = len(follower.view.spans)
    train(machine, iterations=3)
    assert follower.update(machine.clock())
    assert len(follower.view.spans) > before
    assert not follower.update(machine.clock())


def test_iterations_from_before_the_window_stay_where_they_were_found(watched: Any) -> None:
    follower, machine, followed = watched()
    follower.choose(0)
    job = train(machine, iterations=70)
    followed[0].tracker.find(periods_of(job))
    follower.update(job.marks[-20])
    first = follower.view.spans[0]
    train(machine, iterations=60)
    follower.update(machine.clock())
    starts = np.array([span.start_s for span in follower.view.spans])
    assert follower.view.spans[0] == first
    assert np.diff(starts) == pytest.approx(np.diff(job.marks).mean(), abs=0.15)
    whole, late = (follower.message(whole=whole)[0] for whole in (True, False))
    assert whole["since"] is None
    assert whole["spans"] == len(starts) > late["spans"] == (starts >= late["since"] - 1e-6).sum()


def test_of_several_gpus_the_busiest_is_followed_until_another_is_chosen(watched: Any) -> None:
    follower, machine, followed = watched("V100,V100,V100")
    assert not follower.update(machine.clock())
    train(machine, iterations=5, gpu=2)
    assert follower.update(machine.clock())
    assert [each.uuid for each in followed] == [follower.devices[2].uuid]
    assert follower.message(whole=True)[0]["gpu"] == 2
    follower.choose(0)
    follower.choose(7)  # there is none
    assert [each.ended for each in followed] == [True, False]
    assert followed[1].from_s == pytest.approx(follower.start_s)  # from the start of the view on
    follower.end()
    assert followed[1].ended


def test_a_level_that_was_chosen_is_folded_from_then_on(watched: Any) -> None:
    follower, machine, followed = watched()
    follower.choose(0)
    (one,) = periods_of(train(machine)).levels
    half = DetectedPeriod("micro-step", one.period_s / 2, 0.002, 0.9, one.phase_s, 0.5)
    followed[0].tracker.find(Periods((half, one), sure=True))
    follower.update(machine.clock())
    assert follower.view.level == one
    follower.choose_level("micro-step")
    assert follower.update(machine.clock())
    assert follower.view.level == half


def test_at_the_end_the_picture_shows_what_the_measurement_found(watched: Any) -> None:
    follower, machine, _ = watched()
    job = train(machine, iterations=12)
    trace = follower.recorder.trace(follower.devices[0].uuid, follower.start_s, machine.clock())
    periods = periods_of(job)
    frame = iterations(trace, periods)
    follower.conclude(
        machine.clock(), SegmentedIterations(frame, per_iteration(frame, periods=periods), periods)
    )
    assert follower.view.level == periods.iteration
    assert follower.view.details[0].startswith("11 iterations")


def test_a_short_cell_shows_no_period(watched: Any) -> None:
    follower, machine, _ = watched()
    machine.step(1.5)
    follower.update(machine.clock())
    follower.conclude(machine.clock())
    assert follower.number is None


# in the power view


@pytest.fixture
def view(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A power view whose tracker finds what a test gives."""
    machine = simulated("V100", stepped=True)
    gpus = devices()
    recorder = Recorder(gpus)
    followed: list[Following] = []

    def follow(*arguments: Any) -> Following:
        followed.append(Following(*arguments))
        return followed[-1]

    follower = PeriodFollower(recorder, gpus, recorder.clock(), follow=follow)
    monkeypatch.setattr(power_panel, "PeriodFollower", lambda *_: follower)
    shown: Any = PowerView(recorder, gpus, label="train")
    shown.sent, shown.followed, shown.follower = [], followed, follower
    shown.send = lambda content, buffers=None: shown.sent.append((content, buffers or []))
    shown.machine = machine
    monkeypatch.setattr(counting, "detect", lambda trace: shown.followed[0].tracker.periods)
    yield shown
    shown.end()
    recorder.stop()
    shown.close()


def watch(view: Any, iterations: int) -> list[Any]:
    """The messages of a training: after five iterations its period is known."""
    job = TrainingJob("imagenet", iterations=iterations)
    messages = []
    for batch in job:
        if batch.iteration == 5:
            view.followed[0].tracker.find(periods_of(job))
        messages.append(view.changes())
    return messages


def test_the_iterations_travel_with_the_power_in_one_message(view: Any) -> None:
    reported = []
    for content, buffers in watch(view, 30):
        assert len(buffers) == 1
        if "period" in content:
            reported.append(content["period"])
            assert len(buffers[0]) == 4 * (5 * sum(content["counts"]) + 3 * reported[-1]["spans"])
            assert len(json.dumps(content)) < 60_000
            assert len(buffers[0]) < 60_000
    assert reported[-1]["sure"]
    assert reported[-1]["level"]["seconds"] == pytest.approx(0.70, rel=0.03)
    assert 10 < len(reported) < 30


def test_a_page_that_comes_late_gets_all_iterations(view: Any) -> None:
    watch(view, 20)
    view.receive({"kind": "hello", "n": 1})
    content = view.sent[-1][0]
    assert content["kind"] == "greeting"
    assert content["period"]["since"] is None
    assert content["period"]["spans"] == len(view.follower.view.spans) > 10


def test_an_error_in_the_period_part_leaves_the_power_visible(view: Any) -> None:
    view.machine.step(1.0)
    view.follower.update = lambda now_s: 1 / 0
    view.receive({"kind": "hello", "n": 1, "view": "a"})
    assert view.sent[-1][0]["kind"] == "greeting"
    assert "ZeroDivisionError" in view.sent[-1][0]["problem"]
    view.machine.step(1.0)
    assert sum(view.changes()[0]["counts"]) > 30
    assert "Power (W)" in view.svg()


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_that_is_left_has_the_iterations_and_needs_nothing(view: Any) -> None:
    watch(view, 25)
    view.finish("caption")
    svg = view.svg()
    message = texts(svg)
    assert any(re.search(r"iteration takes (69|70)\d\.\d ± ", text) for text in message)
    assert any(text.endswith("bands: iterations") for text in message)
    assert any(text.startswith("Spectrum") for text in message)
    assert "waits" in message
    for foreign in ("<script", "http:", "https:", "url(", "@import"):
        assert foreign not in svg.replace("http://www.w3.org/2000/svg", "")
    assert len(svg) < 60_000


def test_a_long_sentence_is_broken_into_lines_in_the_picture() -> None:
    long = (
        "aliasing suspected: 0.306 s may be the beat of something faster than 0.22 s, the shortest that this "
        "sensor can show"
    )
    unsure = Periods((ONE,), reason=long)
    picture = Picture("")
    draw_period(picture, period_view(square(), unsure), 0)
    message = texts(picture.svg())[1:]  # after the title
    assert message[0].startswith("Perhaps")
    assert message[1].endswith("sensor can show")
    assert all(len(line) <= 112 for line in message[:2])


def test_choosing_the_idle_one_of_two_gpus_sends_small_messages_of_finite_numbers(
    simulated: Callable[..., Machine],
) -> None:
    simulated("V100, V100", stepped=True)
    gpus = devices()
    recorder = Recorder(gpus)
    shown: Any = PowerView(recorder, gpus)
    reported = []
    for batch in TrainingJob("imagenet", iterations=24):
        if batch.iteration == 16:
            shown.receive({"kind": "follow", "n": 1, "gpu": 1})
        content, (buffer,) = shown.changes()
        if "period" in content:
            reported.append((content, np.frombuffer(buffer, np.float32)))
    assert [content["period"]["gpu"] for content, _ in reported[-2:]] == [1, 1]
    for content, values in reported[-2:]:
        assert len(values) < 6000
        assert np.isfinite(values[5 * sum(content["counts"]) :]).all()
        assert content["period"]["since"] in (None, 0.0)  # nothing of the other GPU's iterations is kept
        json.dumps(content, allow_nan=False)
    shown.end()
    recorder.stop()
    shown.close()


def test_without_the_period_part_no_period_is_sent(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100", stepped=True)
    recorder = Recorder(devices())
    shown: Any = PowerView(recorder, devices(), period=False)
    machine.step(3.0)
    assert not shown.snapshot()[0]["follows"]
    machine.step(1.0)
    assert "period" not in shown.changes()[0]
    assert not any(text.startswith("Spectrum") for text in texts(shown.svg()))
    shown.end()
    recorder.stop()
    shown.close()


# the inspection view


def test_a_frame_is_shown_as_a_picture_where_no_front_end_has_widgets() -> None:
    assert not has_widgets()
    shown = period(square())
    displayed = bundle(shown)
    assert set(displayed) == {"text/html", "text/plain"}
    assert displayed["text/plain"] == shown.summary()
    assert re.search(r" (99\d\.\d ± [\d.]+ ms|1\.00\d ± [\d.]+ s) and 20[12]\.\d", displayed["text/plain"])
    assert "Spectrum" in displayed["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle(period(square(), live=True))


def panel(frames: Any, **more: Any) -> tuple[PeriodPanel, list[Any]]:
    made, sent = PeriodPanel(frames, **more), []
    made.send = lambda content, buffers=None: sent.append((content, buffers or []))
    made.receive({"kind": "hello", "n": 1})
    return made, sent


def test_a_level_or_a_period_of_ones_own_is_folded_when_it_is_chosen() -> None:
    made, sent = panel({"": square()}, periods={"": SURE})
    content, buffers = sent[-1]
    assert (content["kind"], content["state"]) == ("greeting", "done")
    assert content["count"] == 1000
    assert len(buffers[0]) == 4 * (2 * 1000 + 3 * content["period"]["spans"])
    made.receive({"kind": "level", "n": 2, "name": "micro-step"})
    assert sent[-1][0]["period"]["level"] == {"name": "micro-step", "seconds": 0.25}
    made.receive({"kind": "seconds", "n": 3, "seconds": 2.0})
    assert sent[-1][0]["period"]["level"]["seconds"] == 2.0
    assert sent[-1][0]["period"]["headline"].startswith("Folded at 2.00 s")
    for wrong, why in (
        ({"kind": "level", "name": "epoch"}, "'epoch'.*micro-step, iteration"),
        ({"kind": "seconds", "seconds": 15.0}, "20 s .*9.99 s"),
    ):
        made.receive({"n": 4, **wrong})
        assert re.search(why, sent[-1][0]["text"])


def test_of_several_gpus_the_busiest_is_shown_first_and_any_can_be_chosen() -> None:
    light = square().with_columns(pl.col("power_w") / 2)
    made, sent = panel({"GPU 0": light, "GPU 1": square()}, simulated=True)
    assert sent[-1][0]["period"]["gpu"] == 1
    assert made.title() == "GPU 1 (simulated)"
    made.receive({"kind": "follow", "n": 2, "gpu": 0})
    assert (sent[-1][0]["title"], sent[-1][0]["period"]["gpu"]) == ("GPU 0 (simulated)", 0)


def test_a_measurement_is_found_by_itself_its_label_or_its_id(
    simulated: Callable[..., Machine], tmp_path: Path
) -> None:
    machine = simulated("V100", stepped=True)
    recorder = Recorder(devices())
    meter, store = Meter(devices(), recorder), Store(tmp_path)
    machine.step(2.0)
    window = meter.open("train")
    train(machine, iterations=20)
    window = meter.close(window)
    machine.step(1.0)
    measurement = meter.measure(window, settle=False)
    assert keep(measurement, window, meter, store) == []
    recorder.stop()
    for what in (measurement, "train", measurement.id):
        message = repr(period(what, store=store))
        assert re.match(r"train · .* \(simulated\)\n.* (69|70)\d", message)
    with pytest.raises(UsageError, match="'trian'"):
        period("trian", store=store)
    next((tmp_path / "traces").glob("t-*")).unlink()
    with pytest.raises(UsageError, match="no trace"):
        period("train", store=store)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (pl.DataFrame({"time_s": [0.0], "watts": [1.0]}), "power_w.* time_s, watts"),
        ({}, "no trace"),
        (7, "got int"),
    ],
)
def test_an_input_without_a_trace_is_refused(what: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        period(what)


FLAT = square().with_columns(pl.lit(100.0).alias("power_w"))


@pytest.mark.parametrize("trace", [square(0.3), FLAT, square().clear()], ids=["short", "flat", "empty"])
def test_a_trace_without_a_period_is_shown_with_the_reason(trace: pl.DataFrame) -> None:
    displayed = bundle(period(trace))
    assert "No iteration found: " in displayed["text/plain"]
    assert "<svg" in displayed["text/html"]


def test_the_panels_are_there_by_name_and_load_late() -> None:
    code = (
        "import sys, workbench; assert 'workbench.panels' not in sys.modules; shown = "
        "workbench.panels.period\n"
        "assert callable(shown) and workbench.panels.period is shown\n"
        "assert 'bokeh' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_arguments_it_shows_the_newest_measurement_that_has_a_trace() -> None:
    store = Store()
    with pytest.raises(UsageError, match="no measurement has"):
        period(store=store)
    times = pl.DataFrame({"time_s": [0.1 * n for n in range(50)], "power_w": [100.0] * 50})
    whole = times.with_columns(pl.lit(None, kind).alias(name) for name, kind in traces.SCHEMA.items() if name not in times.columns)
    for number, (label, frame) in enumerate((("older", whole), ("newer", whole), ("too short", None))):
        run = Measurement(f"a{number}", label, 1.7e9 + number, 5.0)
        store.save(run, {"GPU-1": frame.select(traces.SCHEMA.names())} if frame is not None else None)
    assert period(store=store).title().startswith("newer")


def test_a_trace_with_simulated_in_its_name_has_the_badge() -> None:
    frame = pl.DataFrame({"time_s": [0.1 * n for n in range(50)], "power_w": [100.0] * 50})
    panel = period({"V100 (simulated), of a CSV": frame})
    assert panel.about()["simulated"]
    assert panel.title().count("(simulated)") == 1
