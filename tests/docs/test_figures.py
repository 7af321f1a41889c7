"""The figures of README and docs are those of `docs/validation/figures.json`, and pages of validation have one order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import figures

PAGES = [page for page in figures.pages() if figures.FIGURE.search(text := page.read_text()) or figures.TABLE.search(text)]
SUBJECTS = sorted(figures.FILE.parent.glob("*.md"))
ORDER = ["Set-up", "Metrics", "Baselines", "Results", "Misses", "Threats to validity", "Data and command"]
LEVELS = {"95 %", "99 %", "5 %"}  # of intervals, of a frontier's area, and the slowdown limit
BY_HAND = re.compile(r"\d+(?:\.\d+)? %|\d+\.\d+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_figures_of_the_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert figures.written(text, figures.stored()) == text, "run python -m tools.figures write"


def test_a_changed_figure_is_noticed() -> None:
    table = {"rows": [["kept", "truth", "a/b", ".0%", "at least 98 %"]]}
    kept = {"truth": {"figures": {"a/b": 0.9, "c": None}}}
    assert figures.text(table, kept).splitlines()[-1] == "| kept | 90 % | at least 98 % | no |"
    assert figures.written("<!-- f truth a/b .0% -->91 %<!-- / -->", kept) == "<!-- f truth a/b .0% -->90 %<!-- / -->"
    assert figures.written("<!-- f truth c .0% --><!-- / -->", kept) == "<!-- f truth c .0% -->-<!-- / -->"


def test_a_table_of_a_benchmark_that_was_not_run_names_its_command() -> None:
    assert "tools.figures run truth" in figures.text({"rows": [["kept", "truth", "a", ".2f"]]}, {})


def test_each_table_is_on_a_page_and_each_benchmark_has_a_command() -> None:
    defined, text = figures.definitions(), "\n".join(page.read_text() for page in PAGES)
    assert {name for name in defined["tables"] if f"<!-- figures {name} -->" not in text} == set()
    named = {name for table in defined["tables"].values() for name, _ in figures.cells(table)}
    named |= {name for name, _, _ in figures.FIGURE.findall(text)} | figures.stored().keys()
    assert named == defined["benchmarks"].keys()


@pytest.mark.parametrize("page", SUBJECTS, ids=lambda page: page.stem)
def test_pages_of_validation_have_one_order(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[: len(ORDER)] == ORDER


@pytest.mark.parametrize("page", SUBJECTS, ids=lambda page: page.stem)
def test_results_are_not_written_by_hand(page: Path) -> None:
    text = figures.FIGURE.sub("", figures.TABLE.sub("", page.read_text(encoding="utf-8")))
    results = re.sub(r"`[^`]*`", "", text[text.index("## Results"): text.index("## Threats")])
    assert set(BY_HAND.findall(results)) <= LEVELS
