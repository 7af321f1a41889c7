"""Earlier measurements of a job on a card, from tuned jobs, sweeps and recurring jobs.

The same job is one of the same name: the label of a tuned cell, the name of a sweep, the name of a recurring
job. Each adds its measurements to one table of the store (`logbook.store.OBSERVATIONS`). To forget a
job, delete its file there. Rows that make no sense count for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple
from typing import Any

import polars as pl

from ..device.protocol import Device
from ..errors import StoreError, UsageError
from ..logbook.store import OBSERVATIONS, Store
from ..records import Setting
from ..search.earlier import Cost, EarlierCurve
from .trial import KNOBS

MOST_ROWS = 256  # of one job that are kept, the newest
ALIKE = 0.1  # relative, of a baseline's time and energy: the same job; another batch size is another

Costs = Mapping[Setting, Cost]


def known_runs(
    label: str, device: Device, *, batch_size: int | None = None, baseline: Cost | None = None,
    besides: str = "",
) -> list[EarlierCurve]:
    """What tuned jobs, sweeps and recurring jobs have measured of a job on a card of this name. Never raises.

    Args:
        label: Name of the job; without one nothing is known.
        device: The GPU that it runs on. Simulated measurements are not used for a real card.
        batch_size: Of the job, where it has one: runs of the nearest one come first, then the newest.
        baseline: Time (s) and energy (J) of an iteration at the default setting, where they are measured:
            where an earlier run's are farther off than a tenth, it was of another job.
        besides: A kind of source that is left out, "a sweep" or "a recurring job": the asker's own.
    """
    if not label:
        return []
    try:
        rows = Store().observations()
    except StoreError:
        return []
    sound = pl.all_horizontal(pl.col("time_s", "energy_j").is_between(1e-12, 1e12))
    mine = pl.col("kind") != besides
    rows = rows.filter(sound, mine, name=label, gpu=device.name, simulated=bool(device.simulated))
    found: list[tuple[float, float, EarlierCurve]] = []
    groups: Any = rows.group_by("kind", "batch_size", "unit", "run")
    for (kind, size, unit, _), part in groups:
        means = part.group_by(KNOBS, maintain_order=True).agg(pl.col("time_s", "energy_j").log().mean().exp())
        try:
            costs = {Setting(*each[:3]): (each[3], each[4]) for each in means.rows()}
        except UsageError:
            continue
        if baseline and unit == "iteration" and not _alike(costs.get(_highest(costs), baseline), baseline):
            continue
        if len(costs) > 1:
            unix_s = float(part["ended_unix_s"].fill_null(0.0).max())
            source = f"{kind} of {time.strftime('%Y-%m-%d', time.localtime(unix_s))}"
            apart = abs(math.log((size or 1) / (batch_size or 1))) if size and batch_size else 0.0
            found.append((apart, -unix_s, EarlierCurve(costs, source, size)))
    return [curve for *_, curve in sorted(found, key=lambda each: each[:2])]


def keep(label: str, device: Device, jobs: Iterable[tuple[Cost, Costs]]) -> None:
    """Keep what a tuned job has measured for the next one.

    Args:
        label: Of the job; without one nothing is kept.
        device: The GPU, or one of several alike.
        jobs: Time (s) and energy (J) of an iteration: at the default setting, and at each that was measured.

    Raises:
        StoreError: it cannot be written.
    """
    now_s = time.time()
    for number, (baseline, settings) in enumerate(jobs):
        others = {setting: cost for setting, cost in settings.items() if setting != Setting()}
        if others:
            # What the default is, as far as the other settings name its knobs.
            top = zip(KNOBS, astuple(top_of_device(device)), astuple(_highest(others)), strict=True)
            default = Setting(**{knob: value for knob, value, named in top if named is not None})
            run = int(now_s * 1e3) + number
            observe("a tuned run", label, device, {default: baseline} | others, unit="iteration", run=run)


def observe(
    kind: str, name: str, device: Device, costs: Costs, *, unit: str, batch_size: int | None = None,
    run: int | None = None,
) -> None:
    """Add time and energy of a job under several settings to its stored rows.

    Args:
        kind: "a tuned run" or "a recurring job".
        name: Of the job; without one nothing is kept.
        device: The GPU, or one of several alike.
        costs: By setting.
        unit: That they are for.
        batch_size: Of the job, where it is known.
        run: Rows of another number do not compare with these; None: all do.

    Raises:
        StoreError: it cannot be written.
    """
    if not name:
        return
    rows = [
        asdict(setting) | {
            "gpu": device.name, "simulated": bool(device.simulated), "batch_size": batch_size, "unit": unit,
            "time_s": time_s, "energy_j": energy_j, "ended_unix_s": time.time(), "run": run,
        } for setting, (time_s, energy_j) in costs.items()
    ]
    store = Store()
    frame = pl.concat([store.observed(kind, name), pl.DataFrame(rows, schema=OBSERVATIONS)])
    store.observe(kind, name, frame.tail(MOST_ROWS))


def top_of_device(device: Device) -> Setting:
    """The default power limit and the highest clocks of a GPU; None where it does not report them."""
    limits = device.limits
    default_w = limits.default_power_limit_w
    clocks = limits.sm_clocks_mhz
    return Setting(
        limits.max_power_limit_w if default_w is None else default_w,
        max((max(each) for each in clocks.values() if each), default=None), max(clocks, default=None),
    )


def _alike(one: Cost, other: Cost) -> bool:
    return max(abs(math.log(a / b)) for a, b in zip(one, other, strict=True)) < ALIKE


def _highest(settings: Iterable[Setting]) -> Setting:
    """The highest that any of these names of each knob."""
    rows = zip(*(astuple(each) for each in settings), strict=True)
    return Setting(*(max((value for value in row if value is not None), default=None) for row in rows))
