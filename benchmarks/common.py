"""Common parts of the benchmarks: command line, location of the data, and reports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.search.frontier import on_frontier


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """`--data DIR`, `--json FILE`, `--quick`, as every benchmark takes them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, default=data_directory(), metavar="DIR",
        help="measured data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    return parser.parse_args(argv)


def data_directory() -> Path:
    """`$WORKBENCH_DATA`, or `shared/data` next to the repository."""
    named = os.environ.get("WORKBENCH_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"


def chromium() -> str:
    """The browser's path. Raises ImportError where there is none, as for a package that is not installed."""
    found = os.environ.get("WORKBENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise ImportError("there is no Chromium here; WORKBENCH_CHROMIUM names one")
    return found


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns for a terminal and for Markdown alike."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(heads), *texts]) for i in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [list(heads), *texts]
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def finish(result: dict[str, Any], target: Path | None) -> None:
    """Write the JSON if it was asked for."""
    if target is not None:
        target.write_text(json.dumps(result, indent=1, default=float) + "\n", encoding="utf-8")
        print(f"\nwritten to {target}")


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return "-" if cell is None else str(cell)


def area(time_s: np.ndarray, energy_j: np.ndarray, worst_time_s: float, worst_energy_j: float) -> float:
    """Area that points dominate up to the worst time and energy, their hypervolume; exact (Zitzler and
    Thiele, 1998, two dimensions).

    Args:
        time_s: (n,).
        energy_j: (n,).
        worst_time_s: Points above it add nothing.
        worst_energy_j: Points above it add nothing.

    >>> area(np.array([1.0, 2.0]), np.array([3.0, 1.0]), 3.0, 4.0)
    4.0
    """
    inside = np.flatnonzero((time_s < worst_time_s) & (energy_j < worst_energy_j))
    if not len(inside):
        return 0.0
    rows = inside[on_frontier(time_s[inside], energy_j[inside])]
    times, energies = time_s[rows], energy_j[rows]
    widths = np.diff(np.append(times, worst_time_s))
    return float(np.dot(widths, worst_energy_j - energies))
