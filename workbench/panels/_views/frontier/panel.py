"""The interactive energy-time frontier: the cost of every configuration, and the saving of the chosen one.

    panel = workbench.panels.frontier(points)      a frame, `%energy_log`, measurements, a sweep, a recurring
                                                   job, or a file with one of these
    panel.chosen                                   the chosen configuration
    panel.on_choice(print)                         calls `print` with every new choice

A slider and the arrow keys step along the frontier. Apply sets the GPU to the step, and Undo restores it. The
power around the change is shown below. Under "more" are a slowdown limit, and eta between time and energy.
The browser has all points and moves immediately. It sends the choice to the kernel, even while a cell runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....device.protocol import Device
from ....errors import StoreError, WorkbenchError
from ....logbook.report import format_duration, format_energy
from ....measurement import marks, session
from ....records import Configuration
from ....search import tradeoff
from ....search.tradeoff import FrontierAnalysis, Work
from ....tariff import NO_TARIFF, Tariff
from ..._core.jupyter import kernel
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.svg import Picture, titled
from ..apply.model import Applier, gpu_choices
from . import model
from .model import MANUAL, FrontierChoice
from .shown import NAMES, NOTHING, ShownFrontier, running_batch_size
from .sources import GivenPoints, PointSource, collected_points, source
from .svg import Plane, frontier_page

STEPS = 12  # iterations averaged for the place of the running job
CHOOSE = "choose a point: no point was measured at the batch size of the running job"
FRESH = 3.0  # iterations without a step, after which the job has ended


class FrontierPanel(LivePanel):
    """A frontier, and a choice on it. `frontier` documents the arguments."""

    _esm = script("frontier")

    def __init__(
        self, given: PointSource, shown: ShownFrontier, *, work: Work | None = None,
        tariff: Tariff | None = None, live: bool | None = None,
    ) -> None:
        self.source, self.relative, self.whole = given, False, False
        self._work, self._tariff = work, tariff
        self._observed: Hashable = None
        self._frontier = shown
        self._sent_version = -1  # version that views have
        self._callbacks: list[Callable[[Configuration], object]] = []
        self._applier: Applier | None = None  # made for the first view; without a GPU there is none
        self._active: Content | None = None  # the last report of the active setting
        super().__init__(live=live)
        if isinstance(given, GivenPoints):
            self.refresh()  # invalid points are the caller's error
        else:
            self._reread()

    # for the caller

    @property
    def analysis(self) -> FrontierAnalysis | None:
        """The shown points with their frontier; None before the first point."""
        return self._frontier.frontier

    @property
    def choice(self) -> FrontierChoice:
        """The chosen row and its rule."""
        return self._frontier.choice

    @property
    def chosen(self) -> Configuration | None:
        """The chosen configuration; None before the first point."""
        return self._frontier.chosen

    @property
    def offered(self) -> Configuration | None:
        """The configuration that Apply proposes; None if the points do not match the running job."""
        return self._frontier.offered

    @property
    def python(self) -> str:
        """A line of Python that reproduces the choice."""
        if self.analysis is None or self.chosen is None:
            return ""
        return tradeoff.python(self.chosen, model.rule_text(self.analysis, self.choice))

    @property
    def work(self) -> Work:
        """The unit of work of the points' time and energy."""
        job = self._frontier.filters.values["job"]
        return self._work or Work(self.source.units.get(job, self.source.unit))

    @property
    def tariff(self) -> Tariff:
        """Price and CO2 of energy; by default those of the magics."""
        return self._tariff or magics_tariff()

    def on_choice(self, callback: Callable[[Configuration], object]) -> Callable[[], None]:
        """Call `callback` with every new choice, on any thread; returns a function that ends this."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def choose(
        self, chosen: Configuration | int | None = None, *, eta: float | None = None,
        max_slowdown: float | None = None,
    ) -> Configuration:
        """Choose a configuration or a row of the points. Or choose the least cost at `eta`, or the least
        energy, within a slowdown limit.

        Raises:
            UsageError: The configuration is not among the points, eta is outside 0..1 or the limit below 0.
        """
        with self._lock:
            self._moved(self._frontier.take(self._frontier.wanted(chosen, eta, max_slowdown)))
            self._say_choice()
            return tradeoff.configuration(self._frontier.must().points, self.choice.row)

    def step(self, by: int = 1) -> Configuration:
        """Step along the frontier within the slowdown limit: above 0 to less energy, below 0 to less time."""
        with self._lock:
            return self.choose(self._frontier.neighbour(by))

    def select(self, *, job: str | None = None, gpu: str | None = None, batch_size: int | str | None = None,
               predicted: bool | None = None) -> None:
        """Show another job, GPU or batch size, with or without predictions; None keeps the selection.

        Args:
            job: Name of the job.
            gpu: Model, or "all".
            batch_size: Number, or "all".
            predicted: Whether predictions are shown.

        Raises:
            UsageError: The value does not exist.
        """
        with self._lock:
            asked = {"job": job, "gpu": gpu, "batch_size": batch_size, "predicted": predicted}
            try:
                self._moved(self._frontier.select(asked))
            finally:
                self._say_whole()  # a refused value is not shown as selected

    def update(self, points: Any) -> None:
        """Show other points; a choice that is missing or dominated now moves to the nearest point."""
        with self._lock:
            asked = getattr(self.source, "asked_unit", None)
            self.source = source(points, name=self.source.name, unit=asked)
            self._observed = None
            self.refresh()
            self._say_whole()

    def refresh(self) -> None:
        """Read new points from the source."""
        with self._lock:
            observed = self.source.read(), running_batch_size()
            if self._frontier.version and observed == self._observed:
                return
            collected = collected_points(self.source, first=self.analysis is None)
            self._observed = observed
            self._moved(self._frontier.collect(collected))

    def apply(self) -> None:
        """Set the GPU to the choice until `undo` or the kernel's end. Raises as `gpu_control(...).apply`."""
        self._do(lambda applier: applier.apply(self.chosen))

    def undo(self) -> None:
        """Restore the setting before the last change. Raises as `workbench.gpu_control(...).undo`."""
        self._do(Applier.undo)

    def _do(self, act: Callable[[Applier], None]) -> None:
        with self._lock:
            try:
                act(self._prepared())
            finally:
                self._say_applied()

    def export(self, path: str | Path) -> Path:
        """Write the picture (.svg) or the points (.csv, .parquet). The browser's button makes PNG.

        Raises:
            UsageError: Another ending, or nothing to write.
            StoreError: The file cannot be written.
        """
        target = Path(path).expanduser()
        data = self._exported(target.suffix.removeprefix("."))
        try:
            target.write_bytes(data)
        except OSError as error:
            raise StoreError(f"{target} could not be written ({error.strerror or error})") from error
        return target

    def _moved(self, chosen: Configuration | None) -> None:
        """Schedule a new picture, and call the callbacks with a new choice."""
        self._picture_later()
        if chosen is None:
            return
        for callback in tuple(self._callbacks):
            with self._report_errors():
                callback(chosen)

    # showing

    def title(self) -> str:
        return titled(self._frontier.filters.title(self.source.name), self.source.simulated)

    def sentences(self) -> list[str]:
        """The choice with its cost and saving, and notes on the points."""
        if self.analysis is None:
            return [self._frontier.notes or NOTHING]
        first = model.headline(self.analysis, self.choice.row)
        more = model.details(self.analysis, self.choice, self.work, self.tariff)
        return [first, *more, *filter(None, (self._frontier.notes, self._frontier.note))]

    def summary(self) -> str:
        return "\n".join(
            [self.title(), *self.sentences(), *([self.python] if self.analysis is not None else [])]
        )

    def svg(self) -> str:
        picture = Picture(self.title())
        picture.sentences(self.sentences())
        if self.analysis is None:
            picture.y += 12
        else:
            self._plane().draw(picture, self.choice)
        return picture.svg()

    def _plane(self) -> Plane:
        return Plane(
            self._frontier.must(), relative=self.relative, whole=self.whole, each=model.a(self.work.unit)
        )

    def html(self) -> str:
        return frontier_page(self.svg(), self.analysis, self.choice.row, self.python, self.summary())

    # for the views

    def start(self) -> None:
        if self.source.live or self._applier is not None:
            super().start()

    def snapshot(self) -> Message:
        with contextlib.suppress(WorkbenchError):  # there may be no GPU
            self._prepared()
        content, buffers = super().snapshot()
        with self._report_errors():
            content["applied"] = self._active = self._applied()
        return content, buffers

    def changes(self) -> Message | None:
        self._say_applied()
        return super().changes()

    def _say_applied(self) -> None:
        """Send the active setting, the effect of the last change and the running job's place, if new."""
        with self._report_errors():
            before, self._active = self._active, self._applied()
            if self._active is not None and self._active != before:
                self._say({"kind": "applied", **self._active})

    def _prepared(self) -> Applier:
        """The object that applies the choice. Raises NoDriver without a GPU."""
        self._applier = self._applier or Applier()
        self._applier.choose(self._frontier.offered)
        return self._applier

    def _applied(self) -> Content | None:
        """Active setting, effect of the last change and the running job's place; None without a GPU."""
        if self._applier is None:
            return None
        applier, analysis = self._prepared(), self.analysis
        applier.refresh()
        job = None if analysis is None else self._job(analysis)
        state = applier.state()
        if analysis is not None and applier.chosen is None:
            state["done"] = state["done"] or CHOOSE
        return {"gpus": gpu_choices(), **state, "job": job}

    def _job(self, analysis: FrontierAnalysis) -> Content | None:
        """The running job's place among the points, in words and as layers."""
        sizes = analysis.points["batch_size"].unique().to_list()
        size = running_batch_size() or (sizes[0] if len(sizes) == 1 else None)
        found = live_point(self._prepared().control.device, self.work, size)
        if found is None:
            return None
        costs = f"{format_energy(found['energy'], None)} and {format_duration(found['time'])}"
        text = f"this job now: {found['power']:.0f} W, {costs} {model.a(self.work.unit)}"
        return {"text": text, "layers": self._plane().job(found)}

    def news(self, *, whole: bool = False) -> Message | None:
        """The whole drawing; a new choice alone is sent when it is made."""
        shown = self._frontier
        if self._sent_version == shown.version and not whole:
            return None
        self._sent_version = shown.version
        about: Content = {
            "kind": "points", "title": self.title(), "simulated": self.source.simulated,
            "said": shown.notes or NOTHING, "filters": shown.filters.values, "options": shown.filters.options,
            "relative": self.relative, "whole": self.whole,
        }
        if self.analysis is None:
            return {**about, "view": None, "choice": None}, []
        return {**about, "view": self._view(self.analysis), "choice": self._choice()}, [
            self._plane().places.astype(np.float32).tobytes()
        ]

    def _view(self, analysis: FrontierAnalysis) -> Content:
        """The points, and for each step along the frontier the texts shown before the kernel answers."""
        front = analysis.front.tolist()
        steps = [self._facts(analysis, replace(self.choice, row=row, rule=MANUAL)) for row in front]
        return {
            "figure": self._plane().described(), "front": front, "steps": steps, "knee": front[analysis.knee],
            "compared": analysis.reference is not None, "slowest": 100 * float(analysis.slowdowns[-1]),
            "table": model.table(analysis, self.work),
        }

    def _facts(self, analysis: FrontierAnalysis, choice: FrontierChoice) -> Content:
        return {
            "headline": model.headline(analysis, choice.row), "name": model.name(analysis, choice.row),
            "details": model.details(analysis, choice, self.work, self.tariff),
        }

    def _choice(self) -> Content:
        """The choice, as views show it."""
        facts = self._facts(self._frontier.must(), self.choice)
        moved = self._plane().described(self.choice)[0][0]["layers"]
        return {"kind": "choice", **self._frontier.state(), **facts, "python": self.python, "moved": moved}

    def _say_whole(self) -> None:
        self._say(*(self.news(whole=True) or ({}, [])))

    def _say_choice(self, **more: Any) -> None:
        self._say({**self._choice(), **more})

    def on_message(self, kind: str, content: Content) -> None:
        with self._lock:
            if kind == "choose":
                try:
                    self._moved(self._frontier.heard(content))
                finally:
                    self._say_choice(asked=content.get("asked"))
            elif kind == "apply":
                self._moved(self._frontier.heard(content))
                self.apply()
            elif kind == "undo":
                self.undo()
            elif kind == "gpu":
                self._do(lambda applier: applier.take_gpu(field(content, "uuid", "str")))
            elif kind == "select":
                self.select(**{name: content.get(name) for name in (*NAMES, "predicted")})
            elif kind == "axes":
                self.relative, self.whole = (field(content, each, "bool") for each in ("relative", "whole"))
                self._picture_later()
                self._say_whole()
            elif kind == "export":
                what = field(content, "what", "str")
                about = {"what": what, "name": f"frontier.{what}", "view": content.get("view")}
                self._say({"kind": "file", **about}, [self._exported("svg" if what == "png" else what)])

    def _exported(self, what: str) -> bytes:
        if what == "svg":
            return self.svg().encode()
        return model.table_file(self._frontier.must(), self.choice.row, what)


def live_point(device: Device, work: Work, batch_size: int | None = None) -> dict[str, float] | None:
    """Time (s), energy (J) and power (W) of a unit of work of the running job, a mean of its last iterations.

    None if no running job calls `workbench.step()`, or if the amount of work is unknown: samples need the
    batch size.
    """
    mine = session.present()
    recorder = mine.recorder if mine is not None and mine.open_devices else None
    per_unit = {"iteration": 1, "sample": batch_size}.get(work.unit)
    if mine is None or recorder is None or per_unit is None or device.uuid not in mine.open_devices:
        return None
    steps = marks.latest_steps(STEPS + 1)
    if len(steps) < 3:
        return None
    period_s = (steps[-1] - steps[0]) / (len(steps) - 1)
    if not period_s > 0.0 or recorder.clock() - steps[-1] > max(FRESH * period_s, 1.0):
        return None
    watts = recorder.rows(device.uuid, steps[0], steps[-1])["power_w"]
    power_w = float(np.nanmean(watts)) if np.isfinite(watts).any() else float("nan")
    if not np.isfinite(power_w):
        return None
    return {"time": period_s / per_unit, "energy": power_w * period_s / per_unit, "power": power_w}


def magics_tariff() -> Tariff:
    """The tariff of the magics (`%config EnergyMagics.price_per_kwh`)."""
    shell = getattr(kernel(), "shell", None)
    magics = None if shell is None else shell.magics_manager.registry.get("EnergyMagics")
    return getattr(magics, "tariff", NO_TARIFF)


def frontier(
    points: Any, *, default: Configuration | None = None, unit: str | None = None,
    per_epoch: float | None = None, epochs: float | None = None, tariff: Tariff | None = None,
    eta: float = 0.5, max_slowdown: float | None = None, name: str = "", live: bool | None = None,
) -> FrontierPanel:
    """Show energy against time, and choose a configuration.

    Args:
        points: A frame, the frame of `%energy_log`, measurements, observations, a `Sweep` (even while it
            runs), a recurring job, its study or history, or a CSV or Parquet file. A frame has time_s,
            energy_j and knobs (power_limit_w, sm_clock_mhz, mem_clock_mhz, batch_size). It may also have
            time_se_s, energy_se_j, gpu, job, measured (false: predicted) and measurement.
        default: Reference configuration of the savings; None takes the driver's default, or the highest
            measured setting.
        unit: Unit of work of a point's time and energy: "sample", "million tokens", "iteration", "epoch",
            "job" or "run"; None takes the unit that all measurements counted (`workbench.work`), else a run.
        per_epoch, epochs: Units per epoch and epochs per job, for the savings per epoch and per job.
        tariff: Price and CO2 per kWh; None takes the tariff of the magics.
        eta, max_slowdown: The first choice: least cost at eta or, with a slowdown limit, least energy within
            it (0.05 is 5 %).
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: Invalid points or an invalid argument; the message names it and the reason.
    """
    given = source(points, name=name, unit=unit)
    given_work = (unit, per_epoch, epochs) != (None, None, None)
    work = Work(unit or given.unit, per_epoch, epochs) if given_work else None
    shown = ShownFrontier(eta, max_slowdown, default)
    return FrontierPanel(given, shown, work=work, tariff=tariff, live=live)
