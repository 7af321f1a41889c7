"""Checks that confidences are probabilities, and that stated uncertainties are right: pure functions over
scored cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.period_scores import Row

BINS = 10


def claims(rows: Iterable[Row], name: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and whether right of every level that was offered (of those called `name`), sure or not."""
    pairs = [
        (confidence, right)
        for row in rows
        for level, confidence, right in row.claims
        if name in (None, level)
    ]
    return np.array([pair[0] for pair in pairs], float), np.array([pair[1] for pair in pairs], bool)


def reliability(
    confidence: np.ndarray, right: np.ndarray, *, equal_count: bool = False
) -> list[dict[str, Any]]:
    """Bins of confidence with the share that was right: ten of equal width, or of equal count. Empty bins are
    left out.

    >>> reliability(np.array([0.11, 0.13, 0.95]), np.array([False, False, True]))[0]["right"]
    0.0
    """
    if not len(confidence):
        return []
    if equal_count:
        order = np.argsort(confidence, kind="stable")
        groups = np.array_split(order, min(BINS, len(order)))
    else:
        number = np.minimum((confidence * BINS).astype(int), BINS - 1)
        groups = [np.flatnonzero(number == bin_number) for bin_number in range(BINS)]
    return [
        {"low": float(confidence[group].min()), "high": float(confidence[group].max()), "cases": len(group),
         "confidence": float(confidence[group].mean()), "right": float(right[group].mean())}
        for group in groups if len(group)
    ]


def calibration_error(bins: Sequence[dict[str, Any]]) -> float | None:
    """Expected calibration error: mean distance between confidence and share right, weighted by cases (Naeini
    et al. 2015).

    >>> calibration_error([{"cases": 3, "confidence": 0.9, "right": 0.8}, {"cases": 1, "confidence": 0.5,
        "right": 0.5}])
    0.075
    """
    total = sum(each["cases"] for each in bins)
    return (
        round(sum(each["cases"] * abs(each["confidence"] - each["right"]) for each in bins) / total, 12)
        if total
        else None
    )


def coverage(rows: Iterable[Row], *, sure_only: bool = False) -> dict[str, Any]:
    """How often `seconds` +- `uncertainty_s` holds the true mean period, where the iteration was
    identified (within 5 %).
    """
    known = [
        row
        for row in rows
        if row.iteration_exact
        and row.truth_s
        and row.iteration_s
        and row.uncertainty_s is not None
        and (row.sure or not sure_only)
    ]
    if not known:
        return {"cases": 0, "covered": None, "median_error": None, "median_stated": None}
    error = np.array([abs(row.iteration_s - row.truth_s) for row in known])  # type: ignore[operator]
    stated = np.array([row.uncertainty_s for row in known], float)
    truth = np.array([row.truth_s for row in known], float)
    return {
        "cases": len(known), "covered": float(np.mean(error <= stated)),
        "median_error": float(np.median(error / truth)), "median_stated": float(np.median(stated / truth)),
    }


def tell(rows: Sequence[Row]) -> dict[str, Any]:
    """Calibration of the iteration and of all levels, and coverage, in one place."""
    result: dict[str, Any] = {"cases": len(rows), "negatives": sum(not row.periodic for row in rows)}
    for key, name in (("iteration", "iteration"), ("all_levels", None)):
        confidence, right = claims(rows, name)
        bins, even = reliability(confidence, right), reliability(confidence, right, equal_count=True)
        result[key] = {"claims": len(confidence), "expected_calibration_error": calibration_error(bins),
                       "expected_calibration_error_equal_count": calibration_error(even), "bins": bins}
    result["coverage"] = coverage(rows)
    result["coverage_sure"] = coverage(rows, sure_only=True)
    families = sorted({row.family for row in rows if row.periodic})
    result["coverage_by_family"] = {
        family: coverage([row for row in rows if row.family == family]) for family in families
    }
    return result
