"""Objectives: one number of a time and an energy, lower is better.

Every objective is a frozen value with `cost(time_s, energy_j)`, which also takes arrays, and `degree`: a run
that is k times as long costs k**degree as much. With these, a policy can split the cost of a run into epochs
and the cost of an epoch (Zeus, NSDI'23, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from ..errors import MeasurementError, UsageError, check_fields, is_number, near, shown

OBJECTIVES: Mapping[str, str] = {
    "energy": "the least energy within the allowed slowdown", "edp": "energy x time (EDP)",
    "ed2p": "energy x time squared (ED2P)",
    "zeus": "half energy, half time at the highest power limit (Zeus' cost with eta 0.5)",
    "time": "the least time",
}
ZEUS_ETA = 0.5  # the paper's default


class Objective(Protocol):
    """A cost of time and energy that is to be small."""

    @property
    def degree(self) -> int:
        """A run k times as long costs k**degree as much."""

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        """The cost of a run, or of many together as arrays."""


@dataclass(frozen=True)
class ZeusCost:
    """eta x energy + (1 - eta) x maximum power x time (Zeus, NSDI'23, equation 2).

    Attributes:
        eta: 1 counts energy only, 0 time only.
        max_power_w: Highest power limit of one GPU.
        gpus: GPUs of the job. Energies are sums over them, so the power that time is priced at is too.
    """

    degree: ClassVar[int] = 1
    eta: float
    max_power_w: float
    gpus: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.eta <= 1:
            raise UsageError(f"eta={self.eta:g}: give 0 to 1 (1 counts energy only, 0 time only)")
        if not (self.max_power_w > 0 and math.isfinite(self.max_power_w)):
            raise UsageError(
                f"maximum power is {self.max_power_w:g} W; give the highest power limit of the card, in watts"
            )
        if self.gpus < 1:
            raise UsageError(f"a job has {self.gpus} GPUs; give 1 or more")

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * self.gpus * time_s


@dataclass(frozen=True)
class Energy:
    """Joules, for any time."""

    degree: ClassVar[int] = 1

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        return energy_j


@dataclass(frozen=True)
class Time:
    """Seconds, for any energy."""

    degree: ClassVar[int] = 1

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        return time_s


@dataclass(frozen=True)
class EnergyDelay:
    """Energy x time**`delay`: EDP for 1, ED2P for 2 (Horowitz et al., 1994)."""

    delay: int = 1

    def __post_init__(self) -> None:
        if self.delay < 1:
            raise UsageError(f"the power of the delay is {self.delay}; 1 is EDP, 2 is ED2P")

    @property
    def degree(self) -> int:
        return 1 + self.delay

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        return energy_j * time_s**self.delay


@dataclass(frozen=True)
class EnergyWithin:
    """Least energy among runs of at most `slowdown` x `reference_time_s`; all others have infinite cost.

    The reference is a time for the same work: of an epoch for epochs, of a run for runs.
    """

    degree: ClassVar[int] = 1
    slowdown: float
    reference_time_s: float

    def __post_init__(self) -> None:
        if not self.slowdown >= 1:
            raise UsageError(f"the slowdown limit is {self.slowdown:g}; 1 allows none, 1.05 allows 5 %")
        if not self.reference_time_s > 0:
            raise UsageError(f"the reference time is {self.reference_time_s:g} s; it must be above 0")

    def cost(self, time_s: Any, energy_j: Any) -> Any:
        allowed = np.asarray(time_s) <= self.slowdown * self.reference_time_s * (1 + 1e-9)
        return np.where(allowed, energy_j, np.inf)[()]


KNOWN: dict[str, Objective] = {
    "energy": Energy(), "edp": EnergyDelay(1), "ed2p": EnergyDelay(2), "time": Time(),
}


def check_objective(value: Any) -> str | float | Objective:
    """The objective, checked: a name of `OBJECTIVES`, Zeus' eta, or an `Objective`.

    Raises:
        UsageError: none of them; lists the names.
    """
    if hasattr(value, "cost") or (isinstance(value, str) and value in OBJECTIVES):
        return value
    if is_number(value) and 0 <= value <= 1:
        return float(value)
    hint = near(value, OBJECTIVES) if isinstance(value, str) else f"; choose {', '.join(OBJECTIVES)}"
    raise UsageError(f"objective={shown(value)} is not known{hint}, or a number from 0 to 1 (Zeus' eta)")


def with_eta(objective: Any, eta: float | None, default: str | float) -> str | float | Objective:
    """The checked objective of the arguments `objective` and `eta`, Zeus' weight of energy.

    Raises:
        UsageError: both are given, or one that makes no sense.
    """
    if eta is None:
        return check_objective(objective)
    if not isinstance(objective, str | float) or objective != default:
        raise UsageError(f"objective={shown(objective)} and eta={shown(eta)}: give one of them")
    if not (is_number(eta) and 0 <= eta <= 1):
        raise UsageError(f"eta={shown(eta)}: give 0 to 1 (1 counts energy only, 0 time only)")
    return eta


def resolve_objective(value: str | float | Objective, max_power_w: float | None, gpus: int) -> Objective:
    """The cost of a job on these GPUs.

    Args:
        value: Result of `check_objective`.
        max_power_w: Highest power limit of one GPU; None if unknown.
        gpus: Number of GPUs in the job's summed energy.

    Raises:
        UsageError: Zeus' cost needs the highest power limit, and the GPU reports none.
    """
    if isinstance(value, ZeusCost):
        return replace(value, gpus=gpus)
    if isinstance(value, str) and value != "zeus":
        return KNOWN[value]
    if not isinstance(value, str | float | int):
        return value
    if max_power_w is None:
        raise UsageError(
            f"objective={value!r} prices time at the highest power limit, which this GPU does not report. "
            "Give ZeusCost(0.5, max_power_w=...) with the limit in watts"
        )
    return ZeusCost(ZEUS_ETA if isinstance(value, str) else value, max_power_w, gpus)


def check_slowdown(value: float | None) -> float | None:
    """A slowdown limit as a share.

    Raises:
        UsageError: below 0, above 1, or no number.
    """
    if value is None or (is_number(value) and 0 <= value <= 1):
        return value if value is None else float(value)
    meant = is_number(value) and 1 < value <= 100
    hint = f"; did you mean {value / 100:g} ({value:g} %)?" if meant else ""
    means = f" means {100 * value:g} %" if meant else ""
    raise UsageError(f"max_slowdown={value!r}{means}: give a share from 0 to 1 (0.05 is 5 %), or None for no "
                     f"limit{hint}")


def check_measured(time_s: float, energy_j: float) -> None:
    """Check that a time (s) and an energy (J) can have been measured."""
    for name, value, unit in (("time", time_s, "s"), ("energy", energy_j, "J")):
        if not math.isfinite(value) or value < 0:
            raise MeasurementError(
                f"{name} is {value:g} {unit}; a run takes a finite {name} of 0 {unit} or more. It was not "
                "recorded"
            )
