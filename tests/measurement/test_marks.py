"""Marks of a training reach every open window and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import workbench
from workbench.measurement import marks
from workbench.measurement.marks import MarkRecorder
from workbench.measurement.meter import Meter
from workbench.records import Marks, Phase, WorkDone


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notebook(clock: Clock) -> Iterator[MarkRecorder]:
    made = MarkRecorder(clock)
    marks.attach(made)
    yield made
    marks.detach(made)


def test_a_step_is_noted_where_a_window_is_open_and_nowhere_else(
    clock: Clock, notebook: MarkRecorder
) -> None:
    for clock.now_s in (1.0, 2.0, 3.5):
        workbench.step()
    marks.detach(notebook)
    workbench.step()
    assert notebook.marks(0.0, 10.0) == Marks(((1.0, 2.0, 3.5),), edges=True)
    assert notebook.marks(0.0, 10.0).count == 2


def test_windows_inside_of_windows_note_the_same_steps(clock: Clock, notebook: MarkRecorder) -> None:
    inner = MarkRecorder(clock)
    workbench.step()
    marks.attach(inner)
    clock.now_s = 1.0
    workbench.step()
    marks.detach(inner)
    marks.detach(inner)
    assert (list(notebook.steps), list(inner.steps)) == ([0.0, 1.0], [1.0])


def test_steps_of_many_threads_are_all_noted(notebook: MarkRecorder) -> None:
    threads = [threading.Thread(target=lambda: [workbench.step() for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(notebook.steps) == 4000


def test_two_threads_with_windows_of_their_own_do_not_mark_each_other() -> None:
    around = MarkRecorder(Clock(), ("GPU-0", "GPU-1"))  # of the main thread
    marks.attach(around)
    both_are_open, recorders = threading.Barrier(2), [around]

    def train(gpu: str, tokens: int) -> None:
        own = MarkRecorder(Clock(), (gpu,))
        recorders.append(own)
        marks.attach(own)
        both_are_open.wait()
        with workbench.phase("evaluation"):
            own.clock.now_s = around.clock.now_s = 1.0  # type: ignore[attr-defined]
        for _ in range(3):
            workbench.step()
        workbench.work(tokens=tokens)
        both_are_open.wait()
        marks.detach(own)

    threads = [threading.Thread(target=train, args=each) for each in (("GPU-0", 4000), ("GPU-1", 3000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marks.detach(around)
    done = {each.gpus: (len(each.steps), sum(each.work["tokens"][1])) for each in recorders}
    assert done == {frozenset({"GPU-0"}): (3, 4000.0), frozenset({"GPU-1"}): (3, 3000.0),
                    frozenset({"GPU-0", "GPU-1"}): (6, 7000.0)}
    assert [len(each.phases) for each in recorders[1:]] == [1, 1]


def test_a_thread_does_not_mark_a_window_of_the_main_thread_on_another_gpu() -> None:
    other = MarkRecorder(Clock(), ("GPU-0",))
    everything = MarkRecorder(Clock())  # as a tuner or a sink has it
    marks.attach(other)
    marks.attach(everything)

    def train() -> None:
        own = MarkRecorder(Clock(), ("GPU-1",))
        marks.attach(own)
        workbench.step()
        marks.detach(own)
        workbench.step()  # a thread without a window of its own works for those that are open

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    marks.detach(other)
    marks.detach(everything)
    assert (len(other.steps), len(everything.steps)) == (1, 2)


def test_work_in_a_phase_within_a_phase_belongs_to_the_outer_one(
    clock: Clock, notebook: MarkRecorder
) -> None:
    with workbench.phase("evaluation"):
        clock.now_s = 1.0
        workbench.work(tokens=1000)
        with workbench.phase("checkpoint"):
            clock.now_s = 2.0
        clock.now_s = 3.0
        workbench.work(tokens=1000)
        clock.now_s = 4.0
    clock.now_s = 5.0
    workbench.work(tokens=10)
    noted = notebook.marks(0.0, 6.0)
    assert noted.phases == (Phase("evaluation", 0.0, 4.0),)
    assert noted.work == (WorkDone("evaluation tokens", 2000.0), WorkDone("tokens", 10.0))


def test_a_window_whose_machine_is_gone_stops_no_training(clock: Clock, notebook: MarkRecorder) -> None:
    asked = []

    def gone() -> float:
        asked.append(1)
        raise ValueError("mmap closed or invalid")

    for note in (
        workbench.step, lambda: marks.since_last("evaluation"),
        lambda: workbench.phase("evaluation").__enter__(),
    ):
        stale = MarkRecorder(gone)
        marks.attach(stale)
        note()
        asked.clear()
        workbench.step()
        assert asked == []
    assert len(notebook.steps) == 4


def test_dropped_windows_record_no_marks() -> None:
    meter = Meter([])
    for _ in range(2000):
        meter.open(sync=False)
        meter.close(meter.open(sync=False), sync=False)
    assert not marks._open
    kept = meter.open(sync=False)
    assert marks._open
    for _ in range(3):
        workbench.step()
    assert meter.close(kept, sync=False).marks.count == 2
    assert not marks._open


def test_a_window_can_be_read_while_it_is_open_without_losing_marks() -> None:
    meter = Meter([])
    window = meter.open(sync=False)
    for _ in range(3):
        workbench.step()
    until_now = meter.close(window, sync=False, keep_open=True)
    workbench.step()
    assert (until_now.marks.count, meter.close(window, sync=False).marks.count) == (2, 3)


def test_a_phase_has_a_beginning_and_an_end_also_when_it_fails(clock: Clock, notebook: MarkRecorder) -> None:
    with pytest.raises(KeyError), workbench.phase("evaluation"):  # noqa: PT012
        clock.now_s = 2.0
        raise KeyError("x")
    with workbench.phase("nothing"):
        pass
    assert notebook.phases == [Phase("evaluation", 0.0, 2.0)]


def test_a_phase_reported_only_at_its_end_began_with_the_last_step_or_phase(
    clock: Clock, notebook: MarkRecorder
) -> None:
    marks.since_last("evaluation")  # before any step: nobody knows when it began
    clock.now_s = 1.0
    workbench.step()
    clock.now_s = 3.0
    marks.since_last("evaluation")
    clock.now_s = 3.5
    marks.since_last("checkpoint")
    assert notebook.phases == [Phase("evaluation", 1.0, 3.0), Phase("checkpoint", 3.0, 3.5)]


def test_only_marks_inside_the_window_count(clock: Clock, notebook: MarkRecorder) -> None:
    for clock.now_s in range(10):
        workbench.step()
    notebook.phases.append(Phase("evaluation", 1.0, 4.5))
    assert notebook.marks(2.5, 6.0) == Marks(((3.0, 4.0, 5.0, 6.0),), edges=True)


def test_the_inner_loop_has_the_iterations_and_steps_outweigh_loops(notebook: MarkRecorder) -> None:
    epochs, first, second = [0.0, 10.0, 20.0], [1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0]
    for loop in (epochs, first, second):
        marks.loop(loop)
    assert notebook.marks(0.0, 20.0) == Marks((tuple(first), tuple(second)))
    notebook.steps.extend([5.0, 6.0, 7.0])
    assert notebook.marks(0.0, 20.0).runs == ((5.0, 6.0, 7.0),)


def test_a_loop_that_has_not_ended_counts_as_far_as_it_has_come(notebook: MarkRecorder) -> None:
    running = [0.0]
    marks.loop(running)
    running += [1.0, 2.0]
    assert notebook.marks(0.0, 5.0).runs == ((0.0, 1.0, 2.0),)
