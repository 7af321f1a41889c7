"""A log as records, fast enough for a million jobs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import polars as pl
from polars import col

from . import jobs as logs
from .colocation import Profile
from .power import UNIT
from .state import NEVER_S, Job


def columns(log: pl.DataFrame) -> tuple[list[Profile], array[float], Iterator[Job]]:
    """The profiles of a checked log by number (same model, same utilisation), the submission time of each job
    in seconds, and a new, queued record of each, in the order of the log.
    """
    load = (col.utilisation * UNIT).round().cast(int)
    kinds = log.select(kind=pl.struct(col.model.fill_null("?"), load=load))
    distinct = kinds.unique(maintain_order=True).with_row_index("profile")
    profiles = [Profile(**each) for each in distinct["kind"]]
    epoch_s = pl.max_horizontal(pl.lit(logs.SHORTEST_S), col.duration_s / logs.EPOCHS)
    rows = log.hstack(kinds.join(distinct, on="kind", how="left", maintain_order="left")).select(
        "submit_s", "duration_s", col.expected_s.fill_null(col.duration_s),
        col.duration_s.alias("left_s"), col.deadline_s.fill_null(NEVER_S),
        col.epoch_s.fill_null(epoch_s), col.sensitivity.fill_null(1.0), "num_gpus", "profile",
        col.kind.struct["load"], "memory_bytes", "priority",
    )
    submit = array("d", log["submit_s"].to_numpy().tobytes())
    records = (Job(index, *row) for index, row in enumerate(rows.iter_rows()))
    return profiles, submit, records
