"""Manual control of a GPU: its active setting and origin, the difference to a chosen one, the rights needed.

A setting stays until it is undone or the process ends in any way (watchdog of `lease`). The
driver does not report clocks that another program has locked: none is touched unless a clock is chosen.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from .._html import HtmlFacts
from ..errors import DeviceError, DriverError, NotPermitted, UsageError
from ..records import Configuration, Process, Setting
from . import chosen, driver, lease, protocol, zeusd
from .gpu import OpenGpu
from .journal import KNOBS
from .protocol import Device
from .restore import SAME_W, left_alone, same_limit

ORIGINS = {
    "default": "the driver's default", "applied": "applied from this workbench",
    "tuner": "a tuner of this process", "slider": "the limit slider of a live view",
    "run": "a run of this process, which puts it back at its end",
    "process": "another process, which holds the GPU", "program": "another program, or an administrator",
    "lost": "nobody knows: the GPU does not answer",
}
CLOCKS = KNOBS[1:]
Sentences = tuple[str, ...]


@dataclass(frozen=True)
class Rights:
    """The rights of a change: who may ("root", "lent" by the Zeus daemon, "simulated", ""), and the
    remedy.
    """

    who: str
    text: str
    command: str


def highest_limit_w(device: Device) -> float | None:
    """The highest power limit (W) with an effect: the card's, or a cap (a management controller's) below the
    requested limit; None where the card takes none.
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
    out = [knob for knob in CLOCKS if getattr(a, knob) != getattr(b, knob)]
    low_w, high_w = a.power_limit_w, b.power_limit_w
    if low_w != high_w and not same_limit(low_w, high_w):
        out.insert(0, "power_limit_w")
    return tuple(out)


def difference(now: Setting, wanted: Setting, device: Device) -> Sentences:
    """What putting a GPU to a whole setting changes, knob by knob: "power limit 250 W → 150 W"."""
    wanted = whole(wanted, device)
    default_w = device.limits.default_power_limit_w

    def describe(knob: str, setting: Setting) -> str:
        value = getattr(setting, knob)
        if value is None:
            return "driver default"
        usual = knob == "power_limit_w" and same_limit(value, default_w)
        return f"{value:g} {'MHz' if knob in CLOCKS else 'W'}" + (" (default)" if usual else "")

    knobs = changed(now, wanted)
    if wanted.power_limit_w is None:
        knobs = tuple(knob for knob in knobs if knob != "power_limit_w")
    return tuple(
        f"{protocol.KNOBS[knob][1]} {describe(knob, now)} → {describe(knob, wanted)}" for knob in knobs
    )


@dataclass(frozen=True)
class EffectiveSetting(HtmlFacts):
    """Setting of a GPU now; None where it does not answer.

    Attributes:
        origin: Whose it is, a key of `ORIGINS`.
        holder: Who may change it; empty where nobody does.
    """

    setting: Setting | None
    origin: str
    text: str
    holder: str = ""
    computing: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Applied(HtmlFacts):
    """A person's change of a setting, as read back; `at_s` on the device's clock, `at` on the wall's."""

    wanted: Configuration
    before: Setting
    after: Setting
    at_s: float
    at: str
    text: Sentences
    chosen_before: Configuration | None = None
    jobs: tuple[Any, ...] = ()


class Control:
    """Changes one GPU's setting for a person, and takes that back. Every call may come from any thread."""

    def __init__(self, device: OpenGpu) -> None:
        self.device = device
        self.refused: dict[Setting, str] = {}  # why the last change was not permitted
        self.not_restored = ""  # what could not be restored
        self._lock = threading.RLock()
        self._lease = lease.Lease([device], who="person")
        self._done: list[Applied] = []

    # looking

    @property
    def history(self) -> tuple[Applied, ...]:
        """Changes that can be undone, oldest first."""
        with self._lock:
            if self._done and not self._ours():
                self._done = []  # everything this process held was restored, and ours with it
            return tuple(self._done)

    def active(self) -> EffectiveSetting:
        """Setting active, and whose it is. Never raises: a GPU that does not answer is lost."""
        device, text = self.device, ORIGINS
        holder = lease.holder(device.uuid)
        try:
            now = device.setting()
            computing = device.processes()
        except DeviceError as error:
            return EffectiveSetting(None, "lost", f"{text['lost']} ({error})", holder)
        origin, more = self._origin(now, holder), ""
        if origin == "process":
            more = f": {holder}"
        elif history := self.history:
            last = history[-1]
            more = {
                "applied": f" at {last.at}", "program": f" (this workbench had set {last.after})"
            }.get(origin, "")
        return EffectiveSetting(now, origin, text[origin] + more, holder, computing)

    def _origin(self, now: Setting, holder: str) -> str:
        uuid = self.device.uuid
        if holder and holder != "this process":
            return "process"
        if lease.changes(uuid, "tuner"):
            return "tuner"
        done = self.history
        if done and same(now, done[-1].after):
            return "applied"
        if lease.changes(uuid, "slider"):
            return "slider"
        if holder and not done:
            return "run"
        default_w = self.device.limits.default_power_limit_w
        usual = Setting(default_w if now.power_limit_w is not None else None)
        at_default = now == Setting() or (default_w is not None and same(now, usual))
        return "default" if at_default else "program"

    def __repr__(self) -> str:
        return f"control of GPU {self.device.index} ({self.device.name}): {self.active().setting}"

    def _repr_html_(self) -> str:
        return self.active()._repr_html_()

    def difference(self, wanted: Configuration | Setting) -> Sentences:
        """Knobs that `apply` would change, in words; empty where it would change none."""
        target, now = as_configuration(wanted).setting, self.active().setting
        return () if now is None else difference(now, target, self.device)

    def rights(self, wanted: Configuration | Setting) -> Rights:
        """The rights that `apply` takes for this setting, and the command for an administrator.

        The text is the reason where this GPU does not take the setting, or has refused it.
        """
        device, target = self.device, whole(as_configuration(wanted).setting, self.device)
        now = self.active().setting or target
        knobs, command = changed(now, target), "\n".join(device.commands(now, target))
        problem = self.refused.get(target) or next(filter(None, map(driver.read_only, ("", *knobs))), "")
        if not problem:
            try:
                device.check(target)
                if problem := device.missing_rights():
                    what = "; ".join(difference(now, target, device)) or "changing a GPU"
                    problem = f"{what}: {problem}; an administrator can run the command"
            except DeviceError as error:
                problem, command = str(error), ""
        if problem:
            return Rights("", problem, command)
        if device.simulated:
            return Rights("simulated", "simulated GPU: no privileges needed", command)
        if zeusd.present():
            daemon = f"the Zeus daemon at {os.environ['ZEUSD_SOCK_PATH']}"
            return Rights("lent", f"{daemon} lends its rights where this process has none", command)
        return Rights("root", "this process has the capability CAP_SYS_ADMIN", command)

    # changing

    def apply(self, wanted: Configuration | Setting, *, jobs: tuple[Any, ...] = ()) -> Applied:
        """Put the GPU to a configuration, whole: knobs that are None are given back to the driver.

        A tuner at work on this GPU is stopped, and a live view's limit slider hands over. The new knobs come
        first, so that a refusal changes nothing. A batch size goes to `workbench.chosen` and to the
        next recurrence of `jobs`.

        Args:
            wanted: What to apply.
            jobs: Recurring jobs whose next recurrence takes the batch size.

        Raises:
            OutOfRange, NotSupported: the GPU does not take it; nothing was changed, nobody stopped.
            DeviceHeld: another process is changing this GPU.
            NotPermitted: this process has not the rights; an administrator types `rights(wanted).command`.
            UsageError: a batch size that is none, or that one of the jobs has not; nothing was changed.
        """
        configuration = as_configuration(wanted)
        size = configuration.batch_size
        if size is not None and size < 1:
            raise UsageError(f"a batch size of {size} is none; it is 1 or more")
        with self._lock:
            if not self.history:
                self._lease = lease.Lease([self.device], who="person")
            target = whole(configuration.setting, self.device)
            self.device.check(target)
            for job in jobs:
                if size is not None and size not in job.space.batch_sizes:
                    have = ", ".join(str(each) for each in job.space.batch_sizes)
                    raise UsageError(
                        f"batch size {size} is not one of those of '{job.label}': {have}; nothing was changed"
                    )
            text: Sentences = (self._settle(),) if lease.owes(self.device.uuid) else ()
            text += self._make_way()
            before = self.device.setting()
            try:
                after = self._to(target, before)
            except DeviceError as error:
                if isinstance(error, NotPermitted):
                    self.refused = {target: str(error)}
                if not self._done:  # what was held for this change is held for nothing
                    self.not_restored = "; ".join(self._lease.restore()) or self.not_restored
                raise
            self.refused, self.not_restored = {}, ""
            changed = difference(before, configuration.setting, self.device)
            text += changed or ("the GPU was at this setting already",)
            text += self._choose(configuration, jobs)
            at = time.strftime("%H:%M:%S")
            theirs = jobs if size is not None else ()
            done = Applied(
                configuration, before, after, self.device.clock(), at, text, chosen.configuration, theirs
            )
            chosen.choose(configuration)
            self._done.append(done)
            return done

    def undo(self) -> str:
        """Take the last change back; returns a sentence on the active setting, or on the one that is left.

        Raises:
            UsageError: there is nothing to undo.
            DeviceError: it cannot be undone just now; it can be tried again.
        """
        with self._lock:
            if not self.history:
                if lease.owes(self.device.uuid):
                    return self._settle()
                raise UsageError(
                    "there is nothing to undo: nothing was applied from here, or it was restored since"
                )
            last, left = self._done[-1], ""
            if len(self._done) == 1:
                left = self._back()
            else:
                now, wanted = self.device.setting(), last.before
                if left := left_alone(now.power_limit_w, last.after.power_limit_w):
                    wanted = replace(wanted, power_limit_w=now.power_limit_w)
                self._to(wanted, now)
            self.not_restored = left
            self._done.pop()
            self._unchoose(last)
            return self.not_restored or f"undone: {self.device.setting()} is active again"

    def undo_all(self) -> str:
        """Everything that was applied from here taken back; returns a sentence if something is left."""
        with self._lock:
            if not self.history:
                if lease.owes(self.device.uuid):
                    self._settle()
                return self.not_restored
            self.not_restored = self._back()
            first, self._done = self._done[0], []
            self._unchoose(first)
            return self.not_restored

    def restore_default(self) -> Applied:
        """Give every knob back to the driver: a change that can be undone. Raises as `apply`."""
        return self.apply(Configuration())

    # how

    def _ours(self) -> bool:
        return bool(self._done) and self._lease.holds

    def _to(self, wanted: Setting, before: Setting) -> Setting:
        """Put the GPU to a whole setting; a refusal leaves, or brings back, what was."""
        new, freed = _steps(before, wanted)
        self._wake()
        try:
            # Even where nothing is new the GPU is held, so that what is active is ours to undo.
            shown_w = self._lease.apply(new)[0].power_limit_w
            self.device.reset(freed)
        except DeviceError:
            self._as_before(before)
            raise
        after = self.device.setting()
        if new.power_limit_w is not None:
            wanted = replace(wanted, power_limit_w=shown_w)  # as the driver rounds it
        wrong = set(changed(after, wanted))
        if wrong - ({"power_limit_w"} if wanted.power_limit_w is None else set()):
            self._as_before(before)
            raise DriverError(
                f"{self.device.name} was put to {wanted}, and shows {after}: another program is changing it "
                "too"
            )
        return after

    def _as_before(self, before: Setting) -> None:
        """After a refusal, which may come when other knobs are changed, or clocks unlocked, already."""
        if lease.holder(self.device.uuid) != "this process":
            return  # the first change, and it was given up
        try:
            lost, freed = _steps(self.device.setting(), before)
            lease.change(self.device, lost)
            self.device.reset(freed)
        except DeviceError as error:
            self.not_restored = f"{self.device.name} could not be restored to {before}: {error}"

    def _back(self) -> str:
        """The way back to before the first change."""
        left = "; ".join(self._lease.restore())
        first = self._done[0].before
        lost = {knob: getattr(first, knob) for knob in CLOCKS if getattr(first, knob) is not None}
        mine = lease.holder(self.device.uuid) == "this process"
        if not left and lost and mine and self.device.locked() != first:
            # A run's own lock, which we had given back to the driver.
            lease.change(self.device, Setting(**lost))
        try:
            return left or left_alone(self.device.setting().power_limit_w, first.power_limit_w)
        except DeviceError as error:
            return f"nothing that was set from here is left; the active setting cannot be read: {error}"

    def _settle(self) -> str:
        """Try again to restore what could not be, which the journal knows."""
        self.device.setting()  # raises while the GPU does not answer
        self.not_restored = lease.settle(self.device.uuid)
        return self.not_restored or f"put back: {self.device.setting()} is active again"

    def _make_way(self) -> Sentences:
        """What else of this process changes the GPU ends; sentences on what that was."""
        text: Sentences = ()
        for slider in lease.changes(self.device.uuid, "slider"):
            left = slider.restore()
            text += ("the limit slider of the live view handed over" + (f"; {left}" if left else ""),)
        if lease.holder(self.device.uuid) == "this process" and not self._ours():
            text += ("a run of this process holds the GPU too: when it ends, it puts the GPU back",)
        return text

    def _wake(self) -> None:
        """A change comes, whose effect is to be sampled at full pace."""

    def _choose(self, configuration: Configuration, jobs: tuple[Any, ...]) -> Sentences:
        size = configuration.batch_size
        if size is None:
            return ()
        for job in jobs:
            limit_w = configuration.setting.power_limit_w
            job.choose(size, limit_w if limit_w in job.space.power_limits_w else None)
        where = "it is in workbench.chosen.batch_size"
        if jobs:
            names = " and ".join(f"'{job.label}'" for job in jobs)
            where += f", and the next recurrence of {names} takes it"
        return (f"batch size {size} cannot change inside a job that runs: {where}",)

    def _unchoose(self, last: Applied) -> None:
        chosen.choose(last.chosen_before)
        for job in last.jobs:
            job.choose(None)


def _steps(now: Setting, wanted: Setting) -> tuple[Setting, tuple[str, ...]]:
    """What is to be set to come to a whole setting, and the clocks that are given back to the driver."""
    knobs = changed(now, wanted)
    freed = tuple(knob for knob in knobs if knob in CLOCKS and getattr(wanted, knob) is None)
    return Setting(**{knob: getattr(wanted, knob) for knob in knobs}), freed


def as_configuration(wanted: Configuration | Setting) -> Configuration:
    """The setting to apply. Raises UsageError where it is none."""
    if isinstance(wanted, Setting):
        return Configuration(wanted)
    if isinstance(wanted, Configuration):
        return wanted
    raise UsageError(
        f"a Configuration or a Setting can be applied, not {type(wanted).__name__}; a frontier's panel has "
        "one in `chosen`"
    )
