"""The simulator: how fast it is, and how its sensors compare with readings of real cards.

A million simulated seconds of training are stepped (ResNet-50 on a V100, no sampling). The sensor model is
applied to the known load of the polls in `sensors/`. For each card, the results are the window that explains
the readings best, the detected update period, and R2 and RMSE of the model's readings against the real ones.
Power and time against measured power limits are in `benchmarks.physics`.

    python -m benchmarks.simulator [--data DIR] [--json FILE] [--quick]
"""

from __future__ import annotations

import csv
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table


def speed(seconds: float) -> dict[str, float]:
    """Wall and CPU time of stepping so many simulated seconds of training."""
    from benchmarks.fixtures.bulk import advance
    from workbench.simulation.machine import simulate
    from workbench.simulation.training import TrainingJob

    machine = simulate("V100", stepped=True, seed=1)
    job = TrainingJob("imagenet", machine=machine, iterations=10**9)
    wall, cpu, before_s = time.perf_counter(), time.process_time(), machine.clock()
    iterations = advance(job, seconds)
    result = {
        "simulated_s": machine.clock() - before_s, "iterations": iterations,
        "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu,
        "mean_power_w": machine.true_energy_j(0, before_s, machine.clock()) / (machine.clock() - before_s),
    }
    machine.close()
    return result


def sensors(directory: Path) -> list[dict[str, Any]]:
    """The sensor model against the polls of real cards under a load that switches at known times."""
    rows = []
    for polls in sorted(directory.glob("*_gpudata.csv")):
        switching = polls.with_name(polls.name.replace("_gpudata", "_timestamps"))
        at_s, readings = _polls(polls)
        for column in readings:
            row: dict[str, Any] = {
                "file": polls.stem.removesuffix("_gpudata"), "field": column, "polls": len(at_s),
            }
            changed = at_s[1:][np.diff(readings[column]) != 0]
            if len(changed) > 20:
                row["update_s"] = _refreshes(at_s, readings[column], float(np.median(np.diff(changed))))[2]
            if switching.exists() and len(changed) > 20:
                row |= _fit(at_s, readings[column], _switches(switching), row.get("update_s", 0.1))
            rows.append(row)
    return rows


def _polls(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    with path.open() as file:
        lines = list(csv.reader(file))
    heads = [head.strip() for head in lines[0]]
    fields = {head: i for i, head in enumerate(heads) if head.startswith("power.draw")}
    body = [line for line in lines[1:] if len(line) == len(heads)]
    at_s = np.array([datetime.strptime(line[0].strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp() for line in body])
    return at_s, {head: np.array([float(line[i]) for line in body]) for head, i in fields.items()}


def _switches(path: Path) -> np.ndarray:
    """Times (s) at which the load went on and off in turn; each is written twice in the file."""
    values = [int(line) for line in path.read_text().split()[1:]]
    return np.array(sorted(set(values))) / 1e6


def _fit(at_s: np.ndarray, reading: np.ndarray, switches: np.ndarray, update_s: float) -> dict[str, float]:
    """Best window, offset between the clocks and gain and offset of power for reading = low + high * share
    of time on.
    """
    best: dict[str, float] = {}
    zone = 3600.0 * round((switches[0] - at_s[0]) / 3600.0)  # the load's times are UTC, the polls' local
    at_s = at_s + zone
    edges = np.concatenate([[switches[0] - 1e6], switches, [switches[-1] + 1e6]])
    running = np.arange(len(edges) - 1) % 2 == 1
    running[-1] = False  # after its last switch the load is off
    on = np.concatenate([[0.0], np.cumsum(np.where(running, np.diff(edges), 0.0))])

    def busy(time_s: np.ndarray) -> np.ndarray:
        return np.interp(time_s, edges, on)

    inside = (at_s > switches[0] - 1.0) & (at_s < switches[-1] + 1.0)
    at_s, reading = at_s[inside], reading[inside]
    if np.count_nonzero(np.diff(reading)) < 20:
        return {}
    at_s, reading, _ = _refreshes(at_s, reading, update_s)
    for window_s in (0.010, 0.020, 0.025, 0.030, 0.050, 0.075, 0.100, 0.125, 0.200, 1.0):
        for shift_s in np.arange(-0.05, 0.35, 0.004):
            share = (busy(at_s - shift_s) - busy(at_s - shift_s - window_s)) / window_s
            design = np.stack([np.ones_like(share), share], axis=1)
            solution, *_ = np.linalg.lstsq(design, reading, rcond=None)
            rest = reading - design @ solution
            r2 = 1.0 - float(rest @ rest) / float(np.sum((reading - reading.mean()) ** 2))
            if r2 > best.get("r2", -1.0):
                best = {
                    "window_s": window_s, "delay_s": float(shift_s), "r2": r2,
                    "rmse_w": float(np.sqrt(np.mean(rest**2))), "low_w": float(solution[0]),
                    "high_w": float(solution.sum()),
                }
    return best


def _refreshes(
    at_s: np.ndarray, reading: np.ndarray, update_s: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """When the sensor refreshed (a line through the middles between polls around each change), what it
    showed, and how often.
    """
    changed = np.flatnonzero(np.diff(reading) != 0)
    middles = (at_s[changed] + at_s[changed + 1]) / 2
    # The period under which all changes fall on one phase: the median gap is too coarse to count hundreds of
    # refreshes by.
    periods = update_s * np.linspace(0.93, 1.07, 14001)
    phases = np.exp(2j * np.pi * (middles - middles[0])[None, :] / periods[:, None])
    update_s = float(periods[np.argmax(np.abs(phases.mean(axis=1)))])
    numbers = np.round((middles - middles[0]) / update_s)
    update_s, offset_s = np.polyfit(numbers, middles, 1)
    return offset_s + update_s * numbers, reading[changed + 1], float(update_s)


def main() -> None:
    options = arguments(__doc__ or "")
    fast = speed(1e5 if options.quick else 1e6)
    print(
        f"{fast['simulated_s']:.0f} simulated seconds ({fast['iterations']:.0f} iterations) in "
        f"{fast['wall_s']:.1f} s "
        f"({fast['cpu_s']:.1f} s CPU), {fast['mean_power_w']:.1f} W on average\n"
    )
    rows: list[dict[str, Any]] = []
    if (options.data / "sensors").is_dir():
        rows = sensors(options.data / "sensors")
        heads = (
            "file", "field", "polls", "update_s", "window_s", "delay_s", "r2", "rmse_w", "low_w", "high_w",
        )
        print(table(heads, [[row.get(head) for head in heads] for row in rows]))
    else:
        print(f"no readings of real cards in {options.data / 'sensors'}: that part is left out")
    summary = {"million_seconds_wall_s": fast["wall_s"] * 1e6 / fast["simulated_s"]}
    finish({"summary": summary, "speed": fast, "sensors": rows}, options.json)


if __name__ == "__main__":
    main()
