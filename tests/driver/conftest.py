"""Machines of a test end with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driver_machines import LIBRARY, Machine

collect_ignore = ["programs"]  # which run as child processes


@pytest.fixture
def made() -> Iterator[list[Machine]]:
    """The machines of a test; their processes end with it."""
    kept: list[Machine] = []
    yield kept
    for each in kept:
        each.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many tests ran on each driver."""
    passed = [each.nodeid for each in terminalreporter.stats.get("passed", ()) if "tests/driver/" in each.nodeid]
    on_simulator = sum("simulated" in each for each in passed)
    terminalreporter.write_line(
        f"tests/driver passed: {on_simulator} on the simulator, {len(passed) - on_simulator} on {LIBRARY or 'no other'}"
    )
