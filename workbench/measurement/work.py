"""Units of work: tokens, samples or whatever a training counts, and what they cost.

    for batch in loader:
        loss = train(batch)
        workbench.work(tokens=batch["input_ids"].numel(), samples=len(batch["input_ids"]))
        workbench.step()

Every window that is open takes note; the callbacks of frameworks and `workbench.track` count by themselves
where a batch tells its size. What is counted inside of a `workbench.phase("evaluation")` is counted apart.
Generation counts `prompt_tokens` and `output_tokens`: each rate is over the joules of both together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..records import Measurement
from ..tariff import significant, with_error
from . import marks

PADDING = "padding"  # counted beside tokens, and no work
calls = 0  # of `work`: whoever counts is not counted for


class WorkRate(NamedTuple):
    """What one unit of work took in a measurement.

    Attributes:
        name: "tokens", "samples", ...
        amount: How many there were; a mean over runs where there were several.
        per_s: A second.
        per_j: A joule of all GPUs; `low` and `high` a 95 % interval. None where the energy is not known.
    """

    name: str
    amount: float
    per_s: float
    per_j: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Tokens per joule or joules per token, whichever is larger, with two digits of the error."""
        if self.per_j is None or self.low is None or self.high is None:
            return f"{significant(self.per_s)} {self.name}/s"
        value, half, unit = self.per_j, (self.high - self.low) / 2, f"{self.name}/J"
        if value < 1:
            value, half, unit = 1 / value, half / value**2, f"J/{self.name.removesuffix('s')}"
        return f"{with_error(value, max(half, 1e-9))} {unit}"


def work(**amounts: float) -> None:
    """Count work that was done since the last call: `workbench.work(tokens=4096, samples=8)`.

    Next to nothing where nothing is measured. What is no number of 0 or more is left out, and the measurement
    says so: no training ends of it.
    """
    global calls
    calls += 1
    marks.work(amounts)


def rates(m: Measurement) -> list[WorkRate]:
    """What each kind of work of a measurement took; none where none was counted."""
    energy_j, half_j = m.energy_j, m.energy_uncertainty_j or 0.0
    found = []
    for each in m.work:
        if not each.amount > 0 or not m.time_s > 0 or each.name.endswith(PADDING):
            continue
        per_j = low = high = None
        if energy_j is not None and energy_j > 0:
            per_j, low = each.amount / energy_j, each.amount / (energy_j + half_j)
            high = each.amount / max(energy_j - half_j, 1e-3 * energy_j)
        name = each.name.replace("_", " ")
        found.append(WorkRate(name, each.amount, each.amount / m.time_s, per_j, low, high))
    return found


def padding_share(m: Measurement) -> float | None:
    """Which share of what the GPU computed was padding and no token, 0..1; None where it was not told."""
    amounts = {each.name: each.amount for each in m.work}
    padding, tokens = amounts.get(PADDING), amounts.get("tokens")
    return padding / (padding + tokens) if padding is not None and tokens else None


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
    does not tell. Nothing waits for a GPU: padding is told apart only by a mask in the host's memory.
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
