"""An SM clock to lock first for the job that runs now, from two seconds of its clocks under load."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..device.protocol import Device
from ..errors import WorkbenchError
from ..measurement.meter import Meter
from ..records import CLOCKS_SET
from ..search.clocks.effects import Array, ladders
from ..search.clocks.knowledge import time_bounds
from ..search.space import SettingSpace, space_from
from .change_detection import busy_gpus

WINDOW_S = 2.0  # of clocks under load
AT_DEFAULT = 0.99  # of the default power limit; below it, a lower limit is already set
MAX_SLOWDOWN = 0.05
# From `python -m benchmarks.clock_bounds`: measured curves of five cards, down to 80 % of the highest clock;
# curves on which time grew by over 0.5 % more than the ratio of the clocks; and the largest such excess.
CURVES, EXCEEDED, WORST = 206, 9, 0.063


def lowest_clock(
    space: SettingSpace, clocks_mhz: Array, busy: Array, max_slowdown: float = MAX_SLOWDOWN
) -> tuple[int, float] | None:
    """The lowest SM clock that keeps the slowdown limit by the clocks under load, and its largest time ratio.

    Args:
        space: Settings of the GPU.
        clocks_mhz: SM clocks at the default setting; NaN: unknown.
        busy: Utilisation (0..1) of each sample.
        max_slowdown: Allowed share of additional time.

    Returns:
        None if no clock below the one under load is within the limit, or if no clock is known.
    """
    known = clocks_mhz[np.isfinite(clocks_mhz) & (busy > 0.05)]
    if not len(known):
        return None
    top_mhz = float(known.max())
    bounds = time_bounds(ladders(space, top_mhz, math.inf), clocks_mhz, busy)
    found = [
        (setting.sm_clock_mhz, float(bound)) for setting, bound in zip(space.settings, bounds, strict=True)
        if setting.sm_clock_mhz is not None and setting.sm_clock_mhz < top_mhz and bound <= 1.0 + max_slowdown
    ]
    return min(found, default=None)


def advise(meter: Meter, max_slowdown: float = MAX_SLOWDOWN) -> Iterator[str]:
    """One sentence per GPU: which SM clock to lock for the job that runs now.

    Args:
        meter: The meter of the GPUs; its recorder must be running.
        max_slowdown: Allowed share of additional time.
    """
    for number, device in enumerate(meter.devices):
        try:
            yield f"GPU {number}: {_advice_for(device, meter, max_slowdown)}"
        except WorkbenchError as error:
            yield f"GPU {number}: no suggestion: {error}"


def _advice_for(device: Device, meter: Meter, max_slowdown: float) -> str:
    recorder, limits, now = meter.recorder, device.limits, device.setting()
    if not device.can("lock_sm_clock") or not limits.sm_clocks_mhz:
        return "no suggestion: its SM clock cannot be locked"
    now_s = meter.clock()
    if recorder is None or not busy_gpus(recorder, [device], now_s):
        return "no suggestion: the GPU is idle; ask again while the job runs"
    rows = recorder.rows(device.uuid, now_s - WINDOW_S, now_s)
    default_w = limits.default_power_limit_w
    limited = default_w is not None and (now.power_limit_w or math.inf) < AT_DEFAULT * default_w
    if limited or now.sm_clock_mhz is not None or (rows["throttle"].astype(int) & CLOCKS_SET).any():
        lowered = f"power limit is {now.power_limit_w:g} W" if limited else "SM clock is locked"
        return (f"no suggestion: the {lowered}, and the rule needs the clocks at the default setting. "
                "`%gpu restore` restores the default")
    busy = np.nan_to_num(rows["utilisation"], nan=1.0)
    under = rows["sm_clock_mhz"][np.isfinite(rows["sm_clock_mhz"]) & (busy > 0.05)]
    if not len(under):
        return "no suggestion: the driver reports no SM clock under load"
    space = space_from(limits, "clocks", can_lock_memory=False)
    found = lowest_clock(space, rows["sm_clock_mhz"], busy, max_slowdown)
    load = f"{under.mean():.0f} MHz under load"
    if found is None:
        return f"no suggestion: every SM clock below {load} may be over {100 * max_slowdown:g} % slower"
    clock_mhz, most = found
    return (f"lock SM {clock_mhz} MHz: about {100 * (most - 1):.1f} % slower at most by its clocks ({load}); "
            f"of {CURVES} measured curves {EXCEEDED} exceeded such a bound, by up to {100 * WORST:.1f} %")
