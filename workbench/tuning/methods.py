"""Which method decides: ours, or GPOEO's in the same loop."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..search.clocks.base import Done
from ..search.clocks.descent import Descent, Plan
from ..search.clocks.effects import Block
from ..search.clocks.gpoeo import Golden
from ..search.space import SettingSpace
from .options import SEARCHES


class Gpoeo(Descent):
    """GPOEO's prediction and local search (TPDS 2022) as a method: its trials, and then its choice."""

    def __init__(self, *args: Any, space: SettingSpace, prior: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._search = Golden(space, self.objective, self.max_slowdown, prior=prior)

    def next(self, now_s: float) -> Plan:
        """Its next trial, or its choice."""
        plan = super().next(now_s)
        if not self.counted or (plan.kind == "default" and not self.blocks):
            return plan
        self._search.objective, self._search.max_slowdown = self.objective, self.max_slowdown
        step = self._search.next()
        if isinstance(step, Done):
            row = self._search.space.row(self._search.choice().setting)
            return Plan(row, plan.seconds, plan.count, "held", step.reason)
        row = self._search.space.row(step.setting)
        kind = "default" if row == self.rungs.reference else "trial"
        return Plan(row, step.seconds, step.iterations, kind, step.reason)

    def tell(self, block: Block) -> bool:
        if block.count:
            self._search.tell(
                self.rungs.settings[block.row], max(round(block.count), 1), block.time_s, block.energy_j,
                1.96 * block.energy_sd_j,
            )
        return super().tell(block)

    def bar(self, row: int, why: str) -> None:
        super().bar(row, why)
        self._search.cannot(self.rungs.settings[row], why)


def make_method(name: str, *args: Any, space: SettingSpace, prior: Any = None, **options: Any) -> Descent:
    """A method by name; arguments as of `Descent`.

    Raises:
        UsageError: An unknown name.
    """
    if name == "model-guided":
        return Descent(*args, **options)
    if name == "gpoeo":
        return Gpoeo(*args, space=space, prior=prior, **options)
    raise UsageError(f"there is no search named '{name}'; choose {', '.join(SEARCHES)}")
