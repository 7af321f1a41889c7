"""The picture of a frontier, for a browser and for the saved notebook."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from ...._html import table
from ....search.tradeoff import Z95, FrontierAnalysis
from ..._core.prefixes import prefixed
from ..._core.svg import WIDTH, Described, Frame, Pen, Picture, Span, padded, page
from ..._core.theme import colour
from . import model
from .model import ETA, FrontierChoice

HEIGHT = WIDTH * 2 // 5
MOST = 1500  # dominated points that are drawn: any number from 500 to 3000 looks the same
ONE, CHOSEN, SAVED = colour(0), colour(1), colour(2)
LEGEND = "; hollow: predicted, pale: dominated, square: default, bars: 95 %"
HEADS = ("point", "time", "energy", "on the frontier", "known")


class Plane:
    """Energy over time in the units of its axes: seconds and joules, or per cent of the default.

    Args:
        analysis: The frontier.
        relative: Axes in per cent of the default, if there is one.
        whole: All points, not only those near the frontier.
        each: Unit of work of the axes, with its article: "a sample".
    """

    def __init__(
        self, analysis: FrontierAnalysis, *, relative: bool = False, whole: bool = False, each: str = ""
    ) -> None:
        self.analysis = analysis
        points = analysis.points.select("time_s", "energy_j").to_numpy()
        near = analysis.front if analysis.reference is None else [*analysis.front, analysis.reference]
        ends = points if whole else points[near]
        low, high = ends.min(axis=0), ends.max(axis=0)
        if relative and analysis.reference is not None:
            self.scales, self.shift = points[analysis.reference] / 100, 100.0
            self.names = ("time against the default (%)", "Energy against the default (%)")
        else:
            (time, seconds), (energy, joules) = prefixed(high[0], "s"), prefixed(high[1], "J")
            self.scales, self.shift = np.array([time, energy]), 0.0
            self.names = (f"time ({seconds}) {each}".rstrip(), f"Energy ({joules}) {each}".rstrip())
        self.places = self.at(points)
        self.spans = [padded(*span, least=span[1]) for span in self.at(np.array([low, high])).T.tolist()]

    def at(self, points: Any) -> np.ndarray:
        """Times (s) and energies (J) in units of the axes."""
        places: np.ndarray = np.asarray(points) / self.scales - self.shift
        return places

    def place(self, row: int) -> Span:
        """Where a point is."""
        x, y = self.places[row]
        return float(x), float(y)

    def draw(self, picture: Picture, choice: FrontierChoice | None = None, *, points: bool = True) -> None:
        """Draw the points with their names, and the parts that a choice moves.

        Args:
            picture: The picture to draw into.
            choice: None leaves out its parts.
            points: False leaves out the points.
        """
        with picture.row(HEIGHT):
            frame = picture.frame(HEIGHT, *self.spans)
            frame.axes(self.names[1] + LEGEND, 6)
            frame.below(self.names[0], 8)
            if points:
                self._points(frame)
            if choice is not None:
                self._choice(frame, choice)
            if points:
                self._names(frame, None if choice is None else choice.row)

    def described(self, choice: FrontierChoice | None = None) -> list[list[Described]]:
        """For a browser: the points, or only the parts that a choice moves."""
        picture = Picture("")
        self.draw(picture, choice, points=choice is None)
        return picture.described()

    def job(self, job: dict[str, float]) -> list[Described]:
        """The layers of a running job's own place."""
        frame = Picture("").frame(HEIGHT, *self.spans)
        x, y = self.at((job["time"], job["energy"])).tolist()
        frame.mark(x, y, 8, Pen(SAVED), "star", fill=True)
        frame.label(x, y, "this job, now", spread=True)
        return list(frame.described()["layers"])

    def _points(self, frame: Frame) -> None:
        analysis = self.analysis
        measured, on = analysis.points["measured"].to_list(), set(analysis.front.tolist())
        places = enumerate(self.places.tolist())
        inside = [row for row, place in places if frame.holds(*place) and row not in on]
        shown = inside[:: math.ceil(len(inside) / MOST) or 1]
        pale = [row for row in shown if measured[row]]
        frame.cloud(self.places[pale].tolist(), ONE, width=5, opacity=0.38, hover=self._hover(pale))
        for row in shown:
            if not measured[row]:
                x, y = self.place(row)
                frame.mark(x, y, 3, Pen(ONE, opacity=0.7), hover=self._hover(row))
        front = [(row, *self.place(row)) for row in analysis.front.tolist()]
        frame.line([x for _, x, _ in front], [y for *_, y in front], Pen(ONE, opacity=0.55), steps=True)
        errors = analysis.frontier.select("time_se_s", "energy_se_j").fill_null(0.0).to_numpy()
        for (row, x, y), (across, up) in zip(front, Z95 * errors / self.scales, strict=True):
            frame.errors(x, y, across, up, Pen(ONE, opacity=0.6))
            frame.dot(x, y, ONE, hollow=not measured[row], hover=self._hover(row))
        if analysis.reference is not None and frame.holds(*self.place(analysis.reference)):
            x, y = self.place(analysis.reference)
            frame.mark(x, y, 6, Pen(width=1.6), "square")

    def _hover(self, rows: int | list[int]) -> dict[str, Any]:
        """Texts of a point, or of each of several."""
        if isinstance(rows, int):
            return dict(zip(HEADS, model.known_of(self.analysis, rows), strict=True))
        columns = zip(*(model.known_of(self.analysis, row) for row in rows), strict=True)
        return dict(zip(HEADS, map(list, columns), strict=True)) if rows else {}

    def _choice(self, frame: Frame, choice: FrontierChoice) -> None:
        """The area within the slowdown limit, the line of equal cost, and the ring of the choice."""
        analysis, bound, (start, end) = self.analysis, choice.max_slowdown, frame.x_span
        if bound is not None and (last := self.at((analysis.reference_time_s * (1 + bound), 0.0))[0]) > start:
            frame.boxes([(start, min(float(last), end), None)], SAVED, opacity=0.09)
            frame.label(
                start, frame.y_span[0], f"at most {100 * bound:.3g} % slower", dx=5, dy=-6, opacity=0.8
            )
        if choice.rule == ETA:
            x, y = self.place(int(analysis.front[analysis.optimum(choice.eta, bound)]))
            frame.mark(x, y, 6, Pen(CHOSEN), "diamond", fill=True)
            self._equal_cost(frame, x, y, choice.eta)
        x, y = self.place(choice.row)
        frame.mark(x, y, 8.5, Pen(CHOSEN, 2.6))
        place = analysis.place(choice.row)
        text = model.name(analysis, choice.row) if place is None else model.front_names(analysis)[place]
        default = " (default)" * (choice.row == analysis.reference)
        frame.label(x, y, text + default, weight="bold", spread=True)

    def _equal_cost(self, frame: Frame, x: float, y: float, eta: float) -> None:
        """The line of equal cost through a place, clipped to the frame."""
        unit = self.scales[0] / self.scales[1] * self.analysis.max_power_w
        slope = (1 - eta) / max(eta, 1e-6) * unit + 1e-12  # neither upright nor level, up to a rounding error
        left = max(frame.x_span[0], x - (frame.y_span[1] - y) / slope)
        right = min(frame.x_span[1], x + (y - frame.y_span[0]) / slope)
        if left < right:
            ends = [left, right]
            frame.line(ends, [y - slope * (end - x) for end in ends], Pen(CHOSEN, dashes=(6, 4), opacity=0.8))

    def _names(self, frame: Frame, without: int | None) -> None:
        """Names of the default and of the frontier's points, its ends first."""
        rows = dict(zip(self.analysis.front.tolist(), model.front_names(self.analysis), strict=True))
        if self.analysis.reference is not None:
            rows = {self.analysis.reference: "default", **rows} | {self.analysis.reference: "default"}
        ends = self.analysis.front[[0, -1]].tolist()
        for row in dict.fromkeys([self.analysis.reference, *ends, *rows]):
            if row is not None and row != without and frame.holds(*self.place(row)):
                x, y = self.place(row)
                frame.label(x, y, rows[row], spread=True)


def frontier_page(
    picture: str, analysis: FrontierAnalysis | None, row: int, code: str, text: str
) -> str:
    """The picture with the frontier's rows, the line of Python and all words folded away.

    Args:
        picture: SVG.
        analysis: The frontier; None before the first point.
        row: The chosen row.
        code: Python that applies the choice.
        text: Summary.
    """
    if analysis is None:
        return page(picture, text)
    rows = analysis.front.tolist()
    cells = [[n + 1, *model.known_of(analysis, each)[:3]] for n, each in enumerate(rows)]
    bold = {n for n, each in enumerate(rows) if each == row}
    shown = table(("step", "configuration", "time", "energy"), cells, bold=bold, style="font-size:12px")
    line = f"<pre style='margin:.3em 0;white-space:pre-wrap'>{html.escape(code)}</pre>"
    return page(
        picture, text,
        f"<details style='font-size:12px'><summary>the frontier in a table</summary>{shown}{line}</details>",
    )
