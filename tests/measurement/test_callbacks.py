"""Hooks of frameworks: doubles with the documented hooks, in the order in which the frameworks call them;
the real ones where they are.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import workbench
from workbench import callbacks
from workbench.errors import UsageError
from workbench.measurement import marks
from workbench.measurement.marks import MarkRecorder
from workbench.records import Phase
from workbench.simulation.machine import Machine


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[MarkRecorder]:
    made = MarkRecorder(Clock())
    marks.attach(made)
    yield made
    marks.detach(made)


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No class made in one test serves in another."""
    yield
    for name in ("HuggingFaceCallback", "LightningCallback", "KerasCallback"):
        vars(callbacks).pop(name, None)


class Base:
    """A framework's callback class for the adapter: an object with all other hooks."""

    def on_log(self, *arguments: Any, **rest: Any) -> str:
        return "the framework's own"


def double(monkeypatch: pytest.MonkeyPatch, module: str, attribute: str) -> None:
    parts = module.split(".")
    for depth in range(len(parts)):
        monkeypatch.setitem(
            sys.modules, ".".join(parts[: depth + 1]), ModuleType(".".join(parts[: depth + 1]))
        )
    setattr(sys.modules[module], attribute, Base)


def at(notebook: MarkRecorder, now_s: float) -> None:
    notebook.clock.now_s = now_s  # type: ignore[attr-defined]


def test_hugging_face_steps_evaluates_and_saves_in_this_order(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder
) -> None:
    double(monkeypatch, "transformers", "TrainerCallback")
    hook = callbacks.HuggingFaceCallback()
    call = (SimpleNamespace(), SimpleNamespace(), SimpleNamespace())
    for now_s in (1.0, 2.0):
        at(notebook, now_s)
        hook.on_step_end(*call, model=None)
    at(notebook, 5.0)
    hook.on_evaluate(*call, metrics={})
    at(notebook, 5.5)
    hook.on_save(*call)
    at(notebook, 6.5)
    hook.on_step_end(*call)
    assert list(notebook.steps) == [1.0, 2.0, 6.5]
    assert notebook.phases == [Phase("evaluation", 2.0, 5.0), Phase("checkpoint", 5.0, 5.5)]
    assert hook.on_log() == "the framework's own"


def test_lightning_counts_optimizer_steps_and_not_micro_steps(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder
) -> None:
    double(monkeypatch, "lightning.pytorch", "Callback")
    hook = callbacks.LightningCallback()
    trainer = SimpleNamespace(global_step=0)
    hook.on_train_start(trainer, None)
    for batch in range(4):  # gradients are accumulated over two batches
        at(notebook, float(batch + 1))
        trainer.global_step = (batch + 1) // 2
        hook.on_train_batch_end(trainer, None, None, None, batch)
    hook.on_validation_start(trainer, None)
    at(notebook, 7.0)
    hook.on_validation_end(trainer, None)
    assert list(notebook.steps) == [0.0, 2.0, 4.0]  # two iterations, from the beginning of the training on
    assert notebook.phases == [Phase("evaluation", 4.0, 7.0)]


def test_hugging_face_counts_the_samples_that_there_are_and_evaluates_where_it_does(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder
) -> None:
    double(monkeypatch, "transformers", "TrainerCallback")
    hook = callbacks.HuggingFaceCallback()
    stream = iter(())
    for ranks, dataset, batches, each in ((1, range(122), 8, 122), (1, range(144), 9, 144), (2, range(288), 9, 144),
                                          (1, range(122), 7, 112), (1, stream, 9, 144)):
        notebook.work.clear()
        args = SimpleNamespace(gradient_accumulation_steps=4, world_size=ranks)
        state = SimpleNamespace(train_batch_size=16)
        hook.on_train_begin(args, state, None)
        hook.on_epoch_begin(args, state, None, train_dataloader=SimpleNamespace(dataset=dataset))
        for batch in range(1, batches + 1):
            if batch % 4 and batch < batches:
                hook.on_substep_end(args, state, SimpleNamespace())
            else:
                hook.on_step_end(args, state, SimpleNamespace())
        hook.on_train_end(args, state, None)
        assert sum(notebook.work["samples"][1]) == each
    at(notebook, 10.0)
    hook.on_prediction_step(args, state, None)
    at(notebook, 12.0)
    hook.on_evaluate(args, state, SimpleNamespace(), metrics={})
    assert notebook.phases == [Phase("evaluation", 10.0, 12.0)]


def test_sixteen_steps_are_sixteen_iterations_and_a_gap_between_trainings_is_a_pause(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    hook = callbacks.KerasCallback()
    with workbench.measure("fits") as result:
        for _ in range(2):
            machine.step(0.5)  # as long as an iteration, and none
            hook.on_train_begin()
            for batch in range(16):
                machine.step(0.5)
                hook.on_train_batch_end(batch)
        machine.step(0.5)
    found = result.found
    assert found.summary.count == 32
    kinds = found.frame["kind"].to_list()
    assert (kinds.count("iteration"), kinds.count("pause"), kinds.count("long iteration")) == (32, 1, 0)


@pytest.mark.parametrize(("name", "hooks", "kind"), [
    ("LightningCallback", "test start", "evaluation"), ("LightningCallback", "predict start", "prediction"),
    ("KerasCallback", "test begin", "evaluation"), ("KerasCallback", "predict begin", "prediction"),
])
def test_tests_and_predictions_are_phases(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder, name: str, hooks: str, kind: str
) -> None:
    double(monkeypatch, "lightning.pytorch" if name[0] == "L" else "keras.callbacks", "Callback")
    hook, (what, begin) = getattr(callbacks, name)(), hooks.split()
    arguments = (SimpleNamespace(), None) if name[0] == "L" else ({},)
    at(notebook, 2.0)
    getattr(hook, f"on_{what}_{begin}")(*arguments)
    at(notebook, 5.0)
    getattr(hook, f"on_{what}_end")(*arguments)
    assert notebook.phases == [Phase(kind, 2.0, 5.0)]


def test_a_training_in_a_child_process_is_counted(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    double(monkeypatch, "lightning.pytorch", "Callback")
    hook = callbacks.LightningCallback()
    monkeypatch.setattr(marks, "_shared", None)
    with workbench.measure("fit") as result:
        machine.step(1.0)
        if not (child := os.fork()):
            try:
                hook.on_train_start(SimpleNamespace(global_step=0), None)
                for step in range(1, 6):
                    machine.step(1.0)
                    hook.on_train_batch_end(SimpleNamespace(global_step=step), None, batch=[[0]] * 4)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    found = result.measurement.iterations
    assert found is not None
    assert (found.count, found.source, found.time_s) == (5, "marks", pytest.approx(1.0))



def test_keras_marks_batches_and_validation(monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    hook = callbacks.KerasCallback()
    for batch in range(2):
        at(notebook, float(batch))
        hook.on_train_batch_end(batch, logs={})
    hook.on_test_begin()
    at(notebook, 3.0)
    hook.on_test_end()
    hook.on_test_end()
    assert list(notebook.steps) == [0.0, 1.0]
    assert notebook.phases == [Phase("evaluation", 1.0, 3.0)]


def test_an_evaluation_that_failed_ends_where_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder
) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    hook = callbacks.KerasCallback()
    hook.on_test_begin()
    at(notebook, 1.0)
    hook.on_test_begin()
    at(notebook, 2.0)
    hook.on_test_end()
    assert notebook.phases == [Phase("evaluation", 0.0, 1.0), Phase("evaluation", 1.0, 2.0)]


def test_a_class_is_made_once_and_pickles_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    double(monkeypatch, "pytorch_lightning", "Callback")
    monkeypatch.setitem(sys.modules, "lightning", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    made = callbacks.LightningCallback
    assert made is callbacks.LightningCallback
    assert isinstance(pickle.loads(pickle.dumps(made())), made)


# recurring jobs


class Run:
    """Stands where a recurrence stands: is to stop when the metric is reached, or after so many steps."""

    def __init__(self, target: float = 0.8, steps: float = float("inf")) -> None:
        self.target, self.steps, self.epochs, self.reached = target, steps, [], False

    def report(self, metric: float | None = None) -> None:
        self.epochs.append(metric)
        self.reached = self.reached or (metric is not None and metric >= self.target)

    def should_stop(self) -> bool:
        self.steps -= 1
        return self.reached or self.steps < 0


def test_hugging_face_reports_an_epoch_after_its_evaluation_and_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    double(monkeypatch, "transformers", "TrainerCallback")
    run = Run()
    hook = callbacks.HuggingFaceCallback(run, metric="eval_accuracy")
    control = SimpleNamespace(should_evaluate=True, should_training_stop=False)
    call = (SimpleNamespace(), SimpleNamespace(), control)
    for accuracy in (0.5, 0.9):
        hook.on_step_end(*call)
        hook.on_epoch_end(*call)
        assert len(run.epochs) == (0 if accuracy == 0.5 else 1)  # the trainer evaluates after this hook
        hook.on_evaluate(*call, metrics={"eval_accuracy": accuracy})
        assert control.should_training_stop == (accuracy == 0.9)
    hook.on_evaluate(*call, metrics={"eval_accuracy": 0.95})  # by the person, after the training
    assert run.epochs == [0.5, 0.9]


def test_hugging_face_takes_the_evaluation_inside_an_epoch_where_there_is_none_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    double(monkeypatch, "transformers", "TrainerCallback")
    run = Run()
    hook = callbacks.HuggingFaceCallback(run, metric="eval_accuracy")
    control = SimpleNamespace(should_evaluate=False, should_training_stop=False)
    call = (SimpleNamespace(), SimpleNamespace(), control)
    hook.on_evaluate(*call, metrics={"eval_accuracy": 0.6})
    hook.on_epoch_end(*call)
    assert run.epochs == [0.6]
    with pytest.raises(UsageError, match="'eval_accuracy'"):
        hook.on_epoch_end(*call)


def test_lightning_reports_what_the_validation_of_the_epoch_found(monkeypatch: pytest.MonkeyPatch) -> None:
    double(monkeypatch, "lightning.pytorch", "Callback")
    run = Run()
    hook = callbacks.LightningCallback(run, metric="accuracy")
    trainer = SimpleNamespace(
        global_step=0, should_stop=False, callback_metrics={"accuracy": 0.5, "loss": 2.0}
    )
    hook.on_train_epoch_end(trainer, None)
    assert not trainer.should_stop
    trainer.callback_metrics["accuracy"] = 0.8
    hook.on_train_epoch_end(trainer, None)
    assert trainer.should_stop
    assert run.epochs == [0.5, 0.8]


def test_keras_reports_the_logs_of_the_epoch_and_shows_what_there_is_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    run = Run()
    hook = callbacks.KerasCallback(run, metric="val_accuracy")
    hook.model = SimpleNamespace(stop_training=False)
    hook.on_epoch_end(0, {"val_accuracy": 0.5, "loss": 1.0})
    assert not hook.model.stop_training
    with pytest.raises(UsageError, match=r"'val_accuracy'.*accuracy, loss"):
        hook.on_epoch_end(1, {"accuracy": 0.9, "loss": 0.5})
    hook.on_epoch_end(1, {"val_accuracy": 0.9})
    assert hook.model.stop_training
    assert run.epochs == [0.5, 0.9]


def test_a_slice_ends_inside_an_epoch_which_then_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    run = Run(steps=2)
    hook = callbacks.KerasCallback(run)
    hook.model = SimpleNamespace(stop_training=False)
    for batch in range(3):
        assert not hook.model.stop_training
        hook.on_train_batch_end(batch)
    assert hook.model.stop_training
    hook.on_epoch_end(0, {})  # which Keras calls all the same
    assert run.epochs == []


def test_without_a_recurrence_epochs_pass_and_nothing_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    double(monkeypatch, "keras.callbacks", "Callback")
    hook = callbacks.KerasCallback()
    hook.model = SimpleNamespace(stop_training=False)
    hook.on_train_batch_end(0)
    hook.on_epoch_end(0, None)
    assert not hook.model.stop_training


@pytest.mark.parametrize(
    ("name", "package"),
    [("HuggingFaceCallback", "transformers"), ("LightningCallback", "lightning"), ("KerasCallback", "keras")],
)
def test_a_framework_that_is_not_here_is_reported_when_its_class_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in ("transformers", "lightning.pytorch", "pytorch_lightning", "keras.callbacks", "tensorflow.keras.callbacks"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"{name} needs {package}.*workbench.step"):
        getattr(callbacks, name)
    assert name in dir(callbacks)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="FastaiCallback"):
        callbacks.FastaiCallback  # noqa: B018


def test_transformers_calls_what_we_hook_into() -> None:
    library = pytest.importorskip("transformers")
    assert issubclass(callbacks.HuggingFaceCallback, library.TrainerCallback)
    assert all(
        hasattr(library.TrainerCallback, name)
        for name in ("on_step_end", "on_epoch_end", "on_evaluate", "on_save")
    )


def test_lightning_calls_what_we_hook_into() -> None:
    library = pytest.importorskip("lightning.pytorch")
    assert issubclass(callbacks.LightningCallback, library.Callback)
    for name in (
        "on_train_start", "on_train_batch_end", "on_train_epoch_end", "on_validation_start",
        "on_validation_end",
    ):
        assert hasattr(library.Callback, name)


def test_keras_calls_what_we_hook_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # any would do
    library = pytest.importorskip("keras")
    assert issubclass(callbacks.KerasCallback, library.callbacks.Callback)
    for name in ("on_train_batch_end", "on_epoch_end", "on_test_begin", "on_test_end"):
        assert hasattr(library.callbacks.Callback, name)


# the real libraries train a linear model on eight numbers; what they warn of is theirs


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_hugging_face_reports_its_epochs_and_stops(tmp_path: Path, notebook: MarkRecorder) -> None:
    torch, library = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            found = self.line(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    rows = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([float(n)])} for n in range(8)]
    run, message = Run(target=0.8), iter((0.2, 0.5, 0.9, 1.0))
    options = library.TrainingArguments(
        str(tmp_path), num_train_epochs=4, per_device_train_batch_size=4, eval_strategy="epoch",
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )
    library.Trainer(
        Model(),
        options,
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda _: {"accuracy": next(message)},
        callbacks=[callbacks.HuggingFaceCallback(run, metric="eval_accuracy")],
    ).train()
    assert run.epochs == [0.2, 0.5, 0.9]
    assert len(notebook.steps) == 1 + 6  # the beginning, and the end of each step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [float("inf"), 3])
def test_a_trainer_of_lightning_reports_its_epochs_and_stops(
    tmp_path: Path, notebook: MarkRecorder, steps: float
) -> None:
    torch, library = pytest.importorskip("torch"), pytest.importorskip("lightning.pytorch")
    message = iter((0.2, 0.5, 0.9, 1.0))

    class Model(library.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.line(batch).square().mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("accuracy", next(message))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=4)
    run = Run(target=0.8, steps=steps)
    trainer = library.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        num_sanity_val_steps=0,
        callbacks=[callbacks.LightningCallback(run, metric="accuracy")],
        limit_val_batches=1,
    )
    trainer.fit(Model(), loader, loader)
    if steps == 3:  # asked after two steps and the epoch's end, and stopped after the next step
        assert (run.epochs, len(notebook.steps)) == ([pytest.approx(0.2)], 1 + 3)
    else:
        assert (run.epochs, len(notebook.steps)) == (pytest.approx([0.2, 0.5, 0.9]), 1 + 6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("steps", [float("inf"), 3])
def test_a_fit_of_keras_reports_its_epochs_and_stops(
    monkeypatch: pytest.MonkeyPatch, notebook: MarkRecorder, steps: float
) -> None:
    pytest.importorskip("torch")  # any backend would do
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    library = pytest.importorskip("keras")
    import numpy as np

    model = library.Sequential([library.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    run = Run(target=-1e9, steps=steps)  # any loss reaches that: it stops after one epoch
    if steps == 3:
        run.target = 1e9
    hook = callbacks.KerasCallback(run, metric="val_loss")
    x = np.ones((8, 1), np.float32)
    model.fit(x, x, batch_size=4, epochs=4, verbose=0, validation_data=(x, x), callbacks=[hook])
    if steps == 3:
        assert (len(run.epochs), len(notebook.steps)) == (1, 1 + 3)
    else:
        assert (len(run.epochs), len(notebook.steps)) == (1, 1 + 2)
