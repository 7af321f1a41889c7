"""The panel of a tuner, without a browser."""

from __future__ import annotations

import math
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench.panels
import workbench.tuning.api
import workbench.tuning.state_machine
from tests.panels.listening import Browser, ask, bundle, later
from workbench.device.discovery import devices
from workbench.errors import UsageError
from workbench.measurement import marks
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import Recorder
from workbench.panels._core import persistent
from workbench.panels._views.clocks.model import drawing
from workbench.panels._views.clocks.panel import NOTHING, ClocksPanel
from workbench.panels._views.clocks.surface import (
    ALLOWED,
    ENERGY,
    LEVELS,
    LIMIT,
    Cell,
    allowed,
    cells,
    line,
    surface,
)
from workbench.panels._views.clocks.text import describe, saved_text
from workbench.records import Setting
from workbench.search.clocks.knowledge import Choice
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import OBJECTIVES, TunerThread, TuningView
from workbench.tuning import Tuner as TrueTuner
from workbench.tuning.results import PROBES, Saved

HIGHEST = Setting(sm_clock_mhz=1400, mem_clock_mhz=9000)
SM, MEMORY = (800, 1000, 1200, 1400), (5000, 9000)


def believe(
    settings: list[Setting], ratios: list[tuple[float, float]], *, sd: float = 0.01, bound: float = 1.05
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "power_limit_w": [s.power_limit_w for s in settings],
            "sm_clock_mhz": [s.sm_clock_mhz for s in settings],
            "mem_clock_mhz": [s.mem_clock_mhz for s in settings],
            "time_ratio": [t for t, _ in ratios],
            "time_sd": [sd] * len(settings),
            "energy_ratio": [e for _, e in ratios],
            "energy_sd": [2 * sd] * len(settings),
            "p_allowed": [1.0 if t <= bound else 0.0 for t, _ in ratios],
            "probes": [0] * len(settings),
        },
        schema_overrides={"power_limit_w": pl.Float64, "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64},
    )


PLANE = believe(
    [Setting(sm_clock_mhz=sm, mem_clock_mhz=mem) for mem in MEMORY for sm in SM],
    [(1.5, 1.3), (1.3, 1.1), (1.2, 1.05), (1.15, 1.0), (1.2, 0.7), (1.06, 0.8), (1.04, 0.85), (1.0, 1.0)],
)
CLOCKS = believe([Setting(sm_clock_mhz=sm) for sm in SM], [(1.2, 0.7), (1.06, 0.8), (1.04, 0.85), (1.0, 1.0)])
LIMITS = believe(
    [Setting(power_limit_w=w) for w in (400.0, 300.0, 200.0)], [(1.0, 1.0), (1.03, 0.9), (1.3, 0.95)]
)
CHOICE = Choice(Setting(sm_clock_mhz=1200, mem_clock_mhz=9000), 1.04, 0.85, 0.005, 0.01, 0.98, True)


def probe(
    setting: Setting, time_ratio: float | None, energy_ratio: float | None, **more: Any
) -> dict[str, Any]:
    row = {
        "power_limit_w": setting.power_limit_w,
        "sm_clock_mhz": setting.sm_clock_mhz,
        "mem_clock_mhz": setting.mem_clock_mhz,
        "iterations": 5,
        "time_s": 2.0,
        "energy_j": 500.0,
        "energy_uncertainty_j": 5.0,
        "time_ratio": time_ratio,
        "energy_ratio": energy_ratio,
        "time_sd": 0.01,
        "energy_sd": 0.02,
        "kind": "probe",
        "outcome": "kept",
        "reason": "",
        "at_s": 3.0,
        "cost_s": 2.5,
        "cost_j": 600.0,
    }
    return {**row, **more}


TRIED = [
    probe(HIGHEST, 1.0, 1.0, kind="baseline"),
    probe(
        Setting(sm_clock_mhz=1000, mem_clock_mhz=9000),
        1.07,
        0.8,
        outcome="ended early",
        reason="7 % slower",
        iterations=1,
    ),
    probe(Setting(sm_clock_mhz=1200, mem_clock_mhz=9000), 1.04, 0.85),
]


def tuning(tried: list[dict[str, Any]] = TRIED, **changes: Any) -> TuningView:
    given: dict[str, Any] = {
        "state": "search",
        "text": "Trying SM 1200 MHz next",
        "label": "train",
        "gpu": "A card",
        "simulated": True,
        "over": "clocks",
        "max_slowdown": 0.05,
        "reference": HIGHEST,
        "current": Setting(sm_clock_mhz=1200, mem_clock_mhz=9000),
        "choice": CHOICE,
        "belief": PLANE,
        "trials": pl.DataFrame(tried, schema=PROBES),
        "spent_s": 34.0,
        "spent_j": 1250.0,
    }
    return TuningView(**{**given, **changes})


class Tuner:
    """A tuner whose views are given, and which records the requests."""

    def __init__(self, shown: TuningView | None = None) -> None:
        self.current_view = shown or tuning()
        self.asked: list[Any] = []

    def view(self) -> TuningView:
        return self.current_view

    def pause(self) -> None:
        self.asked.append("pause")
        self.current_view = replace(self.current_view, paused=True)

    def resume(self) -> None:
        self.asked.append("resume")
        self.current_view = replace(self.current_view, paused=False)

    def step_once(self) -> None:
        self.asked.append("one probe")

    def hold_here(self) -> None:
        self.asked.append("hold")

    def stop(self) -> None:
        self.asked.append("stop")
        self.current_view = replace(self.current_view, state="done", text="Stopped")

    def change(self, **changes: Any) -> None:
        self.asked.append(changes)
        if (changes.get("max_slowdown") or 0) > 1:
            raise UsageError("a job cannot be more than 100 % slower")
        self.current_view = replace(self.current_view, **changes)


# the summary


def test_it_shows_the_state_the_choice_the_cost_and_the_saving() -> None:
    saved = Saved(5230.0, 410.0, 0.112, 0.009, 0.031, 0.002, 300.0)
    found = {"period_s": 0.4123, "period_uncertainty_s": 0.0031, "period_source": "power"}
    lines = workbench.panels.clocks(Tuner(tuning(saved=saved, **found))).summary().splitlines()
    parts = [
        ("train", "A card (simulated)"), ("5.23 ± 0.41 kJ", "11.2 ± 0.9 %", "3.1 % slower"), ("1200 MHz",),
        ("1200 MHz", "9000 MHz", "energy −15.0 ± 1.7 %", "time +4.0 ± 1.0 %"),
        ("least energy in a trial: SM 1000 MHz", "(−20.0 %)", "slower, and 5 % are allowed"), ("34 s", "1.25 kJ", "2 "),
        ("412.3 ± 3.1 ms", "power"), ("5 % slower",),
    ]
    assert all(part in line for line, row in zip(lines, parts, strict=True) for part in row)


def test_a_held_setting_is_explained_first() -> None:
    why = "SM 1200 MHz: 4.0 ± 1.0 % slower measured; SM 1000 MHz would save 5 % more but may be 7 % slower"
    assert describe(tuning(state="hold", text=why)).headline == f"Holding {why}"
    assert describe(tuning(state="hold", text="paused at SM 1200 MHz", paused=True)).headline.startswith("Paused")


@pytest.mark.parametrize(("time", "energy", "changes", "why"), [
    (1.06, 0.8, {}, "it is 6.0 ± 2.1 % slower, and 5 % are allowed"),
    (1.04, 0.8, {}, "it may be 6.0 % slower, and 5 % are allowed"),
    (1.04, 0.9, {}, "no less energy"),
    (1.02, 0.8, {"objective": "edp"}, "by the objective"),
    (1.02, 0.8, {}, "slow trials have used a part of the 5 %"),
    (1.02, 0.8, {"events": ((9.0, "the work has changed"),)}, None),
])
def test_the_trial_of_least_energy_is_the_choice_or_has_a_reason(
    time: float, energy: float, changes: dict[str, Any], why: str | None
) -> None:
    tried = Setting(sm_clock_mhz=1000, mem_clock_mhz=9000)
    known = believe([HIGHEST, tried], [(1.0, 1.0), (time, energy)])
    lines = describe(tuning([probe(tried, 1.03, 0.79)], belief=known, **changes)).details
    named = [line for line in lines if line.startswith("least energy in a trial: SM 1000 MHz")]
    assert bool(named) == (why is not None)
    assert why is None or why in named[0]
    chosen = replace(CHOICE, setting=tried)
    assert "least energy" not in "".join(describe(tuning([probe(tried, 1.03, 0.79)], choice=chosen)).details)


def test_a_tuning_cost_not_yet_saved_is_shown_as_spent() -> None:
    more = Saved(-300.0, 40.0, -0.004, 0.0, -0.01, 0.002, 300.0)
    spent = describe(tuning(saved=more)).saved
    assert all(part in spent for part in ("300 ± 40 J", "spent more", "0.4 %", "1.0 % faster"))
    assert describe(tuning()).saved == ""


def test_a_prediction_is_called_one_and_a_held_choice_held() -> None:
    assert (
        describe(tuning(choice=replace(CHOICE, measured=False))).details[0].endswith(", predicted")
    )
    assert describe(tuning(state="hold")).details[0].startswith("held: SM 1200 MHz")
    assert describe(tuning(state="done")).details[0].startswith("chosen: SM 1200 MHz")


def test_a_choice_of_the_default_is_no_gain_of_nothing_per_cent() -> None:
    held = describe(tuning(state="hold", choice=Choice(HIGHEST, 1.0, 1.0, 0.0, 0.0, 1.0, True))).details[0]
    assert "default setting" in held
    assert "%" not in held


def test_a_refusal_gives_its_reason_and_a_pause_is_shown() -> None:
    refused = describe(tuning(state="refused", refused="no rights", belief=None, choice=None))
    assert refused.headline.endswith("no rights")
    assert not any(refused.commands.values())
    paused = describe(tuning(paused=True))
    assert paused.headline == f"Paused: {tuning().text}"
    assert (paused.commands["start"], paused.commands["pause"]) == (True, False)


def test_before_the_search_nothing_can_be_held() -> None:
    assert not describe(tuning(state="detect")).commands["hold"]
    assert describe(tuning()).commands["hold"]


def test_without_a_bound_any_slowdown_is_allowed() -> None:
    text = describe(tuning(max_slowdown=None, objective="edp")).objective_text
    assert "(EDP)" in text
    assert "%" not in text


# what is drawn


def test_beliefs_are_per_cent_of_the_default_with_errors_of_95_per_cent() -> None:
    row = surface(PLANE)[6]
    np.testing.assert_allclose(
        row, [math.nan, 1200, 9000, 4.0, 196 * 1.04 * 0.01, -15.0, 196 * 0.85 * 0.02, 1.0], rtol=1e-5
    )


def test_probes_are_numbered_in_order_and_the_baseline_is_not() -> None:
    probes = drawing(tuning()).probes
    assert [probe.n for probe in probes] == [None, 1, 2]
    assert [probe.whole for probe in probes] == [True, False, True]
    assert all(part in probes[1].cost for part in ("1 iteration", "2.5 s", "ended early", "7 %"))
    np.testing.assert_allclose([probe.time for probe in probes], [0.0, 7.0, 4.0], atol=1e-9)


def test_a_probe_whose_baseline_is_not_known_yet_has_no_place_on_the_plane_of_time_and_energy() -> None:
    first = probe(HIGHEST, None, None, time_sd=None, energy_sd=None, kind="baseline")
    (drawn,) = drawing(tuning([first], choice=None)).probes
    assert (drawn.time, drawn.setting.sm_clock_mhz) == (None, 1400)


def test_a_failed_probe_has_a_number_and_a_reason_and_no_place_on_the_planes_of_time_and_energy() -> None:
    nothing = dict.fromkeys(("time_s", "energy_j", "energy_uncertainty_j", "time_sd", "energy_sd", "cost_j"))
    failed = probe(
        HIGHEST, None, None, **nothing, iterations=0, outcome="failed", reason="no iteration ended in 60 s"
    )
    last = drawing(tuning([*TRIED, failed])).probes[3]
    assert (last.n, last.time, last.whole) == (3, None, False)
    assert last.cost == f"2.5 s, failed: {failed['reason']}"
    ElementTree.fromstring(workbench.panels.clocks(Tuner(tuning([*TRIED, failed]))).svg())


def test_the_plane_shows_the_settings_that_can_be_changed() -> None:
    assert drawing(tuning()).knobs == ("clocks",)
    assert drawing(tuning(belief=CLOCKS)).knobs == ("sm",)
    assert drawing(tuning(belief=LIMITS)).knobs == ("limit",)
    both = pl.concat([PLANE, LIMITS])
    assert drawing(tuning(belief=both)).knobs == ("clocks", "limit")
    capped = replace(CHOICE, setting=Setting(power_limit_w=300.0))
    assert drawing(tuning(belief=both, choice=capped)).knobs == ("limit", "clocks")


def test_a_line_starts_at_the_lowest_limit_and_marks_the_allowed_range() -> None:
    rows = line(surface(LIMITS), "limit")
    assert rows[:, LIMIT].tolist() == [200.0, 300.0, 400.0]
    assert rows[:, ENERGY] == pytest.approx([-5.0, -10.0, 0.0], abs=1e-3)
    assert allowed(rows[:, LIMIT], rows[:, ALLOWED]) == [(250.0, 450.0)]


def test_the_ground_of_the_clocks_is_deepest_where_most_is_saved_and_framed_where_it_is_allowed() -> None:
    shaded, kept = cells(surface(PLANE))
    assert Cell(700.0, 900.0, 0, LEVELS) in shaded  # 30 % more energy
    assert Cell(700.0, 900.0, 1, -LEVELS) in shaded  # 30 % less, the most of all
    assert not [cell for cell in shaded if cell.start == 1300.0]  # as the default
    assert kept == [Cell(1100.0, 1500.0, 1, 0)]


def test_neighbours_of_one_shade_are_one_cell() -> None:
    same = believe(
        [Setting(sm_clock_mhz=sm, mem_clock_mhz=mem) for mem in MEMORY for sm in SM], [(1.0, 0.9)] * 8
    )
    assert [cell.start for cell in cells(surface(same))[0]] == [700.0, 700.0]


def test_every_probe_is_in_sight_and_settings_much_slower_are_not() -> None:
    drawn = drawing(tuning([*TRIED, probe(Setting(sm_clock_mhz=800, mem_clock_mhz=9000), 1.22, 0.7)]))
    low, high = drawn.ranges["time"]
    assert low < 0 < 22 < high < 30
    assert drawn.ranges["energy"][0] < -30
    assert drawn.table[:, 3].max() == pytest.approx(50)


def test_the_active_setting_is_drawn_at_its_measured_or_predicted_point() -> None:
    now = drawing(tuning()).current
    assert now is not None
    assert (now.time, now.energy) == (pytest.approx(4.0), pytest.approx(-15.0))
    now = drawing(tuning(current=Setting(sm_clock_mhz=800, mem_clock_mhz=9000))).current
    assert now is not None
    assert (now.time, now.energy) == (pytest.approx(20.0, rel=1e-5), pytest.approx(-30.0, rel=1e-5))
    assert drawing(tuning(current=Setting())).current is None


# the picture


STAGES = [
    tuning(),
    tuning(belief=CLOCKS, current=Setting(sm_clock_mhz=1200)),
    tuning(belief=LIMITS, over="power"),
    tuning([], choice=None),
    tuning([], choice=None, belief=None, state="detect"),
    tuning(state="refused", refused="no rights", belief=None, choice=None),
    tuning(max_slowdown=None),
]


@pytest.mark.parametrize("shown", STAGES)
def test_the_picture_is_an_svg_without_scripts_and_marked_simulated(shown: TuningView) -> None:
    panel = workbench.panels.clocks(Tuner(shown))
    picture = "".join(ElementTree.fromstring(panel.svg()).itertext())
    assert panel.title() in picture
    assert "(simulated)" in picture
    assert "script" not in panel.svg()
    assert "nan" not in panel.svg().lower()
    assert len(panel.svg()) < 30_000


def test_the_picture_has_the_bound_the_default_the_choice_and_the_probes_in_order() -> None:
    texts = [
        each.text
        for each in ElementTree.fromstring(workbench.panels.clocks(Tuner()).svg()).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    assert {"within 5 %", "default", "choice", "1", "2", "9000"} <= set(texts)
    assert texts.count("2") == 2  # on both planes


def test_outside_of_a_front_end_it_is_a_picture_and_never_a_widget() -> None:
    assert set(bundle(workbench.panels.clocks(Tuner()))) == {"text/html", "text/plain"}


def test_at_its_end_it_leaves_the_summary_once(capsys: pytest.CaptureFixture[str]) -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    panel.start()
    tuner.stop()
    panel.finish()
    panel.finish()
    assert not panel.running
    printed = capsys.readouterr().out
    assert printed.count(panel.title()) == 1
    assert "Stopped" in printed


# views


def test_a_new_view_gets_everything_and_then_only_changes() -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    about, buffers = panel.snapshot()
    assert (about["simulated"], about["begins"]) == (True, False)
    assert list(about["objectives"]) == list(OBJECTIVES)
    plane, clocks, *_ = about["drawing"]["figure"][0]
    assert sum(len(layer["rows"]["x"]) for layer in plane["layers"] if layer["kind"] == "cloud") == 3  # near the bound
    assert {"box", "dot"} <= {layer["kind"] for layer in clocks["layers"]}

    _, buffers = later(panel) or ({}, [])
    assert buffers == []
    tuner.current_view = replace(tuner.current_view, text="Measuring", spent_s=36.0)
    content, buffers = later(panel) or ({}, [])
    assert content["words"]["headline"] == "Measuring"
    assert ("drawing" in content, buffers) == (False, [])
    assert later(panel) is None  # nothing is new

    tuner.current_view = replace(tuner.current_view, trials=pl.DataFrame([*TRIED, probe(HIGHEST, 1.01, 1.0)], schema=PROBES))
    content, buffers = later(panel) or ({}, [])
    text = [layer for layer in content["drawing"]["figure"][0][0]["layers"] if layer["kind"] == "text"]
    assert {"1", "2", "3"} <= {text for layer in text for text in layer["rows"]["text"]}
    panel.end()


def test_buttons_call_the_tuner_and_update_the_view_immediately() -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    browser = Browser(panel)
    for kind in ("pause", "start", "step", "hold", "stop"):
        ask(panel, kind)
    assert tuner.asked == ["pause", "resume", "one probe", "hold", "stop"]
    assert browser.last("news")["words"]["headline"] == "Stopped"
    assert not any(browser.last("news")["words"]["commands"].values())


def test_the_slider_moves_the_bound_and_its_end_takes_it_away() -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    browser = Browser(panel)
    ask(panel, "slowdown", percent=12.5, asked=7)
    assert tuner.asked == [{"max_slowdown": 0.125}]
    assert (browser.last("news")["asked"], browser.last("news")["words"]["bound"]) == (7, 12.5)
    ask(panel, "slowdown", percent=None, asked=8)
    assert tuner.asked[-1] == {"max_slowdown": None}
    ask(panel, "objective", name="edp")
    assert tuner.asked[-1] == {"objective": "edp"}
    assert browser.last("news")["words"]["objective"] == "edp"


def test_what_goes_wrong_is_shown_under_the_plot_and_the_slider_is_answered_all_the_same() -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    browser = Browser(panel)
    ask(panel, "slowdown", percent=300, asked=3)
    assert "100 %" in browser.last("problem")["text"]
    assert browser.last("news")["asked"] == 3
    assert browser.last("news")["words"]["bound"] == 5.0
    ask(panel, "stop")
    ask(panel, "start")
    assert "tuning has ended" in browser.last("problem")["text"]


# a tuner at work


@pytest.fixture
def working(simulated: Callable[..., Machine]) -> Iterator[TrueTuner]:
    """A tuning of the running work on a stepped A100."""
    simulated(
        "A100", stepped=True, seed=os.getpid()
    )  # a card of its own: one that another process tunes is refused
    found = list(devices())
    recorder = Recorder(found)
    tuner = TrueTuner(Meter(found, recorder), over="clocks", label="train", recheck=False)
    driver = TunerThread(tuner)
    yield tuner
    driver.end()
    recorder.stop()


def test_a_running_tuner_is_shown_from_its_start_to_its_end(working: TrueTuner) -> None:
    panel = workbench.panels.clocks(working)
    title, headline = panel.summary().splitlines()[:2]
    assert all(part in title for part in ("train", "A100", "(simulated)"))
    assert headline.startswith("Waiting")
    states = []
    for _ in TrainingJob("imagenet", batch_size=256, iterations=120, seed=1):
        marks.step()
        if working.state not in states:
            states.append(working.state)
    assert states[:2] == ["wait", "detect"], working.text
    assert {"baseline", "search"} <= set(states)
    shown = panel.tuning
    assert shown is not None
    drawn = drawing(shown)
    assert drawn.knobs == ("sm",)  # the card has one memory clock
    assert max(probe.n or 0 for probe in drawn.probes) >= 1
    assert drawn.default.setting.sm_clock_mhz == 1410
    assert len(line(drawn.table, "sm")) == 81

    chosen = []
    for percent in (20, 1):
        ask(panel, "slowdown", percent=percent)
        now = panel.tuning
        assert now is not None
        assert now.choice is not None
        chosen.append(now.choice.setting.sm_clock_mhz or 0)
    assert chosen[1] > chosen[0]  # everything measured so far is scored anew
    ask(panel, "stop")
    assert panel.tuning is not None
    assert panel.tuning.state == "done"
    assert working.phase.work is not None
    assert working.phase.work.gpus.current == Setting()
    ElementTree.fromstring(panel.svg())


# doors


def test_without_a_tuner_start_begins_one_and_stop_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner, begun = Tuner(), []

    class Begun:
        def begin(self) -> Begun:
            monkeypatch.setattr(workbench.tuning.state_machine, "latest", lambda: tuner)
            return self

        def end(self) -> None:
            begun.append("ended")

    def tune(max_slowdown: float | None, objective: str) -> Begun:
        begun.append((max_slowdown, objective))
        return Begun()

    monkeypatch.setattr(workbench.tuning.state_machine, "latest", lambda: None)
    monkeypatch.setattr(workbench.tuning.api, "tune", tune)
    panel = ClocksPanel(live=True)
    browser = Browser(panel)
    assert panel.summary().splitlines() == ["Tuning", NOTHING]
    assert "<svg" in panel.svg()
    ask(panel, "stop")
    assert "press Start" in browser.last("problem")["text"]
    ask(panel, "slowdown", percent=10, asked=1)
    ask(panel, "objective", name="edp")
    ask(panel, "start")
    assert begun == [(0.1, "edp")]
    assert browser.last("news")["words"]["state"] == "search"
    ask(panel, "stop")
    assert (tuner.asked, begun[1:]) == (["stop"], ["ended"])


def test_a_view_of_a_given_tuner_stays_when_that_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner()
    panel = ClocksPanel(tuner, live=True)
    panel.start = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr(persistent, "kernel", lambda: True)
    panel.show()
    monkeypatch.undo()
    tuner.stop()
    panel.finish()
    assert not panel.running
    assert "Stopped" in capsys.readouterr().out  # the picture that a saved notebook keeps
    assert panel.comm is not None  # and the view can be greeted again


def test_only_a_tuner_has_a_panel() -> None:
    with pytest.raises(UsageError, match="str"):
        workbench.panels.clocks("train")

    class Handle:
        tuner = Tuner()

    assert workbench.panels.clocks(Handle()).tuning is Handle.tuner.current_view


def test_no_joules_are_named_where_no_saving_is_measurable() -> None:
    saved = Saved(614.0, 1163.0, 0.01, 0.02, 0.01, 0.002, 300.0)
    assert "no measurable saving" in saved_text(tuning(saved=saved))
