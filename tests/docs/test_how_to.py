"""Every block of code on a how-to page runs, or names the reason why it cannot run here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, ROOT, RUN, blocks

PAGES = sorted((DOCS / "how-to").glob("*.md"))
SLOW = {"measure-script", "distributed", "compare", "recurring", "apply"}  # trainings that run for a while
WITH_CODE = [
    page for page in PAGES
    if any(each.language in RUN and not each.reason and not each.file for each in blocks(page.read_text()))
]


@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [], id=page.stem) for page in WITH_CODE
])
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(ROOT), str(here)])
    home = {"HOME": str(tmp_path), "WORKBENCH_HOME": str(tmp_path / "workbench"), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, str(here / "run_page.py"), str(page)], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, **home, "PYTHONPATH": paths}, timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_names_its_language_and_why_it_is_not_run(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    for block in found:
        assert block.language, f"line {block.line}: a block without a language"
        assert not block.mark or block.reason or block.file, f"line {block.line}: <!-- {block.mark} --> means nothing"
        if block.file:
            assert Path(block.file).name == block.file
    assert page.stem in ("index",) or found


def test_most_blocks_are_run() -> None:
    every = [each for page in PAGES for each in blocks(page.read_text()) if each.language in RUN]
    assert sum(not each.reason for each in every) > 0.65 * len(every)
