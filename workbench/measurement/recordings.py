"""Recordings of a driver's answers: made by `workbench doctor --record`, replayed by `workbench.simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.gpu import OpenGpu
from ..errors import UsageError
from ..simulation import replay
from .sampler import FOLLOW_S, LOCK_SHARE, STATUS_EVERY_S

if TYPE_CHECKING:
    from ..device.recording import Answers

LONGEST_S = 3600.0


def record(devices: Sequence[OpenGpu], seconds: float = 60.0) -> Answers:
    """What the driver answers for some time, at the pace of a sampler that follows every refresh.

    Raises:
        UsageError: no GPU, or seconds that are not above 0 and at most `LONGEST_S`.
        DeviceError: a GPU cannot be opened.
    """
    from ..device import recording

    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{seconds:g} seconds to record; give more than 0, at most {LONGEST_S:g}")
    uuids = [device.uuid for device in devices]
    return recording.record(uuids, seconds, every_s=FOLLOW_S, share=LOCK_SHARE, status_s=STATUS_EVERY_S)


def replayable(path: str | Path, every_s: float | None = None) -> list[dict[str, Any]]:
    """What is to be replayed of a recording, of a trace of our own log, or of a log that `read_log` knows.

    Args:
        path: The file.
        every_s: How often the log was written, where its rows have no times.

    Raises:
        SimulationError: a damaged recording. UsageError: nothing that is known, or no GPU's power in it.
    """
    import polars as pl

    from ..logbook.log_readers import read_log
    from ..trace import SCHEMA

    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            start = opened.read(4096)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if start[:2] == b"\x1f\x8b" or replay.FORMAT.encode() in start:
        return replay.load(file)
    own = start[:4] == b"PAR1" or b"time_s" in start.split(b"\n")[0]
    if own:
        try:
            frame = pl.read_parquet(file) if start[:4] == b"PAR1" else pl.read_csv(file, infer_schema=False)
            gpu = pl.col("gpu").cast(pl.String) if "gpu" in frame.columns else pl.lit("0")
            known = [name for name in SCHEMA.names() if name in frame.columns]
            frame = frame.select(*known, gpu=gpu).cast(dict.fromkeys(known, pl.Float64), strict=False)
            frame = frame.filter(pl.col("time_s").is_finite()).with_columns(
                pl.selectors.float().fill_nan(None), time_s=pl.col("time_s") - pl.col("time_s").min()
            )
        except pl.exceptions.PolarsError as error:
            raise UsageError(f"{file.name} is no trace: {error}") from error
        parts = frame.sort("time_s").partition_by("gpu", as_dict=True, maintain_order=True)
        traces, written_by = {str(key[0]): part for key, part in sorted(parts.items())}, "the log"
    else:
        log = read_log(file, every_s=every_s)
        traces, written_by = dict(log), log.written_by
    columns = {gpu: trace.to_dict(as_series=False) for gpu, trace in traces.items()}
    if not any(value is not None for each in columns.values() for name in ("power_w", "energy_j")
               for value in each.get(name, ())):
        raise UsageError(f"{file.name} has no power and no energy of a GPU to replay")
    return replay.of_traces(columns, written_by)
