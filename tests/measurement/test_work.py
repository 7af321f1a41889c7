"""Tokens and samples, counted by hand, by callbacks and by `track`: rates with intervals, and bad counts."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench
from workbench import callbacks
from workbench.logbook.report import line, page
from workbench.logbook.store import Store, as_frame
from workbench.logbook.work_rates import padding_share, rates
from workbench.measurement import session
from workbench.measurement.work import of_batch
from workbench.records import GpuMeasurement, Measurement, WorkDone
from workbench.simulation.machine import Machine


def train(machine: Machine, seconds: float = 1.0, power_w: float = 200.0) -> None:
    machine.state.publish(0, machine.clock(), [], (power_w, 1380, 877, 1.0, 0.5, 0))
    machine.step(seconds)


def done(measurement: Measurement) -> dict[str, float]:
    return {each.name: each.amount for each in measurement.work}


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of Transformers and Lightning with an empty base class."""
    for module, name in (("transformers", "TrainerCallback"), ("lightning.pytorch", "Callback")):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: object}))
    yield
    for name in ("HuggingFaceCallback", "LightningCallback"):
        vars(callbacks).pop(name, None)


def test_tokens_per_joule_with_an_interval(machine: Machine) -> None:
    with workbench.measure("train") as result:
        for _ in range(4):
            train(machine)
            workbench.work(tokens=1000, samples=2)
    assert done(result.measurement) == {"tokens": 4000.0, "samples": 8.0}
    tokens, samples = rates(result.measurement)
    assert tokens.per_s == pytest.approx(1000.0)
    assert tokens.low < 5.0 < tokens.high  # 4000 tokens for 800 J
    assert "tokens/J" in str(tokens)
    assert "J/sample" in str(samples)
    assert str(tokens) in line(result.measurement)
    assert "tokens" in page(result.measurement)


def test_evaluation_is_counted_apart(machine: Machine) -> None:
    with workbench.measure("train") as result:
        train(machine)
        workbench.work(tokens=1000)
        with workbench.phase("evaluation"):
            train(machine)
            workbench.work(tokens=300)
        train(machine)
        workbench.work(tokens=1000)
    assert done(result.measurement) == {"tokens": 2000.0, "evaluation tokens": 300.0}


def test_two_threads_with_a_gpu_each_count_their_own(simulated: Callable[..., Machine]) -> None:
    session.current().close()
    simulated("V100,V100", stepped=True).step(1.0)
    both_are_open, counted = threading.Barrier(2), {}

    def train_on(gpu: int, tokens: int) -> None:
        with workbench.measure("train", gpus=gpu) as result:
            both_are_open.wait()
            workbench.work(tokens=tokens)
            both_are_open.wait()
        counted[gpu] = done(result.measurement)

    with workbench.measure("both") as both:
        threads = [threading.Thread(target=train_on, args=each) for each in ((0, 4000), (1, 3000))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted == {0: {"tokens": 4000.0}, 1: {"tokens": 3000.0}}
    assert done(both.measurement) == {"tokens": 7000.0}
    session.current().close()


def test_windows_inside_one_another_count_their_own(machine: Machine) -> None:
    with workbench.measure("outer") as outer:
        workbench.work(tokens=1)
        train(machine)
        with workbench.measure("inner") as inner:
            train(machine)
            workbench.work(tokens=10)
    assert done(inner.measurement) == {"tokens": 10.0}
    assert done(outer.measurement) == {"tokens": 11.0}
    workbench.work(tokens=5)  # where nothing is measured


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "many", None])
def test_a_bad_count_ends_no_training_and_is_reported(machine: Machine, bad: Any) -> None:
    with workbench.measure("train") as result:
        train(machine)
        workbench.work(tokens=bad)  # its warning is an error in these tests
        workbench.work(tokens=7)
    assert done(result.measurement) == {"tokens": 7.0}
    assert any("not counted" in note for note in result.measurement.notes)


def test_no_work_and_no_energy_have_no_rate() -> None:
    plain = Measurement("1", "a", 0.0, 2.0, work=(WorkDone("tokens", 10.0), WorkDone("samples", 0.0)))
    (tokens,) = rates(plain)
    assert tokens.per_j is None
    assert str(tokens) == "5.00 tokens/s"


def test_it_is_kept(machine: Machine) -> None:
    gpu = GpuMeasurement("A100", "u", 100.0, 1.0, "counter", False)
    store = Store()
    store.save(Measurement("new", "a", 1.7e9, 2.0, (gpu,), work=(WorkDone("tokens", 1234.0),)))
    assert done(store.find("new")) == {"tokens": 1234.0}


def test_a_tracked_loop_counts_batches_that_report_their_size(machine: Machine) -> None:
    loop = workbench.track([np.zeros((8, 3)), np.zeros((4, 3))])
    for _ in loop:
        train(machine)
    assert done(loop.measurement) == {"samples": 12.0}
    loop = workbench.track([np.zeros((8, 3)), np.zeros((4, 3))])
    for _ in loop:
        train(machine)
        workbench.work(samples=1)  # whoever counts is not counted for
    assert done(loop.measurement) == {"samples": 2.0}
    loop = workbench.track(range(3))
    for _ in loop:
        train(machine)
    assert done(loop.measurement) == {}


def test_batches_report_tokens_and_padding() -> None:
    ids, mask = np.ones((2, 5)), np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert of_batch({"input_ids": ids}) == {"samples": 2.0, "tokens": 10.0}
    assert of_batch({"input_ids": ids, "attention_mask": mask}) == {"samples": 2.0, "tokens": 8.0, "padding": 2.0}
    assert of_batch({"pixels": np.zeros((7, 2))}) == {"samples": 7.0}
    assert of_batch((np.zeros((6, 2)), np.zeros(6))) == {"samples": 6.0}
    assert of_batch([[np.zeros((3, 8, 8)), np.zeros((3, 9, 9))], [{}, {}]]) == {"samples": 2.0}
    assert of_batch([np.zeros((4, 3, 8, 8)), np.zeros(4)]) == {"samples": 4.0}
    for nothing in ([np.zeros((3, 8, 8)), np.zeros((3, 9, 9))], (np.zeros((3, 8, 8)), 5)):
        assert of_batch(nothing) == {}
    for nothing in (None, 3, "text", [1, 2], [], {}, object(), np.float64(2.0), ["a", "b"]):
        assert of_batch(nothing) == {}


class Unkind:
    @property
    def shape(self) -> Any:
        raise RuntimeError("somebody else's")


def test_a_batch_that_cannot_be_asked_ends_nothing() -> None:
    assert of_batch(Unkind()) == {}


def test_hugging_face_counts_steps_of_this_rank(machine: Machine, frameworks: None) -> None:
    hooks = callbacks.HuggingFaceCallback()
    args = SimpleNamespace(gradient_accumulation_steps=4, world_size=2)
    state = SimpleNamespace(num_input_tokens_seen=10_000, train_batch_size=8)  # resumed
    control = SimpleNamespace(should_training_stop=False)
    with workbench.measure("train") as result:
        hooks.on_train_begin(args, state, control)
        for _ in range(3):
            train(machine)
            state.num_input_tokens_seen += 4096
            hooks.on_step_end(args, state, control)
    assert done(result.measurement) == {"samples": 96.0, "tokens": 3 * 2048.0}


def test_lightning_counts_every_micro_batch(machine: Machine, frameworks: None) -> None:
    hooks, trainer = callbacks.LightningCallback(), SimpleNamespace(global_step=0)
    with workbench.measure("train") as result:
        hooks.on_train_start(trainer, None)
        for number in range(4):
            train(machine)
            trainer.global_step = number // 2
            hooks.on_train_batch_end(trainer, None, None, (np.zeros((16, 2)), np.zeros(16)), number)
    assert done(result.measurement) == {"samples": 4 * 16.0}


def test_a_training_that_counts_is_not_counted_for(machine: Machine, frameworks: None) -> None:
    hooks, trainer = callbacks.LightningCallback(), SimpleNamespace(global_step=0)
    with workbench.measure("train") as result:
        for number in range(3):
            train(machine)
            workbench.work(samples=1)
            hooks.on_train_batch_end(trainer, None, None, np.zeros((16, 2)), number)
    assert done(result.measurement) == {"samples": 3.0}


def test_runs_of_a_repeated_cell_are_averaged() -> None:
    from workbench.measurement.repeats import repeated

    gpu = GpuMeasurement("A100", "u", 100.0, 1.0, "counter", False)
    runs = [Measurement(str(n), "a", 0.0, 2.0, (gpu,), work=(WorkDone("tokens", 10.0 * n),)) for n in (1, 3)]
    assert done(repeated(runs)) == {"tokens": 20.0}


def test_the_log_shows_it() -> None:
    from workbench.logbook.run_table import rows

    gpu = GpuMeasurement("A100", "u", 100.0, 1.0, "counter", False)
    frame = as_frame([Measurement("1", "a", 0.0, 2.0, (gpu,), work=(WorkDone("tokens", 250.0),))])
    assert rows(frame)[0]["work"] == "250.0 tokens (2.50/J)"
    assert isinstance(frame, pl.DataFrame)


def test_prompt_and_output_tokens_are_separate_and_padding_is_a_share() -> None:
    gpu = GpuMeasurement("A100", "u", 100.0, 2.0, "counter", False)
    reported = (WorkDone("prompt_tokens", 4000.0), WorkDone("output_tokens", 50.0))
    both = [str(each) for each in rates(Measurement("1", "", 0.0, 10.0, (gpu,), work=reported))]
    assert [each.split(" ", 3) for each in both] == [["40.00", "±", "0.80", "prompt tokens/J"], ["2.000", "±", "0.040", "J/output token"]]
    padded = Measurement("1", "", 0.0, 10.0, (gpu,), work=(WorkDone("tokens", 900.0), WorkDone("padding", 100.0)))
    assert [each.name for each in rates(padded)] == ["tokens"]
    assert padding_share(padded) == pytest.approx(0.1)
    assert "10 % of" in page(padded)
