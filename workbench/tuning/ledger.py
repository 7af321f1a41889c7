"""Time and energy of a tuned job at each setting, and the saving against its default setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..experiments.stretch_energy import READ_S, energy
from ..measurement.meter import Meter
from ..search.clocks.descent import Descent
from .results import Saved

TUNING = ("default", "trial")


@dataclass
class Account:
    """One work of the job.

    Attributes:
        method: Its knowledge of the settings.
        time_s, energy_j, variance_j2: Total at each setting, by row.
        spent_s, spent_j: Of trials and of the default setting.
    """

    method: Descent
    spent_s: float = 0.0
    spent_j: float = 0.0

    def __post_init__(self) -> None:
        rows = len(self.method.rungs.z)
        self.time_s, self.energy_j, self.variance_j2 = np.zeros(rows), np.zeros(rows), np.zeros(rows)

    @property
    def iterations(self) -> float:
        """About how many: each setting's time over the length of an iteration there."""
        if not self.method.counted or not any(each.count for each in self.method.blocks):
            return 0.0
        time = self.method.effects()[0]
        return float((self.time_s / np.exp(time.level + self.method.bounded(time)[0])).sum())

    def saved(self) -> tuple[float, ...] | None:
        """Seconds and joules that it took, the same at the default setting, and the variances of these."""
        method, rows = self.method, np.flatnonzero(self.time_s > 0)
        if not len(rows) or not method.measured:
            return None
        time, power = method.effects()
        mean, most = method.bounded(time)
        # Without counts: anything from no longer to as long as the clocks allow.
        by_clocks = np.outer(most[rows], most[rows]) / 12.0
        covariance = time.cov_of(rows.tolist()) if method.counted else by_clocks
        would_s = self.time_s[rows] * np.exp(-mean[rows])
        would_j = self.energy_j[rows] * np.exp(-mean[rows] - power.mean[rows])
        return (
            float(self.time_s.sum()), float(self.energy_j.sum()), float(would_s.sum()), float(would_j.sum()),
            float(would_s @ covariance @ would_s),
            float(would_j @ (covariance + power.cov_of(rows.tolist())) @ would_j + self.variance_j2.sum()),
        )


@dataclass
class Stretch:
    """Time at one setting; the energy is NaN until it is read."""

    from_s: float
    to_s: float
    row: int
    kind: str
    energy_j: float = math.nan
    variance_j2: float = 0.0


@dataclass
class Ledger:
    """Accounts of all works of a job, the present one last.

    Attributes:
        cursor_s: Up to where the account is kept; NaN: nothing is.
    """

    accounts: list[Account] = field(default_factory=list)
    cursor_s: float = math.nan
    _waiting: list[Stretch] = field(default_factory=list)
    _read: list[Stretch] = field(default_factory=list)  # of the present work only if the next block is, too

    @property
    def oldest_s(self) -> float:
        """Since when the trace is needed."""
        cursor_s = math.inf if math.isnan(self.cursor_s) else self.cursor_s
        return min([cursor_s, *(each.from_s for each in self._waiting[:1])])

    def open(self, method: Descent, at_s: float) -> None:
        """Begin another work; readings that are not booked belong to it."""
        self.accounts.append(Account(method))
        self.cursor_s = at_s

    def pause(self) -> None:
        """Nothing counts until the cursor is set again."""
        self.cursor_s, self._waiting = math.nan, []

    def cut(self, to_s: float, row: int, kind: str) -> None:
        """Everything up to a time was at one setting."""
        if not to_s > self.cursor_s:
            return
        self._waiting.append(Stretch(self.cursor_s, to_s, row, kind))
        if self.accounts:
            self.accounts[-1].method.passed(row, to_s - self.cursor_s)
        self.cursor_s = to_s

    def count(self, meter: Meter, now_s: float) -> None:
        """Read the energy of stretches, as far as it is known by now."""
        while self._waiting and now_s >= self._waiting[0].to_s + READ_S:
            each = self._waiting.pop(0)
            used = energy(meter, each.from_s, each.to_s)
            if used is not None:
                each.energy_j, each.variance_j2 = used.energy_j, (used.uncertainty_j / 1.96) ** 2
                self._read.append(each)

    def believe(self) -> None:
        """Book all readings: they are of the present work."""
        account, read = self.accounts[-1], self._read
        self._read = []
        for each in read:
            length_s = each.to_s - each.from_s
            account.time_s[each.row] += length_s
            account.energy_j[each.row] += each.energy_j
            account.variance_j2[each.row] += each.variance_j2
            if each.kind in TUNING:
                account.spent_s += length_s
                account.spent_j += each.energy_j

    @property
    def spent(self) -> tuple[float, float]:
        """Time and energy of tuning itself."""
        return sum(each.spent_s for each in self.accounts), sum(each.spent_j for each in self.accounts)

    @property
    def iterations(self) -> float:
        """Counted, about: blocks have seen some of them, and the rest took as long."""
        return sum(each.iterations for each in self.accounts)

    def saved(self) -> Saved | None:
        """The saving so far; None before anything has a baseline."""
        found = [sums for each in self.accounts if (sums := each.saved()) is not None]
        if not found:
            return None
        took_s, took_j, would_s, would_j, time_variance, variance = np.sum(found, axis=0).tolist()
        error_j = 1.96 * math.sqrt(variance)
        return Saved(
            would_j - took_j, error_j, 1.0 - took_j / would_j, error_j / would_j, took_s / would_s - 1.0,
            1.96 * math.sqrt(time_variance) / would_s, self.iterations, took_s,
        )
