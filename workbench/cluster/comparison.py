"""Policies compared over a job log: selection, runs and results, for a panel, a script or a test."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ..errors import UsageError, WorkbenchError
from .joblogs import WHOLE
from .jobs import check
from .power import NodeType
from .result import Result
from .runs import MOST_WATCHED, RunOutcome, Runs
from .scenario import KINDS, Scenario, prepared, tasks
from .sources import LogSource, Pieces, by_name, of_path

MOST_RUNS = 500


@dataclass(frozen=True)
class RunSelection:
    """The selected scenario, log, part of the log, trimming, and handling of invalid rows."""

    scenario: Scenario
    log: str
    part: str
    trimmed: bool
    keep_valid: bool


class PolicyComparison:
    """A selection, and the runs of the selection that was active when they began.

    Args:
        given: Logs by name.
        scenario: Cluster and policies.
        part, trimmed, keep_valid: As in `RunSelection`.
        executor: Where runs execute: a `concurrent.futures.Executor` or a Dask client. None: processes on
            this machine.
        workers: Number of these processes.

    Attributes:
        ran: The selection that the results belong to.
        left_out: Rows of that log that are invalid, or too large for the cluster.

    Raises:
        UsageError: A log that cannot be read, or has no such part.
    """

    def __init__(
        self, given: dict[str, LogSource], scenario: Scenario, *, part: str | None = None,
        trimmed: bool = True, keep_valid: bool = False, executor: Any = None, workers: int | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers is {workers}; at least 1 is needed")
        # A Dask client has its own futures; its executor has the interface of the standard library.
        self._executor: Executor | None = getattr(executor, "get_executor", lambda: executor)()
        self._workers = workers
        self.sources = dict(given)
        self.choice = RunSelection(scenario, next(iter(given)), WHOLE, trimmed, keep_valid)
        self.ran: RunSelection | None = None
        self.runs: Runs | None = None
        self.left_out = 0
        if part is not None:
            self.set(part=part)
        elif self.sources[self.choice.log].named:
            self._pieces(self.choice)

    # Selection

    @property
    def scenario(self) -> Scenario:
        return self.choice.scenario

    @property
    def kinds(self) -> dict[str, NodeType]:
        """Node types by name, including a user-defined one."""
        return {self.scenario.kind.name: self.scenario.kind, **KINDS}

    @property
    def parts(self) -> list[str]:
        """Names of the parts of the selected log. Raises UsageError where it cannot be read."""
        return list(self._pieces(self.choice)[1])

    @property
    def jobs(self) -> pl.DataFrame:
        """The selected jobs, before missing values are generated. Raises UsageError where there are none."""
        jobs = self._pieces(self.choice)[1][self.choice.part]
        if jobs.height == 0:
            raise UsageError(
                f"{self.choice.log} has 0 jobs; there is nothing to simulate. Choose another log, or give "
                "one with jobs"
            )
        return jobs

    def set(self, **settings: Any) -> None:
        """Change the selection: fields of `Scenario`, and `log`, `part`, `trimmed`, `keep_valid`.

        Raises:
            UsageError: An invalid setting; nothing is changed then.
        """
        choices = RunSelection.__dataclass_fields__.keys() - {"scenario"}
        own = {name: settings.pop(name) for name in choices & settings.keys()}
        if own.get("log", self.choice.log) not in self.sources:
            raise UsageError(f"there is no log {own['log']!r}; there are {', '.join(self.sources)}")
        if settings.get("kind") == self.scenario.kind.name:
            del settings["kind"]
        if unknown := settings.keys() - Scenario.__dataclass_fields__.keys():
            fields = ", ".join(Scenario.__dataclass_fields__)
            raise UsageError(
                f"there is no setting {min(unknown)!r}; there are log, part, trimmed, keep_valid, {fields}"
            )
        choice = replace(self.choice, scenario=replace(self.scenario, **settings), **own)
        if own:
            _, pieces = self._pieces(choice)
            if choice.part not in pieces:
                if "part" in own:
                    raise UsageError(
                        f"{choice.log} has no part {choice.part!r}; it has {', '.join(pieces)}"
                    )
                choice = replace(choice, part=WHOLE)
        self.choice = choice

    def open(self, path: str) -> None:
        """Add the log of a file, or those of a directory, and select the first one, whole. A duplicate name
        gets a number.

        Raises:
            UsageError: There is none, or the first cannot be read; nothing is changed then.
        """
        before = self.sources
        found = by_name(of_path(path), before)
        self.sources = before | found
        try:
            self.set(log=next(iter(found)), part=WHOLE)
        except WorkbenchError:
            self.sources = before
            raise

    def _pieces(self, choice: RunSelection) -> Pieces:
        return self.sources[choice.log].pieces(choice.trimmed, choice.keep_valid)

    # Runs

    def begin(self) -> Runs:
        """Start the runs and return. Active runs are cancelled.

        Raises:
            UsageError: The log cannot be simulated. The message names row and value; active runs continue.
        """
        choice, jobs, scenario = self.choice, self.jobs, self.scenario
        count = scenario.draws * len(scenario.policies) * (len(scenario.values) if scenario.sweep else 1)
        if count > MOST_RUNS:
            raise UsageError(
                f"that would be {count} runs; at most {MOST_RUNS} are allowed: use fewer seeds, values or "
                "policies"
            )
        # An invalid log is reported here, once, and not by every run.
        first = next(tasks(scenario)).scenario
        log = check(prepared(jobs, first, scenario.seed), first.cluster, keep_valid=choice.keep_valid)
        self.cancel()
        self.runs = Runs(
            jobs, list(tasks(scenario)), self._executor, workers=self._workers, keep_valid=choice.keep_valid
        )
        self.ran, self.left_out = choice, jobs.height - log.height
        return self.runs

    def cancel(self) -> None:
        """Cancel the active runs within a few tenths of a second, and keep the finished ones."""
        if self.runs and self.runs.running:
            self.runs.cancel()

    @property
    def state(self) -> str:
        """One of "idle", "running", "cancelled", "failed", "done"."""
        runs = self.runs
        if runs is None:
            return "idle"
        if runs.running:
            return "running"
        return "failed" if runs.errors else "cancelled" if runs.cancelled else "done"

    @property
    def stale(self) -> bool:
        """Whether the results belong to another selection than the present one."""
        return self.ran is not None and self.ran != self.choice

    # Results

    @property
    def outcomes(self) -> list[RunOutcome]:
        """Outcomes of the finished runs, in the order of the tasks."""
        return [] if self.runs is None else list(self.runs.outcomes.values())

    @property
    def results(self) -> pl.DataFrame:
        """One row per finished run: policy, seed, swept value, all of `summary.summarise`, CPU time."""
        return pl.DataFrame([
            {
                **each.row, "title": each.row["policy"], "policy": each.task.policy, "seed": each.task.seed,
                "value": each.task.value, "cpu_s": each.cpu_s,
            } for each in self.outcomes
        ], infer_schema_length=None)

    def result(self, policy: str) -> Result:
        """The recorded run of a policy: first random seed, first swept value.

        Raises:
            UsageError: There is none.
        """
        for each in self.outcomes:
            if each.task.policy == policy and each.task.keep:
                if each.result is None:
                    raise UsageError(
                        f"logs of more than {MOST_WATCHED:,} jobs keep only the sums; choose a part"
                    )
                return each.result
        raise UsageError(f"there is no run of {policy!r} to show: run it first")
