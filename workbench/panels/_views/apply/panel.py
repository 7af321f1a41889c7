"""Applies and undoes a GPU's setting. Shows the active setting and its owner, the chosen one, and the power.

    panel = workbench.panels.apply()               choose on the panel
    workbench.panels.apply(frontier_panel)         apply the choice of a frontier
    workbench.panels.apply(Setting(power_limit_w=150.0), jobs=[nightly])

Apply, undo and default act while a cell runs. An applied setting stays active after the cell, until it is
undone or the kernel ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....device.discovery import Gpus
from ....errors import UsageError, shown
from ....experiments.job import RecurringJob
from ....records import Configuration, Setting
from ....tuning import ManualControl
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.svg import titled
from .model import Applier, apply_page, gpu_choices, power


class ApplyPanel(LivePanel):
    """A GPU's setting, with buttons to apply and undo a configuration.

    Args:
        wanted: A `Configuration`, a `Setting`, a frontier's panel whose choice is used, or None to choose on
            the panel.
        gpus: One GPU, as `workbench.gpu_control` takes it.
        jobs: Recurring jobs whose next recurrence takes a chosen batch size.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: `wanted` is another object.
        NoDriver: The GPU does not exist.
    """

    _esm = script("apply")

    def __init__(
        self, wanted: Any = None, *, gpus: Gpus = None, jobs: Sequence[RecurringJob] = (),
        live: bool | None = None,
    ) -> None:
        self.applier = Applier(gpus, jobs)
        super().__init__(live=live)
        self._frontier: Any = None  # its offer is the choice here, until a choice on this panel
        if callable(getattr(wanted, "on_choice", None)):
            self._frontier = wanted
            wanted.on_choice(lambda _: self._take_offer(wanted))
        elif wanted is not None:
            self.applier.choose(wanted)
        self._reread()

    # for the caller

    @property
    def control(self) -> ManualControl:
        """Control of the GPU; of the first one if all are changed."""
        return self.applier.control

    @property
    def chosen(self) -> Configuration | None:
        """The chosen configuration."""
        return self.applier.chosen

    def choose(self, wanted: Configuration | Setting | None) -> None:
        """Choose a configuration without applying it.

        Raises:
            UsageError: Not a configuration.
        """
        self.applier.choose(wanted)
        self._take_offer(None)

    def _take_offer(self, frontier: Any) -> None:
        """Choose a frontier's offer; None keeps the choice of this panel."""
        with self._report_errors(), self._lock:
            self._frontier = frontier
            self.refresh()

    def apply(self) -> None:
        """Apply the chosen configuration. Raises as `workbench.gpu_control(...).apply`."""
        self.on_message("apply", {})

    def undo(self) -> None:
        """Restore the setting before the last change. Raises as `workbench.gpu_control(...).undo`."""
        self.on_message("undo", {})

    def restore_default(self) -> None:
        """Restore the driver's default for every setting. Raises as `apply`."""
        self.on_message("default", {})

    def refresh(self) -> None:
        """Read the driver's state."""
        with self._lock:
            if self._frontier is not None:
                self.applier.choose(self._frontier.offered)
            self.applier.refresh()

    # showing

    def title(self) -> str:
        """Name of the GPU."""
        return titled(f"Apply · {self.control.device.name}", self.control.device.simulated)

    def summary(self) -> str:
        facts = () if self.applier.view is None else self.applier.view.facts
        return "\n".join([self.title(), *(f"{name}: {text}" if name else text for name, text in facts)])

    def html(self) -> str:
        """The panel as a picture: HTML without scripts."""
        with self._lock:
            drawn = power(self.applier.followed)
            return apply_page(self.title(), self.applier.view, drawn, self._problem)

    # for the views

    def about(self) -> Content:
        device, limits = self.control.device, self.control.device.limits
        memories = limits.mem_clocks_mhz
        range_w = [limits.min_power_limit_w, limits.max_power_limit_w, limits.default_power_limit_w]
        knobs = {
            "limits": range_w if device.can("set_power_limit") and None not in range_w else None,
            "sm": list(limits.sm_clocks_mhz[memories[0]]) if device.can("lock_sm_clock") and memories else [],
            "memory": list(memories) if device.can("lock_mem_clock") else [],
        }
        return {"knobs": knobs, "gpus": gpu_choices()}

    def news(self, *, whole: bool = False) -> Message:
        return {"kind": "news", "title": self.title(), **self.applier.state()}, []

    def on_message(self, kind: str, content: Content) -> None:
        applier = self.applier
        acts = {"apply": applier.apply, "undo": applier.undo, "default": applier.restore_default}
        if kind in acts:
            try:
                acts[kind]()
            finally:
                self.tell()
        elif kind == "choose":
            self.choose(_chosen(content))
            self.tell()
        elif kind == "gpu":
            applier.take_gpu(field(content, "uuid", "str"))
            self.tell()
            self._say({**self.snapshot()[0], "kind": "knobs"})


def _chosen(content: Content) -> Configuration:
    """The typed and selected configuration; empty fields leave a setting to the driver."""
    values: dict[str, Any] = {}
    for name in ("power_limit_w", "sm_clock_mhz", "mem_clock_mhz", "batch_size"):
        given = content.get(name)
        try:
            values[name] = None if given in (None, "") else float(given)
            if name != "power_limit_w" and values[name] is not None:
                values[name] = field(values, name, "int")
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{name}={shown(given)} is not a {'whole ' * (name != 'power_limit_w')}number; "
                             "type one, or leave it empty for the driver's default") from None
    return Configuration(Setting(*list(values.values())[:3]), values["batch_size"])


apply = ApplyPanel
