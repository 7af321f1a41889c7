"""Options of a tuner: objectives and slowdown limits, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..search.objective import KNOWN, OBJECTIVES, Objective, check_objective, check_slowdown

SEARCHES = ("model-guided", "gpoeo")
KNOBS = ("power", "clocks", "both", "memory")


def objective_name(value: str | float | Objective) -> str:
    """Its name in `OBJECTIVES`, or its own."""
    if isinstance(value, str):
        return value
    for name, known in KNOWN.items():
        if known == value:
            return name
    eta = getattr(value, "eta", value)
    return f"Zeus' cost with eta {eta:g}" if isinstance(eta, float | int) else type(value).__name__


def objective_text(value: str | float | Objective) -> str:
    """An objective as text."""
    return OBJECTIVES.get(objective_name(value), objective_name(value))


def check_options(
    over: str, search: str, model: Any = None, progress: Callable[[], float] | None = None
) -> None:
    """Raises UsageError with what there is to choose from.

    Args:
        over: "power", "clocks", "both" or "memory".
        search: Name of a search.
        model: A model, its path, None or False.
        progress: A function that counts iterations; None for none.
    """
    for what, value, known in (("over", over, KNOBS), ("search", search, SEARCHES)):
        if value not in known:
            raise UsageError(f"{what}={value!r} is not known; choose {', '.join(known)}")
    if not (model is None or model is False or isinstance(model, (str, Path)) or hasattr(model, "predict")):
        raise UsageError(
            f"model={model!r} is no model of a GPU; give the path of one, None for the user's own, or False "
            "for none"
        )
    if isinstance(model, (str, Path)) and not Path(model).expanduser().is_file():
        raise UsageError(f"model={str(model)!r}: there is no such file; `workbench profile-gpu` makes one")
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress={progress!r} cannot be called; give a function that returns the number of finished "
            f"iterations"
        )


@dataclass
class TuningRequest:
    """The options of a tuner, as created (see `api.tune`) and as changed since.

    Attributes:
        uuids: Which GPUs; those that are found working where None.
        paused: Nothing is tried.
        once: One probe is to be made, and then none.

    Raises:
        UsageError: a bound, objective, search or knob that makes no sense.
    """

    uuids: Sequence[str] | None = None
    objective: str | float | Objective = "energy"
    max_slowdown: float | None = 0.05
    over: str = "both"
    search: str = "model-guided"
    progress: Callable[[], float] | None = None
    model: Any = None
    recheck: bool = True
    label: str = ""
    warm_start: bool = False
    paused: bool = False
    once: bool = False

    def __post_init__(self) -> None:
        self.objective, self.max_slowdown = check_objective(self.objective), check_slowdown(self.max_slowdown)
        check_options(self.over, self.search, self.model, self.progress)
