"""How often time grows by more than the ratio of the SM clocks, on measured curves.

    python -m benchmarks.clock_bounds [--data DIR] [--json FILE]

A curve is one problem of DIR/clocks and DIR/counters over SM clocks, at its highest memory clock. Clocks are
those in the files. The highest clock is the default.

    exceeded   curves with a clock, from 80 % of the default on, at which time grew by over 0.5 % more than
        the ratio of the clocks; `worst` is the largest such excess of all
    share      energy that the rule of `%gpu advise` saves (the lowest clock with a ratio of at most 1.05),
        over that of the best clock within 5 % slowdown, summed over curves; clocks between measured ones
        are interpolated in steps of 15 MHz
    broken     curves on which that clock is more than 5 % slower, by over 0.5 % of the time
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.search.space import space_of
from workbench.tuning import lowest_clock

from .clocks_grids import Grid, distinct, grids
from .clocks_search import BOUND
from .common import arguments, finish, table

DEEPEST = 0.8  # of the default clock
NOISE = 0.005  # of repeated measurements of a time


def curves(found: Sequence[Grid]) -> list[Grid]:
    """Curves with three or more clocks of their highest memory clock, each counted once."""
    return [each for each in distinct([each for each in found if not each.by_limit])
            if len(each.rows[each.mem_clocks_mhz[0]][0]) >= 3]


def excess(grid: Grid) -> float:
    """By how much time grew more than the ratio of the clocks, at most; below 0 where it never did."""
    clocks, times, _ = grid.rows[grid.mem_clocks_mhz[0]]
    over = (times - times[-1]) - (clocks[-1] - clocks)
    inside = (clocks < clocks[-1]) & (clocks >= clocks[-1] + np.log(DEEPEST))
    return float(np.expm1(over[inside]).max(initial=-np.inf))


def rule(grid: Grid) -> tuple[float, float, float]:
    """Saving of the best clock within the limit, and the saving and the slowdown of the rule's clock."""
    settings = [each for each in grid.settings() if each.mem_clock_mhz == grid.mem_clocks_mhz[0]]
    time_s, energy_j = grid.table(settings)
    top_mhz = float(grid.reference.sm_clock_mhz or 0)
    found = lowest_clock(space_of(settings), np.array([top_mhz]), np.ones(1), BOUND)
    at = next((n for n, each in enumerate(settings) if found and each.sm_clock_mhz == found[0]), None)
    slower, saved = time_s / time_s[0] - 1.0, 1.0 - energy_j / energy_j[0]
    best = float(saved[slower <= BOUND].max())
    return (best, 0.0, 0.0) if at is None else (best, float(saved[at]), float(slower[at]))


def clock_bounds(found: Sequence[Grid]) -> dict[str, Any]:
    """Figures by file and of all; prints a table."""
    rows = [(each.file, excess(each), *rule(each)) for each in found]
    result = {}
    for file in ("all", *dict.fromkeys(row[0] for row in rows)):
        mine = [row[1:] for row in rows if file in ("all", row[0]) and np.isfinite(row[1])]
        if not mine:
            continue
        over, best, saved, slower = np.array(mine).T
        kept = slower <= BOUND + NOISE
        result[file] = {
            "curves": len(mine), "exceeded": int((over > NOISE).sum()), "worst": float(over.max()),
            "share": float((saved * kept).sum() / best.sum()), "broken": int((~kept).sum()),
        }
    heads = ("", "curves", "exceeded", "worst", "share of the saving", "bound broken")
    print(table(heads, [
        (file, str(row["curves"]), str(row["exceeded"]), f"{row['worst']:.1%}", f"{row['share']:.0%}",
         str(row["broken"]))
        for file, row in result.items()
    ]))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments((__doc__ or "").splitlines()[0], argv)
    finish(clock_bounds(curves(grids(options.data))), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
