"""Inspects the iterations of a recorded trace: power, the folded iteration, the spectrum.

    workbench.panels.period(measurement)          a cell's trace, by its measurement, id or label
    workbench.panels.period(frame)                any trace, including one from `workbench.read_log`

In JupyterLab it is a widget: zoom into the power, choose a level to fold, or enter your own period.
Elsewhere, and with `live=False`, it is a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from .... import trace as traces
from ....errors import MeasurementError, UsageError
from ....logbook.store import Store
from ....measurement.iterations import detect, from_stored
from ....periods.segment import SegmentedIterations
from ....records import DetectedPeriod, Measurement, Periods
from ..._core import theme
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.svg import titled
from ..power.series import MOST_ROWS, Series, packed, rows_of, thin
from ..power.svg import TraceLine, trace_picture
from .figure import draw_period
from .follower import message
from .model import OWN, PeriodView, period_view


class PeriodPanel(LivePanel):
    """A trace with its iterations, for inspection.

    Args:
        frames: The trace of each GPU by name.
        title: Title of the panel.
        periods: The periods of each, if they are known already.
        found: The iterations of the busiest one, if they are known already.
        simulated: Whether the trace is simulated.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.
    """

    keeps_error = ("follow", "level", "seconds")
    _esm = script("inspect")

    def __init__(
        self, frames: Mapping[str, pl.DataFrame], *, title: str = "",
        periods: Mapping[str, Periods] | None = None, found: SegmentedIterations | None = None,
        simulated: bool = False, live: bool | None = None,
    ) -> None:
        if not frames:
            raise UsageError("no trace to show")
        self.names = list(frames)
        self.label = title
        self.simulated = simulated or any("(simulated)" in name for name in self.names)
        self._frames = [_sorted(frame, name) for name, frame in frames.items()]
        self._known = dict(periods or {})
        self._number = max(range(len(self.names)), key=lambda number: _mean_w(self._frames[number]))
        self._found, self._busiest = found, self._number
        if found is not None and found.periods is not None:
            self._known.setdefault(self.names[self._number], found.periods)
        self._level: DetectedPeriod | None = None
        self._viewed: tuple[Any, PeriodView] | None = None
        super().__init__(live=live)
        self._ended.set()  # the trace is complete: the panel answers, and publishes nothing by itself

    # for the caller

    @property
    def periods(self) -> Periods:
        """The periods of the shown GPU."""
        name = self.names[self._number]
        if name not in self._known:
            self._known[name] = detect(self._frames[self._number])
        return self._known[name]

    @property
    def view(self) -> PeriodView:
        """The view of the shown GPU."""
        key = (self._number, self._level)
        if self._viewed is None or self._viewed[0] != key:
            frame = self._frames[self._number]
            found = self._found if self._number == self._busiest else None
            view = period_view(frame, self.periods, start_s=self._start_s(), level=self._level, known=found)
            self._viewed = (key, view)
        return self._viewed[1]

    def choose(self, number: int) -> None:
        """Show another GPU."""
        if not 0 <= number < len(self.names):
            raise UsageError(f"GPU {number} is not in this trace; there are {len(self.names)}, from 0")
        self._number, self._level = number, None

    def choose_level(self, name: str) -> None:
        """Fold another of the detected levels."""
        found = next((level for level in self.periods.levels if level.name == name), None)
        if found is None:
            known = ", ".join(level.name for level in self.periods.levels)
            raise UsageError(f"level {name!r} not found; available: {known or 'none'}")
        self._level = found

    def choose_seconds(self, seconds: float) -> None:
        """Fold at your own period."""
        length_s = traces.duration_s(self._frames[self._number])
        if not 0 < seconds <= length_s / 2:
            most = f"use at most {length_s / 2:.3g} s"
            what = f"a period of {seconds:g} s does not fit twice into {length_s:.3g} s of trace"
            raise UsageError(f"{what}; {most}")
        start_s = self.periods.iteration.phase_s if self.periods.iteration else self._start_s()
        self._level = DetectedPeriod(OWN, seconds, 0.01 * seconds, 0.0, start_s, 0.0)

    def svg(self) -> str:
        number, series = self._number, self._series()
        end_s = float(series.rows[-1, 0]) if len(series.rows) else 1.0
        line = TraceLine(number, self.names[number], series.rows, series.seconds)
        picture = trace_picture(self.title(), [line], (), end_s, self.view.spans)
        draw_period(picture, self.view, number)
        return picture.svg()

    def title(self) -> str:
        what = self.names[self._number]
        text = " · ".join(part for part in (self.label, what) if part) or "power trace"
        return titled(text, self.simulated)

    # showing

    def summary(self) -> str:
        return "\n".join([self.title(), self.view.headline, *self.view.details])

    # for the views

    def about(self) -> Content:
        names = enumerate(self.names)
        gpus = [{"index": n, "name": name, "colour": theme.colour(n)} for n, name in names]
        return {"gpus": gpus, "simulated": self.simulated}

    def news(self, *, whole: bool = False) -> Message:
        rows = self._series().rows
        period, spans = message(self.view, self._number)
        content = {"kind": "news", "title": self.title(), "count": len(rows), "period": period}
        return content, [packed([rows[:, :2], spans])]

    def on_message(self, kind: str, content: Content) -> None:
        with self._lock:
            if kind == "follow":
                self.choose(field(content, "gpu", "int"))
            elif kind == "level":
                self.choose_level(field(content, "name", "str"))
            elif kind == "seconds":
                self.choose_seconds(field(content, "seconds", "float"))
            else:
                return
            self.tell()
        self.report_error("")

    # inside

    def _start_s(self) -> float:
        times = self._frames[self._number]["time_s"]
        return float(times[0]) if len(times) else 0.0

    def _series(self) -> Series:
        """The power of the shown GPU, seconds since its start, gaps marked."""
        table = rows_of(self._frames[self._number], self._start_s())
        steps = np.diff(table[:, 0])
        series = Series(max(0.5, 6 * float(np.median(steps)) if len(steps) else 0.5))
        series.rows = thin(series.append(table), MOST_ROWS // 2)
        return series


def period(
    what: pl.DataFrame | Mapping[str, pl.DataFrame] | Measurement | str | None = None, *,
    live: bool | None = None, store: Store | None = None,
) -> PeriodPanel:
    """Inspect the iterations of a trace, or of a measurement by object, id or label.

    Args:
        what: A frame as in `trace.SCHEMA` (`readers` makes them from CSV), several by GPU, a measurement, or
            its id or label. None takes the newest measurement that has a trace.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.
        store: The store of the measurements; this user's by default.

    Returns:
        The panel, which the last line of a cell displays.

    Raises:
        UsageError: No trace; the message lists what the object has.
    """
    if isinstance(what, pl.DataFrame):
        return PeriodPanel(_by_gpu(what), live=live)
    if isinstance(what, Mapping):
        return PeriodPanel(what, live=live)
    store = store or Store()
    measurement = _newest(store) if what is None else store.find(what) if isinstance(what, str) else what
    if not isinstance(measurement, Measurement):
        kind = type(what).__name__
        raise UsageError(f"expected a trace, a measurement, or its id or label, got {kind}")
    frame = store.trace(measurement.id)
    if frame is None:
        name = measurement.label or measurement.id
        raise UsageError(f"no trace of {name} is stored: the run was too short, or newer traces replaced it")
    several = len(measurement.gpus) > 1
    names = {
        gpu.uuid: f"GPU {number}, {gpu.name}" if several else gpu.name
        for number, gpu in enumerate(measurement.gpus)
    }
    frames = {names.get(uuid, uuid): part for uuid, part in _by_gpu(frame).items()}
    try:
        found = from_stored(frame, store.iterations(measurement.id), measurement)
    except MeasurementError:  # too few readings; the panel shows its own message
        found = None
    label, simulated = measurement.label, measurement.simulated
    return PeriodPanel(frames, title=label, found=found, simulated=simulated, live=live)


def _newest(store: Store) -> Measurement:
    for run in reversed(store.log()["id"].to_list()):
        if store.trace(run) is not None:
            return store.find(run)
    raise UsageError("no measurement has a power trace yet; write %%energy above a cell to record one")


def _by_gpu(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    if "uuid" not in frame.columns:
        return {"": frame}
    parts = frame.partition_by("uuid", as_dict=True, maintain_order=True, include_key=False)
    return {str(uuid): part for (uuid,), part in parts.items()}


def _sorted(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    missing = [column for column in ("time_s", "power_w") if column not in frame.columns]
    if missing:
        lacks, has = " and no ".join(missing), ", ".join(frame.columns) or "none"
        which = name or "this one"
        raise UsageError(f"a trace needs the columns time_s and power_w; {which} has no {lacks}, only {has}")
    return frame.drop_nulls("time_s").sort("time_s")


def _mean_w(frame: pl.DataFrame) -> float:
    mean = frame["power_w"].drop_nulls().drop_nans().mean()
    return -1.0 if mean is None else float(mean)  # type: ignore[arg-type]
