"""The log as a panel: its runs, their tags and their power; one run is opened, two are compared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from tests.panels.listening import Browser, ask, later
from workbench import trace
from workbench.logbook.store import Store
from workbench.panels._views.log.panel import LogPanel, log, sparkline
from workbench.panels._views.log.svg import run_picture
from workbench.periods.segment import SCHEMA as SEGMENTS
from workbench.records import GpuMeasurement, Measurement, WorkDone

GPU = GpuMeasurement("Tesla V100", "GPU-1", 100.0, 1.0, "counter", True, power_limit_w=250.0)


def a_trace(watts: float) -> pl.DataFrame:
    times = [0.1 * n for n in range(200)]
    values: dict[str, list[float | None]] = dict.fromkeys(trace.SCHEMA, [None] * 200)
    values |= {"time_s": times, "power_w": [watts + 20 * math.sin(t) for t in times]}
    return pl.DataFrame(values, schema=trace.SCHEMA)


@pytest.fixture
def panel() -> LogPanel:
    store = Store()
    for number, (label, energy_j) in enumerate((("first <b>", 100.0), ("limited", 80.0), ("third", 300.0))):
        run = Measurement(f"a{number}", label, 1_700_000_000.0 + number, 20.0,
                          (replace(GPU, energy_j=energy_j),), work=(WorkDone("samples", 640.0),))
        store.save(run, {"GPU-1": a_trace(energy_j)} if number < 2 else None)
    return log(store)


def act(panel: LogPanel, kind: str, **content: Any) -> str:
    """Act as a person; returns the page that the panel sends."""
    browser = Browser(panel)
    ask(panel, kind, **content)
    assert not [message for message in browser.messages if message["kind"] == "problem"]
    return str(sent(panel)["look"])


def sent(panel: LogPanel) -> dict[str, Any]:
    message: Any = panel.news(whole=True)
    return dict(message[0])


def column(panel: LogPanel, name: str) -> list[str]:
    message = sent(panel)
    return [run["cells"][message["columns"].index(name)] for run in message["runs"]]


def test_a_runs_picture_names_new_limits_and_what_a_training_named() -> None:
    frame = a_trace(100.0).with_columns(
        uuid=pl.lit("GPU-1"), power_limit_w=pl.when(pl.col("time_s") < 10).then(250.0).otherwise(175.0),
        temperature_c=pl.lit(50.0))
    rows = [{"iteration": None, "kind": "evaluation", "start_s": 5.0, "end_s": 6.0, "time_s": 1.0,
             "energy_j": None, "mean_power_w": None}]
    drawn = run_picture(Measurement("a", "one", 0.0, 20.0, (GPU,)), frame, pl.DataFrame(rows, schema=SEGMENTS))
    assert all(text in drawn for text in (">175 W<", ">evaluation<", "Temperature (°C)"))


def test_runs_are_sent_newest_first_with_numbers_to_sort_by(panel: LogPanel) -> None:
    assert column(panel, "label") == ["third", "limited", "first <b>"]
    message = sent(panel)
    energies = [run["numbers"][message["columns"].index("energy")] for run in message["runs"]]
    assert energies == [300.0, 80.0, 100.0]


def test_later_only_runs_that_are_new_or_tagged_are_sent(panel: LogPanel) -> None:
    sent(panel)
    panel.store.tag("a1", "before the fix")
    message: Any = panel.news()
    assert [run["id"] for run in message[0]["runs"]] == ["a1"]
    assert not message[0]["whole"]


def test_all_ticked_runs_are_tagged(panel: LogPanel) -> None:
    act(panel, "tag", ids=["a0", "a2"], text="before the fix")
    assert column(panel, "tag") == ["before the fix", "", "before the fix"]
    assert "before the fix" in panel.html()


def test_one_run_is_opened_and_two_are_compared_with_the_interval(panel: LogPanel) -> None:
    one = act(panel, "choose", ids=["a0"])
    assert one.count("<svg") == 1
    assert "100 J" in one
    both = act(panel, "choose", ids=["a0", "a1"])
    assert both.count("<svg") == 1
    assert "−20.0 ± 1.3 % energy" in both
    assert "−20.0 ± 1.3 % energy" in panel.html()
    assert "±" in panel.summary()
    assert act(panel, "choose", ids=["a0", "a1", "a2"]) == ""


def test_the_power_of_runs_is_sent_when_it_is_asked_for(panel: LogPanel) -> None:
    browser = Browser(panel)
    ask(panel, "sparks", ids=["a0", "a2"])
    (message,) = [each for each in browser.messages if each["kind"] == "sparks"]
    assert message["sparks"]["a2"] == []
    assert len(message["sparks"]["a0"]) > 20
    assert all(80 <= watts <= 120 for watts in message["sparks"]["a0"])


def test_the_power_of_several_gpus_is_summed() -> None:
    frames = [a_trace(watts).with_columns(uuid=pl.lit(name)) for watts, name in ((100.0, "A"), (200.0, "B"))]
    assert sum(sparkline(pl.concat(frames))) / len(sparkline(pl.concat(frames))) == pytest.approx(300.0, abs=10.0)


def test_a_run_without_a_trace_is_reported(panel: LogPanel) -> None:
    assert "No trace" in act(panel, "choose", ids=["a2"])


def test_runs_are_chosen_in_python_too(panel: LogPanel) -> None:
    panel.choose("limited", "third")
    assert panel.chosen == ("a1", "a2")


def test_it_publishes_only_news(panel: LogPanel) -> None:
    assert later(panel) is not None
    assert later(panel) is None
    panel.end()


def test_an_empty_log_shows_how_to_start(tmp_path: Any) -> None:
    assert "%%energy" in log(Store(tmp_path)).html()
