"""The panel of a job on several GPUs, without a browser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import workbench
from tests.panels.listening import Browser, ask
from tests.panels.made_jobs import COUNT, made_job, unknown_job
from workbench.device import watchdog
from workbench.errors import UsageError
from workbench.jobs import report
from workbench.jobs.records import JobMeasurement, Rank
from workbench.logbook.report import Report
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.panels._core.svg import Picture
from workbench.panels._views.job import model
from workbench.panels._views.job.figure import MOST_LANES, arranged, draw_lanes
from workbench.panels._views.job.panel import JobPanel
from workbench.panels._views.power.panel import PowerView
from workbench.records import Setting
from workbench.simulation.machine import Machine

POINTS = pl.DataFrame({"time_s": [0.31, 0.33, 0.36], "energy_j": [1310.0, 1180.0, 1100.0],
                       "power_limit_w": [400.0, 300.0, 250.0], "unit": ["iteration"] * 3})


def drawn(job: JobMeasurement) -> Picture:
    picture = Picture("lanes")
    assert job.waiting is not None
    draw_lanes(picture, job.waiting, report.names_of(job))
    return picture


@pytest.fixture
def machine(simulated: Callable[..., Machine], own_session: None) -> Iterator[Machine]:
    made = simulated(",".join(["A100"] * 4), stepped=True)
    yield made
    sessions.current().close()
    watchdog.stop()
    workbench.chosen.choose(None)


def test_the_first_line_names_the_straggler_gpu_and_the_cost_of_waiting() -> None:
    job = made_job()
    waiting = job.waiting
    assert waiting is not None
    assert waiting.energy_j is not None
    waits_s = [gpu.wait_s for gpu in waiting.gpus if gpu.uuid != waiting.straggler]
    first, second, cause, *_ = model.sentences(job)
    assert first == (
        f"GPU 5 keeps the others waiting {1000 * np.mean(waits_s):.1f} ms of each 310 ms iteration; the waiting costs "
        f"{waiting.energy_j:.1f} J per iteration ({COUNT * waiting.energy_j / 1000:.2f} kJ in all)"
    )
    assert second == "An iteration would take 15.0 ms less if GPU 5 were as fast as the next slowest GPU"
    assert cause == waiting.reason


def test_other_answers() -> None:
    equal, unknown, one = made_job(straggler=None), unknown_job(), made_job(1, straggler=None)
    assert model.sentences(equal)[0] == "No GPU keeps the others waiting"
    assert model.sentences(unknown)[0].startswith("Which GPU the others wait for is unknown: the GPUs are busy while they wait")
    assert model.sentences(one)[0] == "The job has one GPU: no other waits for it"
    assert model.sentences(made_job(2, straggler=1))[0].startswith("GPU 1 keeps the other waiting")
    assert model.sentences(replace(equal, waiting=None))[0].startswith("55.6 kJ")


def test_a_rank_that_died_or_came_late_is_reported_first_and_listed() -> None:
    job = unknown_job()
    assert model.sentences(job)[-1] == job.notes[0]
    details = model.details_html(job).replace("\N{NO-BREAK SPACE}", " ")
    for text in ("died after 6.3 s", "late by 1.2 s", "344064", "6.939 ± 0.021 kJ"):
        assert text in details
    assert "clock" not in details.replace("SM clock", "")  # of nodes: there is one


def test_gpus_of_several_nodes_have_the_name_of_their_node_and_its_skew() -> None:
    job = made_job(16, 2, straggler=13)
    assert model.sentences(job)[0].startswith("GPU 5 of node-b keeps")
    assert report.names_of(job)["GPU-13"] == ("2: GPU 5", "GPU 5 of node-b")
    details = model.details_html(job).replace("\N{NO-BREAK SPACE}", " ")
    assert "reference" in details
    assert "−3.10 ± 0.40 ms" in details


def test_a_gpu_without_a_rank_is_listed_too() -> None:
    job = replace(made_job(), ranks=(Rank(0, "node-a", 7, ("GPU-0", "GPU-1")),))
    details = model.details_html(job).replace("\N{NO-BREAK SPACE}", " ")
    assert re.search("0: .*, 1: ", details)
    assert details.count("<tr") == 1 + 1 + 6


def test_few_gpus_have_a_lane_each_and_of_many_the_slowest_and_the_fastest() -> None:
    for count in (1, 2, 8, MOST_LANES):
        lanes = arranged(made_job(count, straggler=None if count == 1 else 1).waiting.gpus)  # type: ignore[union-attr]
        assert [lane.gpu.index for lane in lanes] == list(range(count))
        assert not any(lane.thin for lane in lanes)
    lanes = arranged(made_job(64, 8, straggler=37).waiting.gpus)  # type: ignore[union-attr]
    assert lanes[0].gpu.uuid == "GPU-37"
    waits_s = [lane.gpu.wait_s or 0.0 for lane in lanes]
    assert waits_s == sorted(waits_s)
    assert [lane.thin for lane in lanes] == [False] * 4 + [True] * 56 + [False] * 4
    tops = [lane.bottom + lane.height for lane in lanes]
    assert tops[1:] == pytest.approx([lane.bottom for lane in lanes[:-1]])
    assert lanes[-1].bottom == 0.0
    assert tops[0] < 400


@pytest.mark.parametrize("job", [made_job(), made_job(64, 8, straggler=37), unknown_job()])
def test_the_picture_and_the_browser_get_the_same_lanes(job: JobMeasurement) -> None:
    picture = drawn(job)
    [[frame]] = picture.described()
    root = ElementTree.fromstring(picture.svg())
    texts = {each.text for each in root.iter() if each.tag.endswith("text")}
    assert {name for _, name in frame["left"]} <= texts
    titles = [each.text for each in root.iter() if each.tag.endswith("title")][1:]
    assert len(titles) == len(job.measurement.gpus)  # one for each GPU's power
    waits = [row for layer in frame["layers"] if layer["kind"] == "box" and not layer["hover"] for row in layer["rows"]["left"]]
    labels = [text for layer in frame["layers"] if layer["kind"] == "text" for text in layer["rows"]["text"]]
    known = job.waiting is not None and job.waiting.known
    assert len(waits) == (len(job.measurement.gpus) - 1) * known
    assert ("the others wait for it" in labels) is known


def test_the_pointer_gets_the_power_and_the_state_of_each_part() -> None:
    [[frame]] = drawn(made_job()).described()
    hover = next(layer for layer in frame["layers"] if layer["hover"])
    rows = list(zip(*(hover["rows"][f"hover{n}"] for n in range(4)), strict=True))
    assert hover["hover"] == ["GPU", "at", "power", "state"]
    assert len(rows) == 8 * 40
    gpu, at, power, state = rows[35]  # of GPU 0, which waits from 262 to 285 ms
    assert (gpu, at, power, state[:5]) == ("GPU 0", "271 to 279 ms", "210 W", "waits")
    assert rows[0][3].startswith("works ")
    assert rows[39][3] == "all go on"


def test_nothing_is_drawn_without_power_and_times_and_missing_readings_are_gaps() -> None:
    waiting = unknown_job().waiting
    assert waiting is not None
    bare = replace(waiting, gpus=tuple(replace(gpu, power_w=()) for gpu in waiting.gpus))
    picture = Picture("")
    draw_lanes(picture, bare, report.own_names(bare.gpus))
    assert picture.described() == []
    holes = tuple(replace(gpu, power_w=(float("nan"), *gpu.power_w[1:])) for gpu in waiting.gpus)
    draw_lanes(picture, replace(waiting, gpus=holes), report.own_names(holes))
    empty = tuple(replace(gpu, power_w=(float("nan"),) * 4) for gpu in waiting.gpus)
    draw_lanes(picture, replace(waiting, gpus=empty), report.own_names(empty))
    assert "nan" not in picture.svg()


def test_each_gpu_gets_its_own_setting_and_undo_restores_it(machine: Machine) -> None:
    uuids = [device.uuid for device in sessions.current().devices]
    limits = {uuids[0]: Setting(300.0), uuids[2]: Setting(250.0), "elsewhere": Setting(200.0)}

    def now() -> list[float]:
        return [float(machine.state.control(number, "limit_w")) for number in range(4)]

    panel = workbench.panels.job(made_job(4, straggler=1, uuids=uuids), settings=limits, live=True)
    browser = Browser(panel)
    greeted, _ = panel.snapshot()
    assert greeted["settings"]["name"] == "Apply to 2 GPUs"
    assert "not\N{NO-BREAK SPACE}on\N{NO-BREAK SPACE}this\N{NO-BREAK SPACE}machine" in greeted["settings"]["table"]
    ask(panel, "apply")
    assert now() == [300.0, 400.0, 250.0, 400.0]
    told = browser.last("applied")
    assert told["done"] == "applied, and read back: one setting each on 2 GPUs"
    assert told["view"]["can_undo"]
    assert "300\N{NO-BREAK SPACE}W" in panel.html()
    panel.undo()
    assert now() == [400.0] * 4
    panel.end()


def test_if_one_gpu_refuses_its_setting_the_others_are_restored(machine: Machine) -> None:
    uuids = [device.uuid for device in sessions.current().devices]
    panel = JobPanel(made_job(4, straggler=1, uuids=uuids), settings={uuids[0]: Setting(300.0), uuids[2]: Setting(9000.0)})
    browser = Browser(panel)
    ask(panel, "apply")
    assert "9000" in browser.last("problem")["text"]
    assert [float(machine.state.control(number, "limit_w")) for number in range(4)] == [400.0] * 4
    panel.end()


def test_settings_of_another_machine_are_shown_and_not_applied(machine: Machine) -> None:
    panel = workbench.panels.job(made_job(4, straggler=1), settings={"GPU-0": Setting(300.0)})
    assert panel.snapshot()[0]["settings"]["name"] == ""
    with pytest.raises(UsageError, match="settings="):
        panel.apply()


def test_the_frontier_below_sets_all_gpus_of_the_job(machine: Machine) -> None:
    uuids = [device.uuid for device in sessions.current().devices]
    panel = workbench.panels.job(made_job(4, straggler=1, uuids=uuids), points=POINTS, live=True)
    below = panel.frontier
    assert below is not None
    assert below.work.unit == "iteration"
    below.choose(1)
    below.apply()
    assert [float(machine.state.control(number, "limit_w")) for number in range(4)] == [300.0] * 4
    below.undo()
    assert panel.box.children == (panel, below)
    assert "on the frontier" in panel.summary()
    assert below.svg() in panel.html()


def test_runs_of_the_same_label_and_as_many_gpus_are_the_points_of_the_log(
    tmp_path: Path, simulated: Callable[..., Machine],
) -> None:
    store, whole = Store(tmp_path), made_job().measurement
    for number, limit_w in enumerate((700.0, 500.0, 500.0)):
        gpus = tuple(replace(gpu, setting=Setting(limit_w)) for gpu in whole.gpus[:8 - number // 2])
        store.save(replace(whole, id=f"run-{number}", gpus=gpus))
    panel = workbench.panels.job(made_job(), store=store)
    assert panel.frontier is not None
    assert panel.frontier.analysis is not None
    assert len(panel.frontier.analysis.points) == 2  # the third one had seven GPUs
    assert panel.frontier.work.unit == "iteration"
    assert workbench.panels.job(made_job(), store=Store(tmp_path / "none")).frontier is None


def test_show_opens_it_and_another_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    assert isinstance(workbench.show(made_job()), JobPanel)
    with pytest.raises(UsageError, match="expected a measured job"):
        workbench.panels.job(made_job().measurement)  # type: ignore[arg-type]


def test_the_view_of_a_cell_ends_with_lanes_only_if_it_is_known_who_waits(machine: Machine) -> None:
    here = sessions.current()
    job = made_job(4, straggler=1, uuids=[device.uuid for device in here.devices])

    def finished(**more: object) -> PowerView:
        assert here.recorder is not None
        view = PowerView(here.recorder, here.devices, period=False)
        machine.step(1.0)
        view.finish(Report(job.measurement), **more)  # type: ignore[arg-type]
        return view

    plain, known = finished(), finished(waiting=job.waiting)
    assert plain.snapshot()[0]["lanes"] == []
    assert plain.snapshot()[0]["result"]["answer"] == Report(job.measurement).answer()
    assert len(known.snapshot()[0]["lanes"]) == 1
    assert "GPU 1 keeps the others waiting" in known.snapshot()[0]["result"]["answer"]
    unknown = finished(waiting=replace(job.waiting, known=False, reason="busy"))
    assert unknown.snapshot()[0]["lanes"] == []
    assert "Which GPU the others wait for is unknown: busy" in unknown.snapshot()[0]["result"]["answer"]
