"""Pictures. A view describes its drawing once. This module draws it as SVG without scripts, readable on light
and on dark, and describes it as layers that `static/plots.js` draws in the browser.

    picture = Picture("Power of a run")
    with picture.row(170):
        frame = picture.frame(170, (0.0, 60.0), (0.0, 400.0))
        frame.axes("Power (W)")
        frame.line(times, watts, Pen(colour(0)))
        frame.below("seconds")
    picture.svg(), picture.described()
"""

from __future__ import annotations

import contextlib
import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

WIDTH, LEFT, RIGHT = 760, 56, 12
MIDDLE = (WIDTH + LEFT - 20) / 2  # between two frames side by side
GUTTER, AXIS = 34, 38  # above a frame, for its name; below, for its axis
ROW = 180  # height of frames side by side
NARROW = 20.0  # pixels; of narrower iterations the mean power and its range are drawn
SHAPES = {  # of marks, from their middle
    "circle": "m-{r:g} 0a{r:g} {r:g} 0 1 0 {d:g} 0a{r:g} {r:g} 0 1 0 -{d:g} 0z",
    "square": "m-{r:g} -{r:g}h{d:g}v{d:g}h-{d:g}z", "x": "m-{r:g} -{r:g}l{d:g} {d:g}m0 -{d:g}l-{d:g} {d:g}",
    "triangle": "m-{r:g} {r:g}h{d:g}l-{r:g} -{d:g}z",
    "diamond": "m0 -{r:g}l{r:g} {r:g}l-{r:g} {r:g}l-{r:g} -{r:g}z",
    "star": "m0 -{r:g}v{d:g}m-{r:g} -{r:g}h{d:g}",
}
SIDES = ((1, 1), (1, 0), (0, 0), (0, 1))  # of a point, where its name has room: right or left, above or below
INK = "currentColor"  # of the page's text
MANY = ("line", "steps", "cloud")  # kinds of layers that are given as columns of points
LETTER, CHARACTERS = 6.2, 112  # width of a letter; letters that fit into one line

Span = tuple[float, float]
Values = Iterable[Any]  # numbers; None or NaN if missing
Described = dict[str, Any]  # a frame or a layer, for a browser
Hover = Mapping[str, Any]  # tooltips: a text by heading, for a line one per point


class ShadedSpan(NamedTuple):
    """An iteration, or a pause between iterations: an evaluation, a checkpoint, another shape."""

    start_s: float
    end_s: float
    pause: bool = False


class Pen(NamedTuple):
    """How a line is drawn: ink, width in pixels, dashes (pixels on, off), opacity 0..1."""

    ink: str = INK
    width: float = 1.0
    dashes: Sequence[int] = ()
    opacity: float = 1.0

    @property
    def attributes(self) -> str:
        pattern = f' stroke-dasharray="{" ".join(map(str, self.dashes))}"' if self.dashes else ""
        opacity = f' stroke-opacity="{self.opacity:g}"' if self.opacity < 1 else ""
        return f' stroke="{self.ink}" stroke-width="{self.width:g}" stroke-linejoin="round"{pattern}{opacity}'


class Picture:
    """A picture, built from the top down; `y` is the top of the next part.

    Args:
        title: Heading, and text for screen readers.
        size: Of the title's letters in pixels; 0 leaves it out.
        width: In pixels. It is never scaled: a narrower place scrolls.
    """

    def __init__(self, title: str, *, size: int = 13, width: int = WIDTH) -> None:
        self.title, self.width, self.y = title, width, 18.0
        self._parts: list[str] = []
        self._rows: list[list[Frame]] = []
        if size:
            self.text(0, 13, title, size=size, weight="bold")

    def sentences(self, sentences: Iterable[str], *, headline: bool = True) -> None:
        """Sentences below one another, the first one as a headline if `headline`."""
        for number, sentence in enumerate(sentences):
            first = headline and not number
            for line in textwrap.wrap(sentence, CHARACTERS):
                self.y += 16
                size, weight, opacity = (12, "bold", 1.0) if first else (11, "", 0.75)
                self.text(0, self.y, line, size=size, weight=weight, opacity=opacity)

    def legend(self, entries: Iterable[tuple[str, Pen]]) -> None:
        """Words with their lines, in as many rows as it takes."""
        x = float(LEFT)
        self.y += 16
        for text, pen in entries:
            wide = 34 + LETTER * len(text)
            if x + wide > WIDTH and x > LEFT:
                x, self.y = float(LEFT), self.y + 16
            self.swatch(x, self.y - 4, pen)
            self.text(x + 24, self.y, text)
            x += wide

    def frame(self, height: float, x_span: Span, y_span: Span, *, side: str = "") -> Frame:
        """A plot that begins at `y`, over the whole width or the "left" or "right" half of it.

        Args:
            height: In pixels.
            x_span: Lowest and highest x.
            y_span: Lowest and highest y.
            side: "left" or "right" for half the width.
        """
        left = MIDDLE + 26 if side == "right" else LEFT
        right = MIDDLE - 30 if side == "left" else self.width - RIGHT
        made = Frame(self, self.y, height, x_span, y_span, left=left, right=right)
        if self._rows:
            self._rows[-1].append(made)
        return made

    def down(self, height: float, below: float = AXIS) -> None:
        """Go on below frames of that height with an axis."""
        self.y += height + below

    @contextlib.contextmanager
    def row(self, height: float) -> Iterator[None]:
        """Frames of that height side by side, with their names above and their axes below."""
        self._rows.append([])
        self.y += GUTTER
        yield
        self.down(height)

    def svg(self) -> str:
        """The `<svg>` element; it needs no scripts and no network."""
        text = html.escape(self.title)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.y:g}" '
            f'width="{self.width}" role="img" aria-label="{text}" fill="none" '
            f'style="display:block;max-width:none" '
            f'font-family="system-ui, sans-serif"><title>{text}</title>{"".join(self._parts)}</svg>'
        )

    def described(self) -> list[list[Described]]:
        """The frames of each `row` for a browser."""
        return [[frame.described() for frame in row] for row in self._rows]

    # elements, in pixels

    def text(
        self, x: float, y: float, text: str, *, size: int = 11, anchor: str = "", weight: str = "",
        opacity: float = 1.0, ink: str = INK,
    ) -> None:
        """Add a text at a place in pixels.

        Args:
            x: From the left.
            y: Of the baseline, from the top.
            text: Is escaped.
            size: Of the font.
            anchor: "middle" or "end"; empty for the start.
            weight: Of the font.
            opacity: 0 to 1.
            ink: Colour.
        """
        more = (f' text-anchor="{anchor}"' if anchor else "") + (f' font-weight="{weight}"' if weight else "")
        more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{ink}"{more}>{html.escape(text)}</text>'
        )

    def path(self, drawn: str, pen: Pen, *, more: str = "") -> None:
        """A line along the path `drawn`; nothing if it is empty. `more` are attributes."""
        if drawn:
            self._parts.append(f'<path d="{drawn}"{pen.attributes}{more}/>')

    def area(
        self, drawn: str, ink: str = INK, *, opacity: float = 1.0, title: str = "", more: str = ""
    ) -> None:
        """The area inside `drawn`, with a tooltip; nothing if it is empty.

        Args:
            drawn: An SVG path; empty draws nothing.
            ink: Fill colour.
            opacity: 0 to 1.
            title: Shown to the pointer.
            more: Further attributes.
        """
        if drawn:
            opaque = f' fill-opacity="{opacity:.3g}"' if opacity < 1 else ""
            end = f"><title>{html.escape(title)}</title></path>" if title else "/>"
            self._parts.append(f'<path d="{drawn}" fill="{ink}"{opaque}{more}{end}')

    def swatch(self, x: float, y: float, pen: Pen) -> None:
        """The piece of a line in a legend."""
        self.path(f"M{x:.0f} {y:.0f}h18", Pen(pen.ink, 3, pen.dashes))


class Frame:
    """One plot of a picture: the scale of its axes, and its drawing. Places are values of its axes; `dx`,
    `dy` are pixels right and below.
    """

    def __init__(
        self, picture: Picture, top: float, height: float, x_span: Span, y_span: Span, *, left: float,
        right: float,
    ) -> None:
        self.picture, self.top, self.height, self.x_span, self.y_span = picture, top, height, x_span, y_span
        self.left, self.right, self.bottom = left, right, top + height
        self._about: Described = {"title": "", "label": "", "left": {}, "below": 6}
        self._layers: list[tuple[Described, dict[str, Values]]] = []
        self._taken: list[tuple[float, float, float, float]] = []  # pixels that no name may cover

    def x(self, value: float) -> float:
        low, high = self.x_span
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_span
        return self.bottom - (value - low) / (high - low) * self.height

    def holds(self, x: float | None, y: float | None = None) -> bool:
        """Whether a place, or a value on the x axis, is in the frame."""
        return _within(x, self.x_span) and (y is None or _within(y, self.y_span))

    def described(self) -> Described:
        """The frame for a browser: its axes, and its layers as columns; equal styles form one layer."""
        layers: dict[str, Described] = {}
        for style, rows in self._layers:
            known = layers.setdefault(repr(style), {**style, "rows": {name: [] for name in rows}})["rows"]
            for name, values in rows.items():
                if style["kind"] in ("line", "steps") and known[name]:
                    known[name].append(None)  # the next line begins
                known[name] += map(_plain, values)
        axes = {name: [*map(list, at.items())] if isinstance(at, Mapping) else at
                for name, at in self._about.items()}
        size = {"height": self.height + AXIS, "x": self.x_span, "y": self.y_span}
        return {**axes, **size, "layers": list(layers.values())}

    def _layer(
        self, kind: str, row: Described, pen: Pen, hover: Hover | None = None, **style: Any
    ) -> None:
        row = row | {f"hover{n}": texts for n, texts in enumerate((hover or {}).values())}
        style = {"kind": kind, **pen._asdict(), "hover": list(hover or ()), **style}
        self._layers.append((style, row if kind in MANY else {name: [value] for name, value in row.items()}))

    # axes

    def axes(self, name: str, about: Mapping[float, str] | int = 4, swatch: Pen | None = None) -> None:
        """The name above, and the axis: round values with lines, or given texts at given values."""
        self.name(name, swatch)
        self._about["left"] = about
        named = about if isinstance(about, Mapping) else {at: f"{at:g}" for at in ticks(*self.y_span, about)}
        for value, text in named.items():
            if named is not about:
                self.picture.path(f"M{self.left:.1f} {self.y(value):.1f}H{self.right:.1f}", Pen(opacity=0.16))
            self.picture.text(self.left - 6, self.y(value) + 4, text, anchor="end")

    def name(self, name: str, swatch: Pen | None = None) -> None:
        self._about["title"] = name
        self.picture.text(self.left + (22 if swatch else 0), self.top - 4, name, opacity=0.75)
        if swatch:
            self.picture.swatch(self.left, self.top - 8, swatch)

    def below(self, name: str, values: Mapping[float, str] | int = 6) -> None:
        """The axis below: given texts at given values, or an approximate number of round values."""
        self._about |= {"label": name, "below": values}
        if isinstance(values, int):
            values = {value: f"{value:g}" for value in ticks(*self.x_span, values)}
        ends, y = "".join(f"M{self.x(value):.1f} {self.bottom:.1f}v4" for value in values), self.bottom
        self.picture.path(f"M{self.left:g} {y:.1f}H{self.right:g}{ends}", Pen(opacity=0.5))
        for value, text in values.items():
            self.picture.text(self.x(value), y + 16, text, anchor="middle")
        self.picture.text((self.left + self.right) / 2, y + 30, name, anchor="middle", opacity=0.75)

    def upright(self, x: float, pen: Pen, *, text: str = "", row: int = 0, weight: str = "") -> None:
        """A vertical line over the whole height, with words at its upper end, on the side with room.

        Args:
            x: Of the line.
            pen: Of the line.
            text: At its upper end.
            row: Of the text, counted down from the top.
            weight: Of the font.
        """
        if self.holds(x):
            self._layer("upright", {"x": x}, pen)
            self.picture.path(f"M{self.x(x):.1f} {self.top:.1f}v{self.height:g}", pen)
            self.label(x, self.y_span[1], text, dx=4, dy=11 + 13 * row, rotated=True, weight=weight)

    def level(self, y: float, pen: Pen) -> None:
        """A horizontal line over the whole width."""
        self._layer("level", {"y": y}, pen)
        self.picture.path(f"M{self.left:.1f} {self.y(y):.1f}H{self.right:.1f}", pen)

    # areas

    def rectangle(self, x0: float, x1: float, y: Span | None = None) -> str:
        """The part of a rectangle inside the frame, over the whole height if `y` is None; for `fill`."""
        left, right = self.x(max(x0, self.x_span[0])), self.x(min(x1, self.x_span[1]))
        top, bottom = (self.top, self.bottom) if y is None else (self.y(y[1]), self.y(y[0]))
        return f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}z" if right >= left else ""

    def boxes(
        self, boxes: Iterable[tuple[float, float, Span | None]], ink: str = INK, *, opacity: float,
        edge: Pen | None = None, hover: Hover | None = None,
    ) -> None:
        """Rectangles from x0 to x1 between two heights (None is the whole height), or only their edges.

        Args:
            boxes: (x0, x1, heights); heights None for the whole frame.
            ink: Fill colour.
            opacity: 0 to 1; with 0 a browser shows only the texts for the pointer.
            edge: Draws the edges in place of the fill.
            hover: Names and texts for the pointer.
        """
        drawn = []
        for x0, x1, heights in boxes:
            low, high = heights or self.y_span
            row = {"left": x0, "right": x1, "bottom": low, "top": high}
            self._layer("box", row, edge or Pen(ink, opacity=opacity), hover, framed=bool(edge))
            drawn.append(self.rectangle(x0, x1, heights))
        if edge:
            self.picture.path("".join(drawn), edge)
        elif opacity:
            self.picture.area("".join(drawn), ink, opacity=opacity, title=", ".join((hover or {}).values()))

    def bands(self, spans: Sequence[ShadedSpan]) -> None:
        """Every other iteration as a light band, and pauses as darker ones."""
        shown = [span for span in spans if span.end_s > self.x_span[0] and span.start_s < self.x_span[1]]
        rotated, pauses = ([span for span in shown if span.pause is pause] for pause in (False, True))
        for opacity, each in ((0.07, rotated[1::2]), (0.2, pauses)):
            areas = [self.rectangle(span.start_s, span.end_s) for span in each]
            self.picture.area("".join(areas), opacity=opacity)

    def narrow(self, spans: Sequence[ShadedSpan], iteration_s: float = 0.0) -> float:
        """Seconds of an iteration that is too narrow to be drawn separately; 0 if none is.

        Args:
            spans: Iterations.
            iteration_s: Seconds of an iteration, if there are no spans.
        """
        lengths = sorted(span.end_s - span.start_s for span in spans if not span.pause)
        median_s = lengths[len(lengths) // 2] if lengths else iteration_s
        return median_s if self.x(self.x_span[0] + median_s) - self.left < NARROW else 0.0

    def band(
        self, xs: Values, low: Values, high: Values, ink: str, *, opacity: float = 0.18, title: str = ""
    ) -> None:
        """The area between two lines.

        Args:
            xs: (n,) places.
            low: (n,) lower line.
            high: (n,) upper line.
            ink: Fill colour.
            opacity: 0 to 1.
            title: Shown to the pointer in the still picture.
        """
        ends = [*zip(xs, low, strict=True), *reversed([*zip(xs, high, strict=True)])]
        clipped = [(x, min(max(y, self.y_span[0]), self.y_span[1])) for x, y in ends if _known(y)]
        self._layer("band", {"xs": [x for x, _ in clipped], "ys": [y for _, y in clipped]},
                    Pen(ink, opacity=opacity))
        points = "L".join(f"{self.x(float(x)):.1f} {self.y(float(y)):.1f}" for x, y in clipped)
        self.picture.area(points and f"M{points}z", ink, opacity=opacity, title=title)

    # lines and points

    def line(
        self, xs: Values, ys: Values, pen: Pen, *, steps: bool = False, hover: Hover | None = None,
        name: str = "",
    ) -> None:
        """A line through points, broken at missing ones; with `steps` a value holds until the next.

        Args:
            xs: (n,) places.
            ys: (n,) values; None or nan breaks the line.
            pen: Of the line.
            steps: A value holds until the next place.
            hover: Names to (n,) texts for the pointer.
            name: Of the line, for the pointer.
        """
        named = {"name": name} if name else {}
        self._layer("steps" if steps else "line", {"x": xs, "y": ys}, pen, hover, **named)
        drawn: list[str] = []
        down, last_y = False, ""
        for value_x, value_y in zip(xs, ys, strict=True):
            if not _known(value_y) or not _known(value_x):
                down = False
                continue
            x, y = f"{self.x(float(value_x)):.1f}", f"{self.y(float(value_y)):.1f}"
            if not down:
                drawn.append(f"M{x} {y}")
            elif y == last_y or steps:
                if drawn[-1].startswith("H"):  # a level stretch is one line
                    drawn.pop()
                drawn += [f"H{x}"] if y == last_y else [f"H{x}", f"V{y}"]
            else:
                drawn.append(f"L{x} {y}")
            down, last_y = True, y
        self.picture.path("".join(drawn), pen)

    def dot(
        self, x: float, y: float, ink: str, radius: float = 4, *, hollow: bool = False,
        hover: Hover | None = None,
    ) -> None:
        """A filled or hollow circle.

        Args:
            x: Place.
            y: Place.
            ink: Colour.
            radius: In pixels.
            hollow: Only its edge.
            hover: Names and texts for the pointer.
        """
        self.mark(x, y, radius, Pen(ink, 1.6), fill=not hollow, hover=hover)

    def mark(
        self, x: float, y: float, radius: float, pen: Pen, shape: str = "circle", *, fill: bool = False,
        hover: Hover | None = None,
    ) -> None:
        """One of `SHAPES` at a place.

        Args:
            x: Place.
            y: Place.
            radius: In pixels.
            pen: Of the edge.
            shape: One of `SHAPES`.
            fill: Whether it is filled.
            hover: Names and texts for the pointer.
        """
        self._layer("dot", {"x": x, "y": y, "size": 2 * radius, "fill": int(fill)}, pen, hover, shape=shape)
        left, top = self.x(x), self.y(y)
        self._taken.append((left - radius, top - radius, left + radius, top + radius))
        drawn = f"M{left:.1f} {top:.1f}" + SHAPES[shape].format(r=radius, d=2 * radius)
        if fill:
            self.picture.area(drawn, pen.ink)
        else:
            self.picture.path(drawn, pen)

    def cloud(
        self, points: Iterable[Span], ink: str, *, width: float = 4.0, opacity: float,
        hover: Hover | None = None,
    ) -> None:
        """Many small dots as one element; those of one pixel are one.

        Args:
            points: (x, y) each.
            ink: Colour.
            width: Of a dot, in pixels.
            opacity: 0 to 1.
            hover: Names to texts for the pointer.
        """
        places = list(points)
        self._layer("cloud", {"x": [x for x, _ in places], "y": [y for _, y in places]},
                    Pen(ink, width, (), opacity), hover)
        spots = dict.fromkeys(f"M{self.x(x):.0f} {self.y(y):.0f}h0" for x, y in places)
        self.picture.path("".join(spots), Pen(ink, width, (), opacity), more=' stroke-linecap="round"')

    def errors(self, x: float, y: float, across: float | None, up: float | None, pen: Pen) -> None:
        """Bars of half widths, clipped to the frame; None or 0 draws none.

        Args:
            x: Place.
            y: Place.
            across: Half width along x.
            up: Half width along y.
            pen: Of the bars.
        """
        wide, high = across or 0.0, up or 0.0
        xs = [max(x - wide, self.x_span[0]), min(x + wide, self.x_span[1]), None, x, x]
        self.line(xs, [y, y, None, max(y - high, self.y_span[0]), min(y + high, self.y_span[1])], pen)

    def label(
        self, x: float, y: float, text: str, *, dx: float = 0.0, dy: float = 0.0, anchor: str = "",
        size: int = 11, weight: str = "", opacity: float = 1.0, ink: str = INK, rotated: bool = False,
        spread: bool = False,
    ) -> None:
        """Words at a place, below the frame's upper end.

        Args:
            x, y, text: The place and its text.
            dx, dy: Pixels right of and below the place.
            anchor: SVG's text anchor: "" (start), "middle" or "end".
            size, weight, opacity, ink: Style of the text.
            rotated: Put the text on the other side of the place if there is no room to the right.
            spread: Put it on any side where it covers nothing; left out without room.
        """
        if not text:
            return
        row = {"x": x, "y": y, "text": text, "dx": dx, "dy": dy, "anchor": anchor, "turns": rotated}
        self._layer("text", row, Pen(ink, opacity=opacity), size=size, weight=weight, spread=spread)
        if spread:
            found = self._side(self.x(x), self.y(y), LETTER * len(text))
            if found is None:
                return
            dx, dy, anchor = found
        elif rotated and self.x(x) + dx + LETTER * len(text) > self.right:
            dx, anchor = -dx, "end"
        self.picture.text(
            self.x(x) + dx, max(self.y(y) + dy, self.top + 11), text, size=size, anchor=anchor, weight=weight,
            opacity=opacity, ink=ink,
        )

    def _side(self, x: float, y: float, wide: float) -> tuple[float, float, str] | None:
        """A free place for a name next to a point, in pixels right of and below it, and its anchor."""
        others = [box for box in self._taken if not (box[0] <= x <= box[2] and box[1] <= y <= box[3])]
        for right, above in SIDES:
            left, top = x + 10 if right else x - 10 - wide, y - 16 if above else y + 4
            box = (left, top, left + wide, top + 13)
            inside = left >= self.left and top >= self.top and box[2] <= self.right and box[3] <= self.bottom
            if inside and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
                for other in others
            ):
                self._taken.append(box)
                return (10 if right else -10), (-5 if above else 15), "" if right else "end"
        return None


def padded(low: float, high: float, share: float = 0.06, *, least: float = 1.0) -> Span:
    """A span with room at both ends: a share of its length, or of `least` if its length is 0.

    Args:
        low: Of the values.
        high: Of the values.
        share: Of the length, added at each end.
        least: Length where low equals high.
    """
    room = share * ((high - low) or least)
    return low - room, high + room


def page(picture: str, text: str, more: str = "") -> str:
    """A picture, further HTML below it, and its words folded away for readers who cannot see it."""
    text_html = html.escape(text).replace("\n", "<br>")
    picture = f'<div style="overflow-x:auto">{picture}</div>'
    return f'{picture}{more}<details style="font-size:12px"><summary>in words</summary>{text_html}</details>'


def titled(text: str, simulated: bool) -> str:
    """A title, marked as simulated if the data are."""
    return text + (" (simulated)" if simulated and "simulated" not in text else "")


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between two numbers, some `about` of them.

    >>> ticks(0, 424, 5)
    [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 9) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _plain(value: Any) -> Any:
    """A value for JSON, with numbers rounded to the digits that a picture shows."""
    if isinstance(value, list):
        return [*map(_plain, value)]
    if value is None or isinstance(value, str | int):
        return value
    return None if math.isnan(value) else float(f"{value:.6g}")


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _within(value: float | None, span: Span) -> bool:
    return value is not None and span[0] <= value <= span[1]
