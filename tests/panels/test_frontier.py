"""The panel of a frontier, without a browser."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench.panels
from tests.panels.listening import Browser, ask, bundle, later
from workbench.errors import StoreError, UsageError
from workbench.experiments.history.attempts import Attempt
from workbench.experiments.sweep import Sweep
from workbench.experiments.trial import TRIALS
from workbench.logbook.store import as_frame, export
from workbench.panels._views.frontier.panel import FrontierPanel
from workbench.panels._views.frontier.sources import of_attempts, source
from workbench.records import Configuration, GpuMeasurement, Measurement, Observation, Setting, WorkDone
from workbench.tariff import Tariff

POINTS = pl.DataFrame(
    {
        "power_limit_w": [300.0, 250.0, 200.0, 150.0, 300.0, 250.0, 200.0, 150.0],
        "batch_size": [64] * 4 + [32] * 4,
        "time_s": [10.0, 10.4, 12.0, 20.0, 12.0, 12.5, 14.0, 22.0],
        "energy_j": [3000.0, 2600.0, 2200.0, 2400.0, 3300.0, 2900.0, 2500.0, 2600.0],
        "energy_se_j": [10.0] * 8,
        "measured": [True, True, True, False] * 2,
    }
)


def at(limit_w: float | None, batch_size: int | None = 64) -> Configuration:
    return Configuration(Setting(power_limit_w=limit_w), batch_size)


@pytest.fixture
def panel() -> FrontierPanel:
    return workbench.panels.frontier(
        POINTS, unit="epoch", epochs=90, tariff=Tariff(0.3, "EUR", 400.0), max_slowdown=0.05
    )


def version(panel: FrontierPanel) -> int:
    """Of the points that a browser was sent."""
    return int((panel.news(whole=True) or ({}, []))[0]["choice"]["version"])


def tell(panel: FrontierPanel, **change: Any) -> None:
    chosen = panel.choice
    ask(
        panel,
        "choose",
        **{
            "row": chosen.row,
            "rule": chosen.rule,
            "eta": chosen.eta,
            "slowdown": None,
            "version": version(panel),
            "asked": 1,
            **change,
        },
    )


# the summary


def test_it_shows_the_choice_its_cost_its_saving_and_the_uncertainty(panel: FrontierPanel) -> None:
    parts = [
        (), ("−13 % energy", "+4.0 % time", "250 W", "batch size 64"),
        ("5 % slower", "10.4 s", "2.600 ± 0.020 kJ", "300 W"), ("144.0 ± 10.0 kJ", "0.012 EUR", "16 gCO2", "2 min 24 s"),
        ("400 ± 28 J", "0.001 EUR", "0.044 gCO2", "0.4 s"), ("36.0 ± 2.5 kJ", "0.0030 EUR", "4.0 gCO2", "36 s"),
        ("Pareto-optimal",), ("6 ", "2 predicted", "3 on"),
        ("workbench.Configuration(workbench.Setting(power_limit_w=250), batch_size=64)",),
    ]
    assert all(part in line for line, row in zip(panel.summary().splitlines(), parts, strict=True) for part in row)


def test_a_dominated_point_and_a_prediction_are_labelled(panel: FrontierPanel) -> None:
    panel.choose(at(150.0))
    assert all(part in panel.summary() for part in ("+100 % time", "(predicted)", "Dominated", "200 J less", "8 s less"))


def test_a_single_point_is_shown_as_one() -> None:
    alone = workbench.panels.frontier(POINTS.head(1))
    assert "Only one configuration" in alone.summary()
    assert alone.step() == alone.step(-1) == at(300.0)
    ElementTree.fromstring(alone.svg())


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (POINTS.clear(), "no points"),
        ([], "no points"),
        (POINTS.with_columns(energy_j=pl.lit(-1.0)), "row 0 .*-1"),
        (POINTS.with_columns(time_s=pl.lit(math.inf)), "row 0 .*inf"),
        (3, "got int"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_sentence(given: Any, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        workbench.panels.frontier(given)


def test_single_bad_rows_are_left_out_and_reported() -> None:
    panel = workbench.panels.frontier(
        POINTS.with_columns(time_s=pl.when(pl.int_range(8) == 6).then(math.nan).otherwise(pl.col("time_s")))
    )
    assert "1 of 8" in panel.summary()
    assert "row 6 has nan" in panel.summary()


def test_arguments_that_make_no_sense_are_refused(panel: FrontierPanel) -> None:
    for wrong, sentence in (
        ({"eta": 2.0}, "eta=2"),
        ({"max_slowdown": -1.0}, "max_slowdown=-1"),
        ({"unit": "week"}, "for one 'week'"),
        ({"default": at(99.0)}, "99 W"),
    ):
        with pytest.raises(UsageError, match=sentence):
            workbench.panels.frontier(POINTS, **wrong)
    with pytest.raises(UsageError, match=r"175 W.*8 shown points"):
        panel.choose(at(175.0))


# choosing


def test_steps_go_along_the_frontier_within_the_bound(panel: FrontierPanel) -> None:
    assert panel.step(-1) == at(300.0)
    assert panel.step(-1) == at(300.0)
    assert panel.step(5) == at(250.0)  # the bound is 5 %
    panel.choose(max_slowdown=None)
    assert panel.chosen == at(200.0)
    assert panel.choose(eta=0.0) == at(300.0)


def test_every_new_choice_reaches_its_callbacks(panel: FrontierPanel) -> None:
    heard: list[Configuration] = []
    end = panel.on_choice(heard.append)
    panel.step(-1)
    panel.step(-1)  # still the same
    tell(panel, rule="eta", eta=1.0)
    assert heard == [at(300.0), at(200.0)]
    end()
    panel.step(-1)
    assert len(heard) == 2


def test_an_error_of_a_listener_is_shown_and_the_choice_is_kept(panel: FrontierPanel) -> None:
    browser = Browser(panel)
    panel.on_choice(lambda chosen: 1 // 0)
    assert panel.step(-1) == at(300.0)
    assert browser.last("problem")["text"].startswith("ZeroDivisionError")


def test_a_point_chosen_in_the_browser_is_confirmed_with_its_line_of_python_in_few_bytes(
    panel: FrontierPanel,
) -> None:
    browser = Browser(panel)
    tell(panel, row=2, rule="hand", asked=7)
    assert panel.chosen == at(200.0)
    answer = browser.last("choice")
    assert (answer["asked"], answer["row"]) == (7, 2)
    assert "power_limit_w=200" in answer["python"]
    assert [message["kind"] for message in browser.messages] == ["pong", "choice"]
    assert len(str(answer)) < 3000


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"row": 99, "rule": "hand"}, "point 99"),
        ({"rule": "luck"}, "not by 'luck'"),
        ({"eta": math.nan}, "eta=nan"),
        ({"slowdown": -3}, "max_slowdown=-0.03"),
    ],
)
def test_a_bad_message_of_the_browser_is_reported_and_changes_nothing(
    panel: FrontierPanel, change: dict[str, Any], part: str
) -> None:
    browser = Browser(panel)
    tell(panel, **change)
    assert part in browser.last("problem")["text"]
    assert panel.chosen == at(250.0)
    assert browser.last("choice")["row"] == panel.choice.row


def test_a_click_on_points_that_have_been_replaced_chooses_nothing(panel: FrontierPanel) -> None:
    old, chosen = version(panel), panel.chosen
    panel.update(POINTS.reverse())
    browser = Browser(panel)
    tell(panel, row=0, rule="hand", version=old)
    assert panel.chosen == chosen
    assert browser.last("choice")["row"] == panel.choice.row


def test_a_stale_choice_moves_to_the_nearest_point_with_a_note(panel: FrontierPanel) -> None:
    heard: list[Configuration] = []
    panel.choose(at(250.0))
    panel.on_choice(heard.append)
    browser = Browser(panel)
    panel.update(POINTS.filter(pl.col("power_limit_w") != 250.0))
    assert panel.chosen == at(300.0)
    assert heard == [at(300.0)]
    note = browser.last("points")["choice"]["note"]
    assert re.search("250 W.*300 W", note)
    assert note in panel.summary()


def test_a_rule_follows_new_points_and_reports_the_move(panel: FrontierPanel) -> None:
    better = pl.DataFrame(
        {
            "power_limit_w": [240.0],
            "batch_size": [64],
            "time_s": [10.3],
            "energy_j": [2000.0],
            "energy_se_j": [1.0],
            "measured": [True],
        }
    )
    panel.update(pl.concat([POINTS, better], how="diagonal_relaxed"))
    assert panel.chosen == at(240.0)
    assert re.search("250 W.* to 240 W", panel.summary())


def test_batch_sizes_gpus_jobs_and_predictions_are_selected(panel: FrontierPanel) -> None:
    panel.select(batch_size=32)
    assert panel.analysis is not None
    assert panel.analysis.points["batch_size"].unique().to_list() == [32]
    panel.select(predicted=False)
    assert len(panel.analysis.points) == 3
    with pytest.raises(UsageError, match=r"batch_size 48.*32, 64"):
        panel.select(batch_size=48)
    panel.select(batch_size="all", predicted=True)
    assert len(panel.analysis.points) == 8
    several = pl.concat(
        [
            POINTS.with_columns(gpu=pl.lit("A"), job=pl.lit("x")),
            POINTS.head(3).with_columns(gpu=pl.lit("B"), job=pl.lit("x")),
            POINTS.head(2).with_columns(gpu=pl.lit("A"), job=pl.lit("y")),
        ]
    )
    other = workbench.panels.frontier(several)
    assert other.title().endswith(": x, A")  # the commonest of each
    other.select(gpu="all")
    assert other.analysis is not None
    assert len(other.analysis.points) == 11
    with pytest.raises(UsageError, match="job 'all'"):
        other.select(job="all")  # different work cannot be compared
    with pytest.raises(UsageError, match="no point"):
        other.select(gpu="B", job="y")
    assert len(other.analysis.points) == 11


def test_a_default_that_is_not_selected_gives_way_to_one_that_is() -> None:
    panel = workbench.panels.frontier(POINTS, default=at(250.0, 64))
    assert "(as given)" in panel.summary()
    panel.select(batch_size=32)
    assert "default is 300 W" in panel.summary()
    assert "(as given)" not in panel.summary()


# sources


def measured(
    name: str,
    limit_w: float | None,
    time_s: float,
    energy_j: float,
    label: str = "train",
    outcome: str = "ok",
) -> Measurement:
    gpu = GpuMeasurement(
        "A card",
        "u",
        energy_j,
        1.96,
        "counter",
        True,
        setting=Setting(power_limit_w=limit_w),
        power_limit_w=300.0,
    )
    return Measurement(name, label, 0.0, time_s, (gpu,), outcome=outcome)


def test_the_log_gives_setting_job_gpu_error_and_measurement() -> None:
    log = [
        measured("a", None, 10.0, 3000.0),
        measured("b", 200.0, 12.0, 2200.0),
        measured("c", 200.0, 13.0, 2300.0, outcome="error"),
        measured("d", 100.0, 1.0, 10.0, label="other"),
    ]
    for given in (log, as_frame(log)):
        panel = workbench.panels.frontier(given)
        assert panel.analysis is not None
        assert panel.title().endswith(": train, A card (simulated)")
        assert panel.analysis.points.select("power_limit_w", "time_s", "energy_se_j", "measurements").rows() == [
            (300.0, 10.0, 1.0, ["a"]),
            (200.0, 12.0, 1.0, ["b"]),
        ]
    with pytest.raises(UsageError, match="1 measurements"):
        workbench.panels.frontier([measured("c", 200.0, 13.0, 2300.0, outcome="error")])


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_a_log_that_was_exported_is_shown_as_the_log_itself(tmp_path: Path, ending: str) -> None:
    log = as_frame([measured("a", None, 10.0, 3000.0), measured("b", 200.0, 12.0, 2200.0)])
    given = workbench.panels.frontier(log).analysis
    shown = workbench.panels.frontier(export(log, tmp_path / f"energy.{ending}")).analysis
    assert given is not None
    assert shown is not None
    assert shown.points.equals(given.points)


def test_a_log_whose_nested_columns_are_no_json_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = export(as_frame([measured("a", None, 10.0, 3000.0)]), tmp_path / "energy.csv")
    path.write_text(path.read_text().replace("[{", "{{"))
    with pytest.raises(UsageError, match=r"energy\.csv"):
        workbench.panels.frontier(path)


def test_observations_are_points_of_a_unit_of_work_and_know_their_configuration() -> None:
    slow, fast = Observation(at(150.0, 32), 10.0, 20.0, 2100.0, 8.0), Observation(at(200.0, 32), 20.0, 24.0, 4400.0, 8.0)
    panel = workbench.panels.frontier([slow, slow + slow, fast])
    assert panel.analysis is not None
    points = panel.analysis.points.sort("time_s")
    assert points["time_s"].to_list() == pytest.approx([1.2, 2.0])
    assert points["energy_j"].to_list() == pytest.approx([220.0, 210.0])
    assert points["power_limit_w"].to_list() == [200.0, 150.0]
    assert points["batch_size"].to_list() == [32, 32]
    with pytest.raises(UsageError, match="counted no work"):
        workbench.panels.frontier([fast, Observation(at(150.0, 32), 0.0, 12.0, 2100.0)])


def test_a_recurring_job_has_runs_and_the_limits_of_its_profile_as_predictions() -> None:
    attempts = [
        Attempt(
            0,
            64,
            state="reached",
            power_limit_w=300.0,
            epochs=10,
            time_s=100.0,
            energy_j=25_000.0,
            profile=((300.0, 10.0, 250.0), (200.0, 12.0, 180.0)),
        ),
        Attempt(1, 128, state="stopped", epochs=3, time_s=50.0, energy_j=9000.0),
    ]
    assert of_attempts(attempts).select("time_s", "energy_j", "power_limit_w", "measured").rows() == [
        (100.0, 25_000.0, 300.0, True),
        (100.0, 25_000.0, 300.0, False),
        (120.0, 21_600.0, 200.0, False),
    ]
    panel = workbench.panels.frontier(attempts, eta=1.0)
    assert panel.work.unit == "job"
    assert panel.chosen == at(200.0)
    assert "1 predicted" in panel.summary()


class Given(Executor):
    """Ends trials immediately, with given outcomes."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)

    def submit(self, function: Any, configuration: Configuration, /, *others: Any) -> Future[dict[str, Any]]:
        done: Future[dict[str, Any]] = Future()
        asked = {**asdict(configuration.setting), "batch_size": configuration.batch_size}
        done.set_result({**dict.fromkeys(TRIALS), **asked, **self.rows.pop(0)})
        return done


FAILED = {"outcome": "error", "reason": "ValueError: no data", "raised_at": "/home/me/train.py:3"}
OK = {"outcome": "ok", "reason": "", "gpu": "A card", "samples": 1000.0, "simulated": True, "measurement": "m",
      "time_s": 0.01, "energy_j": 2.0}


def swept(*rows: dict[str, Any], **options: Any) -> Sweep:
    space = {"batch_size": [32, 64], "power_limit_w": [150.0, 200.0, 250.0]}
    return Sweep(lambda batch_size: 1000.0, space, executor=Given(*rows), **options)


def test_a_sweep_whose_work_fails_shows_the_error_in_place_of_points() -> None:
    sweep = swept(*[FAILED] * 4, order="grid")
    panel = workbench.panels.frontier(sweep, live=True)
    for _ in sweep:
        message = later(panel)
        assert message is not None
        assert "no data (/home/me/train.py:3)" in message[0]["said"]
    assert "4 trials" in panel.summary()
    steps = iter(mixed := swept(FAILED, OK))
    next(steps), next(steps)
    panel = workbench.panels.frontier(mixed)
    assert panel.chosen is not None
    assert "ValueError: no data" in panel.summary()


def test_a_sweep_fills_the_frontier_and_viewing_it_does_not_change_its_order() -> None:
    rows = [OK, {**OK, "time_s": 0.012}, OK]
    sweep, alone = swept(*rows), swept(*rows)
    panel = workbench.panels.frontier(sweep, live=True)
    assert panel.chosen is None
    assert "No measurements" in panel.summary()
    ElementTree.fromstring(panel.svg())
    steps, others = iter(sweep), iter(alone)
    trials = [next(steps), next(steps)]
    message = later(panel)
    assert message is not None
    assert len(message[0]["view"]["table"][0]["values"]) == 6  # two measured, four predicted
    assert panel.work.unit == "sample"
    assert panel.title().endswith("(simulated)")
    assert later(panel) is None  # nothing new
    assert [*trials, next(steps)] == [next(others) for _ in rows]


def test_a_file_that_was_exported_is_shown_again(panel: FrontierPanel, tmp_path: Path) -> None:
    for name in ("f.csv", "f.parquet"):
        again = workbench.panels.frontier(panel.export(tmp_path / name))
        assert again.analysis is not None
        assert sorted(again.analysis.points["energy_j"]) == sorted(POINTS["energy_j"])
    assert panel.export(tmp_path / "f.svg").read_text().startswith("<svg")
    table = pl.read_csv(io.BytesIO((tmp_path / "f.csv").read_bytes()))
    assert table.filter("chosen")["power_limit_w"].to_list() == [250.0]
    assert table["on_frontier"].sum() == 3
    with pytest.raises(UsageError, match=r"\.png"):
        panel.export(tmp_path / "f.png")
    with pytest.raises(StoreError, match=r"f\.csv"):
        panel.export(tmp_path / "nowhere" / "f.csv")
    with pytest.raises(UsageError, match=r"none\.csv"):
        workbench.panels.frontier(tmp_path / "none.csv")


# views and pictures


def test_a_new_view_gets_all_points_once(panel: FrontierPanel) -> None:
    content, (buffer,) = panel.snapshot()
    view, choice = content["view"], content["choice"]
    columns = {column["name"]: column for column in view["table"]}
    assert panel.analysis is not None
    assert columns["time"]["values"] == panel.analysis.points["time_s"].to_list()
    assert columns["energy vs. default"]["texts"][1] == "−13 %"
    places = np.frombuffer(buffer, np.float32).reshape(-1, 2)
    assert places[:, 0] == pytest.approx(panel.analysis.points["time_s"].to_numpy())
    assert places[:, 1] == pytest.approx(panel.analysis.points["energy_j"].to_numpy() / 1000)
    assert view["front"] == [0, 1, 2]
    assert (choice["rule"], choice["slowdown"], choice["row"], choice["allowed"]) == ("slowdown", 5.0, 1, 2)


def test_a_step_shows_the_text_that_the_kernel_sends_later(panel: FrontierPanel) -> None:
    browser = Browser(panel)
    view = panel.snapshot()[0]["view"]
    panel.choose(max_slowdown=None)
    for place, row in enumerate(view["front"]):
        panel.choose(row)
        answer = browser.last("choice")
        assert (answer["place"], answer["on"]) == (place, True)
        assert {name: answer[name] for name in view["steps"][place]} == view["steps"][place]
    panel.choose(at(150.0))  # predicted and dominated
    assert not browser.last("choice")["on"]
    assert browser.last("choice")["place"] == 2  # the nearest of the frontier


def moved(panel: FrontierPanel, shape: str) -> tuple[float, float]:
    """Where the last choice has put a mark."""
    layers = panel.news(whole=True)[0]["choice"]["moved"]  # type: ignore[index]
    (rows,) = [layer["rows"] for layer in layers if layer.get("shape") == shape]
    return rows["x"][0], rows["y"][0]


def test_the_ring_is_at_the_choice_and_the_line_of_equal_cost_goes_through_the_optimum(panel: FrontierPanel) -> None:
    panel.choose(eta=0.7)
    assert moved(panel, "circle") == moved(panel, "diamond") == (12.0, 2.2)
    (line,) = [layer["rows"] for layer in panel.news(whole=True)[0]["choice"]["moved"] if layer["kind"] == "line"]  # type: ignore[index]
    (x0, x1), (y0, y1) = line["x"], line["y"]
    assert y0 + (12.0 - x0) / (x1 - x0) * (y1 - y0) == pytest.approx(2.2, rel=1e-4)
    assert (y0 - y1) / (x1 - x0) == pytest.approx(0.3 / 0.7 * 300.0 / 1000, rel=1e-3)


def test_the_best_point_of_an_eta_between_the_steps_of_the_slider_is_reported(panel: FrontierPanel) -> None:
    browser = Browser(panel)
    panel.choose(eta=0.537)
    assert (browser.last("choice")["best"], browser.last("choice")["eta"]) == (True, 0.537)


@pytest.mark.parametrize("what", ["svg", "png", "csv", "parquet"])
def test_files_are_made_for_the_browser(panel: FrontierPanel, what: str) -> None:
    browser = Browser(panel)
    ask(panel, "export", what=what, view="a view")
    content, (data,) = browser.messages[-1], browser.buffers[-1]
    assert (content["kind"], content["name"], content["view"]) == (
        "file",
        f"frontier.{what}",
        "a view",
    )  # others save none
    assert data.startswith({"csv": b"time_s", "parquet": b"PAR1"}.get(what, b"<svg"))


def test_axes_that_one_view_changes_reach_the_others(panel: FrontierPanel) -> None:
    browser = Browser(panel)
    ask(panel, "axes", relative=True, whole=True)
    reported = browser.last("points")
    assert reported["relative"]
    assert reported["whole"]
    title = reported["view"]["figure"][0][0]["title"]
    assert "default (%)" in title
    assert title in panel.svg()


@pytest.mark.parametrize(
    "options",
    [{}, {"relative": True, "eta": 0.3}, {"eta": 0.0}, {"eta": 1.0}, {"max_slowdown": 0.0}, {"max_slowdown": 1.0}],
)
def test_the_picture_is_an_svg_without_scripts(options: dict[str, Any]) -> None:
    relative = options.pop("relative", False)
    panel = workbench.panels.frontier(POINTS, **options)
    ask(panel, "axes", relative=relative, whole=False)
    picture, watts = panel.svg(), panel.chosen.setting.power_limit_w
    texts = [
        each.text or "" for each in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert any("default" in text for text in texts)
    assert any(f"{watts:.0f} W" in text for text in texts)
    assert any(
        "default (%)" in text if relative else text.startswith("Energy (kJ)")
        for text in texts
    )
    assert "script" not in picture
    assert "nan" not in picture.lower()


def test_ten_thousand_points_make_a_small_picture() -> None:
    rng = np.random.default_rng(0)
    time_s = rng.uniform(1, 4, 10_000)
    many = pl.DataFrame(
        {"time_s": time_s, "energy_j": 100 / time_s * (1 + rng.exponential(0.3, 10_000)) + 20 * time_s}
    )
    panel = workbench.panels.frontier(many)
    assert len(panel.svg()) < 60_000
    assert "no point names" in panel.summary()


def test_outside_of_a_front_end_it_is_a_picture_with_table_text_and_code(panel: FrontierPanel) -> None:
    displayed = bundle(panel)
    assert set(displayed) == {"text/html", "text/plain"}
    for part in ("<table", "<summary>", "workbench.Setting(power_limit_w=250)"):
        assert part in displayed["text/html"]


def test_runs_that_counted_tokens_are_points_for_a_million_of_them() -> None:
    gpu = GpuMeasurement("A100", "u", 500.0, 9.8, "counter", False, power_limit_w=250.0)
    runs = [Measurement(str(number), "vit", 0.0, 10.0 + number, (gpu,), work=(WorkDone("tokens", 2e6),))
            for number in range(2)]
    given = source(runs)
    assert given.unit == "million tokens"
    points = given.points().points
    assert points["energy_j"].to_list() == [pytest.approx(250.0)]
    assert points["time_s"].to_list() == [pytest.approx(5.25)]
    assert source(runs, unit="run").points().points["energy_j"].to_list() == [pytest.approx(500.0)]
    assert source([*runs, replace(runs[0], id="3", work=())]).unit == "run"  # one did not count
    asked = source(runs, unit="million tokens").points().points
    assert asked["energy_j"].to_list() == [pytest.approx(250.0)]
    panel = workbench.panels.frontier(runs)
    before = panel.summary()
    panel.update(runs)
    assert panel.summary() == before
    frame = pl.DataFrame({"time_s": [1.0], "energy_j": [2.0], "unit": ["J"]})  # a column of somebody's own
    assert source(frame).unit == "run"
