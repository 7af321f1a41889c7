"""Accuracy of the simulator's physics in predicting measured time and power.

    python -m benchmarks.physics [--data DIR] [--json FILE] [--quick]

The data are all Zeus NSDI'23 power-limit traces (`zeus/summary_power_*.csv`, any GPU). The card's five
numbers are fitted on cifar100, librispeech and squad. Then, for each configuration, four numbers are fitted
on every second limit, and the limits between are predicted. For comparison there are two predictions without
physics from the same limits. One is a straight line between them. The other has constant time, and the
smaller of the limit and the power at the highest limit. Card numbers do not depend on imagenet, movielens and
sentiment140, which are averaged separately.

The batch-size laws of the catalogue are compared with the same traces if the catalogue has the card. They
were fitted to all of a trace and, separately, refitted on every second batch size to predict the others.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tools import physics_fits
from tools.physics_fits import Sweep
from workbench.simulation.catalogue import WORKLOADS, law
from workbench.simulation.physics import Card

Errors = dict[str, list[float]]
"""Percent errors of time and power, point by point."""


def main() -> None:
    """Print the table; with --json, write all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder with zeus/")
    parser.add_argument("--json", type=Path, default=None, help="file for all figures")
    parser.add_argument(
        "--quick", action="store_true", help="every third configuration, no refitted batch-size laws"
    )
    options = parser.parse_args()
    paths = sorted((physics_fits.data_folder(options.data) / "zeus").glob("summary_power_*.csv"))
    if not paths:
        raise SystemExit(
            f"no zeus/summary_power_*.csv in {physics_fits.data_folder(options.data)}; give --data DIR"
        )
    figures = {path.stem.removeprefix("summary_power_"): measure(path, quick=options.quick) for path in paths}
    for gpu, figure in figures.items():
        print_figures(gpu, figure)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(path: Path, *, quick: bool = False) -> dict:
    """All figures of one trace file."""
    sweeps = [sweep for sweep in physics_fits.read_sweeps(path) if len(sweep.limits_w) >= 3]
    calibration = [sweep for sweep in sweeps if sweep.workload in physics_fits.CALIBRATION]
    card = physics_fits.fit_card(calibration[::3] if quick else calibration)
    tested = sweeps[::3] if quick else sweeps
    figures = {
        "card": {name: getattr(card, name) for name in ("static_w", "gap_w", "knee", "v_knee", "x_min")},
        "held_out_limits": {
            name: summary(errors_by_workload(predictor, tested))
            for name, predictor in predictors(card).items()
        },
    }
    if known := physics_fits.card_of(path):
        figures["batch_size_law"] = summary(law_errors(known, sweeps))
        if not quick:
            figures["batch_size_law_held_out"] = summary(held_out_batch_errors(known, sweeps))
    return figures


Predictor = Callable[[Sweep, np.ndarray], tuple[np.ndarray, np.ndarray]]


def predictors(card: Card) -> dict[str, Predictor]:
    """Three ways to foretell time and power at some limits from a sweep at others."""

    def physics(known: Sweep, limits_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return physics_fits.predict(card, physics_fits.fit_sweep(card, known), limits_w)

    def interpolation(known: Sweep, limits_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lines = (np.interp(limits_w, known.limits_w, values) for values in (known.time_s, known.power_w))
        return tuple(lines)

    def flat(known: Sweep, limits_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(limits_w), known.time_s[-1]), np.minimum(known.power_w[-1], limits_w)

    return {"physics": physics, "interpolation": interpolation, "flat": flat}


def errors_by_workload(predictor: Predictor, sweeps: list[Sweep]) -> dict[str, Errors]:
    """Errors at the limits left out when every second one, from the lowest, is known."""
    errors: dict[str, Errors] = defaultdict(lambda: {"time": [], "power": []})
    for sweep in sweeps:
        known, unknown = sweep.at(slice(0, None, 2)), sweep.at(slice(1, None, 2))
        collect(errors[sweep.workload], predictor(known, unknown.limits_w), unknown)
    return errors


def law_errors(card: Card, sweeps: list[Sweep]) -> dict[str, Errors]:
    """Errors of the catalogue's laws at every batch size and limit."""
    errors: dict[str, Errors] = {}
    for workload in WORKLOADS.values():
        errors[workload.key] = {"time": [], "power": []}
        for sweep in physics_fits.traced(workload.key, sweeps):
            collect(errors[workload.key], physics_fits.predict_law(card, law(card, workload), sweep), sweep)
    return errors


def held_out_batch_errors(card: Card, sweeps: list[Sweep]) -> dict[str, Errors]:
    """Errors at every second batch size of a law fitted to the others."""
    errors: dict[str, Errors] = {}
    for key in WORKLOADS:
        mine = physics_fits.traced(key, sweeps)
        errors[key] = {"time": [], "power": []}
        if len(mine) < 3:
            continue
        refitted = physics_fits.fit_law(card, mine[::2])
        for sweep in mine[1::2]:
            collect(errors[key], physics_fits.predict_law(card, refitted, sweep), sweep)
    return errors


def collect(errors: Errors, predicted: tuple[np.ndarray, np.ndarray], measured: Sweep) -> None:
    """Append a sweep's errors."""
    errors["time"] += physics_fits.percent_errors(predicted[0], measured.time_s).tolist()
    errors["power"] += physics_fits.percent_errors(predicted[1], measured.power_w).tolist()


def summary(errors: dict[str, Errors]) -> dict[str, dict[str, float]]:
    """Mean percent errors by workload, over all, and over those that took no part in fitting the card."""
    groups = {key: [key] for key in sorted(errors) if errors[key]["time"]}
    groups["all"] = list(groups)
    groups["never fitted"] = [key for key in groups if key not in (*physics_fits.CALIBRATION, "all")]
    pooled = {
        name: {what: [error for key in keys for error in errors[key][what]] for what in ("time", "power")}
        for name, keys in groups.items()
    }
    return {
        name: {what: round(float(np.mean(values)), 2) for what, values in both.items()}
        | {"points": len(both["time"])}
        for name, both in pooled.items()
        if both["time"]
    }


def print_figures(gpu: str, figures: dict) -> None:
    """One GPU's table: mean percent error of time and of power."""
    columns = {**figures["held_out_limits"]}
    columns |= {name: figures[key] for name, key in LAW_COLUMNS.items() if key in figures}
    numbers = "  ".join(f"{name} {value:.3g}" for name, value in figures["card"].items())
    print(f"{gpu}   {numbers}\nmean error, time % / power %")
    print("".join([f"{'':14}"] + [f"{name:>18}" for name in columns]))
    for row in figures["held_out_limits"]["physics"]:
        found = [column.get(row) for column in columns.values()]
        cells = [f"{each['time']:.1f} / {each['power']:.1f}" if each else "" for each in found]
        print("".join([f"{row:14}"] + [f"{cell:>18}" for cell in cells]))
    print()


LAW_COLUMNS = {"law, all": "batch_size_law", "law, held out": "batch_size_law_held_out"}


if __name__ == "__main__":
    main()
