"""The palette's promises, worked out: contrast as WCAG 2 counts it, colour-blind viewers after Machado et
al. 2009.
"""

from __future__ import annotations

import itertools
import math

import pytest

from workbench.panels._core import theme

VIEWERS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
}


def linear(colour: str) -> list[float]:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(rgb: list[float]) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    x = (0.4124 * rgb[0] + 0.3576 * rgb[1] + 0.1805 * rgb[2]) / 0.9505
    z = (0.0193 * rgb[0] + 0.1192 * rgb[1] + 0.9505 * rgb[2]) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, luminance(rgb), z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("colour", theme.PALETTE)
@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_every_colour_stands_out_from_both_backgrounds(colour: str, background: str) -> None:
    low, high = sorted((luminance(linear(colour)), luminance(linear(background))))
    assert (high + 0.05) / (low + 0.05) >= 3.0


@pytest.mark.parametrize("viewer", VIEWERS)
def test_all_colours_can_be_distinguished(viewer: str) -> None:
    view = []
    for colour in theme.PALETTE:
        rgb = linear(colour)
        view.append(
            lab(
                [min(1, max(0, sum(a * b for a, b in zip(row, rgb, strict=True)))) for row in VIEWERS[viewer]]
            )
        )
    assert min(math.dist(a, b) for a, b in itertools.combinations(view, 2)) >= 15


def test_the_ninth_gpu_has_the_first_colour_and_another_dash() -> None:
    assert theme.colour(8) == theme.colour(0)
    assert theme.dash(8) != theme.dash(0)
