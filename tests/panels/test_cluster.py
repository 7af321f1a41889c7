"""The cluster panel without a browser: what it says, draws, is told, refuses, and leaves behind."""

from __future__ import annotations

import json
import math
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench.panels
from tests.panels.listening import Said, ask
from workbench.cluster import generate
from workbench.cluster.drill import node_history
from workbench.cluster.views import notable
from workbench.errors import SimulationError, UsageError
from workbench.experiments.executors import HereExecutor
from workbench.measurement.report import format_duration
from workbench.panels._views.cluster import drill
from workbench.panels._views.cluster.model import HEADS
from workbench.panels._views.cluster.panel import ClusterPanel

WHOLE = generate(300, gpus=32, seed=3, load=0.9, mean_s=4000.0)
JOBS = WHOLE.select("job_id", "submit_s", "duration_s", "num_gpus")
POLICIES = ("fifo-spread-always-on", "eaco", "ours")


PANELS: list[ClusterPanel] = []


def made(log: Any = JOBS, **options: Any) -> ClusterPanel:
    panel: ClusterPanel = workbench.panels.cluster(
        log, **{"nodes": 4, "policies": POLICIES, "executor": HereExecutor(), **options}
    )
    PANELS.append(panel)
    return panel


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """No panel of these tests publishes on beside the next ones."""
    yield
    while PANELS:
        PANELS.pop().end()


@pytest.fixture(scope="module")
def ran() -> ClusterPanel:
    panel = made(draws=2)
    panel.run()
    return panel


# what is said


def test_it_says_who_needs_least_what_that_costs_and_that_all_of_it_is_simulated(ran: ClusterPanel) -> None:
    lines = ran.summary().splitlines()
    assert lines[0] == "Cluster: jobs, 300 jobs, on 4 nodes of 8x V100 (simulated)"
    results = ran.results
    energy = {name: results.filter(pl.col("policy") == name)["energy_kwh"] for name in POLICIES}
    ratio = energy["ours"] / energy["fifo-spread-always-on"]
    assert lines[1] == (
        f"workbench uses {100 * (1 - ratio.mean()):.1f} ± {100 * ratio.std():.1f} % less energy than FIFO "
        "spread, always on"  # type: ignore[operator]
    )
    assert "active nodes against" in lines[2]
    assert "% less than EaCO, 3 jobs, 100 %, which comes next" in lines[3]
    assert "Means of 2 draws, ± standard deviation" in lines[4]
    assert "Plots over time and of the jobs are of the first draw" in lines[5]
    assert "models, memory and deadlines that it does not tell are drawn by seed" in lines[6]
    assert lines[7].split(" | ") == [name for name, _ in HEADS]
    assert [line.split(" | ")[0] for line in lines[8:11]] == [
        "FIFO spread, always on",
        "EaCO, 3 jobs, 100 %",
        "workbench",
    ]


def test_draws_that_draw_nothing_are_said_to_be_alike() -> None:
    panel = made(WHOLE, draws=2, policies=("fifo-best-fit",))
    panel.run()
    assert "All 2 draws are alike: this log tells everything itself" in panel.summary()


def test_before_the_first_run_it_says_what_to_do() -> None:
    panel = made()
    assert "Nothing is run yet: Run, or panel.run()" in panel.summary()
    ElementTree.fromstring(panel.svg())
    assert panel.results.is_empty()


def test_generated_jobs_are_said_to_be_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    panel = made(None)
    assert panel.comparison.choice.log.startswith("generated: 2,000 jobs")
    assert "Everything is simulated, the jobs too: they are drawn" in panel.summary()


def test_logs_of_the_data_directory_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    JOBS.write_parquet(tmp_path / "cluster" / "ours.parquet")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    assert made(None).comparison.choice.log == "ours"


def test_what_trimming_left_out_is_said(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    JOBS.with_columns(
        pl.when(pl.int_range(300) == 3).then(16).otherwise(pl.col("num_gpus")).alias("num_gpus")
    ).write_csv(path)
    panel = made(path)
    assert "1 of 300 jobs are left out (no GPU, more than 8 GPUs, or less than 60 s)" in panel.summary()
    assert made(path, trim=False).comparison.jobs.height == 300


# bad input


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (JOBS.clear(), "jobs has 0 jobs; there is nothing to simulate"),
        (
            JOBS.with_columns(num_gpus=pl.lit(40)),
            "row 0 .*num_gpus is 40, the cluster has no more than 32 GPUs; 300 of 300 rows are like that",
        ),
        (JOBS.with_columns(duration_s=pl.lit(-1.0)), "duration_s is -1, a job takes more than 0 s"),
        (
            JOBS.drop("num_gpus"),
            "no job log that is known here: its columns are job_id, submit_s, duration_s",
        ),
        (JOBS.reverse(), "submit_s is .*, earlier than the row before"),
        (JOBS.with_columns(duration_s=pl.lit(math.nan)), "duration_s is nan, a finite number is needed"),
    ],
)
def test_a_log_that_cannot_be_simulated_is_a_sentence_in_the_panel_and_an_error_in_a_cell(
    log: pl.DataFrame, sentence: str
) -> None:
    panel = made(log)
    said = Said(panel)
    ask(panel, "run")
    assert pytest.approx(0) == len(panel.comparison.outcomes)
    problem = said.last("problem")["text"]
    with pytest.raises(UsageError, match=sentence) as error:
        panel.run()
    assert str(error.value) == problem


def csv(rows: str, head: str = "job_id,submit_s,duration_s,num_gpus") -> pl.DataFrame:
    return pl.read_csv(f"{head}\n{rows}".encode(), infer_schema_length=None)


BAD_LOGS = {
    "dates": (
        csv("a,2024-01-01,60,1\nb,2024-01-02,60,1"),
        r"row 0 \(job a\): submit_s is '2024-01-01', a number is needed; 2 of 2 rows",
    ),
    "words": (
        csv("a,0,60,1\nb,1,N/A,1"),
        r"row 1 \(job b\): duration_s is 'N/A', a number is needed; 1 of 2 rows",
    ),
    "nan": (csv("a,0,60,1\nb,NaN,60,1"), "submit_s is nan, a finite number is needed"),
    "missing": (csv("a,,60,1\nb,,60,1"), "submit_s is missing, a finite number is needed"),
    "empty": (csv(""), "empty has 0 jobs; there is nothing to simulate"),
    "pods": (
        csv("p,1,500,soon,90", "name,num_gpu,gpu_milli,creation_time,deletion_time"),
        r"row 0 \(job p\): creation_time is 'soon', a number is needed; 1 of 1 rows",
    ),
}


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("name", BAD_LOGS)
def test_whatever_a_file_holds_the_view_comes_and_says_what_is_wrong(name: str, trim: bool) -> None:
    log, sentence = BAD_LOGS[name]
    panel = made({name: log}, trim=trim)
    content, _ = panel.snapshot()
    assert content["settings"]["log"] == name
    panel.html()
    with pytest.raises(UsageError, match=sentence):
        panel.run()
    panel.snapshot()
    panel.end()


def test_a_path_whose_log_cannot_be_read_is_an_error_at_once_and_with_keep_valid_it_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bad.csv"
    told = pl.when(pl.int_range(300) == 3).then(pl.lit("N/A")).otherwise(pl.col("duration_s").cast(pl.String))
    JOBS.with_columns(told.alias("duration_s")).write_csv(path)
    with pytest.raises(
        UsageError,
        match=r"row 3 \(job .*\): duration_s is 'N/A', a number is needed; 1 of 300 rows are like that",
    ):
        made(path)
    panel = made(path, keep_valid=True, trim=False, policies=("ours",))
    assert panel.run()["jobs"].to_list() == [299]
    assert "1 of 300 rows are left out: wrong, or too large for the cluster" in panel.summary()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"seed": -1}, "seed is -1; a whole number from 0"),
        ({"seed": None}, "seed is None"),
        ({"nodes": "28"}, "nodes is '28'; a whole number"),
        ({"draws": None}, "draws is None"),
        ({"sleep_after_s": "x"}, "sleep_after_s is 'x'"),
        ({"values": 4}, "values is 4; several are needed"),
    ],
)
def test_arguments_of_another_kind_are_a_sentence_here_and_in_set(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        made(**wrong)
    panel = made()
    with pytest.raises(UsageError, match=sentence):
        panel.set(**wrong)
    panel.set(nodes=28.0, policies="ours")
    assert (panel.comparison.scenario.nodes, panel.comparison.scenario.policies) == (28, ("ours",))


def test_valid_rows_are_kept_when_asked() -> None:
    log = JOBS.with_columns(
        pl.when(pl.int_range(300) == 3).then(40).otherwise(pl.col("num_gpus")).alias("num_gpus")
    )
    panel = made(log, policies=("ours",))
    ask(panel, "set", settings={"keep_valid": True})
    assert panel.run()["jobs"].to_list() == [299]
    assert panel.title().startswith("Cluster: jobs, 299 jobs, on 4 nodes")
    assert "1 of 300 rows are left out: wrong, or too large for the cluster" in panel.summary()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": "TPU"}, "there is no node type 'TPU'"),
        ({"policies": ("none",)}, "there is no policy 'none'"),
        ({"part": "busiest week"}, "jobs has no part 'busiest week'; it has whole log"),
        ({"log": 3}, "a job log is a frame, a path"),
        ({"log": {}}, "no job log is given"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        made(**wrong)


def test_what_the_browser_asks_wrongly_is_a_sentence_and_changes_nothing() -> None:
    panel = made()
    said = Said(panel)
    for settings, sentence in (
        ({"nodes": 0}, "nodes is 0; a whole number from 1 to 10000 is needed"),
        ({"nodes": 3.5}, "nodes is 3.5; a whole number"),
        ({"nodes": None}, "nodes is None; a whole number is needed"),
        ({"policies": []}, "no policy is chosen"),
        ({"sweep": "nodes", "values": [None]}, "nodes is swept over numbers, not None"),
    ):
        ask(panel, "set", settings=settings)
        assert sentence in said.last("problem")["text"]
        assert said.last("news")["settings"]["nodes"] == 4
        assert said.last("news")["settings"]["chosen"] == list(POLICIES)
    ask(panel, "job", policy="ours", name="1")
    assert "there is no run of 'ours' to look into: run it first" in said.last("problem")["text"]
    ask(panel, "open", path="/nowhere.csv")
    assert "there is no file '/nowhere.csv'" in said.last("problem")["text"]
    ask(panel, "set", settings={"nodes": 5})
    assert said.last("problem")["text"] == ""
    assert panel.comparison.scenario.nodes == 5


# what a view is sent


def test_a_view_is_drawn_from_its_greeting_alone(ran: ClusterPanel) -> None:
    content, (table,) = ran.snapshot()
    columns = np.frombuffer(table, np.float32)
    curves = content["drawn"]["curves"]
    assert [curve["policy"] for curve in curves] == list(POLICIES)
    for curve in curves:
        record = ran.comparison.record(curve["policy"])
        at = {name: columns[first:last] for name, (first, last) in curve["places"].items()}
        length_s = np.diff(np.concatenate([[0.0], at["hours"]])) * 3600
        assert (length_s * at["power_kw"] * 1000).sum() == pytest.approx(record.result.energy_j, rel=1e-4)
        assert len(at["wait_h"]) == len(at["slowdown"]) == 201
    assert content["run"]["state"] == "done"
    assert content["drawn"]["nodeCount"] == 4
    assert all(curve["open"] and curve["notable"]["most energy"] for curve in curves)
    assert len(content["drawn"]["bars"]) == 3
    first, *_, last = content["drawn"]["bars"]
    assert first["owned"] + first["unowned"] == pytest.approx(1.0)
    assert last["error"] > 0


def test_however_large_the_log_what_is_sent_is_small() -> None:
    panel = made(generate(6000, gpus=64, seed=1), nodes=8, policies=("fifo-best-fit",))
    panel.run()
    content, buffers = panel.snapshot()
    assert sum(map(len, buffers)) < 30_000
    assert len(str(content)) < 15_000
    node = panel.node("fifo-best-fit", 0)
    assert len(node.picture) < 300_000


def test_of_ten_thousand_jobs_on_one_node_the_picture_is_small_and_its_power_is_the_nodes() -> None:
    panel = made(generate(10_000, gpus=8, seed=1), nodes=1, policies=("ours",))
    panel.run()
    assert len(panel.node("ours", 0).picture) < 250_000
    record = panel.comparison.record("ours")
    told = node_history(record, panel.comparison.log, 0)
    assert told.height > 2000
    steps = drill._thinned(told, 700)
    assert len(steps) == 700
    assert sum((to_s - from_s) * power_w for from_s, to_s, power_w in steps) == pytest.approx(
        record.result.energy_j, rel=1e-6
    )


def test_of_a_very_large_log_there_are_plots_but_no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.cluster.runs.MOST_WATCHED", 200)
    monkeypatch.setattr("workbench.cluster.comparison.MOST_WATCHED", 200)
    panel = made(policies=("fifo-best-fit",))
    panel.run()
    content, (table,) = panel.snapshot()
    (curve,) = content["drawn"]["curves"]
    assert not curve["open"]
    assert len(table) > 1000
    with pytest.raises(
        UsageError, match="of logs of more than 200 jobs only the sums are kept; choose a part"
    ):
        panel.job("fifo-best-fit", "0")
    ElementTree.fromstring(panel.svg())


def test_news_come_only_when_there_is_something_new(ran: ClusterPanel) -> None:
    ran.snapshot()
    ran._read_s = -math.inf
    ran.changes()
    ran._read_s = -math.inf
    assert ran.changes() is None


def test_progress_and_results_come_while_it_runs() -> None:
    panel = made()
    said = Said(panel)
    panel.begin()
    assert panel.comparison.runs is not None
    assert panel.comparison.runs.wait(60)
    panel._read_s = -math.inf
    news = panel.changes()
    assert news is not None
    content, buffers = news
    assert len(content["drawn"]["lines"]) == 3
    assert buffers
    assert content["run"]["each"] == [{"policy": name, "share": 1.0} for name in POLICIES]
    assert said.last("news")["run"]["state"] in ("running", "done")
    panel.end()


def test_a_slider_that_moves_makes_results_stale_and_with_run_at_once_new_ones() -> None:
    panel = made()
    panel.run()
    said = Said(panel)
    before = panel.results.filter(pl.col("policy") == "eaco")["energy_kwh"][0]
    ask(panel, "set", settings={"max_jobs": 1})
    assert said.last("news")["run"]["stale"]
    assert panel.results.filter(pl.col("policy") == "eaco")["energy_kwh"][0] == before
    ask(panel, "at once", on=True)
    ask(panel, "set", settings={"max_jobs": 1, "sleep_after_s": "never"})
    assert panel.comparison.runs is not None
    panel.comparison.runs.wait(60)
    assert not panel.comparison.stale
    assert panel.results.filter(pl.col("policy") == "eaco")["energy_kwh"][0] > before
    assert panel.comparison.scenario.sleep_after_s == math.inf
    panel.refresh()
    assert "EaCO, 1 job, 100 %" in panel.summary()


def test_a_sweep_over_nodes_and_draws_has_its_spread() -> None:
    panel = made(policies=("fifo-best-fit", "ours"), draws=2, sweep="nodes", values=(4, 8))
    assert panel.run().select("policy", "seed", "value").rows() == [
        ("fifo-best-fit", 0, 4.0), ("ours", 0, 4.0), ("fifo-best-fit", 0, 8.0), ("ours", 0, 8.0),
        ("fifo-best-fit", 1, 4.0), ("ours", 1, 4.0), ("fifo-best-fit", 1, 8.0), ("ours", 1, 8.0),
    ]
    content, _ = panel.snapshot()
    assert [line["values"] for line in content["drawn"]["sweptLines"]] == [(4.0, 8.0), (4.0, 8.0)]
    assert all(error > 0 for line in content["drawn"]["sweptLines"] for error in line["error"])
    assert "workbench · nodes 8" in panel.summary()
    assert "Energy (MWh); bars: standard deviation" in panel.svg()


def test_an_interrupt_of_the_cell_ends_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = made(generate(20_000, gpus=64, seed=1), nodes=8, executor=None, workers=1)

    def interrupted(timeout_s: float | None = None) -> bool:
        raise KeyboardInterrupt

    panel.begin()
    runs = panel.comparison.runs
    assert runs is not None
    monkeypatch.setattr(runs, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        panel.run()
    monkeypatch.undo()
    assert runs.wait(60)
    assert panel.comparison.state == "cancelled"
    assert "cancelled: 0 of 3 runs" in panel.summary()
    panel.end()


def test_runs_that_were_cancelled_are_no_results_that_a_cell_can_take_for_all() -> None:
    began = threading.Event()

    class Once(HereExecutor):
        def submit(self, function: Any, /, *args: Any, **options: Any) -> Any:
            assert began.wait(30)
            done = super().submit(function, *args, **options)
            panel.cancel()
            return done

    panel = made(executor=Once())
    panel.begin()
    began.set()
    with pytest.raises(SimulationError, match=r"cancelled: 1 of 3 runs have ended; panel\.results has them"):
        panel.run()
    assert panel.results.height == 1
    panel.refresh()
    assert "FIFO spread, always on: " in panel.summary()
    assert ", so far" not in panel.summary().splitlines()[0]
    assert "So far: 1 of 3 policies, 1 of 1 draws" in panel.summary()
    panel.end()


def test_a_panel_that_has_ended_refuses_to_run_and_leaves_no_thread() -> None:
    panel = made()
    panel.snapshot()
    thread = panel._publisher.thread
    assert thread is not None
    assert thread.is_alive()
    said = Said(panel)
    panel.close()
    assert not thread.is_alive()
    ask(panel, "run")
    assert said.last("problem")["text"] == "this panel has ended; display a new one"
    assert panel.comparison.runs is None


def test_a_parameter_that_varies_to_never_is_sent_without_an_infinite_number() -> None:
    panel = made(policies=("ours",))
    ask(panel, "set", settings={"sweep": "sleep_after_s", "values": [60, "never"]})
    assert panel.comparison.scenario.values == (60, math.inf)
    panel.run()
    content, _ = panel.snapshot()
    json.dumps(content, allow_nan=False)
    assert content["settings"]["values"] == [60, None]
    assert [line["value"] for line in content["drawn"]["lines"]] == [60, None]
    assert "never" in content["drawn"]["lines"][1]["cells"][0]
    ElementTree.fromstring(panel.svg())
    panel.end()


def test_what_goes_wrong_in_a_run_is_said_and_raised() -> None:
    log = JOBS.with_columns(
        pl.when(pl.int_range(300) == 3).then(30).otherwise(pl.col("num_gpus")).alias("num_gpus")
    )

    class Broken(HereExecutor):
        def submit(self, function: Any, /, *args: Any, **options: Any) -> Any:
            raise SimulationError("no machine is left")

    panel = made(log, executor=Broken())
    with pytest.raises(SimulationError, match="no machine is left"):
        panel.run()
    assert panel.summary().count("no machine is left") == 1
    assert panel.comparison.state == "failed"
    said = Said(panel)
    ask(panel, "distribution", name="wait_h")
    assert "no machine is left" in said.last("news")["run"]["words"]  # why stays, whatever is clicked


# one job, one node


def test_a_job_is_looked_into_and_leads_to_its_neighbours(ran: ClusterPanel) -> None:
    record = ran.comparison.record("ours")
    name = notable(record.result.jobs)["most slowed by others"][0]
    said = Said(ran)
    ask(ran, "job", policy="ours", name=name)
    drilled = said.last("drilled")["drilled"]
    facts = dict(drilled["facts"])
    job = record.result.jobs.row(by_predicate=pl.col("job_id") == name, named=True)
    inflation = 100 * (job["run_s"] / job["duration_s"] - 1)
    assert f"{inflation:+.1f} % against alone" in facts["ran"]
    assert facts["beside"].split()[0] != "nobody:"
    assert drilled["jobs"]
    assert drilled["nodes"]
    picture = ElementTree.fromstring(drilled["picture"])
    assert any("beside" in (title.text or "") for title in picture.iter("{http://www.w3.org/2000/svg}title"))
    ask(ran, "node", policy="ours", name=drilled["nodes"][0])
    there = said.last("drilled")["drilled"]
    assert f'data-job="{name}"' in there["picture"]
    energy_kwh = record.result.nodes["energy_j"][drilled["nodes"][0]] / 3.6e6
    assert dict(there["facts"])["energy"].startswith(f"{energy_kwh:.4g} kWh")


def test_a_job_on_several_gpus_of_a_node_was_there_once(ran: ClusterPanel) -> None:
    record = ran.comparison.record("fifo-spread-always-on")
    wide = record.result.jobs.filter(pl.col("num_gpus") == 8).sort("run_s")["job_id"][-1]
    stay = record.result.stays.filter(pl.col("job_id") == wide)
    told = dict(ran.node("fifo-spread-always-on", stay["node"][0]).jobs)
    seconds = stay["to_s"][0] - stay["from_s"][0]
    assert told[wide] == format_duration(seconds)
    assert all(
        each in ran.node("fifo-spread-always-on", stay["node"][0]).picture
        for each in (f'data-job="{wide}"', "GPU 7")
    )


def test_a_node_is_said_to_have_woken_as_often_as_it_did(ran: ClusterPanel) -> None:
    for policy in POLICIES:
        record = ran.comparison.record(policy)
        for number, wakes in record.result.nodes.select("node", "wakes").iter_rows():
            words = dict(ran.node(policy, number).facts)["was awake"]
            assert words.endswith(f"woken {wakes} time{'s' * (wakes != 1)}")
    assert ran.comparison.record("ours").result.nodes["wakes"].sum() > 0


def test_who_is_not_there_is_a_sentence_in_the_panel(ran: ClusterPanel) -> None:
    said = Said(ran)
    ask(ran, "job", policy="ours", name="nobody")
    assert "there is no job 'nobody' in this run; it has 300 jobs" in said.last("problem")["text"]
    ask(ran, "node", policy="ours", name=99)
    assert "there is no node 99; the cluster has nodes 0 to 3" in said.last("problem")["text"]


def test_names_of_jobs_cannot_break_out_of_the_picture() -> None:
    evil = '"><script>x</script>'
    panel = made(
        JOBS.head(30).with_columns(pl.concat_str([pl.lit(evil), pl.col("job_id")]).alias("job_id")),
        policies=("ours",),
    )
    panel.run()
    first = panel.comparison.record("ours").result.stays["node"][0]
    for drilled in (panel.node("ours", first), panel.job("ours", f"{evil}0")):
        assert "<script" not in drilled.picture
        ElementTree.fromstring(drilled.picture)
    assert "<script" not in panel.html()


# what is left behind


def test_the_picture_has_every_policy_and_no_script(ran: ClusterPanel) -> None:
    page = ran.html()
    assert "<script" not in page
    svg = ElementTree.fromstring(ran.svg())
    words = "".join(svg.itertext())
    for name in (
        "FIFO spread, always on",
        "EaCO, 3 jobs, 100 %",
        "workbench",
        "Active nodes",
        "Power of the cluster (kW)",
        "(simulated)",
    ):
        assert name in words
    bundle = ran._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/html"].count("<tr>") == 4


@pytest.mark.parametrize("name", ["wait_h", "jct_h", "slowdown", "inflation"])
def test_every_distribution_can_be_drawn(ran: ClusterPanel, name: str) -> None:
    ask(ran, "distribution", name=name)
    ElementTree.fromstring(ran.svg())
    ask(ran, "distribution", name="wait_h")


def test_it_is_a_plain_function_of_panels() -> None:
    import workbench.panels

    assert isinstance(workbench.panels.cluster(JOBS, nodes=4), ClusterPanel)
