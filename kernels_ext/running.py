"""What is being measured: a cell between two hooks, or the statement of a `%energy` line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from .cells import Options

if TYPE_CHECKING:
    from workbench.periods.segment import SegmentedIterations
    from workbench.records import Measurement, Window
    from workbench.tuning.driver import TunerThread

    from .magics import EnergyMagics

T = TypeVar("T")


class Running:
    """One thing that is being measured: `open` it, let it run, `close` it; `end` puts back what it changed.

    An interrupt at its end costs precision and repetitions, never the measurement.

    Args:
        magics: Says, shows and configures.
        options: What the line asks for.
        label: Its name in the log.
        cell: Whether it is a cell, which may have a live view; what that has set is put back at its end.
    """

    def __init__(self, magics: EnergyMagics, options: Options, label: str, *, cell: bool) -> None:
        self._magics, self._options, self._label, self._cell = magics, options, label, cell
        self._view: Any = None
        self._window: Window | None = None
        self._uuids: tuple[str, ...] | None = None
        self._interrupted = False
        self._session = magics.session
        self._meter = self._session.meter
        self._sync = magics.sync if options.sync is None else options.sync
        self._quiet = bool(magics.quiet if options.quiet is None else options.quiet)
        self._find_periods = options.period if options.period is not None or magics.period else False
        self._hold: Any = None  # of the trace, until it was stored
        self._tuning: TunerThread | None = None
        self._tuned = False  # whether a tuner may have changed settings
        self._must_tell = False  # that a GPU could not be put back, also to who wants to see nothing
        self._clocks: Any = None  # the view of the tuning

    def open(self) -> None:
        """Begin. What is raised in here leaves nothing behind."""
        try:
            self._prepare()
            if self._meter.recorder is not None:
                self._hold = self._meter.recorder.hold(self._meter.clock())
            if self._options.tune:
                self._begin_tuning()
            self._window = self._meter.open(self._label, sync=self._sync)
        except BaseException:
            self.end()
            raise

    def _prepare(self) -> None:
        magics = self._magics
        for message in self._session.messages:
            magics.say(message)
        self._session.messages.clear()
        self._uuids = magics.chosen(self._options.gpus)
        self._meter = self._session.meter  # a new one where a simulated GPU was named first here
        if self._shows_live() and self._meter.recorder is not None:
            self._view = magics.started_view(self._live_view)

    def _live_view(self) -> Any:
        from workbench.panels._core.jupyter import interrupt_cell
        from workbench.panels._views.power.panel import PowerView

        session, uuids = self._session, self._uuids
        devices = [device for device in session.devices if uuids is None or device.uuid in uuids]
        period = self._find_periods is not False and not self._options.tune  # the tuner's view has it
        return PowerView(self._meter.recorder, devices, label=self._label, stop=interrupt_cell,
                         set_power_limit=session.set_power_limit, period=period)

    def _shows_live(self) -> bool:
        magics, wanted = self._magics, self._options.live
        live = magics.live if wanted is None else wanted
        return self._cell and live and not self._quiet and magics.has_front_end

    def _begin_tuning(self) -> None:
        """Tune what the cell runs; where that cannot be, a message says why and the cell runs untuned."""
        from workbench.errors import WorkbenchError
        from workbench.tuning.driver import TunerThread
        from workbench.tuning.state_machine import Tuner

        options, magics = self._options, self._magics
        if options.gpus is not None and self._uuids is None:  # no other GPU than the named one is changed
            magics.say(f"not tuned: --gpus {options.gpus} names no GPU of this kernel")
            return
        try:
            tuner = Tuner(self._meter, uuids=self._uuids, label=self._label, **(options.tune or {}))
        except WorkbenchError as error:
            magics.say(f"not tuned: {error}")
            return
        self._tuning, self._tuned = TunerThread(tuner), True
        if tuner.ended:  # the reason comes with the report
            return
        if self._shows_live():
            from workbench.panels._views.clocks.panel import ClocksPanel

            self._clocks = magics.started_view(lambda: ClocksPanel(tuner, live=True))

    def close(self, outcome: str, again: Callable[[], bool] | None = None, remark: str = "") -> None:
        """End ("ok", "error" or "interrupted"), store and show; `again` runs it once more, and tells whether
        that went well.
        """
        from workbench.measurement.repeats import repeated, with_iterations

        assert self._window is not None
        remarks = [remark] if remark else []
        try:
            window = self._close(self._window)
            measured = [self._measure(window, "interrupted" if self._interrupted else outcome)]
            windows = [window]
            if outcome == "ok" and again is not None:
                self._repeat(again, measured, windows, remarks)
            window = windows[-1]
            tuned = self._end_tuning()
            remarks += [tuned] if tuned and (not self._quiet or self._must_tell) else []
            remarks += self._put_back()
            found = self._count(windows, measured, remarks)
            whole = with_iterations(repeated(measured), found)
            whole = replace(whole, kind="tuned cell" if self._tuned else "cell")
            if tuned:
                whole = replace(whole, notes=(*whole.notes, tuned))
            with contextlib.suppress(Exception):  # a remark less, and no cell ends of it
                whole = replace(whole, notes=(*whole.notes, *self._meter.waste(window, whole, found)))
            if self._view is not None and found is not None:
                self._view.settle(found)
            if self._options.output:
                self._magics.shell.user_ns[self._options.output] = whole
            remarks += self._keep(whole, window, found)
            self._show(whole, window, remarks)
        finally:
            self.end()

    def end(self) -> None:
        """Put back what was set, and stop the live view. Nothing is left to do after `close`."""
        left: list[str] = []
        try:
            self._end_tuning()
            left = self._put_back()
        finally:
            if self._view is not None:
                self._view.end()
            if self._clocks is not None:
                self._clocks.end()
        for sentence in left:
            self._magics.say(sentence)

    # steps, each once more where it was interrupted

    def _close(self, window: Window) -> Window:
        return self._insist(
            lambda: self._meter.close(window, sync=self._sync),
            lambda: self._meter.close(window, sync=False),  # who interrupts does not wait for queued work
        )

    def _measure(self, window: Window, outcome: str) -> Measurement:
        settle = self._options.settle and outcome != "interrupted"
        measurement = self._insist(
            lambda: self._meter.measure(window, settle=settle, outcome=outcome),
            lambda: self._meter.measure(window, settle=False, outcome=outcome),
        )
        return self._magics.only(measurement, self._uuids)

    def _count(
        self, windows: list[Window], measured: list[Measurement], remarks: list[str]
    ) -> SegmentedIterations | None:
        """The iterations of all runs, which `measured` has afterwards, each run its own. What goes wrong here
        costs them, and not the measurement.
        """

        def act() -> SegmentedIterations | None:
            from workbench.measurement.iterations import pooled
            from workbench.measurement.repeats import with_iterations

            found = [
                self._meter.count(window, m, detect_periods=self._find_periods)
                for window, m in zip(windows, measured, strict=True)
            ]
            known = [(each, m) for each, m in zip(found, measured, strict=True) if each is not None]
            measured[:] = map(with_iterations, measured, found)
            return pooled([each for each, _ in known], [m for _, m in known]) if known else None

        if self._interrupted or self._find_periods is False:
            return None
        try:
            return self._insist(act, lambda: None)
        except Exception as error:
            remarks.append(f"the iterations of this cell could not be found ({error})")
            return None

    def _end_tuning(self) -> str:
        """The GPU as it was; returns what tuning has saved, or why it has not."""

        def act() -> str:
            if self._tuning is None:
                return ""
            self._tuning.end()
            result = self._tuning.tuner.end()
            text, self._must_tell = result.text, bool(result.left)
            self._tuning = None  # not before: who is interrupted in here tries again
            if self._clocks is not None:
                self._clocks.finish("")
            return text

        return self._insist(act, act)

    def _put_back(self) -> list[str]:
        if not self._cell:
            return []

        def act() -> list[str]:
            if self._view is not None:
                self._view.refuse_limits()  # first: one that comes later would stay
            return self._session.restore()

        return self._insist(act, act)

    def _keep(self, whole: Measurement, window: Window, found: SegmentedIterations | None) -> list[str]:
        def act() -> list[str]:
            from workbench.logbook.store import Store
            from workbench.measurement.session import keep

            frame = found.frame if found is not None and found.summary.count else None
            return keep(whole, window, self._meter, Store(), frame, kind=whole.kind)

        return self._insist(act, act)

    def _show(self, whole: Measurement, window: Window, remarks: list[str]) -> None:
        """The result, on top of the picture where there is a live view."""
        against = self._against_last_run(whole)

        def act() -> None:
            from IPython.display import display

            from workbench.logbook.report import Report

            if self._view is None and self._quiet and not remarks:
                return
            shown = Report(whole, self._magics.tariff, remarks=remarks, against=against)
            if self._view is None:
                display(shown)
            else:
                self._view.finish(shown, end_s=window.end_s)

        self._insist(act, act)

    def _against_last_run(self, whole: Measurement) -> str:
        """What changed since the last complete run of this label in this kernel; empty where there was none.

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

    def _insist(self, act: Callable[[], T], instead: Callable[[], T]) -> T:
        try:
            return act()
        except KeyboardInterrupt:
            self._interrupted = True
            return instead()

    # --repeat

    def _repeat(
        self, again: Callable[[], bool], measured: list[Measurement], windows: list[Window],
        remarks: list[str],
    ) -> None:
        """Run it again as often as asked; good runs are added to `measured` and `windows`."""
        times = self._options.repeat
        for number in range(2, times + 1):
            window = self._once_more(again)
            if window is None:
                how = "was interrupted" if self._interrupted else "ended with an error"
                remarks.append(f"run {number} of {times} {how} and is left out")
                break
            windows.append(window)
            measured.append(self._measure(window, "ok"))

    def _once_more(self, again: Callable[[], bool]) -> Window | None:
        """The closed window of another run; None where it did not go well."""
        if self._interrupted:
            return None
        try:
            window = self._meter.open(self._label, sync=self._sync)
            went_well = again()
        except KeyboardInterrupt:
            self._interrupted = True
            return None
        closed = self._close(window)
        return closed if went_well and not self._interrupted else None
