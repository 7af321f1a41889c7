"""Optuna's samplers as searches over settings: TPE, a Gaussian process, random.

One dimension for the memory clock and one for the SM clock (or the power limit) as a share of what is paired
with it. The bound is a constraint of the sampler. The reference and the predicted point are reported or tried
first, as in every search here. They have no end of their own, so they stop when the best has not improved for
a while.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from workbench.search.clocks.base import Done, Scripted, Trial

KINDS = ("tpe", "gp", "random")
PATIENCE = 6  # probes without an improvement
IMPROVES = 0.005  # of the cost
MOST = 30
STARTUP = 5  # random probes of TPE and of the Gaussian process


class Sampled(Scripted):
    """See the module. `kind`: "tpe", "gp" or "random"."""

    def __init__(
        self, *args: Any, kind: str = "tpe", rng: np.random.Generator | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.name = kind
        self.rng = rng if rng is not None else np.random.default_rng(0)
        self._clocks = sorted(set(self.space.mu.tolist()))
        self._lines = [self._line(clock) for clock in self._clocks]
        self._study: Any = None
        self._drawn: tuple[Any, int] | None = None
        self._idle, self._count = 0, 0
        self._least: float | None = None

    def next(self) -> Trial | Done:
        """The next probe, or why there is none."""
        first = self.first()
        if first is not None:
            return first
        if self._study is None:
            self._begin()
        if self._drawn is not None and self.space.settings[self._drawn[1]] in self.unreachable:
            self._idle += 1  # what cannot be set improves nothing either
            row = self._nearest(self._drawn[1])
            if row is None:
                return Done("no setting is left that can be set")
            self._drawn = (self._drawn[0], row)
        if self._idle >= PATIENCE:
            return Done(f"{PATIENCE} probes without an improvement")
        if self._count >= MOST:
            return Done(f"{MOST} probes are enough")
        for _ in range(10 * len(self.space)):
            if self._drawn is None:
                trial = self._study.ask()
                row = self._nearest(self._row(trial))
                if row is None:
                    return Done("no setting is left that can be set")
                self._drawn = (trial, row)
            trial, row = self._drawn
            if not self.known(row) or self.name != "random":
                return self.trial(row, f"drawn by {self.name}")
            self._drawn = None
            self._tell(trial, row)  # a random draw that is known costs nothing
        return Done("every setting is known")

    def _changed(self, row: int) -> None:
        if self._drawn is None or row != self._drawn[1]:
            return
        trial, _ = self._drawn
        self._drawn = None
        self._count += 1
        before = self._least
        value = self.reward(row)
        allowed = self.max_slowdown is None or self.slowdown(row) <= self.max_slowdown
        if allowed and (before is None or value < before * (1 - IMPROVES)):
            self._idle = 0
        else:
            self._idle += 1
        if allowed:
            self._least = value if before is None else min(before, value)
        self._tell(trial, row)

    # Optuna

    def _begin(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(self.rng.integers(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constraints are marked experimental
            sampler: Any
            if self.name == "tpe":
                sampler = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=STARTUP, constraints_func=_constraints
                )
            elif self.name == "gp":
                sampler = optuna.samplers.GPSampler(
                    seed=seed, n_startup_trials=STARTUP, constraints_func=_constraints
                )
            else:
                sampler = optuna.samplers.RandomSampler(seed=seed)
            self._study = optuna.create_study(sampler=sampler)
        self._least = 1.0  # the reference keeps any bound
        self._seed(self.space.reference_row, known=True)
        start = self.predicted()
        if start != self.space.reference_row:
            self._seed(start, known=False)

    def _seed(self, row: int, *, known: bool) -> None:
        memory = self._clocks.index(self.space.mu[row])
        line = self._lines[memory]
        place = int(np.flatnonzero(line == row)[0]) / max(len(line) - 1, 1)
        parameters: dict[str, Any] = {"place": place}
        if len(self._clocks) > 1:
            parameters["memory"] = memory
        self._study.enqueue_trial(parameters)
        if known:
            trial = self._study.ask()
            self._row(trial)
            self._tell(trial, row)

    def _row(self, trial: Any) -> int:
        memory = trial.suggest_int("memory", 0, len(self._clocks) - 1) if len(self._clocks) > 1 else 0
        line = self._lines[memory]
        return int(line[round(trial.suggest_float("place", 0.0, 1.0) * (len(line) - 1))])

    def _tell(self, trial: Any, row: int) -> None:
        slow = 0.0 if self.max_slowdown is None else self.slowdown(row) - self.max_slowdown
        trial.set_user_attr("over", float(slow))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(trial, self.reward(row))

    def _nearest(self, row: int) -> int | None:
        """The setting itself, or the nearest one that can be set."""
        open_ = np.array([each not in self.unreachable for each in self.space.settings])
        if not open_.any():
            return None
        apart = np.abs(np.log(self.space.mu / self.space.mu[row])) + np.abs(
            np.log(self.space.x / self.space.x[row])
        )
        apart = apart + np.abs(np.log(self.space.limit / self.space.limit[row]))
        return int(np.argmin(np.where(open_, apart, np.inf)))

    def _line(self, clock: float) -> np.ndarray:
        rows = np.flatnonzero(self.space.mu == clock)
        return rows[np.lexsort((self.space.x[rows], self.space.limit[rows]))]


def _constraints(trial: Any) -> tuple[float, ...]:
    return (float(trial.user_attrs.get("over", 0.0)),)
