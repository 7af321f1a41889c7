"""Records a simulated run for later examination: job placements, changes of jobs, intervals of nodes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain

import numpy as np
import polars as pl

from .state import LEAVING, QUEUED, RUNNING, Job, Node

JOB_STATES = ("waiting", "waking", "running", "stopping", "done")
NODE_STATES = ("awake", "waking", "standby")  # indexed by `state`
NODE_COLUMNS = ("node", "from_s", "to_s", "state", "jobs", "utilisation", "power_limit_w", "power_w")
STAYS = {"row": pl.Int64, "node": pl.Int64, "gpu": pl.Int64, "from_s": pl.Float64, "to_s": pl.Float64}


class RunRecorder:
    """Records the reports of a simulator about its jobs, and lets the nodes record their meters."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(nodes)
        for node in self._nodes:
            node.history = array("d")
        self._since: dict[int, float] = {}
        self._stays: list[tuple[int, int, int, float, float]] = []
        self._changes = array("d")

    def came(self, job: Job, now_s: float) -> None:
        """A job was placed."""
        self._since[job.index] = now_s
        self.changed(job, now_s)

    def changed(self, job: Job, now_s: float) -> None:
        """A job continues in another state, at another speed or with other neighbours."""
        state = {QUEUED: 0, RUNNING: 2 if job.rate else 1, LEAVING: 3}.get(job.state, 4)
        excess = job.sensitivity * max([gpu.mix.excess for gpu in job.gpus])
        self._changes.extend((job.index, now_s, state, job.rate, excess))

    def left(self, job: Job, now_s: float) -> None:
        """A job leaves its GPUs."""
        self.changed(job, now_s)
        since_s = self._since.pop(job.index)
        self._stays += [(job.index, gpu.node.index, gpu.index, since_s, now_s) for gpu in job.gpus]

    def stays(self, job_ids: pl.Series) -> pl.DataFrame:
        """Intervals of jobs on each GPU, including checkpoints and waking."""
        frame = pl.DataFrame(self._stays, orient="row", schema=STAYS)
        return frame.select(job_ids.gather(frame["row"]).alias("job_id"), pl.all().exclude("row"))

    def job_changes(self, job_ids: pl.Series) -> pl.DataFrame:
        """Every change of a job: time, new state, speed, excess."""
        rows = np.frombuffer(self._changes).reshape(-1, 5)
        row, state = rows[:, 0].astype(int), rows[:, 2].astype(int)
        return pl.DataFrame({
            "job_id": job_ids.gather(row), "from_s": rows[:, 1], "state": pl.Series(JOB_STATES).gather(state),
            "speed": rows[:, 3], "excess": rows[:, 4],
        })

    def node_stretches(self) -> pl.DataFrame:
        """Intervals without a change on a node: occupied seats, utilisation, power limit, power."""
        rows = np.array([*chain.from_iterable(node.history or () for node in self._nodes)])
        frame = pl.DataFrame(rows.reshape(-1, len(NODE_COLUMNS)), schema=list(NODE_COLUMNS)).with_columns(
            pl.col("node", "state", "jobs").cast(int),
            pl.col("utilisation", "power_limit_w").fill_nan(None),
        )
        return frame.with_columns(pl.Series(NODE_STATES).gather(frame["state"]).alias("state"))
