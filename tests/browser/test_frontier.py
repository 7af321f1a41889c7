"""The frontier in JupyterLab: sliders and keys move the choice and the table immediately. The kernel receives
each move, also while a cell runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lab import Notebook

pytestmark = pytest.mark.browser
Make = Callable[[Sequence[str]], Notebook]

# What the frontier panel says and draws.
SEE = """() => {
  const root = [...document.querySelectorAll('.workbench-frontier')].at(-1);
  if (!root?.workbench) return null;
  const { plot, view, choice, table, heard } = root.workbench;
  const [frame] = plot.figure.frames;
  const rows = (mark) => plot.moved.find(({ kind, shape }) => kind === 'dot' && shape === mark).rows;
  const of = (selector) => root.querySelector(selector);
  return {
    row: choice.row, rule: choice.rule, eta: choice.eta, slowdown: choice.slowdown, heard: heard(), front: view.front, count: view.table[0].values.length,
    limit: view.table.find(({ name }) => name === 'limit (W)').values[choice.row], at: rows('circle').x[0],
    iso: choice.moved.filter(({ kind }) => kind === 'line').flatMap(({ rows }) => rows.y), bound: choice.moved.filter(({ kind }) => kind === 'box').flatMap(({ rows }) => rows.right),
    hollow: view.figure[0][0].layers.filter(({ kind, shape }) => kind === 'dot' && shape === 'circle').flatMap(({ rows }) => rows.fill).filter((fill) => !fill).length,
    title: frame.plot.title.text, below: frame.below.axis_label, end: frame.x.end,
    headline: of('.workbench-headline').textContent, details: of('.workbench-details').textContent, note: of('.workbench-note').textContent,
    code: of('.workbench-code').textContent, waits: of('.workbench-waits').textContent,
    selected: of('tr[aria-selected="true"]')?.textContent ?? '', listed: table.rows.length,
    painted: root.querySelectorAll('tr[data-row]').length,
    first: of('tr[data-row]')?.textContent ?? '', sorted: of('th[aria-sort=ascending],th[aria-sort=descending]')?.textContent,
    badge: !of('.workbench-badge').hidden,
    ink: frame.left.major_label_text_color, problem: root.parentElement.querySelector('.workbench-problem').textContent,
  };
}"""
SET_UP = """
%load_ext workbench
import polars as pl, workbench
from workbench.tariff import Tariff
rows = [(20 / (w / 300) ** 0.35 * (1 + 0.1 * (b == 32)), 5.0 * w + 3000, 20.0, float(w), b, b == 64 or w % 40 == 0)
        for b in (32, 64) for w in range(100, 301, 20)]
points = pl.DataFrame(rows, orient="row", schema=["time_s", "energy_j", "energy_se_j", "power_limit_w", "batch_size", "measured"])
heard = []
"""
OPEN = """panel = workbench.panels.frontier(points, unit="epoch", epochs=90, tariff=Tariff(0.3, "EUR", 400), max_slowdown=0.1)
panel.on_choice(lambda chosen: heard.append(chosen.setting.power_limit_w))
panel"""
BUSY = """
import time
while not heard or heard[-1] != 100:
    time.sleep(0.05)
print(heard[-1])
"""
EXECUTE = "code => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code }).done"
# Every choice is preceded by what the kernel would have sent before the first.
LATE = """
content, buffers = panel.news(whole=True)
panel.on_choice(lambda chosen: panel.send({**content, "kind": "points"}, buffers))
"""
# One call into C that lets no other thread of the kernel run, until the test opens the pipe, too.
DEAF = """
import ctypes, os
os.mkfifo("pipe")
open("deaf", "w").close()
_ = ctypes.PyDLL(None).open(b"pipe", os.O_RDONLY)
"""


def state_when(notebook: Notebook, condition: str) -> dict[str, Any]:
    """Wait for a condition (JavaScript) on the state of the view, `it`; returns it."""
    return notebook.until(condition, observe=SEE)


def hear(notebook: Notebook) -> None:
    """Let the kernel receive messages again after `deafen`."""
    (notebook.lab.notebooks / "pipe").write_bytes(b"")
    notebook.finish(5)


def deafen(notebook: Notebook) -> None:
    for name in ("pipe", "deaf"):
        notebook.flag(name, False)  # of the test before
    notebook.run(5)
    while not (notebook.lab.notebooks / "deaf").exists():
        notebook.page.wait_for_timeout(20)


def press(notebook: Notebook, where: str, key: str, times: int = 1) -> None:
    notebook.page.locator(where).last.focus()
    for _ in range(times):
        notebook.page.keyboard.press(key)


@pytest.fixture
def opened(notebook: Make) -> Notebook:
    update = "panel.update(points.filter(pl.col('power_limit_w') != 100))"
    made = notebook([SET_UP, OPEN, BUSY, update, "panel.chosen", DEAF])
    made.execute(0, 1)
    state_when(made, "it.row >= 0")
    return made


def test_sliders_keys_and_clicks_move_the_choice_the_table_and_the_kernel(
    opened: Notebook, tmp_path: Path
) -> None:
    page = opened.page
    first = state_when(opened, "it.heard && it.row >= 0")
    assert (first["rule"], first["slowdown"], first["limit"]) == ("slowdown", 10, 240)
    assert first["hollow"] == 5  # of batch size 32, every other limit is predicted; one is out of sight
    assert first["headline"].startswith("−6.7 % energy for +")
    assert first["headline"].endswith(": 240 W, batch size 64")
    assert first["details"].startswith("Least energy ")
    assert "Per job" in first["details"]
    assert "EUR" in first["details"]
    assert "240" in first["selected"]

    press(opened, ".workbench-frontier-plot", "ArrowLeft")
    faster = state_when(opened, "it.limit === 260 && it.heard && it.code.includes('power_limit_w=260')")
    assert faster["rule"] == "hand"
    assert "260" in faster["selected"]
    assert faster["at"] < first["at"]
    press(opened, ".workbench-frontier-plot", "End")
    state_when(opened, "it.limit === 240 && it.heard")  # the bound is kept

    press(opened, ".workbench-bound", "End")
    free = state_when(opened, "it.slowdown === null && it.limit === 100 && it.heard")
    assert free["bound"] == []  # least energy of all
    press(opened, ".workbench-eta", "Home")
    state_when(opened, "it.eta === 0 && it.limit === 300 && it.heard")  # only time counts
    press(opened, ".workbench-eta", "End")
    energy_only = state_when(opened, "it.eta === 1 && it.limit === 100 && it.heard")
    assert energy_only["iso"][0] == energy_only["iso"][1]  # only energy counts
    slider = page.locator(".workbench-step-slider").last
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    state_when(opened, "it.rule === 'hand' && it.limit === 200 && it.heard")

    page.locator(".workbench-toggle-every").last.click()
    page.locator(".workbench-sort", has_text="energy").first.click()
    listed = state_when(opened, "it.listed === 22 && it.sorted === 'energy'")
    assert listed["painted"] < 22
    page.locator(".workbench-table tr[data-row] td").first.hover()
    page.mouse.down()  # other points arrive before the button is released: the row has another number then
    other = "panel.update(points.filter(pl.col('power_limit_w').ne(260) | pl.col('batch_size').eq(64)))"
    page.evaluate(EXECUTE, other)
    state_when(opened, "it.listed === 21")
    page.mouse.up()
    assert state_when(opened, "it.heard && it.limit === 100")["problem"] == ""

    page.locator(".workbench-toggle-relative").last.click()
    relative = state_when(opened, "it.title.startsWith('Energy against the default')")
    assert relative["below"].endswith("default (%)")
    for what, begins in (("csv", b"time_s,"), ("svg", b"<svg"), ("png", b"\x89PNG"), ("parquet", b"PAR1")):
        with page.expect_download() as caught:
            page.locator(f".workbench-do-{what}").last.click()
        path = tmp_path / f"frontier.{what}"
        caught.value.save_as(path)
        assert path.read_bytes().startswith(begins)
    opened.theme("JupyterLab Dark")
    assert state_when(opened, f"it.ink !== '{first['ink']}'")["ink"] != first["ink"]
    opened.theme("JupyterLab Light")


@pytest.mark.slow
def test_the_kernel_receives_a_step_during_a_cell_and_a_stale_choice_moves(opened: Notebook) -> None:
    state_when(opened, "it.heard && it.row >= 0")
    opened.run(2)
    press(opened, ".workbench-bound", "End")
    press(opened, ".workbench-frontier-plot", "End")
    last = state_when(opened, "it.limit === 100 && it.heard")
    assert last["waits"] == ""
    opened.finish(2)  # the loop ends when it has heard
    assert opened.outputs(2)[0]["text"] == "100.0\n"
    press(opened, ".workbench-frontier-plot", "ArrowLeft")
    press(opened, ".workbench-frontier-plot", "ArrowRight")
    state_when(opened, "it.limit === 100 && it.rule === 'hand' && it.heard")
    opened.run(3)
    moved = state_when(opened, "it.count === 20 && it.limit === 120")
    assert re.search("100 W.*120 W", moved["note"])
    opened.execute(4)
    assert "power_limit_w=120" in opened.outputs(4)[0]["data"]["text/plain"]


@pytest.mark.slow
def test_it_steps_while_the_kernel_is_busy_and_shows_how_long_it_waits(opened: Notebook) -> None:
    state_when(opened, "it.heard && it.row >= 0")
    deafen(opened)
    press(opened, ".workbench-frontier-plot", "ArrowLeft")
    deaf = state_when(opened, "it.waits !== ''")
    assert "cell ends" in deaf["waits"]
    assert (deaf["limit"], deaf["heard"]) == (260, False)
    press(opened, ".workbench-frontier-plot", "ArrowLeft")
    assert state_when(opened, "it.limit === 280")["details"].startswith("Selected, step 2 of")
    hear(opened)
    state_when(opened, "it.heard && it.waits === '' && it.code.includes('power_limit_w=280')")
    opened.save()
    opened.open()  # the page is loaded anew, the kernel lives on
    again = state_when(opened, "it.heard && it.row >= 0")
    assert (again["limit"], again["rule"]) == (280, "hand")
    assert "power_limit_w=280" in again["code"]


@pytest.mark.slow
def test_steps_start_where_the_limit_before_them_leads_and_older_news_do_not_undo_them(
    opened: Notebook,
) -> None:
    state_when(opened, "it.heard && it.row >= 0")
    opened.page.evaluate(EXECUTE, LATE)
    deafen(opened)
    press(opened, ".workbench-bound", "End")  # to 100 W, as the kernel will answer
    press(opened, ".workbench-frontier-plot", "ArrowLeft", times=3)
    hear(opened)
    last = state_when(opened, "it.heard && it.limit === 160 && it.code.includes('power_limit_w=160')")
    assert (last["rule"], last["slowdown"]) == ("hand", None)


RESTS = """async (seconds) => {
  const root = [...document.querySelectorAll('.workbench-frontier')].at(-1).parentElement;
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const seen = { writes: 0, messages: 0 };
  const observer = new MutationObserver((changes) => (seen.writes += changes.length));
  observer.observe(root, { subtree: true, childList: true, attributes: true, characterData: true });
  const count = (_, { msg }) => (seen.messages += Number(msg.header.msg_type === 'comm_msg'));
  kernel.anyMessage.connect(count);
  await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  kernel.anyMessage.disconnect(count);
  observer.disconnect();
  return seen;
}"""


@pytest.mark.slow
def test_an_unchanged_view_writes_nothing_and_sends_no_message(notebook: Make) -> None:
    made = notebook([SET_UP, "workbench.panels.frontier(points)"])
    for cell in (0, 1):
        made.run(cell)
        made.finish(cell)
    state_when(made, "it.count > 0 && it.heard")
    made.page.mouse.move(2, 2)
    made.wait("() => (globalThis.restsSince ??= performance.now()) < performance.now() - 12_000")
    assert made.page.evaluate(RESTS, 5) == {"writes": 0, "messages": 0}
    plot = made.page.locator(".workbench-frontier-plot").last
    plot.focus()
    made.page.keyboard.press("End")
    state_when(made, "it.heard && it.code.includes('power_limit_w')")
    assert made.page.evaluate("() => [...document.querySelectorAll('.workbench-frontier')].at(-1).workbench.heard()")
