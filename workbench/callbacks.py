"""Hooks that mark iterations from inside of a framework's training loop, so that nothing has to be guessed from the power.

    from workbench.callbacks import HuggingFaceCallback      # LightningCallback, KerasCallback
    trainer = Trainer(..., callbacks=[HuggingFaceCallback()])

Each calls `workbench.step()` after an optimizer step and tells evaluations (and checkpoints, where the framework says when they end)
apart. A framework is imported when its class is first asked for, never before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from . import marks
from .errors import UsageError

EVALUATION, CHECKPOINT = "evaluation", "checkpoint"


class _Evaluating:
    """An evaluation between two hooks."""

    _evaluation: AbstractContextManager[None] | None = None

    def _begin(self) -> None:
        self._end()  # one that ended with an error never came to its end hook
        self._evaluation = marks.phase(EVALUATION)
        self._evaluation.__enter__()

    def _end(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)


class _HuggingFaceHooks:
    """transformers.TrainerCallback: `on_step_end` is an optimizer step; the trainer evaluates and saves between two of them."""

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        marks.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        marks.since_last(EVALUATION)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        marks.since_last(CHECKPOINT)


class _LightningHooks(_Evaluating):
    """lightning.pytorch.Callback: a batch is a micro-step where gradients are accumulated, so `global_step` decides."""

    _steps: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **rest: Any) -> None:
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            marks.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()


class _KerasHooks(_Evaluating):
    """keras.callbacks.Callback; `on_test_begin` and `on_test_end` bound the validation inside `fit` too."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        marks.step()

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin()

    def on_test_end(self, logs: Any = None) -> None:
        self._end()


# Our class: the hooks, and where the framework's base class may be found.
_CLASSES: dict[str, tuple[type, tuple[tuple[str, str], ...]]] = {
    "HuggingFaceCallback": (_HuggingFaceHooks, (("transformers", "TrainerCallback"),)),
    "LightningCallback": (_LightningHooks, (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"))),
    "KerasCallback": (_KerasHooks, (("keras.callbacks", "Callback"), ("tensorflow.keras.callbacks", "Callback"))),
}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    hooks, places = _CLASSES[name]
    made = type(name, (hooks, _base(name, places)), {"__module__": __name__, "__qualname__": name, "__doc__": hooks.__doc__})
    globals()[name] = made  # one class, which pickles by its name
    return made


def _base(name: str, places: tuple[tuple[str, str], ...]) -> Any:
    for module, attribute in places:
        try:
            return getattr(import_module(module), attribute)
        except ImportError:
            continue
    packages = " or ".join(module.split(".")[0] for module, _ in places)
    raise UsageError(f"{name} needs {packages}, which is not installed here; in a loop of your own call workbench.step() instead")


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
