"""A new user's first session in headless Chromium: minutes from the clone to a held setting and to Apply,
seconds from Run to the first live point, and parts that are hard to read or to reach.

    python -m benchmarks.newcomer [--json FILE] [--quick]

It starts with a fresh clone and `make lab`'s environment. Notebook 01 runs to the first result, notebook 00
to a saving in one's own training, notebook 04 to a held setting. Notebook 05 runs to Apply and Undo, to its
end, where all panels are live, and to a sweep after an Apply in the same kernel. --quick uses the present
environment, and one width and theme instead of six. The time for checks of the page does not count.
`summary`: `minutes`, `first_point_s`, `own_saving` (per cent, and its error), `axe_serious`, `overlaps`,
`private_words`, `errors` (cells and parts that failed).
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from .common import arguments, chromium, finish, table

REPOSITORY = Path(__file__).resolve().parents[1]
LOOKS = ((900, "Light"), (900, "Dark"), (1280, "Light"), (1280, "Dark"), (1800, "Light"), (1800, "Dark"))
PATIENCE_S = 150.0
# The first panel of a running cell that has drawn a point.
POINT = """() => [...document.querySelectorAll('.workbench-panel')]
  .some(({ workbench: it }) => it?.series?.some((each) => each.length > 0))"""
HELD = """() => [...document.querySelectorAll('.workbench-tuner')]
  .some(({ workbench: it }) => ['hold', 'watch', 'done'].includes(it?.words?.state) && it.words.saved)"""
SHOWN = ".workbench-panel, .jp-OutputArea-output svg[role=img]"
SAVED = re.compile(r"saved \(([\d.]+) ± ([\d.]+) %\)")
SAYS = "() => [...document.querySelectorAll('.workbench-tuner .workbench-saved')].at(-1)?.textContent"
DEAD = """() => [...document.querySelectorAll('.jp-OutputArea-output.jupyter-widgets')]
  .filter((each) => !each.querySelector('.workbench-panel, .jupyter-widget-tab')).length"""
SWEEP = """workbench.gpu_control().apply(workbench.Setting(power_limit_w=150))
swept = workbench.sweep(lambda batch_size: train(10), {"power_limit_w": [125, 200]}, progress=False)
assert len(swept.points) == 2, swept
workbench.gpu_control().undo()"""
APPLIED = "() => [...document.querySelectorAll('.workbench-frontier')].at(-1)?.applied"


def cells(name: str) -> list[str]:
    """The code of a notebook."""
    found = nbformat.read(next((REPOSITORY / "notebooks").glob(f"{name}_*.ipynb")), as_version=4)
    return [cell.source for cell in found.cells if cell.cell_type == "code"]


def environment(directory: Path) -> float:
    """Seconds that a clone and its environment take, as `make lab` makes them before it starts."""
    began_s = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(directory)], check=True)
    text = (directory / "Makefile").read_text(encoding="utf-8")
    extra = "lab" if ".installed-lab" in text else "test"
    made = ["make", "--silent", f".venv/.installed-{extra}", f"EXTRAS={extra}"]
    subprocess.run(made, cwd=directory, check=True)
    return time.monotonic() - began_s


class Newcomer:
    """Runs cells one after the other, and counts errors and unreadable parts."""

    def __init__(self, lab: Any, page: Any, looks: Any, views: tuple[tuple[int, str], ...]) -> None:
        self.lab, self.page, self.looks, self.views = lab, page, looks, views
        self.errors: list[str] = []
        self.overlaps: list[str] = []
        self.serious: list[str] = []
        self.looked_s = 0.0
        self.saving: tuple[float, ...] = (math.nan, math.nan)

    def open(self, name: str, code: list[str]) -> Any:
        from lab import Notebook

        return Notebook(self.lab, self.page, f"newcomer-{name}", code)

    def run(self, notebook: Any, cell: int) -> None:
        notebook.run(cell)
        notebook.finish(cell, PATIENCE_S)
        for each in notebook.outputs(cell):
            if each["output_type"] == "error":
                self.errors.append(f"{notebook.path.stem} cell {cell}: {each['ename']}: {each['evalue']}")

    def look(self, notebook: Any) -> None:
        """Count text that overlaps, and axe-core's findings."""
        began_s = time.monotonic()
        for width, theme in self.views:
            self.page.set_viewport_size({"width": width, "height": 1400})
            notebook.theme(f"JupyterLab {theme}")
            if (panels := self.page.locator(SHOWN)).count():
                panels.last.evaluate("node => node.scrollIntoView()")
            self.page.wait_for_timeout(500)
            self.overlaps += self.looks.overlaps(self.page, SHOWN)
            if self.looks.AXE.is_file():
                self.serious += self.looks.serious(self.page)
        notebook.theme("JupyterLab Light")
        self.looked_s += time.monotonic() - began_s


def first_result(newcomer: Newcomer) -> float:
    """Notebook 01 to the first measured cell; seconds from Run to the first live point."""
    code = cells("01")
    # As `workbench lab` chooses it where there is no GPU.
    code[0] += "\nimport workbench\nif not workbench.devices():\n    workbench.simulate('V100')"
    measured = [n for n, cell in enumerate(code) if cell.lstrip().startswith("%%energy")][:2]
    notebook = newcomer.open("01", code[: measured[-1] + 1])
    for cell in range(measured[0]):
        newcomer.run(notebook, cell)
    point_s = math.nan
    for cell in measured:  # on a busy machine the first cell may end before its view is there
        began_s = time.monotonic()
        notebook.run(cell)
        widgets = "window.jupyterapp.shell.currentWidget.content.widgets"
        ended = f"{widgets}[{cell}].model.executionCount !== null"
        either = f"() => (({POINT})() && 'seen') || ({ended} && 'ended')"
        if notebook.wait(either, PATIENCE_S).json_value() == "seen":
            point_s = time.monotonic() - began_s
        notebook.finish(cell, PATIENCE_S)
        if point_s == point_s:
            break
    newcomer.look(notebook)
    newcomer.lab.stop_kernels()
    if math.isnan(point_s):
        newcomer.errors.append("01: both cells ended before a live point was seen")
    return point_s


def own_saving(newcomer: Newcomer) -> None:
    """Notebook 00 to what `--tune` has saved in a training of one's own."""
    code = cells("00")
    tuned = next(n for n, cell in enumerate(code) if "--tune" in cell)
    notebook = newcomer.open("00", code[: tuned + 1])
    for cell in range(tuned + 1):
        newcomer.run(notebook, cell)
    said = str(notebook.wait(SAYS, PATIENCE_S).json_value())
    if (found := SAVED.search(said)) is None:
        newcomer.errors.append(f"00: no saving ({said})")
    else:
        newcomer.saving = tuple(map(float, found.groups()))
    newcomer.look(notebook)
    newcomer.lab.stop_kernels()


def held(newcomer: Newcomer) -> None:
    """Notebook 04 to a held setting with its saving."""
    code = cells("04")
    tuned = next(n for n, cell in enumerate(code) if "--tune" in cell)
    notebook = newcomer.open("04", [*code[: tuned + 1], "workbench.panels.clocks()"])
    for cell in range(tuned + 2):
        newcomer.run(notebook, cell)
    notebook.wait(HELD, PATIENCE_S)
    newcomer.look(notebook)
    newcomer.lab.stop_kernels()


def applied(newcomer: Newcomer) -> None:
    """Notebook 05 to Apply and Undo in the frontier's panel."""
    code = cells("05")
    shown = next(n for n, cell in enumerate(code) if "panels.frontier(" in cell)
    notebook = newcomer.open("05", code[: shown + 1])
    for cell in range(shown + 1):
        newcomer.run(notebook, cell)
    notebook.wait(f"{APPLIED}?.view?.can_apply", PATIENCE_S)
    newcomer.page.locator(".workbench-frontier-plot").last.focus()
    newcomer.page.keyboard.press("ArrowRight")
    newcomer.page.locator(".workbench-frontier .workbench-do-apply:enabled").last.click()
    notebook.wait(f"{APPLIED}?.view?.can_undo", PATIENCE_S)
    newcomer.page.locator(".workbench-frontier .workbench-do-undo:enabled").last.click()
    notebook.wait(f"() => !({APPLIED})()?.view?.can_undo", PATIENCE_S)
    newcomer.look(notebook)
    newcomer.lab.stop_kernels()


def living(newcomer: Newcomer) -> None:
    """Notebook 05 from top to bottom, then a sweep in the same kernel; its panels live."""
    code = cells("05")
    notebook = newcomer.open("05-all", [*code, SWEEP])
    for cell in range(len(code) + 1):
        newcomer.run(notebook, cell)
    newcomer.page.wait_for_timeout(1000)
    if dead := newcomer.page.evaluate(DEAD):
        newcomer.errors.append(f"05: {dead} panels do not live after the last cell")
    newcomer.lab.stop_kernels()


PARTS: dict[str, Callable[[Newcomer], float | None]] = {
    "01: first result": first_result, "00: a saving of one's own": own_saving, "04: held setting": held,
    "05: apply and undo": applied, "05: to its end, and a sweep": living,
}


def play(quick: bool) -> dict[str, Any]:
    """The whole session.

    Raises:
        ImportError: Playwright or Chromium is not here.
    """
    browser = chromium()
    for folder in ("browser", "house"):
        sys.path.insert(0, str(REPOSITORY / "tests" / folder))
    import looks
    from lab import Lab, browser_page
    from test_words import private_terms

    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        if not quick:
            seconds["clone and environment"] = environment(Path(directory) / "clone")
        began_s = time.monotonic()
        with Lab(Path(directory) / "server") as lab, browser_page(browser, height=1400) as page:
            looks.note_text(page)
            seconds["start of the lab"] = time.monotonic() - began_s
            newcomer = Newcomer(lab, page, looks, LOOKS[2:3] if quick else LOOKS)
            point_s = 0.0
            for name, part in PARTS.items():
                began_s, looked_s = time.monotonic(), newcomer.looked_s
                try:
                    point_s = part(newcomer) or point_s
                except Exception as error:
                    newcomer.errors.append(f"{name}: {str(error).splitlines()[0]}")
                    lab.stop_kernels()
                seconds[name] = time.monotonic() - began_s - (newcomer.looked_s - looked_s)
                print(f"{name}: {seconds[name]:.1f} s", flush=True)
    words = private_terms()
    summary = {
        "minutes": sum(seconds.values()) / 60, "first_point_s": point_s,
        "own_saving": "{:g} ± {:g}".format(*newcomer.saving), "axe_serious": len(newcomer.serious),
        "overlaps": len(newcomer.overlaps), "private_words": len(words), "errors": len(newcomer.errors),
    }
    print(table(["part", "seconds"], list(seconds.items())))
    print(table(list(summary), [list(summary.values())]))
    for each in (*newcomer.errors, *newcomer.overlaps, *newcomer.serious, *words):
        print(f"  {each}")
    return {
        "summary": summary, "seconds": seconds, "errors": newcomer.errors, "overlaps": newcomer.overlaps,
        "axe_serious": newcomer.serious, "private_words": words, "axe": looks.AXE.is_file(), "quick": quick,
    }


def main() -> None:
    asked = arguments(__doc__ or "")
    finish(play(asked.quick), asked.json)


if __name__ == "__main__":
    main()
