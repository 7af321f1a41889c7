"""One trial: a configuration applied to a GPU, a piece of work run and measured under it, the GPU restored.

A trial is a row of `TRIALS`: its requested, active and restored settings, and its outcome.
"""

from __future__ import annotations

import contextlib
import math
import os
import sysconfig
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from ..device.journal import KNOBS as KNOBS
from ..device.lease import Lease
from ..device.protocol import Device
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, OutOfRange
from ..measurement.meter import Meter
from ..measurement.repeats import with_iterations
from ..records import Configuration, Measurement, Setting, Window, WorkDone

Work = Callable[[int | None], float | None]
"""A fixed piece of training at a batch size (None: its own); returns the samples it went through, or None."""

Keep = Callable[[Measurement, Window], object]
"""What stores a measurement and the trace of its window."""

TRIALS = pl.Schema({
    "trial": pl.Int64, "batch_size": pl.Int64,
    "power_limit_w": pl.Float64,  # asked for; null leaves it to the driver
    "sm_clock_mhz": pl.Int64, "mem_clock_mhz": pl.Int64,
    "applied_w": pl.Float64,  # read back before the work began
    "restored_w": pl.Float64,  # read back after the GPU was restored
    # "ok", "not permitted", "not supported", "out of range", "held", "out of memory", "error", "lost"
    "outcome": pl.String, "reason": pl.String,
    "raised_at": pl.String,  # "file:line" of the work where it failed
    "time_s": pl.Float64,  # of a sample, a million tokens, or the whole piece where neither is reported
    "energy_j": pl.Float64,
    "time_se_s": pl.Float64,  # standard errors
    "energy_se_j": pl.Float64, "samples": pl.Float64,
    "unit": pl.String,  # what time and energy are for, of `WORK_UNITS`; null for the whole piece
    "run_s": pl.Float64,  # the piece as it ran
    "run_j": pl.Float64, "gpu": pl.String, "uuid": pl.String, "simulated": pl.Boolean,
    "measurement": pl.String,  # its id in the log
    "worker": pl.String, "began_unix_s": pl.Float64, "ended_unix_s": pl.Float64,
})
WORK_UNITS = {"million tokens": ("tokens", 1e6), "sample": ("samples", 1.0)}  # counted work and its size
REFUSED: tuple[tuple[type[DeviceError], str], ...] = (
    (NotPermitted, "not permitted"), (NotSupported, "not supported"), (OutOfRange, "out of range"),
    (DeviceHeld, "held"),
)


def run(
    configuration: Configuration, work: Work, device: Device, meter: Meter, *,
    trial: int = 0, label: str = "trial", keep: Keep | None = None,
) -> dict[str, Any]:
    """Measure a piece of work under a configuration; returns the row.

    Refused settings, work that fails and lost GPUs are outcomes, not errors; the GPU is restored in every
    case. An interrupt passes through after that.

    Args:
        configuration: Setting and batch size.
        work: Called with the configuration; may return the work it did.
        device: The GPU that is set.
        meter: Measures the window.
        trial: Number of the row.
        label: Of the stored measurement.
        keep: Stores the measurement; None stores nothing.
    """
    row = blank(configuration, trial)
    row |= {"gpu": device.name, "uuid": device.uuid, "worker": str(os.getpid()), "began_unix_s": time.time()}
    measurement: Measurement | None = None
    samples: float | None = None
    lease = Lease([device])
    try:
        setting = configuration.setting
        applied = lease.apply(setting)[0] if setting != Setting() else device.setting()
        row["applied_w"] = applied.power_limit_w
        window = meter.open(label)
        try:
            samples = work(configuration.batch_size)
            row["outcome"] = "ok"
        except Exception as error:
            row |= failure(error) | {"raised_at": raised_at(error, work)}
        finally:
            window = meter.close(window)
        measurement = meter.measure(window, outcome="ok" if row["outcome"] == "ok" else "error")
        measurement = _with_work(measurement, configuration.batch_size, samples, window, meter)
        if keep is not None and row["outcome"] == "ok":
            keep(measurement, window)
    except DeviceError as error:
        row |= failure(error)
    finally:
        left = lease.release()
        row["restored_w"] = _limit_w(device)
        row["ended_unix_s"] = time.time()
        if left:
            row["reason"] = "; ".join(each for each in (row["reason"], *left) if each)
    if measurement is not None and row["outcome"] == "ok":
        row |= costs(measurement, samples)
    return row


def blank(configuration: Configuration, trial: int) -> dict[str, Any]:
    """The row of a trial of which nothing is known yet."""
    row: dict[str, Any] = dict.fromkeys(TRIALS)
    row |= {"trial": trial, "batch_size": configuration.batch_size, "outcome": "", "reason": ""}
    return row | {knob: getattr(configuration.setting, knob) for knob in KNOBS}


def failure(error: BaseException) -> dict[str, Any]:
    """How an error reads in a row."""
    for kind, outcome in REFUSED:
        if isinstance(error, kind):
            return {"outcome": outcome, "reason": str(error)}
    message = str(error) or type(error).__name__
    if out_of_memory(error):
        return {"outcome": "out of memory", "reason": message}
    return {"outcome": "error", "reason": f"{type(error).__name__}: {message}"}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of a framework, or of the simulated GPU, means that the batch does not fit."""
    message = f"{type(error).__name__} {error}".casefold().replace("_", " ")
    phrases = ("outofmemory", "out of memory", "resource exhausted")
    return isinstance(error, MemoryError) or any(each in message for each in phrases)


def raised_at(error: BaseException, work: Work) -> str | None:
    """The line ("file:line") of the user's code, not of a library, that raised an error. If the work could
    not be called, the line that defines it. None where neither is known.
    """
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    libraries = (*installed, str(Path(__file__).parent), "<frozen ")
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    code = getattr(getattr(work, "func", work), "__code__", None)  # `functools.partial` has a function
    if code is not None:
        lines.insert(0, (code.co_filename, code.co_firstlineno))
    own = [f"{file}:{line}" for file, line in lines if not file.startswith(libraries)]
    return own[-1] if own else None


def _with_work(
    measurement: Measurement, batch_size: int | None, samples: object, window: Window, meter: Meter
) -> Measurement:
    """The measurement with its batch size, the iterations that the work marked, and the samples that it
    returned, or that so many batches of this size have.
    """
    found = meter.count(window, measurement) if window.marks.count else None
    work = {each.name: each for each in measurement.work}
    if samples is None and batch_size is not None and found is not None and not work:
        samples = batch_size * found.summary.count
    with contextlib.suppress(TypeError, ValueError):  # `costs` names the error with it
        if (amount := float(samples)) > 0:  # type: ignore[arg-type]
            work["samples"] = WorkDone("samples", amount)
    return replace(with_iterations(measurement, found), batch_size=batch_size, work=tuple(work.values()))


def costs(measurement: Measurement, samples: float | None) -> dict[str, Any]:
    """Time and energy for a row: of a sample where the work returns how many, else of what it counted by
    `workbench.work`, else of the whole piece.
    """
    energy_j, uncertainty_j = measurement.energy_j, measurement.energy_uncertainty_j
    simulated = {
        "simulated": measurement.simulated, "measurement": measurement.id, "run_s": measurement.time_s,
        "run_j": energy_j,
    }
    try:
        samples = None if samples is None else float(samples)
    except (TypeError, ValueError):
        reason = (
            f"the work returns a {type(samples).__name__}; it is to return how many samples it went through, "
            "or None"
        )
        return simulated | {"outcome": "error", "reason": reason}
    if samples is not None and not (math.isfinite(samples) and samples > 0):
        return simulated | {
            "outcome": "error",
            "reason": f"the work completed {samples:g} samples; give a number above 0",
        }
    if energy_j is None or not energy_j > 0 or not measurement.time_s > 0:
        why = "; ".join(note for gpu in measurement.gpus for note in gpu.notes) or "no energy reported"
        return simulated | {"outcome": "error", "reason": f"its energy could not be measured: {why}"}
    counted = {each.name: each.amount for each in measurement.work if each.amount > 0}
    known = [(unit, counted[name] / size) for unit, (name, size) in WORK_UNITS.items() if name in counted]
    unit, units = ("sample", samples) if samples is not None else known[0] if known else (None, 1.0)
    return simulated | {
        "samples": samples, "unit": unit, "time_s": measurement.time_s / units, "energy_j": energy_j / units,
        "time_se_s": 0.0, "energy_se_j": (uncertainty_j or 0.0) / 1.96 / units,
    }


def _limit_w(device: Device) -> float | None:
    try:
        return device.setting().power_limit_w
    except DeviceError:
        return None
