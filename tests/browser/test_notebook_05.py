"""Notebook 05 as a newcomer drives it: step along the frontier, apply while a cell runs, see the power
fall, undo, see it rise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nbformat
import pytest
from lab import REPOSITORY, Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-apply')].at(-1);
  if (!root?.workbench?.view) return null;
  const { view, wanted, done, plot } = root.workbench;
  return {
    view, wanted, done, plot,
    can_apply: !root.querySelector('.workbench-do-apply').disabled, can_undo: !root.querySelector('.workbench-do-undo').disabled,
    waits: root.querySelector('.workbench-waits').textContent, problem: root.parentElement.querySelector('.workbench-problem').textContent,
  };
}"""
SLOWLY = """
import time
from pathlib import Path
for batch in TrainingJob("imagenet", batch_size=256, iterations=100_000):
    workbench.step()
    time.sleep(0.05)
    if Path("enough").exists():
        break
"""


def cells() -> list[str]:
    notebook = nbformat.read(REPOSITORY / "notebooks" / "05_frontier.ipynb", as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on what the panel shows, `it`; returns that."""
    return notebook.until(condition, observe=SEE)


def press(notebook: Notebook, name: str) -> None:
    notebook.page.locator(f".workbench-apply .workbench-do-{name}:enabled").last.click()


@pytest.mark.slow
def test_a_choice_on_the_frontier_is_applied_while_a_cell_runs(notebook: Make) -> None:
    code = cells()
    text = {"panel": "panels.apply(", "run": "%%energy while it runs"}
    at = {name: next(n for n, cell in enumerate(code) if each in cell) for name, each in text.items()}
    # The notebook's clock steps as fast as the machine works it out; a person's does not.
    assert "train(300, pause_s=0.1)" in code[at["run"]]
    code[at["run"]] = code[at["run"]].replace("train(300, pause_s=0.1)", SLOWLY)
    made = notebook(code)
    made.execute(*range(at["panel"] + 1))
    first = state_when(made, "it.can_apply && it.view.status.includes(': 250 W')")
    assert not first["can_undo"]

    made.run(at["run"])
    slider = made.page.locator(".workbench-frontier input[type=range]").first
    slider.scroll_into_view_if_needed()
    table = made.page.locator(".workbench-frontier").first.inner_text()
    slider.focus()
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    made.page.mouse.move(box["x"] + box["width"] / 2, middle)
    made.page.mouse.down()
    made.page.mouse.move(box["x"] + box["width"] - 4, middle, steps=8)
    made.page.mouse.move(box["x"] + 8, middle, steps=8)
    made.page.mouse.up()
    state_when(made, "it.wanted?.power_limit_w === 250")  # the left end, whatever was passed on the way
    made.page.keyboard.press("ArrowRight")
    state_when(made, "it.wanted.power_limit_w < 250")
    assert made.page.locator(".workbench-frontier").first.inner_text() != table
    assert made.count(at["run"]) is None  # all this while the cell runs

    press(made, "apply")
    wanted = state_when(made, "it.can_undo && it.view.status.includes(`: ${it.wanted.power_limit_w} W`)")
    assert "from this workbench" in wanted["view"]["status"]
    fallen = state_when(made, "it.view.status.includes('the power went from ')")
    assert "<path" in fallen["plot"]
    before, after = (
        float(word) for word in fallen["view"]["status"].split("the power went from ")[1].replace(" W", "").split() if word.isdigit()
    )
    assert after < before
    assert after < wanted["wanted"]["power_limit_w"] + 10
    press(made, "undo")
    back = state_when(made, "it.view.status.includes(': 250 W') && !it.can_undo")
    assert (back["problem"], back["waits"]) == ("", "")
    assert made.count(at["run"]) is None
    made.enough()
    made.finish(at["run"])
