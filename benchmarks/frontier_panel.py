"""A step of the frontier panel's slider at 10,000 observations: until the panel is redrawn, until the kernel
knows, and bytes sent.

    python -m benchmarks.frontier_panel [--json FILE] [--quick]

JupyterLab in headless Chromium, both on this machine; once with an idle kernel and once while a cell computes
in pure Python.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from .common import chromium, table

OBSERVATIONS = 10_000
STEPS = 100
CELL = """%load_ext workbench
import numpy as np, polars as pl, workbench
rng = np.random.default_rng(0)
time_s = rng.uniform(1.0, 4.0, COUNT)
energy_j = 100.0 / time_s * (1.0 + rng.exponential(0.3, COUNT)) + 20.0 * time_s
knobs = {"power_limit_w": rng.permutation(COUNT) / 10, "batch_size": rng.integers(16, 512, COUNT)}
points = pl.DataFrame({"time_s": time_s, "energy_j": energy_j, "energy_se_j": 0.001 * energy_j, **knobs})"""
BUSY = """import time
end, n = time.monotonic() + 600, 0
while time.monotonic() < end and panel.chosen is not None:
    for _ in range(20_000):
        n += 1"""
# Steps through the frontier by its slider; milliseconds from the event to the frame after the repaint, and to
# the kernel's answer.
STEP = """async (count) => {
  const root = [...document.querySelectorAll('.workbench-frontier')].at(-1);
  const { plot, model } = root.workbench;
  const view = [...await plot.figure.views][0];
  const slider = root.querySelector('.workbench-step-slider');
  const frame = () => new Promise(requestAnimationFrame);
  const drawn = [], heard = [];
  let repainted = () => {};
  view.repainted.connect(() => repainted());
  for (let step = 0; step < count; step += 1) {
    await frame();
    const painted = new Promise((resolve, reject) => {
      repainted = resolve;
      setTimeout(() => reject(new Error('no repaint in 20 s')), 20_000);
    });
    slider.value = (Number(slider.value) + 13) % model.front.length; // another point each time: what is the same is not drawn again
    const began = performance.now();
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    await painted;
    await frame();
    drawn.push(performance.now() - began);
    while (!root.workbench.heard() && performance.now() - began < 20_000) await new Promise((resolve) => setTimeout(resolve, 2));
    heard.push(performance.now() - began);
  }
  return { drawn, heard, front: model.front.length, count: model.count };
}"""


def steps(quick: bool) -> dict[str, Any]:
    """Milliseconds and bytes of a step, with an idle kernel and while a cell runs.

    Raises:
        ImportError: Playwright or Chromium is not here.
    """
    browser = chromium()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "browser"))
    from lab import Lab, Notebook, browser_page

    count = STEPS // 5 if quick else STEPS
    found: dict[str, Any] = {"observations": OBSERVATIONS, "steps": count}
    with (
        tempfile.TemporaryDirectory() as directory, Lab(Path(directory) / "server") as lab,
        browser_page(browser, height=1300) as page,
    ):
        traffic = {"sent": 0, "received": 0}
        page.on("websocket", lambda socket: _count(socket, traffic))
        cells = [
            CELL.replace("COUNT", str(OBSERVATIONS)), "panel = workbench.panels.frontier(points)\npanel",
            BUSY,
        ]
        notebook = Notebook(lab, page, "frontier", cells)
        for cell in (0, 1):
            notebook.run(cell)
            notebook.finish(cell, 120)
        page.wait_for_selector(".workbench-frontier .workbench-table tr[data-row]", timeout=60_000)
        page.wait_for_timeout(2000)
        found["points_bytes"] = traffic["received"]
        for name in ("idle", "busy"):
            if name == "busy":
                notebook.run(2)
                page.wait_for_timeout(1500)
            page.evaluate(STEP, 5)
            traffic.update(sent=0, received=0)
            seen = page.evaluate(STEP, count)
            if notebook.count(2) is not None:
                raise RuntimeError(f"the cell has ended before the steps were done: {notebook.outputs(2)}")
            found["frontier"] = seen["front"]
            found[name] = {
                "step_ms": statistics.median(seen["drawn"]),
                "p95_ms": statistics.quantiles(seen["drawn"], n=20)[-1], "worst_ms": max(seen["drawn"]),
                "heard_ms": statistics.median(seen["heard"]), "heard_worst_ms": max(seen["heard"]),
                "sent_bytes": traffic["sent"] / count, "received_bytes": traffic["received"] / count,
            }
        lab.stop_kernels()
    found["step_ms"] = max(found[name]["step_ms"] for name in ("idle", "busy"))
    found["worst_ms"] = max(found[name]["worst_ms"] for name in ("idle", "busy"))
    found["bytes_per_step"] = max(
        found[name]["sent_bytes"] + found[name]["received_bytes"] for name in ("idle", "busy")
    )
    heads = ["kernel", "redrawn, ms", "95 %", "worst", "kernel knows, ms", "worst", "bytes out", "bytes in"]
    print(f"{OBSERVATIONS} observations, {found['frontier']} on the frontier, {count} steps of the slider")
    print(table(heads, [[name, *found[name].values()] for name in ("idle", "busy")]))
    return found


def _count(socket: Any, traffic: dict[str, int]) -> None:
    """Add up what a websocket carries."""
    for event, way in (("framesent", "sent"), ("framereceived", "received")):
        socket.on(event, lambda payload, way=way: traffic.__setitem__(way, traffic[way] + len(payload)))


def main() -> None:
    import argparse
    import json

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    found = steps(chosen.quick)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
