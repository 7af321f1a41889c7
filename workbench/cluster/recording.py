"""A simulation to look into: who was where, when nodes went to standby, and their power limits."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from .policy import Policy
from .power import Cluster
from .result import Result
from .simulator import Simulator
from .state import Node

STANDBY = -2  # in the column `cap` of the marks; -1 is no limit, 0 and above the limit of that index


class RecordingSimulator(Simulator):
    """A simulator whose nodes' states can be told afterwards; `record` has what came of it."""

    def __init__(self, log: pl.DataFrame, cluster: Cluster, policy: Policy, **options: Any) -> None:
        self._marked = array("d")
        super().__init__(log, cluster, policy, **{"stays": True, **options})

    def sleep(self, node: Node) -> None:
        super().sleep(node)
        self._marked.extend((self.now_s, node.index, STANDBY))

    def cap(self, node: Node, index: int) -> None:
        super().cap(node, index)
        self._marked.extend((self.now_s, node.index, index))

    def record(self) -> RunRecord:
        """The result and what drilling into it needs. Raises SimulationError while jobs are left."""
        table = np.frombuffer(self._marked).reshape(-1, 3) if self._marked else np.zeros((0, 3))
        marks = pl.DataFrame(table, schema=["time_s", "node", "cap"], orient="row")
        marks = marks.with_columns(pl.col("node", "cap").cast(pl.Int64))
        return RunRecord(self.result(), marks, self.policy.sleep_after_s is not None, self.checkpoint_s)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run to look into: its result and `marks` (time_s, node, cap; `STANDBY` where a node went there)."""

    result: Result
    marks: pl.DataFrame
    asleep: bool
    checkpoint_s: float
