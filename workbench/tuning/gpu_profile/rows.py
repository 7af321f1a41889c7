"""The file of a GPU's profile, one row a measurement, and the training frame that is made of them.

A CSV file with a header; a row cut off by a crash is left out when it is read. Each pass over a workload
has a number (`run`); a pass that was interrupted is begun again, because a workload is compared with its own
reference, measured minutes before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import polars as pl

from ...device.journal import KNOBS
from ...errors import StoreError, UsageError
from ...records import Setting
from ..features import NAMES

SCHEMA = pl.Schema({
    "run": pl.Int64, "gpu": pl.String, "workload": pl.String, "group": pl.String, "reference": pl.Boolean,
    "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64, "power_limit_w": pl.Float64,
    "iteration_s": pl.Float64, "power_w": pl.Float64, "iteration_j": pl.Float64, "iterations": pl.Int64,
    "time_s": pl.Float64, "energy_j": pl.Float64, "energy_uncertainty_j": pl.Float64,
    "feature_set": pl.String, **dict.fromkeys(NAMES, pl.Float64), "note": pl.String,
})


class Rows:
    """The rows of one GPU's profile.

    Args:
        path: The file; made with the first row.
        gpu: Whose rows they are, by name.

    Raises:
        UsageError: it has rows of another GPU, or is no such file.
        StoreError: it cannot be read.
    """

    def __init__(self, path: Path, gpu: str) -> None:
        self.path, self.gpu = path, gpu
        self._table = _read(path)
        others = set(self._table["gpu"].unique().to_list()) - {gpu}
        if others:
            raise UsageError(
                f"{path} has measurements of {', '.join(sorted(others))} and this GPU is {gpu}; choose "
                "another --output"
            )

    @property
    def height(self) -> int:
        return self._table.height

    def add(
        self, run: int, workload: str, group: str, setting: Setting | None, values: Mapping[str, Any]
    ) -> None:
        """Append a measurement at a setting, None for the reference, and wait until the disk has it.

        Args:
            run: Number of the run.
            workload: Its name.
            group: Of workloads that are left out together.
            setting: None for the reference.
            values: Columns of the row.
        """
        knobs = asdict(setting) if setting else {}
        row = {
            "run": run, "gpu": self.gpu, "workload": workload, "group": group, "reference": setting is None,
            **knobs, **values,
        }
        whole = pl.DataFrame([row], schema=SCHEMA)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                whole.write_csv(file, include_header=file.tell() == 0)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written: {error.strerror or error}; choose another --output"
            ) from error
        self._table = pl.concat([self._table, whole])

    def finished(self, settings: Sequence[Setting]) -> set[str]:
        """Workloads that one pass has measured at all these settings, and twice at the reference."""
        wanted = {astuple(setting) for setting in settings}
        found = set()
        for (workload, _), rows in self._table.group_by("workload", "run"):
            at = {tuple(row) for row in rows.filter(~pl.col("reference")).select(KNOBS).iter_rows()}
            if wanted <= at and rows["reference"].sum() >= 2:
                found.add(str(workload))
        return found

    def frame(self) -> pl.DataFrame:
        """The training frame: each workload's fullest pass, with the features read at the reference."""
        measured = self._table.filter(pl.col("iteration_s").is_not_null() & pl.col("power_w").is_not_null())
        passes = measured.group_by("workload", "run").agg(
            pl.len().alias("rows"), pl.col("reference").sum().alias("references")
        )
        fullest = passes.filter(pl.col("references") > 0).sort("rows", "run").unique("workload", keep="last")
        chosen = measured.join(fullest, on=["workload", "run"], how="semi", maintain_order="left")
        feature_columns = ("feature_set", *NAMES)
        features = chosen.filter(pl.col("reference") & pl.col("feature_set").is_not_null())
        features = features.unique("workload", keep="first").select("workload", *feature_columns)
        rest = chosen.drop(*feature_columns, "run", "note")
        joined = rest.join(features, on="workload", how="left", maintain_order="left")
        absent = [name for name in NAMES if joined[name].null_count() == joined.height]
        return joined.drop(absent)


def _read(path: Path) -> pl.DataFrame:
    if not path.exists():
        return pl.DataFrame(schema=SCHEMA)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    whole, header = raw[: raw.rfind(b"\n") + 1], ",".join(SCHEMA).encode()
    if not header.startswith(raw[: len(header)]):
        raise UsageError(
            f"{path} is no profile of this version (its columns are others); choose another --output, or "
            "remove it"
        )
    if len(whole) < len(raw):  # cut off in the middle of a row; what follows must not be glued to it
        os.truncate(path, len(whole))
    return pl.read_csv(whole, schema=SCHEMA) if whole else pl.DataFrame(schema=SCHEMA)
