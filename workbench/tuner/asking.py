"""What is asked of a tuner: objectives and bounds, checked."""

from __future__ import annotations

from ..errors import UsageError
from ..search.objective import Energy, EnergyDelay, Objective, Time, ZeusCost
from .states import OBJECTIVES


def check_slowdown(value: float | None) -> float | None:
    """A bound on the slowdown as a share.

    Raises:
        UsageError: below 0, above 1, or no number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        hint = f"; did you mean {value / 100:g} ({value:g} %)?" if isinstance(value, (int, float)) and 1 < value <= 100 else ""
        raise UsageError(f"a slowdown of {value!r} is not allowed for; give a share from 0 to 1 (0.05 is 5 %), or None for no bound{hint}")
    return float(value)


def check_objective(value: str | Objective) -> Objective:
    """An objective by name. Raises UsageError with the names that there are."""
    if not isinstance(value, str):
        if not hasattr(value, "cost"):
            raise UsageError(f"{value!r} is no objective; choose {', '.join(OBJECTIVES)}, or one of workbench.search.objective")
        return value
    if value not in OBJECTIVES:
        raise UsageError(f"there is no objective named {value!r}; choose {', '.join(OBJECTIVES)}")
    known: dict[str, Objective] = {
        "energy": Energy(), "edp": EnergyDelay(1), "ed2p": EnergyDelay(2), "time": Time(), "zeus": ZeusCost(0.5, 1.0),
    }  # fmt: skip
    return known[value]


def objective_name(value: Objective) -> str:
    """Its name in `OBJECTIVES`, or its own."""
    for name in OBJECTIVES:
        if type(check_objective(name)) is type(value) and getattr(value, "delay", 0) == getattr(check_objective(name), "delay", 0):
            return name
    return type(value).__name__


def objective_words(value: Objective) -> str:
    """What it asks for."""
    return OBJECTIVES.get(objective_name(value), objective_name(value))
