"""A power limit to try first, by a rule of thumb, for the job that runs now."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from ..device.protocol import Device
from ..errors import WorkbenchError
from ..measurement.meter import Meter
from ..search.space import space_from
from .change_detection import busy_gpus

WINDOW_S = 10.0  # the draw is averaged over at most this long
AT_DEFAULT = 0.99  # of the default limit; below it, a lower limit is already set


def suggested_limit_w(limits_w: Collection[float], draw_w: float) -> float:
    """The power limit nearest to 0.875 times the geometric mean of the job's draw and the highest limit.

    A model trained on three cards saved less than this rule on every card left out of its training. The
    suggested limit can be too slow: docs/validation/limits.md shows how often.

    Args:
        limits_w: Power limits that can be set.
        draw_w: Mean power of the job at the highest of them.
    """
    wanted_w = 0.875 * math.sqrt(draw_w * max(limits_w))
    return min(limits_w, key=lambda limit_w: abs(limit_w - wanted_w))


def advice(meter: Meter) -> Iterator[str]:
    """One sentence per GPU: which power limit to try first for the job that runs now.

    Args:
        meter: The meter of the GPUs; its recorder must be running.
    """
    for number, device in enumerate(meter.devices):
        try:
            yield f"GPU {number}: {_advice_for(device, meter)}"
        except WorkbenchError as error:
            yield f"GPU {number}: no suggestion: {error}"


def _advice_for(device: Device, meter: Meter) -> str:
    recorder, limits, limit_w = meter.recorder, device.limits, device.setting().power_limit_w
    if limits.min_power_limit_w is None or limits.default_power_limit_w is None or limit_w is None:
        return "no suggestion: its power limit cannot be set"
    if limit_w < AT_DEFAULT * limits.default_power_limit_w:
        return (f"no suggestion: the power limit is {limit_w:g} W, and the rule needs the draw at the "
                f"default of {limits.default_power_limit_w:g} W. `%gpu restore` restores the default")
    now_s = meter.clock()
    if recorder is None or not busy_gpus(recorder, [device], now_s):
        return "no suggestion: the GPU is idle; ask again while the job runs"
    draw_w = float(np.nanmean(recorder.rows(device.uuid, now_s - WINDOW_S, now_s)["power_w"]))
    space = space_from(limits, "power")
    limits_w = [each.power_limit_w for each in space.settings if each.power_limit_w is not None]
    suggested_w = suggested_limit_w(limits_w, draw_w)
    if suggested_w >= max(limits_w):
        return f"the job draws {draw_w:.0f} W; no lower limit is worth trying first"
    return (f"the job draws {draw_w:.0f} W of {limit_w:g} W. Try {suggested_w:g} W first. This is a rule of "
            "thumb; `%%energy --tune` measures what a limit saves and how much it slows the job down")
