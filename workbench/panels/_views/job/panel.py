"""A job on several GPUs: which GPU the others wait for, what that costs, and what the job could run at.

    panel = workbench.panels.job(result)                     the result of a measured job
    panel = workbench.panels.job(result, settings=lower)     with a setting for each GPU that waits

It is the view of a finished cell with the GPUs as lanes over one iteration. Below it is the frontier of the
job, with its slider and its Apply button. Without a kernel it is a picture with the same content.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping
from typing import Any

import ipywidgets
import polars as pl

from ....errors import StoreError, UsageError, WorkbenchError, type_name
from ....jobs.records import JobMeasurement
from ....jobs.report import names_of
from ....logbook.report import CARD
from ....logbook.store import Store
from ....measurement import session
from ....records import Setting
from ....tuning import reduced_clocks
from ..._core.jupyter import unblock
from ..._core.live import LivePanel, Message, script
from ..._core.persistent import widget_bundle
from ..._core.svg import Picture
from ..apply.model import ALL, Applier
from ..frontier.panel import FrontierPanel, frontier
from . import model
from .figure import draw_lanes


class JobPanel(LivePanel):
    """A measured job. `job` documents the arguments."""

    _esm = script("power")

    def __init__(
        self, result: JobMeasurement, *, settings: Mapping[str, Setting] | None = None,
        frontier: FrontierPanel | None = None, live: bool | None = None,
    ) -> None:
        self.result, self.frontier = result, frontier
        self.settings = dict(settings or {})
        here = {device.uuid for device in session.current().devices} if self.settings else set[str]()
        own = {uuid: setting for uuid, setting in self.settings.items() if uuid in here}
        self.applier = Applier(own=own) if own else None
        self._sent_settings: dict[str, Any] = {}  # the settings that views show
        self._box: ipywidgets.VBox | None = None
        super().__init__(live=live)
        if frontier is not None:
            frontier.on_picture = self._picture_later
        if self.applier is None:
            self._ended.set()  # nothing changes any more: the panel answers, and publishes nothing by itself

    # for the caller

    def apply(self) -> None:
        """Apply to each GPU its own setting. Raises as `workbench.gpu_control(...).apply`."""
        self._do("apply")

    def undo(self) -> None:
        """Restore the settings before the last change. Raises as `workbench.gpu_control(...).undo`."""
        self._do("undo")

    def _do(self, what: str) -> None:
        if self.applier is None:
            raise UsageError("no settings for GPUs of this machine are given; pass settings={uuid: setting}")
        with self._lock:
            try:
                self.applier.apply() if what == "apply" else self.applier.undo()
            finally:
                self._sent_settings = self._applicable() or {}
                self._say({**self._sent_settings, "kind": "applied"})
                self._picture_later()

    # showing

    def title(self) -> str:
        return model.title(self.result)

    def summary(self) -> str:
        below = () if self.frontier is None else ("", self.frontier.summary())
        return "\n".join([self.title(), *model.sentences(self.result), *below])

    def svg(self) -> str:
        return self._lanes().svg()

    def html(self) -> str:
        """The answer, the lanes and the proposed settings, folded tables, and the frontier."""
        lanes = self._lanes()
        drawn = f"<div style='overflow-x:auto'>{lanes.svg()}</div>" if lanes.described() else ""
        below = "" if self.frontier is None else self.frontier.html()
        return (
            f"{CARD}<div><b>{html.escape(self.title())}</b></div>"
            f"{model.answer_html(model.sentences(self.result))}{drawn}{self._table()}<details>"
            f"<summary style='cursor:pointer'>details</summary>{model.details_html(self.result)}</details>"
            f"</div>{below}"
        )

    def _lanes(self) -> Picture:
        picture = Picture(self.title(), size=0)
        picture.y = 0.0
        if self.result.waiting is not None:
            draw_lanes(picture, self.result.waiting, names_of(self.result))
        return picture

    def _table(self) -> str:
        controls = () if self.applier is None else self.applier.controls
        active = {each.device.uuid: each.active().setting for each in controls}
        return model.settings_html(self.settings, active, self.result)

    # for the views

    @property
    def box(self) -> ipywidgets.VBox:
        """The panel above its frontier; created on first display."""
        if self._box is None:
            self._box = ipywidgets.VBox([self, *filter(None, [self.frontier])])
            unblock(self._box)
        return self._box

    def _bundle(self) -> dict[str, Any]:
        whole = super()._bundle()
        return whole if self.frontier is None or self.comm is None else {
            **whole, **widget_bundle(self.box.model_id)}

    def end(self) -> None:
        if self.frontier is not None:
            self.frontier.end()
        super().end()

    def about(self) -> dict[str, Any]:
        texts = model.sentences(self.result)
        result = {"answer": model.answer_html(texts), "details": model.details_html(self.result)}
        self._sent_settings = self._applicable() or {}
        return {
            "title": self.title(), "label": self.result.measurement.label, "gpus": [], "plots": [],
            "window": 0.0, "stop": False, "slider": False, "follows": False, "result": result,
            "lanes": self._lanes().described(), "settings": self._sent_settings or None,
        }

    def news(self, *, whole: bool = False) -> Message:
        return {"counts": [], "elapsed": self.result.measurement.time_s, "energy": [], "iteration": None}, [
            b""]

    def changes(self) -> Message | None:
        if self.absent() or not self.due():
            return None
        before, self._sent_settings = self._sent_settings, self._applicable() or {}
        return ({**self._sent_settings, "kind": "applied"}, []) if self._sent_settings != before else None

    def _applicable(self) -> dict[str, Any] | None:
        """The proposed settings and the active ones; None where none is proposed."""
        if not self.settings:
            return None
        applier = self.applier
        if applier is None:
            return {"gpus": [], "uuid": "", "view": None, "wanted": None, "doing": "", "done": "",
                    "plot": "", "table": self._table(), "name": ""}
        applier.refresh()
        state, count = applier.state(), len(applier.controls)
        rights = [each.rights(applier.own[each.device.uuid]) for each in applier.controls]
        state["view"]["command"] = "\n".join(each.command for each in rights if not each.who)
        name = f"Apply to {count} GPUs" if count > 1 else "Apply"
        return {"gpus": [], **state, "plot": "", "table": self._table(), "name": name}

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind in ("apply", "undo"):
            self._do(kind)


def job(
    result: JobMeasurement, *, points: Any = None, settings: Mapping[str, Setting] | None = None,
    store: Store | None = None, live: bool | None = None,
) -> JobPanel:
    """Show a job on several GPUs: which GPU the others wait for, and what that costs.

    Args:
        result: A measured job.
        points: Time and energy of the whole job under several settings, as `panels.frontier` takes them. None
            takes the runs of this label on as many GPUs from the log, if they had at least two settings.
        settings: A setting for single GPUs, by UUID. Apply gives each GPU its own. None proposes lower clocks
            for the GPUs that wait, if they are GPUs of this process.
        store: The store of the log; None takes the user's.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: Another object, or invalid points.
    """
    if not isinstance(result, JobMeasurement):
        hint = "show a single measurement with workbench.show"
        raise UsageError(f"expected a measured job, got {type_name(result)}; {hint}")
    if points is None:
        below = _logged(result, store or Store(), live)
    else:
        below = frontier(points, name=result.measurement.label, live=live)
    if below is not None:
        _apply_to_all(below, result)
    proposed = _lower_clocks(result) if settings is None else settings
    return JobPanel(result, settings=proposed, frontier=below, live=live)


def _lower_clocks(result: JobMeasurement) -> dict[str, Setting] | None:
    """Clocks at which the GPUs that wait are not the last; None without any."""
    if result.waiting is None:
        return None
    devices = {device.uuid: device for device in session.current().devices}
    waits = [gpu for gpu in result.waiting.gpus if gpu.uuid in devices]
    if not waits or len(waits) < len(result.waiting.gpus):
        return None
    clocks = devices[waits[0].uuid].limits.sm_clocks_mhz
    lower = reduced_clocks(result.waiting, clocks.get(max(clocks, default=0), ()), {})
    return {uuid: Setting(sm_clock_mhz=clock) for uuid, clock in lower.items()} or None


def _logged(result: JobMeasurement, store: Store, live: bool | None) -> FrontierPanel | None:
    """The frontier of the runs of this job in the log; None unless they had at least two settings."""
    run = result.measurement
    if not run.label:
        return None
    try:
        same = (pl.col("label") == run.label) & (pl.col("gpus").list.len() == len(run.gpus))
        runs = store.log().filter(same)
        unit = "iteration" if (runs["iteration_j"] > 0).fill_null(False).all() else None
        below = frontier(runs, unit=unit, live=live)
    except (StoreError, UsageError):  # no log, or no complete run
        return None
    return below if below.analysis is not None and len(below.analysis.points) > 1 else None


def _apply_to_all(below: FrontierPanel, result: JobMeasurement) -> None:
    """Let the frontier's Apply change all GPUs of the job, where these are the GPUs of this process."""
    mine = {gpu.uuid for gpu in result.measurement.gpus}
    with contextlib.suppress(WorkbenchError):
        if len(mine) > 1 and mine == {device.uuid for device in session.current().devices}:
            below.on_message("gpu", {"uuid": ALL})
