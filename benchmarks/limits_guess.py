"""The first guess of a power limit, before any probe, on the curves of `benchmarks.limits`.

    share     what the guess saves over what the best limit within the bound saves, summed over curves; one
              that breaks the bound saves nothing
    broken    guesses that are slower than the bound allows
    rule      the same for the limit nearest to 0.875 * sqrt(draw * highest limit)

A guess knows the limits, the draw at the highest one, and the card's name. Where a curve is of a card that
the shipped model was trained on, the model is trained again without that card (`CARDS`); where the data for
that is not there, the shipped one answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools import fit_first_guess
from workbench.search.surrogates.first_guess import FirstGuesser, shipped, year_of

from .clocks_grids import Grid
from .common import table

CARDS = {"V100": "v100", "P100": "p100", "RTX6000": "rtx6000", "RTX 6000": "rtx6000", "A100": "a100"}
CARDS |= {"A40": "a40"}
OFFERED_WELL = 0.005  # below which there is nothing to save


def guesses(data: Path, known: Sequence[Grid], made: Sequence[Grid], bound: float) -> dict[str, Any]:
    """Scores of the guess and of the rule on measured and on generated curves; prints their table."""
    models: dict[str, FirstGuesser] = {}
    found: dict[str, Any] = {}
    for name, grids in (("measured", known), ("generated", made)):
        if not grids:
            continue
        of_none = name == "generated"
        rows = [_row(grid, bound, shipped() if of_none else _model(grid, data, models)) for grid in grids]
        found[name] = {"all": _score(rows)}
        for file in dict.fromkeys(grid.file for grid in grids):
            found[name][file] = _score([row for row in rows if row["file"] == file])
    print(f"\nFirst guess before any probe, {bound:.0%} slowdown allowed\n")
    print(table(
        ("", "curves", "share", "broken", "odds said", "rule: share", "broken"),
        [(f"{name}: {file}", str(row["curves"]), *(f"{100 * row[key]:.0f} %" for key in _SHARES))
         for name, files in found.items() for file, row in files.items()],
    ))
    return found


_SHARES = ("share", "broken", "odds", "rule_share", "rule_broken")


def _model(grid: Grid, data: Path, models: dict[str, FirstGuesser]) -> FirstGuesser:
    name = f"{grid.file} {grid.problem}".upper().replace("_", " ")
    card = next((card for long, card in CARDS.items() if re.search(rf"\b{long}\b(?! ADA)", name)), "")
    if card and not any(data.glob("zeus/summary_power_*.csv")):
        card = ""
    if card not in models:
        models[card] = fit_first_guess.train(fit_first_guess.known(data, card)) if card else shipped()
    return models[card]


def _row(grid: Grid, bound: float, model: FirstGuesser) -> dict[str, Any]:
    points = grid.points.sort("power_limit_w")
    limits, time, energy = (points[name].to_numpy() for name in ("power_limit_w", "time_s", "energy_j"))
    draw_w, saved = energy[-1] / time[-1], 1 - energy / energy[-1]
    kept = time <= (1 + bound) * time[-1] * (1 + 1e-12)
    year = year_of(f"{grid.file} {grid.problem}".replace("rtx6000", "rtx 6000"))
    guess = model.guess(limits, draw_w, bound, {"year": year})
    at = int(np.flatnonzero(limits == guess.power_limit_w)[0])
    rule = int(np.argmin(np.abs(limits - 0.875 * np.sqrt(draw_w * limits[-1]))))
    return {
        "file": grid.file, "possible": float(saved[kept].max()), "odds": guess.odds,
        **{f"{name}saved": float(saved[i] * kept[i]) for name, i in (("", at), ("rule_", rule))},
        **{f"{name}broken": not kept[i] for name, i in (("", at), ("rule_", rule))},
    }


def _score(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    total: Callable[[str], float] = lambda name: float(sum(row[name] for row in rows))  # noqa: E731
    possible = max(total("possible"), OFFERED_WELL)
    return {
        "curves": len(rows), "share": total("saved") / possible, "broken": total("broken") / len(rows),
        "odds": total("odds") / len(rows), "possible": possible / len(rows),
        "rule_share": total("rule_saved") / possible, "rule_broken": total("rule_broken") / len(rows),
    }
