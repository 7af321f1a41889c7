"""What is known of a job and a card from before: from tuned jobs, sweeps and recurring jobs alike.

The same job is one of the same name: the label of a tuned cell, the name of a sweep, the name of a recurring
job. Sweeps (folder `sweeps` of the store) and recurring jobs (`recurring.db`) keep what they measured anyhow
and are read as they are; a tuned job with a label leaves its ratios in one small file of the folder `tuned`.
To forget a job, delete its file, or the folder. What is damaged, or somebody else's, says nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from .. import _paths
from ..device.protocol import Device
from ..errors import UsageError
from ..records import Setting
from ..search.earlier import EarlierCurve
from .history.storage import newest_records
from .trial import KNOBS

MOST_JOBS, MOST_SETTINGS, LARGEST_BYTES = 4, 64, 1 << 20
MOST_FILES, MOST_RECORDS = 24, 200  # that are looked at, newest first
MOST_SAME, MOST_OTHERS = 6, 4  # curves that are handed out, newest first
ALIKE = 0.1  # relative, of a baseline's time and energy: the same job; another batch size is another
LATEST_S = 4e9  # seconds since 1970 that a clock may show
VERSION = 1


@dataclass(frozen=True)
class KnownJob:
    """What is known of a job on a card, newest first.

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
    """A curve with the names of its job and card. `baseline` is of an iteration (s, J), where it is known."""

    label: str
    gpu: str
    kind: str
    unix_s: float
    costs: Mapping[Setting, tuple[float, float]] = field(repr=False)
    top: Setting = field(default_factory=Setting)
    batch_size: int | None = None
    simulated: bool | None = None
    baseline: tuple[float, float] | None = None

    def curve(self, *, elsewhere: bool = False) -> EarlierCurve:
        day = time.strftime("%Y-%m-%d", time.localtime(min(max(self.unix_s, 0.0), LATEST_S)))
        where = f" on {self.gpu}" if elsewhere else ""
        source = f"{self.kind} of {day}{where}"
        return EarlierCurve(self.costs, source, self.batch_size, self.top if elsewhere else None)


def known_job(
    label: str, device: Device, *, batch_size: int | None = None, baseline: tuple[float, float] | None = None,
    besides: str = "",
) -> KnownJob:
    """What tuned jobs, sweeps and recurring jobs have measured of a job, and of its card. Never raises.

    Args:
        label: Name of the job; without one only other jobs are known.
        device: The GPU that it runs on. What a simulated one has shown says nothing of a real one.
        batch_size: Of the job, where it has one: other ones count only where this one is not known.
        baseline: Time (s) and energy (J) of an iteration at the default setting, where they are measured:
            where an earlier run's are farther off than a tenth, it was of another job.
        besides: A kind of source that is left out, "a sweep" or "a recurring job": the asker's own.
    """
    same: list[_Found] = []
    elsewhere: list[_Found] = []
    others: list[_Found] = []
    for each in sorted(_everything(label, besides), key=lambda each: -each.unix_s):
        if each.simulated not in (None, bool(device.simulated)):
            continue
        mine = bool(label) and each.label == label and _alike(each.baseline, baseline)
        if each.gpu == device.name:
            (same if mine else others).append(each)
        elif mine:
            elsewhere.append(each)
    here = [each for each in same if batch_size is None or each.batch_size in (None, batch_size)]
    same = here or sorted(
        same, key=lambda each: abs(math.log(max(each.batch_size or 1, 1) / (batch_size or 1)))
    )
    alike: dict[tuple[str, int | None], _Found] = {}
    for each in others:  # newest first
        alike.setdefault((each.label, each.batch_size), each)
    return KnownJob(
        tuple(each.curve() for each in same[:MOST_SAME]),
        tuple(each.curve(elsewhere=True) for each in elsewhere[:1] if each.top != Setting()),
        tuple(each.curve() for each in list(alike.values())[:MOST_OTHERS]),
    )


def known_limits(
    label: str, device: Device, batch_size: int, limits_w: Iterable[float]
) -> tuple[tuple[tuple[float, float, float], ...], str]:
    """What is known of a recurring job's power limits: rows of limit (W), time and energy over those at the
    highest of these limits; and where from, in words.

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


def keep(
    label: str, device: Device,
    jobs: Iterable[tuple[tuple[float, float], Mapping[Setting, tuple[float, float]]]],
) -> None:
    """Keep what a tuned job has measured for the next one.

    Args:
        label: Of the job; without one nothing is kept.
        device: The GPU, or one of several alike.
        jobs: Time (s) and energy (J) of an iteration: at the default setting, and at each that was measured.

    Raises:
        OSError: it cannot be written.
    """
    new: list[dict[str, Any]] = []
    for (iteration_s, iteration_j), settings in jobs:
        rows = [(*astuple(setting), time_s / iteration_s, energy_j / iteration_j)
                for setting, (time_s, energy_j) in settings.items() if setting != Setting()]
        if rows:
            new.append({
                "iteration_s": iteration_s, "iteration_j": iteration_j, "settings": rows[-MOST_SETTINGS:],
                "unix_s": time.time(), "simulated": bool(device.simulated),
                "top": astuple(top_of_device(device)),
            })
    if not label or not new:
        return
    path = _tuned_file(label, device.name)
    kept = [*new[::-1], *_read_jobs(path)[1]][:MOST_JOBS]
    whole = {"version": VERSION, "label": label, "gpu": device.name, "jobs": kept}
    with _paths.replacing(path) as file:
        file.write(json.dumps(whole).encode())


def top_of_device(device: Device) -> Setting:
    """The default power limit and the highest clocks of a GPU; None where it does not say."""
    limits = device.limits
    default_w = limits.default_power_limit_w
    clocks = limits.sm_clocks_mhz
    return Setting(
        limits.max_power_limit_w if default_w is None else default_w,
        max((max(each) for each in clocks.values() if each), default=None), max(clocks, default=None),
    )


def sweep_file(name: str) -> Path:
    """Where the rows of a sweep of this name are kept."""
    return _paths.home()[0] / "sweeps" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.parquet"


# what is read


def _everything(label: str, besides: str) -> Iterator[_Found]:
    readers: dict[str, Callable[[str], Iterator[_Found]]] = {
        "a tuned run": _tuned, "a sweep": _sweeps, "a recurring job": _recurring,
    }
    for kind, read in readers.items():
        try:
            yield from (each for each in read(label) if kind != besides or each.label != label)
        except Exception:  # what cannot be read says nothing, and no training suffers from it
            continue


def _tuned(label: str) -> Iterator[_Found]:
    for path in _newest(_paths.home()[0] / "tuned", "*.json"):
        whole, jobs = _read_jobs(path)
        for job in jobs:
            try:
                time_s, energy_j = float(job["iteration_s"]), float(job["iteration_j"])
                rows = [each for row in job["settings"] if (each := _evidence(*row)) is not None]
                costs = {setting: (t * time_s, e * energy_j) for setting, t, e in rows[-MOST_SETTINGS:]}
                unix_s, simulated = float(job.get("unix_s") or path.stat().st_mtime), job.get("simulated")
                top = Setting(*job.get("top", ()))
                if not (0 < time_s < math.inf and 0 < energy_j < math.inf and math.isfinite(unix_s)):
                    continue
            except (KeyError, TypeError, ValueError, OSError, UsageError):
                continue
            costs = {Setting(): (time_s, energy_j)} | costs
            yield _Found(str(whole["label"]), str(whole["gpu"]), "a tuned run", unix_s, costs, top,
                         simulated=simulated, baseline=(time_s, energy_j))


def _sweeps(label: str) -> Iterator[_Found]:
    folder = _paths.home()[0] / "sweeps"
    mine = sweep_file(label).name if label else ""
    for path in {each.name: each for each in [*_newest(folder, "*.parquet"), folder / mine]}.values():
        if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
            continue
        try:
            rows = pl.read_parquet(path).filter(pl.col("outcome") == "ok")
            parts: Any = rows.group_by("gpu", "batch_size", "simulated", "unit")
            for (gpu, batch_size, simulated, _), part in parts:
                means = part.group_by(KNOBS, maintain_order=True).agg(
                    pl.col("time_s", "energy_j").log().mean().exp()
                ).filter(*(pl.col(each).is_between(1e-12, 1e12) for each in ("time_s", "energy_j")))
                costs = {Setting(*each[:3]): each[3:] for each in means.rows()}
                latest = part.select(pl.col("ended_unix_s").cast(pl.Float64).max()).item()
                if len(costs) < 2:
                    continue
                yield _Found(
                    label if path.name == mine else path.stem, str(gpu), "a sweep", latest or 0.0, costs,
                    Setting() if Setting() in costs else _highest(costs), batch_size, simulated,
                )
        except (pl.exceptions.PolarsError, OSError, TypeError, ValueError, UsageError):
            continue


def _recurring(label: str) -> Iterator[_Found]:
    path = _paths.home()[0] / "recurring.db"
    taken = set()
    records = newest_records(path, None, MOST_RECORDS)
    for name, record in [*(newest_records(path, label, MOST_RECORDS) if label else ()), *records]:
        try:
            batch_size, gpu = int(record["batch_size"]), str(record["gpu"])
            unix_s, simulated = float(record["heartbeat_unix_s"]), record["simulated"]
            costs = {
                Setting(power_limit_w=float(limit_w)): (float(epoch_s), float(epoch_s) * float(power_w))
                for limit_w, epoch_s, power_w in record.get("profile", ())
                if limit_w > 0 and 0 < epoch_s < math.inf and 0 < power_w < math.inf
            }
        except (KeyError, TypeError, ValueError, AttributeError, UsageError):
            continue
        usable = len(costs) > 1 and batch_size > 0 and math.isfinite(unix_s) and isinstance(simulated, bool)
        if usable and (name, gpu, batch_size) not in taken:
            taken.add((name, gpu, batch_size))
            yield _Found(
                name, gpu, "a recurring job", unix_s, costs, _highest(costs), batch_size, simulated,
            )


def _evidence(
    limit_w: float | None, sm_mhz: int | None, mem_mhz: int | None, time_ratio: float, energy_ratio: float
) -> tuple[Setting, float, float] | None:
    if not (0.2 < time_ratio < 20 and 0.05 < energy_ratio < 20):
        return None  # no setting makes that of a job
    return Setting(limit_w, sm_mhz, mem_mhz), float(time_ratio), float(energy_ratio)


def _alike(before: tuple[float, float] | None, now: tuple[float, float] | None) -> bool:
    if before is None or now is None:
        return True
    return max(abs(math.log(a / b)) for a, b in zip(before, now, strict=True)) < ALIKE


def _highest(settings: Iterable[Setting]) -> Setting:
    """The highest that any of these names of each knob."""
    rows = zip(*(astuple(each) for each in settings), strict=True)
    return Setting(*(max((value for value in row if value is not None), default=None) for row in rows))


def _newest(folder: Path, pattern: str) -> list[Path]:
    found = []
    for each in folder.glob(pattern):
        with contextlib.suppress(OSError):  # gone meanwhile, or a link to nothing
            found.append((-each.stat().st_mtime, each))
    return [each for _, each in sorted(found)[:MOST_FILES]]


def _tuned_file(label: str, gpu: str) -> Path:
    name = sha256(f"{gpu}\n{label}".encode()).hexdigest()[:24]
    return _paths.home()[0] / "tuned" / f"{name}.json"


def _read_jobs(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A file of a tuned job, and its jobs; none where it is missing or damaged."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return {}, []
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}, []
    if not isinstance(found, dict) or found.get("version") != VERSION or not {"label", "gpu"} <= set(found):
        return {}, []
    jobs = found.get("jobs")
    return found, [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
