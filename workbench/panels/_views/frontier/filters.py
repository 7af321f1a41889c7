"""Which of the points are shown: one job, one GPU or all, one batch size or all, with predictions or
without.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from ....errors import UsageError

ALL = "all"
NAMES = ("job", "gpu", "batch_size")


class Filters:
    """What is selected, and what there is to select. Jobs are different work, so that there is no choosing
    all of them.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"job": None, "gpu": None, "batch_size": ALL, "predicted": True}
        self.options: dict[str, list[Any]] = {name: [] for name in NAMES}

    def learn(self, points: pl.DataFrame) -> None:
        """What there is now; what was selected and is gone gives way to the commonest."""
        self.options = {
            name: sorted(v for v in points[name].unique().to_list() if v is not None) for name in NAMES
        }
        for name in NAMES:
            if self.values[name] not in (*self.options[name], ALL):
                self.values[name] = ALL if name == "batch_size" else _commonest(points, name)

    def select(self, given: dict[str, Any]) -> None:
        """Select other values; None leaves one as it is.

        Raises:
            UsageError: there is none such.
        """
        for name in NAMES:
            value = given.get(name)
            if value is not None and value not in self.options[name] and not (value == ALL and name != "job"):
                raise UsageError(
                    f"there is no {name} {value!r} here; there are "
                    f"{', '.join(map(str, self.options[name])) or 'none'}"
                )
        self.values = self.values | {name: value for name, value in given.items() if value is not None}

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
