"""The energy-time frontier to look at and to step along: what every configuration costs, and what the chosen
one saves.

    panel = workbench.panels.frontier(points)      a frame, `%energy_log`, measurements, a sweep, a recurring
                                                   job, or a file of such
    panel.chosen                                   the configuration that is chosen
    panel.on_choice(print)                         is called with every new one

A slider and the arrow keys step along the frontier; Apply sets the GPU to the step, Undo restores it, and the
power around the change stands below. Under "more" are a bound on the slowdown, and eta between time and
energy. The browser has all points and moves at once; the kernel hears what was chosen, while a cell runs too.
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
from ..._core.live import LivePanel, Message, script
from ..._core.svg import Picture, titled
from ..apply.model import Applier, gpu_choices
from . import model
from .model import MANUAL, FrontierChoice
from .shown import NAMES, NOTHING, ShownFrontier, running_batch_size
from .sources import GivenPoints, PointSource, collected_points, source
from .svg import Plane, frontier_page

STEPS = 12  # iterations that the place of the running job is the mean of
CHOOSE = "choose a point: none was measured at the batch size of the running job"
FRESH = 3.0  # iterations without a mark, after which no job runs


class FrontierPanel(LivePanel):
    """A frontier, and a choice on it. `frontier` says what the arguments are."""

    _esm = script("frontier")

    def __init__(
        self, given: PointSource, shown: ShownFrontier, *, work: Work | None = None,
        tariff: Tariff | None = None, live: bool | None = None,
    ) -> None:
        self.source, self.relative, self.whole = given, False, False
        self._work, self._tariff = work, tariff
        self._observed: Hashable = None
        self._frontier = shown
        self._sent_version = -1  # what views know
        self._callbacks: list[Callable[[Configuration], object]] = []
        self._applier: Applier | None = None  # made for the first view; without a GPU there is none
        self._active: dict[str, Any] | None = None  # what was said last of what is active
        super().__init__(live=live)
        if isinstance(given, GivenPoints):
            self.refresh()  # what is wrong with what was given is the caller's error
        else:
            with self._report_errors():
                self.refresh()

    # for the caller

    @property
    def analysis(self) -> FrontierAnalysis | None:
        """The points that are shown, with their frontier; None before the first."""
        return self._frontier.frontier

    @property
    def choice(self) -> FrontierChoice:
        """The row that is chosen, and how."""
        return self._frontier.choice

    @property
    def chosen(self) -> Configuration | None:
        """The configuration that is chosen; None before the first point."""
        return self._frontier.chosen

    @property
    def offered(self) -> Configuration | None:
        """The configuration that Apply proposes; None where the points do not fit the running job."""
        return self._frontier.offered

    @property
    def python(self) -> str:
        """A line of Python that reproduces the choice."""
        if self.analysis is None or self.chosen is None:
            return ""
        return tradeoff.python(self.chosen, model.rule_text(self.analysis, self.choice))

    @property
    def work(self) -> Work:
        """What the points' time and energy are for."""
        job = self._frontier.filters.values["job"]
        return self._work or Work(self.source.units.get(job, self.source.unit))

    @property
    def tariff(self) -> Tariff:
        """What energy is worth; without one of its own, that of the magics."""
        return self._tariff or magics_tariff()

    def on_choice(self, callback: Callable[[Configuration], object]) -> Callable[[], None]:
        """Call `callback` with every newly chosen configuration, on any thread; returns what ends it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def choose(
        self, chosen: Configuration | int | None = None, *, eta: float | None = None,
        max_slowdown: float | None = None,
    ) -> Configuration:
        """Choose a configuration, or a row of `look.points`; or what is best for eta, or of least energy,
        within a slowdown.

        Raises:
            UsageError: it is none of the points; an eta outside 0..1; a slowdown below 0.
        """
        with self._lock:
            self._moved(self._frontier.take(self._frontier.wanted(chosen, eta, max_slowdown)))
            self._say_choice()
            return tradeoff.configuration(self._frontier.must().points, self.choice.row)

    def step(self, by: int = 1) -> Configuration:
        """So many steps along the frontier, within the bound: above 0 to less energy, below to less time."""
        with self._lock:
            return self.choose(self._frontier.neighbour(by))

    def select(self, *, job: str | None = None, gpu: str | None = None, batch_size: int | str | None = None,
               predicted: bool | None = None) -> None:
        """Show another job, GPU ("all": of all) or batch size ("all"), with or without predictions; None
        leaves it as it is.

        Args:
            job: Name of the job.
            gpu: Model, or "all".
            batch_size: Number, or "all".
            predicted: Whether predictions are shown.

        Raises:
            UsageError: there is none such.
        """
        with self._lock:
            asked = {"job": job, "gpu": gpu, "batch_size": batch_size, "predicted": predicted}
            try:
                self._moved(self._frontier.select(asked))
            finally:
                self._say_whole()  # what was refused is not shown as selected

    def update(self, points: Any) -> None:
        """Show other points; a choice that is not among them, or beaten now, goes to the nearest."""
        with self._lock:
            asked = getattr(self.source, "asked_unit", None)
            self.source = source(points, name=self.source.name, unit=asked)
            self._observed = None
            self.refresh()
            self._say_whole()

    def refresh(self) -> None:
        """Take in what is new."""
        with self._lock:
            observed = self.source.read(), running_batch_size()
            if self._frontier.version and observed == self._observed:
                return
            collected = collected_points(self.source, first=self.analysis is None)
            self._observed = observed
            self._moved(self._frontier.collect(collected))

    def apply(self) -> None:
        """Set the GPU to the choice until `undo` or the kernel's end. Raises as `control(...).apply`."""
        self._do(lambda applier: applier.apply(self.chosen))

    def undo(self) -> None:
        """Restore what was before the last change. Raises as `workbench.control(...).undo`."""
        self._do(Applier.undo)

    def _do(self, act: Callable[[Applier], None]) -> None:
        with self._lock:
            try:
                act(self._prepared())
            finally:
                self._say_applied()

    def export(self, path: str | Path) -> Path:
        """Write the picture (.svg) or the points (.csv, .parquet); PNG is made by the browser's button.

        Raises:
            UsageError, StoreError: another ending, or nothing to write; it cannot be written there.
        """
        target = Path(path).expanduser()
        data = self._exported(target.suffix.removeprefix("."))
        try:
            target.write_bytes(data)
        except OSError as error:
            raise StoreError(f"{target} could not be written ({error.strerror or error})") from error
        return target

    def _moved(self, chosen: Configuration | None) -> None:
        """Have the picture drawn again, and tell those who asked for it of another choice."""
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
        """The choice, what it costs and saves, and what else there is to say."""
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
        """Say what is active, what the last change did and where the running job is, if that is new."""
        with self._report_errors():
            before, self._active = self._active, self._applied()
            if self._active is not None and self._active != before:
                self._say({"kind": "applied", **self._active})

    def _prepared(self) -> Applier:
        """What applies the choice. Raises NoDriver: there is no GPU."""
        self._applier = self._applier or Applier()
        self._applier.choose(self._frontier.offered)
        return self._applier

    def _applied(self) -> dict[str, Any] | None:
        """What is active, what the last change did, and the running job's place; None without a GPU."""
        if self._applier is None:
            return None
        applier, analysis = self._prepared(), self.analysis
        applier.refresh()
        job = None if analysis is None else self._job(analysis)
        state = applier.state()
        if analysis is not None and applier.chosen is None:
            state["done"] = state["done"] or CHOOSE
        return {"gpus": gpu_choices(), **state, "job": job}

    def _job(self, analysis: FrontierAnalysis) -> dict[str, Any] | None:
        """Where the running job is among the points, in words and as layers."""
        sizes = analysis.points["batch_size"].unique().to_list()
        size = running_batch_size() or (sizes[0] if len(sizes) == 1 else None)
        found = live_point(self._prepared().control.device, self.work, size)
        if found is None:
            return None
        costs = f"{format_energy(found['energy'], None)} and {format_duration(found['time'])}"
        text = f"this job now: {found['power']:.0f} W, {costs} {model.a(self.work.unit)}"
        return {"text": text, "layers": self._plane().job(found)}

    def news(self, *, whole: bool = False) -> Message | None:
        """Everything that there is to draw; a choice alone is said when it is made."""
        shown = self._frontier
        if self._sent_version == shown.version and not whole:
            return None
        self._sent_version = shown.version
        about: dict[str, Any] = {
            "kind": "points", "title": self.title(), "simulated": self.source.simulated,
            "said": shown.notes or NOTHING, "filters": shown.filters.values, "options": shown.filters.options,
            "relative": self.relative, "whole": self.whole,
        }
        if self.analysis is None:
            return {**about, "view": None, "choice": None}, []
        return {**about, "view": self._view(self.analysis), "choice": self._choice()}, [
            self._plane().places.astype(np.float32).tobytes()
        ]

    def _view(self, analysis: FrontierAnalysis) -> dict[str, Any]:
        """The points; and of each step along the frontier what is shown before the kernel answers."""
        front = analysis.front.tolist()
        steps = [self._facts(analysis, replace(self.choice, row=row, rule=MANUAL)) for row in front]
        return {
            "figure": self._plane().described(), "front": front, "steps": steps, "knee": front[analysis.knee],
            "compared": analysis.reference is not None, "slowest": 100 * float(analysis.slowdowns[-1]),
            "table": model.table(analysis, self.work),
        }

    def _facts(self, analysis: FrontierAnalysis, choice: FrontierChoice) -> dict[str, Any]:
        return {
            "headline": model.headline(analysis, choice.row), "name": model.name(analysis, choice.row),
            "details": model.details(analysis, choice, self.work, self.tariff),
        }

    def _choice(self) -> dict[str, Any]:
        """What is chosen, as views show it."""
        facts = self._facts(self._frontier.must(), self.choice)
        moved = self._plane().described(self.choice)[0][0]["layers"]
        return {"kind": "choice", **self._frontier.state(), **facts, "python": self.python, "moved": moved}

    def _say_whole(self) -> None:
        self._say(*(self.news(whole=True) or ({}, [])))

    def _say_choice(self, **more: Any) -> None:
        self._say({**self._choice(), **more})

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
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
                self._do(lambda applier: applier.take_gpu(str(content["uuid"])))
            elif kind == "select":
                self.select(**{name: content.get(name) for name in (*NAMES, "predicted")})
            elif kind == "axes":
                self.relative, self.whole = bool(content["relative"]), bool(content["whole"])
                self._picture_later()
                self._say_whole()
            elif kind == "export":
                what = str(content["what"])
                about = {"what": what, "name": f"frontier.{what}", "view": content.get("view")}
                self._say({"kind": "file", **about}, [self._exported("svg" if what == "png" else what)])

    def _exported(self, what: str) -> bytes:
        if what == "svg":
            return self.svg().encode()
        return model.table_file(self._frontier.must(), self.choice.row, what)


def live_point(device: Device, work: Work, batch_size: int | None = None) -> dict[str, Any] | None:
    """Time (s), energy (J) and power (W) of a unit of work of the running job, a mean of its last iterations.

    None where nothing runs that marks its iterations (`workbench.step()`), or where the unit cannot be told:
    a sample's needs the batch size.
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
    """That of the magics (`%config EnergyMagics.price_per_kwh`)."""
    shell = getattr(kernel(), "shell", None)
    magics = None if shell is None else shell.magics_manager.registry.get("EnergyMagics")
    return getattr(magics, "tariff", NO_TARIFF)


def frontier(
    points: Any, *, default: Configuration | None = None, unit: str | None = None,
    per_epoch: float | None = None, epochs: float | None = None, tariff: Tariff | None = None,
    eta: float = 0.5, max_slowdown: float | None = None, name: str = "", live: bool | None = None,
) -> FrontierPanel:
    """Look at energy against time, and choose a configuration.

    Args:
        points: A frame with time_s, energy_j and knobs (power_limit_w, sm_clock_mhz, mem_clock_mhz,
            batch_size), and where there are any time_sd_s, energy_sd_j, gpu, job, measured (false:
            predicted), measurement; the frame of `%energy_log`; measurements or observations; a `Sweep`, also
            one under way; a recurring job, its study or history; a CSV or Parquet file.
        default: The configuration that savings are against; the driver's own, or the highest that was
            measured, where None.
        unit: What a point's time and energy are for: "sample", "million tokens", "iteration", "epoch", "job"
            or "run"; where None, what all measurements counted (`workbench.work`), else a run.
        per_epoch, epochs: Units in an epoch and epochs in a job, for what is saved per epoch and job.
        tariff: Price and CO2 of a kWh; that of the magics where None.
        eta, max_slowdown: What is chosen at first: least cost at eta, or, where a bound is given, least
            energy within it (0.05 is 5 %).
        live: A widget or a picture; None takes a widget where the front end has them.

    Raises:
        UsageError: points that are none, or an argument that makes no sense; says which and why.
    """
    given = source(points, name=name, unit=unit)
    given_work = (unit, per_epoch, epochs) != (None, None, None)
    work = Work(unit or given.unit, per_epoch, epochs) if given_work else None
    shown = ShownFrontier(eta, max_slowdown, default)
    return FrontierPanel(given, shown, work=work, tariff=tariff, live=live)
