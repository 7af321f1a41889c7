"""Colours. One palette for every theme, and the names of JupyterLab's variables for the rest."""

from __future__ import annotations

# Each stands out at 3:1 or better from white and from JupyterLab's dark background, so that a GPU keeps its
# colour when the theme changes and in the saved picture, which cannot ask for the theme. They also stay apart
# for a viewer with protanopia or deuteranopia (Machado, Oliveira and Fernandes 2009);
# tests/panels/test_theme.py has the arithmetic.
PALETTE = ("#1a80c4", "#d0600c", "#21a67a", "#8800ff", "#73652e", "#f20041", "#9b61f2", "#8c547a")
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 2), (2, 2))

# what: (JupyterLab's variable, where there is none: on light, on dark)
VARIABLES = {
    "background": ("--jp-layout-color0", "#ffffff", "#111111"),
    "text": ("--jp-ui-font-color1", "#212121", "#e0e0e0"),
    "faint_text": ("--jp-ui-font-color2", "#616161", "#a6a6a6"),
    "line": ("--jp-border-color2", "#e0e0e0", "#424242"),
    "frame": ("--jp-border-color1", "#bdbdbd", "#616161"),
}


def colour(number: int) -> str:
    """The colour of GPU `number`; eight colours repeat."""
    return PALETTE[number % len(PALETTE)]


def dash(number: int) -> tuple[int, ...]:
    """The dash pattern (pixels on, off) that separates GPUs of one colour; empty for a solid line."""
    return DASHES[number // len(PALETTE) % len(DASHES)]
