"""Our figures on recorded GPUs: energy from power alone, or from a counter that is read less often, against
the recorded counter; periods against recorded phases and against signals that we do not use.

    python -m benchmarks.recordings --data DIR [--json FILE] [--quick]

Every file of `DIR/recordings/*.csv`, and every `*.jsonl.gz` of `workbench doctor --record` there, goes
through the energy estimate and the period detection that measure a real GPU: its readings at their times, and
refreshes where the sampler would have noted them. Columns of CSV: `time_s, gpu, power_w, energy_j`, and where
known `sm_active, nvlink_bytes_s, phase`. A file that cannot be used is listed with the reason.

Windows of each length begin and end at observed changes of the complete counter. A window with a gap of the
recording in it is removed. The truth is the difference of the counter there.

power
    The card in the file's name determines the averaging window of a reading; 25 ms without a card.
    The counter is withheld. Its sensor may have another calibration: power is scaled by the ratio of both
    over the recording, which is reported (`counter_over_power`). A change of the counter may have happened at
    any time since the previous read, at most `COUNTER_S` ago. The bar includes this error of the truth.
every 2nd, every 5th
    Of the readings of power and counter, only these are replayed.

covered
    Share of the windows whose 95 % bar holds the truth; right is 0.92 to 0.99. `covered_low` and
    `covered_high` are its own 95 % interval, by the number of windows that do not overlap.
    `summary.covered_min` is the smallest share of a row with `LEAST` such windows at least.
periods
    The period of the recorded power (`workbench.find_periods`) against the median time between two
    beginnings of a phase, and against the autocorrelation of each signal. It is right within 5 %. A signal
    may repeat several times per iteration, or once in several: a whole ratio up to 4 is right there, too.
    `summary.periods_wrong_sure` counts periods that are reported as sure and that a comparison contradicts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import arguments, finish, table
from workbench.errors import WorkbenchError
from workbench.logbook.log_energies import COUNTER_S
from workbench.measurement.energy_estimate import EnergyEstimate, EnergyTimeline
from workbench.measurement.meter import AFTER_S, BEFORE_S
from workbench.samples import ROWS
from workbench.simulation import replay

LENGTHS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
NEAR = 0.1  # how far a window's length may be from the one that is asked for
WINDOWS, LEAST = 100, 20
LONGEST_S, QUICK_S = 600.0, 60.0  # of a recording
LEAD_S = 1.0  # at its beginning and end, without windows
# What a power reading averages (arXiv 2312.02741), by what the name of a recording has; the first that fits.
WINDOWS_S = (("p100|v100|titan v", 0.010), ("rtx|t4|a40|a10\\b|l4|a6000", 0.100), ("", 0.025))
GAP = 3.0  # times the usual pace: longer is a gap
NEEDED = ("time_s", "power_w")
SIGNALS = ("sm_active", "nvlink_bytes_s")
FIGURES = {"power": 1, "every 2nd": 2, "every 5th": 5}
RIGHT, MULTIPLES, CORRELATED = 0.05, 4, 0.5
SHARP = 0.15  # of the time between two refreshes, that a refresh's error may be (`measurement.edges`)
FEWEST = 4  # readings that show a period
# Functions and fields (83 energy, 186 power) of NVML that a column comes from in a recording of the doctor.
ASKED: dict[str, list[list[Any]]] = {
    "energy_j": [["nvmlDeviceGetTotalEnergyConsumption", ["*"]], [replay.FIELDS, [83, 0]]],
    "power_w": [["nvmlDeviceGetPowerUsage", ["*"]], [replay.FIELDS, [186, 0]]],
}
COLUMNS = {
    "recording": "recording", "gpu": "GPU", "figure": "figure", "length_s": "window s", "windows": "n",
    "covered": "covered", "covered_low": "from", "covered_high": "to", "error_percent": "error %",
    "bar_percent": "bar %",
}
PERIOD_COLUMNS = {
    "recording": "recording", "gpu": "GPU", "against": "against", "true_s": "period s", "found_s": "found s",
    "sure": "sure", "right": "right", "reason": "reason",
}


def read(path: Path) -> dict[str, pl.DataFrame]:
    """The usable rows of a recording by GPU, in order of time from 0 on.

    Raises:
        ValueError: there is nothing that can be used; names the error.
    """
    try:
        frame = answers(path) if path.suffix == ".gz" else pl.read_csv(
            path, infer_schema=False, truncate_ragged_lines=True
        )
    except (pl.exceptions.PolarsError, OSError, UnicodeError, WorkbenchError) as error:
        raise ValueError(f"cannot be read: {str(error).splitlines()[0]}") from error
    frame = frame.rename({name: name.strip().lower() for name in frame.columns})
    if missing := [name for name in NEEDED if name not in frame.columns]:
        raise ValueError(f"has no column {', '.join(missing)}")
    numbers = [name for name in ("time_s", "power_w", "energy_j", *SIGNALS) if name in frame.columns]
    strings = pl.col(*numbers).str.strip_chars().cast(pl.Float64, strict=False).fill_nan(None)
    gpu = pl.col("gpu").fill_null("0").str.strip_chars() if "gpu" in frame.columns else pl.lit("0")
    frame = frame.with_columns(strings, gpu=gpu).filter(pl.col("time_s").is_finite())
    if not frame.height:
        raise ValueError("has no rows")
    parts = {}
    for (name,), part in frame.sort("time_s").partition_by("gpu", as_dict=True, maintain_order=True).items():
        part = part.unique("time_s", keep="last", maintain_order=True)
        if "energy_j" not in part.columns:
            part = part.with_columns(energy_j=pl.lit(None, pl.Float64))
        parts[str(name)] = part.with_columns(pl.col("time_s") - part["time_s"][0])
    return dict(sorted(parts.items()))


def answers(path: Path) -> pl.DataFrame:
    """The reads of power and of the counter in a file of `workbench doctor --record`, as strings.

    Of the functions that answer the same question, the one with the most different answers counts.
    Raises SimulationError where the file is no recording.
    """
    head, *lines = replay.load(path)
    frames = []
    for gpu in range(len(head["gpus"])):
        series = {}
        reads_us = next((line["reads_us"] for line in lines if line["gpu"] == gpu and line["reads_us"]), [])
        for name, asked in ASKED.items():
            found = [
                [answer for answer in line["answers"] if not answer[1]]
                for line in lines if line["gpu"] == gpu and [line["function"], line["arguments"]] in asked
            ]
            best = max(found, key=len, default=[])
            if best:
                values = [np.ravel(answer[2])[0] / 1000 for answer in best]
                place = np.searchsorted([answer[0] for answer in best], reads_us, side="right") - 1
                strings = [None if at < 0 else str(values[at]) for at in place]
                series[name] = pl.Series(strings, dtype=pl.String)
        times = [str(at_us / 1e6) for at_us in reads_us]
        frames.append(pl.DataFrame({"time_s": times, "gpu": [str(gpu)] * len(times), **series}))
    return pl.concat(frames, how="diagonal")


def counter(part: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the counter was seen to change: times, joules, and how old the change may be (s).

    Raises:
        ValueError: it has no counter that rises.
    """
    known = part.drop_nulls("energy_j")
    at_s, joules = known["time_s"].to_numpy(), known["energy_j"].to_numpy()
    if len(at_s) < 2:
        raise ValueError("has no energy counter")
    if (np.diff(joules) < 0).any():
        raise ValueError("has a counter that goes back")
    changed = np.flatnonzero(np.diff(joules) > 0) + 1
    if len(changed) < LEAST:
        raise ValueError(f"has a counter that changes {len(changed)} times, at least {LEAST} are needed")
    return at_s[changed], joules[changed], np.minimum(at_s[changed] - at_s[changed - 1], COUNTER_S)


def gaps(part: pl.DataFrame) -> np.ndarray:
    """Beginning and end (s) of each gap."""
    at_s = part["time_s"].to_numpy()
    pace_s = np.diff(at_s)
    where = np.flatnonzero(pace_s > GAP * np.median(pace_s)) if len(pace_s) else np.empty(0, int)
    return np.stack([at_s[where], at_s[where + 1]], axis=1)


def windows(
    at_s: np.ndarray, length_s: float, holes: np.ndarray, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Pairs of places in `at_s` that are about so far apart, with no gap between them."""
    found = []
    for first in rng.permutation(len(at_s)).tolist():
        last = int(np.argmin(np.abs(at_s - at_s[first] - length_s * rng.uniform(1 - NEAR, 1 + NEAR))))
        near = abs(at_s[last] - at_s[first] - length_s) <= NEAR * length_s
        crossed = ((holes[:, 0] < at_s[last]) & (holes[:, 1] > at_s[first])).any()
        if near and not crossed and at_s[first] >= LEAD_S and at_s[last] <= at_s[-1] - LEAD_S:
            found.append((first, last))
        if len(found) == WINDOWS:
            break
    return found


def readings(part: pl.DataFrame, *, counted: bool) -> np.ndarray:
    """The samples of a GPU whose driver answered this, as the sampler would have noted them.

    A sensor refreshes in the middle between the reading with a new value and the one before, which is at most
    `COUNTER_S` older. Where readings are too far apart for that, the moment is not known.
    """
    rows = np.zeros(part.height, ROWS)
    for name in ROWS.names or ():
        if name != "throttle":
            rows[name] = math.nan
    rows["time_s"], rows["power_w"] = part["time_s"], part["power_w"].fill_null(math.nan)
    if counted:
        rows["energy_j"] = part["energy_j"].fill_null(math.nan)
        rows = rows[np.isfinite(rows["energy_j"])]
    power_s, _ = refreshes_of(rows["time_s"], rows["power_w"])
    tick_s, age_s = refreshes_of(rows["time_s"], rows["energy_j"]) if counted else (power_s, COUNTER_S)
    rows["power_tick_s"], rows["tick_error_s"] = power_s, age_s / math.sqrt(12)
    # As for the sampler: only readings that are close, compared with the refreshes, show their moments.
    new_s = np.unique(tick_s[np.isfinite(tick_s)])
    error_s = float(np.median(np.diff(rows["time_s"]))) / math.sqrt(12) if len(rows) > 1 else math.inf
    if len(new_s) > 1 and error_s < SHARP * float(np.median(np.diff(new_s))):
        rows["tick_s"] = tick_s
    return rows


def estimated(
    rows: np.ndarray, start_s: float, end_s: float, *, counted: bool, window_s: float
) -> EnergyEstimate | None:
    """The energy between two moments, from the samples that a measurement looks at."""
    first, last = np.searchsorted(rows["time_s"], (start_s - BEFORE_S, end_s + AFTER_S))
    rows = rows[first:last]
    known = np.diff(np.unique(rows["tick_s"][np.isfinite(rows["tick_s"])]))
    update_s = float(np.median(known)) if len(known) else None
    energy = EnergyTimeline(rows, power_window_s=window_s, counted=counted, update_s=update_s)
    return energy.between(start_s, end_s)


def refreshes_of(at_s: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last refresh before each reading, NaN before the first, and how long it may have been before."""
    new = np.append(False, (np.diff(values) != 0) & np.isfinite(np.diff(values)))
    age_s = np.minimum(np.diff(at_s, prepend=at_s[:1]), COUNTER_S)
    last = np.maximum.accumulate(np.where(new, np.arange(len(at_s)), -1))
    return np.where(last < 0, np.nan, (at_s - age_s / 2)[last]), age_s[last]


def coverage(
    part: pl.DataFrame, figure: str, name: str = "", seed: int = 1
) -> tuple[list[dict[str, Any]], float]:
    """A row for each length of windows, and the counter's joules over those of power.

    Raises:
        ValueError: there is no counter, or too few windows.
    """
    at_s, joules, age_s = counter(part)
    holes, rng = gaps(part), np.random.default_rng(seed)
    alone = figure == "power"
    kept = part.drop_nulls("power_w") if alone else part.gather_every(FIGURES[figure])
    ratio = counter_over_power(part)
    window_s = next(seconds for card, seconds in WINDOWS_S if re.search(card, name.lower()))
    samples = readings(kept, counted=not alone)
    watts = np.gradient(joules, at_s)
    rows = []
    for length_s in LENGTHS_S:
        pairs = windows(at_s, length_s, holes, rng)
        outcomes = []
        for first, last in pairs:
            estimate = estimated(samples, at_s[first], at_s[last], counted=not alone, window_s=window_s)
            if estimate is None or not math.isfinite(estimate.uncertainty_j):
                outcomes.append((joules[last] - joules[first], math.nan, math.inf))
                continue
            scale = ratio if alone else 1.0
            bar_j = scale * estimate.uncertainty_j
            if alone:
                bar_j = math.hypot(bar_j, *(0.95 * age_s[each] * watts[each] / 2 for each in (first, last)))
            outcomes.append((joules[last] - joules[first], scale * estimate.energy_j, bar_j))
        if len(outcomes) < LEAST:
            continue
        truth_j, energy_j, bar_j = np.array(outcomes).T
        error_j = np.abs(energy_j - truth_j)
        inside = (error_j <= bar_j) | ~np.isfinite(bar_j)
        apart = min(len(pairs), int((at_s[-1] - at_s[0] - np.diff(holes).sum()) / length_s))
        low, high = interval(float(inside.mean()), apart)
        rows.append({
            "figure": figure, "length_s": length_s, "windows": len(pairs), "apart": apart,
            "covered": float(inside.mean()), "covered_low": low, "covered_high": high,
            "unknown": float(np.mean(~np.isfinite(bar_j))),
            "error_percent": 100 * float(np.nanmedian(error_j / truth_j)),
            "bar_percent": 100 * float(np.nanmedian(bar_j / truth_j)),
        })
    if not rows:
        raise ValueError(f"has fewer than {LEAST} windows of any length between {LENGTHS_S[0]:g} and "
                         f"{LENGTHS_S[-1]:g} s")
    return rows, ratio


def counter_over_power(part: pl.DataFrame) -> float:
    """The counter's joules over those of power, where neither has a gap. Raises ValueError without power."""
    both = part.drop_nulls(["power_w", "energy_j"])
    at_s, watts, joules = (both[name].to_numpy() for name in ("time_s", "power_w", "energy_j"))
    whole = np.diff(at_s) <= GAP * np.median(np.diff(at_s)) if len(at_s) > 1 else np.empty(0, bool)
    read_j = float((np.diff(at_s) * (watts[1:] + watts[:-1]) / 2)[whole].sum())
    if read_j <= 0:
        raise ValueError("has no power readings where it has a counter")
    return float(np.diff(joules)[whole].sum()) / read_j


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval (Wilson) of a share of so many."""
    if not count:
        return 0.0, 1.0
    z2 = 1.96**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = 1.96 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


# periods


def period_of_phases(part: pl.DataFrame) -> float | None:
    """The median time (s) between two beginnings of a phase, of the phase that begins most often; of the
    phases themselves where each has a name of its own, such as a number. None where they are not regular.
    """
    if "phase" not in part.columns:
        return None
    named = part.with_columns(pl.col("phase").cast(pl.String).fill_null("").str.strip_chars())
    begins = named.filter((pl.col("phase") != pl.col("phase").shift(1)).fill_null(False))
    begins = begins.filter(pl.col("phase") != "")
    counts = begins["phase"].value_counts().sort("count", "phase", descending=[True, False])
    if not counts.height:
        return None
    if counts["count"][0] > 1:
        begins = begins.filter(pl.col("phase") == counts["phase"][0])
    spans_s = np.diff(begins["time_s"].to_numpy())
    if len(spans_s) < 5:
        return None
    low_s, middle_s, high_s = np.quantile(spans_s, (0.25, 0.5, 0.75))
    shown = middle_s >= FEWEST * float(np.median(np.diff(part["time_s"].to_numpy())))
    return float(middle_s) if shown and high_s - low_s < 0.3 * middle_s else None


def period_of_signal(part: pl.DataFrame, name: str) -> float | None:
    """The shortest lag (s) at which a signal's autocorrelation is highest; None where nothing repeats."""
    if name not in part.columns:
        return None
    known = part.drop_nulls(name)
    at_s, values = known["time_s"].to_numpy(), known[name].to_numpy()
    if len(at_s) < 50 or float(np.std(values)) < 1e-9 * max(float(np.abs(values).max()), 1e-12):
        return None
    pace_s = float(np.median(np.diff(at_s)))
    grid = np.interp(np.arange(at_s[0], at_s[-1], pace_s), at_s, values)
    if not 50 <= len(grid) <= 10_000_000:
        return None
    grid = grid - grid.mean()
    power = np.abs(np.fft.rfft(grid, 2 * len(grid))) ** 2
    lags = np.fft.irfft(power)[: len(grid) // 3]
    lags /= np.arange(len(grid), len(grid) - len(lags), -1)
    lags /= lags[0]
    peaks = np.flatnonzero((lags[1:-1] > lags[:-2]) & (lags[1:-1] >= lags[2:])) + 1
    peaks = peaks[peaks >= FEWEST]
    if not len(peaks) or lags[peaks].max() < CORRELATED:
        return None
    first = int(peaks[lags[peaks] >= 0.9 * lags[peaks].max()][0])
    a, b, c = lags[first - 1 : first + 2]
    return float((first + 0.5 * (a - c) / (a - 2 * b + c)) * pace_s)


def period_rows(part: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The period found in power against each of the others."""
    from workbench import find_periods

    true_s = {"phase": period_of_phases(part)} | {name: period_of_signal(part, name) for name in SIGNALS}
    true_s = {name: seconds for name, seconds in true_s.items() if seconds is not None}
    if not true_s:
        return
    found = find_periods(part.select("time_s", "power_w"))
    iteration = found.iteration
    found_s = None if iteration is None else iteration.period_s
    for name, seconds in true_s.items():
        ratios = [1.0] if name == "phase" else [
            ratio for number in range(1, MULTIPLES + 1) for ratio in (number, 1 / number)
        ]
        right = found_s is not None and any(abs(found_s / seconds / each - 1) <= RIGHT for each in ratios)
        yield {
            "against": name, "true_s": seconds, "found_s": found_s, "sure": found.sure, "right": right,
            "reason": found.reason,
        }


# all of it


def examined(path: Path, longest_s: float) -> dict[str, Any]:
    """Rows of coverage and periods of one recording, and what could not be used of it."""
    name = path.name.split(".")[0]
    result: dict[str, Any] = {"recording": name, "rows": [], "periods": [], "gpus": [], "unusable": []}

    def unusable(gpu: str, why: object) -> None:
        result["unusable"].append({"recording": name, "gpu": gpu, "why": str(why)})

    try:
        parts = read(path)
    except ValueError as error:
        unusable("", error)
        return result
    for gpu, whole in parts.items():
        part = whole.filter(pl.col("time_s") <= longest_s)
        at_s = part["time_s"].to_numpy()
        holes = gaps(part)
        about = {
            "recording": name, "gpu": gpu, "rows": part.height, "seconds": float(at_s[-1]),
            "pace_s": float(np.median(np.diff(at_s))) if len(at_s) > 1 else None, "gaps": len(holes),
            "gap_s": float(np.diff(holes).sum()), "counter_over_power": None,
            "repeated_power": float(np.mean(np.diff(part["power_w"].fill_null(-1.0).to_numpy()) == 0))
            if len(at_s) > 1 else None,
        }
        result["gpus"].append(about)
        for figure in FIGURES:
            try:
                rows, about["counter_over_power"] = coverage(part, figure, name)
                result["rows"] += [{"recording": name, "gpu": gpu, **row} for row in rows]
            except (ValueError, WorkbenchError) as error:
                unusable(gpu, f"{figure}: {error}")
        try:
            result["periods"] += [{"recording": name, "gpu": gpu, **row} for row in period_rows(part)]
        except (ValueError, WorkbenchError) as error:
            unusable(gpu, f"periods: {error}")
    return result


def _guarded(path: Path, longest_s: float) -> dict[str, Any]:
    """As `examined`, whatever is in the file."""
    try:
        return examined(path, longest_s)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return {"rows": [], "periods": [], "gpus": [],
                "unusable": [{"recording": path.name, "gpu": "", "why": why}]}


def summary(rows: list[dict[str, Any]], periods: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of all rows with informative windows."""
    known = [row for row in rows if row["apart"] >= LEAST]
    shares = [row["covered"] for row in known]
    wrong = {(row["recording"], row["gpu"]) for row in periods if row["sure"] and not row["right"]}
    return {
        "covered_min": min(shares, default=None), "covered_max": max(shares, default=None),
        "covered": float(np.mean(shares)) if shares else None,
        **{
            f"covered_{figure.replace(' ', '_')}": float(np.mean(of)) if (of := [
                row["covered"] for row in known if row["figure"] == figure
            ]) else None for figure in FIGURES
        },
        "windows": sum(row["windows"] for row in known),
        "periods": len({(row["recording"], row["gpu"]) for row in periods}),
        "periods_sure": len({(row["recording"], row["gpu"]) for row in periods if row["sure"]}),
        "periods_wrong_sure": len(wrong),
    }


def main() -> None:
    options = arguments(__doc__ or "")
    folder = options.data / "recordings"
    paths = sorted([*folder.glob("*.csv"), *folder.glob("*.jsonl.gz")])
    if not paths:
        print(f"there are no recordings in {folder}: nothing was checked")
    results = [_guarded(path, QUICK_S if options.quick else LONGEST_S) for path in paths]
    merged = {
        name: [row for result in results for row in result[name]]
        for name in ("gpus", "rows", "periods", "unusable")
    }
    for heads, name in ((COLUMNS, "rows"), (PERIOD_COLUMNS, "periods")):
        if merged[name]:
            cells = [[row.get(column) for column in heads] for row in merged[name]]
            print(table(list(heads.values()), cells) + "\n")
    for each in merged["unusable"]:
        gpu = f", GPU {each['gpu']}" if each["gpu"] else ""
        print(f"{each['recording']}{gpu} {each['why']}")
    overall = summary(merged["rows"], merged["periods"])
    print("\n" + "\n".join(f"{name}: {value:.3g}" for name, value in overall.items() if value is not None))
    finish({"summary": overall, **merged}, options.json)


if __name__ == "__main__":
    main()
