"""Sweeps: many configurations measured, on one GPU or several, until the budget or the search is at its end.

    found = workbench.sweep(train_some, {"batch_size": [64, 128, 256], "power_limit_w": range(100, 301, 25)},
        n_trials=12)
    workbench.panels.frontier(found)

`Sweep` yields a row (`trial.TRIALS`) as each trial ends, so that a button, a test and a loop can drive it.
With a name its rows are kept on disk, and a sweep of that name goes on where the last one was interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any, Literal

import numpy as np
import polars as pl

from .. import _html
from ..device import lease
from ..device.discovery import Gpus, devices
from ..errors import (
    MOST_VALUES,
    DeviceError,
    NoDriver,
    NotPermitted,
    UsageError,
    WorkbenchError,
    checked,
    checked_list,
    shown,
)
from ..logbook.quantities import format_duration
from ..logbook.store import Store
from ..measurement import session
from ..records import Configuration, Setting
from ..search.surrogates.expected_hypervolume import FrontierSearch
from . import trial
from .evidence import known_runs, top_of_device
from .executors import HereExecutor, LocalExecutor
from .progress import ProgressLine
from .trial import KNOBS, TRIALS, Work

Record = dict[str, Any]  # of a trial: its configuration, outcome and numbers
AXES = ("batch_size", *KNOBS)
FAILED = ("error", "lost", "held")  # outcomes that another try may mend, once
# Failures in a row: this batch size is given up, and if another one fails so too, the sweep.
MOST_FAILURES = 3
RULE = "batch sizes and clocks are whole numbers above 0, limits are watts"


class Sweep:
    """One sweep, to be iterated.

    Args:
        work: A fixed piece of training: a function of the batch size that returns how many samples it took.
        space: Candidates: a frame, or a value list for each of batch_size, power_limit_w, sm_clock_mhz,
            mem_clock_mhz (all combinations).
        n_trials: Configurations to measure at most, failed trials not counted; the whole space where None.
        order: "frontier" measures where the frontier is expected to grow most, until it has it; "grid" all.
        executor: Where trials run; a process per GPU where None.
        gpus: For that, as `devices` takes them; all that the session sees where None.
        label: Keep the rows under this name and go on with those that are there.
        worth: With "frontier", the least share of its area that a next trial must be expected to add.
        seed: Of the search.
        earlier: With "frontier", begin with what tuned cells and recurring jobs of this name have measured
            on such a GPU: both ends of that frontier are measured first.

    Raises:
        UsageError: a space, budget or order that makes no sense. NoDriver: no GPU here.
    """

    @checked
    def __init__(
        self, work: Work, space: pl.DataFrame | Mapping[str, Sequence[float | None]], *,
        n_trials: int | None = None, order: Literal["frontier", "grid"] = "frontier",
        executor: Executor | None = None, gpus: Gpus = None, label: str | None = None,
        min_gain: float = 0.002, seed: int = 0, warm_start: bool = False,
    ) -> None:
        if not callable(work):
            raise UsageError(
                "the workload is a function of the batch size that trains a fixed piece, not "
                f"{type(work).__name__}"
            )
        if n_trials is not None and n_trials < 1:
            raise UsageError(
                f"n_trials={n_trials} measures nothing; give 1 or more, or None for the whole space"
            )
        if str(order) not in ("frontier", "grid"):
            raise UsageError(f"the order is {shown(order)}; it is 'frontier' or 'grid'")
        if label is not None and not label.strip():
            raise UsageError("label='' names no sweep; give a name, or None to keep no rows")
        if executor is not None and gpus is not None:
            raise UsageError(f"gpus={shown(gpus)}: the executor has its GPUs; give one of them")
        if executor is not None and not hasattr(executor, "submit"):
            raise UsageError(f"executor={shown(executor)} has no submit(); give one of concurrent.futures")
        if warm_start and (label is None or order != "frontier"):
            raise UsageError("warm_start=True needs label=, and order='frontier'")
        self.work, self.space, self.order, self.label = work, candidates(space), order, label
        self.n_trials = len(self.space) if n_trials is None else min(n_trials, len(self.space))
        self._search = FrontierSearch(self.space, min_gain=min_gain, rng=np.random.default_rng(seed))
        self._given, self._gpus = executor, gpus
        self._rows: list[Record] = []
        self._failed: set[int] = set()  # candidates that have failed once
        self._failures: list[Record] = []  # the last trials, where all of them failed
        self._out: set[int] = set()
        self._began: float | None = None
        self._run_here = 0
        self.cancelled = False
        self.reason = ""  # why it ended
        self._keys = {self._key(row): i for i, row in enumerate(self.space.iter_rows(named=True))}
        for row in self._stored():
            if row["outcome"] in FAILED:
                self._rows.append(row)  # the work may be fixed since, so it is tried again
            else:
                self._take(row)
        self._earlier = len(self._rows)
        self._known = self._begin_with_known() if warm_start else ""

    # what is known

    @property
    def trials(self) -> pl.DataFrame:
        """Every trial so far, those of an earlier run of this name included."""
        return pl.DataFrame(self._rows, schema=TRIALS)

    @property
    def points(self) -> pl.DataFrame:
        """The measurements, as `search.frontier` reads them."""
        return self.trials.filter(pl.col("outcome") == "ok")

    @property
    def belief(self) -> pl.DataFrame:
        """Expected time and energy of every candidate, measured or not."""
        return self._search.belief()

    @property
    def note(self) -> str:
        """A sentence on earlier measurements and on an irregular card during the search; else empty.
        """
        notes = (self._known, self._search.note)
        return "" if self.order == "grid" or self.reason else "; ".join(filter(None, notes))

    @property
    def done(self) -> int:
        """Configurations that need no further trial."""
        return len(self._search.measured) + len(self._out)

    @property
    def failure(self) -> str:
        """The first failure of this run, with its line; empty where no trial has failed."""
        first = next((row for row in self._rows[self._earlier :] if row["outcome"] in FAILED), None)
        return "" if first is None else self._describe(first)

    def summary(self) -> str:
        """Number of measurements, why the sweep ended, and the first failure."""
        status = f"{len(self.points)} configurations measured"
        if self.reason:
            status += f": {self.reason}"
        if self.failure and self.failure not in self.reason:
            count = sum(row["outcome"] in FAILED for row in self._rows[self._earlier :])
            status += f"; {count} trial{'s' * (count != 1)} failed, the first one: {self.failure}"
        return status

    def __repr__(self) -> str:
        return f"Sweep: {self.summary()}"

    def _repr_html_(self) -> str:
        points = self.points
        shown = [each for each in (*AXES, "time_s", "energy_j", "gpu") if points[each].is_not_null().any()]
        title = f"Sweep{f' {self.label}' * bool(self.label)}: {self.summary()}"
        simulated = bool(points["simulated"].any())
        return _html.facts(title, {"measured": points.select(shown)}, simulated=simulated)

    def progress(self) -> tuple[float, str]:
        """The finished share (0..1) and a text: "12 of 40 configurations, 3 min left"."""
        share = min(self.done / max(self.n_trials, 1), 1.0)
        text = f"{self.done} of {self.n_trials} configurations"
        if self.failure and self.failure not in self.reason:
            text += f"; the first failure: {self.failure}"
        if self.reason:
            return share, f"{text}; ended: {self.reason}"
        if self.cancelled:
            return share, f"{text}; cancelled: running trials are finished and kept"
        text += f", {format_duration(left_s)} left" if (left_s := self.remaining_s) else ""
        return share, "; ".join(each for each in (text, self.note) if each)

    @property
    def remaining_s(self) -> float | None:
        """Seconds that the rest of the budget will take; None before the first trial has ended."""
        if self._began is None or not self._run_here:
            return None
        each_s = (time.monotonic() - self._began) / self._run_here
        return each_s * max(self.n_trials - len(self._search.measured), 0)

    def cancel(self) -> None:
        """Begin no further trial; those that run are finished and kept."""
        self.cancelled = True

    # running

    def __iter__(self) -> Iterator[Record]:
        if self.done < self.n_trials and isinstance(self._given, HereExecutor | None):
            self._check_rights()
        executor = self._given or LocalExecutor(_uuids(self._gpus))
        width = 1 if isinstance(executor, HereExecutor) else len(getattr(executor, "gpus", ())) or 1
        self._began, self.reason = time.monotonic(), ""
        self._failures = []
        children = executor.gpus if isinstance(executor, LocalExecutor) else ()
        with lease.lent(children):
            yield from self._trials(executor, width)

    def _check_rights(self) -> None:
        """Raise, before the work runs, if a GPU takes none of the settings or may not be changed."""
        settings = dict.fromkeys(self._configuration(row).setting for row in range(len(self.space)))
        for device in session.devices_of(self._gpus):
            for setting in settings:
                with contextlib.suppress(DeviceError):
                    device.check(setting)
                    break
            else:
                device.check(setting)
            if settings != {Setting(): None} and (missing := device.missing_rights()):
                raise NotPermitted(f"{device.name} cannot be swept: {missing}")

    def _trials(self, executor: Executor, width: int) -> Iterator[Record]:
        under_way: dict[Future[Record], int] = {}
        try:
            while True:
                while len(under_way) < width and (row := self._next(len(under_way))) is not None:
                    number = len(self._rows) + len(under_way)
                    what = (self._configuration(row), self.work, number, self.label or "sweep")
                    under_way[executor.submit(_run, *what)] = row
                if not under_way:
                    return
                ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield self._end(under_way.pop(future), future)
        finally:
            if self._given is None:
                executor.shutdown(wait=True, cancel_futures=True)
            for future, row in under_way.items():  # what has ended meanwhile is kept
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._end(row, future)
            for row in self._search.begun:  # and the rest may be begun again
                self._search.cannot(row, "left")
                self._search.allow(row)

    def _next(self, running: int) -> int | None:
        if self.cancelled:
            self.reason = self.reason or "it was cancelled"
            return None
        if len(self._search.measured) + running >= self.n_trials:
            self.reason = (
                "the budget is spent" if self.n_trials < len(self.space) else "all configurations are "
                "measured"
            )
            return None
        if self.order == "grid":
            begun = {*self._search.measured, *self._out, *self._search.begun}
            row = next((i for i in range(len(self.space)) if i not in begun), None)
        else:
            step = self._search.ask()
            row = None if step is None else step.row
        if row is None:
            if not running:
                self.reason = self.reason or (
                    self._search.reason if self._search.measured else "nothing is left to measure"
                )
            return None
        self._search.begin(row)
        return row

    def _end(self, row: int, future: Future[Record]) -> Record:
        try:
            record = future.result()
        except Exception as error:  # the process died each time, or the cluster has gone
            record = trial.blank(self._configuration(row), len(self._rows)) | {
                "outcome": "lost", "reason": str(error),
            }
        self._run_here += 1
        self._take(record)
        self._store()
        return record

    def _take(self, record: Record) -> None:
        """Learn from a trial; one for another unit of work than those before compares with none of them."""
        before = {row["unit"] for row in self._rows if row["outcome"] == "ok"}
        if record["outcome"] == "ok" and before and record["unit"] not in before:
            units = [each or "piece of work" for each in (record["unit"], *before)]
            reason = (f"its time and energy are for one {units[0]}, those of the trials before for one "
                      f"{units[1]}; take another name for this sweep")
            record |= {"outcome": "error", "reason": reason}
        self._rows.append(record)
        row = self._keys.get(self._key(record))
        if row is None:
            return  # of an earlier space
        outcome, reason = record["outcome"], record["reason"]
        if outcome == "ok":
            self._failures = []
            self._search.tell(row, record["time_s"], record["energy_j"])
        elif outcome in FAILED and row not in self._failed:
            self._failed.add(row)
            self._search.cannot(row, reason)
            self._search.allow(row)
        else:
            self._bar(row, reason)
        if outcome == "out of memory" and record["batch_size"] is not None:
            self._bar_where(pl.col("batch_size") >= record["batch_size"], reason)
        if outcome in ("not permitted", "not supported"):
            knobs = [knob for knob in KNOBS if knob in self.space.columns and record[knob] is not None]
            self._bar_where(pl.any_horizontal(pl.col(knobs).is_not_null()), reason)
            self.reason = reason
        if outcome in FAILED:
            self._failures.append(record)
            if len(self._failures) >= MOST_FAILURES:
                self._give_up(record)

    def _give_up(self, record: Record) -> None:
        """Measure no more at a batch size whose trials fail; end where another one fails with it.

        The batch size is all that the work is given, so other settings do not mend it.
        """
        several = "batch_size" in self.space.columns and self.space["batch_size"].n_unique() > 1
        if not several or len({row["batch_size"] for row in self._failures}) > 1:
            self._bar_where(pl.lit(True), record["reason"])
            first = self._describe(self._failures[0])
            self.reason = f"{len(self._failures)} trials in a row failed: {first}"
        else:
            self._bar_where(pl.col("batch_size") == record["batch_size"], record["reason"])

    def _describe(self, record: Record) -> str:
        """A failed trial in words."""
        if not record["raised_at"]:
            return str(record["reason"])
        name = getattr(getattr(self.work, "func", self.work), "__name__", "the work")
        return f"{name}({record['batch_size']}) raised {record['reason']} ({record['raised_at']})"

    def _bar(self, row: int, reason: str) -> None:
        if row not in self._search.measured:
            self._search.cannot(row, reason)
            self._out.add(row)

    def _bar_where(self, which: pl.Expr, reason: str) -> None:
        for row in self.space.with_row_index("row").filter(which)["row"]:
            self._bar(row, reason)

    def _configuration(self, row: int) -> Configuration:
        values = self.space.row(row, named=True)
        setting = Setting(**{knob: values.get(knob) for knob in KNOBS})
        batch_size = values.get("batch_size")
        return Configuration(setting, None if batch_size is None else int(batch_size))

    def _begin_with_known(self) -> str:
        """Measure first what was fastest and what took least energy in an earlier run of this workload, at
        the candidates of its batch size. Says from where they are known; empty where they are not.
        """
        try:
            mine = devices(self._gpus) if self._gpus is not None else session.current().devices
        except WorkbenchError:  # said where the sweep is run
            mine = ()
        if not mine:
            return ""
        sizes = self.space["batch_size"] if "batch_size" in self.space.columns else pl.Series([None])
        several = sizes.n_unique() > 1
        every = [self._configuration(row) for row in range(len(self.space))]
        for curve in known_runs(self.label or "", mine[0], besides="a sweep"):
            if curve.batch_size is None and several:
                continue  # nobody knows at which of them it was measured
            rows = [row for row, each in enumerate(every)
                    if None in (curve.batch_size, each.batch_size) or each.batch_size == curve.batch_size]
            costs = curve.at([every[row].setting for row in rows], top_of_device(mine[0]))
            if costs:
                least_energy = min(costs, key=lambda at: costs[at][1])
                self._search.first = rows[least_energy], rows[min(costs, key=costs.__getitem__)]
                return f"{curve.text(len(costs))}: tried first"
        return ""

    @staticmethod
    def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(axis) for axis in AXES)

    # on disk

    def _stored(self) -> list[Record]:
        return [] if self.label is None else Store().observed("a sweep", self.label, TRIALS).to_dicts()

    def _store(self) -> None:
        if self.label is not None:
            rows = self.trials.with_columns(run=pl.lit(None, pl.Int64))
            Store().observe("a sweep", self.label, rows)


@checked
def sweep(
    work: Work, space: pl.DataFrame | Mapping[str, Sequence[float | None]], n_trials: int | None = None, *,
    order: Literal["frontier", "grid"] = "frontier", gpus: Gpus = None, label: str | None = None,
    min_gain: float = 0.002, seed: int = 0, warm_start: bool = False, executor: Executor | None = None,
    progress: bool | Callable[[Sweep], None] = True,
) -> Sweep:
    """Measure many configurations of one workload, to the end; returns the `Sweep`.

    Args:
        work: A fixed piece of training: a function of the batch size that returns how many samples it took.
        space: Candidates: a frame, or a value list for each of batch_size, power_limit_w, sm_clock_mhz,
            mem_clock_mhz (all combinations).
        n_trials: Configurations to measure at most; the whole space where None.
        order: "frontier" measures where the frontier is expected to grow most, until it has it; "grid" all.
        gpus: As `devices` takes them; all that the session sees where None.
        label: Keep the rows under this name and go on with those that are there.
        min_gain: With "frontier", the least share of its area that a next trial must be expected to add.
        seed: Of the search.
        warm_start: With "frontier", begin with what tuned cells and recurring jobs of this name have
            measured.
        executor: Where trials run; a process per GPU where None.
        progress: Show a line with the remaining time, or call this after each trial.

    Raises:
        UsageError, NoDriver: as `Sweep`.
    """
    running = Sweep(
        work, space, n_trials=n_trials, order=order, executor=executor, gpus=gpus, label=label,
        min_gain=min_gain, seed=seed, warm_start=warm_start,
    )
    with ProgressLine("Sweep") as bar:
        tell = progress if callable(progress) else (lambda sweep: bar.tell(*sweep.progress()))
        try:
            if progress is True:
                tell(running)
            for _ in running:
                if progress:
                    tell(running)
        finally:
            running.reason = running.reason or "interrupted"
    if progress is True:
        print(running.summary(), file=sys.stderr)
    return running


def candidates(space: pl.DataFrame | Mapping[str, Sequence[float | None]]) -> pl.DataFrame:
    """All combinations of value lists, or a frame's own rows, each once.

    >>> candidates({"batch_size": [32, 64], "power_limit_w": [100, None]}).rows()
    [(32, 100.0), (32, None), (64, 100.0), (64, None)]

    Raises:
        UsageError: an axis that is none, or nothing to choose from.
    """
    if isinstance(space, pl.DataFrame):
        frame = space.select([name for name in space.columns if name in AXES])
    elif not isinstance(space, Mapping):
        axes = ", ".join(AXES)
        raise UsageError(f"a space is a frame, or value lists by axis ({axes}), not {shown(space)}")
    else:
        if unknown := [name for name in space if name not in AXES]:
            raise UsageError(f"a space has no axis {unknown[0]!r}; its axes are {', '.join(AXES)}")
        lists = {name: checked_list(name, values, "float", "None") for name, values in space.items()}
        if (count := math.prod(map(len, lists.values()))) > MOST_VALUES:
            raise UsageError(f"{count:,} configurations are too many; give up to {MOST_VALUES:,}")
        empty = [name for name, values in lists.items() if not values]
        if empty:
            raise UsageError(f"{empty[0]} has no values; give at least one, or leave the axis out")
        frame = pl.DataFrame(
            list(itertools.product(*lists.values())), schema=list(lists), orient="row", strict=False
        )
    if not frame.columns or frame.is_empty():
        raise UsageError(
            f"there is nothing to choose from; give values for at least one of {', '.join(AXES)}"
        )
    types = {name: pl.Float64 if name == "power_limit_w" else pl.Int64 for name in frame.columns}
    try:
        numbers = frame.cast(pl.Float64)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"{RULE}: {str(error).splitlines()[0]}") from error
    for name, kind in types.items():
        values = numbers[name].drop_nulls()
        whole = kind != pl.Int64 or values % 1 == 0
        if len(wrong := values.filter(~((values > 0) & values.is_finite() & whole))):
            raise UsageError(f"{RULE}: {name} cannot be {wrong[0]:g}")
    return numbers.cast(types).unique(maintain_order=True)  # type: ignore[arg-type]


def _uuids(gpus: Gpus) -> list[str]:
    mine = session.current()
    found = [device.uuid for device in (mine.devices if gpus is None else devices(gpus))]
    if not found:
        raise NoDriver(
            f"there is no GPU to sweep on ({mine.why_no_gpu() or 'gpus=[]'}); choose a simulated one with "
            "workbench.simulate('A100')"
        )
    return found


def _run(configuration: Configuration, work: Work, number: int, label: str) -> Record:
    """A trial on the GPU of this process."""
    mine = session.current()
    devices = mine.devices
    if not devices:
        raise NoDriver(f"the process of this trial sees no GPU: {mine.why_no_gpu()}")
    store = Store()
    meter = mine.meter
    row = trial.run(
        configuration, work, devices[0], meter, trial=number, label=label,
        keep=lambda measurement, window: session.keep(measurement, window, meter, store, kind="sweep"),
    )
    return row
