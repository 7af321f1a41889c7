"""The whole workbench in one view, on tabs: power and periods, frontier, sweep, recurring, clocks, apply,
cluster, log.

    workbench.panels.open()         in a cell; "Create New View for Output" in its menu moves it to a tab
    workbench.panels.open(sweep)    points of the frontier, as `panels.frontier` takes them; else the log

It belongs to the kernel: a second call, or a reopened notebook, shows the same workbench. Without a kernel,
the notebook shows a picture from the time of display; `finish()` leaves a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from ..device.protocol import Device
from ..experiments.history.study import JobStudy
from ..experiments.job import RecurringJob
from ..logbook.store import Store
from ..measurement import session
from ..measurement.recorder import Recorder
from ._core.jupyter import interrupt_cell, kernel, unblock
from ._core.live import LivePanel
from ._core.persistent import Bundle, Displayed, DisplayHandle, widget_bundle
from ._views.apply.panel import ApplyPanel
from ._views.clocks.panel import ClocksPanel
from ._views.cluster.panel import cluster
from ._views.frontier.panel import frontier
from ._views.frontier.sources import Logged
from ._views.log.panel import log as log_panel
from ._views.power.panel import PowerView
from ._views.power.series import WINDOW_S
from ._views.recurring.panel import recurring
from .tab_sheets import SweepPanel


class Workbench(Displayed):
    """Panels on tabs. `open` documents the arguments.

    `panels` has them by name; `chosen` is the choice of the frontier, which the apply tab uses.
    """

    def __init__(
        self, points: Any = None, *, job: Any = None, run: Callable[[Any], object] | None = None,
        store: Store | None = None, log: Any = None, live: bool | None = None,
    ) -> None:
        compared = cluster(log, live=live)  # it may raise, and then nothing is open yet
        self._shown = DisplayHandle(live)
        here, store = session.current(), store or Store()
        devices: tuple[Device, ...] = here.devices
        self.recorder = here.recorder
        self.panels: dict[str, LivePanel] = {}
        if self.recorder is not None:
            self.panels["Power and periods"] = _power(here, self.recorder, devices)
        self.frontier = frontier(Logged(store) if points is None else points, live=live)
        self.panels["Frontier"] = self.frontier
        if callable(getattr(points, "cancel", None)):
            self.panels["Sweep"] = SweepPanel(points)
        if job is not None:
            self.panels["Recurring"] = recurring(job, run, live=live)
        if devices:
            jobs = (job,) if isinstance(job, RecurringJob) else ()
            self.panels["Clocks"] = ClocksPanel(live=live)
            self.panels["Apply"] = ApplyPanel(self.frontier, jobs=jobs, live=live)
        self.panels["Cluster"] = compared
        self.panels["Log"] = log_panel(store, live=live)
        for panel in self.panels.values():
            panel.on_picture = self._picture_later
        self._box: ipywidgets.Tab | None = None

    @property
    def chosen(self) -> Any:
        """The chosen configuration of the frontier; None before the first point."""
        return self.frontier.chosen

    @property
    def box(self) -> ipywidgets.Tab:
        """The tabs; created on first display."""
        if self._box is None:
            names = list(self.panels)
            first = "Sweep" if "Sweep" in names else "Frontier" if self.chosen is not None else names[0]
            children = list(self.panels.values())
            self._box = ipywidgets.Tab(children=children, titles=names, selected_index=names.index(first))
            self._box.add_class("workbench-tabs")
            unblock(self._box)
        return self._box

    def select(self, name: str) -> None:
        """Bring a tab to the front."""
        self.box.selected_index = list(self.panels).index(name)

    def summary(self) -> str:
        """The workbench in words."""
        return "\n\n".join(f"{name}\n{panel.summary()}" for name, panel in self.panels.items())

    def html(self) -> str:
        """A picture of every tab, one below the other: HTML without scripts."""
        parts = []
        for number, (name, panel) in enumerate(self.panels.items()):
            shown = " open" if number < 2 or name == "Apply" else ""
            head = f'<summary style="font-weight:600">{name}</summary>'
            parts.append(f"<details{shown}>{head}{panel.html()}</details>")
        return "".join(parts)

    def finish(self) -> None:
        """Leave a picture of every tab in the view's place, and end the panels. Settings stay active."""
        self.close()
        super().finish()

    def _bundle(self) -> Bundle:
        return widget_bundle(self.box.model_id) if self._shown.widget and kernel() is not None else {}

    def close(self) -> None:
        """End every panel. Applied settings stay active; `panels["Apply"]` can undo them before."""
        for panel in self.panels.values():
            panel.end()


def _power(here: session.Session, recorder: Recorder, devices: tuple[Device, ...]) -> PowerView:
    panel = PowerView(
        recorder, devices, label="this session", stop=interrupt_cell, set_power_limit=here.set_power_limit
    )
    # This view may stay for days; it keeps its own thinned history.
    panel._hold = recorder.hold(lambda: recorder.clock() - 2 * WINDOW_S, awake=False)
    panel.start()
    return panel


_open: Workbench | None = None


def open_workbench(
    points: Any = None, *, job: RecurringJob | JobStudy | Any = None,
    run: Callable[[Any], object] | None = None, store: Store | None = None, log: Any = None,
    live: bool | None = None,
) -> Workbench:
    """The workbench of this kernel; without arguments the existing one, as long as the GPUs are the same.

    Args:
        points: Points of the frontier, as `panels.frontier` takes them; None takes the log. A running `Sweep`
            gets a tab with its progress.
        job: A recurring job, its study or history, as `panels.recurring` takes it; None shows no such tab.
        run: The function behind the recurring tab's buttons.
        store: The store of the measurements; None takes the user's.
        log: Job log of the cluster tab, as `panels.cluster` takes it, or several by name; None takes the logs
            that are found.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: Invalid points, job or job log.
    """
    global _open
    known = _open
    asked = any(each is not None for each in (points, job, run, store, log, live))
    if known is not None and not asked and known.recorder is session.current().recorder:
        return known
    made = Workbench(points, job=job, run=run, store=store, log=log, live=live)
    if known is not None:
        known.close()
    _open = made
    return made
