"""What setting is in force on a GPU, how a chosen one differs, which rights it takes, what followed."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from ..records import Setting
from . import driver, zeusd
from .gpu import OpenGpu
from .journal import KNOBS
from .protocol import Device
from .restore import SAME_W

ORIGINS = {
    "default": "the driver's default", "applied": "applied from this workbench",
    "tuner": "a tuner of this process", "slider": "the limit slider of a live view",
    "run": "a run of this process, which puts it back at its end",
    "process": "another process, which holds the GPU", "program": "another program, or an administrator",
    "lost": "nobody knows: the GPU does not answer",
}
WORDS = {"power_limit_w": "power limit", "sm_clock_mhz": "SM clock", "mem_clock_mhz": "memory clock"}
UNITS = {"power_limit_w": "W", "sm_clock_mhz": "MHz", "mem_clock_mhz": "MHz"}
BEFORE_S, AFTER_S = 3.0, 5.0  # seconds of power shown around a change
SETTLED_S = 1.0  # of a stretch at the end of either, that stands for its level
SAME_SHARE, LEAST_W = 0.02, 2.0  # powers that differ by less are one


@dataclass(frozen=True, slots=True)
class Rights:
    """What a change takes: who may ("root", "lent" by the Zeus daemon, "simulated", ""), and what if not."""

    who: str
    words: str
    command: str


@dataclass(frozen=True, slots=True)
class StepResponse:
    """The power of a GPU around a change at time 0; arrays of one length, seconds and watts."""

    time_s: np.ndarray
    power_w: np.ndarray
    before_w: float | None
    after_w: float | None
    words: str


def highest_limit_w(device: Device) -> float | None:
    """The highest power limit (W) with an effect: the card's, or a cap (a management controller's) below what
    was asked for; None where the card takes none.
    """
    highest_w, asked_w = device.limits.max_power_limit_w, device.setting().power_limit_w
    holds_w = device.enforced_limit_w()
    if highest_w is None or holds_w is None or asked_w is None or holds_w > asked_w - SAME_W:
        return highest_w
    return min(highest_w, holds_w)


def whole(setting: Setting, device: Device) -> Setting:
    """A setting with the driver's default power limit where it names none."""
    if setting.power_limit_w is not None or not device.can("set_power_limit"):
        return setting
    return Setting(device.limits.default_power_limit_w, setting.sm_clock_mhz, setting.mem_clock_mhz)


def same(a: Setting, b: Setting) -> bool:
    """Whether two settings are one to the driver, which rounds limits."""
    return not changed(a, b)


def changed(a: Setting, b: Setting) -> tuple[str, ...]:
    """The knobs in which two settings differ."""
    out = [knob for knob in KNOBS[1:] if getattr(a, knob) != getattr(b, knob)]
    low_w, high_w = a.power_limit_w, b.power_limit_w
    if low_w != high_w and (low_w is None or high_w is None or abs(low_w - high_w) > SAME_W):
        out.insert(0, "power_limit_w")
    return tuple(out)


def difference(now: Setting, wanted: Setting, device: Device) -> tuple[str, ...]:
    """What putting a GPU to a whole setting changes, knob by knob: "power limit 250 W → 150 W"."""
    wanted = whole(wanted, device)
    default_w = device.limits.default_power_limit_w

    def words(knob: str, setting: Setting) -> str:
        value = getattr(setting, knob)
        if value is None:
            return "driver default"
        usual = knob == "power_limit_w" and default_w is not None and abs(value - default_w) <= SAME_W
        return f"{value:g} {UNITS[knob]}" + (" (default)" if usual else "")

    knobs = changed(now, wanted)
    if wanted.power_limit_w is None:
        knobs = tuple(knob for knob in knobs if knob != "power_limit_w")
    return tuple(f"{WORDS[knob]} {words(knob, now)} → {words(knob, wanted)}" for knob in knobs)


def rights(now: Setting, wanted: Setting, device: OpenGpu, *, refused: str = "") -> Rights:
    """What rights a change of a GPU takes; `refused` is how an attempt has failed."""
    if refused:
        who, words = "", refused
    elif driver.read_only():
        who, words = "", driver.read_only()
    elif device.simulated:
        who, words = "simulated", "simulated GPU: no privileges needed"
    elif zeusd.present():
        daemon = f"the Zeus daemon at {os.environ['ZEUSD_SOCK_PATH']}"
        who, words = "lent", f"{daemon} lends its rights where this process has none"
    elif driver.current().is_privileged():
        who, words = "root", "this process is root; a container needs the capability SYS_ADMIN besides"
    else:
        takes = "changing a GPU takes root, or the Zeus daemon (ZEUSD_SOCK_PATH)"
        who, words = "", f"{takes}; an administrator can type the command"
    return Rights(who, words, "\n".join(device.commands(now, whole(wanted, device))))


def followed(time_s: np.ndarray, power_w: np.ndarray, at_s: float, *, update_s: float = 0.1) -> StepResponse:
    """How the power has followed a change.

    Args:
        time_s: Of readings, ascending, seconds.
        power_w: The readings; NaN where there is none.
        at_s: When the change was made, on the same clock.
        update_s: Time between two refreshes of the sensor: a response is told no finer.
    """
    known = np.isfinite(power_w) & (time_s >= at_s - BEFORE_S) & (time_s <= at_s + AFTER_S)
    t, p = time_s[known] - at_s, power_w[known]
    earlier = p[(t <= 0) & (t >= -BEFORE_S)]
    later = p[t > max(t[-1] - SETTLED_S, 0.0)] if len(t) and t[-1] > 0 else p[:0]
    if not len(earlier):
        return StepResponse(t, p, None, None, "the power before the change was not recorded")
    if not len(later):
        words = "no reading of the power since the change yet"
        return StepResponse(t, p, float(earlier.mean()), None, words)
    before_w, after_w = float(earlier.mean()), float(later.mean())
    step_w = after_w - before_w
    if abs(step_w) < max(SAME_SHARE * before_w, LEAST_W):
        return StepResponse(t, p, before_w, after_w, f"the power stays at {after_w:.0f} W")
    near = (t > 0) & (np.abs(p - after_w) <= max(0.1 * abs(step_w), LEAST_W))
    within = f" within {max(float(t[near][0]), update_s):.1f} s" if near.any() else ""
    words = f"the power went from {before_w:.0f} W to {after_w:.0f} W{within}"
    return StepResponse(t, p, before_w, after_w, words)
