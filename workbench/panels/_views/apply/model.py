"""What the panel of applying says: the active setting, the chosen one, what would change and was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....device import control, driver
from ....device.control import Control, StepResponse
from ....device.protocol import Device
from ....records import Configuration
from ..._core.svg import titled

NOTHING = "Nothing is chosen yet: choose below, or on a frontier"
SAME = "Nothing would change"
MOST_LISTED = 5  # changes, and processes, that are listed


@dataclass(frozen=True, slots=True)
class ApplyView:
    """All texts of the panel.

    Attributes:
        facts: Names and texts: what is active, chosen and different, which rights that takes, what was done.
        status: What is active and what the last change did, in one line.
        command: For an administrator; empty where the rights suffice.
    """

    gpu: str
    simulated: bool
    facts: tuple[tuple[str, str], ...]
    status: str
    command: str
    can_apply: bool
    can_undo: bool
    can_default: bool


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
    active = ", ".join(dict.fromkeys("not known" if each is None else str(each) for each in settings_now))
    wanted, difference = chosen or Configuration(), list[str]()
    if chosen is not None and now.setting is not None:
        difference = list(control.difference(now.setting, chosen.setting, device))
    rights = control.rights(now.setting or wanted.setting, wanted.setting, device, refused=first.refused)
    names = [f"{each.name} ({each.pid})" for each in now.computing]
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    after = [followed.text if followed is not None else "", first.left, first.earlier]
    command = "" if rights.who else rights.command
    done = [f"{each.at}  {'; '.join(each.text)}" for each in reversed(first.history[-MOST_LISTED:])]
    facts = (
        ("Active", f"{active} ({now.text})"),
        ("Chosen", NOTHING if chosen is None else describe(wanted, device)),
        ("Difference", "; ".join(difference) or SAME), ("", _note(wanted, jobs)), ("Rights", rights.text),
        ("Command", command), ("Held by", "" if now.origin == "process" else now.holder),
        ("Computing on it", ", ".join(names[:MOST_LISTED]) + more), *(("", text) for text in after),
        ("Done", "\n".join(done)),
    )
    name = titled(device.name, device.simulated)
    return ApplyView(
        gpu=device.name, simulated=device.simulated, facts=tuple(each for each in facts if each[1]),
        status=" · ".join(filter(None, (f"{name}: {active}", now.text, *after))), command=command,
        can_apply=chosen is not None and now.setting is not None and not driver.read_only(),
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
