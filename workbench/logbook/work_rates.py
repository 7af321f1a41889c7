"""What one token, sample or other unit of work took: its rate, and its energy with an interval."""

from __future__ import annotations

from typing import NamedTuple

from ..records import Measurement
from ..tariff import significant, with_error

PADDING = "padding"  # counted next to tokens, and no work


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
    """Which share of what the GPU computed was padding and no token, 0..1; None where it was not reported."""
    amounts = {each.name: each.amount for each in m.work}
    padding, tokens = amounts.get(PADDING), amounts.get("tokens")
    return padding / (padding + tokens) if padding is not None and tokens else None
