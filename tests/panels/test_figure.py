"""A picture has one description, for SVG and for layers that a browser draws."""

from __future__ import annotations

import json
import math
from typing import Any

from workbench.panels._core.svg import Pen, Picture


def described(draw: Any) -> dict[str, Any]:
    """A frame on which `draw` has drawn, as the browser receives it."""
    picture = Picture("Power")
    with picture.row(100):
        frame = picture.frame(100, (0.0, 10.0), (0.0, 300.0))
        draw(frame)
    assert picture.svg().startswith("<svg")
    (((found,),),) = [json.loads(json.dumps(picture.described()))]
    return found  # type: ignore[no-any-return]


def test_lines_of_one_style_are_one_layer_with_gaps_between_them() -> None:
    def draw(frame: Any) -> None:
        frame.line([0, 1, 2], [100.0, math.nan, 120.0], Pen("red"), hover={"power": ["100 W", "", "120 W"]})
        frame.line([5, 6], [1, 2], Pen("red"), hover={"power": ["1 W", "2 W"]})
        frame.line([5, 6], [1, 2], Pen("blue"))

    red, blue = described(draw)["layers"]
    assert red["rows"]["x"] == [0, 1, 2, None, 5, 6]
    assert red["rows"]["y"] == [100, None, 120, None, 1, 2]
    assert red["rows"]["hover0"] == ["100 W", "", "120 W", None, "1 W", "2 W"]
    assert (red["hover"], blue["hover"], blue["ink"]) == (["power"], [], "blue")


def test_axes_have_round_values_or_names() -> None:
    def draw(frame: Any) -> None:
        frame.axes("Power (W)", 4)
        frame.below("batch size", {0: "64", 1: "128"})

    found = described(draw)
    assert (found["title"], found["label"], found["x"]) == ("Power (W)", "batch size", [0, 10])
    assert (found["left"], found["below"]) == (4, [[0, "64"], [1, "128"]])


def test_points_have_the_text_that_is_shown_where_somebody_points() -> None:
    def draw(frame: Any) -> None:
        frame.dot(1, 100.0, "red", hover={"batch size": "64"})
        frame.dot(2, 120.0, "red", hollow=True, hover={"batch size": "128"})
        frame.mark(3, 50.0, 4, Pen(), "x")

    dots, cross = described(draw)["layers"]
    assert (dots["rows"]["hover0"], dots["rows"]["fill"]) == (["64", "128"], [1, 0])
    assert (cross["shape"], cross["rows"]["x"]) == ("x", [3])


def test_a_picture_of_a_frontier_names_no_saving_of_the_default() -> None:
    import polars as pl

    import workbench.panels

    points = pl.DataFrame({"time_s": [10.0, 12.0], "energy_j": [300.0, 250.0], "power_limit_w": [300.0, 200.0]})
    panel = workbench.panels.frontier(points, live=False)
    panel.choose(1)
    assert "Per hour" in panel.summary()
    panel.choose(0)
    assert "Per hour" not in panel.summary()
