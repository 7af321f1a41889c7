"""Restore a GPU from its journal; settings of other programs are left alone.

A change that was not read back as restored stays in the journal. Standard library only, but for the
driver's door.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .. import _paths
from ..errors import DeviceError, DriverError, NotPermitted, SimulationError, describe_error
from ..records import Setting
from . import driver
from . import journal as journals
from .journal import Journal, load, of
from .protocol import KNOBS, Device

SAME_W = 1.0  # the driver rounds limits
PATIENCE_S = (0.0, 0.05, 0.15, 0.3, 0.5)  # before the attempts to restore, while the driver answers wrongly


@dataclass(frozen=True)
class RestoreOutcome:
    """The outcome of a restore: a sentence, and whether nothing is left to restore."""

    sentence: str = ""
    settled: bool = True


def recover(
    *, others: bool = False, mine: Iterable[Journal] = (), but: Callable[[str], bool] = lambda _: False,
    dry_run: bool = False,
) -> list[str]:
    """Restore what processes that are gone left changed; returns a sentence for each such GPU.

    Args:
        dry_run: Only list them.
        others: Follow journals of other users too, as root does in the epilog of a job. A journal written by
            hand can set a limit within the card's range, and unlock clocks.
        mine: Journals that a process which is gone has handed over; their files may be gone too.
        but: Whether a GPU (by its UUID) is left out.
    """
    notes = list(journals.unusable().values())
    found = {path: journal for path in _paths.journals().glob("*.json")
             if (journal := load(path)) is not None and not but(journal.uuid)}
    for journal in mine:
        there = found.get(journal.path)
        if there is not None and there.writer != journal.writer:
            journal.touched = []  # another process has taken over the GPU
        elif journal.touched:
            found[journal.path] = journal
    for path, journal in sorted(found.items(), key=lambda each: each[0]):
        try:
            notes += _restore_from(path, journal, others, journal in mine, dry_run)
        except Exception as error:  # one journal keeps no other from being restored
            notes.append(f"{path.name}, the journal of a changed GPU, could not be restored from "
                        f"({describe_error(error)})")
    return notes


def not_default(device: Device) -> str:
    """A sentence where a power limit is not the default, no journal names its origin, and this process could
    change it; locked clocks do not show at rest.
    """
    limit_w, default_w = device.setting().power_limit_w, device.limits.default_power_limit_w
    if limit_w is None or default_w is None or same_limit(limit_w, default_w):
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
        why = driver.read_only("sm_clock_mhz")
        found = f"{device.name}: power limit {_watts(limit_w)}, default {_watts(default_w)}"
        found += f"; {why}" if why else ""
        if dry_run or driver.read_only():
            return RestoreOutcome(found, settled=dry_run)
        lock = journals.lock(device.uuid, device.name, device.node)
        if lock is None:
            holder = journals.holder(device.uuid) or "this process"
            return RestoreOutcome(f"{device.name}: not changed, {holder} holds it", settled=False)
        try:
            owed = of(device.uuid)
            knobs = [knob for knob, (ability, _, _) in KNOBS.items()
                     if device.can(ability) or (owed is not None and knob in owed.touched)]
            every = Journal(device.uuid, device.name, os.getpid(), "", default_w, "", knobs,
                            [] if limit_w is None else [limit_w])
            problem = put_back(lambda: device, every)
            if every.touched:
                return RestoreOutcome(problem, settled=False)
            for path in {*journals.unusable(), *([owed.path] if owed is not None else [])}:
                if path.name.startswith(f"{device.uuid}.") and (owed is None or not owed.writer_runs):
                    with contextlib.suppress(OSError):  # a file of another user
                        path.unlink()
        finally:
            lock.close()
        return RestoreOutcome(f"{found}: put to the driver's defaults")
    except DeviceError as error:
        return RestoreOutcome(f"{device.name}: {error}", settled=False)


def _restore_from(
    path: Path, journal: Journal, others: bool, handed_over: bool, dry_run: bool
) -> list[str]:
    if not journal.of_this_host:
        return []
    if journal.of_an_earlier_boot:
        path.unlink(missing_ok=True)
        return []

    def taken_up() -> bool:
        """Whether another process has restored the GPU or is changing it now."""
        there = load(path)
        return not handed_over if there is None else there.writer != journal.writer

    if not handed_over:
        if journal.writer_runs:
            return []
        if dry_run:
            touched = ", ".join(journal.touched)
            return [f"{journal.name} was left changed ({touched}) by a process that is gone"]
        if not others and not _paths.is_ours(path):
            return [still_changed(journal, f"its journal {path} is another user's, who can restore it; or "
                                  "remove that file")]
    until_s = time.monotonic() + 3.0
    try:
        while (lock := journals.lock(journal.uuid, journal.name)) is None and not taken_up():
            if time.monotonic() > until_s:
                holder = journals.holder(journal.uuid) or "another process"
                return [still_changed(journal, f"{holder} is restoring it just now")]
            time.sleep(0.05)
    except NotPermitted as error:
        return [still_changed(journal, str(error))]
    if lock is None:
        return []
    try:
        return [] if taken_up() else _recover(path, journal, keep=not others)
    finally:
        lock.close(abandoned=bool(journal.touched))


def _recover(path: Path, journal: Journal, *, keep: bool) -> list[str]:
    if journal.simulated:
        here = os.environ.get("WORKBENCH_SIMULATED_GPUS", "")
        if not Path(journal.simulated).exists():
            path.unlink(missing_ok=True)
            journal.touched = []
            return []
        if here != journal.simulated:
            return []  # not this process's machine
    what = "power limit" if journal.touched == ["power_limit_w"] else "setting"
    sentence = put_back(lambda: driver.current().open_uuid(journal.uuid), journal)
    if journal.touched:
        if keep:
            with contextlib.suppress(DeviceError):
                journal.write()
        return [sentence]
    path.unlink(missing_ok=True)
    return [sentence or f"{journal.name} was left changed by a process that is gone; its {what} is restored"]


def put_back(opened: Callable[[], Device], journal: Journal) -> str:
    """Undo the changes of a journal, unless others replaced them. Tries for 1 s if the driver fails.

    A knob leaves `journal.touched` when it was read back as restored, or another program has set it; a clock,
    which cannot be read back, when the driver has reset it. Returns a sentence where something is not as it
    was before.

    Args:
        opened: Gives the GPU. A new one is opened where an earlier one may have been read wrongly.
        journal: What to undo.
    """
    notes: list[str] = []
    problems: list[str] = []
    for pause_s in PATIENCE_S:
        time.sleep(pause_s)
        problems = []
        for knob in journal.touched:
            try:
                if note := _undo(opened(), knob, journal):
                    notes.append(f"{journal.name}: {note}")
                journal.touched = [each for each in journal.touched if each != knob]
            except (DeviceError, SimulationError) as error:
                problems.append(str(error))
        if not problems:
            break
    return "; ".join([*notes, *([still_changed(journal, *problems)] if problems else [])])


def _undo(device: Device, knob: str, journal: Journal) -> str:
    if knob != "power_limit_w":
        device.reset((knob,))
        return ""
    now_w, default_w = device.setting().power_limit_w, device.limits.default_power_limit_w
    before_w = default_w if journal.before_w is None else journal.before_w
    if now_w is None or before_w is None:
        raise DriverError(f"the power limit of {device.name} cannot be read")
    if not any(same_limit(now_w, limit_w) for limit_w in (before_w, *journal.limits_w)):
        return left_alone(now_w, before_w)
    shown_w: float | None = None
    # A driver that shows only the enforced limit may have shown a cap, with a higher limit behind it.
    hides = default_w is not None and before_w < default_w and not device.can("requested_limit")
    for limit_w in (default_w, before_w) if hides else (before_w,):
        try:
            shown_w = device.write(Setting(power_limit_w=limit_w)).power_limit_w
        except DeviceError:
            if hides or not same_limit(now_w, before_w):
                raise
            shown_w = now_w
        if same_limit(shown_w, before_w):
            return ""
    return f"the driver rounds the {before_w:g} W before to {_watts(shown_w)}"


def still_changed(journal: Journal, *problems: str) -> str:
    """Return a sentence on unrestored settings: the GPU, the values, the reason and the remedy."""
    names = [KNOBS[knob][1] for knob in journal.touched]
    if "power_limit_w" in journal.touched:
        names[0] += f" ({_watts(journal.before_w)} before)"
    why = "; ".join(dict.fromkeys(problems))
    return (f"{journal.name} ({journal.uuid}) is still changed: {', '.join(names)} could not be restored: "
            f"{why}. `workbench restore` tries again")


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g} W"


def same_limit(a_w: float | None, b_w: float | None) -> bool:
    """Whether two power limits are known and equal, apart from the driver's rounding."""
    return a_w is not None and b_w is not None and abs(a_w - b_w) <= SAME_W


def left_alone(now_w: float | None, before_w: float | None) -> str:
    """Sentence on a limit that differs from the one before; empty where it does not, or one is not known."""
    if now_w is None or before_w is None or abs(now_w - before_w) <= SAME_W:
        return ""
    return (f"left alone at {now_w:g} W: another program has set it meanwhile, or the driver was reloaded "
            f"(it was {before_w:g} W before)")
