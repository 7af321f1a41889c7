"""Execute the notebooks on simulated GPUs and keep them with their outputs for the documentation.

    python -m tools.tutorials             those whose code has changed; of others texts are taken over
    python -m tools.tutorials NAME ...    those of these names; all of them take some five minutes

The copies lie in docs/tutorials. Cells are those of `notebooks/`; a test says which copy is old.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "notebooks"
COPIES = ROOT / "docs" / "tutorials"
KEPT = ("text/html", "image/png", "image/svg+xml")  # of an output the first of them, and its words
REAL_TIME, STEPPED = 'simulate("V100", scale=2)', 'simulate("V100", stepped=True)'


def execute(path: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs that it has on a stepped simulated GPU."""
    from workbench.simulation.machine import simulate

    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOME=home, WORKBENCH_HOME=f"{home}/workbench", IPYTHONDIR=f"{home}/ipython")
        machine = simulate("V100" if path.stem.startswith("01") else "A100", stepped=True, seed=1)
        try:
            for cell in notebook.cells:
                cell.source = cell.source.replace(REAL_TIME, STEPPED)
            NotebookClient(
                notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": SOURCES}}
            ).execute()
        finally:
            machine.close()
        for cell, source in zip(notebook.cells, sources, strict=True):
            cell.source = source
            cell.pop("id", None)
            cell.metadata = nbformat.from_dict({})
            if cell.cell_type == "code":
                cell.outputs = [kept for output in cell.outputs if (kept := _stored(output, home))]
    notebook.metadata = nbformat.from_dict({
        "kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"},
    })
    notebook.nbformat_minor = 4
    return notebook


def _stored(output: nbformat.NotebookNode, home: str) -> nbformat.NotebookNode | None:
    """An output without what only a kernel or one machine understands; None where nothing is left."""
    output.pop("transient", None)
    data = output.get("data")
    if data is None:
        if "text" in output:
            output.text = _without_places(output.text, home)
        if "traceback" in output:
            output.traceback = [_without_places(line, home) for line in output.traceback]
        return output
    kind = next((kind for kind in KEPT if data.get(kind)), None)
    kept = {name: data[name] for name in filter(None, (kind, "text/plain")) if data.get(name)}
    if not any(str(value).strip() for value in kept.values()):
        return None
    output.data = nbformat.from_dict({
        name: _without_places(value, home) if name.startswith("text/") else value
        for name, value in kept.items()
    })
    output.metadata = nbformat.from_dict({})
    return output


def _without_places(text: str, home: str) -> str:
    text = text.replace(home, "~").replace(str(ROOT), "gpu-energy-workbench")
    return re.sub(r"/(?:tmp|dev/shm)/[\w.-]+", "/tmp/...", text)


def same_code(path: Path, copy: Path) -> nbformat.NotebookNode | None:
    """The copy with the texts of its notebook; None where a cell of code is another, or there is no copy."""
    if not copy.is_file():
        return None
    notebook, kept = (nbformat.read(each, as_version=4) for each in (path, copy))
    if [_code(cell) for cell in notebook.cells] != [_code(cell) for cell in kept.cells]:
        return None
    for cell, stored in zip(notebook.cells, kept.cells, strict=True):
        stored.source = cell.source
    return kept


def _code(cell: nbformat.NotebookNode) -> str | None:
    return cell.source if cell.cell_type == "code" else None


def main(names: list[str]) -> None:
    COPIES.mkdir(parents=True, exist_ok=True)
    for path in sorted(SOURCES.glob("*.ipynb")):
        copy = COPIES / path.name
        if names and not any(name in path.name for name in names):
            continue
        nbformat.write((None if names else same_code(path, copy)) or execute(path), copy)
        print(f"{copy.name}: {copy.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
