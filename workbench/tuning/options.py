"""What is asked of a tuner: objectives and bounds, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..search.objective import Energy, EnergyDelay, Objective, Time, ZeusCost
from .params import PARAMS, TunerParams
from .results import OBJECTIVES


def check_slowdown(value: float | None) -> float | None:
    """A bound on the slowdown as a share.

    Raises:
        UsageError: below 0, above 1, or no number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        percent = isinstance(value, Real) and 1 < value <= 100
        hint = f"; did you mean {value / 100:g} ({value:g} %)?" if percent else ""
        raise UsageError(
            f"a slowdown of {value!r} is not allowed for; give a share from 0 to 1 (0.05 is 5 %), or None "
            f"for no bound{hint}"
        )
    return float(value)


_KNOWN: dict[str, Objective] = {
    "energy": Energy(), "edp": EnergyDelay(1), "ed2p": EnergyDelay(2), "time": Time(),
}
ZEUS_ETA = 0.5  # the paper's default


def check_objective(value: str | Objective) -> str | Objective:
    """The objective, if it is one. Raises UsageError with the names that there are."""
    if not isinstance(value, str):
        if not hasattr(value, "cost"):
            raise UsageError(
                f"{value!r} is no objective; choose {', '.join(OBJECTIVES)}, or one of "
                "workbench.search.objective"
            )
        return value
    if value not in OBJECTIVES:
        raise UsageError(f"there is no objective named {value!r}; choose {', '.join(OBJECTIVES)}")
    return value


def resolve_objective(value: str | Objective, max_power_w: float | None, gpus: int) -> Objective:
    """The cost of a job on these GPUs.

    Args:
        max_power_w: Highest power limit of one GPU; None where it is not known.
        gpus: How many GPUs the job's energy is the sum of.

    Raises:
        UsageError: Zeus' cost needs the highest power limit, and the GPU reports none.
    """
    if isinstance(value, ZeusCost):
        return replace(value, gpus=gpus)
    if value != "zeus":
        return _KNOWN[value] if isinstance(value, str) else value
    if max_power_w is None:
        raise UsageError(
            'objective="zeus" prices time at the highest power limit, which this GPU does not report; give '
            "ZeusCost(0.5, max_power_w=...) with the limit in watts"
        )
    return ZeusCost(ZEUS_ETA, max_power_w, gpus)


def objective_name(value: str | Objective) -> str:
    """Its name in `OBJECTIVES`, or its own."""
    if isinstance(value, str):
        return value
    for name, known in _KNOWN.items():
        if known == value:
            return name
    return f"Zeus' cost with eta {value.eta:g}" if isinstance(value, ZeusCost) else type(value).__name__


def objective_text(value: str | Objective) -> str:
    """Words for an objective, for the person."""
    return OBJECTIVES.get(objective_name(value), objective_name(value))


def check_options(
    over: str, search: str, model: Any = None, progress: Callable[[], float] | None = None
) -> None:
    """Raises UsageError with what there is to choose from.

    Args:
        over: "power", "clocks" or "both".
        search: Name of a search.
        model: A model, its path, None or False.
        progress: A function that counts iterations; None for none.
    """
    from ..search.clocks.make import NAMES

    for what, value, known in (("over", over, ("power", "clocks", "both")), ("search", search, NAMES)):
        if value not in known:
            raise UsageError(f"{what}={value!r} is not known; choose {', '.join(known)}")
    if not (model is None or model is False or isinstance(model, (str, Path)) or hasattr(model, "predict")):
        raise UsageError(
            f"model={model!r} is no model of a GPU; give the path of one, None for the user's own, or False "
            "for none"
        )
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress={progress!r} cannot be called; give a function that returns how many iterations are "
            "done"
        )


@dataclass
class TuningRequest:
    """What is asked of a tuner, by who made it (see `api.tune`) and by a person since.

    Attributes:
        uuids: Which GPUs; those that are found working where None.
        params: The constants.
        paused: Nothing is tried.
        once: One probe is to be made, and then none.

    Raises:
        UsageError: a bound, objective, search or knob that makes no sense.
    """

    uuids: Sequence[str] | None = None
    objective: str | Objective = "energy"
    max_slowdown: float | None = 0.05
    over: str = "both"
    search: str = "model-guided"
    progress: Callable[[], float] | None = None
    model: Any = None
    recheck: bool = True
    label: str = ""
    earlier: bool = False
    seed: int = 0
    params: TunerParams = PARAMS
    paused: bool = False
    once: bool = False

    def __post_init__(self) -> None:
        self.objective, self.max_slowdown = check_objective(self.objective), check_slowdown(self.max_slowdown)
        check_options(self.over, self.search, self.model, self.progress)
