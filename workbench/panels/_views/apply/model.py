"""What the panel of applying says: the active setting, the chosen one, what would change and was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....device import control, driver
from ....device.control import Control, StepResponse
from ....device.protocol import Device
from ....records import Configuration

NOTHING = "Nothing is chosen yet: choose below, or on a frontier"
SAME = "Nothing would change"
HISTORY = 6  # changes that are listed
PROCESSES = 4  # that are named


@dataclass(frozen=True, slots=True)
class ApplyView:
    """All texts of the panel."""

    gpu: str
    simulated: bool
    force: str
    origin: str
    holder: str
    computing: str
    chosen: str
    difference: tuple[str, ...]
    note: str  # of the batch size
    rights: str
    allowed: bool
    command: str
    history: tuple[tuple[str, str], ...]  # when, and what; newest first
    left: str
    earlier: str  # what a kernel before this one had applied
    power: str
    can_apply: bool
    can_undo: bool
    can_default: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it in words."""
        change = "; ".join(self.difference) or SAME
        lines = [
            f"Active: {self.force} ({self.origin})", f"Chosen: {self.chosen}", f"Difference: {change}",
            self.note, f"Rights: {self.rights}",
        ]
        lines += [] if self.allowed else [f"Command: {line}" for line in self.command.splitlines()]
        lines += [self.holder and f"Held by {self.holder}", self.computing]
        lines += [self.power, self.left, self.earlier]
        lines += [f"{at}  {what}" for at, what in self.history]
        return tuple(each for each in lines if each)


def view(
    controls: Sequence[Control], chosen: Configuration | None, followed: StepResponse | None, *,
    jobs: Sequence[str] = (),
) -> ApplyView:
    """Look at GPUs; asks the driver, and changes nothing.

    Args:
        controls: Of the GPUs; all but the active settings are the first one's.
        chosen: What would be applied.
        followed: The power around the last change.
        jobs: Names of the recurring jobs that take the batch size.
    """
    first = controls[0]
    device, now = first.device, first.active()
    settings_now = [now.setting, *(each.active().setting for each in controls[1:])]
    active = dict.fromkeys("not known" if each is None else str(each) for each in settings_now)
    wanted, lost = chosen or Configuration(), now.setting is None
    difference: tuple[str, ...] = ()
    if chosen is not None and now.setting is not None:
        difference = control.difference(now.setting, chosen.setting, device)
    rights = control.rights(now.setting or wanted.setting, wanted.setting, device, refused=first.refused)
    history = first.history
    names = [f"{each.name} ({each.pid})" for each in now.computing]
    more = f" and {len(names) - PROCESSES} more" if len(names) > PROCESSES else ""
    done = tuple((each.at, "; ".join(each.text)) for each in reversed(history[-HISTORY:]))
    return ApplyView(
        gpu=device.name, simulated=device.simulated,
        force=", ".join(active), origin=now.text,
        holder="" if now.origin == "process" else now.holder,
        computing=f"Computing on it: {', '.join(names[:PROCESSES])}{more}" if names else "",
        chosen=NOTHING if chosen is None else describe(wanted, device), difference=difference,
        note=_note(wanted, jobs), rights=rights.text, allowed=bool(rights.who), command=rights.command,
        history=done, left=first.left, earlier=first.earlier,
        power=followed.text if followed is not None else "",
        can_apply=chosen is not None and not lost and not driver.read_only(),
        can_undo=any(each.history or each.left for each in controls), can_default=not driver.read_only(),
    )


def describe(wanted: Configuration, device: Device) -> str:
    """A configuration as it will be applied: "150 W, SM clock: driver default, batch size 64"."""
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
    return f"Batch size {wanted.batch_size} cannot change inside a job that runs; it goes to {where}"
