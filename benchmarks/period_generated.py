"""The detector on jobs of our own simulator: calibration, aperiodic jobs, nested periods, and how soon it is
sure.

Seeds: case n of a stream is drawn from `default_rng([SEED, stream, n])`. Training must use no generator that
starts with `SEED`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.period_cases import Case, from_generated
from benchmarks.period_scores import Answer, Detector, Row, answers, score, single, within

SEED = 20_261_121
GRAMMAR_SEED = 11_504_039  # drawn when the detector had been settled; training starts with neither
MIXTURE, NEGATIVES, NESTED = 0, 1, 2
FIRST_S, GROWTH = 1.0, 1.2  # lengths of the trace at which it is asked whether it is sure


def generated(stream: int, count: int, **choice: Any) -> Iterator[Case]:
    """Cases of a stream, one at a time: thousands of them would not fit in memory together."""
    from benchmarks.fixtures.traces import random_case

    for number in range(count):
        yield from_generated(
            random_case(np.random.default_rng([SEED, stream, number]), **choice), f"{stream}-{number}"
        )


def by_grammar(count: int, seed: int = GRAMMAR_SEED) -> Iterator[Case]:
    """Cases by a grammar, in physical seconds, one at a time."""
    from benchmarks.fixtures.job_grammar import random_job_case

    for number in range(count):
        yield from_generated(random_job_case(np.random.default_rng([seed, number])), f"grammar-{number}")


def scored(detect: Detector, cases: Iterator[Case]) -> list[Row]:
    """Rows of `period_scores` for cases that come one at a time."""
    return [score(case, answer) for case in cases for answer in answers(detect, [case])]


def nested(count: int, tries: int = 3000) -> list[Case]:
    """Jobs like recorded data-parallel trainings with checkpoints: polled at 0.1 s, steps of 0.2-0.7 s inside
    optimizer steps of 2-7 s inside checkpoint cycles of 13-50 s. Other jobs are rejected."""
    from benchmarks.fixtures.traces import random_case

    kept: list[Case] = []
    for number in range(tries):
        if len(kept) == count:
            break
        case = random_case(np.random.default_rng([SEED, NESTED, number]), family="nested")
        levels, iteration_s = case.truth.levels_s, case.truth.iteration_s or math.nan
        sizes = (
            (levels.get("micro-step"), 0.2, 0.7), (iteration_s, 2.0, 7.0), (levels.get("cycle"), 13.0, 50.0),
        )
        if 0.09 < case.poll_s < 0.11 and all(
            value is not None and low <= value <= high for value, low, high in sizes
        ):
            kept.append(from_generated(case, f"{NESTED}-{number}"))
    return kept


def until_sure(detect: Detector, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each observable case, how much of it the detector needs until it is sure and right, asked at
    growing lengths.
    """
    rows = []
    for case in cases:
        mean_s = case.truth.mean_s
        if not case.truth.observable or mean_s is None:
            continue
        whole_s = float(case.trace["time_s"][-1] - case.trace["time_s"][0])
        row: dict[str, Any] = {
            "case": case.name, "family": case.family, "truth_s": mean_s, "seconds": None,
            "first_sure_right": None,
        }
        seconds = FIRST_S
        while True:
            periods = detect(case.first(seconds).trace)
            if periods.sure:
                right = periods.iteration is not None and within(
                    periods.iteration.period_s, case.truth.iteration
                )
                row["first_sure_right"] = (
                    right if row["first_sure_right"] is None else row["first_sure_right"]
                )
                if right:
                    row |= {"seconds": seconds, "periods": seconds / mean_s}
                    break
            if seconds >= whole_s:
                break
            seconds *= GROWTH
        rows.append(row)
    return rows


def tell_until_sure(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the cases that got there, and over all with those that never did as infinite."""
    got = [row for row in rows if row["seconds"] is not None]
    first = [row["first_sure_right"] for row in rows if row["first_sure_right"] is not None]
    everything = sorted([row["periods"] for row in got] + [math.inf] * (len(rows) - len(got)))
    middle = everything[len(everything) // 2] if everything else math.inf
    return {
        "cases": len(rows), "got_there": len(got) / len(rows) if rows else None,
        "median_periods": float(np.median([row["periods"] for row in got])) if got else None,
        "p90_periods": float(np.quantile([row["periods"] for row in got], 0.9)) if got else None,
        "median_periods_of_all": middle if math.isfinite(middle) else None,
        "median_seconds": float(np.median([row["seconds"] for row in got])) if got else None,
        "right_when_first_sure": sum(first) / len(first) if first else None,
    }


def gpoeo_until_sure(published: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> dict[str, Any]:
    """The same of GPOEO's published answers: seconds used over true period, where it was stable and exact."""
    rows = []
    for case in cases:
        said = published.get(case.name)
        if case.truth.observable and case.truth.mean_s and said is not None:
            right = within(said["T_found"], case.truth.iteration)
            got = bool(said["says_periodic"]) and right
            rows.append(
                {
                    "seconds": said["seconds_used"] if got else None,
                    "periods": said["seconds_used"] / case.truth.mean_s,
                    "first_sure_right": right if said["says_periodic"] else None,
                }
            )
    return tell_until_sure(rows)


def cpu_ms(detect: Detector, cases: Sequence[Case], most: int = 40) -> dict[str, Any]:
    """Median CPU time of a call, over traces of two minutes at 10 Hz."""
    long = [case for case in cases if 1000 < case.trace.height < 1400 and 110 < _duration_s(case) < 130][
        :most
    ]
    if not long:
        return {"traces": 0, "median": None}
    detect(long[0].trace)  # the first call loads what is loaded once
    spent = []
    for case in long:
        before_s = time.process_time()
        detect(case.trace)
        spent.append(1000 * (time.process_time() - before_s))
    return {
        "traces": len(long), "median": float(np.median(spent)), "p90": float(np.quantile(spent, 0.9)),
        "max": max(spent),
    }


def published_rows(published: Mapping[str, Mapping[str, Any]], cases: Sequence[Case]) -> list[Row]:
    """GPOEO's published answers, scored as ours are; a published period is its answer whether or not it
    called it stable.
    """
    return [
        score(case, Answer(single(said["T_found"], bool(said["says_periodic"])), math.nan))
        for case in cases if (said := published.get(case.name)) is not None
    ]


def _duration_s(case: Case) -> float:
    return float(case.trace["time_s"][-1] - case.trace["time_s"][0])
