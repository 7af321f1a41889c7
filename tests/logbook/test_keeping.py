"""What scripts measure is in the log, and a training waits for none of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench
from workbench.logbook import keeping
from workbench.logbook.keeping import LogQueue
from workbench.logbook.store import Store
from workbench.measurement import session
from workbench.simulation.machine import Machine


def test_blocks_functions_and_loops_are_in_the_log(simulated: Callable[..., Machine]) -> None:
    machine = simulated("V100", stepped=True)
    with workbench.measure("block"):
        machine.clock.sleep(1.0)
    for _ in workbench.track(range(3), "loop"):
        machine.clock.sleep(0.5)

    @workbench.measure
    def epoch() -> None:
        machine.clock.sleep(1.0)

    epoch()
    log = Store().log()
    assert log["label"].str.split(".").list.last().to_list() == ["block", "loop", "epoch"]
    assert log["kind"].to_list() == ["block", "loop", "block"]
    assert log["energy_j"].null_count() == 0
    session.current().close()


def test_a_label_is_written_once_per_second_and_less_often_after_many_runs() -> None:
    now_s = [0.0]
    writer = LogQueue(clock=lambda: now_s[0])
    written = []
    for _ in range(4000):
        written.append(writer.admit("epoch"))
        now_s[0] += 0.25
    kept = [left_out for left_out in written if left_out is not None]
    assert kept[:3] == [0, 3, 3]
    assert kept[250] == 7  # every two seconds after two hundred
    assert writer.admit("another") == 0


def test_what_fails_to_be_written_ends_nothing() -> None:
    writer, done = LogQueue(), threading.Event()

    def fail() -> None:
        raise OSError("the disk is full")

    writer.put(fail)
    writer.put(done.set)
    writer.flush()
    assert done.is_set()


def test_the_only_block_of_a_script_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    script = """
import workbench
workbench.simulate("V100")
with workbench.measure("only"):
    pass
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)
    assert Store().log()["label"].to_list() == ["only"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_childs_block_is_in_the_log_or_gives_the_reason_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the parent has loaded Polars, the child cannot write, nor does it wait for ever."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    script = """
import multiprocessing, workbench
workbench.simulate("V100")
def child(label):
    with workbench.measure(label) as result:
        pass
    print(*result.measurement.notes)
fork = multiprocessing.get_context("fork")
for label in ("before", "after"):
    process = fork.Process(target=child, args=[label])
    process.start()
    process.join()
    import polars
"""
    message = subprocess.run([sys.executable, "-c", script], check=True, timeout=240, capture_output=True, text=True).stdout
    assert Store().log()["label"].to_list() == ["before"]
    assert "in the log" not in message.splitlines()[0]
    assert "in the log" in message.splitlines()[1]
    assert "fork" in message.splitlines()[1]


def test_without_a_thread_it_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    writer, done = LogQueue(), []
    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", refused)
        for number in range(2):
            writer.put(lambda number=number: done.append(number))
            assert done == list(range(number + 1))
    writer.put(lambda: done.append(2))
    writer.flush()
    assert done == [0, 1, 2]


def test_who_measures_faster_than_the_log_writes_waits_and_loses_nothing() -> None:
    writer, done, most = LogQueue(most=3), [], []

    def write(number: int) -> None:
        most.append(len(writer._waiting))
        done.append(number)

    for number in range(200):
        writer.put(lambda number=number: write(number))
    writer.end()
    assert done == list(range(200))
    assert max(most) <= 4


def test_a_log_that_does_not_respond_stops_no_training_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "READ_S", 0.05)
    monkeypatch.setattr(keeping, "FLUSH_S", 0.05)
    writer, go, done = LogQueue(most=2), threading.Event(), []
    writer.put(lambda: go.wait(20.0))
    for number in range(50):
        writer.put(lambda number=number: done.append(number))
    with pytest.warns(RuntimeWarning, match="50 measurements are not in the log"):
        writer.end()
    go.set()
    writer.flush(20.0)
    assert done == list(range(50))


def test_a_reader_waits_for_earlier_writes_but_not_for_an_empty_queue() -> None:
    writer, stop, done = LogQueue(), threading.Event(), []

    def feed() -> None:
        while not stop.is_set():
            writer.put(lambda: time.sleep(0.02))
            time.sleep(0.015)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        time.sleep(0.2)
        writer.put(lambda: done.append("mine"))
        from_s = time.monotonic()
        writer.flush(60.0)
        assert done == ["mine"]
        assert time.monotonic() - from_s < 30.0
    finally:
        stop.set()
        feeding.join()
    writer.flush()


def test_who_writes_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    writer, done = LogQueue(), []

    def write() -> None:
        writer.put(lambda: done.append("after"))
        writer.flush(120.0)
        done.append("write")

    from_s = time.monotonic()
    writer.put(write)
    writer.flush(120.0)
    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", refused)
        writer.put(write)  # in place
    writer.flush(120.0)
    assert done == ["write", "after"] * 2
    assert time.monotonic() - from_s < 60.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_not_wait_for_its_parents_queue() -> None:
    writer, go = LogQueue(), threading.Event()
    writer.put(lambda: go.wait(20.0))
    child = os.fork()
    if child == 0:
        from_s = time.monotonic()
        writer.flush(10.0)
        os._exit(int(time.monotonic() - from_s > 5.0))
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    writer.flush(10.0)


def test_a_block_whose_writer_fails_ends_as_it_would(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("V100", stepped=True)
    monkeypatch.setattr(LogQueue, "put", lambda *_: 1 / 0)
    with workbench.measure("epoch") as result:
        pass
    assert "ZeroDivisionError" in result.measurement.notes[0]
    session.current().close()


def test_blocks_and_loops_without_a_label_are_distinguished_by_their_lines(
    simulated: Callable[..., Machine]
) -> None:
    simulated("V100", stepped=True)
    for _ in range(2):
        with workbench.measure():
            pass
    with workbench.measure() as another:
        pass
    for _ in workbench.track(range(1)):
        pass
    assert another.measurement.notes == ()
    assert Store().log()["kind"].to_list() == ["block", "block", "loop"]
    session.current().close()


@pytest.mark.parametrize("test", ["one", "another"])
def test_no_test_counts_the_blocks_of_another(simulated: Callable[..., Machine], test: str) -> None:
    simulated("V100", stepped=True)
    with workbench.measure("shared label"):
        pass
    assert Store().log()["label"].to_list() == ["shared label"]
    session.current().close()


def test_a_measurement_keeps_its_tag(simulated: Callable[..., Machine]) -> None:
    store = Store()
    store.tag("abc123", "before the refactoring")
    assert store.tags() == {"abc123": "before the refactoring"}
    store.tag("abc123", "")
    assert store.tags() == {}
