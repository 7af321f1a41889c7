"""The content of a frontier panel: the points that pass its filters, their frontier, and the choice on it."""

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
from ..._core.live import field
from . import model
from .model import ETA, MANUAL, SLOWDOWN, FrontierChoice

NOTHING = "No measurements yet: run a cell under %%energy or a sweep; each measurement becomes a point"
ALL = "all"
NAMES = ("job", "gpu", "batch_size")  # of the selection


class Filters:
    """Selected values and the available ones. Jobs are different work, so "all" jobs cannot be selected."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"job": None, "gpu": None, "batch_size": ALL, "predicted": True}
        self.options: dict[str, list[Any]] = {name: [] for name in NAMES}
        self.followed = True  # the batch size is the running job's until a person selects one

    def learn(self, points: pl.DataFrame, separate: frozenset[str | None]) -> None:
        """Update the available values. The most common value replaces a selected one that is gone, and "all"
        batch sizes of a job in `separate`. The batch size follows the running job until a person selects one.
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
        """Select other values; None keeps a value.

        Raises:
            UsageError: The value does not exist.
        """
        for name in NAMES:
            value = given.get(name)
            if value is not None and value not in self.options[name] and not (value == ALL and name != "job"):
                known = ", ".join(map(str, self.options[name])) or "none"
                raise UsageError(f"{name} {value!r} not found; available: {known}")
        self.values = self.values | {name: value for name, value in given.items() if value is not None}
        self.followed = self.followed and given.get("batch_size") is None

    def title(self, name: str) -> str:
        """Name of the source, and the selected job and GPU."""
        named = (name, self.values["job"], self.values["gpu"])
        text = ", ".join(str(each) for each in named if each not in (None, "", ALL))
        return f"Energy against time{': ' + text if text else ''}"

    def apply(self, points: pl.DataFrame) -> pl.DataFrame:
        """The selected points.

        Raises:
            UsageError: No point matches.
        """
        shown = points.filter(pl.col("measured") | self.values["predicted"])
        for name in NAMES:
            value = self.values[name]
            if value != ALL and (value is not None or self.options[name]):
                shown = shown.filter(pl.col(name).eq_missing(value))
        if shown.is_empty():
            raise UsageError("no point matches the selection; select another job, GPU or batch size")
        return shown


def _commonest(points: pl.DataFrame, name: str) -> Any:
    return points.group_by(name).len().sort(["len", name], descending=[True, False], nulls_last=True)[name][0]


def running_batch_size() -> int | None:
    """Batch size of the running job: samples per iteration where counted, else the one applied last."""
    return marks.batch_size() or chosen.batch_size


class ShownFrontier:
    """The frontier of the shown points, and the choice on it.

    Args:
        eta, max_slowdown: The first choice: least cost or, with a slowdown limit, least energy within it.
        default: Reference configuration of the savings; None takes the one with the default limit.
    """

    def __init__(self, eta: float, max_slowdown: float | None, default: Configuration | None) -> None:
        self.choice = FrontierChoice(0, ETA if max_slowdown is None else SLOWDOWN, eta, max_slowdown)
        self.default = default
        self.filters = Filters()
        self.asked = False  # a person or a program has chosen
        self.version = 0
        self.note = ""  # why new points moved the choice
        self.notes = ""  # of the points
        self._collected = Collected(pl.DataFrame(), ())
        self.frontier: FrontierAnalysis | None = None  # None before the first point

    @property
    def chosen(self) -> Configuration | None:
        """The chosen configuration; None before the first point."""
        analysis = self.frontier
        return None if analysis is None else tradeoff.configuration(analysis.points, self.choice.row)

    @property
    def offered(self) -> Configuration | None:
        """The configuration that Apply proposes: the chosen one. The initial choice counts only if it was
        measured at the batch size of the running job.
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
            UsageError: No point yet.
        """
        if self.frontier is None:
            raise UsageError(self.notes or NOTHING)
        return self.frontier

    def collect(self, collected: Collected) -> Configuration | None:
        """Show other points; returns the configuration if the choice is new."""
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
        """Filter the points, find their frontier, and update the choice. The note reports a choice that moves
        with new points (`moved`). Returns the configuration if the choice is new.
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
            # Without it among the selected points, their own default replaces it, and is named.
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
            self.note = f"new points moved the choice from {describe(old)} to {describe(new)}"
        return new

    # choosing

    def take(self, choice: FrontierChoice) -> Configuration | None:
        """Make a choice; returns the configuration if it is new."""
        before, self.asked = self.chosen, True
        self.choice, self.note = replace(choice, row=model.ruled(self.must(), choice)), ""
        return self.chosen if self.chosen != before else None

    def wanted(
        self, chosen: Configuration | int | None, eta: float | None, max_slowdown: float | None
    ) -> FrontierChoice:
        """The choice of a configuration or row, of the least cost at eta, or of the least energy in a limit.

        Raises:
            UsageError: The configuration is not among the points, eta is outside 0..1 or the limit below 0.
        """
        analysis = self.must()
        if isinstance(chosen, Configuration):
            row = tradeoff.find(analysis.points, chosen)
            if row is None:
                raise UsageError(
                    f"{describe(chosen)} is not among the {len(analysis.points)} shown points"
                )
            chosen = row
        if chosen is not None:
            return replace(self.choice, row=row_of(analysis, chosen), rule=MANUAL)
        if eta is not None:
            return replace(self.choice, rule=ETA, eta=eta, max_slowdown=max_slowdown)
        return replace(self.choice, rule=SLOWDOWN, max_slowdown=max_slowdown)

    def neighbour(self, by: int) -> int:
        """The row some steps along the frontier towards less energy, within the slowdown limit."""
        analysis = self.must()
        last = analysis.allowed(self.choice.max_slowdown) - 1
        place = model.begins(analysis, self.choice.row) + by
        return int(analysis.front[max(0, min(last, place))])

    def heard(self, content: dict[str, Any]) -> Configuration | None:
        """Make a browser's choice among the newest points; returns the configuration if it is another."""
        if content.get("version") != self.version:
            return None
        bound = field(content, "slowdown", "float", "None")
        row = row_of(self.must(), field(content, "row", "int"))
        max_slowdown = None if bound is None else bound / 100
        rule, eta = field(content, "rule", "str"), field(content, "eta", "float")
        return self.take(FrontierChoice(row, rule, eta, max_slowdown))

    def state(self) -> dict[str, Any]:
        """The choice and the state of the controls, as views receive it."""
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
        UsageError: The point does not exist.
    """
    if not 0 <= row < len(analysis.points):
        raise UsageError(f"point {row} not found; there are {len(analysis.points)}, from 0")
    return row
