"""`workbench run` over ranks, `--job-dir`, `workbench job` and `read_job`."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench
from benchmarks.fixtures.job_nodes import NodePlan, run, schedule, synchronous
from workbench.cli import main
from workbench.errors import UsageError
from workbench.jobs.reading import read_nodes, skew
from workbench.logbook.run_table import rows
from workbench.logbook.store import Store
from workbench.measurement import marks
from workbench.measurement import session as sessions
from workbench.simulation.machine import Machine, attached

RANKS = """
import os, subprocess, sys
if "RANK" not in os.environ:
    def start(rank):
        mine = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "night"}
        return subprocess.Popen([sys.executable, __file__], env={**os.environ, **{k: str(v) for k, v in mine.items()}})
    sys.exit(max(each.wait() for each in [start(0), start(1)]))
import workbench
from workbench.simulation.training import TrainingJob
with workbench.measure("inside"):
    for batch in TrainingJob("cifar100", 256, iterations=12, gpu=int(os.environ["RANK"])):
        workbench.step()
        workbench.work(samples=batch.size)
"""


@pytest.fixture(autouse=True)
def no_session(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sessions.current().close()
    monkeypatch.setattr(marks, "_shared", None)
    yield
    sessions.current().close()
    if os.environ.get("WORKBENCH_SIMULATED_GPUS") and (made := attached()) is not None:
        made.close()


def test_ranks_that_measure_themselves_count_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, target, shared = tmp_path / "ranks.py", tmp_path / "job.json", tmp_path / "shared"
    script.write_text(RANKS)
    status = main(["run", "--simulate", "V100,V100", "--job-dir", str(shared), "--json", str(target), "--",
                   sys.executable, str(script)])
    shown = capfd.readouterr().err
    assert status == 0, shown
    document = json.loads(target.read_text())
    ranks = document["job"]["ranks"]
    assert [(each["rank"], each["iterations"], each["outcome"]) for each in ranks] == [(0, 11, "ok"), (1, 11, "ok")]
    assert [each["gpus"] for each in ranks] == [[gpu["uuid"]] for gpu in document["gpus"]]
    assert sum(each["energy_j"] for each in ranks) < document["energy_j"]
    assert document["work"] == [{"name": "samples", "amount": 2 * 12 * 256}]
    assert document["iterations"]["source"] == "marks"
    assert "job of 2 ranks" in shown

    stored = workbench.read_job("ranks.py")
    assert [each.rank for each in stored.ranks] == [0, 1]
    assert stored.measurement.energy_j == document["energy_j"]
    notes = {row["label"]: row["note"] for row in rows(Store().log())}
    assert notes == {"ranks.py": "job of 2 ranks", "inside": ""}
    (node,), notes = read_nodes(shared)
    assert (node.job, node.outcome, notes) == ("night", "ok", [])
    assert len(list(shared.glob("*/marks/*.marks"))) == 2
    assert main(["job", str(shared), "--json", str(target)]) == 0
    shown = capfd.readouterr().out
    assert shown.splitlines()[1].split() == ["rank", "GPU", "energy", "time", "iterations", "samples", "outcome"]
    assert json.loads(target.read_text())["jobs"][0]["job"] == "night"
    assert "<table" in workbench.read_job(shared)._repr_html_()


def test_a_directory_that_cannot_be_made_is_refused_before_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["run", "--simulate", "V100", "--job-dir", str(tmp_path / "file"), "--", "true"]) == 2
    assert "cannot be written to" in capfd.readouterr().err


def test_no_directory_and_no_logs_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--job-dir"):
        workbench.read_job(tmp_path)
    with pytest.raises(UsageError, match="no measurement is labelled"):
        workbench.read_job("never")
    assert main(["job", str(tmp_path)]) == 2


def test_several_jobs_are_separated_and_missing_nodes_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = schedule(8, 0.3, random.Random(3))
    for number, job in enumerate(("first", "second")):
        run(NodePlan(f"node{number}", "V100", synchronous(1, number, 2), job=job, nodes=2, seed=number), ends, tmp_path)
    with pytest.raises(UsageError, match="name one with job_id"):
        workbench.read_job(tmp_path)
    found = workbench.read_job(tmp_path, "second")
    assert found.measurement.outcome == "unfinished"
    assert {"1 of 2 nodes wrote no log; their energy is missing", "no marks of rank 0 of 2"} <= set(found.notes)
    assert main(["job", str(tmp_path)]) == 1
    assert capfd.readouterr().out.count("train: ") == 2
    next(tmp_path.glob("node0*/node.json")).write_text("{")
    assert any("cannot be read" in note for note in workbench.read_job(tmp_path).notes)


def test_two_logs_of_one_gpu_count_once(tmp_path: Path) -> None:
    ends = schedule(8, 0.3, random.Random(3))
    done = run(NodePlan("node", "V100", synchronous(1), seed=3), ends, tmp_path)
    assert done.log is not None
    shutil.copytree(done.log, tmp_path / "again")
    found = workbench.read_job(tmp_path)
    assert found.measurement.energy_j == done.job.measurement.energy_j
    assert "GPU 0 is in 2 logs of node and counts once" in found.notes


def test_clocks_of_nodes_that_do_not_wait_for_each_other_cannot_be_compared(tmp_path: Path) -> None:
    for number in range(2):
        run(NodePlan(f"node{number}", "V100", synchronous(1, number, 2), nodes=2, seed=number + 1),
            schedule(12, 0.3, random.Random(number), spread=0.5), tmp_path)
    first, second = read_nodes(tmp_path)[0]
    assert skew(first, second) == (None, None)
    found = workbench.read_job(tmp_path)
    assert any("cannot be compared" in note for note in found.notes)
    assert found.measurement.energy_j is not None
    assert found.measurement.iterations is not None
    assert found.measurement.iterations.count == 0


TORCH = """
import os, time
import torch
import torch.distributed as dist
import workbench
dist.init_process_group("gloo")
value = torch.ones(1)
with workbench.measure("inside"):
    for _ in range(10):
        time.sleep(0.02 * (1 + dist.get_rank()))
        dist.all_reduce(value)
        workbench.step()
        workbench.work(samples=4)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_torchrun_is_one_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed here: pip install torch")
    (tmp_path / "train.py").write_text(TORCH)
    target = tmp_path / "job.json"
    status = main(["run", "--simulate", "V100,V100", "--json", str(target), "--", sys.executable, "-m",
                   "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py")])
    assert status == 0, capfd.readouterr().err
    document = json.loads(target.read_text())
    assert [(each["rank"], each["iterations"], each["outcome"]) for each in document["job"]["ranks"]] == [
        (0, 9, "ok"), (1, 9, "ok")]
    assert document["work"] == [{"name": "samples", "amount": 80.0}]
    assert document["iterations"]["time_s"] >= 0.04  # the slower rank's


@pytest.mark.slow
def test_a_killed_run_leaves_its_node_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = ("from workbench.jobs import node_log\nnode_log.UPDATE_S = 0.3\nimport sys\nfrom workbench.cli import main\n"
            f"main(['run', '--simulate', 'V100', '--job-dir', {str(tmp_path)!r}, '--', 'sleep', '60'])")
    running = subprocess.Popen([sys.executable, "-c", code])
    while not list(tmp_path.glob("*/node.json")):
        assert running.poll() is None
    running.kill()
    running.wait()
    found = workbench.read_job(tmp_path)
    assert found.measurement.outcome == "unfinished"
    assert found.measurement.energy_j is not None
