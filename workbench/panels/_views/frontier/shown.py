"""What a frontier panel shows: the points that pass its filters, their frontier, and the choice on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from ....device import chosen
from ....errors import UsageError
from ....measurement import marks
from ....records import Configuration
from ....search import tradeoff
from ....search.tradeoff import Collected, FrontierAnalysis, describe
from . import model
from .model import ETA, MANUAL, SLOWDOWN, FrontierChoice

NOTHING = "Nothing is measured yet: run a cell under %%energy or a sweep; each measurement becomes a point"
ALL = "all"
NAMES = ("job", "gpu", "batch_size")  # of what is selected


class Filters:
    """What is selected, and what there is; jobs are different work, so that all of them are no choice."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"job": None, "gpu": None, "batch_size": ALL, "predicted": True}
        self.options: dict[str, list[Any]] = {name: [] for name in NAMES}
        self.followed = True  # the batch size is the running job's, as nobody has selected one

    def learn(self, points: pl.DataFrame, separate: frozenset[str | None]) -> None:
        """What there is now; what was selected and is gone gives way to the commonest, and so do all batch
        sizes of a job that is `separate`. A batch size that nobody has selected is that of the running job.
        """
        self.options = {
            name: sorted(v for v in points[name].unique().to_list() if v is not None) for name in NAMES
        }
        for name in NAMES:
            if self.values[name] not in (*self.options[name], ALL):
                self.values[name] = ALL if name == "batch_size" else _commonest(points, name)
        if self.followed and running_batch_size() in self.options["batch_size"]:
            self.values["batch_size"] = running_batch_size()
        if self.values["job"] in separate and self.values["batch_size"] == ALL:
            own = points.filter(pl.col("job").eq_missing(self.values["job"]))
            if own["batch_size"].n_unique() > 1:
                self.values["batch_size"] = _commonest(own, "batch_size")

    def select(self, given: dict[str, Any]) -> None:
        """Select other values; None leaves one as it is.

        Raises:
            UsageError: there is none such.
        """
        for name in NAMES:
            value = given.get(name)
            if value is not None and value not in self.options[name] and not (value == ALL and name != "job"):
                known = ", ".join(map(str, self.options[name])) or "none"
                raise UsageError(f"there is no {name} {value!r} here; there are {known}")
        self.values = self.values | {name: value for name, value in given.items() if value is not None}
        self.followed = self.followed and given.get("batch_size") is None

    def title(self, name: str) -> str:
        """What the points are of, and what of it is selected."""
        named = (name, self.values["job"], self.values["gpu"])
        text = ", ".join(str(each) for each in named if each not in (None, "", ALL))
        return f"Energy against time{': ' + text if text else ''}"

    def apply(self, points: pl.DataFrame) -> pl.DataFrame:
        """The points that are selected.

        Raises:
            UsageError: none is left.
        """
        shown = points.filter(pl.col("measured") | self.values["predicted"])
        for name in NAMES:
            value = self.values[name]
            if value != ALL and (value is not None or self.options[name]):
                shown = shown.filter(pl.col(name).eq_missing(value))
        if shown.is_empty():
            raise UsageError("no point is left by what is selected; select another job, GPU or batch size")
        return shown


def _commonest(points: pl.DataFrame, name: str) -> Any:
    return points.group_by(name).len().sort(["len", name], descending=[True, False], nulls_last=True)[name][0]


def running_batch_size() -> int | None:
    """Batch size of the running job: samples per iteration where counted, else the one applied last."""
    return marks.batch_size() or chosen.batch_size


class ShownFrontier:
    """The frontier of the points that are shown, and the choice on it.

    Args:
        eta, max_slowdown: Of the first choice: least cost, or, where a bound is given, least energy within.
        default: The configuration that savings are against; None takes the one with the default limit.
    """

    def __init__(self, eta: float, max_slowdown: float | None, default: Configuration | None) -> None:
        self.choice = FrontierChoice(0, ETA if max_slowdown is None else SLOWDOWN, eta, max_slowdown)
        self.default = default
        self.filters = Filters()
        self.asked = False  # a person or a program has chosen
        self.version = 0
        self.note = ""  # why the choice has moved with the points
        self.notes = ""  # of the points
        self._collected = Collected(pl.DataFrame(), ())
        self.frontier: FrontierAnalysis | None = None  # None before the first point

    @property
    def chosen(self) -> Configuration | None:
        """The configuration that is chosen; None before the first point."""
        analysis = self.frontier
        return None if analysis is None else tradeoff.configuration(analysis.points, self.choice.row)

    @property
    def offered(self) -> Configuration | None:
        """The configuration that Apply proposes: the chosen one; while nobody has chosen, only a point that
        was measured at the batch size of the running job.
        """
        if self.frontier is None or self.asked:
            return self.chosen
        at = self.frontier.rows[self.choice.row]
        sizes = self.filters.options["batch_size"]
        alone = sizes[0] if len(sizes) == 1 else None
        fits = at["batch_size"] in (None, running_batch_size() or alone)
        return self.chosen if at["measured"] and fits else None

    def must(self) -> FrontierAnalysis:
        """The newest frontier.

        Raises:
            UsageError: there is no point yet.
        """
        if self.frontier is None:
            raise UsageError(self.notes or NOTHING)
        return self.frontier

    def collect(self, collected: Collected) -> Configuration | None:
        """Show other points; returns the configuration that is newly chosen, if one is."""
        self._collected = collected
        return self.draw(moved=True)

    def select(self, asked: dict[str, Any]) -> Configuration | None:
        """Show the points that pass other filters, as `collect`. Raises as `Filters` does."""
        before = self.filters.values
        self.filters.select(asked)
        try:
            return self.draw(moved=False)
        except UsageError:
            self.filters.values = before
            raise

    def draw(self, *, moved: bool) -> Configuration | None:
        """Filter the points, find their frontier, and bring the choice along; a choice that moves with new
        points (`moved`) is told in the note. Returns the configuration that is newly chosen, if one is.
        """
        points = self._collected.points
        if points.is_empty():
            self.notes, self.version = ". ".join(self._collected.notes), self.version + 1
            self.frontier = None
            return None
        before, old = self.frontier, self.chosen
        self.filters.learn(points, self._collected.separate)
        shown, default = self.filters.apply(points), self.default
        if default is not None and tradeoff.find(shown, default) is None:
            # Where it is not selected, the default among what is takes its place, and is named.
            default = None if tradeoff.find(points, default) is not None else default
        analysis = tradeoff.analyse_frontier(shown, default=default)
        self.version += 1
        self.frontier = analysis
        self.notes = ". ".join([model.counts(analysis), *self._collected.notes])
        self.note = ""
        if before is not None and self.choice.rule == MANUAL:
            row, self.note = tradeoff.follow(before, self.choice.row, analysis)
            self.choice = replace(self.choice, row=row)
        self.choice = replace(self.choice, row=model.ruled(analysis, self.choice))
        new = tradeoff.configuration(analysis.points, self.choice.row)
        if old is None or new == old:
            return None
        if not self.note and moved:
            self.note = f"with the new points the choice has moved from {describe(old)} to {describe(new)}"
        return new

    # choosing

    def take(self, choice: FrontierChoice) -> Configuration | None:
        """Make a choice; returns the configuration if it is another one than before."""
        before, self.asked = self.chosen, True
        self.choice, self.note = replace(choice, row=model.ruled(self.must(), choice)), ""
        return self.chosen if self.chosen != before else None

    def wanted(
        self, chosen: Configuration | int | None, eta: float | None, max_slowdown: float | None
    ) -> FrontierChoice:
        """The choice of a configuration or row; of what is best for eta or of least energy within a bound.

        Raises:
            UsageError: it is none of the points; an eta outside 0..1; a slowdown below 0.
        """
        analysis = self.must()
        if isinstance(chosen, Configuration):
            row = tradeoff.find(analysis.points, chosen)
            if row is None:
                raise UsageError(
                    f"{describe(chosen)} is none of the {len(analysis.points)} points that are shown"
                )
            chosen = row
        if chosen is not None:
            return replace(self.choice, row=row_of(analysis, chosen), rule=MANUAL)
        if eta is not None:
            return replace(self.choice, rule=ETA, eta=eta, max_slowdown=max_slowdown)
        return replace(self.choice, rule=SLOWDOWN, max_slowdown=max_slowdown)

    def neighbour(self, by: int) -> int:
        """The row so many steps along the frontier towards less energy, within the bound."""
        analysis = self.must()
        last = analysis.allowed(self.choice.max_slowdown) - 1
        place = model.begins(analysis, self.choice.row) + by
        return int(analysis.front[max(0, min(last, place))])

    def heard(self, content: dict[str, Any]) -> Configuration | None:
        """Make a browser's choice among the newest points; returns the configuration if it is another."""
        if content.get("version") != self.version:
            return None
        bound = content.get("slowdown")
        row = row_of(self.must(), int(content["row"]))
        max_slowdown = None if bound is None else float(bound) / 100
        return self.take(FrontierChoice(row, str(content["rule"]), float(content["eta"]), max_slowdown))

    def state(self) -> dict[str, Any]:
        """The choice and what it means for the controls, as views are sent it."""
        choice, analysis = self.choice, self.must()
        allowed, front = analysis.allowed(choice.max_slowdown), analysis.front
        best = int(front[analysis.optimum(choice.eta, choice.max_slowdown)])
        return {
            "version": self.version, "row": choice.row, "rule": choice.rule, "eta": choice.eta,
            "slowdown": None if choice.max_slowdown is None else 100 * choice.max_slowdown, "note": self.note,
            "place": model.begins(analysis, choice.row), "allowed": allowed,
            "on": analysis.place(choice.row) is not None, "best": choice.row == best,
            "least": choice.row == int(front[allowed - 1]), "knee": choice.row == int(front[analysis.knee]),
        }


def row_of(analysis: FrontierAnalysis, row: int) -> int:
    """A row of the points, checked.

    Raises:
        UsageError: there is no such point.
    """
    if not 0 <= row < len(analysis.points):
        raise UsageError(f"there is no point {row}; there are {len(analysis.points)}, from 0")
    return row
