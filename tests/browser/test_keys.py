"""Keys typed in a panel's controls: they move the control, and the notebook around it stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from lab import Notebook
from playwright.sync_api import ElementHandle

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

CONTROLS = ":is(button, select, input, summary, [tabindex='0']):enabled:visible"
CELLS = """() => {
  const { widgets, activeCellIndex } = window.jupyterapp.shell.currentWidget.content;
  return [activeCellIndex, ...widgets.map((cell) => cell.model.id)];
}"""
# Types in each control what inserts, cuts and deletes cells, goes to another and folds headings in
# JupyterLab's command mode; returns the commands that this would begin, and begins none: with its cell a
# control would go.
TYPE = """async (controls) => {
  const { commands } = window.jupyterapp;
  const arrows = [["ArrowUp", 38], ["ArrowDown", 40], ["ArrowLeft", 37], ["ArrowRight", 39]];
  const keys = [["b", 66], ["x", 88], ["d", 68], ["d", 68], ...arrows];
  const name = (control) => control.className || control.textContent;
  const begun = Object.fromEntries(controls.map((control, number) => [`${number} ${name(control)}`, []]));
  for (const [number, control] of controls.entries()) {
    commands.execute = (command) => {
      Object.values(begun)[number].push(command);
      return Promise.resolve();
    };
    for (const [key, keyCode] of keys) {
      control.focus();
      const typed = new KeyboardEvent("keydown", { key, keyCode, bubbles: true, cancelable: true });
      if (document.activeElement === control) control.dispatchEvent(typed);
    }
    await new Promise((resolve) => setTimeout(resolve, 100)); // JupyterLab begins a command a little later
  }
  delete commands.execute;
  return begun;
}"""
SET_UP = """
%load_ext workbench
import polars as pl, workbench
from workbench.simulation.training import TrainingJob
"""
TRAIN = """%%energy train --live
for batch in TrainingJob("librispeech", batch_size=24, iterations=2_000):
    pass"""
OWN = "document.querySelector('.workbench-period ~ .workbench-control:not([hidden]) .workbench-limit')"
HEADLINE = "[...document.querySelectorAll('.workbench-headline')].at(-1)?.textContent"


def controls(notebook: Notebook, within: str) -> list[ElementHandle]:
    return notebook.page.locator(f"{within} {CONTROLS}").element_handles()


def begun(notebook: Notebook, found: list[ElementHandle]) -> dict[str, list[str]]:
    """The commands of JupyterLab that keys begin in these controls, where they begin any."""
    each: dict[str, list[str]] = notebook.page.evaluate(TYPE, found)
    print(f"{sum(map(bool, each.values()))} of {len(each)} controls, {sum(map(len, each.values()))} commands")
    return {name: commands for name, commands in each.items() if commands}


@pytest.mark.slow
def test_keys_move_the_controls_of_power_and_period_and_leave_the_cells_alone(notebook: Make) -> None:
    start = "session = workbench.simulate('V100,V100')\nsession.meter"
    made = notebook([SET_UP, start, TRAIN, "workbench.panels.period('train')"])
    made.execute(0, 1)
    made.run(2)
    made.until("it.points[0] > 30 && !it.disabled")
    made.wait(f"() => {HEADLINE}.startsWith('One iteration takes')")
    before = made.page.evaluate(CELLS)
    power = controls(made, ".workbench-panel")
    assert len(power) >= 6  # Stop, two GPUs, whose limit, its slider, whose iterations
    assert begun(made, power) == {}
    slider = made.page.locator(".workbench-limit")
    slider.focus()
    was = float(slider.input_value())
    for key in ("b", "x", "d", "d", "ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowLeft", "ArrowUp"):
        made.page.keyboard.press(key)
    assert made.page.evaluate(CELLS) == before
    made.wait(f"() => Number(document.querySelector('.workbench-limit').value) < {was}")
    made.until("it.limit.includes(Number(document.querySelector('.workbench-limit').value))")
    assert made.count(2) is None  # the cell runs, with its panel
    made.page.locator(".workbench-stop").focus()
    made.page.keyboard.press("Space")
    made.finish(2)

    made.run(3)
    made.wait(f"() => {OWN}")
    before = made.page.evaluate(CELLS)
    period = controls(made, ".workbench-panel:not(.workbench-power)")
    assert len(period) >= 2  # whose iterations, the slider
    assert begun(made, period) == {}
    slider = made.page.locator(".workbench-period ~ .workbench-control .workbench-limit")
    slider.focus()
    for key in ("Home", "PageUp", "b", "x", "d", "d", "ArrowUp", "ArrowRight"):
        made.page.keyboard.press(key)
    made.wait(f"() => {HEADLINE}.startsWith('Folded at')")
    assert made.page.evaluate(CELLS) == before


EVERYTHING = """
from workbench.panels.tab_sheets import SweepPanel
from workbench.experiments.job import RecurringJob
from workbench.experiments.sweep import Sweep
session = workbench.simulate("V100,V100", stepped=True)
points = pl.DataFrame({"time_s": [10.0, 11.0], "energy_j": [2500.0, 2100.0], "power_limit_w": [250.0, 200.0]})
job = RecurringJob("nightly", [64, 128], 128, target=0.6, storage="runs.db", max_epochs=60)
opened = workbench.panels.open(points, job=job, run=print)
sheet = SweepPanel(Sweep(print, {"batch_size": [64]}))
"""
TABS = ["Power and periods", "Frontier", "Recurring", "Clocks", "Apply", "Cluster", "Log"]


@pytest.mark.slow
def test_no_key_in_any_panel_starts_a_command_of_jupyterlab_and_saving_still_works(notebook: Make) -> None:
    made = notebook([SET_UP, EVERYTHING, "opened", "sheet"])
    made.execute(*range(4))
    tabs = made.page.locator(".jupyter-widget-tab .lm-TabBar-tab")
    made.wait(f"() => document.querySelectorAll('.workbench-tabs .lm-TabBar-tab').length === {len(TABS)}")
    made.wait("() => document.querySelector('.workbench-do-cancel:enabled')")
    acted: dict[str, dict[str, list[str]]] = {}
    state_when = 0
    for name in ["Sweep", *TABS]:
        if name in TABS:
            tabs.filter(has_text=name).click()
            made.page.wait_for_timeout(500)
        sheet = ".workbench-panel:has(.workbench-do-cancel)"
        found = controls(made, ".workbench-tabs .workbench-panel:visible" if name in TABS else sheet)
        assert found or name == "Log", name
        state_when += len(found)
        acted[name] = begun(made, found)
    acted["titles of tabs"] = begun(made, tabs.element_handles())
    assert state_when > 60
    assert {name: each for name, each in acted.items() if each} == {}

    tabs.filter(has_text=TABS[0]).click()
    made.page.evaluate(
        "() => { jupyterapp.commands.execute = async (command) => { window.begun = command; }; }"
    )
    made.page.locator(".workbench-limit").first.focus()
    made.page.keyboard.press("Control+s")
    made.wait("() => window.begun === 'docmanager:save'")
