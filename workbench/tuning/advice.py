"""What a power limit would probably do for the job that runs now, before anything is tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from ..device.protocol import Device
from ..errors import WorkbenchError
from ..measurement.meter import Meter
from ..search.space import space_from
from ..search.surrogates.first_guess import FirstGuess, first_guess
from .change_detection import busy_gpus

LOOK_S = 10.0  # of the job, at most
CAPPED = 0.99  # of the default limit, below which a limit is taken to be in force already


def advice(meter: Meter, max_slowdown: float = 0.05) -> Iterator[str]:
    """A sentence for each GPU: the limit that is likely to save most within a slowdown, and its odds.

    Args:
        meter: What measures the GPUs; its recorder must be running.
        max_slowdown: A share, 0.05 = 5 %.

    Raises:
        UsageError: a slowdown that cannot be.
    """
    for number, device in enumerate(meter.devices):
        try:
            yield f"GPU {number}: {_of(device, meter, max_slowdown)}"
        except WorkbenchError as error:
            yield f"GPU {number}: no guess: {error}"


def _of(device: Device, meter: Meter, max_slowdown: float) -> str:
    recorder, limits, limit_w = meter.recorder, device.limits, device.setting().power_limit_w
    if limits.min_power_limit_w is None or limits.default_power_limit_w is None or limit_w is None:
        return "no guess: its power limit cannot be set"
    if limit_w < CAPPED * limits.default_power_limit_w:
        return (f"no guess at {limit_w:g} W: it needs the draw at the default of "
                f"{limits.default_power_limit_w:g} W; `%gpu restore` puts that back")
    now_s = meter.clock()
    if recorder is None or not busy_gpus(recorder, [device], now_s):
        return "no guess: it is idle; ask again while the job runs"
    rows = recorder.rows(device.uuid, now_s - LOOK_S, now_s)
    space = space_from(limits, "power")
    limits_w = [each.power_limit_w for each in space.settings if each.power_limit_w is not None]
    draw_w, used = float(np.nanmean(rows["power_w"])), float(np.nanmean(rows["utilisation"]))
    guess = first_guess(limits_w, draw_w, max_slowdown, gpu=device.name,
                        utilisation=used if np.isfinite(used) else None)
    return f"draws {draw_w:.0f} W of {limits_w[0]:g} W; {guess}"


def guess_for(
    gpu: str, limits_w: Collection[float], draw_w: float, max_slowdown: float | None
) -> FirstGuess | None:
    """The guess for a job whose baseline is known; None where there is no bound or no limit to choose."""
    if max_slowdown is None or len(limits_w) < 2:
        return None
    try:
        return first_guess(sorted(limits_w), draw_w, max_slowdown, gpu=gpu)
    except WorkbenchError:  # a guess is for show: tuning goes on without it
        return None
