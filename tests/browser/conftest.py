"""One JupyterLab and one Chromium for all browser tests; a notebook and a kernel for each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest
from lab import Lab, Notebook, browser_page
from playwright.sync_api import Page


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab") / "server") as server:
        yield server


@pytest.fixture(scope="session")
def page(chromium: str) -> Iterator[Page]:
    with browser_page(chromium, height=1300, unfolded=True) as made:
        yield made


@pytest.fixture
def notebook(
    lab: Lab, page: Page, request: pytest.FixtureRequest
) -> Iterator[Callable[[Sequence[str]], Notebook]]:
    """Open a new notebook with these cells. Its kernel ends with the test; a failed test leaves a picture
    behind.
    """
    name = request.node.name

    def make(cells: Sequence[str]) -> Notebook:
        return Notebook(lab, page, name, cells)

    yield make
    try:
        if request.node.stash.get(FAILED, False):
            page.screenshot(path=str(Path(lab.directory) / f"{name}.png"))
    finally:
        lab.stop_kernels()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
