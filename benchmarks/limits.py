"""The best power limit of a running job within a slowdown limit, on cards that were not used for tuning.

    python -m benchmarks.limits [--data DIR] [--json FILE] [--quick]

Measured curves are those of DIR/limits/*.csv (`gpu, workload, power_limit_w, time_s, energy_j`); without any,
the trainings of DIR/zeus at each batch size. In addition there are generated cards (`fixtures/cards.py`), one
family at a time. Every trial has its own error in time and in energy, 1 or 2 % (normal, relative). The first
trial is the highest limit. The search goes on until it stops. Its choice is then scored in the curve without
noise.

    regret     energy of the choice over that of the best limit within the slowdown limit, less 1; a choice
        that
               exceeds it is charged as the highest limit
    broken     choices that exceed the slowdown limit

Constants of the search are chosen on the families of `CHOSEN_ON`, never on measured curves or other families.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .clocks_grids import EMPTY, Grid, complete, distinct, grids
from .clocks_search import BOUND, one
from .common import arguments, finish, table
from .fixtures.cards import FAMILIES, curve

NOISES = (0.01, 0.02)
METHODS = ("model-guided", "gpoeo")
CHOSEN_ON = ("plain", "unbound", "cliff", "noisy")
GENERATED, SEEDS = 24, 4


def measured(data: Path) -> list[Grid]:
    """Curves over power limits, each counted once."""
    found = []
    for path in sorted(data.glob("limits/*.csv")):
        frame = pl.read_csv(path, infer_schema_length=None, null_values=EMPTY)
        for (gpu, workload), part in frame.group_by("gpu", "workload", maintain_order=True):
            found.append(_grid(path.stem, f"{gpu} {workload}", part))
    if not found:
        found = grids(data, ("trainings",)) if data.is_dir() else []
    return distinct([each for each in found if each.points["power_limit_w"].n_unique() >= 3])


def generated(families: Sequence[str], count: int) -> list[Grid]:
    """Curves of random cards; the file names the family."""
    cards = [(family, seed) for family in families for seed in range(count)]
    return [_grid(family, f"card {seed}", curve(family, seed)) for family, seed in cards]


def limits(data: Path, quick: bool) -> dict[str, Any]:
    """Every method on every curve; prints its tables and gives `summary` and the details."""
    known = measured(data)
    made = generated(FAMILIES, GENERATED // (6 if quick else 1))
    if not known:
        print(f"no curves over power limits below {data}: generated cards only")
    result: dict[str, Any] = {}
    for name, mine in (("measured", known), ("generated", made)):
        if not mine:
            continue
        seeds = 1 if quick else SEEDS if name == "measured" else 1
        chosen = mine[::3] if quick and len(mine) > 60 else mine
        runs = pl.DataFrame([
            one((grid, method, noise, seed, BOUND, "energy"))
            for grid in chosen for method in METHODS for noise in NOISES for seed in range(seeds)
        ], infer_schema_length=None)
        result[name] = {method: score(runs.filter(method=method)) for method in METHODS}
        result[name]["by_file"] = {
            file: score(part.filter(method=METHODS[0]))
            for (file,), part in runs.group_by("file", maintain_order=True)
        }
        print(f"\n{len(chosen)} {name} curves, {BOUND:.0%} slowdown allowed\n")
        rows = [(method, result[name][method]) for method in METHODS] + list(result[name]["by_file"].items())
        print(table(HEADS, [_cells(*row) for row in rows]))
    best = result.get("measured") or result["generated"]
    summary = {**best[METHODS[0]], "curves": len(known) or len(made), "measured": bool(known)}
    if "generated" in result:
        left_out = [row for name, row in result["generated"]["by_file"].items() if name not in CHOSEN_ON]
        summary["generated"] = {key: float(np.mean([row[key] for row in left_out])) for key in left_out[0]}
    return {"summary": summary, **result}


def score(runs: pl.DataFrame) -> dict[str, float]:
    """Regret by noise, worst, broken, probes of one method."""
    found = {
        f"regret_{round(100 * noise)}": float(runs.filter(noise=noise)["excess"].mean() or 0.0)  # type: ignore[arg-type]
        for noise in NOISES
    }
    return found | {
        "worst": float(runs["excess"].max()), "broken": float(runs["choice_beyond"].mean()),  # type: ignore[arg-type]
        "probes": float(runs["trials"].mean()),  # type: ignore[arg-type]
    }


HEADS = ("", "regret at 1 %", "at 2 %", "worst", "bound broken", "probes")


def _cells(name: str, row: dict[str, float]) -> tuple[str, ...]:
    shares = (row["regret_1"], row["regret_2"], row["worst"], row["broken"])
    return name, *(f"{100 * each:.1f} %" for each in shares), f"{row['probes']:.1f}"


def _grid(file: str, problem: str, points: pl.DataFrame) -> Grid:
    by_limit = points.with_columns(sm_clock_mhz=pl.lit(None, pl.Int64), mem_clock_mhz=pl.lit(None, pl.Int64))
    return Grid(file, "limits", problem, complete(by_limit))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(__doc__.splitlines()[0], argv)
    finish(limits(options.data, options.quick), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
