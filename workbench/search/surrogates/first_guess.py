"""A power limit for a job of which nothing is known but its draw at the highest limit: a guess, with odds.

    guess = first_guess(limits_w, draw_w, max_slowdown=0.05, gpu="NVIDIA L40S")
    guess.power_limit_w, guess.saving, guess.odds       # the highest limit and 0 where none is worth it

Two LightGBM boosters foretell, for a limit, the odds that a job keeps its bound and the energy that it then
takes. `tools.fit_first_guess` trained them; its docstring names the data. A guess goes only as low as
`FirstGuessParams.odds` allow, for one look at a job says little: how much of its time follows the clock is
not seen in its draw.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from ...errors import UsageError, WorkbenchError

Array = np.ndarray[Any, Any]
FILE = "first_guess.json.gz"
REMEDY = "`python -m tools.fit_first_guess` makes it again"
# what may be known beside the draw: year of the architecture, idle power over the highest limit, and the
# shares of the time that the card and its memory are busy
KNOWN = ("year", "idle", "utilisation", "memory_utilisation")
INPUTS = ("over_draw", "over_rule", "bound", *KNOWN)
YEARS = {
    r"[PM]40|P100|GP100|GTX ?10\d\d|P[1-6]000": 2016, r"V100|GV100|TITAN V": 2017,
    r"T4|RTX ?20\d\d|GTX ?16\d\d|QUADRO RTX|RTX ?[68]000|TITAN RTX": 2018,
    r"A100|A800|A30|A40|A10G?|A16|A2|RTX ?30\d\d|RTX ?A\d{4}": 2020,
    r"[GH]H?[12]00|H20|H800|L4|L40S?|RTX ?40\d\d|ADA": 2022, r"G?B[1-3]00|RTX ?50\d\d|BLACKWELL": 2024,
}


@dataclass(frozen=True, slots=True)
class FirstGuessParams:
    """Tuned constants of `FirstGuesser.guess`.

    Chosen on trainings of a card left out whose slowdowns were scaled to those of newer cards, not on the
    curves that `benchmarks.limits` scores (docs/validation/guess.md).
    """

    odds: float = 0.8  # of keeping the bound, that a guess needs
    price: float = 0.1  # of a broken bound, as a saving
    worth: float = 0.01  # saving below which nothing is offered
    far: float = 1.6  # times the draw: a limit beyond that changes nothing


PARAMS = FirstGuessParams()


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """A limit that nobody has measured yet.

    Attributes:
        power_limit_w: The limit; the highest one where no lower one is worth its risk.
        saving: Expected share of the energy at the highest limit, 0..1.
        odds: Probability that the job keeps its bound there, 0..1.
        max_slowdown: The bound, a share.
    """

    power_limit_w: float
    saving: float
    odds: float
    max_slowdown: float

    @property
    def offered(self) -> bool:
        """Whether it is another limit than the highest."""
        return self.saving > 0

    def __str__(self) -> str:
        if not self.offered:
            return f"guess: no limit is likely to save energy within {100 * self.max_slowdown:g} %"
        return (f"guess, not measured: {self.power_limit_w:g} W saves about {100 * self.saving:.0f} %, "
                f"odds {100 * self.odds:.0f} % to stay within {100 * self.max_slowdown:g} %")


@dataclass(frozen=True)
class FirstGuesser:
    """The two boosters: odds of keeping the bound, and energy over that at the highest limit."""

    kept: Any
    energy: Any

    def guess(
        self, limits_w: Sequence[float], draw_w: float, max_slowdown: float = 0.05,
        known: Mapping[str, float] | None = None, params: FirstGuessParams = PARAMS,
    ) -> FirstGuess:
        """The limit of most expected saving among those that keep the bound with enough odds.

        Args:
            limits_w: Power limits that may be set, W.
            draw_w: Mean power of the job at the highest of them, W.
            max_slowdown: A share, 0.05 = 5 %.
            known: Of `KNOWN`; what is not known is left out.
            params: How careful it is.

        Raises:
            UsageError: no limits, or a power or bound that cannot be.
        """
        limits = np.unique(np.asarray(limits_w, float))
        if not len(limits) or not (limits > 0).all() or not np.isfinite(limits).all():
            raise UsageError("a guess needs power limits above 0 W, for example range(100, 251, 25)")
        if not 0 < draw_w < float("inf"):
            raise UsageError(f"a job cannot draw {draw_w:g} W; give its mean power at the highest limit")
        if not 0 <= max_slowdown <= 1:
            raise UsageError(
                f"a slowdown of {max_slowdown:g} is no share between 0 and 1; 0.05 stands for 5 %"
            )
        top = limits[-1]
        rows = rows_of(limits[:-1] / top, draw_w / top, max_slowdown, known or {})
        if len(rows):
            odds = np.asarray(self.kept.predict(rows, num_threads=1))
            energy = np.asarray(self.energy.predict(rows, num_threads=1))
            value = odds * (1 - energy) - params.price * (1 - odds)
            idle = limits[:-1] > params.far * draw_w
            value[idle | (odds < params.odds) | (1 - energy < params.worth)] = 0.0
            if value.max() > 0:
                at = int(np.argmax(value))
                return FirstGuess(float(limits[at]), float(1 - energy[at]), float(odds[at]), max_slowdown)
        return FirstGuess(float(top), 0.0, 1.0, max_slowdown)


def rows_of(limits: Array, share: float, bound: float, known: Mapping[str, float]) -> Array:
    """The boosters' inputs, one row a limit (`INPUTS`); limits and draw `share` are over the highest limit.

    A limit stands there over the draw and over the root of the draw alone: all else that describes a card by
    its range was learnt by heart from the few cards that there are.
    """
    share = min(share, 1.0)
    rest = (bound, *(known.get(name, np.nan) for name in KNOWN))
    return np.column_stack([limits / share, limits / np.sqrt(share), np.tile(rest, (len(limits), 1))])


def year_of(gpu: str) -> float:
    """Year of a card's architecture by the card's name; NaN where the name is not known.

    >>> year_of("Tesla V100-PCIE-32GB"), year_of("NVIDIA RTX 4000 Ada Generation"), year_of("a card")
    (2017.0, 2022.0, nan)
    """
    name = gpu.upper().replace("_", " ")
    word = r"(?<![A-Z0-9])(?:{})(?:S|D|TI|PCIE|SXM\d?|NVL)?(?![A-Z0-9])"
    found = [year for names, year in YEARS.items() if re.search(word.format(names), name)]
    return float(max(found, default=np.nan))


def first_guess(
    limits_w: Sequence[float], draw_w: float, max_slowdown: float = 0.05, *, gpu: str = "",
    idle_w: float | None = None, utilisation: float | None = None, memory_utilisation: float | None = None,
) -> FirstGuess:
    """The shipped model's guess.

    Args:
        limits_w: Power limits that may be set, W.
        draw_w: Mean power of the job at the highest of them, W.
        max_slowdown: A share, 0.05 = 5 %.
        gpu: Name of the card, as its driver tells it.
        idle_w: Power of the card without a job, W.
        utilisation, memory_utilisation: Shares of the time that the card, and its memory, are busy, 0..1.

    Raises:
        UsageError: no limits, or a power or bound that cannot be.
        WorkbenchError: the model's file is missing or damaged, or LightGBM cannot be loaded.
    """
    given = {"year": year_of(gpu), "utilisation": utilisation, "memory_utilisation": memory_utilisation}
    if idle_w is not None and len(limits_w):
        given["idle"] = idle_w / max(limits_w)
    known = {name: float(value) for name, value in given.items() if value is not None}
    return shipped().guess(limits_w, draw_w, max_slowdown, known)


@lru_cache(maxsize=1)
def shipped() -> FirstGuesser:
    """The model of this package. Raises WorkbenchError where its file is missing, damaged or another's, or
    LightGBM cannot be loaded.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as error:  # without libgomp it is an OSError
        told = f"lightgbm cannot be loaded ({error}); install it, and libgomp where that is missing"
        raise WorkbenchError(told) from error
    file = resources.files(__package__).joinpath(FILE)
    try:
        stored = json.loads(gzip.decompress(file.read_bytes()))
        if stored["inputs"] != list(INPUTS):
            raise ValueError("it was made for other inputs")
        return FirstGuesser(*(lightgbm.Booster(model_str=stored[name]) for name in ("kept", "energy")))
    except (OSError, EOFError, ValueError, KeyError, lightgbm.basic.LightGBMError) as error:
        told = f"the model of first guesses {FILE} cannot be read ({error}); {REMEDY}"
        raise WorkbenchError(told) from error
