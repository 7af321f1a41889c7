"""Optuna's samplers as searches over settings: TPE, a Gaussian process, random.

One dimension for the memory clock and one for the SM clock (or the power limit) as a share of what is paired
with it. The bound is a constraint of the sampler. The reference and the predicted point are reported or tried
first, as in every search here. They have no end of their own, so they stop when the best has not improved for
a while.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.search.clocks.gpoeo import Ask, Gpoeo
from workbench.search.space import SettingSpace

KINDS = ("tpe", "gp", "random")
PATIENCE = 6  # probes without an improvement
IMPROVES = 0.005  # of the cost
MOST = 30
STARTUP = 5  # random probes of TPE and of the Gaussian process


class Sampled(Gpoeo):
    """See the module. `kind`: "tpe", "gp" or "random"."""

    def __init__(
        self, *args: Any, space: SettingSpace, kind: str = "tpe", rng: np.random.Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, space=space, **options)
        self.space, self.name = space, kind
        self.rng = rng if rng is not None else np.random.default_rng(0)
        self._clocks = sorted(set(space.mu.tolist()))
        self._lines = [self._line_at(clock) for clock in self._clocks]
        self._draws, self._drawn = self._draw(), self.rungs.reference

    def script(self) -> Iterator[Ask]:
        """The last draw until it was tried; then the next one."""
        while self._drawn in self.tried or self._drawn in self.barred:
            self._drawn = next(self._draws, -1)
        if self._drawn >= 0:
            yield self._drawn, f"drawn by {self.name}"

    def held(self) -> int:
        return self.best()

    def _draw(self) -> Iterator[int]:
        """Rows to try. A row that was tried is reported again and costs nothing."""
        study, idle, count = self._study(), 0, 0
        least = self.reward(self.rungs.reference)
        for _ in range(10 * len(self.space)):
            trial = study.ask()
            row = self._nearest(self._row(trial))
            free = row in self.tried and self.name == "random"
            while row not in self.tried:
                yield row
                if row in self.barred:
                    row, idle = self._nearest(row), idle + 1  # no improvement either
                    if idle >= PATIENCE:
                        return
            beyond, reward = self.slowdown(row) > self.limit, self.reward(row)
            if not free and row != self.rungs.reference:
                better = not beyond and reward < least * (1 - IMPROVES)
                count, idle = count + 1, 0 if better else idle + 1
            least = least if beyond else min(least, reward)
            self._report(study, trial, row)
            if idle >= PATIENCE or count >= MOST:
                return

    # Optuna

    def _study(self) -> Any:
        """A study that begins with the reference and the predicted point."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        options: dict[str, Any] = {"seed": int(self.rng.integers(2**31))}
        samplers = {"tpe": "TPESampler", "gp": "GPSampler", "random": "RandomSampler"}
        if self.name != "random":
            options |= {"n_startup_trials": STARTUP, "constraints_func": _constraints}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constraints are marked experimental
            study = optuna.create_study(sampler=getattr(optuna.samplers, samplers[self.name])(**options))
        for row in dict.fromkeys([self.rungs.reference, self.start()]):
            memory = self._clocks.index(self.memory[row])
            line = self._lines[memory]
            place = int(np.flatnonzero(line == row)[0]) / max(len(line) - 1, 1)
            study.enqueue_trial({"place": place} | ({"memory": memory} if len(self._clocks) > 1 else {}))
        return study

    def _row(self, trial: Any) -> int:
        memory = trial.suggest_int("memory", 0, len(self._clocks) - 1) if len(self._clocks) > 1 else 0
        line = self._lines[memory]
        return int(line[round(trial.suggest_float("place", 0.0, 1.0) * (len(line) - 1))])

    def _report(self, study: Any, trial: Any, row: int) -> None:
        slow = 0.0 if self.max_slowdown is None else self.slowdown(row) - self.max_slowdown
        trial.set_user_attr("over", float(slow))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.tell(trial, self.reward(row) / self.reward(self.rungs.reference))

    def _nearest(self, row: int) -> int:
        """The setting itself, or the nearest one that can be set."""
        places = np.log(np.array([self.memory, self.space.x, self.space.limit]))
        apart = np.abs(places - places[:, [row]]).sum(axis=0)
        apart[list(self.barred)] = np.inf
        return int(np.argmin(apart))

    def _line_at(self, clock: float) -> np.ndarray:
        rows = np.flatnonzero(self.memory == clock)
        return rows[np.lexsort((self.space.x[rows], self.space.limit[rows]))]


def _constraints(trial: Any) -> tuple[float, ...]:
    return (float(trial.user_attrs.get("over", 0.0)),)
