"""Content and commands of the apply panel, for one GPU or all GPUs of this process.

It has the active and the chosen setting, their difference, past changes, and the power around a change.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...._html import table
from ....device import control, driver
from ....device.control import Applied, Control, as_configuration
from ....device.discovery import Gpus
from ....device.protocol import Device
from ....errors import UsageError, WorkbenchError
from ....experiments.job import RecurringJob
from ....measurement import session
from ....records import Configuration, Setting
from ....tuning import AFTER_S, BEFORE_S, ManualControl, StepResponse, gpu_control
from ..._core.svg import Pen, Picture, titled
from ..._core.theme import colour

ALL = "all"  # in place of a UUID
NOTHING = "No setting chosen yet: choose below, or on a frontier"
SAME = "No change"
MOST_LISTED = 5  # listed changes, and listed processes
WIDTH, HEIGHT = 460, 110  # fits a panel in a window of 900 pixels
NONE_YET = "After Apply or Undo, the power around the change appears here"


@dataclass(frozen=True)
class ApplyView:
    """All texts of the panel.

    Attributes:
        facts: Names and texts: active setting, chosen setting, difference, required rights, past changes.
        status: The active setting and the effect of the last change, in one line.
        command: A command for an administrator; empty if the rights suffice.
    """

    simulated: bool
    facts: tuple[tuple[str, str], ...]
    status: str
    command: str
    can_apply: bool
    can_undo: bool
    can_default: bool


def view(
    controls: Sequence[Control], chosen: Configuration | None, followed: StepResponse | None, *,
    jobs: Sequence[str] = (), done: Sequence[str] = (),
) -> ApplyView:
    """The texts for some GPUs; asks the driver, and changes nothing.

    Args:
        controls: Controls of the GPUs. All texts but the active settings are about the first one.
        chosen: The chosen configuration.
        followed: The power around the last change.
        jobs: Names of the recurring jobs that take the batch size.
        done: Changes so far, including undone ones, oldest first.
    """
    first = controls[0]
    device, now = first.device, first.active()
    settings_now = [now.setting, *(each.active().setting for each in controls[1:])]
    active = ", ".join(dict.fromkeys("unknown" if each is None else str(each) for each in settings_now))
    wanted, difference = chosen or Configuration(), list[str]()
    if chosen is not None and now.setting is not None:
        difference = list(control.difference(now.setting, chosen.setting, device))
    rights = first.rights(wanted)
    names = [f"{each.name} ({each.pid})" for each in now.computing]
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    after = [followed.text if followed is not None else "", first.not_restored]
    command = "" if rights.who else rights.command
    facts = (
        ("Active", f"{active} ({now.text})"),
        ("Chosen", NOTHING if chosen is None else describe(wanted, device)),
        ("Difference", "; ".join(difference) or SAME), ("", _note(wanted, jobs)), ("Rights", rights.text),
        ("Command", command), ("Held by", "" if now.origin == "process" else now.holder),
        ("Computing on it", ", ".join(names[:MOST_LISTED]) + more), *(("", text) for text in after),
        ("Done", "\n".join(reversed(done[-MOST_LISTED:]))),
    )
    name = titled(device.name, device.simulated)
    return ApplyView(
        simulated=device.simulated, facts=tuple(each for each in facts if each[1]),
        status=" · ".join(filter(None, (f"{name}: {active}", now.text, *after))), command=command,
        can_apply=chosen is not None and now.setting is not None and not driver.read_only(),
        can_undo=any(each.history or each.not_restored for each in controls),
        can_default=not driver.read_only(),
    )


def describe(wanted: Configuration, device: Device) -> str:
    """A configuration in the form that will be applied: "150 W, SM clock: driver default, batch size 64"."""
    whole = control.whole(wanted.setting, device)
    default_w = device.limits.default_power_limit_w
    parts = []
    if whole.power_limit_w is not None:
        usual = " (default)" if whole.power_limit_w == default_w else ""
        parts.append(f"{whole.power_limit_w:g} W{usual}")
    for knob, word in (("sm_clock_mhz", "SM"), ("mem_clock_mhz", "memory")):
        clock = getattr(whole, knob)
        parts.append(f"{word} {clock} MHz" if clock is not None else f"{word} clock: driver default")
    if wanted.batch_size is not None:
        parts.append(f"batch size {wanted.batch_size}")
    return ", ".join(parts)


def _note(wanted: Configuration, jobs: Sequence[str]) -> str:
    if wanted.batch_size is None:
        return ""
    where = "workbench.chosen.batch_size"
    where += "".join(f", and to the next recurrence of '{name}'" for name in jobs)
    return f"Batch size {wanted.batch_size} cannot change while a job runs; it is passed to {where}"


def power(followed: StepResponse | None) -> str:
    """One `<svg>` element: watts over the seconds around a change, and both levels; a notice before one."""
    if followed is None or not len(followed.time_s):
        return f'<div class="workbench-faint" style="font-size:13px">{NONE_YET}</div>'
    times, watts = followed.time_s, followed.power_w
    picture = Picture(followed.text[:1].upper() + followed.text[1:], size=12, width=WIDTH)
    picture.y = 32.0
    frame = picture.frame(HEIGHT, (-BEFORE_S, AFTER_S), (0.0, max(float(watts.max()) * 1.12, 1.0)))
    frame.axes("Power (W)")
    frame.below("seconds since the change", 8)
    frame.upright(0.0, Pen(colour(1), 2))
    for level_w, span in ((followed.before_w, (-BEFORE_S, 0.0)), (followed.after_w, (0.0, AFTER_S))):
        if level_w is not None:
            frame.line(span, [level_w, level_w], Pen(dashes=(4, 3), opacity=0.55))
    frame.line(times, watts, Pen(colour(0), 1.6))
    picture.down(HEIGHT)
    return picture.svg()


def apply_page(title: str, view: ApplyView | None, drawn: str, problem: str = "") -> str:
    """The panel as a table and its plot.

    Args:
        title: Title of the panel.
        view: The texts; None before the first reading.
        drawn: SVG of the power.
        problem: Message of an error.
    """
    rows = [*([] if view is None else view.facts), ("", problem)]
    style = "font-size:12px;white-space:pre-wrap"
    head = f'<div style="font-size:13px;font-weight:600">{html.escape(title)}</div>'
    return head + table((), [row for row in rows if row[1]], style=style) + drawn


class Applier:
    """The chosen setting of GPUs, their active setting, and the last change.

    Args:
        gpus: One GPU, as `workbench.gpu_control` takes it.
        jobs: Recurring jobs whose next recurrence takes a chosen batch size.
        own: Settings of single GPUs by UUID, in place of `gpus`: each takes its own.
    """

    def __init__(
        self, gpus: Gpus = None, jobs: Sequence[RecurringJob] = (), *,
        own: Mapping[str, Setting] | None = None,
    ) -> None:
        self.jobs = tuple(jobs)
        self.own = {uuid: Configuration(setting) for uuid, setting in (own or {}).items()}
        self.controls: tuple[ManualControl, ...] = (
            *(gpu_control(each) for each in self.own or [gpus]),)
        self.chosen: Configuration | None = next(iter(self.own.values()), None)
        self.view: ApplyView | None = None
        self.followed: StepResponse | None = None
        self._undone: Applied | None = None  # the last undone change, with the time of its undoing
        self._log: list[str] = []
        self._doing = self._done = ""  # the running command; the result of the last one

    @property
    def control(self) -> ManualControl:
        """Control of the first GPU."""
        return self.controls[0]

    def take_gpu(self, uuid: str) -> None:
        """Control another GPU of this process, or "all" of them."""
        devices = session.current().devices if uuid == ALL else (uuid,)
        self.controls, self._done = tuple(gpu_control(each) for each in devices), ""
        self.followed, self._undone, self._log = None, None, []

    def choose(self, wanted: Configuration | Setting | None) -> None:
        """Choose a configuration without applying it.

        Raises:
            UsageError: Not a configuration.
        """
        self.chosen = None if wanted is None else as_configuration(wanted)

    def apply(self, wanted: Configuration | None = None, doing: str = "applying") -> None:
        """Apply `wanted`, or the chosen setting. If one GPU refuses, the GPUs before it are restored.

        Raises:
            UsageError: No setting is chosen. Else as `workbench.gpu_control(...).apply`.
        """
        if (wanted := wanted or self.chosen) is None:
            what = "choose a power limit or clocks, or a point of a frontier"
            raise UsageError(f"no setting is chosen: {what}")
        self._doing, self._done = doing, ""
        changed: list[Control] = []
        after = Setting()
        try:
            for each in self.controls:
                target = self.own.get(each.device.uuid, wanted)
                after = each.apply(target, jobs=self.jobs if each is self.control else ()).after
                changed.append(each)
        except WorkbenchError as error:
            _together([error, *_undone(changed)[1]])
            raise
        finally:
            self._doing = ""
        what = "one setting each" if len(self.own) > 1 else str(after)
        self._done = f"applied, and read back: {what}{self._where()}"

    def undo(self) -> None:
        """Restore the setting before the last change, on every GPU that allows it. Raises as
        `workbench.gpu_control(...).undo`.
        """
        controls = [each for each in self.controls if each.history or each.not_restored] or [self.control]
        self._doing, self._done = "undoing", ""
        self.refresh()  # list a change made elsewhere before it is undone
        last = self.control.history[-1:]
        try:
            lines, errors = _undone(controls)
        finally:
            self._doing = ""
        if errors:
            raise _together(errors)
        self._done = "; ".join(lines) + self._where()
        self._log.append(f"{time.strftime('%H:%M:%S')}  {self._done}")
        self._undone = replace(last[0], at_s=self.control.device.clock()) if last else None

    def restore_default(self) -> None:
        """Restore the driver's default for every setting. Raises as `apply`."""
        self.apply(Configuration(), "restoring the default")

    def _where(self) -> str:
        return f" on {len(self.controls)} GPUs" if len(self.controls) > 1 else ""

    def refresh(self) -> None:
        """Read the driver's state. The power around a change stays after its undoing."""
        known = [f"{each.at}  {'; '.join(each.text)}" for each in self.control.history]
        self._log += [each for each in known if each not in self._log]
        followed = self.control.follow(self._last)
        if followed is not None and (self.followed is None or followed.after_w is not None):
            self.followed = followed
        jobs = [job.label for job in self.jobs]
        self.view = view(self.controls, self.chosen, self.followed, jobs=jobs, done=self._log)

    @property
    def _last(self) -> Applied | None:
        """The last change, or its undoing."""
        changes = [*self.control.history[-1:], *filter(None, [self._undone])]
        return max(changes, key=lambda each: each.at_s, default=None)

    def state(self) -> dict[str, Any]:
        """Everything that a view shows."""
        wanted = None
        if self.chosen is not None:
            wanted = {**asdict(self.chosen.setting), "batch_size": self.chosen.batch_size}
        return {
            "uuid": self.control.device.uuid if len(self.controls) == 1 else ALL,
            "view": None if self.view is None else asdict(self.view), "wanted": wanted, "doing": self._doing,
            "done": self._done, "plot": power(self.followed),
        }


def gpu_choices() -> list[list[str]]:
    """The GPUs that can be changed, UUID and name each, and "all" if there are several."""
    found = [[each.uuid, f"{place}: {each.name}"] for place, each in enumerate(session.current().devices)]
    return [*found, [ALL, f"all {len(found)} GPUs"]] if len(found) > 1 else found


def _undone(controls: Sequence[Control]) -> tuple[list[str], list[WorkbenchError]]:
    """Undo the last change of each GPU, newest first, as each has the setting before it.

    Returns a sentence from each, and the errors.
    """
    lines: dict[str, None] = {}
    errors: list[WorkbenchError] = []
    for each in reversed(controls):
        try:
            lines[each.undo()] = None
        except WorkbenchError as error:
            errors.append(error)
    return list(lines), errors


def _together(errors: Sequence[WorkbenchError]) -> WorkbenchError:
    """The first error, with the messages of all."""
    if len(errors) > 1:
        errors[0].args = ("; ".join(str(error) for error in errors),)
    return errors[0]
