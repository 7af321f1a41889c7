"""Units of work: tokens, samples or other counts of a training, and their energy.

    for batch in loader:
        loss = train(batch)
        workbench.work(tokens=batch["input_ids"].numel(), samples=len(batch["input_ids"]))
        workbench.step()

Every open window records it. The callbacks of frameworks and `workbench.track` count batches that have a
known size. Work inside of a `workbench.phase("evaluation")` is counted separately. Generation counts
`prompt_tokens` and `output_tokens`: each rate is over the joules of both together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import marks

calls = 0  # of `work`: whoever counts is not counted for


def work(**amounts: float) -> None:
    """Count work that was done since the last call: `workbench.work(tokens=4096, samples=8)`.

    Next to nothing where nothing is measured. Values that are no number of 0 or more are left out with a
    warning and never end a training.
    """
    global calls
    calls += 1
    marks.work(amounts)


def _of_list(batch: Sequence[Any]) -> dict[str, float]:
    """Of inputs and targets: the inputs'; nothing of one example or of pictures not stacked."""
    first = batch[0]
    if any(isinstance(each, int | float | str) for each in batch):
        return {}
    if isinstance(first, list | tuple):  # a picture or a sentence each
        return {"samples": float(len(first))}
    shapes: list[Sequence[int]] = [getattr(each, "shape", ()) for each in batch]
    if all(len(shape) == 3 and shape[0] in (1, 3, 4) for shape in shapes):
        return {}
    return of_batch(first)


def of_batch(batch: Any) -> dict[str, float]:
    """Samples, and tokens where there are ids of them, of a batch as data loaders give it; empty where it
    does not report. Nothing waits for a GPU: padding is distinguished only by a mask in the host's memory.
    """
    try:
        if isinstance(batch, Mapping) or hasattr(batch, "keys"):
            ids = batch["input_ids"] if "input_ids" in batch else None  # noqa: SIM401
            if ids is None:
                return of_batch(next(iter(batch.values())))
            samples, tokens = float(ids.shape[0]), float(math.prod(ids.shape))
            mask = batch["attention_mask"] if "attention_mask" in batch else None  # noqa: SIM401
            if mask is not None and str(getattr(mask, "device", "cpu")) == "cpu":
                real = float(mask.sum())
                return {"samples": samples, "tokens": real, "padding": tokens - real}
            return {"samples": samples, "tokens": tokens}
        if isinstance(batch, list | tuple) and batch:
            return _of_list(batch)
        shape = getattr(batch, "shape", None)
        return {"samples": float(shape[0])} if shape else {}
    except Exception:  # somebody else's class, which only looks like a batch
        return {}
