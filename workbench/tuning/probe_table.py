"""The table of probes: a row each, in order."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from ..records import Setting
from .accounts import SavingsAccount
from .probe import Probe
from .results import PROBES


class ProbeTable:
    """Rows of `results.PROBES`.

    Attributes:
        frame: All of them.
        made: How many have measured something.
        failed: Settings whose probes have failed since one went well.
    """

    def __init__(self) -> None:
        self.frame, self.made = pl.DataFrame(schema=PROBES), 0
        self.failed: list[Setting] = []

    def add(
        self, probe: Probe, named: Setting, outcome: str, reason: str, *, at_s: float, cost_s: float,
        account: SavingsAccount | None,
    ) -> None:
        """A probe that is over.

        Args:
            named: Its setting, as the search calls it.
            account: Whose baseline the ratios are to; None where it is this probe.
        """
        reading = probe.reading
        row: dict[str, Any] = {
            **asdict(named), "kind": probe.kind, "outcome": outcome, "reason": reason, "at_s": at_s,
            "cost_s": cost_s, "iterations": 0,
        }
        if reading is not None:
            time_s, energy_j = reading.iteration_s, reading.iteration_j
            if account is not None:
                time_s, _, energy_j, _ = account.baseline()
            row |= {
                "iterations": reading.iterations, "time_s": reading.time_s, "energy_j": reading.energy_j,
                "energy_uncertainty_j": reading.energy_uncertainty_j,
                "time_sd": reading.sd_s / reading.iteration_s, "energy_sd": reading.energy_sd,
                "cost_j": reading.power_w * cost_s, "time_ratio": reading.iteration_s / time_s,
                "energy_ratio": reading.iteration_j / energy_j,
            }
        if outcome == "failed":
            self.failed.append(probe.setting)
        else:
            self.made += 1
            self.failed.clear()
        self.frame = pl.concat([self.frame, pl.DataFrame([row], schema=PROBES)])
