"""Logs are read by their columns. Scenarios reach the policies that they name. Runs report their progress and
can be ended.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from workbench.cluster import Cluster, NodeType, Simulator, generate, summarise
from workbench.cluster.comparison import PolicyComparison
from workbench.cluster.joblogs import BUSIEST, BUSIEST_DAY, MEDIAN, WHOLE, parts, trim
from workbench.cluster.policies import POLICIES, Eaco, EnergyAwarePolicy
from workbench.cluster.readers import read
from workbench.cluster.runs import RunOutcome, Runs, processes, timeline_step_s, work
from workbench.cluster.scenario import NEVER_S, Scenario, prepared, takes, tasks
from workbench.cluster.sources import LogSource, sources
from workbench.cluster.summary import per_job
from workbench.cluster.views import compared, course, notable, view
from workbench.errors import UsageError
from workbench.experiments.executors import HereExecutor

JOBS = generate(300, gpus=32, seed=3, load=0.9, mean_s=4000.0).drop(
    "model", "utilisation", "memory_bytes", "deadline_s", "sensitivity"
)
FOUR = Scenario(nodes=4, policies=("fifo-spread-always-on", "eaco", "ours"))


def done(scenario: Scenario, jobs: pl.DataFrame = JOBS) -> list[RunOutcome]:
    return [work(jobs, task) for task in tasks(scenario)]


def height(source: LogSource) -> int:
    return source.pieces(False)[1][WHOLE].height


# logs


def test_a_log_is_known_by_its_columns() -> None:
    own = pl.DataFrame(
        {
            "job_id": ["a"],
            "submit_s": [0.0],
            "duration_s": [60.0],
            "num_gpus": [1],
            "utilisation": [0.3],
            "other": [1],
        }
    )
    assert read(own).columns == ["job_id", "submit_s", "duration_s", "num_gpus", "utilisation"]
    assert read(own.rename({"other": "vc"}))["user"].to_list() == ["1"]
    slurm = pl.DataFrame(
        {
            "JobID": ["7"],
            "Submit": ["2024-01-01T00:00:00"],
            "ElapsedRaw": [600],
            "AllocTRES": ["cpu=4,gres/gpu=2"],
            "State": ["COMPLETED"],
        }
    )
    assert read(slurm).select("job_id", "duration_s", "num_gpus").rows() == [("7", 600.0, 2)]
    pods = pl.DataFrame(
        {"name": ["p"], "num_gpu": [1], "gpu_milli": [500], "creation_time": [0], "deletion_time": [90]}
    )
    assert read(pods)["utilisation"].to_list() == [0.5]


def test_an_unreadable_log_gives_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the format of this job log is unknown: its columns are a, b"):
        read(pl.DataFrame({"a": [1], "b": [2]}))
    with pytest.raises(UsageError, match=r"there is no file '/nowhere/jobs\.parquet'"):
        read("/nowhere/jobs.parquet")
    broken = tmp_path / "jobs.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(UsageError, match=r"jobs\.parquet cannot be read as a table"):
        read(broken)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="contains no Parquet, CSV or text file"):
        sources(empty)
    with pytest.raises(UsageError, match="not int"):
        sources(3)


def test_files_of_all_kinds_are_found_in_a_directory(tmp_path: Path) -> None:
    JOBS.write_parquet(tmp_path / "one.parquet")
    JOBS.write_csv(tmp_path / "two.csv")
    (tmp_path / "three.txt").write_text(
        "JobID|Submit|ElapsedRaw|AllocTRES\n7|2024-01-01T00:00:00|600|gres/gpu=2\n"
    )
    found = sources(tmp_path)
    assert list(found) == ["one", "three", "two"]
    assert height(found["one"]) == height(found["two"]) == 300
    assert height(found["three"]) == 1


def test_trimming_reports_omitted_and_shortened_jobs() -> None:
    jobs = pl.DataFrame(
        {
            "job_id": list("abcde"),
            "submit_s": [5.0, 4.0, 3.0, 2.0, 1.0],
            "duration_s": [100.0, 30.0, 1e6, 100.0, None],
            "num_gpus": [1, 1, 8, 16, 1],
        }
    )
    done = trim(jobs)
    assert done.jobs["job_id"].to_list() == ["c", "a"]
    assert done.jobs["duration_s"].to_list() == [259200.0, 100.0]
    assert done.text == (
        "3 of 5 jobs are left out (no GPU, more than 8 GPUs, or less than 60 s) and 1 durations are cut at 3 "
        "days"
    )
    assert trim(jobs.head(1)).text == ""


def test_weeks_are_cut_by_rule() -> None:
    day = 86400.0
    # 21 days: a job a day, days 7 to 13 have two more each; the third week's are the shortest.
    at = [n * day for n in range(21)] + [n * day + s for n in range(7, 14) for s in (1.0, 2.0)]
    at.sort()
    jobs = pl.DataFrame({"job_id": [str(n) for n in range(len(at))], "submit_s": at}).with_columns(
        pl.when(pl.col("submit_s") < 14 * day).then(500.0).otherwise(100.0).alias("duration_s"),
        pl.lit(1).alias("num_gpus"),
    )
    found = parts(jobs)
    assert list(found) == [WHOLE, BUSIEST_DAY, BUSIEST, MEDIAN]
    busiest = found[BUSIEST]["submit_s"]
    assert (busiest.min(), busiest.len()) == (7 * day, 21)
    assert found[MEDIAN]["submit_s"].min() == 0.0  # of the two that are left the busier half
    assert found[BUSIEST_DAY]["submit_s"].min() == 7 * day
    assert list(parts(jobs.head(2))) == [WHOLE]


# scenarios


def test_options_reach_only_the_policies_that_take_them() -> None:
    scenario = Scenario(load_threshold=0.7, max_jobs=2, sleep_after_s=90.0, policies=tuple(POLICIES))
    eaco = scenario.maker("eaco")()
    assert isinstance(eaco, Eaco)
    assert (eaco.max_jobs, eaco.limit, eaco.sleep_after_s) == (2, 7000, 90.0)
    fixed = scenario.maker("eaco-3-100")()
    assert isinstance(fixed, Eaco)
    assert (fixed.max_jobs, fixed.limit, fixed.sleep_after_s) == (3, 10_000, 90.0)
    ours = scenario.maker("ours")()
    assert isinstance(ours, EnergyAwarePolicy)
    assert (ours.max_jobs, ours.limit) == (2, 7000)
    assert scenario.maker("fifo-spread-always-on")().sleep_after_s is None
    assert scenario.maker("gandiva")().sleep_after_s is None
    assert scenario.maker("lucid")().sleep_after_s == 90.0
    assert takes("sjf") == {"sleep_after_s"}
    assert replace(scenario, sleep_after_s=NEVER_S).maker("ours")().sleep_after_s is None
    for name, make in POLICIES.items():  # nothing is set, nothing is changed
        assert vars(Scenario(policies=(name,)).maker(name)()).keys() == vars(make()).keys()
        assert Scenario(policies=(name,)).maker(name)().sleep_after_s == make().sleep_after_s


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ({"policies": ("best",)}, "'best'"), ({"policies": ()}, "policies"),
        ({"policies": ("ours", "ours")}, "each once"), ({"policies": (3,)}, "3"), ({"nodes": 0}, "nodes is 0"),
        ({"nodes": "28"}, "nodes='28'"), ({"nodes": True}, "nodes=True"), ({"draws": 0}, "draws is 0"),
        ({"load_threshold": math.nan}, "nan"), ({"max_jobs": 2.5}, "2.5"), ({"slack": 1.0}, "slack is 1"),
        ({"sleep_after_s": -1.0}, "-1"), ({"sweep": "colour", "values": (1.0,)}, "'colour'"),
        ({"sweep": "nodes"}, "nodes needs values"), ({"sweep": "nodes", "values": (4.5,)}, "4.5"),
        ({"sweep": "nodes", "values": (math.inf,)}, "inf"), ({"seed": -1}, "-1"), ({"seed": None}, "None"),
        ({"values": 4}, "values=4"), ({"kind": None}, "None"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(wrong: dict[str, object], value: str) -> None:
    with pytest.raises(UsageError, match=value):
        Scenario(**wrong)  # type: ignore[arg-type]


def test_whole_numbers_may_come_as_floats_and_one_policy_by_its_name() -> None:
    scenario = Scenario(nodes=28.0, draws=np.int64(2), policies="ours", values=np.array([4, 8]))  # type: ignore[arg-type]
    assert scenario == Scenario(nodes=28, draws=2, policies=("ours",), values=(4, 8))


def test_slack_draws_new_deadlines_and_changes_nothing_else() -> None:
    told, wide = prepared(JOBS, FOUR, 0), prepared(JOBS, replace(FOUR, slack=3.0), 0)
    assert told.drop("deadline_s").equals(wide.drop("deadline_s"))
    slack = (wide["deadline_s"] - wide["submit_s"]) / wide["duration_s"]
    assert 1.05 <= slack.min() < slack.max() <= 3.0
    assert slack.max() > 2.5
    given = JOBS.with_columns((pl.col("submit_s") + 9 * pl.col("duration_s")).alias("deadline_s"))
    assert prepared(given, FOUR, 0)["deadline_s"].equals(given["deadline_s"])
    assert not prepared(given, replace(FOUR, slack=3.0), 0)["deadline_s"].equals(given["deadline_s"])


# runs


def test_a_run_in_slices_is_the_run_in_one_piece() -> None:
    for outcome in done(FOUR):
        name = outcome.task.policy
        log = prepared(JOBS, FOUR, 0)
        whole = summarise(
            Simulator(
                log, FOUR.cluster_of(name), FOUR.maker(name)(), timeline_s=timeline_step_s(log, 32)
            ).run()
        )
        assert outcome.row == whole
        assert outcome.result is not None


def test_runs_in_processes_equal_local_runs_and_report_progress() -> None:
    scenario = replace(FOUR, draws=2)
    with processes(2) as pool:
        runs = Runs(JOBS, list(tasks(scenario)), pool)
        assert runs.wait(240)
        assert runs.progress == [1.0] * 6
        assert runs.errors == {}
    here = Runs(JOBS, list(tasks(scenario)), HereExecutor())
    assert here.wait(240)
    assert [here.outcomes[n].row for n in range(6)] == [runs.outcomes[n].row for n in range(6)]
    assert [outcome.result is not None for _, outcome in sorted(here.outcomes.items())] == [True] * 3 + [
        False
    ] * 3


def test_cancelling_ends_runs_immediately_and_keeps_the_processes() -> None:
    large = generate(60_000, gpus=256, seed=1)
    todo = list(tasks(Scenario(nodes=32, policies=("ours", "eaco", "fifo-best-fit"))))
    with processes(1) as pool:
        runs = Runs(large, todo, pool)
        until(lambda: runs.progress[0] > 0, 240)
        assert max(runs.progress[1:]) == 0.0
        runs.cancel()
        assert runs.wait(240)
        assert (runs.cancelled, runs.outcomes, runs.errors) == (True, {}, {})
        again = Runs(JOBS, list(tasks(FOUR)), pool)
        assert again.wait(240)
        assert len(again.outcomes) == 3


def test_a_timeline_is_as_long_as_the_work_takes_on_a_cluster_that_is_too_small() -> None:
    day = {"submit_s": [0.0] * 100, "duration_s": [86400.0] * 100, "num_gpus": [8] * 100}
    jobs = pl.DataFrame({"job_id": [str(n) for n in range(100)], **day})
    assert timeline_step_s(jobs, 800) == pytest.approx(86400 / 400)
    assert timeline_step_s(jobs, 8) == 100 * 86400 / 400


def test_one_run_that_fails_does_not_take_the_others_with_it() -> None:
    wide = JOBS.with_columns(
        pl.when(pl.int_range(300) == 7).then(17).otherwise(pl.col("num_gpus")).alias("num_gpus")
    )
    scenario = Scenario(nodes=2, policies=("fifo-best-fit",), sweep="nodes", values=(2.0, 4.0))
    runs = Runs(wide, list(tasks(scenario)), ThreadPoolExecutor(1))
    assert runs.wait(240)
    assert list(runs.outcomes) == [1]
    assert "num_gpus is 17, the cluster has no more than 16 GPUs" in runs.errors[0]
    kept = Runs(wide, list(tasks(scenario)), ThreadPoolExecutor(1), keep_valid=True)
    assert kept.wait(240)
    assert [kept.outcomes[n].row["jobs"] for n in range(2)] == [299, 300]


def test_the_worker_processes_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "begin.py"
    script.write_text(
        "import os, time\n"
        "from workbench.cluster.runs import processes\n"
        "if __name__ == '__main__':\n"
        "    pool = processes(1)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as begun:
        assert begun.stdout is not None
        worker = int(begun.stdout.readline())
        begun.kill()
    until(lambda: not _runs(worker), 50)


@pytest.mark.slow
def test_a_script_that_ends_does_not_wait_for_its_runs(tmp_path: Path) -> None:
    script = tmp_path / "leave.py"
    script.write_text(
        "import time\n"
        "from workbench.cluster import generate\n"
        "from workbench.cluster.runs import Runs\n"
        "from workbench.cluster.scenario import Scenario, tasks\n"
        "if __name__ == '__main__':\n"
        "    todo = tasks(Scenario(nodes=64, policies=('ours', 'eaco')))\n"
        "    runs = Runs(generate(400_000, gpus=512, seed=0), list(todo), workers=1)\n"
        "    while not runs.progress[0]:\n"
        "        time.sleep(0.05)\n"
        "    print('leaves', time.monotonic(), flush=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - float(done.stdout.split()[1]) < 60  # the runs would take minutes


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def test_dask_does_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    nvml = pytest.importorskip("distributed.diagnostics.nvml")
    # It looks for GPUs once in a process; what it found may have been the simulated machine of another test.
    monkeypatch.setattr(nvml, "NVML_STATE", nvml.NVMLState.DISABLED_CONFIG)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc://"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        comparison = PolicyComparison(sources(JOBS), FOUR, executor=client, trimmed=False)
        runs = comparison.begin()
        assert runs.wait(240)
        assert runs.errors == {}
        assert comparison.results["policy"].to_list() == list(FOUR.policies)


def until(condition: object, timeout_s: float) -> None:
    waits = threading.Event()
    end_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        waits.wait(0.02)


# a choice and its runs


def test_a_choice_that_makes_no_sense_changes_nothing() -> None:
    comparison = PolicyComparison(sources(JOBS), FOUR, trimmed=False, executor=HereExecutor())
    before = comparison.choice
    for wrong, sentence in (
        ({"log": "other"}, "there is no log 'other'; there are jobs"),
        ({"part": "busiest week", "nodes": 8}, "jobs has no part 'busiest week'; it has whole log"),
        ({"kind": "TPU"}, "there is no node type 'TPU'; there are 8x V100, 8x A100"),
        ({"node": 3}, "there is no setting 'node'"),
        ({"nodes": 0}, "nodes is 0"),
    ):
        with pytest.raises(UsageError, match=sentence):
            comparison.set(**wrong)
        assert comparison.choice == before
    with pytest.raises(UsageError, match="workers is 0"):
        PolicyComparison(sources(JOBS), FOUR, workers=0)


def test_a_result_is_stale_when_the_choice_differs_from_the_run() -> None:
    comparison = PolicyComparison(sources(JOBS), FOUR, trimmed=False, executor=HereExecutor())
    assert (comparison.state, comparison.stale) == ("idle", False)
    with pytest.raises(UsageError, match="there is no run of 'ours' to show: run it first"):
        comparison.result("ours")
    comparison.begin().wait(240)
    assert (comparison.state, comparison.stale) == ("done", False)
    comparison.set(max_jobs=1)
    assert comparison.stale
    comparison.set(max_jobs=None)
    assert not comparison.stale
    assert comparison.left_out == 0
    assert comparison.result("ours").policy == "workbench"


def test_a_file_is_opened_and_one_that_is_no_log_is_not_offered(tmp_path: Path) -> None:
    comparison = PolicyComparison(sources(JOBS), FOUR, executor=HereExecutor())
    JOBS.head(50).write_csv(tmp_path / "more.csv")
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    comparison.open(str(tmp_path / "more.csv"))
    assert (comparison.choice.log, list(comparison.sources)) == ("more", ["jobs", "more"])
    with pytest.raises(UsageError, match="the format of this job log is unknown"):
        comparison.open(str(tmp_path / "wrong.csv"))
    assert (comparison.choice.log, list(comparison.sources)) == ("more", ["jobs", "more"])


def test_a_second_log_of_a_name_is_added_and_results_name_their_log(
    tmp_path: Path,
) -> None:
    comparison = PolicyComparison(sources(JOBS), FOUR, executor=HereExecutor(), trimmed=False)
    comparison.begin().wait(240)
    JOBS.head(50).write_csv(tmp_path / "jobs.csv")
    comparison.open(str(tmp_path / "jobs.csv"))
    assert list(comparison.sources) == ["jobs", "jobs (2)"]
    assert (comparison.choice.log, comparison.choice.part, comparison.jobs.height, comparison.stale) == (
        "jobs (2)",
        WHOLE,
        50,
        True,
    )
    JOBS.head(40).write_parquet(tmp_path / "jobs.parquet")
    assert [height(each) for each in sources(tmp_path).values()] == [50, 40]
    assert list(sources([JOBS, tmp_path])) == ["jobs", "jobs (2)", "jobs (3)"]


def test_a_log_that_cannot_be_simulated_leaves_the_current_run_alone() -> None:
    given = {"large": generate(60_000, gpus=256, seed=1), "empty": JOBS.clear()}
    with ThreadPoolExecutor(1) as pool:
        comparison = PolicyComparison(
            sources(given), Scenario(nodes=32, policies=("ours",)), executor=pool, trimmed=False
        )
        runs = comparison.begin()
        comparison.set(log="empty")
        with pytest.raises(UsageError, match="empty has 0 jobs"):
            comparison.begin()
        assert (comparison.runs, comparison.state, comparison.ran and comparison.ran.log) == (
            runs,
            "running",
            "large",
        )
        comparison.cancel()
        assert runs.wait(240)


def test_text_in_place_of_numbers_is_reported_by_row_and_can_be_skipped() -> None:
    log = pl.DataFrame(
        {
            "job_id": list("abc"),
            "submit_s": [0, 1, 2],
            "duration_s": ["60", " N/A", "70"],
            "num_gpus": [1, 1, 1],
        }
    )
    sentence = r"row 1 \(job b\): duration_s is ' N/A', a number is needed; 1 of 3 rows have this fault"
    with pytest.raises(UsageError, match=sentence):
        read(log)
    assert read(log, keep_valid=True)["duration_s"].to_list() == [60.0, None, 70.0]
    comparison = PolicyComparison(sources(log), FOUR, executor=HereExecutor(), trimmed=False)
    with pytest.raises(UsageError, match=sentence):
        comparison.begin()
    comparison.set(keep_valid=True)
    assert comparison.begin().wait(240)
    assert comparison.results["jobs"].to_list() == [2, 2, 2]
    pods = {
        "name": ["p"],
        "num_gpu": [1],
        "gpu_milli": [500],
        "creation_time": ["soon"],
        "deletion_time": [90],
    }
    with pytest.raises(UsageError, match=r"row 0 \(job p\): creation_time is 'soon', a number is needed"):
        read(pl.DataFrame(pods))
    dates = log.with_columns(
        pl.lit("2024-01-01").str.to_date().alias("submit_s"), pl.lit(60.0).alias("duration_s")
    )
    with pytest.raises(
        UsageError, match="column 'submit_s' holds Date, where numbers are needed, for instance 2024-01-01"
    ):
        read(dates)


def test_a_log_in_another_unit_has_no_days() -> None:
    jobs = pl.DataFrame(
        {"job_id": ["a", "b"], "submit_s": [0.0, 1.7e18], "duration_s": [60.0, 60.0], "num_gpus": [1, 1]}
    )
    assert list(parts(jobs)) == [WHOLE]


def test_too_many_runs_and_empty_logs_are_refused() -> None:
    comparison = PolicyComparison(
        sources(JOBS), replace(FOUR, draws=50, sweep="nodes", values=(4.0, 5.0, 6.0, 7.0)), trimmed=False
    )
    with pytest.raises(UsageError, match="that would be 600 runs; at most 500"):
        comparison.begin()
    empty = PolicyComparison(sources(JOBS.clear()), FOUR, trimmed=False)
    with pytest.raises(UsageError, match="jobs has 0 jobs; there is nothing to simulate"):
        empty.begin()


# what comes of them


def test_policies_are_compared_draw_by_draw() -> None:
    comparison = PolicyComparison(
        sources(JOBS), replace(FOUR, draws=3), trimmed=False, executor=HereExecutor()
    )
    comparison.begin()
    runs = comparison.results
    table = compared(runs, FOUR.policies[0])
    assert table["policy"].to_list() == list(FOUR.policies)
    assert table["draws"].to_list() == [3, 3, 3]
    energy = {name: runs.filter(pl.col("policy") == name)["energy_kwh"] for name in FOUR.policies}
    ratios = energy["ours"] / energy["fifo-spread-always-on"]
    assert table["energy_ratio"].to_list()[::2] == [1.0, pytest.approx(ratios.mean())]
    assert table["energy_ratio_sd"][2] == pytest.approx(ratios.std())
    ours = runs.filter(pl.col("policy") == "ours")
    assert compared(ours, FOUR.policies[0])["energy_ratio"][0] is None  # the first policy has not ended


def test_a_process_that_dies_is_reported_and_the_next_run_has_new_ones() -> None:
    large, small = generate(200_000, gpus=256, seed=1), Scenario(nodes=4, policies=("fifo-best-fit",))
    with processes(1) as pool:
        pid = pool.submit(os.getpid).result()
        runs = Runs(large, list(tasks(Scenario(nodes=32, policies=("ours",)))), pool)
        until(lambda: runs.progress[0] > 0, 240)
        os.kill(pid, signal.SIGKILL)
        assert runs.wait(240)
        assert list(runs.errors) == [0]
    assert Runs(JOBS, list(tasks(small)), workers=1).wait(240)


def test_the_area_below_the_power_is_the_energy() -> None:
    for outcome in done(FOUR):
        assert outcome.result is not None
        result = outcome.result
        found = course(result)
        length_s = np.diff(np.concatenate([[0.0], found["hours"]])) * 3600
        assert (length_s * found["power_w"]).sum() == pytest.approx(result.energy_j, rel=1e-6)
        assert (length_s * found["hosting"]).sum() / length_s.sum() == pytest.approx(
            outcome.row["active_nodes"], rel=0.1, abs=0.1
        )


def test_a_log_of_seconds_has_a_course_too() -> None:
    kind = NodeType("tiny", "T", gpus=4, memory_bytes=2**30, idle_w=100.0, span_w=400.0)
    jobs = pl.DataFrame({"job_id": ["a"], "submit_s": [0.0], "duration_s": [3.0], "num_gpus": [1]})
    outcome = work(jobs, next(tasks(Scenario(nodes=1, kind=kind, policies=("fifo-spread-always-on",)))))
    assert outcome.result is not None
    assert course(outcome.result)["hosting"].max() == 1.0


def test_job_statistics_follow_from_their_times() -> None:
    jobs = pl.DataFrame(
        {
            "job_id": ["a", "b"],
            "submit_s": [0.0, 0.0],
            "duration_s": [3600.0, 1800.0],
            "num_gpus": [1, 1],
            "deadline_s": [7200.0, None],
            "end_s": [10800.0, 1800.0],
            "run_s": [5400.0, 1800.0],
            "energy_j": [5.0, 7.0],
            "undos": [0, 0],
            "moves": [1, 0],
        }
    )
    told = per_job(jobs)
    assert told.select("wait_h", "jct_h", "slowdown", "inflation", "missed").rows() == [
        (1.5, 3.0, 3.0, 0.5, True),
        (0.0, 0.5, 1.0, 0.0, False),
    ]
    assert notable(jobs) == {
        "longest wait": ["a"],
        "most slowed by others": ["a"],
        "most energy": ["b", "a"],
        "latest for its deadline": ["a"],
        "most undone and moved": ["a"],
    }


def test_distributions_are_of_all_jobs() -> None:
    outcome = done(replace(FOUR, policies=("ours",)))[0]
    assert outcome.result is not None
    found = view(outcome.result).distributions
    assert found["slowdown"].min() >= 1 - 1e-9
    assert found["inflation"].min() >= -1e-9
    assert Cluster.of(4).size == outcome.result.nodes.height
