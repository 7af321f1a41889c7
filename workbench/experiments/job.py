"""Recurring training jobs: each recurrence at the batch size and power limit that are expected to cost least.

    job = RecurringJob("nightly", [32, 64, 128, 256], default=128, target=0.76, objective=0.5)
    for run in job.attempts():                    # until one has reached the target
        with run:
            loader = DataLoader(data, batch_size=run.batch_size)
            while not run.should_stop():
                for batch in loader:
                    train(batch)
                    workbench.step()              # where an iteration ends, limits may be profiled
                run.report(validate())

A run is measured by the meter of this process's session. Its power limit is restored when it ends, however it
ends. The history is an Optuna study (`history.study`), shared by everybody who names the same storage.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _html, _paths
from ..device.control import highest_limit_w
from ..device.discovery import Gpus
from ..errors import MeasurementError, NoDriver, Suggesting, UsageError, checked, listed, shown
from ..measurement import session
from ..measurement.meter import Meter
from ..records import Configuration, Setting
from ..search.batch_size.history import MOST_RUNS, Space
from ..search.batch_size.policy import BatchSizePolicy
from ..search.objective import Objective, Time, check_objective, resolve_objective, with_eta
from .history.attempts import Attempt
from .history.csv import write_csv
from .history.study import JobStudy
from .power_profiling import default_limits_w
from .progress import ProgressLine
from .ranks import current_ranks, follow, gpus_of_ranks, lead, require_connected
from .recurrence import JobRun
from .trial import out_of_memory

if TYPE_CHECKING:
    import optuna
    import polars as pl


class RecurringJob(Suggesting):
    """A job that is run again and again.

    Args:
        label: Of the job; everybody who uses it shares its history.
        batch_sizes: Allowed ones.
        default: Your own choice, where the first run starts; the largest where None.
        objective: What to minimise: a name ("energy", "edp", "ed2p", "zeus", "time"), an `Objective`, or
            Zeus' eta from 0 (time only, which needs no GPU) to 1 (energy only).
        eta: Zeus' weight of energy, 0 to 1, in place of an objective.
        storage: An Optuna storage, its URL, or the path of an SQLite file; a file in the user's data
            directory where None.
        target: Value of the metric at which a run has reached its goal; without one `finish(reached=True)`
            reports it.
        higher_is_better: Of the metric.
        max_epochs: After so many a run has failed.
        policy: Ours by name ("knowledge-gradient", "zeus", "default-batch-size"), a policy, or a sampler of
            Optuna's.
        power_limits_w: Limits of one GPU that may be set; what the GPUs take in steps of 25 W where None, ()
            leaves the limit alone.
        gpus: Which GPUs the runs use, as `devices` takes them; all visible ones where None, [] for none.
        meter: Measures the runs; the session's, of these GPUs, where None.
        seed: Of the policy's draws.
        accept_changes: Go on where the history has other batch sizes.
        retries: Runs that `attempts` and `run` make for one recurrence at most, those that run out of memory
            included. Three that trained without success end it sooner.
        warm_start: Begin a profile of limits with what tuned runs and sweeps of this label have measured.

    Raises:
        UsageError: no batch size, a default that is not one of them, an eta outside 0..1, a history with
            other batch sizes, a rank of torchrun that is not connected yet.
        StoreError: a history that cannot be read or is somebody else's.
        NoDriver: no GPU here, and the objective is not time alone.
    """

    @checked
    def __init__(
        self, label: str, batch_sizes: Sequence[int], default: int | None = None,
        objective: Objective | float | str = 0.5, *, eta: float | None = None,
        storage: str | Path | optuna.storages.BaseStorage | None = None,
        target: float | None = None, higher_is_better: bool = True, max_epochs: int = 100,
        policy: BatchSizePolicy | str | optuna.samplers.BaseSampler = "knowledge-gradient",
        power_limits_w: Sequence[float] | None = None, gpus: Gpus = None, meter: Meter | None = None,
        seed: int | None = None, accept_changes: bool = False, retries: int = 20,
        warm_start: bool = False,
    ) -> None:
        if target is not None and not math.isfinite(target):
            raise UsageError(f"a target of {target:g} cannot be reached; give a finite value of the metric")
        if retries < 1:
            raise UsageError(f"retries={retries} runs nothing; give 1 or more")
        if not label.strip():
            raise UsageError("label='' names no job; give the name that its runs share")
        if meter is not None and gpus is not None:
            raise UsageError(f"gpus={shown(gpus)}: the meter has its GPUs; give one of them")
        objective = with_eta(objective, eta, 0.5)
        sizes = tuple(sorted(set(batch_sizes)))
        self.label, self.higher_is_better, self.retries = label, higher_is_better, retries
        self.warm_start = warm_start
        ranks = current_ranks()
        if meter is None and gpus is None:
            if ranks is None:
                require_connected(os.environ)
            else:
                gpus = gpus_of_ranks(ranks, sizes)
        self.meter = meter or session.current().meter_of(gpus)
        self.notes: list[str] = []
        measured = self.meter.devices
        limits = self._limits(power_limits_w)
        space = Space(
            sizes, default if default is not None else max(sizes, default=0), limits, max_epochs, target,
            measured[0].name if measured else None,
        )
        if not measured and objective in (0, "time"):
            objective = Time()
        if not measured and not isinstance(objective, Time):
            raise NoDriver(
                f"{session.current().why_no_gpu() or 'no GPU is measured here'}; without one only time can "
                "be minimised: objective=0"
            )
        self.study = JobStudy(
            label, space, self._objective(objective),
            storage=storage if storage is not None else _paths.home()[0] / "recurring.db",
            policy=policy, seed=seed, accept_changes=accept_changes,
        )
        if damaged := self.study.ledger.damaged:
            self.notes.append(f"{len(damaged)} attempts of this history are damaged and left out: number "
                              f"{listed(damaged)} ({next(iter(damaged.values()))})")
        self._next: Attempt | None = None
        self._slices = True  # whether slices show anything here

    @property
    def space(self) -> Space:
        """Batch sizes and power limits (W) that the job may choose from."""
        return self.study.space

    @property
    def objective(self) -> Objective:
        """The objective to minimise. A change scores all history again."""
        return self.study.objective

    @objective.setter
    def objective(self, objective: Objective | float | str) -> None:
        self.study.objective = self._objective(objective)

    def next(self) -> Configuration:
        """The configuration of the next recurrence. It is claimed by this: other processes see it as
        running.
        """
        if self._next is None:
            self._next = self.study.ask(slices=False)
        return Configuration(Setting(power_limit_w=self._next.power_limit_w), self._next.batch_size)

    @checked
    def choose(self, batch_size: int | None, power_limit_w: float | None = None) -> None:
        """Run the next recurrence at a batch size that you have chosen; None leaves it to the policy again.

        Args:
            batch_size: One of the job's.
            power_limit_w: One of the job's; None takes the one that has cost least there so far.

        Raises:
            UsageError: a batch size or limit that the job has not; an earlier claim stays.
        """
        if batch_size is None and power_limit_w is not None:
            raise UsageError(f"power_limit_w={power_limit_w:g}: give the batch size that it is for")
        claimed = self.study.claim(batch_size, power_limit_w) if batch_size is not None else None
        if self._next is not None:
            self.study.end(self._next, state="withdrawn")
        self._next = claimed

    def recurrence(self) -> JobRun:
        """One attempt, as a context manager; at what `next` has claimed, or what it would."""
        self.next()
        attempt, self._next = self._next, None
        assert attempt is not None
        return JobRun(self, attempt)

    def attempts(self) -> Iterator[JobRun]:
        """The attempts of one recurrence until one has reached the target: short slices, runs, retries.

        Where torch has connected several ranks, all go through this; the first one chooses and measures.

        Raises:
            UsageError: no batch size reaches the target.
            MeasurementError: three runs, or `retries`, have not reached it: the recurrence is lost. All of
                them are in the history, and the next recurrence goes on from there.
        """
        ranks = current_ranks()
        if ranks is None:
            return self._attempts(JobRun)
        return follow(self, ranks) if ranks.rank else lead(self._attempts, ranks)

    def _attempts(self, make: Callable[..., JobRun]) -> Iterator[JobRun]:
        runs = slices = lost = 0
        while runs < self.retries and lost < MOST_RUNS:
            attempt = self._next or self.study.ask(
                slices=self._slices and slices < 2 * len(self.space.batch_sizes)
            )
            self._next = None
            runs += attempt.purpose == "run"
            slices += attempt.purpose == "slice"
            run = make(self, attempt)
            yield run
            if not run.entered:
                self.study.end(attempt, state="interrupted")
                raise UsageError(
                    "an attempt was not run; use `for run in job.attempts():` with `with run:` inside"
                )
            if run.reached:
                return
            lost += run.purpose == "run" and run.attempt.lost
            # A slice that shows nothing (no right to set a limit, a silent loop) would be wanted for ever.
            self._slices &= bool(run.attempt.profile) or run.purpose != "slice"
        self.study.check_reachable()
        follows = "so this recurrence is lost" if lost >= MOST_RUNS else "and the next call goes on from here"
        raise MeasurementError(
            f"{runs} runs of '{self.label}' in a row did not reach their target, {follows}; "
            "run the job again, allow more epochs, or lower the target"
        )

    def run(self, train: Callable[[JobRun], object]) -> JobRun:
        """Run one recurrence: `train(run)` as often as it takes; returns the run that reached the target.

        A batch size that does not fit the memory is noted, and another one is tried; every other error of the
        training goes through.
        """
        with ProgressLine(f"Recurring job {self.label}") as progress:
            for number, run in enumerate(self.attempts(), 1):
                limit = "" if run.power_limit_w is None else f" at {run.power_limit_w:g} W"
                progress.tell(0.0, f"attempt {number}: batch size {run.batch_size}{limit}")
                try:
                    with run:
                        train(run)
                except Exception as error:
                    if not out_of_memory(error):
                        raise
        return run

    # history

    def history(self) -> pl.DataFrame:
        """All attempts, a row each, those that run and those of others included.

        Columns: those of `history.csv.HISTORY`, which are the attributes of `history.attempts.Attempt`, and
        the cost under today's objective.
        """
        return self.study.history()

    @checked
    def export_csv(self, path: str | Path) -> int:
        """Write the history as CSV; returns how many attempts that were."""
        return write_csv(self.study.attempts, Path(path))

    @checked
    def unblock(self, batch_size: int | None = None) -> None:
        """Try a batch size again that is barred because it crashed; all of them where None."""
        if batch_size is not None and batch_size not in self.space.batch_sizes:
            raise UsageError(f"batch size {batch_size} is not one of those of {self.label!r}: "
                             f"{listed(self.space.batch_sizes)}")
        self.study.unblock(batch_size)

    def __repr__(self) -> str:
        return f"RecurringJob {self.label}: {self.history().height} attempts"

    def _repr_html_(self) -> str:
        space = self.space
        runs = self.history().select(
            "recurrence", "purpose", "batch_size", "power_limit_w", "state", "epochs", "time_s", "energy_j",
            "cost", "reason",
        )
        known = {
            "batch_sizes": space.batch_sizes, "default": space.default, "target": space.target,
            "power_limits_w": space.power_limits_w, "objective": str(self.objective), "notes": self.notes,
            "attempts": runs,
        }
        simulated = any(device.simulated for device in self.meter.devices)
        return _html.facts(f"Recurring job {self.label}", known, simulated=simulated)

    # GPUs

    def _limits(self, wanted: Sequence[float] | None) -> tuple[float, ...]:
        gpus = self.meter.devices
        ranges = [(gpu.limits.min_power_limit_w, highest_limit_w(gpu)) for gpu in gpus]
        known = [(low, high) for low, high in ranges if low is not None and high is not None]
        for limit_w in wanted or ():
            for low, high in known:
                if not low <= limit_w <= high:
                    raise UsageError(
                        f"a power limit of {limit_w:g} W is outside what the card takes, {low:g}..{high:g} W"
                    )
        if wanted is not None and not len(wanted):
            return ()
        for gpu in gpus:
            absent = (each.reason for each in gpu.capabilities
                      if each.name == "set_power_limit" and not each.present)
            if problem := gpu.missing_rights() or next(absent, ""):
                self.notes.append(f"power limits of {gpu.name} are not changed: {problem}; only the batch "
                                  "size is chosen. power_limits_w=() states that you want this")
                warnings.warn(self.notes[-1], RuntimeWarning, stacklevel=4)
                return ()
        if wanted is None:
            wanted = default_limits_w(known) if len(known) == len(gpus) else ()
        return tuple(sorted({float(limit) for limit in wanted}))

    def _objective(self, given: Any) -> Objective:
        """The objective that is given, or that has this name or this eta of Zeus'."""
        if hasattr(given, "cost"):
            return given  # type: ignore[no-any-return]
        known = [gpu.limits.max_power_limit_w for gpu in self.meter.devices if gpu.limits.max_power_limit_w]
        count = max(len(self.meter.devices), 1)
        return resolve_objective(check_objective(given), max(known, default=1.0), count)


__all__ = ["JobRun", "RecurringJob"]
