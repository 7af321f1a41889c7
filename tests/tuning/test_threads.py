"""Tuned jobs in threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import workbench
from workbench.measurement import session
from workbench.simulation.machine import Machine


def test_two_tuned_jobs_in_two_threads_count_their_own_steps(simulated: Callable[..., Machine]) -> None:
    simulated("V100,V100", stepped=True)
    both_have_begun, counted = threading.Barrier(2), {}

    def train(gpu: int, steps: int) -> None:
        with workbench.tune(gpus=gpu) as tuning:
            both_have_begun.wait()
            for _ in range(steps):
                workbench.step()
            both_have_begun.wait()
            assert tuning.tuner is not None
            counted[gpu] = tuning.tuner._marked.marks.total

    threads = [threading.Thread(target=train, args=each) for each in ((0, 5), (1, 8))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.current().close()
    assert counted == {0: 5, 1: 8}


def test_without_a_thread_left_the_job_runs_untuned(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated("V100", scale=20.0)
    start, ran = threading.Thread.start, False

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "energy-tuner":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.warns(RuntimeWarning, match="not tuned: can't start new thread"), workbench.tune() as tuning:
        ran = True
    assert ran
    assert tuning.result.state == "refused"
    session.current().close()
