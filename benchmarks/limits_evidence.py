"""Value of earlier runs to the search of a power limit, and their cost if they are wrong.

Each curve of `benchmarks.limits` is searched as in a tuned job (`tuning.posterior`), without the later
measurements of the held setting. Earlier knowledge is one of

    none         nothing
    same         the same job on the same card, yesterday
    other_job    up to four other jobs on the same card
    wrong        another job on the same card, under this job's name
    other_card   the same job on another card

An earlier run has measured five limits and the highest, each with an error of 1 % in time and in energy, in
its own unit. If the data has no such run, there is no earlier knowledge. Jobs are different if their names
differ in more than a batch size or an optimizer, and their curves by 2 % somewhere.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from workbench.records import Setting
from workbench.search.clocks.base import Done
from workbench.search.clocks.posterior import SettingPosterior
from workbench.search.earlier import EarlierCurve, PlacedCurve
from workbench.search.objective import Energy
from workbench.search.space import space_of
from workbench.search.surrogates.expected_hypervolume import FrontierSearch

from .clocks_grids import EMPTY, Grid
from .clocks_search import ITERATIONS, MOST
from .common import table
from .fixtures import grids
from .frontier_sweeps import Tell, needed

CASES = ("none", "same", "other_job", "wrong", "other_card")
POINTS, OTHERS, RUN_SD, ALIKE, SWEPT = 5, 4, 0.01, 0.02, 12


class Named(NamedTuple):
    """A curve, the card and the job that it is of, and what other jobs have in common with it in name."""

    grid: Grid
    card: str
    job: str
    family: str


def named(data: Path, known: Sequence[Grid]) -> list[Named]:
    """Measured curves with their card and job."""
    pairs: dict[str, tuple[str, str]] = {}
    for path in sorted(data.glob("limits/*.csv")):
        frame = pl.read_csv(path, infer_schema_length=None, null_values=EMPTY)
        for gpu, job in frame.select("gpu", "workload").unique().rows():
            pairs[f"{gpu} {job}"] = (str(gpu), str(job))
    found = []
    for grid in known:
        card, job = pairs.get(grid.problem, (grid.file, grid.problem))
        family = " ".join(job.split()[:2]) if grid.problem not in pairs else job
        found.append(Named(grid, card, job, family))
    return found


def known_of(mine: Named, every: Sequence[Named], case: str, seed: int) -> dict[str, list[EarlierCurve]]:
    """Earlier runs in a case, as `SettingPosterior` takes them."""
    rng = np.random.default_rng([seed, zlib.crc32(mine.grid.name.encode()), CASES.index(case)])
    here = [each for each in every if each.card == mine.card and each.family != mine.family
            and not _alike(each.grid, mine.grid)]
    elsewhere = [each for each in every if each.job == mine.job and each.card != mine.card]
    if case == "same":
        return {"same": [_run(mine.grid, rng)]}
    if case == "other_job" and here:
        chosen = rng.permutation(len(here))[:OTHERS]
        return {"others": [_run(here[i].grid, rng) for i in chosen]}
    if case == "wrong" and here:
        return {"same": [_run(here[rng.integers(len(here))].grid, rng)]}
    if case == "other_card" and elsewhere:
        return {"same": [_run(elsewhere[rng.integers(len(elsewhere))].grid, rng, elsewhere=True)]}
    return {}


def search(grid: Grid, noise: float, seed: int, bound: float, known: dict[str, Any]) -> dict[str, Any]:
    """One search until it stops by itself; its choice is looked up in the curve without noise."""
    settings = grid.settings()
    space = space_of(settings, grid.reference)
    times, energies = grid.table(settings)
    here = space.reference_row
    belief = SettingPosterior("model-guided", space, Energy(), bound, **known)
    luck = np.random.default_rng([seed, round(1000 * noise), zlib.crc32(grid.name.encode())])
    allowed = times <= (1 + bound) * times[here] * (1 + 1e-9)
    probes = beyond = 0
    while probes < MOST and not isinstance(step := belief.next(), Done):
        row = space.row(step.setting)
        shown = ITERATIONS * np.array([times[row], energies[row]]) * np.exp(noise * luck.standard_normal(2))
        time_s, energy_j = shown.tolist()
        scatter_s = noise * time_s / math.sqrt(ITERATIONS)
        belief.tell(step.setting, ITERATIONS, time_s, energy_j, 1.96 * noise * energy_j, scatter_s)
        probes, beyond = probes + 1, beyond + int(not allowed[row])
    row = space.row(belief.choice(bound).setting)
    charged = energies[row] if allowed[row] else max(energies[here], energies[row])
    return {
        "noise": noise, "probes": probes, "beyond": beyond, "choice_beyond": not allowed[row],
        "excess": float(charged / energies[allowed].min() - 1),
        "believed": len(belief.earlier.agreed), "informed": bool(known),
    }


def evidence(
    curves: Sequence[Named], noises: Sequence[float], bound: float, title: str, *, chosen: Sequence[Named],
) -> dict[str, dict[str, float]]:
    """Every case on the curves of `chosen`, of which the others may be known; prints their table."""
    runs = pl.DataFrame([
        {"case": case} | search(mine.grid, noise, 0, bound, known_of(mine, curves, case, 0))
        for mine in chosen for case in CASES for noise in noises
    ], infer_schema_length=None)
    found = {}
    for case in CASES:
        part = runs.filter(case=case)
        names = ("probes", "beyond", "choice_beyond", "believed", "informed")
        means = {name: float(part[name].mean()) for name in names}  # type: ignore[arg-type]
        found[case] = {
            **{f"regret_{round(100 * noise)}": float(part.filter(noise=noise)["excess"].mean() or 0.0)  # type: ignore[arg-type]
               for noise in noises},
            "worst": float(part["excess"].max()), "broken": means["choice_beyond"],  # type: ignore[arg-type]
            "probes": means["probes"], "probes_beyond": means["beyond"], "believed": means["believed"],
            "informed": means["informed"],
        }
    print(f"\nKnown from before, {len(chosen)} {title} curves\n")
    heads = [key for key in found["none"] if key != "informed"]
    print(table(("known", *heads), [
        (case, *(f"{row[key]:.2f}" if "probes" in key or key == "believed" else f"{100 * row[key]:.1f} %"
                 for key in heads)) for case, row in found.items()
    ]))
    return found


def frontiers(quick: bool) -> dict[str, float]:
    """Measurements that a sweep needs to 99 % of a generated frontier, with and without an earlier run of
    twelve of its settings, right or of another job; prints them.
    """
    kinds = grids.KINDS[:1] if quick else grids.KINDS
    counts: dict[str, list[int]] = {"none": [], "same": [], "wrong": []}
    for family, kind in itertools.product(grids.FAMILIES, kinds):
        mine, other = (grids.sweep(family, kind, seed) for seed in (0, 1))
        rows = np.unique(np.linspace(0, len(mine) - 1, SWEPT).round().astype(int))
        for case, found in counts.items():
            # another job's table has another length
            frame, at = (other, rows * len(other) // len(mine)) if case == "wrong" else (mine, rows)
            costs = frame.select("time_s", "energy_j").to_numpy()[at]
            luck = RUN_SD * np.random.default_rng([7, len(found)]).standard_normal(costs.shape)
            known = [] if case == "none" else [(rows, np.log(costs) + luck)]
            found.append(needed(partial(_informed, known), mine, 0))
    means = {case: float(np.mean(found)) for case, found in counts.items()}
    print("\nMeasurements to 99 % of a generated frontier:",
          ", ".join(f"{case} {mean:.1f}" for case, mean in means.items()))
    return means


def _informed(
    known: Sequence[tuple[np.ndarray, np.ndarray]], space: pl.DataFrame, tell: Tell, seed: int
) -> Iterator[int]:
    search = FrontierSearch(space, min_gain=0.0, rng=np.random.default_rng(seed))
    knobs = space.drop("batch_size", strict=False)
    depths = np.abs(np.log(knobs.to_numpy() / knobs.to_numpy().max(axis=0))).max(axis=1)
    search.assume(PlacedCurve(*curve, RUN_SD, "an earlier run", depths) for curve in known)
    while (step := search.ask()) is not None:
        yield step.row
        search.tell(step.row, *tell(step.row))


def _alike(one: Grid, other: Grid) -> bool:
    """Whether two curves over the same limits are one but for a unit and 2 %."""
    settings = one.settings()
    if settings != other.settings():
        return False
    logs = [np.log(np.array(each.table(settings))) for each in (one, other)]
    off = logs[0] - logs[1]
    return bool((np.abs(off - off[:, :1]) < ALIKE).all())


def _run(grid: Grid, rng: np.random.Generator, *, elsewhere: bool = False) -> EarlierCurve:
    """An earlier run: some limits and the highest, in a unit of its own."""
    settings = grid.settings()
    top = settings.index(grid.reference)
    rows = {top, *np.linspace(0, len(settings) - 1, POINTS).round().astype(int).tolist()}
    times, energies = grid.table(settings)
    unit = np.exp(rng.normal(0.0, 1.0, 2))
    costs: dict[Setting, tuple[float, float]] = {}
    for row in sorted(rows):
        luck = np.exp(RUN_SD * rng.standard_normal(2)) * unit
        costs[settings[row]] = float(times[row] * luck[0]), float(energies[row] * luck[1])
    return EarlierCurve(costs, "an earlier run", elsewhere=grid.reference if elsewhere else None)
