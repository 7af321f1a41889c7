"""A running measurement: a cell between two hooks, or the statement of a `%energy` line."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .cells import Options

if TYPE_CHECKING:
    from workbench.jobs.records import JobMeasurement
    from workbench.periods.segment import SegmentedIterations
    from workbench.records import Measurement, Window
    from workbench.tuning import TunerThread

# Imported before a window begins: threads of a live view, a tuner and the log use them while it is open.
LOADED = "logbook.store", "measurement.api", "measurement.iterations", "periods.vote"


class Running:
    """One measurement: `open` it, run the code, `close` it. `end` restores changed settings.

    An interrupt at its end costs repetitions, never the measurement; a second one ends it. If a third one
    interrupts `end`, the hooks around cells call it again.

    Args:
        magics: The `EnergyMagics` that show and configure.
        options: Options of the line.
        label: Its name in the log.
        cell: Whether it is a cell. A cell may have a live view, whose settings are restored at its end.
    """

    def __init__(self, magics: Any, options: Options, label: str, *, cell: bool) -> None:
        self._magics, self._options, self._label, self._cell = magics, options, label, cell
        self.thread = threading.get_ident()
        self._view: Any = None
        self._clocks: Any = None  # the view of the tuning
        self._interrupted = 0  # times
        self._stoppable = False  # by a second interrupt
        self._session = magics.session
        self._meter = self._session.meter
        self._sync = magics.sync if options.sync is None else options.sync
        self._quiet = bool(magics.quiet if options.quiet is None else options.quiet)
        self._find_periods = options.period if options.period is not None or magics.period else False
        self._tuning: TunerThread | None = None
        self._tuned = False  # whether a tuner may have changed settings

    def open(self) -> None:
        """Begin the measurement. An exception in this method leaves nothing open."""
        magics, options = self._magics, self._options
        magics.begun.append(self)
        try:
            for name in LOADED:
                import_module(f"workbench.{name}")
            for message in self._session.messages:
                magics.say(message)
            self._session.messages.clear()
            self._uuids = magics.chosen(options.gpus)
            self._meter = self._session.meter  # a new one if this line was the first to name a simulated GPU
            live = magics.live if options.live is None else options.live
            live = live and self._cell and not self._quiet and magics.has_front_end
            if options.tune:  # the saving comes before the power
                self._begin_tuning(options.tune, live)
            if self._meter.recorder is not None and live:
                self._view = magics.started_view(self._live_view)
            self._window = self._meter.open(self._label, sync=self._sync)
        except BaseException:
            self.end()
            raise

    def _live_view(self) -> Any:
        from workbench.panels._core.jupyter import interrupt_cell
        from workbench.panels._views.power.panel import PowerView

        session, uuids = self._session, self._uuids
        devices = [device for device in session.devices if uuids is None or device.uuid in uuids]
        period = self._find_periods is not False and not self._options.tune  # the tuner's view has it
        log = self._tuning.tuner.log if self._tuning is not None else None
        return PowerView(self._meter.recorder, devices, label=self._label, stop=interrupt_cell,
                         set_power_limit=session.set_power_limit, period=period,
                         iteration_s=lambda: log.found.iteration_s if log and log.found else None)

    def _begin_tuning(self, keywords: dict[str, Any], live: bool) -> None:
        """Tune the cell's work; if that fails, a message gives the reason and the cell runs untuned."""
        from workbench.errors import WorkbenchError
        from workbench.tuning import Tuner, TunerThread, cell_over

        try:
            tuner = Tuner(self._meter, uuids=self._uuids, label=self._label, **keywords)
        except WorkbenchError as error:
            self._magics.say(f"not tuned: {error}")
            return
        self._tuning, self._tuned = TunerThread(tuner, cell_over()), True
        if live and not tuner.ended:  # else the reason comes with the report
            from workbench.panels._views.clocks.panel import ClocksPanel

            self._clocks = self._magics.started_view(lambda: ClocksPanel(tuner, live=True))

    def close(self, outcome: str, rerun: Callable[[], Callable[[], bool] | None]) -> None:
        """End ("ok", "error" or "interrupted"), store and show. `rerun` makes the function for `--repeat`: it
        runs the code again and returns whether the run succeeded. None if the code cannot run again.
        """
        remarks: list[str] = []
        with self.noting_interrupts():
            try:
                self._stoppable = True
                # This comes first, so that the window contains no other work and no import.
                windows, devices = [self._meter.close(self._window, sync=self._sync)], self._meter.devices
                from workbench.jobs.combine import job_of
                from workbench.measurement.repeats import repeated, with_iterations

                if self._tuning is not None:
                    self._tuning.over = bool  # runs that are repeated come after the cell
                measured = [self._measure(windows[0], "interrupted" if self._interrupted else outcome)]
                if outcome == "ok" and self._options.repeat > 1 and len(windows[0].closed) == len(devices):
                    self._repeat(rerun(), measured, windows, remarks)
                tuned, left = self._end_tuning()
                remarks += [tuned] if tuned and (left or not self._quiet) else []
                remarks += self._restore()
                found = self._count(windows, measured, remarks)
                whole = with_iterations(repeated(measured), found)
                notes = [*whole.notes, *filter(None, [tuned])]
                with contextlib.suppress(Exception):  # a note less, and no cell ends of it
                    notes += self._meter.waste(windows[-1], whole)
                whole = replace(whole, kind="tuned cell" if self._tuned else "cell", notes=tuple(notes))
                job = job_of(self._meter, windows[-1], whole, found)
                whole = job.measurement if job.ranks else whole
                if self._view is not None and found is not None:
                    self._view.settle(found)
                if self._options.output:
                    self._magics.shell.user_ns[self._options.output] = whole
                self._keep_and_show(whole, windows[-1], found, remarks, job)
            except (Exception, KeyboardInterrupt) as error:
                why = str(error) or "it was interrupted twice"
                self._magics.say(f"the measurement of this cell was lost: {why}")
            finally:
                self.end()

    def end(self) -> None:
        """Restore the settings, and stop the views. Does nothing after `close`."""
        left: list[str] = []
        self._stoppable = False
        with self.noting_interrupts():
            try:
                self._end_tuning()
                left = self._restore()
            finally:
                for view in filter(None, (self._view, self._clocks)):
                    view.end()
            if self in self._magics.begun:
                self._magics.begun.remove(self)
        for sentence in left:
            self._magics.say(sentence)

    def noting_interrupts(self) -> contextlib.AbstractContextManager[None]:
        """Record a first interrupt without ending the running step; a second one ends `close`."""
        from workbench._processes import interrupts_to

        return interrupts_to(self._note)

    def _note(self, *_: object) -> None:
        self._interrupted += 1
        if self._interrupted == 2 and self._stoppable:
            raise KeyboardInterrupt

    def _measure(self, window: Window, outcome: str) -> Measurement:
        settle = self._options.settle and outcome != "interrupted"
        measured: Measurement = self._meter.measure(window, settle=settle, outcome=outcome)
        uuids, why = self._uuids, self._meter.why
        if uuids is not None:
            return replace(measured, gpus=tuple(gpu for gpu in measured.gpus if gpu.uuid in uuids))
        if why:
            why = (f"{why}. To try a simulated one: %gpu simulate A100" if not self._session.devices else
                   "the GPUs were chosen while this was measured; choose them before, in a cell of its own")
        return replace(measured, notes=(*filter(None, [why]), *measured.notes))

    def _count(
        self, windows: list[Window], measured: list[Measurement], remarks: list[str]
    ) -> SegmentedIterations | None:
        """Add the iterations of each run to `measured`. An error here costs the iterations, not the
        measurement.
        """
        from workbench.measurement.iterations import pooled
        from workbench.measurement.repeats import with_iterations

        if self._interrupted or self._find_periods is False:
            return None
        try:
            found = [self._meter.count(window, m, detect_periods=self._find_periods)
                     for window, m in zip(windows, measured, strict=True)]
            known = [(each, m) for each, m in zip(found, measured, strict=True) if each is not None]
            measured[:] = map(with_iterations, measured, found)
            return pooled([each for each, _ in known], [m for _, m in known]) if known else None
        except Exception as error:
            remarks.append(f"the iterations of this cell could not be found ({error})")
            return None

    def _end_tuning(self) -> tuple[str, bool]:
        """Restore the GPU. Returns the saving, or the reason for none, and whether a GPU is not restored."""
        if self._tuning is None:
            return "", False
        self._tuning.end()
        result = self._tuning.tuner.end()
        self._tuning = None
        if self._clocks is not None:
            self._clocks.finish()
        return result.text, bool(result.not_restored)

    def _restore(self) -> list[str]:
        if self._view is not None:
            self._view.refuse_limits()  # first: one that comes later would stay
        return self._session.restore() if self._cell else []

    def _keep_and_show(
        self, whole: Measurement, window: Window, found: SegmentedIterations | None, remarks: list[str],
        job: JobMeasurement,
    ) -> None:
        """Store the result and show it, on top of the picture if there is a live view."""
        from IPython.display import display

        from workbench.errors import StoreError
        from workbench.jobs.combine import keep_job
        from workbench.jobs.report import tables, who_waits
        from workbench.logbook.report import Report
        from workbench.logbook.store import Store
        from workbench.measurement.session import keep

        store = Store()
        remarks += keep(whole, window, self._meter, store, found, kind=whole.kind)
        with contextlib.suppress(StoreError):  # whose reason `keep` has given
            keep_job(store, job)
        against = self._against_last_run(whole)
        if self._view is None and self._quiet and not remarks:
            return
        if self._view is None and job.waiting is not None and job.waiting.straggler:
            remarks += who_waits(job)[:1]  # which the view shows by itself
        shown = Report(whole, self._magics.tariff, remarks=remarks, against=against,
                       tables=tables(job) if job.ranks else ())
        if self._view is None:
            display(shown)
        else:
            self._view.finish(shown, end_s=window.end_s, waiting=job.waiting)

    def _against_last_run(self, whole: Measurement) -> str:
        """The change since the last complete run of this label in this kernel; empty if there was none.

        A tuned run is neither compared nor compared with: it reports its own saving.
        """
        from workbench.logbook.equal_work import describe_change

        if self._tuned or not whole.label:
            return ""
        runs, code = self._magics.last_runs, self._magics.cells.get(self._label)
        last, last_code = runs.get(whole.label, (None, None))
        if whole.outcome == "ok" and whole.energy_j is not None:
            runs[whole.label] = whole, code
        if last is None:
            return ""
        change = describe_change(last, whole)
        other_code = code != last_code and "%" in change
        return change + " (the code of the cell has changed)" * other_code

    # --repeat

    def _repeat(
        self, again: Callable[[], bool] | None, measured: list[Measurement], windows: list[Window],
        remarks: list[str],
    ) -> None:
        """Repeat the run as requested; successful runs are added to `measured` and `windows`."""
        times = self._options.repeat
        if again is None:
            remarks.append("--repeat does not work with top-level await; the cell was measured once")
            return
        for number in range(2, times + 1):
            window = self._once_more(again)
            if window is None:
                how = "was interrupted" if self._interrupted else "ended with an error"
                remarks.append(f"run {number} of {times} {how} and is left out")
                break
            windows.append(window)
            measured.append(self._measure(window, "ok"))

    def _once_more(self, again: Callable[[], bool]) -> Window | None:
        """The closed window of another run; None if it failed."""
        if self._interrupted:
            return None
        from workbench._processes import interrupts_to

        window, went_well = self._meter.open(self._label, sync=self._sync), False
        try:
            with interrupts_to(signal.default_int_handler):
                went_well = again()
        except KeyboardInterrupt:
            self._interrupted += 1
        closed = self._meter.close(window, sync=self._sync)
        return closed if went_well and not self._interrupted else None
