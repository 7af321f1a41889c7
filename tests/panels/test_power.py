"""The power view, without a browser."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from typing import Any

import nbclient
import nbformat
import numpy as np
import polars as pl
import pytest

from workbench import trace
from workbench.device.discovery import devices
from workbench.errors import NotPermitted
from workbench.measurement.recorder import Recorder
from workbench.panels._core import live as base
from workbench.panels._views.power.conditions import GpuTrace, conditions
from workbench.panels._views.power.panel import PowerView
from workbench.panels._views.power.series import COLUMNS, Series
from workbench.panels._views.power.svg import TraceLine, trace_picture
from workbench.periods.segment import SCHEMA as SEGMENTS
from workbench.periods.segment import SegmentedIterations
from workbench.records import IterationSummary, Setting
from workbench.simulation.machine import Machine

Sent = list[tuple[dict[str, Any], list[bytes]]]
Make = Callable[..., tuple[PowerView, Sent]]


@pytest.fixture
def make(simulated: Callable[..., Machine]) -> Iterator[Make]:
    """Views of a stepped machine whose messages are kept instead of sent."""
    made: list[tuple[PowerView, Recorder]] = []

    def view(cards: str = "V100", **options: Any) -> tuple[PowerView, Sent]:
        machine = simulated(cards, stepped=True)
        gpus = devices()
        recorder = Recorder(gpus)
        shown = PowerView(recorder, gpus, **options)
        sent: Sent = []
        shown.send = lambda content, buffers=None: sent.append((content, buffers or []))
        shown.machine = machine
        made.append((shown, recorder))
        return shown, sent

    yield view
    for shown, recorder in made:
        shown.end()
        recorder.stop()
        shown.close()


def hello(panel: PowerView, **more: Any) -> None:
    panel.receive({"kind": "hello", "n": 1, **more})


def kinds(sent: Sent) -> list[str]:
    return [content["kind"] for content, _ in sent]


def table(message: tuple[dict[str, Any], list[bytes]]) -> np.ndarray[Any, Any]:
    content, buffers = message
    numbers = np.frombuffer(b"".join(buffers), np.float32)
    count = len(COLUMNS) * sum(content["counts"])
    assert len(numbers) == count + 3 * content.get("period", {}).get("spans", 0)
    return numbers[:count].reshape(-1, len(COLUMNS))


def until(condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_greeting_has_all_readings(make: Make) -> None:
    view, sent = make(label="train", set_power_limit=lambda uuid, watts: watts)
    view.machine.step(5.0)
    hello(view)
    assert kinds(sent) == ["pong", "greeting"]
    parts = sent[1][0]
    rows = table(sent[1])
    assert 200 < len(rows) < 300  # a V100's sensor steps every 20 ms
    assert 0 <= rows[0, 0] < 0.1
    assert 4.9 < rows[-1, 0] <= 5.0
    assert rows[-1, 1] == pytest.approx(view.machine.card(0).idle_w, rel=0.05)
    assert rows[-1, 2] == 250.0
    assert parts["title"] == f"train · {view.devices[0].name}"
    assert parts["gpus"][0]["simulated"]
    assert (parts["gpus"][0]["low"], parts["gpus"][0]["high"], parts["gpus"][0]["reason"]) == (
        100.0,
        250.0,
        "",
    )
    assert parts["elapsed"] == pytest.approx(5.0, abs=0.01)
    assert parts["energy"][0] == pytest.approx(5 * view.machine.card(0).idle_w, rel=0.05)
    assert (parts["state"], parts["stop"], parts["slider"]) == ("running", False, True)


def test_news_are_what_came_since_in_one_message_however_long_ago(make: Make) -> None:
    view, sent = make("V100,V100")
    view.machine.step(1.0)
    hello(view)
    before = table(sent[-1])
    view.machine.step(3.0)
    message = view.changes()
    assert message is not None
    assert message[0]["counts"] == pytest.approx([150, 150], abs=10)
    first, second = np.split(table(message), [message[0]["counts"][0]])
    assert first[0, 0] > before[: len(before) // 2, 0].max()
    assert abs(first[-1, 0] - second[-1, 0]) < 0.1
    assert view.changes() is None  # nothing has come


def test_a_reloaded_page_gets_everything_again(make: Make) -> None:
    view, sent = make()
    for _ in range(3):
        view.machine.step(1.0)
        view.changes()
    view.mark(view.start_s + 1.5, "200 W")
    hello(view, view="one")
    hello(view, view="two")
    assert len(table(sent[1])) == len(table(sent[3])) > 100
    assert sent[1][0]["marks"] == sent[3][0]["marks"] == [[1.5, "200 W"]]


def test_a_repeated_hello_is_answered_once(make: Make) -> None:
    view, sent = make()
    for _ in range(5):
        hello(view, view="one", bokeh=True)
    assert kinds(sent).count("greeting") == 1
    assert kinds(sent).count("bokeh") == 1


def test_a_slow_answer_is_not_sent_again_to_repeated_hellos(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, sent = make()
    now_s, greeting = [100.0], view.snapshot

    def slow() -> tuple[dict[str, Any], list[bytes]]:
        now_s[0] += 2 * view.poll_s
        return greeting()

    monkeypatch.setattr(view, "snapshot", slow)
    monkeypatch.setattr(base.time, "monotonic", lambda: now_s[0])
    for _ in range(3):
        hello(view, view="one")
    assert kinds(sent).count("greeting") == 1
    now_s[0] += 2 * view.poll_s
    hello(view, view="one")  # a page that comes back
    assert kinds(sent).count("greeting") == 2


def test_bokehjs_is_sent_where_it_is_asked_for_as_installed(make: Make) -> None:
    import gzip
    from importlib.metadata import version

    view, sent = make()
    hello(view, bokeh=True)
    content, buffers = sent[1]
    assert content == {"kind": "bokeh", "version": version("bokeh")}
    assert len(buffers[0]) < 500_000
    assert b"Bokeh" in gzip.decompress(buffers[0])


def test_nothing_is_sent_to_nobody(make: Make) -> None:
    view, sent = make()
    view.show()
    view.start()
    view.machine.step(1.0)
    view.mark(view.start_s, "here")
    time.sleep(0.3)
    view.report_error("nobody hears this")
    view.finish("done")
    assert sent == []


def test_the_publisher_sends_at_most_ten_times_per_second_and_ends(make: Make) -> None:
    view, sent = make()
    view.start()
    hello(view)

    def some() -> bool:
        view.machine.step(0.1)
        return kinds(sent).count("news") >= 3

    until(some)
    began, so_far = time.monotonic(), len(sent)
    time.sleep(0.5)
    assert len(sent) - so_far <= (time.monotonic() - began) / 0.1 + 1
    view.finish("done")
    assert kinds(sent)[-2:] == ["done", "greeting"]
    assert not view.running


def test_the_kernel_answers_a_ping_immediately(make: Make) -> None:
    view, sent = make()
    hello(view)
    view.receive({"kind": "ping", "n": 7})
    assert sent[-1][0] == {"kind": "pong", "n": 7}


def test_a_hole_in_the_sampling_reaches_the_browser_as_a_gap(make: Make) -> None:
    view, sent = make()
    view.machine.step(1.0)
    hello(view)
    view.machine.lose(0)
    view.machine.step(2.5)
    view.changes()
    assert sent[-1][0]["kind"] == "problem"
    assert sent[-1][0]["text"].startswith("GPU 0: ")
    view.machine.lose(0, 0)
    view.machine.step(2.5)
    rows = table(view.changes())  # type: ignore[arg-type]
    assert sent[-1][0] == {"kind": "problem", "text": ""}
    assert np.flatnonzero(np.isnan(rows[:, 1:]).all(axis=1)).tolist() == [0]
    assert 1.0 < rows[0, 0] < 3.4 < rows[1, 0]


def test_the_slider_sets_the_limit_and_reports_the_applied_one(make: Make) -> None:
    asked = []

    def change(uuid: str, watts: float) -> float:
        asked.append((uuid, watts))
        return watts - 1.0

    view, sent = make(set_power_limit=change)
    uuid = view.devices[0].uuid
    hello(view)
    view.machine.step(1.0)
    view.receive({"kind": "limit", "n": 2, "uuids": [uuid], "watts": 200})
    assert asked == [(uuid, 200.0)]
    assert sent[-1][0] == {"kind": "limit", "asked": 200.0, "applied": {uuid: 199.0}}


def test_a_new_limit_is_named_in_the_picture_and_a_drag_by_its_end(make: Make) -> None:
    view, _ = make()
    for watts in (250, 150, 140, 130):
        view.devices[0].write(Setting(power_limit_w=watts))
        view.machine.step(0.01 if watts < 150 else 5.0)
    view.machine.step(5.0)
    texts = [text.text for text in ElementTree.fromstring(view.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert "130 W" in texts
    assert "140 W" not in texts


def test_an_error_is_shown_and_cleared_when_the_next_call_works(make: Make) -> None:
    problem = "setting a limit needs root"
    problems = [NotPermitted(problem)]

    def change(uuid: str, watts: float) -> float:
        if problems:
            raise problems.pop()
        return watts

    view, sent = make(set_power_limit=change)
    message = {"kind": "limit", "n": 2, "uuids": [view.devices[0].uuid], "watts": 200}
    hello(view, view="one")
    view.receive(message)
    assert {"kind": "problem", "text": problem} in [content for content, _ in sent]
    hello(view, view="two")
    assert sent[-1][0]["problem"] == problem  # a page that comes later shows it too
    view.receive(message)
    assert {"kind": "problem", "text": ""} in [content for content, _ in sent]


def test_a_bug_in_a_callback_is_shown_too_and_left_in_the_picture(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    view, sent = make(stop=lambda: 1 / 0)
    hello(view)
    view.receive({"kind": "stop", "n": 2})
    problem = sent[-1][0]["text"]
    assert problem.startswith("ZeroDivisionError")
    view.finish("12 J")
    assert capsys.readouterr().out == f"12 J\n{problem}\n"


def test_stop_is_for_a_running_cell(make: Make) -> None:
    stops: list[int] = []
    view, _ = make(stop=lambda: stops.append(1))
    view.receive({"kind": "stop", "n": 1})
    view.finish("done")
    view.receive({"kind": "stop", "n": 2})
    assert stops == [1]


@pytest.mark.parametrize("end", [PowerView.refuse_limits, PowerView.end, lambda view: view.finish("done")])
def test_a_limit_that_comes_after_the_cell_is_refused_in_a_sentence(
    make: Make, end: Callable[[PowerView], None]
) -> None:
    asked: list[float] = []
    view, sent = make(set_power_limit=lambda uuid, watts: asked.append(watts) or watts)
    hello(view)
    end(view)
    view.receive({"kind": "limit", "n": 2, "uuids": [view.devices[0].uuid], "watts": 200})
    assert asked == []
    assert sent[-1][0]["kind"] == "problem"
    assert sent[-1][0]["text"].startswith("200 W was not")


def test_a_limit_that_is_being_set_is_waited_for(make: Make) -> None:
    began, go_on = threading.Event(), threading.Event()

    def change(uuid: str, watts: float) -> float:
        began.set()
        go_on.wait(60.0)
        return watts

    view, _ = make(set_power_limit=change)
    message = {"kind": "limit", "n": 2, "uuids": [view.devices[0].uuid], "watts": 200}
    setter = threading.Thread(target=view.receive, args=(message,))
    ender = threading.Thread(target=view.refuse_limits)
    setter.start()
    assert began.wait(60.0)
    ender.start()
    ender.join(0.1)
    assert ender.is_alive()  # or it would be put back before it is set
    go_on.set()
    ender.join(60.0)
    setter.join(60.0)
    assert not ender.is_alive()


def test_a_gpu_that_cannot_be_set_gives_the_reason(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100", stepped=True)
    machine.inject("nvmlDeviceGetPowerManagementLimitConstraints", 3)  # NVML_ERROR_NOT_SUPPORTED
    gpus = devices()
    recorder = Recorder(gpus)
    view = PowerView(recorder, gpus, set_power_limit=lambda uuid, watts: watts)
    about = view.snapshot()[0]["gpus"][0]
    assert about["reason"] != ""
    assert about["low"] is None
    recorder.stop()
    view.close()


def test_the_window_ends_at_the_time_given_by_the_caller(make: Make) -> None:
    view, sent = make()
    hello(view)
    view.machine.step(2.0)
    end_s = view.recorder.clock()
    view.machine.step(2.0)
    view.changes()
    view.finish("done", end_s=end_s)
    hello(view, view="later")
    assert table(sent[-1])[-1, 0] <= 2.0
    assert (sent[-1][0]["state"], sent[-1][0]["elapsed"]) == ("done", pytest.approx(2.0))


# the picture


def paths(svg: str) -> list[str]:
    tree = ElementTree.fromstring(svg)
    return [path.get("d", "") for path in tree.iter("{http://www.w3.org/2000/svg}path")]


def test_the_picture_has_labels_and_needs_no_other_file(make: Make) -> None:
    view, _ = make(label="a <b> & c")
    view.machine.step(3.0)
    view.mark(view.start_s + 1.0, "200 W")
    svg = view.svg()
    texts = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"a <b> & c · {view.devices[0].name}"
    assert "200 W" in texts
    assert any(text and text.startswith("Power (W)") for text in texts)
    assert "currentColor" in svg
    for foreign in ("<script", "http:", "https:", "url(", "@import"):
        assert foreign not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_gap_lifts_the_pen(make: Make) -> None:
    view, _ = make(period=False)
    lines = []
    for lost in (False, True):
        view.machine.lose(0, 15 if lost else 0)
        view.machine.step(2.5)
        view.drain()
        view.machine.lose(0, 0)
        view.machine.step(2.5)
        lines.append(sum(path.count("M") for path in paths(view.svg()) if len(path) > 60))
    assert lines[1] > lines[0]


def test_the_limit_is_drawn_as_steps(make: Make) -> None:
    view, _ = make()
    gpu = view.devices[0]
    for watts in (250, 150, 200):
        gpu.write(Setting(power_limit_w=watts))
        view.machine.step(2.0)
    dashed = [
        path.get("d", "")
        for path in ElementTree.fromstring(view.svg()).iter("{http://www.w3.org/2000/svg}path")
        if path.get("stroke-dasharray") == "5 4"
    ]
    (limit,) = dashed
    assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+){2}H[\d.]+", limit)
    heights = [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", limit)]
    assert heights[0] < heights[2] < heights[1]  # downwards in SVG: 250 W, 200 W, 150 W
    assert (heights[1] - heights[0]) / (heights[1] - heights[2]) == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize(("count", "bytes_at_most"), [(1, 40_000), (8, 120_000)])
def test_the_picture_of_a_long_cell_stays_small(count: int, bytes_at_most: int) -> None:
    times, rng, lines = np.arange(0, 3600, 0.05, np.float32), np.random.default_rng(1), []
    for number in range(count):
        noise, series = rng.normal(300, 40, len(times)), Series(1.0)
        series.append(np.stack([times, noise, 0 * times + 400, 1300 + noise / 10, noise / 500], axis=1).astype(np.float32))
        lines.append(TraceLine(number, f"GPU {number}", series.rows, series.seconds))
    assert len(trace_picture("a run", lines, (), 3600.0).svg()) < bytes_at_most


# without a front end


def test_outside_of_a_notebook_the_result_is_printed(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    view, _ = make()
    view.show()
    view.start()
    view.finish("37.1 J in 1 s")
    view.finish("again")
    assert capsys.readouterr().out == "37.1 J in 1 s\n"


CELL = """
from workbench.simulation.machine import simulate
machine = simulate("A100", seed=1, scale=20)
from workbench import trace
from workbench.device.discovery import devices
from workbench.panels import PowerView
from workbench.measurement.recorder import Recorder
gpus = devices()
recorder = Recorder(gpus)
recorder.ready()
view = PowerView(recorder, gpus, label="train")
view.show()
view.start()
machine.clock.sleep(4)
view.finish("220 J in 4 s")
recorder.stop()
"""


def test_a_notebook_run_without_a_front_end_holds_the_picture_and_the_result() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=240).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == "220 J in 4 s"
    assert "<svg" in output.data["text/html"]
    assert "220 J in 4 s" in output.data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in output.data


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("workbench.panels", ("bokeh", "ipywidgets", "anywidget", "polars")),
        ("workbench.panels._views.power.panel", ("bokeh", "polars")),
        (
            "workbench.panels as p; p.recurring; p.clocks; from workbench.panels._views.clocks.panel import clocks; "
            "assert callable(p.clocks)",
            ("bokeh", "optuna", "lightgbm"),
        ),
    ],
)
def test_imports_are_late(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_applying_a_limit_for_real_moves_the_simulated_gpu(make: Make) -> None:
    gpus: list[Any] = []
    view, sent = make(
        set_power_limit=lambda uuid, watts: gpus[0].write(Setting(power_limit_w=watts)).power_limit_w or 0.0
    )
    gpus += view.devices
    gpu = gpus[0]
    hello(view)
    view.receive({"kind": "limit", "n": 2, "uuids": [gpu.uuid], "watts": 150})
    assert sent[-1][0]["applied"] == {gpu.uuid: 150.0}
    view.machine.step(1.0)
    assert table(view.changes())[-1, 2] == 150.0  # type: ignore[arg-type]


def test_a_long_run_is_drawn_as_its_mean_between_lowest_and_highest() -> None:
    times = np.arange(0.0, 600.0, 0.05)
    power = np.where((times * 4).astype(int) % 2, 300.0, 100.0)
    rows = np.column_stack([times, power, 0 * times + 400, 0 * times, 0 * times]).astype(np.float32)
    series = Series(1.0)
    for part in np.array_split(rows, 20):
        series.append(part)
    assert len(series.rows) < len(rows)  # thinned, and the means are those of all rows
    assert series.seconds.shape == (600, 4)
    assert (series.seconds[:, 1:] == [200.0, 100.0, 300.0]).all()
    line = TraceLine(0, "GPU 0", series.rows, series.seconds)
    picture = trace_picture("a run", [line], (), 600.0).svg()
    assert "mean of 4 s" in picture
    assert len(picture) < 30_000
    assert "line: mean" not in trace_picture("short", [TraceLine(0, "GPU 0", rows[:200], series.seconds)], (), 10.0).svg()


def test_evaluations_that_a_training_named_are_named_in_the_picture(make: Make) -> None:
    view, _ = make()
    start_s = view.start_s
    kinds = ["iteration", "iteration", "evaluation", "iteration"]
    rows = [{"iteration": n, "kind": kind, "start_s": start_s + n, "end_s": start_s + n + 1.0, "time_s": 1.0,
             "energy_j": 100.0, "mean_power_w": 100.0} for n, kind in enumerate(kinds)]
    found = SegmentedIterations(pl.DataFrame(rows, schema=SEGMENTS), IterationSummary(3, 1.0, 0.0, 100.0, 1.0, "marks"))
    view.settle(found)
    assert view.snapshot()[0]["marks"] == [[2.0, "evaluation"]]


def test_temperature_memory_and_throttling_are_folded_away_below_the_power() -> None:
    times = [5.0 + 0.1 * n for n in range(400)]
    values: dict[str, list[float | None]] = dict.fromkeys(trace.SCHEMA, [None] * 400)
    values |= {"time_s": times, "temperature_c": [40.0 + n / 20 for n in range(400)],
               "memory_utilisation": [0.5] * 400}
    frame = pl.DataFrame(values, schema=trace.SCHEMA).with_columns(
        throttle=pl.when(pl.col("time_s") < 15.0).then(4).otherwise(0).cast(pl.UInt64))
    shown = conditions([GpuTrace(0, "GPU 0", frame)], 5.0, 45.0)
    assert shown.startswith("<details><summary")
    for parts in ("Temperature (°C)", "Memory busy (%)", "power cap, 25 %"):
        assert parts in shown
    assert "Memory clock" not in shown  # nothing is known of it
    assert len(shown) < 25_000
    calm = frame.with_columns(throttle=pl.lit(0, pl.UInt64))
    assert "never throttled" in conditions([GpuTrace(0, "GPU 0", calm)], 5.0, 45.0)
    unread = frame.with_columns(throttle=pl.lit(None, pl.UInt64))
    assert "never throttled" not in conditions([GpuTrace(0, "GPU 0", unread)], 5.0, 45.0)
    always = frame.with_columns(throttle=pl.lit(4, pl.UInt64))
    both = conditions([GpuTrace(0, "GPU 2", always), GpuTrace(1, "GPU 3", always.drop("throttle"))], 5.0, 45.0)
    assert "GPU 2: throttled" in both
    assert "GPU 3: throttled" not in both
    nothing = pl.DataFrame(dict.fromkeys(trace.SCHEMA, [None] * 2) | {"time_s": [0.0, 1.0]}, schema=trace.SCHEMA)
    assert conditions([GpuTrace(0, "GPU 0", nothing)], 0.0, 1.0) == ""


def test_the_picture_of_a_finished_cell_has_them_too(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    view, _ = make()
    left: list[dict[str, str]] = []
    view.stay = left.append  # type: ignore[method-assign]
    view.machine.step(3.0)
    view.finish("done")
    picture = left[0]["text/html"]
    assert picture.index("</svg>") < picture.index("<summary") < picture.index("Temperature (°C)")
