"""The energy of a stretch of a running job."""

from __future__ import annotations

import numpy as np

from ..measurement.energy_estimate import EnergyEstimate
from ..measurement.meter import Meter

READ_S = 0.25  # after a stretch's end: the sensors have refreshed
WAIT_S = 2.5  # after a stretch's end, within which its energy is known
STILL_S = 1.0  # for which a counter may stand still while its GPU draws power


def energy(meter: Meter, start_s: float, end_s: float) -> EnergyEstimate | None:
    """Energy of all GPUs between two times; None if unknown, as with a counter that stopped."""
    found, recorder = meter.energy(start_s, end_s), meter.recorder
    if found is None or found.energy_j <= 0 or recorder is None:
        return None
    for device in meter.devices if end_s - start_s >= STILL_S else ():
        joules = recorder.rows(device.uuid, start_s, end_s)["energy_j"]
        moves = np.isfinite(joules).any() and float(np.nanmax(joules) - np.nanmin(joules)) > 0.0
        if device.can("energy") and len(joules) >= 4 and not moves:
            return None
    return found
