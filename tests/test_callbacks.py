"""Hooks of frameworks: doubles with the documented hooks, in the order in which the frameworks call them; the real ones where they are."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from workbench import callbacks, marks
from workbench.errors import UsageError
from workbench.marks import Notebook
from workbench.records import Phase


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setattr(marks, "_open", ())
    made = Notebook(Clock())
    marks.attach(made)
    yield made
    marks.detach(made)


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No class made in one test serves in another."""
    yield
    for name in callbacks._CLASSES:
        vars(callbacks).pop(name, None)


class Base:
    """What a framework's callback class is to us: something with all other hooks."""

    def on_train_begin(self, *arguments: Any, **rest: Any) -> str:
        return "the framework's own"


def double(monkeypatch: pytest.MonkeyPatch, module: str, attribute: str) -> None:
    parts = module.split(".")
    for depth in range(len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[: depth + 1]), ModuleType(".".join(parts[: depth + 1])))
    setattr(sys.modules[module], attribute, Base)


def at(notebook: Notebook, now_s: float) -> None:
    notebook.clock.now_s = now_s  # type: ignore[attr-defined]


def test_hugging_face_steps_evaluates_and_saves_in_this_order(monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> None:
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
    assert hook.on_train_begin() == "the framework's own"


def test_lightning_counts_optimizer_steps_and_not_micro_steps(monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> None:
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
    assert list(notebook.steps) == [2.0, 4.0]
    assert notebook.phases == [Phase("evaluation", 4.0, 7.0)]


def test_keras_marks_batches_and_validation(monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> None:
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


def test_an_evaluation_that_failed_ends_where_the_next_one_begins(monkeypatch: pytest.MonkeyPatch, notebook: Notebook) -> None:
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


PACKAGES = [("HuggingFaceCallback", "transformers"), ("LightningCallback", "lightning"), ("KerasCallback", "keras")]


@pytest.mark.parametrize(("name", "package"), PACKAGES)
def test_a_framework_that_is_not_here_is_said_when_its_class_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for _, places in callbacks._CLASSES.values():
        for module, _ in places:
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
    assert all(hasattr(library.TrainerCallback, name) for name in ("on_step_end", "on_evaluate", "on_save"))


def test_lightning_calls_what_we_hook_into() -> None:
    library = pytest.importorskip("lightning.pytorch")
    assert issubclass(callbacks.LightningCallback, library.Callback)
    for name in ("on_train_start", "on_train_batch_end", "on_validation_start", "on_validation_end"):
        assert hasattr(library.Callback, name)


def test_keras_calls_what_we_hook_into() -> None:
    library = pytest.importorskip("keras")
    assert issubclass(callbacks.KerasCallback, library.callbacks.Callback)
    for name in ("on_train_batch_end", "on_test_begin", "on_test_end"):
        assert hasattr(library.callbacks.Callback, name)
