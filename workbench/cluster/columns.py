"""A log as numeric arrays, fast enough for a million jobs, and the outcome of each job."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import count

import polars as pl

from . import jobs as logs
from .colocation import Profile
from .power import UNIT
from .state import NEVER_S, Job


class Columns:
    """A checked log. Rows are grouped by profile: same model, same utilisation.

    Attributes:
        submit: Submission time of each job, s.
        profiles: Profiles by number.
        jobs: A new, queued record of each job, in the order of the log.
    """

    def __init__(self, log: pl.DataFrame) -> None:
        load = (pl.col("utilisation") * UNIT).round().cast(pl.Int64)
        kinds = log.select(pl.col("model").fill_null("?"), load.alias("load"))
        distinct = kinds.unique(maintain_order=True).with_row_index("profile")
        numbered = kinds.join(distinct, on=["model", "load"], how="left", maintain_order="left")
        self.profiles = [Profile(model, load) for _, model, load in distinct.iter_rows()]
        epoch = pl.max_horizontal(pl.lit(logs.SHORTEST_S), pl.col("duration_s") / logs.EPOCHS)
        self.submit, work = _floats(log["submit_s"]), _floats(log["duration_s"])
        self.jobs: Iterator[Job] = map(
            Job, count(), self.submit, work, _floats(log["expected_s"].fill_null(log["duration_s"])), work,
            _floats(log["deadline_s"].fill_null(NEVER_S)),
            _floats(log.select(pl.col("epoch_s").fill_null(epoch)).to_series()),
            _floats(log["sensitivity"].fill_null(1.0)), _ints(log["num_gpus"]), _ints(numbered["profile"]),
            _ints(kinds["load"]), _ints(log["memory_bytes"]), _ints(log["priority"]),
        )

    def __len__(self) -> int:
        return len(self.submit)


class Outcomes:
    """The outcome of each job; the job's record is released when the job ends."""

    def __init__(self, count: int) -> None:
        self.start, self.end, self.run, self.owed = (array("d", bytes(8 * count)) for _ in range(4))
        self.undos, self.moves = array("i", bytes(4 * count)), array("i", bytes(4 * count))

    def write(self, job: Job, now_s: float) -> None:
        """Record the end of a job."""
        index = job.index
        self.start[index], self.end[index] = job.start_s, now_s
        self.run[index], self.owed[index] = job.run_s, job.energy_j
        if job.undos:
            self.undos[index] = job.undos
        if job.moves:
            self.moves[index] = job.moves


def _floats(column: pl.Series) -> array[float]:
    return array("d", column.cast(pl.Float64).to_numpy().tobytes())


def _ints(column: pl.Series) -> array[int]:
    return array("q", column.cast(pl.Int64).to_numpy().tobytes())
