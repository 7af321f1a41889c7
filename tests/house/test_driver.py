"""A vendor's names stay inside `device/` and the simulation that replaces the driver's library. No other
module names NVML, its identifiers or CUDA's variables.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BEHIND = ("workbench/device/", "workbench/simulation/")
VENDOR = re.compile(r"(?i:nvml)|\b(GPU|MIG)-|CUDA_(VISIBLE|DEVICE|MPS)")
# Names of data: which readings a model of a card was trained on, in its file and on the command line.
FEATURE_SETS = {
    "workbench/search/surrogates/predictor.py", "workbench/tuning/features.py", "workbench/tuning/models.py",
    "workbench/tuning/gpu_profile/command.py",
}

# It reads logs that other tools wrote of this vendor's GPUs.
READERS = {"workbench/logbook/log_readers.py"}


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Identifiers, imported modules and strings but for docstrings, with their lines."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for part in ("id", "attr", "name", "module", "arg"):
            if isinstance(name := getattr(node, part, None), str):
                yield getattr(node, "lineno", 0), name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


def test_only_the_driver_s_room_names_a_vendor() -> None:
    found = []
    for path in sorted([*(REPOSITORY / "workbench").rglob("*.py"), *(REPOSITORY / "kernels_ext").rglob("*.py")]):
        file = path.relative_to(REPOSITORY).as_posix()
        if not file.startswith(BEHIND) and file not in READERS:
            found += [f"{file}:{line}: {name}" for line, name in _names(ast.parse(path.read_text(encoding="utf-8")))
                      if VENDOR.search(name) and not (file in FEATURE_SETS and "nvml" in name.lower())]
    assert found == []
