"""The still picture of a frontier; and the power traces behind a point."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from ...._html import table
from ....logbook.store import Store
from ....search.objective import ZeusCost
from ....search.tradeoff import Z95, FrontierAnalysis
from ....trace import duration_s
from ..._core.prefixes import prefixed
from ..._core.svg import Pen, Picture, page
from ..._core.theme import colour
from ..power.series import Rows, Series, rows_of
from ..power.svg import TraceLine, trace_picture
from .model import FrontierChoice, front_names, ranges

HEIGHT = 300
MOST_TRACES = 4  # repeats in one picture, the newest
MOST = 1500  # beaten points that are drawn: more would not be seen
ONE, CHOSEN, SAVED = colour(0), colour(1), colour(2)
LEGEND = "; hollow: predicted, pale: dominated, square: default, bars: 95 %"


def draw(
    title: str, sentences: Sequence[str], analysis: FrontierAnalysis | None, choice: FrontierChoice, *,
    relative: bool = False, each: str = "",
) -> str:
    """One `<svg>` element; without points it has only words.

    Args:
        title: Of the picture.
        sentences: Above it.
        analysis: The frontier; None for text only.
        choice: The chosen point.
        relative: Axes relative to the default.
        each: Unit of work of the axes, with its article: "a sample".
    """
    picture = Picture(title)
    picture.sentences(sentences)
    if analysis is None:
        picture.y += 12
        return picture.svg()
    with picture.row(HEIGHT):
        relative = relative and analysis.reference is not None
        _Plane(picture, analysis, choice, relative=relative, each=each).draw()
    return picture.svg()


class _Plane:
    """Energy over time, in the units of the axes: seconds and joules, or per cent of the default."""

    def __init__(
        self, picture: Picture, analysis: FrontierAnalysis, choice: FrontierChoice, *, relative: bool,
        each: str,
    ) -> None:
        self.analysis, self.choice = analysis, choice
        spans = ranges(analysis)["frontier"]
        self.shift = 0.0
        if relative and analysis.reference is not None:
            at = analysis.rows[analysis.reference]
            self.scales, self.shift = (at["time_s"] / 100, at["energy_j"] / 100), 100.0
            self.names = ("time against the default (%)", "Energy against the default (%)")
        else:
            units = [prefixed(max(map(abs, spans[n])), unit) for n, unit in enumerate("sJ")]
            self.scales = (units[0][0], units[1][0])
            self.names = (f"time ({units[0][1]}) {each}".rstrip(), f"Energy ({units[1][1]}) {each}".rstrip())
        (x0, x1), (y0, y1) = ([value / self.scales[n] - self.shift for value in spans[n]] for n in (0, 1))
        self.frame = picture.frame(HEIGHT, (x0, x1), (y0, y1))
        times, energies = analysis.points["time_s"].to_numpy(), analysis.points["energy_j"].to_numpy()
        self.x, self.y = times / self.scales[0] - self.shift, energies / self.scales[1] - self.shift
        self.inside = [self.frame.holds(x, y) for x, y in zip(self.x, self.y, strict=True)]

    def draw(self) -> None:
        self._bound()
        self.frame.axes(self.names[1] + LEGEND, 6)
        self.frame.below(self.names[0], 8)
        self._equal_cost()
        self._points()
        self._marks()

    def _bound(self) -> None:
        """The ground of what is within the slowdown."""
        frame, bound = self.frame, self.choice.max_slowdown
        if bound is None:
            return
        end = self.analysis.reference_time_s * (1 + bound) / self.scales[0] - self.shift
        if end > frame.x_span[0]:
            frame.boxes([(frame.x_span[0], end, None)], SAVED, opacity=0.09)
            text = f"at most {100 * bound:.3g} % slower"
            frame.label(frame.x_span[0], frame.y_span[0], text, dx=5, dy=-6, opacity=0.8)

    def _equal_cost(self) -> None:
        """Where all costs as much as the optimum of eta."""
        analysis, eta, frame = self.analysis, self.choice.eta, self.frame
        at = analysis.rows[int(analysis.front[analysis.optimum(eta, self.choice.max_slowdown)])]
        if eta == 0:
            xs, ys = [at["time_s"] / self.scales[0] - self.shift] * 2, list(frame.y_span)
        else:
            cost = ZeusCost(eta, analysis.max_power_w).cost(at["time_s"], at["energy_j"])
            times = np.linspace(*frame.x_span, 2)
            seconds = (times + self.shift) * self.scales[0]
            joules = (cost - (1 - eta) * analysis.max_power_w * seconds) / eta
            xs, ys = _clip(times, joules / self.scales[1] - self.shift, frame.y_span)
        frame.line(xs, ys, Pen(CHOSEN, dashes=(6, 4), opacity=0.8))

    def _points(self) -> None:
        analysis, frame = self.analysis, self.frame
        measured = analysis.points["measured"].to_list()
        on = set(analysis.front.tolist())
        beaten = [row for row in range(len(self.x)) if self.inside[row] and row not in on]
        solid, hollow = ([row for row in beaten if measured[row] is each] for each in (True, False))
        frame.cloud(self._some(solid), ONE, width=5, opacity=0.38)
        for x, y in self._some(hollow):
            frame.mark(x, y, 3, Pen(ONE, opacity=0.7))
        front = [row for row in analysis.front.tolist() if self.inside[row]]
        frame.line(self.x[front], self.y[front], Pen(ONE, opacity=0.55), steps=True)
        across, up = (
            Z95 * analysis.points[name].fill_null(0.0).to_numpy() / scale
            for name, scale in zip(("time_sd_s", "energy_sd_j"), self.scales, strict=True)
        )
        for row in front:
            x, y = self.x[row], self.y[row]
            frame.errors(x, y, across[row], up[row], Pen(ONE, opacity=0.6))
            frame.dot(x, y, ONE, hollow=not measured[row])

    def _some(self, rows: Sequence[int]) -> list[tuple[float, float]]:
        return [(self.x[row], self.y[row]) for row in rows[:: math.ceil(len(rows) / MOST) or 1]]

    def _marks(self) -> None:
        default, chosen = self.analysis.reference, self.choice.row
        names = front_names(self.analysis)
        of = dict(zip(self.analysis.front.tolist(), names, strict=True))
        if default is not None and self.inside[default]:
            self.frame.mark(self.x[default], self.y[default], 6, Pen(width=1.6), "square")
            self._name(self.x[default], self.y[default], -10, "default")
        if self.inside[chosen]:
            self.frame.mark(self.x[chosen], self.y[chosen], 8.5, Pen(CHOSEN, 2.6))
            self._name(self.x[chosen], self.y[chosen], 20, of.get(chosen, "chosen"), weight="bold")

    def _name(self, x: float, y: float, dy: float, name: str, *, weight: str = "") -> None:
        """Beside a mark, within the frame."""
        frame = self.frame
        dy = min(max(dy, frame.top + 11 - frame.y(y)), frame.bottom - 4 - frame.y(y))
        frame.label(x, y, name, dx=11, dy=dy, weight=weight, rotated=True)


def _clip(xs: np.ndarray, ys: np.ndarray, span: tuple[float, float]) -> tuple[list[float], list[float]]:
    """A falling straight line as far as it lies between two heights."""
    (x0, x1), (y0, y1) = map(float, xs), map(float, ys)
    if y0 == y1:
        return ([x0, x1], [y0, y1]) if span[0] <= y0 <= span[1] else ([], [])
    shares = sorted(((span[0] - y0) / (y1 - y0), (span[1] - y0) / (y1 - y0)))
    ends = (max(0.0, shares[0]), min(1.0, shares[1]))
    if ends[0] >= ends[1]:
        return [], []
    return [x0 + share * (x1 - x0) for share in ends], [y0 + share * (y1 - y0) for share in ends]


def frontier_page(picture: str, rows: Sequence[dict[str, object]], code: str, text: str) -> str:
    """The picture with the frontier's rows, the line of Python and all words folded away.

    Args:
        picture: SVG.
        rows: Of the frontier.
        code: Python that applies the choice.
        text: Summary.
    """
    if not rows:
        return page(picture, text)
    names = ("step", "configuration", "time", "energy")
    chosen = {number for number, row in enumerate(rows) if row["chosen"]}
    shown = table(names, [[row[name] for name in names] for row in rows], bold=chosen, style="font-size:12px")
    line = f"<pre style='margin:.3em 0;white-space:pre-wrap'>{html.escape(code)}</pre>" if code else ""
    return page(
        picture, text,
        f"<details style='font-size:12px'><summary>the frontier in a table</summary>{shown}{line}</details>",
    )


def traces(measurements: Sequence[str], store: Store | None = None) -> tuple[str, str]:
    """An `<svg>` element with the power of an observation's repeats, each from its own start; and a sentence.

    The element is empty where no trace is kept, and the sentence says why.
    """
    if not measurements:
        return "", "this point names no measurement of the log, so there is no trace"
    kept = store or Store()
    lines: list[TraceLine] = []
    end_s = 0.0
    named = []
    for name in list(measurements)[-MOST_TRACES:]:
        frame = kept.trace(name)
        if frame is None or frame.is_empty():
            continue
        named.append(name)
        for part in frame.partition_by("uuid", maintain_order=True) if "uuid" in frame.columns else [frame]:
            length_s = duration_s(part)
            label = name if len(measurements) > 1 else f"GPU {len(lines)}"
            lines.append(TraceLine(len(lines), label, _rows(part, length_s)))
            end_s = max(end_s, length_s)
    if not lines:
        return "", f"no trace is kept of measurement {', '.join(list(measurements)[-MOST_TRACES:])}"
    more = f", the newest of {len(measurements)} repeats" if len(measurements) > MOST_TRACES else ""
    picture = trace_picture("Power of this observation", lines, (), end_s)
    return picture.svg(), f"measurement {', '.join(named)}{more}"


def _rows(frame: pl.DataFrame, length_s: float) -> Rows:
    frame, series = frame.sort("time_s"), Series(gap_s=max(1.0, length_s / 20))
    return series.append(rows_of(frame, frame["time_s"][0]))
