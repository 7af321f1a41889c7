"""A tuned cell in JupyterLab: probes appear while it runs, buttons and slider steer it, a picture stays,
the GPU is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the panel of the tuner that is shown last says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-panel')].filter((each) => each.querySelector('.workbench-steps')).at(-1);
  if (!root?.workbench) return null;
  const { plots, words, drawing, knob } = root.workbench;
  const of = (selector) => root.querySelector(selector);
  const names = ['start', 'step', 'pause', 'hold', 'stop'];
  const frames = plots.layers.map((layers) => [...layers].map(([look, { data_source: { data } }]) => ({ ...JSON.parse(look), data })));
  const rows = (frame, kind, column) => (frames[frame] ?? []).filter((layer) => layer.kind === kind).flatMap(({ data }) => [...(data[column] ?? [])]);
  const disabled = Object.fromEntries(names.map((name) => [name, of(`.workbench-do-${name}`).disabled]));
  return {
    state: words?.state ?? '', headline: of('.workbench-headline').textContent, details: of('.workbench-details').textContent,
    events: of('.workbench-events').textContent, step: of('[aria-current]')?.textContent ?? '', saved: of('.workbench-saved').textContent,
    bound: words?.bound ?? null, bound_words: of('.workbench-slowdown-words').textContent, disabled,
    choice: rows(0, 'dot', 'y')[rows(0, 'dot', 'size').indexOf(15)] ?? null,
    tried: rows(0, 'dot', 'hover0').filter((words) => /^[0-9]/.test(words)).length, believed: rows(0, 'cloud', 'x').length, cells: rows(1, 'box', 'left').length,
    knob: knob(), now: rows(0, 'dot', 'size').includes(22), badge: !of('.workbench-badge').hidden, ink: plots.figure.frames[0]?.left.major_label_text_color,
    problem: root.parentElement.querySelector('.workbench-problem').textContent,
  };
}"""
SET_UP = """
%load_ext workbench
import time, workbench
from pathlib import Path
from workbench.simulation.training import TrainingJob
session = workbench.simulate("RTX3080TI", stepped=True)
found = session.devices[0].setting()
"""
TRAIN = """
for batch in TrainingJob("librispeech", batch_size=64, iterations=100_000):
    workbench.step()
    time.sleep(0.02)
    while batch.iteration == 3 and Path("hold").exists():
        time.sleep(0.02)
    if Path("enough").exists():
        break
"""
BACK = "session.devices[0].setting() == found"


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on the state of the view, `it`; returns it."""
    return notebook.until(condition, observe=SEE)


def press(notebook: Notebook, name: str) -> None:
    notebook.page.locator(f".workbench-do-{name}:enabled").last.click()


def slide(notebook: Notebook, percent: float) -> None:
    """Drag the slider of the slowdown, which ends at 30.5 %."""
    slider = notebook.page.locator(".workbench-slowdown").last
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    notebook.page.mouse.move(box["x"] + 0.2 * box["width"], y)
    notebook.page.mouse.down()
    for share in (0.3, 0.6, percent / 30.5):
        notebook.page.mouse.move(box["x"] + 8 + share * (box["width"] - 16), y)  # the thumb is 16 wide
    notebook.page.mouse.up()


@pytest.fixture
def opened(notebook: Make) -> Notebook:
    made = notebook([SET_UP, f"%%energy train --tune --over clocks --max-slowdown 5{TRAIN}", BACK])
    made.execute(0)
    return made


def test_a_running_cell_is_tuned_and_steered_and_leaves_a_picture(opened: Notebook) -> None:
    opened.flag("hold", True)
    opened.run(1)
    state_when(opened, "['detect', 'baseline', 'hold'].includes(it.state)")  # held by its clocks meanwhile
    opened.flag("hold", False)
    first = state_when(opened, "it.tried >= 1 && it.choice !== null")
    assert first["badge"]  # simulated, and it says so
    assert first["knob"] == "sm"
    assert first["believed"] > 20
    press(opened, "pause")
    paused = state_when(opened, "it.headline.startsWith('Paused') && it.disabled.pause")
    assert not paused["disabled"]["start"]
    press(opened, "step")
    # One more trial, or none is worth it; then it is paused again.
    more = f"it.tried > {paused['tried']} || it.events.includes('nothing more to try')"
    state_when(opened, f"it.disabled.pause && ({more})")
    press(opened, "start")
    held = state_when(opened, "it.step === 'holding' && it.headline.startsWith('Holding SM ') && it.tried")
    assert "slower" in held["headline"]  # why this setting
    assert held["details"].startswith("held: SM ")
    assert opened.count(1) is None  # all this while the cell runs

    slide(opened, 20)
    state_when(opened, "it.bound > 15 && it.bound < 25 && it.choice !== null && it.bound_words === `${it.bound} %`")
    # More is allowed, and taken where it pays: the least energy may lie within the first bound already.
    state_when(opened, f"it.choice < {held['choice'] + 1}")
    press(opened, "hold")
    pinned = state_when(opened, "it.events.includes('by hand')")
    assert pinned["problem"] == ""

    opened.theme("JupyterLab Dark")
    assert state_when(opened, f"it.ink !== '{first['ink']}'")["ink"] != first["ink"]
    opened.theme("JupyterLab Light")
    press(opened, "stop")
    # It stays, and nothing can be asked of it.
    state_when(opened, "it.state === 'done'")
    assert opened.page.locator(".workbench-do-stop:visible").count() == 0
    assert opened.count(1) is None

    opened.enough()
    opened.finish(1)
    outputs = opened.outputs(1)
    pictures = [
        output["data"]["text/html"]
        for output in outputs
        if "<svg" in output.get("data", {}).get("text/html", "")
    ]
    assert any("default" in picture and "choice" in picture for picture in pictures)
    panels = "() => [...document.querySelectorAll('.workbench-panel, .workbench-tuner')].map((each) => each.className)"
    assert "workbench-tuner" in opened.page.evaluate(panels)[0]  # what was saved stands first
    opened.execute(2)
    assert opened.outputs(2)[0]["data"]["text/plain"] == "True"  # the GPU is as it was


@pytest.mark.slow
def test_start_tunes_the_running_work_and_stop_restores_the_gpu(notebook: Make) -> None:
    opened = notebook([SET_UP, "workbench.panels.clocks()", TRAIN, BACK])
    opened.execute(0, 1)
    idle = state_when(opened, "it.headline.startsWith('No tuning yet')")
    assert idle["disabled"] == {"start": False, "step": True, "pause": True, "hold": True, "stop": True}
    opened.run(2)
    press(opened, "start")
    state_when(opened, "it.tried >= 1")
    assert opened.count(2) is None
    press(opened, "stop")
    ended = state_when(opened, "it.state === 'done' && !it.disabled.start")
    assert ended["problem"] == ""
    opened.enough()
    opened.finish(2)
    opened.execute(3)
    assert opened.outputs(3)[0]["data"]["text/plain"] == "True"
