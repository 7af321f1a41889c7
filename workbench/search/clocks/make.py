"""Creates the search that chooses the next setting to try in a running job, and the estimated best one.

    search = make_search("model-guided", space, Energy(), max_slowdown=0.05)
    while isinstance(step := search.next(), Trial):
        ...                        # set step.setting, let it settle, measure step.iterations whole iterations
        search.tell(step.setting, iterations, time_s, energy_j, energy_uncertainty_j)
    search.choice()                # of this objective and slowdown limit, or of any other

    model-guided    every trial's time and energy with their errors, over all knobs together (`model_guided`)
    gpoeo           GPOEO's: memory clock first, bracket, golden section, cubic smoothing (`gpoeo`)

A search uses no device and no clock. The first trial of every search is the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from ...errors import UsageError
from ...records import Setting
from ..objective import Objective
from ..space import SettingSpace
from .base import Choice, Done, Trial

if TYPE_CHECKING:
    from ..surrogates.predictor import Prediction

__all__ = ["NAMES", "Choice", "ClockSearch", "Done", "Trial", "make_search"]

NAMES = ("model-guided", "gpoeo")


class ClockSearch(Protocol):
    """A search over settings: the tuner requests trials from it and reports them to it."""

    name: str
    space: SettingSpace
    objective: Objective
    max_slowdown: float | None

    @property
    def measured_rows(self) -> list[int]:
        """Row of each reported probe, in order."""

    def next(self) -> Trial | Done:
        """The next trial, or why there is none; unchanged until `tell` or `cannot`. These calls alone
        determine the state of the search.
        """

    def trial(self, row: int, reason: str) -> Trial:
        """A trial of a row of the space, long enough to compare it with others."""

    def tell(
        self, setting: Setting, iterations: int, time_s: float, energy_j: float,
        energy_uncertainty_j: float = 0.0, iteration_sd_s: float | None = None,
    ) -> None:
        """As `base.Probing.tell`."""

    def cannot(self, setting: Setting, reason: str) -> None:
        """Report a setting that could not be set."""

    def choice(self, objective: Objective | None = None, max_slowdown: float | None = None) -> Choice:
        """The estimated best setting, for any objective or slowdown limit without a new trial."""

    def breaks_bound(self, setting: Setting, iterations: int, time_s: float) -> bool:
        """Whether a trial that still runs certainly exceeds the slowdown limit."""

    def belief(self) -> pl.DataFrame:
        """One row per setting: knobs, time_ratio, time_sd, energy_ratio, energy_sd, p_allowed, probes."""


def make_search(
    name: str, space: SettingSpace, objective: Objective | None = None, max_slowdown: float | None = 0.05, *,
    prior: Prediction | Any = None, counter_update_s: float = 0.1, gpus: int = 1,
    horizon_s: float | None = None, wait_share: float | None = None, learns_later: bool = False,
    most: int | None = None, worth: float | None = None,
) -> ClockSearch:
    """A search by name.

    Args:
        name: One of `NAMES`.
        space: The settings, and among them the reference.
        objective: The cost to minimise; energy by default.
        max_slowdown: Allowed share of additional time (0.05); None for no limit.
        prior: A prediction for the settings of `space`, made before any trial.
        counter_update_s: Update interval of the energy counter; it determines the length of trials.
        gpus: Number of GPUs in the summed energies.
        horizon_s: Remaining time of the job, if known; 10 minutes otherwise. Only for model-guided.
        wait_share: Share of an iteration at the reference in which the GPU waits (1 - utilisation), if known.
            Only for model-guided.
        learns_later: The choice will be measured for longer than any trial, and reported. Only for
            model-guided.
        most, worth: As of `ModelGuided`; its own constants by default.

    Raises:
        UsageError: An unknown name, a slowdown limit below 0 or above 1, a horizon of no seconds, a
            prediction for other settings.
    """
    options: dict[str, Any] = {"prior": prior, "counter_update_s": counter_update_s, "gpus": gpus}
    if name == "model-guided":
        from .model_guided import ModelGuided

        given = {"horizon_s": horizon_s, "most": most, "worth": worth}
        options |= {name: value for name, value in given.items() if value is not None}
        options |= {"wait_share": wait_share, "learns_later": learns_later}
        return ModelGuided(space, objective, max_slowdown, **options)
    if name == "gpoeo":
        from .gpoeo import Golden

        return Golden(space, objective, max_slowdown, **options)
    raise UsageError(f"there is no search named '{name}'; choose {', '.join(NAMES)}")
