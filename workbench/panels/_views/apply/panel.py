"""A GPU's setting, to apply and to undo: what is in force and whose it is, what is chosen, what changes, how
the power follows.

    panel = workbench.panels.apply()               choose on the panel
    workbench.panels.apply(frontier_panel)         what is chosen on a frontier
    workbench.panels.apply(Setting(power_limit_w=150.0), jobs=[nightly])

Apply, undo and default act while a cell runs. What is applied stays when the cell ends, until it is undone or
the kernel ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ....device.discovery import Gpus
from ....device.settings import AFTER_S, StepResponse
from ....errors import UsageError, renamed
from ....experiments.job import RecurringJob
from ....measurement import session
from ....records import Configuration, Setting
from ....tuning import manual
from ..._core.live import LivePanel, Message, script
from ..._core.svg import titled
from .model import ApplyView, view
from .svg import apply_page, power


class ApplyPanel(LivePanel):
    """What applies a configuration to a GPU, and takes it back. `apply` says what the arguments are."""

    poll_s = 0.5
    _esm = script("apply")

    def __init__(
        self, wanted: Any = None, *, gpus: Gpus = None, jobs: Sequence[RecurringJob] = (),
        live: bool | None = None,
    ) -> None:
        self.jobs = tuple(jobs)
        self.hand = manual.control(gpus)
        self.chosen: Configuration | None = None
        self._view: ApplyView | None = None
        self._followed: StepResponse | None = None
        self._doing = ""  # what goes on just now
        self._done = ""  # how the last command went
        super().__init__(live=live)
        if callable(getattr(wanted, "on_choice", None)):
            self.chosen = wanted.chosen
            wanted.on_choice(self.choose)
        elif wanted is not None:
            self.choose(wanted)
        with self._report_errors():
            self.refresh()

    # for the caller

    def choose(self, wanted: Configuration | Setting | None) -> None:
        """Make a configuration the chosen one; nothing is applied.

        Raises:
            UsageError: it is none.
        """
        if isinstance(wanted, Setting):
            wanted = Configuration(wanted)
        if wanted is not None and not isinstance(wanted, Configuration):
            kind = type(wanted).__name__
            raise UsageError(f"a Configuration, a Setting or a frontier's panel can be applied, not {kind}")
        self.chosen = wanted
        with self._report_errors(), self._lock:
            self.refresh()

    def apply(self) -> None:
        """Apply what is chosen. Raises as `applying.ManualControl.apply`."""
        chosen = self.chosen
        if chosen is None:
            what = "choose a power limit or clocks, or a point of a frontier"
            raise UsageError(f"nothing is chosen yet: {what}")
        self._do("applying", lambda: self.hand.apply(chosen, jobs=self.jobs))

    def undo(self) -> None:
        """Take the last change back. Raises as `applying.ManualControl.undo`."""
        self._do("undoing", self.hand.undo)

    def restore_default(self) -> None:
        """Give every knob back to the driver. Raises as `applying.ManualControl.apply`."""
        self._do("restoring the default", self.hand.restore_default)

    def refresh(self) -> None:
        """Look at the GPU again."""
        with self._lock:
            self._followed = self.hand.follow()
            self._view = view(self.hand, self.chosen, self._followed, jobs=[job.name for job in self.jobs])

    def _do(self, doing: str, act: Callable[[], manual.Applied | str]) -> None:
        self._doing, self._done = doing, ""
        try:
            done = act()
            self._done = done if isinstance(done, str) else f"applied, and read back: {done.after}"
        finally:
            self._doing = ""
            self.tell()

    # showing

    def title(self) -> str:
        return titled(f"Apply · {self.hand.device.name}", self.hand.device.simulated)

    def summary(self) -> str:
        return "\n".join([self.title(), *(self._view.sentences if self._view is not None else ())])

    def html(self) -> str:
        """The panel as a picture: HTML without scripts."""
        with self._lock:
            return apply_page(self.title(), self._view, power(self._followed), self._problem)

    # for the views

    def about(self) -> dict[str, Any]:
        device, limits = self.hand.device, self.hand.device.limits
        memories = limits.mem_clocks_mhz
        range_w = [limits.min_power_limit_w, limits.max_power_limit_w, limits.default_power_limit_w]
        knobs = {
            "limits": range_w if device.can("set_power_limit") else None,
            "sm": list(limits.sm_clocks_mhz[memories[0]]) if device.can("lock_sm_clock") and memories else [],
            "memory": list(memories) if device.can("lock_mem_clock") else [],
        }
        gpus = [[each.uuid, f"{place}: {each.name}"] for place, each in enumerate(session.current().devices)]
        return {"knobs": knobs, "gpus": gpus}

    def news(self, *, whole: bool = False) -> Message:
        seen, wanted = None if self._view is None else asdict(self._view), None
        if self.chosen is not None:
            wanted = {**asdict(self.chosen.setting), "batch_size": self.chosen.batch_size}
        return {
            "kind": "news", "title": self.title(), "uuid": self.hand.device.uuid, "view": seen,
            "wanted": wanted, "doing": self._doing, "done": self._done, "plot": power(self._followed),
            "follows": self._follows(),
        }, []

    def _follows(self) -> bool:
        """Whether the power around the last change is still being watched."""
        history = self.hand.history
        return bool(history) and self.hand.device.clock() - history[-1].at_s < AFTER_S

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "apply":
            self.apply()
        elif kind == "undo":
            self.undo()
        elif kind == "default":
            self.restore_default()
        elif kind in ("choose", "gpu"):
            if kind == "gpu":
                self.hand, self._done = manual.control(str(content["uuid"])), ""
            self.choose(_chosen(content) if kind == "choose" else self.chosen)
            self.tell()
            if kind == "gpu":
                self._say({**self.snapshot()[0], "kind": "knobs"})


def _chosen(content: dict[str, Any]) -> Configuration:
    """What was typed and picked; what is empty is left to the driver."""
    values: dict[str, float | None] = {}
    for name in ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "batch_size"):
        given = content.get(name)
        try:
            values[name] = None if given in (None, "") else float(given)
        except (TypeError, ValueError):
            words = f"{given!r} is no number; type one, or leave it empty for the driver's default"
            raise UsageError(words) from None
    sm, memory, batch = (None if each is None else int(each) for each in list(values.values())[1:])
    return Configuration(Setting(values["power_limit_w"], sm, memory), batch)


@renamed(gpu=("gpus", lambda gpu: gpu))
def apply(
    wanted: Any = None, *, gpus: Gpus = None, jobs: Sequence[RecurringJob] = (), live: bool | None = None
) -> ApplyPanel:
    """Look at a GPU's setting, and apply a configuration to it.

    Args:
        wanted: A `Configuration`, a `Setting`, a frontier's panel whose choice is taken over, or None: choose
            on the panel.
        gpus: One GPU, as `workbench.control` takes it.
        jobs: Recurring jobs whose next recurrence takes a chosen batch size.
        live: A widget or a picture; None takes a widget where the front end has them.

    Raises:
        UsageError: `wanted` is none of these.
        NoDriver: there is no such GPU.
    """
    return ApplyPanel(wanted, gpus=gpus, jobs=jobs, live=live)
