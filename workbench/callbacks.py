"""Hooks that mark iterations from inside of a framework's training loop.

    from workbench.callbacks import HuggingFaceCallback      # LightningCallback, KerasCallback
    trainer = Trainer(..., callbacks=[HuggingFaceCallback()])

Each marks the beginning of a training, every optimizer step, evaluations and predictions. Hugging Face's also
marks checkpoints. In a recurring job each also reports epochs, with a metric, and ends the training when the
recurrence is to stop:

    def train(run): Trainer(..., callbacks=[HuggingFaceCallback(run, metric="eval_accuracy")]).train()
    job.run(train)

A framework is imported when its class is first asked for, never before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from .errors import UsageError
from .measurement import marks, work

EVALUATION, CHECKPOINT = "evaluation", "checkpoint"


class ReportedRun(Protocol):
    """The recurring job to report to: a `JobRun`, or a part of one."""

    def report(self, metric: float | None = None) -> None: ...
    def should_stop(self) -> bool: ...


class _Hooks:
    """Reports to a recurrence (None outside of a recurring job) epochs, and stops where it is to stop.

    `metric` is the framework's name of what the job's target is of; None reports epochs without one.
    """

    _evaluation: AbstractContextManager[None] | None = None  # or a test or prediction, between two hooks

    def __init__(self, run: ReportedRun | None = None, metric: str | None = None) -> None:
        super().__init__()
        self._run, self._metric = run, metric
        self._calls = work.calls
        self._ended = False  # the epoch that is under way is not a whole one

    def _training_begins(self) -> None:
        """The first iteration starts here."""
        marks.begin()

    def _did(self, amounts: Mapping[str, float]) -> None:
        """Count work, unless the training has counted its own since the last step."""
        before, self._calls = self._calls, work.calls
        if before == work.calls and amounts:
            marks.work(amounts)

    def _epoch(self, metrics: Any) -> bool:
        """A whole epoch has ended; whether to stop. Nothing is reported of one that was cut short."""
        if self._run is None or self._ended:
            return self._ended
        self._run.report(self._value(metrics))
        return self._asked()

    def _asked(self) -> bool:
        """Whether to stop now."""
        self._ended = self._ended or (self._run is not None and self._run.should_stop())
        return self._ended

    def _value(self, metrics: Any) -> float | None:
        if self._metric is None:
            return None
        if metrics is None or self._metric not in metrics:
            known = ", ".join(sorted(map(str, metrics or ()))) or "none"
            raise UsageError(f"there is no metric '{self._metric}' at the end of this epoch; there is "
                             f"{known}. Evaluate once an epoch")
        return float(metrics[self._metric])


    def _begin(self, kind: str = EVALUATION) -> None:
        self._end()  # one that ended with an error never came to its end hook
        self._evaluation = marks.phase(kind)
        self._evaluation.__enter__()

    def _end(self) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    # Hooks, whose arguments differ.
    def _evaluation_begins(self, *_: Any, **__: Any) -> None:
        self._begin()

    def _prediction_begins(self, *_: Any, **__: Any) -> None:
        self._begin("prediction")

    def _phase_ends(self, *_: Any, **__: Any) -> None:
        self._end()


class _HuggingFaceHooks(_Hooks):
    """transformers.TrainerCallback; the trainer evaluates and saves between two optimizer steps."""

    _tokens: float | None = None  # of all ranks so far, where the trainer counts them
    _metrics: Any = None  # metrics of an evaluation inside the epoch
    _due = False  # the epoch is over and its evaluation is to come
    _left = math.inf  # samples of this rank that the epoch still has
    _batches = 0  # since the last step, before its last one
    _counted = False  # whether the trainer reports batches between steps
    _training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._tokens = getattr(state, "num_input_tokens_seen", None)  # a resumed training begins above 0
        self._training = True
        self._training_begins()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._training = False

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        data = getattr(rest.get("train_dataloader"), "dataset", None)
        ranks = max(getattr(args, "world_size", 1) or 1, 1)
        self._left = -(-len(data) // ranks) if isinstance(data, Sized) else math.inf

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._batches, self._counted = self._batches + 1, True

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._count(args, state)
        marks.step()
        if self._asked():
            control.should_training_stop = True

    def _count(self, args: Any, state: Any) -> None:
        """Samples of this rank in the step that has ended; tokens with `include_num_input_tokens_seen`, which
        the trainer sums over ranks.
        """
        tokens, before = getattr(state, "num_input_tokens_seen", None), self._tokens
        batch, self._tokens = getattr(state, "train_batch_size", None), tokens
        done = {}
        if batch:  # the last step of an epoch may have fewer batches, and its last batch fewer samples
            batches = self._batches + 1 if self._counted else getattr(args, "gradient_accumulation_steps", 1)
            done["samples"] = min(batch * batches, self._left)
            self._left -= done["samples"]
        self._batches = 0
        if tokens is not None and before is not None and tokens > before:
            done["tokens"] = (tokens - before) / max(getattr(args, "world_size", 1) or 1, 1)
        self._did(done)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        # The trainer evaluates after this hook, where it evaluates by epochs; `should_evaluate` reports it.
        self._due = bool(control.should_evaluate)
        if not self._due:
            self._report(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        if self._evaluation is None:
            marks.since_last(EVALUATION)
        self._end()
        self._metrics = metrics
        if self._due:
            self._due = False
            self._report(control)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        if not self._training and self._evaluation is None:  # it does not begin where the last step ended
            self._begin()

    on_predict = _Hooks._phase_ends

    def on_save(self, *_: Any, **__: Any) -> None:
        marks.since_last(CHECKPOINT)

    def _report(self, control: Any) -> None:
        inside, self._metrics = self._metrics, None
        if self._epoch(inside):
            control.should_training_stop = True


class _LightningHooks(_Hooks):
    """lightning.pytorch.Callback; `global_step` counts optimizer steps, a batch may be a micro-step."""

    _steps: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._training_begins()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any = None, batch: Any = None, *more: Any, **rest: Any
    ) -> None:
        self._did(work.of_batch(batch))
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            marks.step()
            if self._asked():
                trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # Comes after the validation of the epoch, so its metrics are there.
        if self._epoch(trainer.callback_metrics if self._metric else None):
            trainer.should_stop = True

    on_validation_start = on_test_start = _Hooks._evaluation_begins
    on_predict_start = _Hooks._prediction_begins
    on_validation_end = on_test_end = on_predict_end = _Hooks._phase_ends


class _KerasHooks(_Hooks):
    """keras.callbacks.Callback; `on_test_begin` and `on_test_end` bound the validation inside `fit` too.

    Keras reports no number of samples: count them with `workbench.work`.
    """

    model: Any

    def on_train_begin(self, logs: Any = None) -> None:
        self._training_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        marks.step()
        if self._asked():
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._epoch(logs):
            self.model.stop_training = True

    on_test_begin, on_predict_begin = _Hooks._evaluation_begins, _Hooks._prediction_begins
    on_test_end = on_predict_end = _Hooks._phase_ends


# Our class: the hooks, and where the framework's base class may be found.
_CLASSES: dict[str, tuple[type, tuple[tuple[str, str], ...]]] = {
    "HuggingFaceCallback": (_HuggingFaceHooks, (("transformers", "TrainerCallback"),)),
    "LightningCallback": (_LightningHooks,
                          (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"))),
    "KerasCallback": (_KerasHooks,
                      (("keras.callbacks", "Callback"), ("tensorflow.keras.callbacks", "Callback"))),
}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    hooks, places = _CLASSES[name]
    made = type(name, (hooks, _base(name, places)),
                {"__module__": __name__, "__qualname__": name, "__doc__": hooks.__doc__})
    globals()[name] = made  # one class, which pickles by its name
    return made


def _base(name: str, places: tuple[tuple[str, str], ...]) -> Any:
    for module, attribute in places:
        try:
            return getattr(import_module(module), attribute)
        except ImportError:
            continue
    packages = " or ".join(module.split(".")[0] for module, _ in places)
    raise UsageError(f"{name} needs {packages}, which is not installed here; in a loop of your own call "
                     "workbench.step() instead")


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
