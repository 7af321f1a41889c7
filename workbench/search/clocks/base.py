"""A record that the searches share."""

from __future__ import annotations

from dataclasses import dataclass

from ...records import Setting


@dataclass(frozen=True)
class Choice:
    """The estimated best setting.

    Attributes:
        time_ratio, energy_ratio: Time and energy of an iteration, relative to the reference.
        time_sd, energy_sd: Their relative standard deviations; NaN if unknown.
        p_allowed: Probability that it keeps the slowdown limit; 1 without a limit.
        measured: Whether it was tried.
    """

    setting: Setting
    time_ratio: float
    energy_ratio: float
    time_sd: float
    energy_sd: float
    p_allowed: float
    measured: bool
