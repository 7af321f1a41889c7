"""The energy-time frontier: how fast it is had, how few measurements find it, how fast a step is drawn, and
what applying leaves behind.

    python -m benchmarks.frontier [--data DIR] [--json FILE] [--quick] [--only
        million|sweeps|panel|apply|dask]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from workbench.search import frontier

from .common import data_directory, finish, table
from .frontier_sweeps import METHODS, sweeps

MILLION = 1_000_000
SEEDS = 20


def million(quick: bool) -> dict[str, Any]:
    """Seconds for the frontier of a million observations, ours and peers', on the same frame; all must
    find the same rows.
    """
    rng = np.random.default_rng(0)
    count = MILLION // 10 if quick else MILLION
    # Configurations of a GPU: time against energy is a hyperbola with scatter, so that the frontier has
    # hundreds of rows, not ten.
    time_s = rng.uniform(1.0, 4.0, count)
    energy_j = 100.0 / time_s * (1.0 + rng.exponential(0.3, count)) + 20.0 * time_s
    points = pl.DataFrame({"time_s": time_s, "energy_j": energy_j})
    ways: dict[str, Callable[[], int]] = {"ours": lambda: len(frontier.frontier(points))}
    losses = np.column_stack([time_s, energy_j])
    for name, make in (("Optuna", _optuna), ("moocore", _moocore)):
        try:
            ways[name] = make(losses)
        except ImportError as error:
            print(f"{name} takes no part: {error}")
    result: dict[str, Any] = {"points": count}
    for name, way in ways.items():
        seconds, rows = [], 0
        for _ in range(3):
            began = time.perf_counter()
            rows = way()
            seconds.append(time.perf_counter() - began)
        result[name] = {"seconds": statistics.median(seconds), "rows": rows}
    found = {each["rows"] for name, each in result.items() if name != "points"}
    result["agree"] = len(found) == 1
    print(
        table(
            ["frontier of", "median s of 3", "rows"],
            [[f"{count} by {n}", r["seconds"], r["rows"]] for n, r in result.items() if isinstance(r, dict)],
        )
    )
    return result


def _optuna(losses: np.ndarray) -> Callable[[], int]:
    from optuna.study._multi_objective import _is_pareto_front

    return lambda: int(_is_pareto_front(losses, assume_unique_lexsorted=False).sum())


def _moocore(losses: np.ndarray) -> Callable[[], int]:
    import moocore

    return lambda: int(moocore.is_nondominated(losses).sum())


def measurements(data: Path, quick: bool) -> dict[str, Any]:
    """Measurements until 99 % of the frontier's area is dominated."""
    seeds = 5 if quick else SEEDS
    print(f"\nmeasurements until 99 % of the area, median of {seeds} seeds")
    main = sweeps(data, seeds=seeds)
    print("\nin addition: problems of 13 to 29 points")
    small = sweeps(data, seeds=seeds, least=13, most=29)
    for name, part in (("30 points or more", main), ("13 to 29 points", small)):
        if part["problems"]:
            print(
                f"\n{name}: median over problems, ratio to the best peer of each problem: "
                f"{part['measurements_ratio_to_best_peer']:.3g}, "
                f"worst {part['ratio_worst']:.3g}"
            )
            print(table(["family", "median ratio"], list(part["ratio_by_family"].items())))
            extra = part["extra"]
            if extra["extra"] is not None:
                print(
                    f"problems that one measurement solves: {extra['extra']:.3g} more than that, "
                    f"the best peer {extra['extra of the best peer']:.3g}"
                )
            print(
                table(
                    ["", *METHODS],
                    [["median over problems", *(part["medians"][method] for method in METHODS)]],
                )
            )
    return {"seeds": seeds, "main": main, "small": small}


def _told(name: str, part: Callable[[], Any]) -> Any:
    """A part's figures; of one that fails, why, so that the others are not lost with it."""
    try:
        return part()
    except Exception as error:
        print(f"\n{name} failed: {type(error).__name__}: {error}")
        return {"failed": f"{type(error).__name__}: {error}"}


def _part(module: str, function: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(f".{module}", __package__), function)(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, default=data_directory(), metavar="DIR",
        help="measured data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument(
        "--only", action="append", choices=["million", "sweeps", "panel", "apply", "dask"],
        help="these parts; repeatable",
    )
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "million": lambda: million(chosen.quick), "sweeps": lambda: measurements(chosen.data, chosen.quick),
        "panel": lambda: _part("frontier_panel", "steps", chosen.quick),
        "apply": lambda: _part("frontier_apply", "sequences", 100 if chosen.quick else 1000),
        "dask": lambda: _part("frontier_dask", "trials", 20 if chosen.quick else 200),
    }
    result: dict[str, Any] = {
        name: _told(name, part) for name, part in parts.items() if chosen.only is None or name in chosen.only
    }
    panel = result.get("panel") or {}
    main_part, small = (result.get("sweeps", {}).get(part, {}) for part in ("main", "small"))
    result["summary"] = {
        "million_points_s": result.get("million", {}).get("ours", {}).get("seconds"),
        "measurements_ratio_to_best_peer": main_part.get("measurements_ratio_to_best_peer"),
        "ratio_median": main_part.get("ratio_median"),
        "ratio_worst_family": main_part.get("ratio_worst_family"), "ratio_small": small.get("ratio_median"),
        "step_ms": panel.get("step_ms"), "bytes_per_step": panel.get("bytes_per_step"),
    }
    print("\n" + table(["figure", "value"], list(result["summary"].items())))
    finish(result, chosen.json)


if __name__ == "__main__":
    main()
