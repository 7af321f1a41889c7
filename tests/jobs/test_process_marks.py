"""Marks of child processes: who writes where, what counts, and how iterations of ranks become the job's."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench
from workbench.device.selection import gpus_of_rank, job_name, rank_facts
from workbench.experiments.iteration_sources import MarkSource
from workbench.measurement import marks
from workbench.measurement.process_marks import (
    MarkFolder,
    ProcessMarks,
    generations,
    iteration_ends,
    synchronous,
    together,
)
from workbench.records import Phase
from workbench.simulation.machine import Machine


@pytest.fixture(autouse=True)
def no_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(marks, "_shared", None)
    yield
    os.environ.pop(marks.ENVIRONMENT_VARIABLE, None)


def process(steps: list[float], *, rank: int | None = 0, began_s: float = 0.0, **facts: Any) -> ProcessMarks:
    made = ProcessMarks({"pid": 1, "began_s": began_s, "rank": rank, **facts}, (), time.monotonic)
    made.steps.extend(steps)
    return made


def test_an_iteration_ends_when_the_last_rank_ends_it() -> None:
    ranks = [process([1.0, 2.0, 3.1]), process([1.1, 1.9, 3.0], rank=1)]
    assert iteration_ends(ranks) == [1.1, 2.0, 3.1]
    assert iteration_ends([process([1.0, 2.0, 3.0]), process([1.1, 2.2], rank=1)]) == [1.1, 2.2, 3.0]


def test_independent_ranks_drift_apart_and_synchronous_ones_do_not() -> None:
    rng = np.random.default_rng(1)
    ends_s, others_s = (np.cumsum(rng.normal(0.3, 0.003, 100)) for _ in range(2))
    noise_s = rng.normal(0.0, 0.001, 100)
    assert synchronous([process(list(ends_s)), process(list(ends_s + noise_s), rank=1)])
    assert not synchronous([process(list(ends_s)), process(list(others_s), rank=1)])
    assert not synchronous([process(list(ends_s)), process(list(1.01 * ends_s + noise_s), rank=1)])
    assert synchronous([process(list(ends_s))])


def test_iterations_of_a_late_rank_are_those_of_its_time() -> None:
    ranks = [process([1.0, 2.0, 3.0, 4.0]), process([3.2, 4.2, 5.2], rank=1, began_s=2.5)]
    assert iteration_ends(ranks) == [1.0, 2.0, 3.2, 4.2, 5.2]


def test_a_restart_begins_a_generation_and_one_replaced_worker_does_not() -> None:
    first, second = process([1.0, 2.0]), process([5.0, 6.0], began_s=4.0)
    assert generations([second, first]) == [[first], [second]]
    assert together([first, second], 0.0, 9.0).runs == ((1.0, 2.0), (5.0, 6.0))
    steady = process([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rank=1)
    assert generations([first, steady, second]) == [[first, steady, second]]
    assert iteration_ends([first, steady, second]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_work_adds_up_and_phases_of_ranks_are_one() -> None:
    ranks = [process([1.0, 2.0, 3.0, 6.0]), process([1.0, 2.0, 3.1, 6.1], rank=1)]
    for each, start_s in zip(ranks, (3.01, 3.11), strict=True):
        each.phases.append(Phase("evaluation", start_s, 5.0))
        each.worked("tokens", 1.5, 100.0)
        each.worked("tokens", 4.0, 7.0)
    found = together(ranks, 0.0, 9.0)
    assert [(each.name, each.amount) for each in found.work] == [("tokens", 200.0), ("evaluation tokens", 14.0)]
    assert found.phases == (Phase("evaluation", 3.1, 5.0),)  # the last rank is in the iteration until then


def test_a_tuner_follows_the_lowest_rank_where_its_own_process_marks_nothing() -> None:
    folder = Path(marks.share())
    now_s = 100.0
    source = MarkSource(lambda: now_s)
    for rank, late_s in ((1, 0.01), (0, 0.0)):
        facts = {"pid": 7 + rank, "began_s": 99.0, "rank": rank, "stepped": True}
        rows = "".join(f"step {100.5 + each + late_s}\n" for each in range(3))
        (folder / f"{7 + rank}-1.marks").write_text(json.dumps(facts) + "\n" + rows)
    source.sample(now_s)
    assert list(source.steps) == [100.5, 101.5, 102.5]
    with (folder / "7-1.marks").open("a") as file:
        file.write("step 103.5\n")
    source.sample(now_s)
    assert list(source.steps) == [100.5, 101.5, 102.5, 103.5]
    other = MarkSource(lambda: now_s)
    other.step()
    other.sample(now_s)
    assert list(other.steps) == [now_s]  # its own marks count


def test_a_damaged_file_loses_its_damaged_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "7-1.marks"
    folder = MarkFolder(str(tmp_path))
    path.write_text(json.dumps({"pid": 7, "began_s": 0.0}) + "\nstep 1.0\nstep 2.0st\nwork 2 x tokens\nstep 3.0\nste")
    assert list(folder.read()[0].steps) == [1.0, 3.0]
    with path.open("a") as file:
        file.write("p 4.0\nphase 4.0 5.0 my own phase\n")
    (found,) = folder.read()
    assert (list(found.steps), found.phases) == ([1.0, 3.0, 4.0], [Phase("my own phase", 4.0, 5.0)])
    (tmp_path / "8-1.marks").write_text("{")
    assert folder.read() == [found]
    assert MarkFolder(str(tmp_path / "none")).read() == []


# real processes


def train(steps: int, pause_s: float = 0.01) -> None:
    for _ in range(steps):
        time.sleep(pause_s)
        workbench.step()
        workbench.work(samples=2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_marks_of_child_processes_are_those_of_the_window(machine: Machine, method: str) -> None:
    machine.state.set_header("stepped", 0)
    with workbench.measure("children") as result:
        children = [multiprocessing.get_context(method).Process(target=train, args=(5,)) for _ in range(2)]
        for each in children:
            each.start()
        for each in children:
            each.join()
    found = result.measurement
    assert [(each.name, each.amount) for each in found.work] == [("samples", 20.0)]
    assert found.iterations is not None
    assert found.iterations.source == "marks"
    assert 4 <= found.iterations.count <= 8  # they may come one after another
    files = MarkFolder(marks.shared()).read()
    assert [each.ended_s is not None and not each.failed for each in files] == [True, True]


def test_own_marks_go_before_those_of_children(machine: Machine) -> None:
    with workbench.measure("outer") as result, workbench.measure("inner") as inner:
        if not (child := os.fork()):
            train(5, 0.0)
            os._exit(0)
        os.waitpid(child, 0)
        for _ in range(4):
            machine.step(1.0)
            workbench.step()
            workbench.work(samples=1)
    for each in (result, inner):
        assert each.measurement.iterations is not None
        assert each.measurement.iterations.time_s == pytest.approx(1.0)
        assert [done.amount for done in each.measurement.work] == [4.0]


def test_a_child_process_of_a_rank_is_not_counted_as_well(tmp_path: Path) -> None:
    code = ("import os, workbench\nwith workbench.measure():\n"
            "  if not (c := os.fork()):\n    [workbench.step() for _ in range(9)]\n    os._exit(0)\n"
            "  os.waitpid(c, 0)\n  [workbench.step() for _ in range(4)]\n")
    path = marks.share()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert sorted(len(each.steps) for each in MarkFolder(path).read()) == [4, 9]
    from workbench.measurement.process_marks import of_children

    assert [len(each.steps) for each in of_children(time.monotonic, 0.0, time.monotonic())] == [4]


def test_a_window_may_close_while_children_run_or_after_they_were_killed(machine: Machine) -> None:
    with workbench.measure("short") as result:
        child = subprocess.Popen(
            [sys.executable, "-c", "import workbench, time\nwhile True: workbench.step(); time.sleep(0.001)"])
        while not list(Path(marks.shared()).glob("*.marks")):
            time.sleep(0.01)
    assert result.measurement.outcome == "ok"
    child.kill()
    child.wait()
    assert workbench.measure("later").__enter__().opened is not None


# who a process is


def test_the_rank_is_read_from_the_variables_of_launchers() -> None:
    assert rank_facts({}) == {"rank": None, "world_size": None, "local_rank": None, "restarts": None, "nodes": None,
                              "job": ""}
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "4",
                "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert rank_facts(torchrun) == {"rank": 3, "world_size": 8, "local_rank": 1, "restarts": 1, "nodes": 4, "job": "a:1"}
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2"}
    assert [rank_facts(slurm)[name] for name in ("rank", "world_size", "nodes", "job")] == [5, 8, 2, "4711"]
    assert rank_facts({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})["rank"] == 1
    assert rank_facts({"PMI_RANK": "1", "PMI_SIZE": "2"})["rank"] == 1
    assert rank_facts({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})["rank"] is None
    assert job_name({"TORCHELASTIC_RUN_ID": "night", "SLURM_JOB_ID": "1"}) == "night"


def test_a_rank_uses_the_gpu_of_its_number_among_the_visible_ones() -> None:
    node = [(f"GPU-{letter * 8}", f"0000:0{number}:00.0", "A100") for number, letter in enumerate("abc")]
    assert gpus_of_rank({}, 2, node) == ("GPU-cccccccc",)
    assert gpus_of_rank({"CUDA_VISIBLE_DEVICES": "2,0"}, 1, node) == ("GPU-aaaaaaaa",)
    assert gpus_of_rank({"CUDA_VISIBLE_DEVICES": "1"}, 1, node) == ("GPU-bbbbbbbb",)  # the launcher chose
    assert gpus_of_rank({}, None, node) == gpus_of_rank({}, 7, node) == ()
    mixed = [*node[:2], ("GPU-cccccccc", "0000:02:00.0", "V100")]
    assert gpus_of_rank({}, 0, mixed) == ()  # CUDA's order is unknown
    assert gpus_of_rank({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 2, mixed) == ("GPU-cccccccc",)
