"""The energy of a stretch that has passed, also where the sampling had a gap beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..measurement.meter import Meter


@dataclass(frozen=True, slots=True)
class IntervalEnergyParams:
    """Tuned constants of the energy of an interval.

    Set by hand; `benchmarks.clocks --only online` holds the stated errors against true energy.
    """

    still_s: float = 1.0  # without a change of the counter


PARAMS = IntervalEnergyParams()


class IntervalEnergy(NamedTuple):
    """Joules of all GPUs together, and the 95 % half width."""

    energy_j: float
    uncertainty_j: float


def energy(meter: Meter, start_s: float, end_s: float) -> IntervalEnergy | None:
    """What all GPUs of a meter drew between two times; None where nothing tells."""
    found = meter.energy(start_s, end_s)
    if found is None or found.energy_j <= 0 or _stuck(meter, start_s, end_s):
        return None
    return IntervalEnergy(found.energy_j, found.uncertainty_j)


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
