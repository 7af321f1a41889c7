"""The energy of a stretch that has passed, also where the sampling had a gap beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..measurement.meter import Meter


@dataclass(frozen=True, slots=True)
class IntervalEnergyParams:
    """Tuned constants of the energy of an interval.

    Set by hand; `benchmarks.clocks --only online` holds the stated errors against true energy.
    """

    near_s: float = 2.0  # how far from an edge a reading of the counter may be that still tells of it
    still_s: float = 1.0  # without a change of the counter
    edge: float = 0.78  # of the energy between two readings: what an edge between them leaves uncertain, 95 %


PARAMS = IntervalEnergyParams()


class IntervalEnergy(NamedTuple):
    """Joules of all GPUs together, and the 95 % half width."""

    energy_j: float
    uncertainty_j: float


def energy(meter: Meter, start_s: float, end_s: float) -> IntervalEnergy | None:
    """What all GPUs of a meter drew between two times; None where nothing tells."""
    _, _, _, energy_j, uncertainty_j = meter.energies([start_s, end_s])[0]
    if energy_j is not None and energy_j > 0 and math.isfinite(energy_j):
        found = IntervalEnergy(float(energy_j), float(uncertainty_j or 0.0))
        return None if _stuck(meter, start_s, end_s) else found
    parts = [_interpolated(meter, device.uuid, start_s, end_s) for device in meter.devices]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return IntervalEnergy(
        sum(part.energy_j for part in known), math.sqrt(sum(part.uncertainty_j**2 for part in known))
    )


def _stuck(meter: Meter, start_s: float, end_s: float) -> bool:
    """Whether a counter stands still while its GPU draws power."""
    assert meter.recorder is not None
    for device in meter.devices:
        rows = meter.recorder.rows(device.uuid, start_s, end_s)
        if not device.can("energy") or len(rows) < 4 or end_s - start_s < PARAMS.still_s:
            continue
        joules = rows["energy_j"]
        if not np.isfinite(joules).any() or float(np.nanmax(joules) - np.nanmin(joules)) <= 0.0:
            return True
    return False


def _interpolated(meter: Meter, uuid: str, start_s: float, end_s: float) -> IntervalEnergy | None:
    """By straight lines between readings of the energy counter around both edges: for a sampling with
    holes in it.
    """
    assert meter.recorder is not None
    rows = meter.recorder.rows(uuid, start_s - PARAMS.near_s, end_s + PARAMS.near_s)
    rows = rows[np.isfinite(rows["energy_j"])]
    if len(rows) < 2:
        return None
    changed = np.flatnonzero(np.concatenate([[True], np.diff(rows["energy_j"]) > 0]))
    times, joules = rows["time_s"][changed], rows["energy_j"][changed]
    if len(times) < 2 or times[0] > start_s or times[-1] < end_s or np.any(np.diff(joules) < 0):
        return None
    at = np.interp([start_s, end_s], times, joules)
    error_j = 0.0
    for edge_s in (start_s, end_s):
        after = int(np.clip(np.searchsorted(times, edge_s), 1, len(times) - 1))
        error_j += (PARAMS.edge * 0.5 * float(joules[after] - joules[after - 1])) ** 2
    used_j = float(at[1] - at[0])
    return IntervalEnergy(used_j, math.sqrt(error_j)) if used_j > 0 else None
