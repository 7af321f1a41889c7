"""The live view of a running cell: power, limit, SM clock and utilisation of its GPUs, a Stop button, a limit
slider.

    view = PowerView(recorder, devices, label="train", set_power_limit=change, stop=interrupt_cell)
    view.show()
    view.start()
    ...                                       # the cell runs
    view.finish(Report(measurement))          # the view shows the result, and a picture of it is stored
"""

from __future__ import annotations

import contextlib
import html
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....device.protocol import Device
from ....errors import UsageError, describe_error
from ....jobs.records import JobWaiting
from ....jobs.report import answer, own_names
from ....logbook.report import format_duration
from ....measurement.recorder import Hold, Recorder
from ....measurement.sampler import REST_AFTER_S
from ..._core import theme
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.persistent import Bundle, answered, captioned
from ..._core.svg import Picture, titled
from ..job.figure import draw_lanes
from ..period.figure import draw_period
from ..period.follower import PeriodFollower, PeriodMessage
from .conditions import conditions
from .model import MOST_MARKS, WatchedGpu, named_phases
from .series import COLUMNS, WINDOW_S, Rows, packed
from .svg import VerticalMark, plots_of, trace_picture

if TYPE_CHECKING:
    from ....periods.segment import SegmentedIterations




class PowerView(LivePanel):
    """Shows GPUs while a program runs on them. Times in calls are on the recorder's clock.

    Args:
        recorder: Records the devices already.
        devices: The devices to show.
        label: Name of the work, for the title.
        start_s: Start of the time axis; None is now.
        stop: Called by the Stop button (`base.interrupt_cell` interrupts the cell); None shows no button.
        set_power_limit: Takes a UUID and watts, returns the watts applied; None shows no slider.
        period: Follow the training iteration of the busiest GPU and show it too.
        iteration_s: Returns the seconds of an iteration if another object follows it; None if unknown.
    """

    poll_s = 0.2  # half as often as the sensor refreshes: drawing costs the cell its interpreter
    keeps_error = ("stop", "follow", "level", "limit")
    _esm = script("power")

    def __init__(
        self, recorder: Recorder, devices: Sequence[Device], *, label: str = "", start_s: float | None = None,
        stop: Callable[[], None] | None = None, set_power_limit: Callable[[str, float], float] | None = None,
        period: bool = True, iteration_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.recorder, self.devices, self.label = recorder, tuple(devices), label
        self.start_s = recorder.clock() if start_s is None else start_s
        self._hold: Hold | None = recorder.hold(self.start_s, awake=False)
        self._stop, self._iteration_s = stop, iteration_s
        self._set_power_limit = set_power_limit
        self._limiting = threading.RLock()
        self.takes_limits = set_power_limit is not None  # with that lock held
        self.stopped = False  # by its button
        self._gpus = [
            WatchedGpu(recorder, device, number, self.start_s) for number, device in enumerate(self.devices)
        ]
        self._marks: deque[VerticalMark] = deque(maxlen=MOST_MARKS)
        self._marks_sent: list[list[Any]] = []
        self._recorder_problem = ""
        self._end_s: float | None = None
        self._result: dict[str, str] = {}  # HTML, when it has ended
        self._waiting: JobWaiting | None = None
        self._settled: SegmentedIterations | None = None
        self.follows = period  # until it fails
        self._follower = PeriodFollower(recorder, self.devices, self.start_s)
        super().__init__(live=True)

    # for the caller

    def mark(self, time_s: float, text: str) -> None:
        """Draw a vertical line with a few words at a time."""
        with self._lock:
            self._marks.append(VerticalMark(time_s - self.start_s, text))

    def refuse_limits(self) -> None:
        """Take no more power limits. A limit being set is active when this returns."""
        with self._limiting:
            self.takes_limits = False

    def end(self) -> None:
        self.refuse_limits()
        super().end()
        self._follower.end()

    def settle(self, found: SegmentedIterations) -> None:
        """Show these iterations in the picture, as the report does, and the phases that a training named."""
        self._settled = found
        for at_s, kind in named_phases(found.frame):
            self.mark(at_s, kind)

    def finish(
        self, result: Any = "", *, end_s: float | None = None, waiting: JobWaiting | None = None
    ) -> None:
        """Show the result in the view, stop publishing, and store a picture of both in the notebook.

        Args:
            result: A sentence, or an object that displays itself, such as a report of a measurement.
            end_s: End of the picture; None is now.
            waiting: Which of several GPUs waits for which; shown as lanes above the power.
        """
        if self._end_s is not None:
            return
        self._waiting = waiting if len(self.devices) > 1 else None
        self._end_s = self.recorder.clock() if end_s is None else end_s
        with self._lock:
            try:
                if self.follows:
                    self._follower.conclude(self._end_s, self._settled)
            except Exception as error:
                self._lose(error)
            self.drain()
        self.end()
        with self._lock:
            for gpu in self._gpus:
                gpu.series.cut(self._end_s - self.start_s)
        self._result = answered(result)
        self._result["answer"] += self._who_waits()
        more = ""
        with contextlib.suppress(Exception):  # a fold less, and no result lost
            more = conditions([gpu.trace(self._end_s) for gpu in self._gpus], self.start_s, self._end_s)
        self._result["details"] += more
        self._hold = None  # the recorder may forget
        if self._greeted:
            with self._report_errors():
                self._send_all()
        self.stay(self._stored(result, more))

    def _stored(self, result: Any, more: str) -> Bundle:
        """The result with its pictures, for a notebook without a kernel."""
        if not self._filled():
            return captioned("", result, self._problem)
        below = self._trace(only=COLUMNS[3:], heading=False)
        if self.follows and self._follower.number is not None:
            draw_period(below, self._follower.view, self._follower.number)
        power = self._trace(only=COLUMNS[1:2], heading=isinstance(result, str)).svg()
        power = self._who_waits() + self._lanes().svg() * bool(self._lanes().described()) + power
        return captioned(power, result, self._problem, below.svg() + more)

    def _who_waits(self) -> str:
        """Which GPU the others wait for, as HTML; empty where it was not looked for."""
        if self._waiting is None:
            return ""
        return f"<div><b>{html.escape(answer(self._waiting, own_names(self._waiting.gpus)))}</b></div>"

    def _lanes(self) -> Picture:
        """The GPUs over one iteration; without frames where it is not known who waits."""
        picture = Picture("GPUs over one iteration", size=0)
        picture.y = 0.0
        if self._waiting is not None and self._waiting.known:
            draw_lanes(picture, self._waiting, own_names(self._waiting.gpus))
        return picture

    def _filled(self) -> bool:
        return any(len(gpu.series.rows) > 1 for gpu in self._gpus)  # a cell of some ms has nothing to draw

    def svg(self) -> str:
        with self._lock:
            if self._end_s is None:
                self.drain()
            picture = self._trace()
            if self.follows and self._follower.number is not None:
                draw_period(picture, self._follower.view, self._follower.number)
            return picture.svg()

    def _trace(self, **parts: Any) -> Picture:
        spans = self._follower.view.spans if self.follows else ()
        lines = [gpu.line for gpu in self._gpus]
        return trace_picture(self.title(), lines, self._marks, self._elapsed_s(), spans,
                             iteration_s=self._iteration_s() or 0.0, **parts)

    def html(self) -> str:
        if self._filled():
            return self.svg()
        # The height of the view in panel.css, so that the cell's printed output stays in place.
        text = "Loading the live view. If this text stays, the cell was running when the notebook was saved."
        return f"<div style='height:350px'><b>{html.escape(self.title())}</b><br>{text}</div>"

    def title(self) -> str:
        """The label and the GPUs in words; simulated ones are marked."""
        names = sorted({device.name for device in self.devices})
        what = f"{len(self.devices)} GPUs: {', '.join(names)}" if len(self.devices) > 1 else names[0]
        what = titled(what, any(device.simulated for device in self.devices))
        return f"{self.label} · {what}" if self.label else what

    # for the views

    def summary(self) -> str:
        return f"Live power of {self.title()}"

    def snapshot(self) -> Message:
        self.drain()
        plots = plots_of([gpu.line.name for gpu in self._gpus])
        header = {
            "title": self.title(), "label": self.label, "gpus": [gpu.about() for gpu in self._gpus],
            "plots": [plot._asdict() | {"gpus": [*plot.gpus]} for plot in plots],
            "theme": theme.VARIABLES, "window": WINDOW_S, "stop": self._stop is not None,
            "slider": self._set_power_limit is not None, "marks": self._mark_rows(),
            "follows": self.follows, "result": self._result or None, "lanes": self._lanes().described(),
            **self._numbers(),
        }
        known = self.follows and self._follower.number is not None
        period = self._follower.message(whole=True) if known else None
        return _message(header, [gpu.series.rows for gpu in self._gpus], period)

    def changes(self) -> Message | None:
        if self._end_s is None and self.quiet() and not self.due():
            return None
        self._keep_awake()
        new, marks = self._gather(), self._mark_rows()
        before, self._marks_sent = self._marks_sent, marks
        self._watch_recorder()
        period = self._follower.message(whole=self._end_s is not None) if self._followed() else None
        if self._end_s is None and marks == before and period is None and not any(map(len, new)):
            return None
        header = {"kind": "news", **({"marks": marks} if marks != before else {}), **self._numbers()}
        return _message(header, new, period)

    def drain(self) -> None:
        self._gather()
        self._followed()

    def on_message(self, kind: str, content: Content) -> None:
        if kind == "stop" and self._stop is not None:
            if self.running:
                self.stopped = True
                self._stop()
        elif kind == "follow":
            with self._lock:
                self._follower.choose(field(content, "gpu", "int"))
        elif kind == "level":
            with self._lock:
                self._follower.choose_level(field(content, "name", "str"))
        elif kind == "limit" and self._set_power_limit is not None:
            self._change_limit(self._set_power_limit, field(content, "uuids", "[str]"),
                               field(content, "watts", "float"))

    # inside

    def _gather(self) -> list[Rows]:
        """Add new rows; returns them, per device, in the form for views."""
        return [gpu.gather(self._now_s()) for gpu in self._gpus]

    def _followed(self) -> bool:
        """Follow the iterations; true if views need an update."""
        if not self.follows or self._end_s is not None:
            return self.follows
        try:
            return self._follower.update(self.recorder.clock())
        except Exception as error:  # the power is shown anyway
            self._lose(error)
            return False

    def _lose(self, error: Exception) -> None:
        """Continue without the period part."""
        self._follower.end()
        self.follows = False
        self.report_error(f"the iterations are no longer followed: {describe_error(error)}")

    def _mark_rows(self) -> list[list[Any]]:
        return [[round(mark.time_s, 3), mark.text] for mark in self._marks]

    def _numbers(self) -> Content:
        return {"elapsed": round(self._elapsed_s(), 3), "energy": [gpu.energy_j for gpu in self._gpus],
                "iteration": self._iteration_s()}

    def _elapsed_s(self) -> float:
        return self._now_s() - self.start_s

    def _now_s(self) -> float:
        return self.recorder.clock() if self._end_s is None else self._end_s

    def _keep_awake(self) -> None:
        """Keep the sampler at its full rate while a browser shows the view; mark pauses of the sampling."""
        if self._end_s is None and not self.absent():
            idle_s = self.recorder.wake()
            if idle_s >= REST_AFTER_S:
                self.mark(self.recorder.clock(), f"sampling was paused: no view was open for "
                                                 f"{format_duration(idle_s)}")

    def _watch_recorder(self) -> None:
        """Report errors of the recorder's readings, and clear the report when they are over."""
        errors = [(device.index, self.recorder.error(device.uuid)) for device in self.devices]
        problem = "; ".join(f"GPU {index}: {error}" for index, error in errors if error)
        if problem != self._recorder_problem:
            self._recorder_problem = problem
            self.report_error(problem)

    def _change_limit(
        self, change: Callable[[str, float], float], uuids: Sequence[str], asked_w: float
    ) -> None:
        """Set a limit, on one GPU or several, and send the active limits to the views."""
        applied: dict[str, float] = {}
        try:
            with self._limiting:
                if not self.takes_limits:
                    why = "the cell has ended, and its initial limit is restored"
                    raise UsageError(f"{asked_w:g} W was not set: {why}")
                for uuid in uuids:
                    applied[uuid] = change(uuid, asked_w)
            self.report_error("")
        finally:
            self._say({"kind": "limit", "asked": asked_w, "applied": applied})


def _message(header: Content, tables: Sequence[Rows], period: PeriodMessage | None = None) -> Message:
    """Words, and all tables in one buffer; those of the period part come last."""
    header = {**header, "counts": [len(table) for table in tables]}
    if period is None:
        return header, [packed(tables)]
    return {**header, "period": period[0]}, [packed([*tables, period[1]])]
