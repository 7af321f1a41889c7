"""The table of probes: a row each, in order."""

from __future__ import annotations

from typing import Any

import polars as pl

from ..records import Setting
from .accounts import SavingsAccount
from .probe import Probe
from .results import PROBES


class ProbeTable:
    """Rows of `results.PROBES`."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._failed: list[Setting] = []
        self._frame = pl.DataFrame(schema=PROBES)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def made(self) -> int:
        """Probes that have measured something."""
        return sum(1 for row in self._rows if row["outcome"] != "failed")

    @property
    def frame(self) -> pl.DataFrame:
        """All rows; the same frame until there is another one."""
        if self._frame.height != len(self._rows):
            self._frame = pl.DataFrame(self._rows, schema=PROBES)
        return self._frame

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
        row: dict[str, Any] = dict.fromkeys(PROBES.names())
        row |= {
            "power_limit_w": named.power_limit_w, "sm_clock_mhz": named.sm_clock_mhz,
            "mem_clock_mhz": named.mem_clock_mhz, "kind": probe.kind, "outcome": outcome, "reason": reason,
            "at_s": at_s, "cost_s": cost_s, "iterations": 0,
        }
        if reading is not None:
            time_s, _, energy_j, _ = (
                account.baseline()
                if account is not None
                else (reading.iteration_s, 0.0, reading.iteration_j, 0.0)
            )
            row |= {
                "iterations": reading.iterations, "time_s": reading.time_s, "energy_j": reading.energy_j,
                "energy_uncertainty_j": reading.energy_uncertainty_j,
                "time_sd": reading.sd_s / reading.iteration_s, "energy_sd": reading.energy_sd,
                "cost_j": reading.power_w * cost_s, "time_ratio": reading.iteration_s / time_s,
                "energy_ratio": reading.iteration_j / energy_j,
            }
        if outcome == "failed":
            self._failed.append(probe.setting)
        else:
            self._failed.clear()
        self._rows.append(row)

    def failures(self, setting: Setting) -> int:
        """How often a setting's probe has failed since one went well."""
        return self._failed.count(setting)
