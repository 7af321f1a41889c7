"""A simulation to look into: who was where, when nodes went to standby, and their power limits."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import polars as pl

from .result import Result
from .state import Job, Node

STANDBY = -2  # in the column `cap` of the marks; -1 is no limit, 0 and above the limit of that index


class RunRecorder:
    """Writes down what a simulator tells it of jobs on GPUs and of nodes."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._stays: list[tuple[int, int, int, float, float]] = []
        self._marks = array("d")

    def came(self, job: Job, now_s: float) -> None:
        """A job was placed."""
        self._since[job.index] = now_s

    def left(self, job: Job, now_s: float) -> None:
        """A job leaves its GPUs."""
        since_s = self._since.pop(job.index)
        self._stays += [(job.index, gpu.node.index, gpu.index, since_s, now_s) for gpu in job.gpus]

    def mark(self, node: Node, cap: int, now_s: float) -> None:
        """A node goes to standby (`STANDBY`), or under the power limit of this index."""
        self._marks.extend((now_s, node.index, cap))

    def stays(self, log: pl.DataFrame) -> pl.DataFrame:
        """Who was on which GPU from when to when, checkpoints and waking included."""
        whole, moment = pl.Int64, pl.Float64
        schema = {"row": whole, "node": whole, "gpu": whole, "from_s": moment, "to_s": moment}
        frame = pl.DataFrame(self._stays, orient="row", schema=schema)
        jobs = log["job_id"].gather(frame["row"])
        return frame.select(jobs.alias("job_id"), "node", "gpu", "from_s", "to_s")

    def marks(self) -> pl.DataFrame:
        """What happened to nodes: `time_s`, `node`, `cap`."""
        table = np.frombuffer(self._marks).reshape(-1, 3) if self._marks else np.zeros((0, 3))
        marks = pl.DataFrame(table, schema=["time_s", "node", "cap"], orient="row")
        return marks.with_columns(pl.col("node", "cap").cast(pl.Int64))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run to look into: its result and `marks` (time_s, node, cap; `STANDBY` where a node went there)."""

    result: Result
    marks: pl.DataFrame
    asleep: bool
    checkpoint_s: float
