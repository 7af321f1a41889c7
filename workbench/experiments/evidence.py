"""Earlier measurements of a job and a card, from tuned jobs, sweeps and recurring jobs.

The same job is one of the same name: the label of a tuned cell, the name of a sweep, the name of a recurring
job. Each adds its measurements to one table of the store (`logbook.store.OBSERVATIONS`). To forget a
job, delete its file there. Rows that make no sense count for nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

import polars as pl

from ..device.protocol import Device
from ..errors import StoreError, UsageError
from ..logbook.store import OBSERVATIONS, Store
from ..records import Setting
from ..search.earlier import EarlierCurve
from .trial import KNOBS

MOST_ROWS = 256  # of one job that are kept, the newest
MOST_CURVES = 4  # that are handed out of each kind, the newest
ALIKE = 0.1  # relative, of a baseline's time and energy: the same job; another batch size is another

Costs = Mapping[Setting, tuple[float, float]]  # time (s) and energy (J)


@dataclass(frozen=True)
class KnownJob:
    """Measurements of a job on a card, newest first.

    Attributes:
        same: Runs of this job on a card of this name.
        elsewhere: Runs of this job on other cards.
        others: Runs of other jobs on a card of this name.
    """

    same: tuple[EarlierCurve, ...] = ()
    elsewhere: tuple[EarlierCurve, ...] = ()
    others: tuple[EarlierCurve, ...] = ()


@dataclass(frozen=True)
class _Found:
    """A curve with the name of its job, its card, when it was measured, and its unit."""

    name: str
    gpu: str
    unit: str | None
    unix_s: float
    curve: EarlierCurve

    def alike(self, baseline: tuple[float, float] | None) -> bool:
        """Whether an iteration at the default setting took as long as now, where both are known."""
        if baseline is None or self.unit != "iteration":
            return True
        own = self.curve.costs[_highest(self.curve.costs)]
        return max(abs(math.log(a / b)) for a, b in zip(own, baseline, strict=True)) < ALIKE


def known_job(
    label: str, device: Device, *, batch_size: int | None = None, baseline: tuple[float, float] | None = None,
    besides: str = "",
) -> KnownJob:
    """What tuned jobs, sweeps and recurring jobs have measured of a job, and of its card. Never raises.

    Args:
        label: Name of the job; without one only other jobs are known.
        device: The GPU that it runs on. Simulated measurements are not used for a real card.
        batch_size: Of the job, where it has one: other ones count only where this one is not known.
        baseline: Time (s) and energy (J) of an iteration at the default setting, where they are measured:
            where an earlier run's are farther off than a tenth, it was of another job.
        besides: A kind of source that is left out, "a sweep" or "a recurring job": the asker's own.
    """
    same, elsewhere = [], []
    others: dict[tuple[str, int | None], EarlierCurve] = {}
    found = _curves(bool(device.simulated), (besides, label))
    for each in sorted(found, key=lambda each: -each.unix_s):
        mine, here, curve = bool(label) and each.name == label, each.gpu == device.name, each.curve
        if mine and each.alike(baseline):
            if here:
                same.append(curve)
            else:
                source = f"{curve.source} on {each.gpu}"
                elsewhere.append(
                    EarlierCurve(curve.costs, source, curve.batch_size, elsewhere=_highest(curve.costs))
                )
        elif here:
            others.setdefault((each.name, curve.batch_size), curve)
    exact = [curve for curve in same if batch_size is None or curve.batch_size in (None, batch_size)]
    same = exact or sorted(same, key=lambda curve: abs(math.log((curve.batch_size or 1) / (batch_size or 1))))
    return KnownJob(tuple(same[:MOST_CURVES]), tuple(elsewhere[:1]), tuple(others.values())[:MOST_CURVES])


def known_limits(
    label: str, device: Device, batch_size: int, limits_w: Iterable[float]
) -> tuple[tuple[tuple[float, float, float], ...], str]:
    """Measured power limits of a recurring job: rows of limit (W), time and energy over those at the
    highest of these limits; and where from, as text.

    Args:
        label: Name of the job.
        device: The GPU it runs on.
        batch_size: Of this run.
        limits_w: Power limits (W) that a profile would try.
    """
    limits, default_w = sorted(limits_w), top_of_device(device).power_limit_w or math.inf
    for curve in known_job(label, device, batch_size=batch_size, besides="a recurring job").same:
        at = {
            limit: cost for limit in limits for setting, cost in curve.costs.items()
            if setting.sm_clock_mhz is setting.mem_clock_mhz is None
            and abs((setting.power_limit_w or default_w) - limit) <= 2.0
        }
        if len(at) > 1:
            time_s, energy_j = at[max(at)]
            rows = tuple((limit, at[limit][0] / time_s, at[limit][1] / energy_j) for limit in sorted(at))
            return rows, f"{len(rows)} settings of this job are known from {curve.source}"
    return (), ""


def keep(label: str, device: Device, jobs: Iterable[tuple[tuple[float, float], Costs]]) -> None:
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


def _curves(simulated: bool, besides: tuple[str, str]) -> Iterator[_Found]:
    """Each job's curves on each card, at each batch size, but those of one kind and name."""
    try:
        rows = Store().observations()
    except StoreError:
        return
    sound = pl.all_horizontal(pl.col("time_s", "energy_j").is_between(1e-12, 1e12))
    rows = rows.filter(sound, pl.col("simulated") == simulated)
    groups: Any = rows.group_by("kind", "name", "gpu", "batch_size", "unit", "run")
    for (kind, name, gpu, batch_size, unit, _), part in groups:
        means = part.group_by(KNOBS, maintain_order=True).agg(pl.col("time_s", "energy_j").log().mean().exp())
        try:
            costs = {Setting(*each[:3]): (each[3], each[4]) for each in means.rows()}
        except UsageError:
            continue
        if len(costs) > 1 and (kind, name) != besides:
            unix_s = float(part["ended_unix_s"].fill_null(0.0).max())
            source = f"{kind} of {time.strftime('%Y-%m-%d', time.localtime(unix_s))}"
            yield _Found(name, gpu, unit, unix_s, EarlierCurve(costs, source, batch_size))


def _highest(settings: Iterable[Setting]) -> Setting:
    """The highest that any of these names of each knob."""
    rows = zip(*(astuple(each) for each in settings), strict=True)
    return Setting(*(max((value for value in row if value is not None), default=None) for row in rows))
