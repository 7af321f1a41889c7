"""The whole workbench in JupyterLab: tabs, state in a notebook that is reopened, a view of its own, the
picture without a kernel.
"""

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
  return current?.textContent === 'Apply' && panel?.workbench?.view?.status.includes(': 200 W') && panel.offsetHeight > 100;
}"""


def test_it_keeps_its_state_when_reopened_and_leaves_a_picture(notebook: Make) -> None:
    made = notebook(
        [SET_UP, "opened = workbench.panels.open(points)\nopened", "opened.show()", "opened.finish()"]
    )
    made.execute(0, 1)
    tabs = made.page.locator(".jupyter-widget-tab .lm-TabBar-tab")
    made.wait("() => document.querySelectorAll('.jupyter-widget-tab .lm-TabBar-tab').length === 6")
    assert tabs.all_inner_texts() == ["Power and periods", "Frontier", "Clocks", "Apply", "Cluster", "Log"]
    tabs.filter(has_text="Apply").click()
    made.wait("() => document.querySelector('.workbench-apply')?.workbench?.view?.can_apply")
    made.page.locator(".workbench-apply input[type=number]").first.fill("200")
    made.page.keyboard.press("Tab")
    made.page.locator(".workbench-apply .workbench-do-apply:enabled").click()
    made.wait(SHOWN)
    made.save()
    made.open()
    made.wait(SHOWN)

    picture = made.outputs(1)[0]["data"]["text/html"]  # as it was displayed, for a reader without a kernel
    assert "".join(picture).count("<svg") >= 3
    assert "<script" not in "".join(picture)

    made.execute(2, 3)
    made.wait(
        "() => [...document.querySelectorAll('svg[role=img]')].some((each) => each.closest('details[open]'))",
    )
    left = made.outputs(2)[0]["data"]
    assert "application/vnd.jupyter.widget-view+json" not in left
    assert "200 W (applied" in "".join(left["text/html"])


CLUSTER = """() => {
  const root = document.querySelector('.workbench-cluster');
  const plots = root?.workbench?.plots;
  if (!plots || root.workbench.run.state !== 'done' || root.querySelectorAll('.workbench-table tbody tr').length !== 2) return false;
  const wide = plots.figure.frames.filter(({ plot }) => plot.visible).map(({ plot }) => plot.outer_width);
  const inner = root.getBoundingClientRect().width;
  return wide.length === 4 && wide.every((each) => each > 0.4 * inner && each <= 0.55 * inner) && [...plots.layers[2].values()].filter((each) => each.data_source.get_length()).length === 2;
}"""


@pytest.mark.slow
def test_policies_that_were_run_while_their_tab_was_hidden_are_drawn_when_it_comes_to_the_front(
    notebook: Make,
) -> None:
    log = "generate(100, gpus=32, seed=3, load=0.9, mean_s=4000.0)"
    run = "_ = opened.panels['Cluster'].run(nodes=4, policies=['fifo-best-fit', 'ours'])"
    show = f"opened = workbench.panels.open(points, log={log})\nopened"
    made = notebook([f"{SET_UP}\nfrom workbench.cluster import generate", show, run])
    made.execute(0, 1)
    tabs = made.page.locator(".jupyter-widget-tab .lm-TabBar-tab")
    made.wait("() => document.querySelectorAll('.jupyter-widget-tab .lm-TabBar-tab').length === 6")
    made.execute(2)
    tabs.filter(has_text="Cluster").click()
    made.wait(CLUSTER)
    tabs.filter(has_text="Frontier").click()
    tabs.filter(has_text="Cluster").click()
    made.page.locator(".workbench-cluster .workbench-do-run").click()
    made.wait(CLUSTER)


VIEWS = """() => [...document.querySelectorAll('.workbench-frontier')].map((root) => {
  const { choice, plot } = root.workbench;
  const chosen = plot.moved.find(({ kind, shape }) => kind === 'dot' && shape === 'circle');
  const text = (selector) => root.querySelector(selector)?.textContent;
  return { ...choice, at: chosen.rows.x[0], title: plot.figure.frames[0].plot.title.text, head: text('.workbench-headline'),
           code: text('.workbench-code'), listed: text('tr[aria-selected=true]'),
           sliders: [...root.querySelectorAll('input[type=range]')].map((each) => each.value) };
})"""
ALIKE = (
    f"() => {{ const [one, other] = ({VIEWS})(); return JSON.stringify(one) === JSON.stringify(other) && "
    f"(CONDITION); }}"
)
NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find((each) => each.content?.widgets)"
DISPLAYED = """() => [...document.querySelectorAll('.jp-OutputArea-child')]
  .filter((each) => each.offsetHeight > 0).map((each) => each.innerText)"""


@pytest.mark.slow
def test_two_views_of_a_frontier_stay_in_step_and_a_file_is_saved_once(notebook: Make) -> None:
    made = notebook([SET_UP, "workbench.panels.frontier(points)"])
    made.execute(0, 1)
    made.wait("() => document.querySelector('.workbench-frontier')?.workbench")
    made.page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    made.wait(
        "() => [...document.querySelectorAll('.workbench-frontier')].filter((each) => each.workbench).length "
        "=== 2",
    )
    plots = made.page.locator(".workbench-frontier-plot")
    plots.last.focus()
    made.page.keyboard.press("End")
    made.wait(ALIKE.replace("CONDITION", "one.head.endsWith('time: 150 W') && one.code.includes('=150')"))
    plots.first.focus()
    made.page.keyboard.press("Home")
    made.wait(ALIKE.replace("CONDITION", "one.head.startsWith('Default: 250 W')"))
    made.page.locator(".workbench-toggle-relative").first.click()
    made.wait(ALIKE.replace("CONDITION", "one.title.startsWith('Energy against the default')"))
    saved: list[str] = []
    made.page.on("download", lambda download: saved.append(download.suggested_filename))
    for what in ("csv", "svg"):
        with made.page.expect_download():
            made.page.locator(f".workbench-do-{what}").last.click()
    made.page.wait_for_timeout(500)
    assert saved == ["frontier.csv", "frontier.svg"]


@pytest.mark.slow
def test_after_a_restart_it_reports_that_and_a_saved_notebook_keeps_the_last_picture(notebook: Make) -> None:
    made = notebook([SET_UP, "workbench.panels.frontier(points)", "workbench.panels.open(points)"])
    made.execute(0, 1, 2)
    made.wait(
        "() => [...document.querySelectorAll('.workbench-frontier')].filter((each) => each.workbench).length "
        ">= 1",
    )
    first = made.page.locator(".workbench-frontier-plot").first
    first.focus()
    made.page.keyboard.press("End")
    kept = "JSON.stringify(NOTEBOOK.content.widgets[1].model.outputs.toJSON()[0].data['text/html'])".replace(
        "NOTEBOOK", NOTEBOOK
    )
    made.wait(f"() => {kept}.includes('Selected, step 3 of 3')")  # the picture follows when the choice rests
    assert all("<svg" not in "".join(each["data"].get("text/html", "")) for each in made.outputs(1)[1:])
    assert len(made.page.evaluate(DISPLAYED)) == 2  # the pictures are hidden while the panels live
    made.save()

    made.page.evaluate(f"async () => {{ await {NOTEBOOK}.sessionContext.session.kernel.restart(); }}")
    gone = "[...document.querySelectorAll('.workbench-problem')].filter((each) => each.offsetHeight)"
    made.wait(
        "() => NOTEBOOK.sessionContext.session.kernel.status === 'idle'".replace("NOTEBOOK", NOTEBOOK)
    )
    made.wait(
        f"() => {gone}.length && {gone}.every((each) => each.textContent.includes('Run the cell again'))"
    )
    first.focus()
    made.page.keyboard.press("Home")
    made.wait(f"() => ({VIEWS})()[0].head.startsWith('Default: 250 W')")  # the browser still steps
    # A line for another choice would mislead.
    made.page.locator(".workbench-code").first.wait_for(state="hidden")
    made.wait("() => [...document.querySelectorAll('.workbench-waits')].every((each) => each.innerText === '')")

    made.lab.stop_kernels()
    made.open()  # as saved, on a kernel that knows nothing of it
    made.wait("() => document.querySelectorAll('[data-workbench-picture] svg[role=img]').length >= 3")
    made.wait(f"() => ({DISPLAYED})().length === 2")
    one, whole = made.page.evaluate(DISPLAYED)
    assert "time: 150 W" in one
    assert "Frontier" in whole
    assert "model not found" not in made.page.locator(".jp-Notebook").inner_text()


FOCUSED = """() => {
  const at = document.activeElement;
  return { name: at.className, label: at.labels?.[0]?.textContent ?? at.ariaLabel ?? at.textContent,
           within: Boolean(at.closest('.jupyter-widget-tab')), ring: getComputedStyle(at).outlineStyle };
}"""


def test_a_configuration_is_chosen_and_applied_by_keys_alone(notebook: Make) -> None:
    made = notebook([SET_UP, "opened = workbench.panels.open(points)\nopened.select('Frontier')\nopened"])
    made.execute(0, 1)
    made.wait(
        "() => document.querySelector('.workbench-frontier .bk-Plot') && "
        "document.querySelector('.workbench-code').textContent",
    )

    def walk(key: str, name: str) -> None:
        for _ in range(40):
            made.page.keyboard.press(key)
            at = made.page.evaluate(FOCUSED)
            assert at["within"], f"the keys have left the workbench on the way to {name}"
            assert at["label"].strip(), f"nothing names {at['name']}"
            assert at["ring"] != "none", f"nothing shows that {at['name']} has the keys"
            if name in at["name"]:
                return
        raise AssertionError(f"the keys do not come to {name}")

    made.page.locator(".jupyter-widget-tab .lm-mod-current").focus()
    walk("Tab", "workbench-frontier-plot")
    made.page.keyboard.press("End")
    made.wait(
        "() => document.querySelector('.workbench-frontier .workbench-headline').textContent.endsWith('150 W')",
    )
    walk("Tab", "workbench-do-apply")
    made.page.keyboard.press("Enter")
    made.wait("() => document.querySelector('.workbench-frontier').applied.view.status.includes(': 150 W')")
    walk("Tab", "workbench-do-undo")
    made.page.keyboard.press("Enter")
    made.wait("() => document.querySelector('.workbench-frontier').applied.view.status.includes(': 250 W')")
