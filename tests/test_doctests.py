"""The examples in docstrings have the results that are written there."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
    for room in ("workbench", "kernels_ext") for path in sorted((REPOSITORY / room).rglob("*.py"))
    if ">>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_right(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.failed == 0
    assert found.attempted > 0
