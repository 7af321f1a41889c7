"""Private parts of libraries that the product uses, and the version limits that follow from them.

An upper limit may move to the next major version where these tests and
`tests/contracts/test_subshell.py` pass against it. Install that version in its own directory
(`pip install --target DIR`) and put the directory on PYTHONPATH.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path

import pytest
from ipykernel.comm.comm import BaseComm

from workbench.panels._core.live import bokeh_js

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = ROOT / "pyproject.toml"


@pytest.mark.parametrize("library", ["bokeh", "ipykernel"])
def test_a_library_whose_private_parts_are_used_is_bounded_above_by_its_next_major_version(library: str) -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (bound,) = (found[1] for each in declared if (found := re.fullmatch(rf"{library}>=[\d.]+,<(\d+)", each)))
    assert int(importlib.metadata.version(library).split(".")[0]) + 1 == int(bound)


def test_bokehs_wheel_has_the_library_for_the_browser_and_its_way_in() -> None:
    version, packed = bokeh_js()
    assert version == importlib.metadata.version("bokeh")
    text = gzip.decompress(packed).decode()
    for name in ("add_document_standalone", "ColumnDataSource", "BasicTicker", "VStrip", "HoverTool"):
        assert name in text


def test_ipykernels_comm_is_asked_for_the_shell_with_two_arguments_or_not_at_all() -> None:
    asked = getattr(BaseComm, "_reply_subshell_for", None)
    assert asked is None or list(inspect.signature(asked).parameters) == ["self", "data", "default"]


def test_no_private_part_of_optuna_is_used() -> None:
    """Which is why it has no upper bound: attributes of objects that Optuna makes, and modules of its."""
    for path in (ROOT / "workbench").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(study|trial|storage)\._\w+|optuna\.(\w+\.)*_\w+", text), path
