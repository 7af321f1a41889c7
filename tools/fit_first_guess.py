"""Train the first guess of a power limit: measured jobs, what newer cards make of them, and generated ones.

    python -m tools.fit_first_guess [--data DIR]     # a minute; writes
                                                     # workbench/search/surrogates/first_guess.json.gz

Measured: trainings by batch size and limit on V100, P100 and Quadro RTX 6000 (Zeus, NSDI'23, ml-energy/zeus
75a8b93), and pipeline stages by SM clock on A100 and A40 (Perseus, SOSP'24, ml-energy/zeus 38cb3f9), each
clock taken as the limit at which a card settles there; both Apache-2.0. Data without a stated licence takes
no part.

Newer cards lose less time to a limit: at 0.875 of its draw a stage on the A100 loses 2.5 to 4.5 %, a training
on the RTX 6000 and V100 about 6 %. So each training stands there twice more, its slowdowns scaled by a random
factor: `NEWER` as on a card of 2020 and later, `OTHER` as on another card of its own time.

Generated: `world` draws cards (voltage curves, static power, ranges of limits) and jobs (bound by the clock,
by memory, or by what feeds them; phases that differ; pauses; limits that hold a mean or each phase). The
families of `benchmarks.fixtures.cards`, which score, take no part.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from benchmarks.clocks_grids import distinct, grids
from workbench.search.surrogates.first_guess import (
    FILE,
    INPUTS,
    KNOWN,
    PARAMS,
    FirstGuesser,
    rows_of,
    year_of,
)

Array = np.ndarray[Any, Any]
# limits, ascending, time and energy, all over those at the highest limit; share; year; card; weight
Curve = dict[str, Any]
SEED, WORLDS, ROUNDS = 16, 1500, 200
BOUNDS = (0.02, 0.03, 0.05, 0.05, 0.05, 0.08, 0.1, 0.2)
NEWER, OTHER = (0.4, 0.8), (0.8, 1.6)
WEIGHTS = {"measured": 1.0, "scaled": 5.0, "stages": 0.5, "generated": 0.5}
LOW, MEMORY = 0.12, 0.15  # share of generated jobs that draw little, and of those that wait for memory
HOME = Path(__file__).resolve().parents[1]
TARGET = HOME / "workbench/search/surrogates" / FILE
OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05, "num_leaves": 8, "min_data_in_leaf": 300, "lambda_l2": 5.0, "max_bin": 127,
    "verbosity": -1, "num_threads": 1, "seed": SEED, "deterministic": True, "force_row_wise": True,
    "feature_fraction": 0.8, "bagging_fraction": 0.7, "bagging_freq": 1,
}
RISING = {"over_draw": 1, "over_rule": 1, "bound": 1}
CLOCK = np.linspace(0.08, 1.0, 185)


def world(rng: np.random.Generator) -> dict[str, Any]:
    """One job on one card: limits over the highest, time and energy there, and what may be known of both."""
    year = int(rng.choice([2016, 2017, 2018, 2020, 2020, 2022, 2022, 2022, 2024, 2024]))
    new = year >= 2020
    steady = rng.random() < (0.75 if new else 0.3)  # inference and solvers; trainings wait and pulse
    shape = _shape(rng, new)
    static, waiting = rng.uniform(0.08, 0.22), rng.uniform(0.12, 0.3)
    starved = not steady and rng.random() < 0.25
    pause = rng.uniform(0.5, 0.99) if starved else rng.beta(1.0, 12.0 if steady else 6.0)
    count, spread = int(rng.integers(2, 7)), rng.uniform(0.03, 0.15 if steady else 0.35)
    level = rng.uniform(0.4, 0.8) if rng.random() < LOW else rng.uniform(0.8, 1.5)
    # share of the time that follows the clock
    bound = rng.beta(1.5, 6.0) if rng.random() < MEMORY else rng.beta(5.0, 3.0)
    overlap = float(rng.choice([1.0, 2.0, 4.0]))
    weights = rng.dirichlet(np.full(count, 4.0)) * (1 - pause)
    phases = []
    for _ in range(count):
        demand = max(level * np.exp(spread * rng.standard_normal()), 1.15 * waiting)
        still = min(static, 0.75 * demand)
        clocked = np.clip(bound + 0.1 * rng.standard_normal(), 0.0, 1.0)
        time = ((clocked / CLOCK) ** overlap + (1 - clocked) ** overlap) ** (1 / overlap)
        phases.append((time / time[-1], still + (demand - still) * shape))
    low, step = rng.uniform(0.2, 0.55), float(rng.choice([0.02, 0.04, 0.05, 0.1]))
    limits = np.arange(1.0, low - 1e-9, -step)[::-1]
    time_s, energy_j = _capped(limits, phases, weights, pause, waiting, rng.random() < 0.5)
    noise = rng.uniform(0.001, 0.01) + 0.05 * pause**2 * rng.random()
    error = np.exp(noise * rng.standard_normal((2, len(limits))))
    time_s, energy_j = time_s * error[0], energy_j * error[0] * (1 + 0.3 * (error[1] - 1))
    return {"limits": limits, "time": time_s / time_s[-1], "energy": energy_j / energy_j[-1],
            "share": energy_j[-1] / time_s[-1], "year": float(year), "idle": waiting * rng.uniform(0.4, 0.9),
            "utilisation": (1 - pause) * rng.uniform(0.95, 1.0),
            "memory_utilisation": (1 - bound) * (1 - pause) * rng.uniform(0.6, 1.0),
            "weight": WEIGHTS["generated"], "card": ""}


LOW, MEMORY = 0.12, 0.15


def _shape(rng: np.random.Generator, new: bool) -> Array:
    """Dynamic power at each relative clock; voltage is flat below a knee, and new cards reach further up."""
    knee, slope = rng.uniform(0.4, 0.8), rng.uniform(0.7, 1.3) if new else rng.uniform(0.3, 1.0)
    return CLOCK * (1 - slope * (1 - np.maximum(CLOCK, knee))) ** 2


def _capped(
    limits: Array, phases: Sequence[tuple[Array, Array]], weights: Array, pause: float, waiting: float,
    averaged: bool,
) -> tuple[Array, Array]:
    """Time and energy at each limit; the limit holds the mean power, or that of every phase."""
    if averaged:
        time = pause + sum(weight * t for weight, (t, _) in zip(weights, phases, strict=True))
        energy = pause * waiting + sum(w * t * p for w, (t, p) in zip(weights, phases, strict=True))
        power = np.maximum.accumulate(energy / time)
        x = np.interp(limits, power, CLOCK)
        return np.interp(x, CLOCK, time), np.interp(x, CLOCK, energy)
    time, energy = np.full(len(limits), pause), np.full(len(limits), pause * waiting)
    for weight, (t, p) in zip(weights, phases, strict=True):
        x = np.interp(limits, p + 1e-9 * CLOCK, CLOCK)
        time += weight * np.interp(x, CLOCK, t)
        energy += weight * np.interp(x, CLOCK, t) * np.interp(x, CLOCK, p)
    return time, energy


def worlds(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Generated jobs on generated cards."""
    return [world(np.random.default_rng([seed, number])) for number in range(count)]


def curve(card: str, limits: Array, time_s: Array, energy_j: Array, weight: float, year: float) -> Curve:
    """Times and energies at limits (ascending) as `train` takes them."""
    return {
        "limits": limits / limits[-1], "time": time_s / time_s[-1], "energy": energy_j / energy_j[-1],
        "share": float(energy_j[-1] / time_s[-1] / limits[-1]), "year": year, "card": card, "weight": weight,
    }


def trainings(data: Path, without: str = "") -> list[Curve]:
    """The measured trainings below `data`, each as measured and twice scaled; those of one card left out."""
    rng, found = np.random.default_rng(2), []
    for grid in distinct(grids(data, ("trainings",))):
        card = grid.file.rpartition("_")[2]
        points, year = grid.points.sort("power_limit_w"), year_of(card.replace("rtx", "rtx ").upper())
        limits, time, energy = (points[n].to_numpy() for n in ("power_limit_w", "time_s", "energy_j"))
        for each, scaled in ((year, None), (float(rng.choice([2020, 2022, 2024])), NEWER), (year, OTHER)):
            factor = rng.uniform(*scaled) if scaled else 1.0
            slower = 1 + factor * (time / time[-1] - 1)
            weight = WEIGHTS["scaled" if scaled else "measured"]
            if card != without:
                found.append(curve(card, limits, slower, energy / time * slower, weight, each))
    return found


def stages(data: Path, without: str = "") -> list[Curve]:
    """Pipeline stages by clock as curves over limits, of cards whose highest limit is near their draw."""
    rng, found = np.random.default_rng(1), []
    for grid in distinct(grids(data, ("stages",))):
        points = grid.points.sort("sm_clock_mhz")
        time, energy = points["time_s"].to_numpy(), points["energy_j"].to_numpy()
        power = np.maximum.accumulate(energy / time) + 1e-6 * np.arange(len(time))
        words = grid.file.split("_")
        card = words[min(1, len(words) - 1)]
        for _ in range(4):
            top_w = power[-1] * rng.uniform(0.97, 1.1)
            low_w = max(rng.uniform(0.3, 0.5) * top_w, power[0])
            limits = np.arange(top_w, low_w, -rng.choice([0.025, 0.05, 0.1]) * top_w)[::-1]
            times = np.interp(limits, power, time)
            if len(limits) and without not in words:  # none: its power is the same at all clocks
                drawn = np.minimum(limits, power[-1])
                found.append(curve(card, limits, times, drawn * times, WEIGHTS["stages"], 2020.0))
    return found


def known(data: Path, without: str = "") -> list[Curve]:
    """All that is trained on, without one card ("v100", "p100", "rtx6000", "a100", "a40")."""
    drawn = [world(np.random.default_rng([SEED, number])) for number in range(WORLDS)]
    return [*trainings(data, without), *stages(data, without), *drawn]


def train(curves: Sequence[Curve]) -> FirstGuesser:
    """Both boosters. Rows stand between the measured limits too and beside the measured draw: what was
    measured is a sample of jobs.
    """
    rng = np.random.default_rng(SEED)
    inputs, kept, energy, weight = [], [], [], []
    for each in curves:
        said = {name: each.get(name, np.nan) if rng.random() < 0.5 else np.nan for name in KNOWN[1:]}
        # a card of whose name nothing is known is more likely a new one
        named = rng.random() < (0.5 if each["year"] >= 2020 else 0.95)
        said["year"] = each["year"] if named else np.nan
        for bound in rng.choice(BOUNDS, 4 if each["card"] else 2):
            at = rng.uniform(each["limits"][0], 1.0, 12)
            share = min(each["share"] * np.exp(0.03 * rng.standard_normal()), 1.0)
            inputs.append(rows_of(at, share, bound, said))
            kept.append(np.interp(at, each["limits"], each["time"]) <= 1 + bound)
            taken = np.interp(at, each["limits"], each["energy"])
            energy.append(np.where(at > PARAMS.far * share, 1.0, taken))  # there runs differ, not limits
            weight.append(np.full(len(at), each["weight"]))
    rows, weights = np.vstack(inputs), np.concatenate(weight)
    signs = [RISING.get(name, 0) for name in INPUTS]
    boosters = []
    for target, more in (
        (np.concatenate(kept).astype(float), {"objective": "binary", "monotone_constraints": signs}),
        (np.concatenate(energy), {"objective": "regression"}),
    ):
        told = {"weight": weights / weights.mean(), "params": {"verbosity": -1, "max_bin": 127}}
        table = lightgbm.Dataset(rows, target, **told)
        boosters.append(lightgbm.train({**OPTIONS, **more}, table, ROUNDS))
    return FirstGuesser(*boosters)


def save(guesser: FirstGuesser, curves: Sequence[Curve]) -> Path:
    """Write the shipped file."""
    cards = sorted({each["card"] for each in curves} - {""})
    about = {"command": "python -m tools.fit_first_guess", "cards": cards, "curves": len(curves),
             "lightgbm": lightgbm.__version__, "seed": SEED}
    boosters = {"kept": guesser.kept.model_to_string(), "energy": guesser.energy.model_to_string()}
    content = {"inputs": INPUTS, **boosters, "about": about}
    TARGET.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return TARGET


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=HOME.parent / "shared/data")
    curves = known(parser.parse_args().data)
    print(f"written: {save(train(curves), curves)}, from {len(curves)} curves")


if __name__ == "__main__":
    main()
