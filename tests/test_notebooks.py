"""The notebooks run from top to bottom on the simulated GPU, and what they show is what a newcomer is promised."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, simulated, monkeypatch):
    simulated("A100")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    texts = [output.get("data", {}).get("text/plain", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    results = [text for text in texts if " J, " in text]
    assert len(results) >= 6
    assert all("simulated" in text for text in results)

    # What `nbconvert --to html` makes of it can be read without a kernel: the picture and the line.
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert "<svg" in page
    assert "<summary" in page
    assert "Error displaying widget" not in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_the_kernel_with_the_extension_and_no_machine(path):
    raw = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(raw, as_version=4)
    assert notebook.metadata.kernelspec.name == "gpu-energy-workbench"
    assert "/home/" not in raw
    assert "/root/" not in raw
