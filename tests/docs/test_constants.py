"""The table of the tuner's constants has the values of the code, and all constants of the method."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from pages import DOCS

from benchmarks.sensitivity import constants

SECTION = (DOCS / "validation" / "clocks.md").read_text("utf-8").split("## Constants of the method")[1]
PARTS = re.split(r"^\((`.*`)\)$", SECTION, flags=re.MULTILINE)
ROWS = [
    pytest.param(files, names, values, id=names)
    for files, part in zip(PARTS[1::2], PARTS[2::2], strict=True)
    for names, values in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", part, flags=re.MULTILINE)
]


@pytest.mark.parametrize(("files", "names", "values"), ROWS)
def test_a_constant_has_its_value(files: str, names: str, values: str) -> None:
    modules = [
        import_module("workbench." + file.removesuffix(".py").replace("/", "."))
        for file in re.findall(r"`([^`]+)`", files)
    ]
    known = {name: value for module in modules for name, value in vars(module).items()}
    found = [known[name] for name in re.findall(r"`(\w+)`", names)]
    flat = [number for each in found for number in (each if isinstance(each, tuple) else (each,))]
    assert flat == [float(text) for text in re.findall(r"-?\d+\.?\d*", values)]


def test_every_constant_of_the_method_is_there() -> None:
    assert {*constants()} <= {*re.findall(r"`([A-Z_]+)`", SECTION)}
    assert len(constants()) <= 25
