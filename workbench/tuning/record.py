"""The record of a tuning: events, trials, counted and saved energy, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import polars as pl

from ..experiments.iteration_sources import IterationSource, MarkSource
from ..experiments.probe import Probe
from ..measurement.meter import Meter
from ..records import Setting
from .accounts import Counted, SavingsAccount, SavingsAccounts, SavingsLedger, Stretch
from .detect_iterations import DetectedIterations
from .results import PROBES, TuningResult


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
                time_s, _, energy_j = account.baseline()
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


class TuningRecord:
    """Record of one tuning, from its first moment to its last, in all states.

    Attributes:
        text: What goes on and what is next, one sentence.
        events: (seconds since the tuner began, text), newest last.
        notes: Remarks for the result.
        found: The iterations that were found last.
        suspects: Stretches at the held setting that are not on the account yet.
        held: The setting that was held last.
        not_restored: Sentences about settings that could not be restored.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.begun_s = clock, clock()
        self.text = "waiting for the GPU to work"
        self.events: list[tuple[float, str]] = []
        self.notes: list[str] = []
        self.accounts, self.ledger = SavingsAccounts(), SavingsLedger()
        self.suspects: list[Stretch] = []
        self.probes = ProbeTable()
        self.found: DetectedIterations | None = None
        self.model = ""
        self.held: Setting | None = None
        self.held_since_s: float | None = None
        self.settled_s: float | None = None
        self.settled_iterations: int | None = None
        self.retuned = 0
        self.not_restored: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Since the tuner began."""
        try:
            return self.clock() - self.begun_s
        except Exception:  # a simulated machine that was taken away
            return self.events[-1][0] if self.events else 0.0

    def note(self, text: str) -> None:
        """Add an event."""
        self.events.append((self.elapsed_s, text))

    def remark(self, text: str) -> None:
        """Add an event that belongs to the result."""
        self.note(text)
        if text not in self.notes:
            self.notes.append(text)

    def probed(self, probe: Probe, named: Setting, outcome: str, reason: str) -> None:
        """Add a probe that is over; `named` is its setting as the search calls it.

        Args:
            probe: That is over.
            named: Its setting as the search calls it.
            outcome: "measured" or "failed".
            reason: Why it failed, or was made.
        """
        accounts = self.accounts.accounts
        self.probes.add(
            probe, named, outcome, reason, at_s=probe.since_s - self.begun_s,
            cost_s=self.clock() - probe.since_s,
            account=accounts[-1] if accounts and probe.kind != "baseline" else None,
        )

    def settle(self, named: Setting, now_s: float) -> None:
        """A setting is held from now on."""
        if named != self.held:
            self.held, self.held_since_s = named, now_s - self.begun_s
        if self.settled_s is None:
            self.settled_s, self.settled_iterations = self.held_since_s, round(self.iterations)

    # what was counted

    def count(self, meter: Meter, source: IterationSource, now_s: float) -> list[Counted]:
        """Count stretches whose energy is known by now; returns those at the held setting, which go on the
        account once they prove to be of the same job (`believe`).
        """
        counted = self.ledger.count(meter, source, now_s)
        held = [each for each in counted if each.stretch.kind == "held"]
        for each in counted:
            if each.stretch.kind != "held":
                self.accounts.add(each.stretch)
        self.suspects += [each.stretch for each in held]
        return held

    def believe(self) -> None:
        """Put the stretches at the held setting on the account: they are of the same job."""
        for stretch in self.suspects:
            self.accounts.add(stretch)
        self.suspects = []

    def count_all(self, meter: Meter, source: IterationSource) -> None:
        """Put everything that waits on the account, as well as it is known."""
        self.believe()
        for each in self.ledger.count_all(meter, source):
            self.accounts.add(each.stretch)

    def end_workload(self) -> None:
        """The job has changed: what the stretches since the change have saved is not known."""
        self.ledger.drop()
        self.suspects = []

    @property
    def iterations(self) -> float:
        """Counted since the tuner began."""
        if self.found is not None and isinstance(self.found.source, MarkSource):
            return float(self.found.source.total)
        suspects = sum(stretch.iterations for stretch in self.suspects)
        return self.accounts.iterations + self.ledger.waiting + suspects

    # what is reported

    @property
    def source(self) -> str:
        """Where iterations come from; empty while none were found."""
        return self.found.source.name if self.found is not None else ""

    def result(self, state: str, refused: str, simulated: bool) -> TuningResult:
        """Result as if the tuning had ended now, in this state."""
        reason, book = refused, self.accounts
        if not reason and self.settled_s is None:
            when = {"wait": "the GPU was busy for less than 2 s", "detect": "no iteration was known yet"}
            reason = (f"the run was too short ({self.elapsed_s:.3g} s): "
                      f"{when.get(state, 'no setting was found')}. Tuning takes about 25 s and 60 iterations")
        return TuningResult(
            state, self.held, book.saved(), self.settled_s, self.settled_iterations, self.source,
            self.probes.made, book.spent_s, book.spent_j, self.retuned, self.elapsed_s, reason,
            tuple(self.not_restored), tuple(self.events), tuple(self.notes), simulated, self.held_since_s,
        )
