"""Policies over a log, chosen, run and kept: what a panel, a script or a test drives."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ..errors import UsageError, WorkbenchError
from .joblogs import WHOLE
from .jobs import check
from .power import NodeType
from .recording import RunRecord
from .runs import MOST_WATCHED, Runs, processes
from .scenario import KINDS, Scenario, prepared, tasks
from .sources import LogSource, Pieces, by_name, of_path
from .views import RunOutcome, frame

MOST_RUNS = 500
POOL_IDLE_S = 120.0  # after which processes that have nothing to do are ended


@dataclass(frozen=True)
class RunSelection:
    """What is to be run: scenario, log by name, its part, whether trimmed, whether wrong rows stay out."""

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
            this machine, kept for a while.
        workers: How many of those.

    Raises:
        UsageError: A log that cannot be read, or has no such part.
    """

    def __init__(
        self, given: dict[str, LogSource], scenario: Scenario, *, part: str | None = None,
        trimmed: bool = True, keep_valid: bool = False, executor: Any = None, workers: int | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers is {workers}; at least 1 is needed")
        self.sources = dict(given)
        self.choice = RunSelection(scenario, next(iter(given)), WHOLE, trimmed, keep_valid)
        self.ran: RunSelection | None = None  # what the results are of
        self.ran_jobs: pl.DataFrame | None = None
        self.runs: Runs | None = None
        self._executor, self._workers = executor, workers
        self._pool: Executor | None = None
        self._timer: threading.Timer | None = None
        self._log: pl.DataFrame | None = None
        self._lock = threading.RLock()
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
        choice = self.choice
        _, pieces = self._pieces(choice)
        jobs = pieces[choice.part if choice.part in pieces else WHOLE]()
        if jobs.height == 0:
            raise UsageError(
                f"{choice.log} has 0 jobs; there is nothing to simulate. Choose another log, or give one "
                "with jobs"
            )
        return jobs

    def set(self, **settings: Any) -> None:
        """Change the choice: fields of `Scenario`, and `log`, `part`, `trimmed`, `keep_valid`.

        Raises:
            UsageError: A setting that makes no sense; nothing is changed then.
        """
        changes, choice = dict(settings), self.choice
        log = str(changes.pop("log", choice.log))
        if log not in self.sources:
            raise UsageError(f"there is no log {log!r}; there are {', '.join(self.sources)}")
        trimmed = bool(changes.pop("trimmed", choice.trimmed))
        keep_valid = bool(changes.pop("keep_valid", choice.keep_valid))
        part = changes.pop("part", None)
        if isinstance(kind := changes.get("kind"), str):
            if kind not in self.kinds:
                raise UsageError(f"there is no node type {kind!r}; there are {', '.join(self.kinds)}")
            changes["kind"] = self.kinds[kind]
        fields = list(Scenario.__dataclass_fields__)
        if unknown := sorted(set(changes) - set(fields)):
            raise UsageError(
                f"there is no setting {unknown[0]!r}; there are log, part, trimmed, keep_valid, "
                f"{', '.join(fields)}"
            )
        scenario = replace(choice.scenario, **changes)
        if part is not None or log != choice.log or trimmed != choice.trimmed:
            _, pieces = self.sources[log].pieces(trimmed, keep_valid)
            if part is not None and part not in pieces:
                raise UsageError(f"{log} has no part {part!r}; it has {', '.join(pieces)}")
            part = part or (choice.part if choice.part in pieces else WHOLE)
        self.choice = RunSelection(scenario, log, part or choice.part, trimmed, keep_valid)

    def open(self, path: str) -> None:
        """Offer the log of a file, or those of a directory, and choose the first, whole. One of a name that
        is taken gets a number.

        Raises:
            UsageError: There is none, or the first cannot be read; nothing is changed then.
        """
        before, choice = self.sources, self.choice
        found = by_name(of_path(path), before)
        self.sources = {**before, **found}
        try:
            self.set(log=next(iter(found)), part=WHOLE)
        except WorkbenchError:
            self.sources, self.choice = before, choice
            raise

    def _pieces(self, choice: RunSelection) -> Pieces:
        return self.sources[choice.log].pieces(choice.trimmed, choice.keep_valid)

    # what is run

    def begin(self) -> Runs:
        """Start the runs and return; those under way are cancelled.

        Raises:
            UsageError: The log cannot be simulated; row and value are told, and what is under way goes on.
        """
        with self._lock:
            choice, jobs = self.choice, self.jobs
            scenario = choice.scenario
            todo = list(tasks(scenario))
            if len(todo) > MOST_RUNS:
                raise UsageError(
                    f"that would be {len(todo)} runs; at most {MOST_RUNS} are allowed: fewer draws, "
                    "values or policies"
                )
            # What is wrong with the log is said here, once, and not by every run.
            drawn: dict[float | None, pl.DataFrame] = {}
            checked: dict[tuple[float | None, int], pl.DataFrame] = {}
            for value in scenario.values if scenario.sweep else (None,):
                at = scenario.at(value)
                if at.slack not in drawn:
                    drawn[at.slack] = prepared(jobs, at, scenario.seed)
                if (at.slack, at.nodes) not in checked:
                    log = drawn[at.slack]
                    checked[at.slack, at.nodes] = check(log, at.cluster, keep_valid=choice.keep_valid)
            self.cancel()
            runs = Runs(jobs, todo, self._where(), keep_valid=choice.keep_valid)
            self._log, self.ran_jobs, self.ran = next(iter(checked.values())), jobs, choice
            self.runs = runs
            return runs

    def cancel(self) -> None:
        """End the runs under way, within some tenths of a second; what has ended is kept."""
        if self.runs is not None and self.runs.running:
            self.runs.cancel()

    def close(self) -> None:
        """Cancel what runs and end the processes."""
        self.cancel()
        self._drop()

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
        return [] if self.runs is None else [outcome for _, outcome in sorted(self.runs.outcomes.items())]

    @property
    def results(self) -> pl.DataFrame:
        """A row per run that has ended: policy, seed, swept value, everything of `summary.summarise`."""
        return frame(self.outcomes)

    def record(self, policy: str) -> RunRecord:
        """The run of a policy that can be looked into: the first draw's, at the first value of what is swept.

        Raises:
            UsageError: There is none.
        """
        for each in self.outcomes:
            if each.task.policy == policy and each.record is not None:
                return each.record
        large = self.ran_jobs is not None and self.ran_jobs.height > MOST_WATCHED
        sums = f"of logs of more than {MOST_WATCHED:,} jobs only the sums are kept; choose a part"
        why = sums if large else "run it first"
        raise UsageError(f"there is no run of {policy!r} to look into: {why}")

    @property
    def log(self) -> pl.DataFrame:
        """The jobs of the recorded runs, with what was drawn. Raises UsageError before the first run."""
        if self._log is None:
            raise UsageError("no policy is simulated yet; run it first")
        return self._log

    # where

    def _where(self) -> Executor:
        given = self._executor
        if given is not None:
            # A Dask client has its own futures; its executor speaks the interface of the standard library.
            made: Executor = given.get_executor() if hasattr(given, "get_executor") else given
            return made
        broken = self.runs is not None and self.runs.broken
        if self._pool is None or broken:
            self._drop()
            self._pool = processes(self._workers)
        self._later()
        return self._pool

    def _later(self) -> None:
        """End the processes when they have had nothing to do for a while."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(POOL_IDLE_S, self._rest)
        self._timer.daemon = True
        self._timer.start()

    def _rest(self) -> None:
        with self._lock:
            if self.runs is not None and self.runs.running:
                self._later()
            else:
                self._drop()

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        if self._timer is not None:
            self._timer.cancel()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
