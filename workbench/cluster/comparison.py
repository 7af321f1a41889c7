"""Policies over a job log, chosen, run and kept: what a panel, a script or a test drives."""

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
    """The runs: scenario, log by name, its part, whether trimmed, whether wrong rows stay out."""

    scenario: Scenario
    log: str
    part: str
    trimmed: bool
    keep_valid: bool


class PolicyComparison:
    """A choice, and the runs of what was chosen when they began.

    Args:
        given: Logs by name.
        scenario: Cluster and policies.
        part, trimmed, keep_valid: As of `RunSelection`.
        executor: Where runs are done, a `concurrent.futures.Executor` or a Dask client; None: processes of
            this machine.
        workers: How many of those.

    Attributes:
        ran: The choice that the results are of.
        left_out: Rows of that log that are wrong, or too large for the cluster.

    Raises:
        UsageError: A log that cannot be read, or has no such part.
    """

    def __init__(
        self, given: dict[str, LogSource], scenario: Scenario, *, part: str | None = None,
        trimmed: bool = True, keep_valid: bool = False, executor: Any = None, workers: int | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers is {workers}; at least 1 is needed")
        # A Dask client has its own futures; its executor speaks the interface of the standard library.
        own = executor.get_executor() if hasattr(executor, "get_executor") else executor
        self._executor: Executor | None = own
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

    # what is chosen

    @property
    def scenario(self) -> Scenario:
        return self.choice.scenario

    @property
    def kinds(self) -> dict[str, NodeType]:
        """Node types by name, one's own among them."""
        return {self.scenario.kind.name: self.scenario.kind, **KINDS}

    @property
    def parts(self) -> list[str]:
        """Names of the parts of the log that is chosen. Raises UsageError where it cannot be read."""
        return list(self._pieces(self.choice)[1])

    @property
    def jobs(self) -> pl.DataFrame:
        """The chosen jobs, before anything is drawn. Raises UsageError where there are none."""
        jobs = self._pieces(self.choice)[1][self.choice.part]
        if jobs.height == 0:
            raise UsageError(
                f"{self.choice.log} has 0 jobs; there is nothing to simulate. Choose another log, or give "
                "one with jobs"
            )
        return jobs

    def set(self, **settings: Any) -> None:
        """Change the choice: fields of `Scenario`, and `log`, `part`, `trimmed`, `keep_valid`.

        Raises:
            UsageError: A setting that makes no sense; nothing is changed then.
        """
        choices = RunSelection.__dataclass_fields__.keys() - {"scenario"}
        own = {name: settings.pop(name) for name in choices & settings.keys()}
        if own.get("log", self.choice.log) not in self.sources:
            raise UsageError(f"there is no log {own['log']!r}; there are {', '.join(self.sources)}")
        if isinstance(kind := settings.get("kind"), str):
            if kind not in self.kinds:
                raise UsageError(f"there is no node type {kind!r}; there are {', '.join(self.kinds)}")
            settings["kind"] = self.kinds[kind]
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
        """Offer the log of a file, or those of a directory, and choose the first, whole. One of a name that
        is taken gets a number.

        Raises:
            UsageError: There is none, or the first cannot be read; nothing is changed then.
        """
        before = self.sources
        found = by_name(of_path(path), before)
        self.sources = {**before, **found}
        try:
            self.set(log=next(iter(found)), part=WHOLE)
        except WorkbenchError:
            self.sources = before
            raise

    def _pieces(self, choice: RunSelection) -> Pieces:
        return self.sources[choice.log].pieces(choice.trimmed, choice.keep_valid)

    # what is run

    def begin(self) -> Runs:
        """Start the runs and return; those under way are cancelled.

        Raises:
            UsageError: The log cannot be simulated; row and value are reported, and what is under way goes
                on.
        """
        choice, jobs, scenario = self.choice, self.jobs, self.scenario
        count = scenario.draws * len(scenario.policies) * (len(scenario.values) if scenario.sweep else 1)
        if count > MOST_RUNS:
            raise UsageError(
                f"that would be {count} runs; at most {MOST_RUNS} are allowed: take fewer draws, values or "
                "policies"
            )
        # What is wrong with the log is reported here, once, and not by every run.
        first = next(tasks(scenario)).scenario
        log = check(prepared(jobs, first, scenario.seed), first.cluster, keep_valid=choice.keep_valid)
        self.cancel()
        self.runs = Runs(
            jobs, list(tasks(scenario)), self._executor, workers=self._workers, keep_valid=choice.keep_valid
        )
        self.ran, self.left_out = choice, jobs.height - log.height
        return self.runs

    def cancel(self) -> None:
        """End the runs under way, within some tenths of a second; ended runs are kept."""
        if self.runs is not None and self.runs.running:
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
        """Whether the results are of another choice than the present one."""
        return self.ran is not None and self.ran != self.choice

    # what came of it

    @property
    def outcomes(self) -> list[RunOutcome]:
        """Of the runs that have ended, in the order of the tasks."""
        return [] if self.runs is None else list(self.runs.outcomes.values())

    @property
    def results(self) -> pl.DataFrame:
        """A row per run that has ended: policy, seed, swept value, all of `summary.summarise`, CPU time."""
        return pl.DataFrame(
            [
                {
                    **each.row, "title": each.row["policy"], "policy": each.task.policy,
                    "seed": each.task.seed, "value": each.task.value, "cpu_s": each.cpu_s,
                }
                for each in self.outcomes
            ],
            infer_schema_length=None,
        )

    def result(self, policy: str) -> Result:
        """The run of a policy that can be examined: the first draw's, at the first value of what is swept.

        Raises:
            UsageError: There is none.
        """
        found = [each for each in self.outcomes if each.task.policy == policy and each.task.keep]
        if not found:
            raise UsageError(f"there is no run of {policy!r} to look into: run it first")
        if found[0].result is None:
            raise UsageError(
                f"of logs of more than {MOST_WATCHED:,} jobs only the sums are kept; choose a part"
            )
        return found[0].result
