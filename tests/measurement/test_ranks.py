"""Ranks of one node: each measures its own GPU, and all of them when asked."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench import _processes, _shared_memory
from workbench.device.selection import local_rank, same_job
from workbench.measurement import foreign
from workbench.measurement.blocks import BlockResult
from workbench.measurement.foreign import foreign_processes
from workbench.measurement.meter import Meter
from workbench.measurement.session import Session
from workbench.records import Process
from workbench.simulation.machine import Machine


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"LOCAL_RANK": "0"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None),
        ({"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}, 2),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2,1"}, None),
        ({"SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, None),  # the script of a batch job
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 3),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}, None),
    ],
)
def test_a_rank_comes_from_the_environment_of_its_launcher(environment: dict[str, str], rank: int | None) -> None:
    assert local_rank(environment) == rank


@pytest.fixture
def third_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")


def test_ranks_measure_their_own_gpu_and_together_each_once(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = simulated("A100,A100,V100,V100", stepped=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    measured = []
    for rank in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        session = Session(sync=False)
        measured += [device.uuid for device in session.devices]
        assert [f"GPU {rank}" in each for each in session.messages if "rank" in each] == [True]
        session.close()
    assert measured == [machine.state.card(gpu, "uuid") for gpu in range(4)]


@pytest.mark.usefixtures("third_of_four")
def test_a_rank_measures_other_gpus_when_they_are_named(simulated: Callable[..., Machine]) -> None:
    simulated("A100,A100,V100,V100", stepped=True)
    session = Session(sync=False)
    assert len(session.devices) == 1
    assert len(session.meter_of([0, 3]).devices) == 2
    assert len(session.meter.devices) == 4
    session.close()


@pytest.mark.usefixtures("third_of_four")
@pytest.mark.parametrize("cards", ["A100", "A100,A100"])
def test_a_rank_with_fewer_visible_gpus_than_ranks_measures_the_visible_ones(
    simulated: Callable[..., Machine], cards: str
) -> None:
    simulated(cards, stepped=True)
    session = Session(sync=False)
    assert len(session.devices) == len(cards.split(","))
    session.close()


# one sampling process for all

RANK = """
import json, sys, time
from workbench.measurement.session import Session
session = Session(sync=False)
begin = time.perf_counter()
meter = session.meter
ready_s = time.perf_counter() - begin
recorder = session.recorder
print(json.dumps([ready_s, recorder.pid, session.devices[0].uuid]), flush=True)
for line in sys.stdin:
    if line.strip() == "measure":
        window = meter.open()
        time.sleep(2.0)
        window = meter.close(window)
        gpu = meter.measure(window).gpus[0]
        print(json.dumps([window.start_s, window.end_s, gpu.energy_j, gpu.energy_uncertainty_j]), flush=True)
    elif line.strip() == "who":
        meter.close(meter.open())
        recorder.calibrated(60.0)
        print(json.dumps([recorder.pid, recorder.failure(), float(recorder.latest(recorder.devices[0].uuid)["time_s"])]),
              flush=True)
session.close()
"""


class Ranks:
    """Processes with the numbers of ranks, which follow commands."""

    def __init__(self, count: int, **environment: str) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count), **environment},
            )
            for rank in range(count)
        ]

    def answer(self, rank: int) -> list[Any]:
        stream = self.processes[rank].stdout
        assert stream is not None
        return json.loads(stream.readline())

    def ask(self, rank: int, description: str) -> None:
        stream = self.processes[rank].stdin
        assert stream is not None
        stream.write(description + "\n")
        stream.flush()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks() -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def start(count: int, **environment: str) -> Ranks:
        made.append(Ranks(count, **environment))
        return made[-1]

    yield start
    for each in made:
        each.end()


def wait_until(true: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and not true():
        time.sleep(0.02)
    return true()


LINUX = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="locks of open files are Linux's")


@LINUX
def test_ranks_of_a_node_read_one_sampling_process(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks]
) -> None:
    machine = simulated("A100,A100")
    job = ranks(2)
    answers = [job.answer(rank) for rank in range(2)]
    assert len({pid for _, pid, _ in answers}) == 1
    assert [uuid for _, _, uuid in answers] == [machine.state.card(gpu, "uuid") for gpu in range(2)]
    for rank in range(2):
        job.ask(rank, "measure")
    for gpu in range(2):
        start_s, end_s, energy_j, bar_j = job.answer(gpu)
        truth_j = machine.gain(gpu) * machine.true_energy_j(gpu, start_s, end_s)
        assert abs(energy_j - truth_j) < 2 * bar_j


@LINUX
@pytest.mark.parametrize("dies", ["sampler", "owner", "reader"])
def test_when_a_rank_dies_the_others_continue_with_one_sampling_process(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks], dies: str
) -> None:
    simulated("A100,A100,A100")
    job = ranks(3)
    pids = [job.answer(rank)[1] for rank in range(3)]
    assert len(set(pids)) == 1
    owner = next(rank for rank, process in enumerate(job.processes)
                 if _processes.parent_of(pids[0]) == process.pid)
    first, second = (rank for rank in range(3) if rank != owner)
    dead = {"sampler": pids[0], "owner": job.processes[owner].pid, "reader": job.processes[first].pid}[dies]
    os.kill(dead, signal.SIGKILL)
    if dies == "sampler":
        wait_until(lambda: not _processes.runs(pids[0]))
    left = [second] if dies == "reader" else [first, second]
    after = []
    for rank in left:
        job.ask(rank, "who")
        after.append(job.answer(rank))
    assert len({pid for pid, _, _ in after}) == 1
    assert all(failure == "" for _, failure, _ in after)
    if dies != "sampler":  # which reads on without its owner
        assert after[0][0] == pids[0]
    for rank in left:
        job.processes[rank].communicate()  # an end of its own
    if dies != "owner":
        job.processes[owner].communicate()
    assert wait_until(lambda: not _processes.runs(after[0][0]))


@LINUX
def test_a_killed_sampling_process_is_replaced_within_a_second_in_an_open_window(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks the reader anything: it sees by itself that nobody writes any more."""
    simulated("A100,A100")
    job = ranks(1, LOCAL_WORLD_SIZE="2")
    owner_pid = job.answer(0)[1]
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    session = Session(sync=False)
    meter, recorder = session.meter, session.recorder
    assert recorder is not None
    assert recorder.pid == owner_pid
    window = meter.open()
    os.kill(owner_pid, signal.SIGKILL)
    assert wait_until(lambda: recorder.pid not in (None, owner_pid))
    assert recorder.calibrated(60.0)
    window = meter.close(window)
    assert meter.measure(window).gpus[0].energy_j is not None
    session.close()


@pytest.mark.slow
@LINUX
def test_eight_ranks_add_up_to_their_node(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks]
) -> None:
    machine = simulated(",".join(["A100"] * 8))
    job = ranks(8)
    assert len({job.answer(rank)[1] for rank in range(8)}) == 1
    for rank in range(8):
        job.ask(rank, "measure")
    off_j, bars_j = [], []
    for gpu in range(8):
        start_s, end_s, energy_j, bar_j = job.answer(gpu)
        off_j.append(energy_j - machine.gain(gpu) * machine.true_energy_j(gpu, start_s, end_s))
        bars_j.append(bar_j)
    assert abs(sum(off_j)) < sum(bars_j)


def rings() -> set[Path]:
    return set(_shared_memory.directory().glob(f"workbench-ring-{os.getpid()}-*"))


def test_a_forked_child_that_ends_leaves_its_parents_ring(simulated: Callable[..., Machine]) -> None:
    simulated("A100")
    before = rings()
    session = Session(sync=False)
    recorder = session.meter.recorder
    assert recorder is not None
    (ring,) = rings() - before
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            session.close()
            recorder.stop()
        os._exit(0)
    os.waitpid(pid, 0)
    assert ring.exists()
    assert recorder.running
    session.close()
    assert not ring.exists()


def test_a_forked_child_reads_its_parents_samples_and_asks_no_polars(simulated: Callable[..., Machine]) -> None:
    import polars as pl

    simulated("A100")
    session = Session(sync=False)
    recorder = session.meter.recorder
    assert recorder is not None
    pl.DataFrame({"a": [1.0]}).with_columns(b=pl.col("a") * 2.0)  # its threads begin, which no fork has
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        with contextlib.suppress(BaseException):
            meter = Session(sync=False).meter
            with BlockResult(meter, "in the child") as result:
                for _ in range(4):
                    workbench.step()
            mine = meter.recorder
            assert mine is not None
            reported = [mine.pid == recorder.pid, *result.measurement.notes]
            os.write(there, json.dumps(reported).encode())
        os._exit(0)
    os.close(there)
    with open(here, encoding="utf-8") as file:
        reported = json.load(file)
    assert os.waitpid(pid, 0)[1] == 0
    session.close()
    assert reported[0]
    assert "fork" in " ".join(reported[1:])


# siblings are no strangers

TORCHRUN = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}
SLURM = {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-1"}
HYDRA = {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("ours", "theirs", "one_parent", "sibling"),
    [
        (TORCHRUN, {**TORCHRUN, "LOCAL_RANK": "1"}, False, True),
        (TORCHRUN, {**TORCHRUN, "MASTER_PORT": "29501"}, False, False),
        (SLURM, {**SLURM, "SLURM_LOCALID": "1"}, False, True),
        (SLURM, {**SLURM, "SLURM_STEP_ID": "1"}, False, False),
        (MPIRUN, {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, False, True),
        (HYDRA, {**HYDRA, "MPI_LOCALRANKID": "1"}, True, True),
        (HYDRA, {**HYDRA, "MPI_LOCALRANKID": "1"}, False, False),
        ({}, {}, True, False),  # two kernels of one Jupyter server
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1"}, {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1"}, False, False),
    ],
)
def test_ranks_of_one_job_are_siblings_and_others_are_not(
    ours: dict[str, str], theirs: dict[str, str], one_parent: bool, sibling: bool
) -> None:
    assert same_job(ours, theirs, one_parent=one_parent) == sibling


def test_a_sibling_is_in_no_note_and_a_stranger_is(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("A100", stepped=True)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    gpu = workbench.open_device(0)
    other, process = os.getppid(), ranks(2, MASTER_ADDR="node", MASTER_PORT="29500").processes[1]
    there = (Process(process.pid, "python"), Process(other, "a stranger"))
    monkeypatch.setattr(type(gpu), "processes", lambda *_, **__: there)
    assert wait_until(lambda: [each.pid for each in foreign_processes(gpu).named] == [other])
    assert foreign_processes(gpu).ranks == 0  # this rank does not use that GPU


def test_two_ranks_on_one_gpu_are_a_note_of_each_figure(
    simulated: Callable[..., Machine], ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("A100", stepped=True)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    gpu = workbench.open_device(0)
    process = ranks(2, MASTER_ADDR="node", MASTER_PORT="29500").processes[1]
    there = (Process(process.pid, "python"), Process(os.getpid(), "python"))
    monkeypatch.setattr(type(gpu), "processes", lambda *_, **__: there)
    monkeypatch.setattr(foreign, "is_ours", lambda pid: pid == os.getpid())  # both are children of one launcher
    assert wait_until(lambda: foreign_processes(gpu).ranks == 1)
    meter = Meter([gpu], zones=())
    measured = meter.measure(meter.close(meter.open()))
    assert "other ranks" in " ".join(measured.gpus[0].notes)
