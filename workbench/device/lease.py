"""Changing a GPU's setting so that it is put back: on success, on failure, at exit, and when the process was
killed.

One process at a time holds a GPU (a lock file). Before the first change a journal with the state found goes
to disk, and a watchdog process starts that restores it if this process dies. A journal that outlived both is
restored on the next start. What another program has set meanwhile is left alone, and said. A home that
several machines share has the journals of all of them; each looks at its own.

Standard library only, but for the driver's door: the watchdog runs this too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import _paths, _processes
from ..errors import DeviceError, DeviceHeld
from ..records import Setting
from . import journal as journals
from . import locks, watchdog
from .journal import KNOBS, Journal
from .protocol import Device
from .restore import SAME_W, put_back


@dataclass
class _Holding:
    device: Device
    journal: Journal
    lock: Any
    owes: bool = False  # the journal holds what an earlier one could not put back


_held: dict[str, _Holding] = {}
_owed: set[str] = set()  # let go with a journal of what could not be put back
_guard = threading.RLock()


def change(device: Device, setting: Setting) -> Setting:
    """Put a GPU to a setting and hold it until `restore`; returns what was read back.

    Raises:
        DeviceHeld: another process holds this GPU.
        OutOfRange, NotSupported, NotPermitted: nothing was changed.
    """
    with _guard:
        fresh = device.uuid not in _held
        holding = _hold(device)
        try:
            holding.journal.note(setting)  # before the change: a kill in between must not lose the way back
        except BaseException:  # a full disk: nothing was changed yet
            if fresh:
                _release(holding, keep_journal=holding.owes)
            raise
        try:
            return device.apply(setting)
        except DeviceError:
            if fresh:
                _give_up(holding)
            raise
        except BaseException:  # an interrupt, and the setting may be in force already
            if fresh:
                with contextlib.suppress(Exception):
                    restore(device)
            raise


def restore(device: Device) -> str:
    """Put a GPU back to what it was before the first `change`, and let it go. Returns a sentence if something
    is left.

    A GPU that this process does not hold is left alone.
    """
    with _guard:
        holding = _held.get(device.uuid)
        if holding is None:
            return ""
        outcome = put_back(holding.device, holding.journal)
        _release(holding, keep_journal=not outcome.settled)
        return outcome.sentence


def restore_all() -> list[str]:
    """Restore every GPU that this process holds; returns the sentences of those where something is left."""
    with _guard:
        return [left for holding in list(_held.values()) if (left := restore(holding.device))]


class SettingLease:
    """The way back from one's own changes, whoever else in this process has changed the GPU.

    It leads to what was set when the first of them was made: within a hold that was there already to its
    setting, else to what was before the hold.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        with _guard:
            self._begin()

    def _begin(self) -> None:
        self._holding = _held.get(self._device.uuid)
        self._before = self._device.setting() if self._holding else None
        self._tried: set[str] = set()

    @property
    def holds(self) -> bool:
        """Whether the hold that its changes were made in still is."""
        return self._holding is not None and _held.get(self._device.uuid) is self._holding

    @property
    def began(self) -> bool:
        """Whether nobody of this process held the GPU before it."""
        return self._before is None

    def change(self, setting: Setting) -> Setting:
        """As `change` of this module."""
        with _guard:
            if (
                _held.get(self._device.uuid) is not self._holding
            ):  # restored meanwhile, and our change with it
                self._begin()
            new = {knob for knob in KNOBS if getattr(setting, knob) is not None} - self._tried
            self._tried |= new
            try:
                return change(self._device, setting)
            except DeviceError:
                self._tried -= new  # the device has undone it
                raise
            finally:
                self._holding = _held.get(self._device.uuid)

    def restore(self) -> str:
        """Undo the changes; returns a sentence if something is left. What was restored meanwhile is left
        alone.
        """
        with _guard:
            left = ""
            if self._tried and self.holds:
                if self._before is None:
                    left = restore(self._device)
                else:
                    _back_to(self._device, self._before, self._tried)
            self._tried = set()  # not before: who is interrupted in here can call again
            return left


@contextlib.contextmanager
def applied(device: Device, setting: Setting) -> Iterator[Setting]:
    """Hold a setting for the length of a block; nested blocks put back what the outer one had set."""
    way = SettingLease(device)
    try:
        yield way.change(setting)
    finally:
        way.restore()


def owes(uuid: str) -> bool:
    """Whether this process let a GPU go without all of it put back; the journal has the rest."""
    return uuid in _owed


def holder(uuid: str) -> str:
    """Who holds a GPU: "this process", "process 123 (python)", or empty when nobody does."""
    if uuid in _held:
        return "this process"
    return locks.holder(uuid)


def _back_to(device: Device, before: Setting, tried: set[str]) -> None:
    """Within a hold, return the knobs that were tried to what they were."""
    freed = tuple(k for k in KNOBS if k in tried and getattr(before, k) is None)
    if freed:
        device.reset(freed)
    kept = {k: getattr(before, k) for k in KNOBS if k in tried and getattr(before, k) is not None}
    if kept:
        change(device, Setting(**kept))


def _hold(device: Device) -> _Holding:
    if device.uuid in _held:
        return _held[device.uuid]
    lock = locks.take(device.uuid, device.name)
    if lock is None:
        raise DeviceHeld(
            f"{device.name} is being changed by {holder(device.uuid) or 'another process'}; "
            "wait until it has finished, or stop it there"
        )
    try:
        stale, settled = journals.of(device.uuid), True
        if stale is not None and (not stale.of_this_host or stale.of_an_earlier_boot):
            stale = None
        if stale is not None and not stale.of_this_process and stale.writer_runs:
            raise DeviceHeld(
                f"{device.name} is being changed by process {stale.pid}, whose locks are elsewhere; "
                f"wait until it has finished, or stop it there ({stale.path})"
            )
        if stale is not None and _paths.is_ours(stale.path):
            settled = put_back(device, stale).settled
        watchdog.start()
        simulated = os.environ.get("WORKBENCH_SIMULATED_GPUS", "") if device.simulated else ""
        before_w = device.setting().power_limit_w if device.can("power_limit") else None
        journal = Journal(
            device.uuid, device.name, os.getpid(), _processes.started_at(os.getpid()), before_w, simulated,
            host=socket.gethostname(), boot_id=_processes.boot_id(), namespace=_processes.namespace(),
        )
        holding = _Holding(device, journal, lock)
        if stale is not None and not settled:  # what it owes goes on with ours
            journal.before_w, journal.touched, journal.limits_w = (
                stale.before_w, stale.touched, stale.limits_w,
            )
            holding.owes = True
    except BaseException:
        lock.close()
        raise
    _held[device.uuid] = holding
    return holding


def _give_up(holding: _Holding) -> None:
    """Let a GPU go whose first change failed. The device has undone it; what it could not is tried again,
    or journalled.
    """
    journal = holding.journal
    try:
        still = holding.device.setting()
    except DeviceError:
        left = True
    else:
        now_w, before_w = still.power_limit_w, journal.before_w
        known = "power_limit_w" in journal.touched and now_w is not None and before_w is not None
        moved = known and abs(now_w - before_w) > SAME_W  # type: ignore[operator]
        left = holding.owes or moved or still.sm_clock_mhz is not None or still.mem_clock_mhz is not None
    _release(holding, keep_journal=left and not put_back(holding.device, journal).settled)


def _release(holding: _Holding, *, keep_journal: bool = False) -> None:
    uuid = holding.device.uuid
    if keep_journal:
        _owed.add(uuid)
    else:
        holding.journal.remove()
        _owed.discard(uuid)
    _held.pop(uuid, None)
    holding.lock.close()
    if not _held and not _owed:  # what is owed the watchdog tries again when this process has ended
        watchdog.stop()


def _forget() -> None:
    """In a forked child: it owes nothing, and must not keep the lock or the watchdog's end of its pipe
    when the parent is gone.
    """
    global _guard
    _guard = threading.RLock()
    for holding in _held.values():
        with contextlib.suppress(OSError):
            holding.lock.close()
    _held.clear()
    _owed.clear()
    watchdog.forget()


atexit.register(restore_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
