"""The table of NVML calls in docs/hardware.md names what the code calls, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.device import driver
from workbench.device.discovery import open_device
from workbench.simulation.machine import Machine

ROOT = Path(__file__).parents[2]
SOURCES = [path for path in (ROOT / "workbench").rglob("*.py") if "simulation" not in path.parts]
CALL = re.compile(r"nvml[A-Z]\w+")
CONSTANTS = {"nvmlLib", "nvmlReturn", "nvmlClocksThrottleReasonGpuIdle"}


def table() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The rows by call, and by field."""
    text = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    calls = {row[0]: list(row) for row in re.findall(r"^\| `(nvml\w+)` \| (.+) \| (R\d+) \| (.+) \|$", text, re.M)}
    fields = {row[0]: list(row) for row in re.findall(r"^\| (\d+) \| (.+) \| (R\d+) \| (.+) \|$", text, re.M)}
    return calls, fields


def calls_in_code() -> tuple[set[str], set[str]]:
    """Names of NVML functions in the code, and patterns of names that are put together at run time."""
    names: set[str] = set()
    patterns: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and CALL.fullmatch(node.attr):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CALL.fullmatch(node.value):
                names.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else r"\w*" for each in node.values]
                if str(parts[0]).startswith("nvml"):
                    patterns.add("".join(map(str, parts)))
                    names -= {str(parts[0])}
    prefixes = {pattern.split("\\")[0] for pattern in patterns} | {"nvmlDevice"}
    return names - CONSTANTS - prefixes, patterns


def test_every_call_in_the_code_is_in_the_table() -> None:
    calls, _ = table()
    names, patterns = calls_in_code()
    assert names <= calls.keys()
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, call) for call in calls)] == []


def test_every_call_in_the_table_is_in_the_code() -> None:
    calls, _ = table()
    names, patterns = calls_in_code()
    assert [call for call in calls if call not in names and not any(
        re.fullmatch(pattern, call) for pattern in patterns)] == []


@pytest.mark.parametrize("card", ["H100", "A100", "P100"])
def test_every_recorded_answer_belongs_to_a_row(simulated: Callable[..., Machine], card: str) -> None:
    simulated(card, stepped=True)
    calls, fields = table()
    recorder = driver.current().recorder()  # type: ignore[attr-defined]
    text = str(recorder([open_device(0)], 1.0, every_s=0.01, share=0.1, status_s=0.1))
    functions = {re.sub(r"_v\d$", "", name) for name in re.findall(r"^  (nvml\w+)$", text, re.M)}
    assert functions
    assert functions <= calls.keys()
    assert fields.keys() == {"83", "186", "190", "192"}

