"""Other front ends than a JupyterLab at the root of its server: behind a JupyterHub's prefix, and Notebook 7.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from lab import Lab, Notebook
from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = (
    "%load_ext workbench\n%gpu simulate V100",
    "%%energy train\nimport os, time\nwhile not os.path.exists('enough'): time.sleep(0.05)",
)


def measure(lab: Lab, page: Page) -> None:
    """A measured cell has a live view while it runs, and its result afterwards."""
    made = Notebook(lab, page, "front", CELLS)
    made.execute(0)
    made.run(1)
    made.until("it.points[0] > 15 && it.state === 'running'")
    made.enough()
    made.finish(1)
    made.wait("() => document.querySelector('.jp-OutputArea')?.closest('body').innerText.includes('train')")
    bundles = [each["data"] for each in made.outputs(1) if "data" in each]
    assert any("<svg" in str(each.get("text/html", "")) for each in bundles)
    assert any(" J (sensor" in str(each.get("text/plain", "")) for each in bundles)
    made.until("it.state === 'done' && it.answer.includes('sensor')")
    lab.stop_kernels()


def test_a_notebook_behind_a_hubs_prefix_is_as_any_other(page: Page, tmp_path: Path) -> None:
    with Lab(tmp_path / "server", options=["--ServerApp.base_url=/user/x/"]) as lab:
        assert lab.url.endswith("/user/x/")
        measure(lab, page)


@pytest.mark.skipif(importlib.util.find_spec("notebook") is None, reason="Notebook 7 is not installed: pip install notebook")
def test_notebook_7_is_as_jupyterlab(page: Page, tmp_path: Path) -> None:
    with Lab(tmp_path / "server", "notebook") as lab:
        measure(lab, page)
