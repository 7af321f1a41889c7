"""The whole workbench in JupyterLab: its tabs, its state in a notebook that is reopened, and the picture without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]
SET_UP = """
%load_ext workbench
import polars as pl, workbench
session = workbench.simulate("V100", stepped=True)
points = pl.DataFrame({"time_s": [10.0, 11.0, 14.0], "energy_j": [2500.0, 2100.0, 2000.0], "power_limit_w": [250.0, 200.0, 150.0]})
"""
SHOWN = """() => {
  const current = document.querySelector('.jupyter-widget-tab .lm-mod-current');
  const panel = document.querySelector('.workbench-apply');
  return current?.textContent === 'Apply' && panel?.workbench?.view?.force === '200 W' && panel.offsetHeight > 100;
}"""


def test_it_keeps_its_state_when_reopened_and_leaves_a_picture(notebook: Make) -> None:
    made = notebook([SET_UP, "opened = workbench.panels.open(points)\nopened", "opened.show()", "opened.finish()"])
    for cell in (0, 1):
        made.run(cell)
        made.finish(cell, 90)
    tabs = made.page.locator(".jupyter-widget-tab .lm-TabBar-tab")
    made.wait("() => document.querySelectorAll('.jupyter-widget-tab .lm-TabBar-tab').length === 5", 60)
    assert tabs.all_inner_texts() == ["Power and periods", "Frontier", "Clocks", "Apply", "Log"]
    tabs.filter(has_text="Apply").click()
    made.wait("() => document.querySelector('.workbench-apply')?.workbench?.view?.can_apply", 60)
    made.page.locator(".workbench-apply input[type=number]").first.fill("200")
    made.page.keyboard.press("Tab")
    made.page.locator(".workbench-apply .workbench-do-apply:enabled").click()
    made.wait(SHOWN, 60)
    made.save()
    made.open()
    made.wait(SHOWN, 60)

    picture = made.outputs(1)[0]["data"]["text/html"]  # as it was displayed, for a reader without a kernel
    assert "".join(picture).count("<svg") >= 3
    assert "<script" not in "".join(picture)

    made.run(2)
    made.finish(2)
    made.run(3)
    made.finish(3)
    made.wait("() => [...document.querySelectorAll('svg[role=img]')].some((each) => each.closest('details[open]'))", 30)
    left = made.outputs(2)[0]["data"]
    assert "application/vnd.jupyter.widget-view+json" not in left
    assert "200 W · applied from this workbench" in "".join(left["text/html"])
