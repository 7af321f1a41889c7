"""Changes of GPU settings that are restored after success, failure, exit and kill.

    with Lease(devices) as lease:
        lease.apply(Setting(power_limit_w=250.0))
        train()

One process at a time holds a GPU (a lock file). Before the first change, a journal of the original setting is
written to disk, and a watchdog starts. It restores the GPU if this process dies. The next start restores a
journal that outlived both. A setting that another program has changed meanwhile is left alone and reported.
Clocks that are locked already are refused without `force`, because NVML does not report the lock and it could
not be restored. Only the standard library and the driver are imported, because the watchdog runs this too.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import _paths, _processes
from ..errors import DeviceError, DeviceHeld, NotPermitted, NotSupported, OutOfRange
from ..records import Setting
from . import journal as journals
from . import watchdog
from .journal import KNOBS, Journal
from .protocol import Device
from .restore import left_alone, put_back, still_changed

LINGERS_S = 3.0  # for which a lock still shows that was let go
WAITS = 200  # pauses for a watchdog
GAPS, GAP_S = 2, 0.05  # looks at a GPU at rest, at which locks do not show, and the time between them
_LOCKED_BY_OTHERS = (
    "another user or program has locked the clocks of {}, and NVML does not report the lock, so it could not "
    "be restored: change only the power limit, unlock the clocks first (as root: `nvidia-smi -rgc -rmc`), or "
    "pass force=True"
)


@dataclass
class _Holding:
    """A GPU that this process holds, from its first change until it is restored."""

    device: Device
    journal: Journal
    lock: Any
    found: Setting
    changes: list[Change] = field(default_factory=list)  # made in it and not taken back, oldest first
    lent: bool = False  # to a child process, which may change it meanwhile


_held: dict[str, _Holding] = {}
_let_go_s: dict[str, float] = {}  # when locks of ours were let go last
_owed: dict[str, _Holding] = {}  # released GPUs, each with a journal of what is not restored
_locked: set[str] = set()  # whose clocks this process has locked: what is locked there since is its own
_guard = threading.RLock()


class Lease:
    """Settings of one GPU or several, changed and restored together; can be used again after that.

    A GPU is held from the first change to `restore`, which restores the setting before that change. Inside an
    outer hold this is the setting of the outer hold. A GPU that was restored meanwhile (`restore_all`) is
    left alone. As a context manager it restores at the end of its block.

    Args:
        devices: The GPUs.
        force: Lock clocks that somebody has locked already; they are unlocked in the end.
        who: Whose changes they are, for `changes`: "run", "tuner", "slider", "person" or "program".
    """

    def __init__(self, devices: Iterable[Device], *, force: bool = False, who: str = "run") -> None:
        self.devices = tuple(devices)
        self._shares = tuple(Change(device, force, who) for device in self.devices)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            problems = self._restore()[1]
        except KeyboardInterrupt:  # it came before the end had begun
            self.release()
            raise
        for problem in problems:  # a block inside another one; the outer one restores the rest
            warn(f"{problem}. The block around this one restores the GPU at its end")

    @property
    def holds(self) -> bool:
        """Whether a GPU is held that this lease has changed."""
        return any(share.holds for share in self._shares)

    @property
    def found(self) -> tuple[Setting, ...]:
        """The setting of each GPU before the first change; its present setting where there is none."""
        return tuple(share.found for share in self._shares)

    def apply(self, setting: Setting | Sequence[Setting]) -> tuple[Setting, ...]:
        """Apply one setting, or one to each GPU; returns the settings read back. None leaves a knob alone.

        An empty setting only holds a GPU. If one GPU refuses, the others are restored.

        Raises:
            DeviceHeld: another process holds one of the GPUs.
            OutOfRange, NotSupported, NotPermitted: nothing was changed.
        """
        each = [setting] * len(self._shares) if isinstance(setting, Setting) else setting
        shown, changed = [], []
        with _processes.interrupts_later(), _guard:
            for share, wanted in zip(self._shares, each, strict=True):
                before = share.current if share.holds else None
                try:
                    shown.append(share.change(wanted))
                except DeviceError:
                    if share.holds:  # a refusal gives back clocks that were locked before
                        changed.append((share, before))
                    for other, earlier in changed:
                        with contextlib.suppress(DeviceError):  # one that does not answer keeps no other
                            other.back_to(earlier)
                    raise
                changed.append((share, before))
        return tuple(shown)

    def put(self, setting: Setting | Sequence[Setting]) -> None:
        """Apply a whole setting, or one to each GPU: knobs that it does not name are restored, and the GPUs
        stay held.

        Raises:
            DeviceError: as `apply`; the GPUs that answer then have their original settings.
        """
        wanted = [setting] * len(self._shares) if isinstance(setting, Setting) else [*setting]
        with _guard:
            pairs = [*zip(self._shares, wanted, strict=True)]
            if all(share.current == each and (share.holds or each == Setting()) for share, each in pairs):
                return
            try:
                for share, each in pairs:
                    share.drop(_named(share.current) - _named(each))
                if any(each != Setting() for each in wanted):
                    self.apply(wanted)
            except DeviceError:
                for share in self._shares:
                    with contextlib.suppress(DeviceError):
                        share.drop(_named(share.current))
                raise

    def changed_externally(self) -> str:
        """A sentence, if another program has changed a power limit since it was put."""
        for share in self._shares:
            current_w, found_w = share.current.power_limit_w, share.found.power_limit_w
            wanted_w = found_w if current_w is None else share.shown_w
            now_w = share.device.setting().power_limit_w
            if left_alone(now_w, wanted_w):
                name = share.device.name
                return f"another program, or a person, has set the power limit of {name} to {now_w:g} W"
        return ""

    def restore(self) -> list[str]:
        """Undo the changes and let the GPUs go; returns a sentence for each where something is left.

        Raises:
            DeviceError, OSError: one could not be undone just now (the others are); it can be called again.
        """
        left, problems = self._restore()
        if problems:
            raise problems[0]
        return left

    def release(self) -> list[str]:
        """As `restore`, for the end of a run: a change that cannot be undone is a message, not an error."""
        left, problems = self._restore()
        return list(dict.fromkeys([*left, *map(str, problems)]))

    def _restore(self) -> tuple[list[str], list[DeviceError | OSError]]:
        left: list[str] = []
        problems: list[DeviceError | OSError] = []
        with _processes.interrupts_later(), _guard:
            for share in self._shares:
                try:
                    left += [sentence] if (sentence := share.restore()) else []
                except (DeviceError, OSError) as error:  # a disk that takes no journal, too
                    problems.append(error)
        return left, problems


@dataclass(eq=False)
class Change:
    """The change of one GPU by a lease: `who`, from `found` to `current`; `restore` undoes it."""

    device: Device
    force: bool
    who: str
    holding: _Holding | None = None  # that the changes were made in
    before: Setting | None = None  # what was set in it already; None where it began with the first change
    tried: set[str] = field(default_factory=set)  # knobs that may have been changed
    current: Setting = field(default_factory=Setting)  # what the knobs were put to
    shown_w: float | None = None  # the limit read back after it, as the driver rounds it

    @property
    def holds(self) -> bool:
        return self.holding is not None and _held.get(self.device.uuid) is self.holding

    @property
    def found(self) -> Setting:
        if not self.holds:
            return self.device.setting()
        assert self.holding is not None
        return self.before or self.holding.found

    def change(self, setting: Setting) -> Setting:
        if not self.holds:  # the first change, or all was restored meanwhile, and ours with it
            self.before = self.device.setting() if self.device.uuid in _held else None
            self.tried, self.current = set(), Setting()
        new = _named(setting) - self.tried
        self.tried |= new
        try:
            shown = change(self.device, setting, force=self.force)
        except DeviceError:
            self.tried -= new  # the device has undone it
            raise
        finally:
            self.holding = _held.get(self.device.uuid)
        for knob in _named(setting):
            self.current = replace(self.current, **{knob: getattr(setting, knob)})
            self.shown_w = shown.power_limit_w
        if self.holding is not None and self not in self.holding.changes:
            self.holding.changes.append(self)
        return shown

    def drop(self, knobs: set[str]) -> None:
        """Restore some knobs; the GPU stays held."""
        if self.holds and knobs:
            _back_to(self.device, self.found, knobs)
        self.current = replace(self.current, **dict.fromkeys(knobs))

    def back_to(self, earlier: Setting | None) -> None:
        """To what this lease had set before, where None to before it had set anything."""
        if earlier is None:
            self.restore()
        else:
            self.drop(_named(self.current) - _named(earlier))
            change(self.device, earlier)
            self.current = earlier

    def restore(self) -> str:
        """Undo it; returns a sentence if something is left. Raises as `Lease.restore`."""
        left = ""
        with _guard:
            if self.holds:
                if self.before is None:
                    left = restore(self.device)
                elif self.tried:
                    _back_to(self.device, self.before, self.tried)
            # Not before: who is interrupted in here can call again.
            if self.holding is not None and self in self.holding.changes:
                self.holding.changes.remove(self)
            self.holding, self.tried, self.current = None, set(), Setting()
        return left


def change(device: Device, setting: Setting, *, force: bool = False) -> Setting:
    """Apply a setting and hold the GPU until `restore`; returns the setting read back.

    Args:
        device: The GPU.
        setting: Its knobs; None is left alone.
        force: Lock clocks that are locked already.

    Raises:
        DeviceHeld: another process holds this GPU.
        OutOfRange, NotSupported, NotPermitted: nothing was changed.
    """
    with _guard:
        device.check(setting)
        fresh = device.uuid not in _held
        holding = _hold(device)
        journal = holding.journal
        new = _named(setting) - set(journal.touched)
        try:
            first_lock = bool(_named(setting) - {"power_limit_w"}) and device.uuid not in _locked
            if first_lock and not force and _somebody_has_locked(device):
                raise NotPermitted(_LOCKED_BY_OTHERS.format(device.name))
            before = device.setting()
            _note(journal, setting)  # before the change, so that it can be undone after a kill
        except BaseException:  # a full disk: nothing was changed yet
            if fresh:
                _release(holding)
            raise
        try:
            written = device.write(setting)
            if _named(setting) - {"power_limit_w"}:
                _locked.add(device.uuid)
            limit_w = written.power_limit_w
            if setting.power_limit_w is not None and limit_w not in journal.limits_w:
                _note(journal, Setting(power_limit_w=limit_w))  # rounded, or capped
            return written
        except BaseException as error:  # after an interrupt the setting may be in force already
            with contextlib.suppress(Exception):
                if isinstance(error, NotPermitted | NotSupported | OutOfRange):
                    # A refused knob is unchanged. One without an answer may be changed.
                    now = replace(device.locked(), power_limit_w=device.setting().power_limit_w)
                    journal.forget({knob for knob in new if getattr(now, knob) == getattr(before, knob)})
                    watchdog.send(journal)
                if fresh:
                    restore(device)
            raise


def restore(device: Device) -> str:
    """Restore the setting before the first `change` and release the GPU, if this process holds it; returns a
    message if a knob is not restored. That knob stays in the journal, and a warning names it.
    """
    with _guard:
        holding = _held.get(device.uuid)
        if holding is None:
            return ""
        # A lent GPU is restored already, and another process changes it.
        sentence = "" if holding.lent else put_back(lambda: holding.device, holding.journal)
        _release(holding, sentence)
        return sentence


def settle(uuid: str) -> str:
    """Try again to restore a GPU that this process has released unrestored; returns as `restore` does."""
    holding = _owed[uuid]
    try:
        _hold(holding.device)
    except (DeviceError, OSError) as error:
        return still_changed(holding.journal, str(error))
    return restore(holding.device)


@contextlib.contextmanager
def lent(uuids: Iterable[str]) -> Iterator[None]:
    """Lend GPUs that this process holds to child processes for the length of a block.

    They get the GPUs with their original settings. Afterwards the settings of this process are applied again.

    Raises:
        DeviceHeld: a tuner of this process changes one of them.
        DeviceError: one does not answer.
    """
    with contextlib.ExitStack() as stack:
        for uuid in uuids:
            if uuid in _held:
                stack.enter_context(_lent(_held[uuid]))
        yield


@contextlib.contextmanager
def _lent(holding: _Holding) -> Iterator[None]:
    device, journal = holding.device, holding.journal
    with _guard:
        if changes(device.uuid, "tuner"):
            raise DeviceHeld(f"a tuner of this process is changing {device.name}; end the tuning first")
        now, touched = device.setting(), journal.touched
        problem = put_back(lambda: device, journal)
        if journal.touched:
            raise DeviceError(problem)
        journal.forget(())
        watchdog.send(journal)
        holding.lock.close()
        holding.lent = True
    try:
        yield
    finally:
        with _guard:
            if _held.get(device.uuid) is holding:
                again = Setting(**{knob: getattr(now, knob) for knob in touched})
                holding.lent, lock = False, journals.lock(device.uuid, device.name, device.node)
                if lock is None:
                    _release(holding)  # somebody else has taken it
                else:
                    holding.lock = lock
                    change(device, again)


def restore_all(*, again: bool = False) -> list[str]:
    """Restore every GPU that this process holds; returns the sentences of those where something is left.

    Args:
        again: Also those that could not be restored before.
    """
    with _guard:
        owed = [uuid for uuid in _owed if again and uuid not in _held]
        left = [restore(holding.device) for holding in list(_held.values())] + list(map(settle, owed))
    return [each for each in left if each]


@contextlib.contextmanager
def applied(device: Device, setting: Setting, *, force: bool = False) -> Iterator[Setting]:
    """Hold a setting for the length of a block; a nested block restores the setting of the outer one."""
    with Lease([device], force=force) as lease:
        yield lease.apply(setting)[0]


def owes(uuid: str) -> bool:
    """Whether this process released a GPU that is not fully restored; the journal has the rest."""
    return uuid in _owed


def changes(uuid: str, who: str = "") -> tuple[Change, ...]:
    """What this process has changed on a GPU and not taken back, oldest first: of everybody, or of one."""
    holding = _held.get(uuid)
    return () if holding is None else tuple(each for each in holding.changes if who in ("", each.who))


def holder(uuid: str) -> str:
    """Who holds a GPU: "this process", "process 123 (python)", or empty when nobody does."""
    if uuid in _held:
        return "this process"
    return journals.holder(uuid)


def _somebody_has_locked(device: Device) -> bool:
    """Whether clocks are locked that this process has not locked; one that was let go shows for a moment."""
    there = device.clocks_are_set()
    if getattr(device.clock, "stepped", False):  # who waits on such a clock moves it, and all that listens
        own = 0 <= device.clock() - _let_go_s.get(device.uuid, -math.inf) <= LINGERS_S
        return bool(there) and not own
    for _ in range(GAPS):
        if there is None:  # a gap between two kernels
            device.clock.sleep(GAP_S)
            there = device.clocks_are_set()
    until_s = device.clock() + LINGERS_S
    while there and device.clock() < until_s:
        device.clock.sleep(0.1)
        there = device.clocks_are_set() is not False  # at rest nothing shows
    return bool(there)


def _named(setting: Setting) -> set[str]:
    """The knobs that a setting names."""
    return {knob for knob in KNOBS if getattr(setting, knob) is not None}


def _back_to(device: Device, before: Setting, knobs: set[str]) -> None:
    """Within a hold, return knobs to what they were."""
    if freed := tuple(knob for knob in KNOBS if knob in knobs - _named(before)):
        device.reset(freed)
    if kept := knobs & _named(before):
        change(device, Setting(**{knob: getattr(before, knob) for knob in kept}))


def _hold(device: Device) -> _Holding:
    if device.uuid in _held:
        if _held[device.uuid].lent:
            raise DeviceHeld(f"{device.name} is being changed by a sweep of this process; wait until it ends")
        return _held[device.uuid]
    take = partial(journals.lock, device.uuid, device.name, device.node)
    lock = take()
    for _ in range(WAITS):  # for the watchdog of another user, or of another home
        if lock is None or not lock.abandoned or journals.of(device.uuid) is not None:
            break
        lock.close(abandoned=True)
        time.sleep(GAP_S)
        lock = take()
    if lock is None:
        raise DeviceHeld(f"{device.name} is being changed by {holder(device.uuid) or 'another process'}; "
                         "wait until it has finished, or stop it there")
    try:
        stale = _take_up(device)
        watchdog.start()
        simulated = os.environ.get("WORKBENCH_SIMULATED_GPUS", "") if device.simulated else ""
        found = device.setting()
        journal = Journal(device.uuid, device.name, os.getpid(), _processes.started_at(os.getpid()),
                          found.power_limit_w, simulated, host=socket.gethostname(),
                          boot_id=_processes.boot_id(), namespace=_processes.namespace(),
                          directory=str(_paths.journals()))
        if stale is not None:  # its unrestored knobs join ours
            journal.touched = stale.touched
            if "power_limit_w" in stale.touched:
                journal.before_w, journal.limits_w = stale.before_w, stale.limits_w
        holding = _Holding(device, journal, lock, found)
    except BaseException:
        lock.close()
        raise
    _held[device.uuid] = holding
    return holding


def _take_up(device: Device) -> Journal | None:
    """Restore the changes of an earlier holder of a GPU; returns its journal if that fails."""
    path = _paths.journals() / _paths.named(device.uuid, ".json")
    stale, mine = journals.load(path), _owed.get(device.uuid)
    if stale is None and mine is not None:  # its file was removed
        stale = mine.journal
    elif path.exists() and (stale is None or not stale.of_this_host or not _paths.is_ours(path)):
        warn(journals.set_aside(path))
        return None
    if stale is None or stale.of_an_earlier_boot:
        return None
    if stale.pid != os.getpid() and stale.writer_runs:
        raise DeviceHeld(f"{device.name} is being changed by process {stale.pid}, whose locks are "
                         f"elsewhere; wait until it has finished, or stop it there ({stale.path})")
    sentence = put_back(lambda: device, stale)
    if stale.touched:
        return stale
    stale.path.unlink(missing_ok=True)
    if sentence:
        warn(sentence)
    return None


def _note(journal: Journal, setting: Setting) -> None:
    """Write down the next setting, on disk and in the watchdog."""
    journal.note(setting)
    watchdog.send(journal)


def _release(holding: _Holding, sentence: str = "") -> None:
    """Release a GPU. Unrestored knobs stay in the journal, and one warning names them."""
    uuid, journal = holding.device.uuid, holding.journal
    known = uuid in _owed
    if journal.touched:
        journal.started = journals.RELEASED
        _owed[uuid] = holding
    else:
        _owed.pop(uuid, None)
    with contextlib.suppress(DeviceError, OSError):  # the watchdog has a copy
        journal.forget(())
    watchdog.send(journal)
    if uuid in _locked:
        _let_go_s[uuid] = holding.device.clock()
    _locked.discard(uuid)  # what is locked from now on is not ours
    _held.pop(uuid, None)
    holding.lock.close()
    if not _held and not _owed:  # what is owed the watchdog tries again when this process has ended
        watchdog.stop()
    if sentence and not known:
        warn(sentence)


def warn(sentence: str) -> None:
    """Show a warning, also if it was shown before. It never ends the program."""
    try:
        warnings.warn_explicit(sentence, RuntimeWarning, "workbench", 1)
    except RuntimeWarning as raised:  # warnings are errors in this program
        print(raised, file=sys.stderr)


def _forget() -> None:
    """In a forked child: hold nothing, neither locks nor the watchdog's end of its pipe."""
    global _guard
    _guard = threading.RLock()
    for holding in _held.values():
        with contextlib.suppress(OSError):
            holding.lock.close(abandoned=True)  # the parent holds it
    _held.clear()
    _owed.clear()
    watchdog.forget()


atexit.register(restore_all)
_processes.after_fork(_forget)
