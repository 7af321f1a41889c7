"""Restore a GPU from its journal; settings of other programs are left alone.

Standard library only, but for the driver's door.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from .. import _paths
from ..errors import DeviceError, NotPermitted, NotSupported, SimulationError, Transient, describe_error
from ..records import Setting
from . import driver
from . import journal as journals
from .journal import KNOBS, Journal, load, of
from .protocol import Device

SAME_W = 1.0  # the driver rounds limits
PATIENCE_S = (0.05, 0.15, 0.3, 0.5)  # pauses between the attempts to restore while the driver cannot answer
T = TypeVar("T")


@dataclass(frozen=True)
class RestoreOutcome:
    """The outcome of a restore: a sentence, and whether nothing is left to restore."""

    sentence: str = ""
    settled: bool = True


def recover(*, others: bool = False) -> list[str]:
    """Restore what processes that are gone left changed; returns a sentence for each such GPU.

    Args:
        others: Follow journals of other users too, as root does in the epilog of a job. A journal written by
            hand can set a limit within the card's range, and unlock clocks.
    """
    notes = []
    for path in sorted(_paths.journals().glob("*.json")):
        try:
            notes += _restore_from(path, others=others)
        except Exception as error:  # one journal keeps no other from being restored
            notes.append(f"{path.name}, the journal of a changed GPU, could not be restored from "
                        f"({describe_error(error)})")
    return notes


def owed() -> list[str]:
    """A sentence for each GPU that a process which is gone has left changed; restores nothing."""
    notes = []
    for path in sorted(_paths.journals().glob("*.json")):
        journal = load(path)
        if journal is None:
            notes.append(f"{path.name} is no readable journal of a changed GPU")
        elif journal.of_this_host and not journal.of_an_earlier_boot and not journal.writer_runs:
            what = ", ".join(journal.touched)
            notes.append(f"{journal.name} was left changed ({what}) by a process that is gone")
    return notes


def not_default(device: Device) -> str:
    """A sentence where a power limit is not the default, no journal names its origin, and this process could
    change it; locked clocks do not show at rest.
    """
    limit_w, default_w = device.setting().power_limit_w, device.limits.default_power_limit_w
    if limit_w is None or default_w is None or abs(limit_w - default_w) <= SAME_W:
        return ""
    if journals.holder(device.uuid) or of(device.uuid) is not None or device.missing_rights():
        return ""
    return (f"the power limit of {device.name} is {limit_w:g} W, and its default {default_w:g} W: an "
            "administrator has set it, or a killed container whose journal is gone has left it changed (its "
            "clocks too, perhaps); `workbench restore --all` puts it to the default")


def to_default(device: Device, *, dry_run: bool = False) -> RestoreOutcome:
    """Put a GPU that no living process holds to the driver's default limit and clocks.

    Args:
        device: The GPU.
        dry_run: Only list the changes.
    """
    try:
        limit_w, default_w = device.setting().power_limit_w, device.limits.default_power_limit_w
        changed = limit_w is not None and default_w is not None and abs(limit_w - default_w) > SAME_W
        kept = ""
        limit = f"power limit {limit_w:g} W, default {default_w:g} W" if changed else "default power limit"
        if limit_w is not None and default_w is None:
            limit = f"power limit {limit_w:g} W is left, as its default is unknown"
        if dry_run:
            return RestoreOutcome(f"{device.name}: {limit}; its clocks would be unlocked")
        lock = journals.lock(device.uuid, device.name, device.node)
        if lock is None:
            holder = journals.holder(device.uuid) or "this process"
            return RestoreOutcome(f"{device.name}: not changed, {holder} holds it", settled=False)
        try:
            for knob in KNOBS if changed else KNOBS[1:]:
                why = driver.read_only(knob)
                if why and not driver.read_only():  # clocks only: nobody here has locked any
                    kept = f"; {why}"
                    continue
                with contextlib.suppress(NotSupported):  # then it was never locked
                    _patiently(partial(device.reset, (knob,)))
            owed = of(device.uuid)
            if owed is not None and not owed.writer_runs:  # whoever's: it asks for nothing any more
                with contextlib.suppress(OSError):  # another user's, in a directory of others
                    owed.path.unlink(missing_ok=True)
        finally:
            lock.close()
        return RestoreOutcome(f"{device.name}: put to the driver's defaults ({limit} before){kept}")
    except DeviceError as error:
        return RestoreOutcome(f"{device.name}: {error}", settled=False)


def _restore_from(path: Path, *, others: bool) -> list[str]:
    journal = load(path)
    if journal is None:
        if not path.exists():
            return []
        aside = path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            path.replace(aside)
        return [f"a journal of a changed GPU could not be read and was set aside as {aside.name}"]
    if not journal.of_this_host:
        return []
    if journal.of_an_earlier_boot:
        path.unlink(missing_ok=True)
        return []
    if journal.writer_runs:
        return []
    left = f"{journal.name} was left changed by a process that is gone and is not restored: "
    if not others and not _paths.is_ours(path):
        return [f"{left}its journal {path} is another user's, who can restore it; or remove that file"]
    try:
        lock = journals.lock(journal.uuid, journal.name)
    except NotPermitted as error:
        return [f"{left}{error}"]
    if lock is None:
        return []  # its watchdog is at work
    try:
        journal = load(path)  # another process may have restored it, and changed the GPU itself, meanwhile
        return _recover(path, journal) if journal is not None and not journal.writer_runs else []
    finally:
        lock.close()


def _recover(path: Path, journal: Journal) -> list[str]:
    from ..simulation.nvml_library import attach

    if journal.simulated:
        here = os.environ.get("WORKBENCH_SIMULATED_GPUS", "")
        if not Path(journal.simulated).exists():
            path.unlink()
            return []
        if here != journal.simulated:
            return []  # not this process's machine
        attach()
    left = f"{journal.name} was left changed by a process that is gone"
    try:
        outcome = put_back(driver.current().open_uuid(journal.uuid), journal)
    except (DeviceError, SimulationError) as error:
        return [f"{left} and could not be restored: {error}"]
    if outcome.settled:
        path.unlink(missing_ok=True)
    if outcome.sentence:
        return [f"{journal.name}: {outcome.sentence}"]
    what = "power limit" if journal.touched == ["power_limit_w"] else "setting"
    return [f"{left}; its {what} is restored"]


def put_back(device: Device, journal: Journal) -> RestoreOutcome:
    """Undo the changes of a journal that are still ours."""
    clocks = _clocks_back(device, journal)
    limit = _limit_back(device, journal)
    return RestoreOutcome("; ".join(each.sentence for each in (clocks, limit) if each.sentence),
                          clocks.settled and limit.settled)


def _clocks_back(device: Device, journal: Journal) -> RestoreOutcome:
    clocks = tuple(knob for knob in journal.touched if knob != "power_limit_w")
    try:
        _patiently(lambda: device.reset(clocks))
    except DeviceError as error:
        if isinstance(error, NotSupported) and device.locked() == Setting():
            return RestoreOutcome()  # then it was never locked
        return RestoreOutcome(str(error), settled=False)
    return RestoreOutcome()


def _limit_back(device: Device, journal: Journal) -> RestoreOutcome:
    before_w = journal.before_w
    if "power_limit_w" not in journal.touched or before_w is None:
        return RestoreOutcome()
    failed = f"the power limit could not be restored to {before_w:g} W"
    try:
        now_w = _patiently(device.setting).power_limit_w
        if now_w is None or abs(now_w - before_w) <= SAME_W:
            return RestoreOutcome()
        if not any(abs(now_w - limit_w) <= SAME_W for limit_w in journal.limits_w):
            default_w = device.limits.default_power_limit_w
            if default_w is not None and abs(now_w - default_w) <= SAME_W:
                return RestoreOutcome(f"at the driver's default of {now_w:g} W: the driver was unloaded, or "
                                      f"somebody has reset it meanwhile (it was {before_w:g} W before)")
            return RestoreOutcome(left_alone(now_w, before_w))
        low_w, high_w = device.limits.min_power_limit_w, device.limits.max_power_limit_w
        if low_w is not None and high_w is not None and not low_w <= before_w <= high_w:
            _patiently(lambda: device.reset(("power_limit_w",)))
            why = f"{before_w:g} W before is outside {low_w:g}..{high_w:g} W"
            return RestoreOutcome(f"put to the card's default limit: {why}")
        _patiently(lambda: device.write(Setting(power_limit_w=before_w)))
    except DeviceError as error:
        return RestoreOutcome(f"{failed}: {error}", settled=False)
    return RestoreOutcome()


def left_alone(now_w: float, before_w: float) -> str:
    """Sentence on a limit that differs from the earlier one."""
    return f"left alone at {now_w:g} W: another program has set it meanwhile (it was {before_w:g} W before)"


def _patiently(act: Callable[[], T]) -> T:
    """Do something that the driver may not be able to answer just now; tried for a second."""
    for pause_s in PATIENCE_S:
        try:
            return act()
        except Transient:
            time.sleep(pause_s)
    return act()
