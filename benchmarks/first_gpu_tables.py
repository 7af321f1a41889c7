"""Tables of `benchmarks.first_gpu`, from its results and recordings."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import recordings
from benchmarks.common import finish, table
from benchmarks.first_gpu_loads import TRAININGS
from workbench.errors import WorkbenchError
from workbench.simulation import catalogue, replay
from workbench.simulation.machine import SENSORS

POWERS = {  # of a recording: function and arguments
    "power, instant": (replay.FIELDS, [186, 0]),
    "power, mean": (replay.FIELDS, [185, 0]),
    "power usage": ("nvmlDeviceGetPowerUsage", ["*"]),
    "power of the module": (replay.FIELDS, [186, 1]),
}
COUNTERS = {
    "energy counter": ("nvmlDeviceGetTotalEnergyConsumption", ["*"]),
    "energy field": (replay.FIELDS, [83, 0]), "energy of the module": (replay.FIELDS, [83, 1]),
}
WINDOWS_S, LAGS_S = np.geomspace(0.002, 2.0, 80), np.arange(-10, 60) * 0.005
EVERY = 3  # of the recorded readings, for the table of recordings: about 10 ms apart
ALIKE = 1.1  # times the least residual: windows that fit about as well
FEWEST = 12  # refreshes for a fit
Series = tuple[np.ndarray, np.ndarray]


def write(directory: Path, found: dict[str, Any]) -> None:
    """Write `results.json` and `tables.md` of what has been found, each in one step; the table of recordings,
    which takes longest, is left to `read`.
    """
    summary = tables(directory, {**found, "recordings_later": True})[0]
    for name, text in (("results.json", json.dumps(found, default=float)), ("tables.md", summary)):
        scratch = directory / f".{name}"
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, directory / name)


def read(directory: Path, target: Path | None) -> None:
    """Print and write the tables of a finished or ended run.

    Raises:
        SystemExit: there are no results, with the command that makes them.
    """
    try:
        found = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        how = f"`python -m benchmarks.first_gpu --out {directory}` makes them"
        raise SystemExit(f"{directory} has no results ({error}); {how}") from error
    text, figures = tables(directory, found)
    (directory / "tables.md").write_text(text, encoding="utf-8")
    print(text)
    finish(figures, target)


def tables(directory: Path, found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """All tables as Markdown, and their figures."""
    stages = found["stages"]
    parts: list[str] = []
    figures: dict[str, Any] = {}
    for title, make in (
        ("Machine", machine), ("Sensors", sensors), ("Windows", windows), ("Trainings", trainings),
        ("Cost of sampling", overhead), ("Recordings", coverage),
    ):
        if make is coverage and "recordings_later" in found:
            parts.append("`python -m benchmarks.first_gpu --read DIR` adds the table of the recordings.")
            continue
        try:
            heads, rows = make(directory, stages)
        except (KeyError, ValueError, WorkbenchError) as error:
            heads, rows = ("not measured",), [(f"{type(error).__name__}: {error}",)]
        figures[title] = [dict(zip(heads, row, strict=True)) for row in rows]
        parts += [f"## {title}", table(heads, rows) if rows else "not measured", ""]
    for name, why in found["problems"].items():
        parts.append(f"{name}: {why}")
    figures["problems"] = found["problems"]
    return "\n".join(parts) + "\n", figures


Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def machine(directory: Path, stages: dict[str, Any]) -> Table:
    """The GPU, the doctor's findings except PASS, and the number of readings that the driver answers."""
    about = stages["doctor"]
    report = about["doctor"]
    rows = [("GPU", about["gpu"] + ", simulated" * about["simulated"]), ("load", about["load"])]
    findings = [*report["machine"], *report["gpus"][0]["findings"]]
    rows += [
        (each["what"], f"{each['grade']}: {each['found']}") for each in findings if each["grade"] != "PASS"
    ]
    answers = about["answers"]
    given = {
        name: value for name, value in answers.items() if not re.match(r"(error|\w+Error)\b", str(value))
    }
    rows.append(("readings answered", f"{len(given)} of {len(answers)}"))
    rows += [(name, value) for name, value in given.items() if re.search("POWER|ENERGY|PWR", name)]
    rows += [
        (f"call: {name}", f"{median:.3f} ms, at most {most:.1f} ms")
        for name, (median, most) in about["calls_ms"].items()
    ]
    for name, share in stages.get("load", {}).get("gpm", {}).items():
        rows.append((f"{name} under load", f"{share:.3g}"))
    return ("what", "found"), rows


def sensors(directory: Path, stages: dict[str, Any]) -> Table:
    """Refresh, averaging window, lag and gain of every sensor, next to the catalogue's entry for the card."""
    about, known = stages["doctor"], stages["known"]
    entry = _entry(about["gpu"], about["architecture"])
    head, *lines = replay.load(directory / "known.jsonl.gz")
    busy_s = np.array(known["bursts"]) - head["begun_s"]
    rows: list[tuple[Any, ...]] = []

    def add(sensor: str, what: str, unit: str, value: Any, expected: Any = None) -> None:
        rows.append((sensor, what, unit, value, expected))

    for sensor, asked in POWERS.items():
        at_s, watts = changes(lines, asked)
        if len(at_s) < FEWEST:
            continue
        averaged = (
            sensor in ("power, mean", "power usage") and entry is not None and entry.average_window_s > 0
        )
        add(sensor, "refresh", "ms", 1000 * pace_s(at_s), entry and 1000 * entry.power_update_s)
        inside = (at_s > busy_s[0, 0] + 2.0) & (at_s < busy_s[-1, 1])
        if about["on_gpu"] and inside.sum() >= FEWEST:
            window_s, low_s, high_s, lag_s, explained = fit(at_s[inside], watts[inside], busy_s)
            expected_s = entry and (entry.average_window_s if averaged else entry.power_window_s)
            add(sensor, "averaging window", "ms", 1000 * window_s, expected_s and 1000 * expected_s)
            add(sensor, "windows that fit as well", "ms", f"{1000 * low_s:.0f} to {1000 * high_s:.0f}")
            add(sensor, "lag", "ms", round(1000 * lag_s), 0)
            add(sensor, "variance explained", "%", 100 * explained)
    for sensor, asked in COUNTERS.items():
        at_s, joules = changes(lines, asked)
        if len(at_s) < FEWEST:
            continue
        add(sensor, "refresh", "ms", 1000 * pace_s(at_s), entry and 1000 * entry.counter_update_s)
        millijoules = np.round(1000 * np.diff(joules)).astype(int)
        add(sensor, "unit", "mJ", math.gcd(*millijoules.tolist()))
        inside = (at_s > busy_s[0, 0]) & (at_s < busy_s[-1, 1])
        if about["on_gpu"] and inside.sum() >= FEWEST:
            lag_s, explained = fit_counter(at_s[inside], joules[inside], busy_s)
            add(sensor, "lag", "ms", round(1000 * lag_s))
            add(sensor, "variance explained if it integrates", "%", 100 * explained)
    for stage in ("rest", "load"):
        path = directory / f"{stage}.jsonl.gz"
        if stage in stages and path.exists():
            (part, *_) = recordings.read(path).values()
            add("energy counter", f"over power, {stage}", "", recordings.counter_over_power(part), 1.0)
            add("power, instant", f"mean, {stage}", "W", float(part["power_w"].mean()))
    return ("sensor", "what", "unit", "measured", "catalogue"), rows


def _entry(name: str, architecture: str) -> Any:
    """The sensors of the catalogue for a card, else for its generation; None for an unknown one."""
    try:
        return SENSORS[catalogue.card(name).architecture]
    except WorkbenchError:
        return SENSORS.get(architecture.lower())


def changes(lines: list[dict[str, Any]], asked: tuple[str, list[Any]]) -> Series:
    """When the answers to a question changed (s, halfway since the read before), and to what (W or J).

    Changes after a pause of the recording are left out.
    """
    for line in lines:
        if [line["function"], line["arguments"]] == list(asked):
            given = [(at_us, np.ravel(value)[0]) for at_us, code, value in line["answers"] if not code][1:]
            if given:
                at_us, values = np.array(given, float).T
                reads_us = np.array(line["reads_us"], float)
                before_us = reads_us[np.maximum(np.searchsorted(reads_us, at_us) - 1, 0)]
                known = at_us - before_us <= 2 * np.median(np.diff(reads_us))  # else it may be much older
                return (at_us + before_us)[known] / 2e6, values[known] / 1000
    return np.empty(0), np.empty(0)


def pace_s(at_s: np.ndarray) -> float:
    """The time between two refreshes, some of which are missing."""
    spans_s = np.diff(at_s)
    return float(spans_s.sum() / np.round(spans_s / np.quantile(spans_s, 0.1)).sum())


def busy_until(busy_s: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Busy time (s) before each moment. `busy_s` has the beginnings and ends of bursts, in order."""
    lengths_s = np.cumsum(busy_s[:, 1] - busy_s[:, 0])
    done_s = np.stack([np.append(0.0, lengths_s[:-1]), lengths_s], axis=1)
    return np.interp(at_s, busy_s.ravel(), done_s.ravel())


def fit(at_s: np.ndarray, watts: np.ndarray, busy_s: np.ndarray) -> tuple[float, float, float, float, float]:
    """The averaging window and lag (s) with which readings follow bursts best.

    Returns:
        The window, the least and greatest one that fit about as well, the lag, and the share 0..1 of the
        readings' variance that they explain.
    """
    ends_s = at_s[None, :] - LAGS_S[:, None]
    explained = np.array(
        [
            _explained((busy_until(busy_s, ends_s) - busy_until(busy_s, ends_s - window_s)) / window_s, watts)
            for window_s in WINDOWS_S
        ]
    )
    best, lag = np.unravel_index(int(explained.argmax()), explained.shape)
    alike = WINDOWS_S[1 - explained.max(axis=1) <= ALIKE * (1 - explained[best, lag]) + 1e-9]
    return WINDOWS_S[best], alike[0], alike[-1], float(LAGS_S[lag]), float(explained[best, lag])


def fit_counter(at_s: np.ndarray, joules: np.ndarray, busy_s: np.ndarray) -> tuple[float, float]:
    """The lag (s) with which the steps of a counter follow bursts best, and the share that it explains."""
    ends_s = at_s[None, :] - LAGS_S[:, None]
    explained = _explained(
        np.diff(busy_until(busy_s, ends_s), axis=1) / np.diff(at_s), np.diff(joules) / np.diff(at_s)
    )
    return float(LAGS_S[explained.argmax()]), float(explained.max())


def _explained(shares: np.ndarray, watts: np.ndarray) -> np.ndarray:
    """R^2 of a straight line through power over the share of busy time, for each row (m, n) of shares."""
    x, y = shares - shares.mean(axis=1, keepdims=True), watts - watts.mean()
    return np.square(x @ y) / np.maximum((x * x).sum(axis=1) * (y * y).sum(), 1e-30)


def windows(directory: Path, stages: dict[str, Any]) -> Table:
    """Windows of the stages that have them: ours, and the plain difference of the counter, against the truth.

    The truth is exact on a simulated GPU and a stand-in driver. Elsewhere it is the counter, interpolated
    between the refreshes of the recording; its own error is in the last column, and the bar includes it.
    """
    heads = (
        "stage", "window s", "n", "no energy", "covered", "error %", "bar %", "bar / error", "plain error %",
        "error of the truth %",
    )
    rows: list[tuple[Any, ...]] = []
    for stage in ("load", *TRAININGS):
        if "windows" not in stages.get(stage, {}):
            continue
        whole = [{**stages[stage]["whole"], "length_s": "all"}] if "whole" in stages[stage] else []
        given = [*stages[stage]["windows"], *whole]
        truths = {id(each): _truth(directory / f"{stage}.jsonl.gz", each) for each in given}
        for length_s in dict.fromkeys(each["length_s"] for each in given):
            of_length = [each for each in given if each["length_s"] == length_s and truths[id(each)]]
            barred = [each for each in of_length if each["energy_j"] is not None]
            if not barred:
                continue
            true_j, doubt_j = np.array([truths[id(each)] for each in barred]).T
            energy_j, half_j, plain_j = (
                np.array([each[name] for each in barred]) for name in ("energy_j", "half_j", "plain_j")
            )
            error, bar = np.abs(energy_j - true_j) / true_j, np.hypot(half_j, doubt_j) / true_j
            rows.append(
                (
                    stage, length_s, len(barred), len(of_length) - len(barred), float(np.mean(error <= bar)),
                    100 * _median(error), 100 * _median(half_j / true_j),
                    _median(half_j / true_j) / max(_median(error), 1e-9),
                    100 * _median(np.abs(plain_j - true_j) / true_j), 100 * _median(doubt_j / true_j),
                )
            )
    return heads, rows


def _truth(path: Path, window: dict[str, Any]) -> tuple[float, float] | None:
    """The true energy of a window and its half width (J); None where the recording does not cover it."""
    if window.get("true_j") is not None:
        return window["true_j"], 0.0
    if path not in _kept:
        _kept.clear()
        head, *lines = replay.load(path)
        (part, *_) = recordings.read(path).values()
        first_us = next(line["reads_us"][0] for line in lines if line["reads_us"])
        _kept[path] = (
            head["begun_s"] + first_us / 1e6, *recordings.counter(part), part["power_w"].drop_nulls(),
        )
    begun_s, at_s, joules, age_s, watts = _kept[path]
    edges = np.array([window["start_s"], window["end_s"]]) - begun_s
    if edges[0] < at_s[0] or edges[1] > at_s[-1]:
        return None
    seen = at_s - age_s / 2
    low, high = np.interp(edges, seen, joules)
    place = np.clip(np.searchsorted(seen, edges), 1, len(seen) - 1)
    near_s = np.minimum(edges - seen[place - 1], seen[place] - edges) + age_s[place] / 2
    # Within a refresh, power may be anything that was seen.
    doubts_j = near_s * float(watts.max() - watts.min()) / 2
    return float(high - low), float(np.hypot(*doubts_j))


_kept: dict[Path, Any] = {}


def trainings(directory: Path, stages: dict[str, Any]) -> Table:
    """True steps against the measured iteration, and against the period of the recorded power."""
    heads = (
        "training", "true step ms", "median", "measured ms", "steps", "counted", "period ms", "sure", "right",
        "why not",
    )
    rows: list[tuple[Any, ...]] = []
    for kind in TRAININGS:
        if "step_ends_s" not in stages.get(kind, {}):
            continue
        ends_s = np.array(stages[kind]["step_ends_s"])
        true_s, measured = float(np.mean(np.diff(ends_s))), stages[kind]["iterations"]
        periods = _periods(directory / f"{kind}.jsonl.gz")
        period_s = periods.iteration.period_s if periods.iteration else None
        typical_s = float(np.median(np.diff(ends_s)))
        right = (
            None if period_s is None else min(abs(period_s / each - 1) for each in (true_s, typical_s)) < 0.05
        )
        rows.append(
            (
                kind, 1000 * true_s, 1000 * typical_s, measured["time_s"] and 1000 * measured["time_s"],
                len(ends_s) - 1, measured["count"], period_s and 1000 * period_s, periods.sure, right,
                periods.reason,
            )
        )
    return heads, rows


@cache  # tables are made after each stage, and a recording does not change
def _periods(path: Path) -> Any:
    from workbench import find_periods

    (part, *_) = recordings.read(path).values()
    return find_periods(part.select("time_s", "power_w").drop_nulls())


def coverage(directory: Path, stages: dict[str, Any]) -> Table:
    """`benchmarks.recordings` on the recordings of this run."""
    paths = [directory / f"{stage}.jsonl.gz" for stage in ("load", "known", *TRAININGS) if stage in stages]
    rows = [row for path in paths if path.exists() for row in _covered(path, stages["doctor"]["gpu"])]
    return tuple(recordings.COLUMNS.values()), rows


@cache
def _covered(path: Path, card: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for gpu, part in recordings.read(path).items():
        for figure in recordings.FIGURES:
            with suppress(ValueError, WorkbenchError):  # it is too short for a row
                for row in recordings.coverage(part.gather_every(EVERY), figure, card)[0]:
                    known = {"recording": path.name.split(".")[0], "gpu": gpu, **row}
                    rows.append(tuple(known[name] for name in recordings.COLUMNS))
    return rows


def overhead(directory: Path, stages: dict[str, Any]) -> Table:
    """Time per training step with the sampling process over that without it."""
    without_s, with_s = (np.array(stages["overhead"][name]) for name in ("without", "with"))
    ratios = with_s / without_s
    half = 1.96 * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
    return ("pairs of blocks", "step without ms", "step with ms", "ratio", "half width"), [
        (len(ratios), 1000 * _median(without_s), 1000 * _median(with_s), float(np.mean(ratios)), half)
    ]


def _median(values: Any) -> float:
    return float(np.median(values)) if len(values) else math.nan
