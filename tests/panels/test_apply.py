"""The panel that applies a setting, without a browser."""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import workbench
import workbench.panels
from tests.panels.listening import Browser, ask, bundle, later
from workbench.device import watchdog
from workbench.device.nvml import NvmlDevice
from workbench.errors import DriverError, NotPermitted, UsageError
from workbench.measurement import session as sessions
from workbench.panels._views.apply.model import NOTHING, SAME, Applier, power
from workbench.panels._views.apply.panel import ApplyPanel
from workbench.panels._views.frontier.panel import live_point
from workbench.records import Configuration, Setting
from workbench.search.tradeoff import Work
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import ManualControl

NO_PERMISSION, LOST = 4, 15


@pytest.fixture
def machine(
    simulated: Callable[..., Machine], own_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    made = simulated("V100", stepped=True)
    yield made
    made.state.clear_faults()
    made.lose(0, 0)
    sessions.current().close()
    watchdog.stop()
    workbench.chosen.choose(None)


def limit_w(machine: Machine) -> float:
    return float(machine.state.control(0, "limit_w"))


def test_it_shows_the_active_and_chosen_settings_and_their_difference(machine: Machine) -> None:
    facts = dict(line.split(": ", 1) for line in workbench.panels.apply().summary().splitlines()[1:])
    assert facts["Active"].startswith("250 W")
    assert (facts["Chosen"], facts["Difference"]) == (NOTHING, SAME)
    assert "simulated" in facts["Rights"]
    chosen, difference, note = workbench.panels.apply(Configuration(Setting(150.0, 1005), 64)).summary().splitlines()[2:5]
    assert all(part in chosen for part in ("150 W", "1005 MHz", "batch size 64"))
    assert "→ 150 W" in difference
    assert "→ 1005 MHz" in difference
    assert "workbench.chosen.batch_size" in note
    with pytest.raises(UsageError, match="not str"):
        workbench.panels.apply("150 W")


def test_the_buttons_apply_undo_and_restore(machine: Machine) -> None:
    panel = ApplyPanel()
    browser = Browser(panel)
    ask(panel, "apply")
    assert "no setting is chosen" in browser.last("problem")["text"]
    ask(panel, "choose", power_limit_w=150, sm_clock_mhz=None, mem_clock_mhz="", batch_size=None)
    assert browser.last("news")["wanted"] == {
        "power_limit_w": 150.0,
        "sm_clock_mhz": None,
        "mem_clock_mhz": None,
        "batch_size": None,
    }
    assert limit_w(machine) == 250.0
    ask(panel, "apply")
    assert limit_w(machine) == 150.0
    news = browser.last("news")
    assert news["done"].endswith(": 150 W")
    facts = dict(news["view"]["facts"])
    assert facts["Active"].startswith("150 W (")
    assert facts["Difference"] == SAME
    assert news["view"]["can_undo"]
    assert browser.last("problem")["text"] == ""
    ask(panel, "default")
    assert limit_w(machine) == 250.0
    ask(panel, "undo")
    assert limit_w(machine) == 150.0
    ask(panel, "undo")
    assert limit_w(machine) == 250.0
    assert not browser.last("news")["view"]["can_undo"]
    ask(panel, "undo")
    assert "nothing to undo" in browser.last("problem")["text"]


def test_without_rights_it_shows_the_command(machine: Machine) -> None:
    machine.inject("nvmlDeviceSetPowerManagementLimit", NO_PERMISSION)
    panel = ApplyPanel(Setting(150.0))
    browser = Browser(panel)
    ask(panel, "apply")
    view = browser.last("news")["view"]
    assert view["command"] == f"sudo nvidia-smi -i {panel.control.device.uuid} -pl 150"
    assert "root, CAP_SYS_ADMIN" in browser.last("problem")["text"]
    assert view["command"] in panel.html()
    assert limit_w(machine) == 250.0


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ({"power_limit_w": 900}, "100..250 W"),
        ({"power_limit_w": "much"}, "'much'"),
        ({"sm_clock_mhz": 3}, "3 MHz"),
        ({"batch_size": 0}, "batch size of 0"),
    ],
)
def test_what_cannot_be_applied_is_a_sentence(machine: Machine, choice: dict[str, Any], value: str) -> None:
    panel = ApplyPanel(Setting(150.0))
    browser = Browser(panel)
    ask(panel, "choose", **choice)
    if not any(message["kind"] == "problem" for message in browser.messages):
        ask(panel, "apply")
    assert value in browser.last("problem")["text"]
    assert limit_w(machine) == 250.0


def test_a_lost_gpu_is_reported_and_nothing_can_be_applied(machine: Machine) -> None:
    panel = ApplyPanel(Setting(150.0))
    machine.lose(0, LOST)
    panel.refresh()
    assert "Active: unknown" in panel.summary()
    assert panel.applier.view is not None
    assert not panel.applier.view.can_apply


BOTH_SIZES = pl.DataFrame([
    {"time_s": time_s, "energy_j": energy_j, "power_limit_w": limit_w, "batch_size": size}
    for size, faster in ((12, 1.0), (24, 0.5))
    for time_s, energy_j, limit_w in ((faster, 200 * faster, 250.0), (1.1 * faster, 150 * faster, 150.0))
])


def test_it_takes_over_the_choice_of_a_frontier(machine: Machine) -> None:
    frontier = workbench.panels.frontier(BOTH_SIZES.filter(pl.col("batch_size") == 24), max_slowdown=0.05)
    panel = workbench.panels.apply(frontier)
    assert panel.chosen == Configuration(Setting(250.0), 24)
    frontier.step()
    assert "→ 150 W" not in panel.summary()  # beyond the bound
    frontier.choose(max_slowdown=0.2)
    assert "→ 150 W" in panel.summary()


def test_apply_proposes_no_point_of_a_batch_size_that_the_running_job_may_not_have(machine: Machine) -> None:
    frontier = workbench.panels.frontier(BOTH_SIZES, unit="sample", max_slowdown=0.5)
    panel = workbench.panels.apply(frontier)
    assert panel.chosen is None  # nobody knows the job's batch size
    with workbench.measure("train"):
        for batch in TrainingJob("librispeech", 12, machine=machine, iterations=3, evaluate=False):
            workbench.work(samples=batch.size)
            workbench.step()
        frontier.refresh()
        panel.refresh()
        assert panel.chosen == Configuration(Setting(150.0), 12)
    frontier.select(batch_size=24)
    panel.refresh()
    assert panel.chosen is None
    frontier.choose(Configuration(Setting(250.0), 24))  # somebody wants it
    assert panel.chosen == frontier.chosen


def test_after_undo_the_power_and_the_changes_stay(machine: Machine) -> None:
    panel = ApplyPanel(Setting(125.0))
    for number, _ in enumerate(TrainingJob("imagenet", 256, machine=machine, iterations=40, evaluate=False)):
        if number == 10:
            panel.apply()
        if number == 30:
            panel.undo()
    panel.refresh()
    facts = dict(panel.applier.view.facts)  # type: ignore[union-attr]
    assert len(facts["Done"].splitlines()) == 2
    assert panel.applier.followed is not None
    assert panel.applier.followed.after_w > panel.applier.followed.before_w  # type: ignore[operator]


def test_the_power_is_watched_and_drawn(machine: Machine) -> None:
    panel = ApplyPanel(Setting(125.0))
    for number, _ in enumerate(TrainingJob("imagenet", 256, machine=machine, iterations=60, evaluate=False)):
        if number == 25:
            panel.apply()
    panel.refresh()
    assert "power went from" in panel.summary()
    drawing = ElementTree.fromstring(power(panel.applier.followed))
    path = [each for each in drawing.iter() if each.tag.endswith("path")][-1]
    assert path.attrib["d"].count("L") > 100
    assert int(drawing.attrib["width"]) <= 460  # in a narrow window its letters are not shrunk
    assert "<svg" not in power(None)


def test_a_page_has_all_that_it_needs_and_only_news_is_sent(machine: Machine) -> None:
    panel = ApplyPanel(Setting(150.0))
    content, _ = panel.snapshot()
    assert content["knobs"]["limits"] == [100.0, 250.0, 250.0]
    assert content["knobs"]["sm"][0] == 1380
    assert content["knobs"]["memory"] == []  # the V100 has one memory clock
    assert content["gpus"] == [[panel.control.device.uuid, f"0: {panel.control.device.name}"]]
    assert later(panel) is not None
    assert later(panel) is None
    machine.state.change_setting(0, limit_w=180.0)
    news = later(panel)
    assert news is not None
    assert dict(news[0]["view"]["facts"])["Active"].startswith("180 W (")
    panel.end()


def test_the_picture_escapes_and_needs_no_script(machine: Machine) -> None:
    panel = ApplyPanel(Setting(150.0))
    panel.report_error("<script>")
    assert "<script" not in panel.html()
    assert "&lt;script&gt;" in panel.html()
    assert "text/html" in bundle(panel)


# in the frontier's panel

POINTS = pl.DataFrame({
    "time_s": [10.0, 11.0, 14.0], "energy_j": [2500.0, 2100.0, 2000.0],
    "power_limit_w": [250.0, 200.0, 150.0], "measured": [False, True, True],
})


def test_a_step_on_the_frontier_is_applied_and_undone_where_it_is_chosen(machine: Machine) -> None:
    panel = workbench.panels.frontier(POINTS)
    browser = Browser(panel)
    greeted, _ = panel.snapshot()
    assert (": 250 W · " in greeted["applied"]["view"]["status"], greeted["applied"]["view"]["can_undo"]) == (True, False)
    ask(panel, "apply", row=1, rule="hand", eta=0.5, slowdown=None, version=greeted["choice"]["version"])
    assert limit_w(machine) == 150.0
    assert browser.last("applied")["done"].endswith(": 150 W")
    assert (": 150 W · " in browser.last("applied")["view"]["status"], browser.last("applied")["view"]["can_undo"]) == (True, True)
    ask(panel, "undo")
    assert limit_w(machine) == 250.0
    assert not browser.last("applied")["view"]["can_undo"]
    panel.apply()
    assert limit_w(machine) == 150.0
    panel.undo()


def test_a_default_that_was_not_measured_is_the_origin_and_marked_as_predicted(machine: Machine) -> None:
    panel = workbench.panels.frontier(POINTS, eta=1.0)
    assert panel.summary().splitlines()[1].startswith("−20 % energy")
    assert "250 W (predicted" in panel.summary()


def test_all_gpus_are_changed_together_or_none(
    simulated: Callable[..., Machine], own_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100,V100", stepped=True)

    def limits() -> list[float]:
        return [float(machine.state.control(number, "limit_w")) for number in (0, 1)]

    applier = Applier()
    applier.take_gpu("all")
    applier.choose(Setting(200.0))
    applier.apply()
    assert limits() == [200.0, 200.0]
    applier.refresh()
    assert applier.state()["done"].endswith("on 2 GPUs")
    applier.undo()
    assert limits() == [250.0, 250.0]
    refuses = applier.controls[1].device

    write = NvmlDevice.write

    def no(self: NvmlDevice, setting: Setting) -> Setting:
        if self is refuses:
            raise NotPermitted("no")
        return write(self, setting)

    monkeypatch.setattr(NvmlDevice, "write", no)
    with pytest.raises(NotPermitted):
        applier.apply()
    assert limits() == [250.0, 250.0]


def test_undone_on_all_gpus_nothing_of_it_stays_chosen_and_one_that_fails_stops_no_other(
    simulated: Callable[..., Machine], own_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("V100,V100,V100", stepped=True)

    def limits() -> list[float]:
        return [float(machine.state.control(number, "limit_w")) for number in range(3)]

    before = workbench.chosen.configuration
    applier = Applier()
    applier.take_gpu("all")
    applier.choose(Configuration(Setting(200.0), 64))
    applier.apply()
    applier.undo()
    assert workbench.chosen.configuration == before

    applier.apply()
    undo, fails = ManualControl.undo, list(applier.controls[1:])

    def no(self: ManualControl) -> str:
        if self in fails:
            raise DriverError(f"GPU {applier.controls.index(self)} does not answer")
        return undo(self)

    monkeypatch.setattr(ManualControl, "undo", no)
    with pytest.raises(DriverError, match=r"GPU 2 .*GPU 1 "):
        applier.undo()
    assert limits() == [250.0, 200.0, 200.0]
    fails.clear()
    applier.undo()
    assert limits() == [250.0, 250.0, 250.0]

    write, refuses = NvmlDevice.write, applier.controls[2].device

    def refused(self: NvmlDevice, setting: Setting) -> Setting:
        if self is refuses:
            raise NotPermitted("root, CAP_SYS_ADMIN")
        return write(self, setting)

    fails.append(applier.controls[1])
    monkeypatch.setattr(NvmlDevice, "write", refused)
    with pytest.raises(NotPermitted, match="root, CAP_SYS_ADMIN; GPU 1"):
        applier.apply()
    assert limits() == [250.0, 200.0, 250.0]
    fails.clear()
    applier.undo()
    assert limits() == [250.0, 250.0, 250.0]
    workbench.chosen.choose(None)


def test_a_running_job_has_a_place_of_its_own_among_the_points(machine: Machine) -> None:
    device = ApplyPanel().control.device
    assert live_point(device, Work("iteration")) is None
    with workbench.measure("train"):
        for _ in TrainingJob("imagenet", 256, machine=machine, iterations=8, evaluate=False):
            workbench.step()
        found = live_point(device, Work("iteration"))
        of_a_sample = live_point(device, Work("sample"), 256)
        assert live_point(device, Work("epoch")) is live_point(device, Work("sample")) is None
    assert found is not None
    assert of_a_sample is not None
    assert 0.3 < found["time"] < 1.0
    assert found["energy"] == pytest.approx(found["time"] * found["power"])
    assert of_a_sample["time"] == pytest.approx(found["time"] / 256)
    assert live_point(device, Work("iteration")) is None  # nobody notes marks any more
