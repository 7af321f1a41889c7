"""The log as a panel: sorted, filtered, tagged; one run is shown, two are compared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from tests.panels.listening import Browser, ask, later
from workbench import trace
from workbench.errors import UsageError
from workbench.logbook.store import Store
from workbench.panels._views.log.model import LogSelection
from workbench.panels._views.log.panel import LogPanel, log
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


def act(panel: LogPanel, name: str, value: str) -> str:
    """Act as a person; returns the page that the panel sends."""
    browser = Browser(panel)
    ask(panel, "act", name=name, value=value)
    assert not [message for message in browser.messages if message["kind"] == "problem"]
    return page(panel)


def page(panel: LogPanel) -> str:
    message: Any = panel.news(whole=True)
    return str(message[0]["html"])


def order(shown: str) -> list[str]:
    return sorted(("first &lt;b&gt;", "limited", "third"), key=shown.index)


def test_a_runs_picture_names_new_limits_and_what_a_training_named() -> None:
    frame = a_trace(100.0).with_columns(
        uuid=pl.lit("GPU-1"), power_limit_w=pl.when(pl.col("time_s") < 10).then(250.0).otherwise(175.0),
        temperature_c=pl.lit(50.0))
    rows = [{"iteration": None, "kind": "evaluation", "start_s": 5.0, "end_s": 6.0, "time_s": 1.0,
             "energy_j": None, "mean_power_w": None}]
    drawn = run_picture(Measurement("a", "one", 0.0, 20.0, (GPU,)), frame, pl.DataFrame(rows, schema=SEGMENTS))
    assert all(text in drawn for text in (">175 W<", ">evaluation<", "Temperature (°C)"))


def test_the_newest_run_stands_first_and_a_heading_sorts(panel: LogPanel) -> None:
    assert order(page(panel)) == ["third", "limited", "first &lt;b&gt;"]
    assert order(act(panel, "sort", "energy")) == ["third", "first &lt;b&gt;", "limited"]
    assert order(act(panel, "sort", "energy")) == ["limited", "first &lt;b&gt;", "third"]
    assert "energy ▲" in page(panel)


def test_the_filter_finds_labels_and_tags(panel: LogPanel) -> None:
    assert "third" not in act(panel, "filter", "limit 250")
    act(panel, "tag a2", "before the fix")
    shown = act(panel, "filter", "BEFORE")
    assert "third" in shown
    assert "1 of 3 runs" in shown


def test_one_run_is_shown_and_two_are_compared_with_the_interval(panel: LogPanel) -> None:
    one = act(panel, "choose", "a0")
    assert one.count("<svg") == 1
    assert "100.0 ± 1.0 J" in one
    both = act(panel, "choose", "a1")
    assert both.count("<svg") == 1
    assert "−20.0 ± 1.3 % energy" in both
    assert "compare" not in panel.html()  # nothing to press in a picture
    assert "±" in panel.summary()
    assert act(panel, "choose", "a1").count("<svg") == 1
    alone = act(panel, "choose", "a0")
    assert "<svg" not in alone


def test_a_run_without_a_trace_says_so_and_a_third_one_replaces_the_first(panel: LogPanel) -> None:
    assert "No trace" in act(panel, "choose", "a2")
    assert LogSelection(chosen=("a", "b")).toggled("c").chosen == ("b", "c")


def test_runs_are_chosen_in_python_too(panel: LogPanel) -> None:
    panel.choose("limited", "third")
    assert panel.selection.chosen == ("a1", "a2")
    with pytest.raises(UsageError, match="3 runs"):
        panel.choose("first", "limited", "third")


def test_it_says_only_what_is_new(panel: LogPanel) -> None:
    assert later(panel) is not None
    assert later(panel) is None
    panel.end()


def test_an_empty_log_says_what_to_do(tmp_path: Any) -> None:
    assert "%%energy" in log(Store(tmp_path)).html()
