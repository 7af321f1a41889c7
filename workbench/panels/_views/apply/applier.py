"""One GPU, or all of this process, put to what is chosen and back; as a panel needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ....device.control import AFTER_S, Control, StepResponse, as_configuration
from ....device.discovery import Gpus
from ....errors import UsageError, WorkbenchError
from ....experiments.job import RecurringJob
from ....measurement import session
from ....records import Configuration, Setting
from ....tuning import manual
from .model import ApplyView, view
from .svg import power

ALL = "all"  # in place of a UUID


class Applier:
    """What is chosen for GPUs, what is active on them, and the last change.

    Args:
        gpus: One GPU, as `workbench.control` takes it.
        jobs: Recurring jobs whose next recurrence takes a chosen batch size.
    """

    def __init__(self, gpus: Gpus = None, jobs: Sequence[RecurringJob] = ()) -> None:
        self.jobs = tuple(jobs)
        self.controls: tuple[manual.ManualControl, ...] = (manual.control(gpus),)
        self.chosen: Configuration | None = None
        self.view: ApplyView | None = None
        self.followed: StepResponse | None = None
        self._doing = self._done = ""  # what goes on just now; how the last command went

    @property
    def control(self) -> manual.ManualControl:
        """Control of the first GPU."""
        return self.controls[0]

    def take_gpu(self, uuid: str) -> None:
        """Control another GPU of this process, or "all" of them."""
        devices = session.current().devices if uuid == ALL else (uuid,)
        self.controls, self._done = tuple(manual.control(each) for each in devices), ""

    def choose(self, wanted: Configuration | Setting | None) -> None:
        """Make a configuration the chosen one; nothing is applied.

        Raises:
            UsageError: it is none.
        """
        self.chosen = None if wanted is None else as_configuration(wanted)

    def apply(self, wanted: Configuration | None = None, doing: str = "applying") -> None:
        """Apply `wanted`, or what is chosen; where one GPU refuses, those before it are put back.

        Raises:
            UsageError: Nothing is chosen. Else as `workbench.control(...).apply`.
        """
        if (wanted := wanted or self.chosen) is None:
            what = "choose a power limit or clocks, or a point of a frontier"
            raise UsageError(f"nothing is chosen yet: {what}")
        self._doing, self._done = doing, ""
        changed: list[Control] = []
        after = Setting()
        try:
            for control in self.controls:
                after = control.apply(wanted, jobs=self.jobs if control is self.control else ()).after
                changed.append(control)
        except WorkbenchError as error:
            _together([error, *_undone(changed)[1]])
            raise
        finally:
            self._doing = ""
        self._done = f"applied, and read back: {after}{self._where()}"

    def undo(self) -> None:
        """Restore what was before the last change, on every GPU that can be. Raises as
        `workbench.control(...).undo`.
        """
        controls = [each for each in self.controls if each.history or each.left] or [self.control]
        self._doing, self._done = "undoing", ""
        try:
            lines, errors = _undone(controls)
        finally:
            self._doing = ""
        if errors:
            raise _together(errors)
        self._done = "; ".join(lines) + self._where()

    def restore_default(self) -> None:
        """Give every knob back to the driver. Raises as `apply`."""
        self.apply(Configuration(), "restoring the default")

    def _where(self) -> str:
        return f" on {len(self.controls)} GPUs" if len(self.controls) > 1 else ""

    def refresh(self) -> None:
        """Ask the driver."""
        self.followed = self.control.follow()
        self.view = view(self.controls, self.chosen, self.followed, jobs=[job.name for job in self.jobs])

    @property
    def follows(self) -> bool:
        """Whether the power around the last change is still being watched."""
        history = self.control.history
        return bool(history) and self.control.device.clock() - history[-1].at_s < AFTER_S

    def state(self) -> dict[str, Any]:
        """All that a view shows of it."""
        wanted = None
        if self.chosen is not None:
            wanted = {**asdict(self.chosen.setting), "batch_size": self.chosen.batch_size}
        return {
            "uuid": self.control.device.uuid if len(self.controls) == 1 else ALL,
            "view": None if self.view is None else asdict(self.view), "wanted": wanted, "doing": self._doing,
            "done": self._done, "plot": power(self.followed), "follows": self.follows,
        }


def gpu_choices() -> list[list[str]]:
    """The GPUs that can be changed, UUID and words each; all of them at once where there are several."""
    found = [[each.uuid, f"{place}: {each.name}"] for place, each in enumerate(session.current().devices)]
    return [*found, [ALL, f"all {len(found)} GPUs"]] if len(found) > 1 else found


def _undone(controls: Sequence[Control]) -> tuple[list[str], list[WorkbenchError]]:
    """The last change of each taken back, the newest first, as each knows what was chosen before it; a
    sentence from each, and what could not be.
    """
    lines: dict[str, None] = {}
    errors: list[WorkbenchError] = []
    for control in reversed(controls):
        try:
            lines[control.undo()] = None
        except WorkbenchError as error:
            errors.append(error)
    return list(lines), errors


def _together(errors: Sequence[WorkbenchError]) -> WorkbenchError:
    """The first of them, with the words of all."""
    if len(errors) > 1:
        errors[0].args = ("; ".join(str(error) for error in errors),)
    return errors[0]
