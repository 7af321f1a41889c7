"""The figures of README and of the validation overview are those of `docs/validation/figures.json`."""

from __future__ import annotations

import json

from tools import figures


def test_pages_show_the_figures_of_the_file() -> None:
    shown = figures.tables(json.loads(figures.FILE.read_text()))
    for page in figures.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- figures " in text
        assert figures.written(text, shown) == text, f"run python -m tools.figures write ({page.name})"


def test_a_changed_figure_is_noticed() -> None:
    page = "<!-- figures overview -->\n\n| a |\n\n<!-- /figures -->"
    assert figures.written(page, {"overview": "| a |"}) == page
    assert figures.written(page, {"overview": "| b |"}) != page
