"""The first notebook as a newcomer drives it: run a cell, see the plot move, drag the limit, see the power
fall, read the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import nbformat
import pytest
from lab import REPOSITORY, Notebook

pytestmark = pytest.mark.browser

Make = Callable[[Sequence[str]], Notebook]


def cells() -> list[str]:
    """The notebook's code. Where the notebook only lists the GPUs present, this code names the simulated one.
    """
    notebook = nbformat.read(REPOSITORY / "notebooks" / "01_measure_a_cell.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[:2] == ["%load_ext workbench", "%gpu"]
    # The notebook's training ends by itself, a person's when it is done.
    assert "iterations=40):\n    pass" in code[4]
    until = "iterations=100_000):\n    if __import__('os').path.exists('enough'):\n        break"
    code[4] = code[4].replace("iterations=40):\n    pass", until)
    return [code[0], "%gpu simulate V100", *code[2:]]


def text(outputs: list[dict]) -> str:
    parts = []
    for output in outputs:
        plain = output.get("data", {}).get("text/plain", output.get("text", ""))
        parts.append(plain if isinstance(plain, str) else "".join(plain))
    return "\n".join(parts)


@pytest.mark.slow
def test_the_limit_is_dragged_while_the_cell_runs_and_the_power_falls(notebook: Make) -> None:
    made = notebook(cells())
    made.execute(*range(4))  # load, choose the GPU, import, the first measurement
    first = text(made.outputs(3))
    assert "first: " in first
    assert " ± " in first
    assert "W, simulated" in first

    made.run(4)
    made.until("it.points[0] > 20 && it.power[0] > 200")
    before = made.until("it.state === 'running' && !it.disabled && it.limit[0] === 250")
    made.until(f"it.points[0] > {before['points'][0]} + 10")  # it moves while the cell runs
    assert made.count(4) is None

    slider = made.page.locator(".workbench-limit").last
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    made.page.mouse.move(box["x"] + box["width"] - 8, middle)
    made.page.mouse.down()
    made.page.mouse.move(box["x"] + 0.25 * box["width"], middle, steps=10)
    made.page.mouse.up()
    after = made.until("it.limit[0] < 200 && it.power[0] < it.limit[0] + 15 && it.power[0] > 100")
    assert made.count(4) is None  # still running
    assert after["limit"][0] < before["limit"][0]

    made.enough()
    made.finish(4)
    made.wait("() => document.querySelector('.jp-OutputArea-output svg[role=img]') !== null")
    result = text(made.outputs(4))
    assert "watch me: " in result
    made.run(1)  # the list of GPUs again: the limit is back
    made.finish(1)
    assert "power limit 250 W" in text(made.outputs(1))
