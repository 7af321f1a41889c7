"""What an earlier run of the same job on the same GPU has measured, kept for the next: evidence, not truth.

A tuned job that has a label leaves what it measured of each setting, relative to its baseline, in one small
file of the store. The next run of that label on a GPU of that name starts from it where its own baseline is
alike; what it says counts as one iteration each, and is left out altogether once a probe contradicts it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import _paths
from ..records import Setting

MOST_JOBS, MOST_SETTINGS, LARGEST_BYTES = 4, 64, 1 << 20
ALIKE = 0.1  # relative, of a baseline's time and energy: the same job; another batch size is another
VERSION = 1


@dataclass(frozen=True, slots=True)
class EarlierSetting:
    """Time and energy of an iteration at a setting, over those at the default setting, in an earlier run."""

    setting: Setting
    time_ratio: float
    energy_ratio: float


def recall(label: str, gpu: str, iteration_s: float, iteration_j: float) -> tuple[EarlierSetting, ...]:
    """What earlier runs of a job with a baseline like this measured, each setting as last, newest first.

    Args:
        label: Of the job; without one nothing is known.
        gpu: The GPU's name, as its driver tells it.
        iteration_s, iteration_j: Of an iteration at the default setting, all GPUs together.
    """
    known: dict[Setting, EarlierSetting] = {}
    for job in _read(_file(label, gpu)) if label else ():
        try:
            off = max(abs(math.log(iteration_s / job["iteration_s"])),
                      abs(math.log(iteration_j / job["iteration_j"])))
            found = [_evidence(*row) for row in job["settings"]]
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            continue
        if off < ALIKE:
            known |= {each.setting: each for each in found if each.setting not in known}
    return tuple(known.values())[:MOST_SETTINGS]


def keep(
    label: str, gpu: str, jobs: Iterable[tuple[tuple[float, float], Mapping[Setting, tuple[float, float]]]]
) -> None:
    """Keep what a run has measured for the next one.

    Args:
        label, gpu: As `recall` takes them; without a label nothing is kept.
        jobs: Time (s) and energy (J) of an iteration: at the default setting, and at each that was measured.

    Raises:
        OSError: it cannot be written.
    """
    new = []
    for (iteration_s, iteration_j), settings in jobs:
        rows = [(*astuple(setting), time_s / iteration_s, energy_j / iteration_j)
                for setting, (time_s, energy_j) in settings.items() if setting != Setting()]
        if rows:
            own = {"iteration_s": iteration_s, "iteration_j": iteration_j, "settings": rows[-MOST_SETTINGS:]}
            new.append(own)
    if not label or not new:
        return
    path = _file(label, gpu)
    kept = [*new[::-1], *_read(path)][:MOST_JOBS]
    whole = {"version": VERSION, "label": label, "gpu": gpu, "jobs": kept}
    with _paths.replacing(path) as file:
        file.write(json.dumps(whole).encode())


def _evidence(
    limit_w: float | None, sm_mhz: int | None, mem_mhz: int | None, time_ratio: float, energy_ratio: float
) -> EarlierSetting:
    if not (0.2 < time_ratio < 20 and 0.05 < energy_ratio < 20):
        raise ValueError("no setting makes that of a job")
    return EarlierSetting(Setting(limit_w, sm_mhz, mem_mhz), float(time_ratio), float(energy_ratio))


def _file(label: str, gpu: str) -> Path:
    name = sha256(f"{gpu}\n{label}".encode()).hexdigest()[:24]
    return _paths.home()[0] / "tuned" / f"{name}.json"


def _read(path: Path) -> list[dict[str, Any]]:
    """Jobs of a file; none where it is missing or damaged."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return []
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    jobs = found.get("jobs") if isinstance(found, dict) and found.get("version") == VERSION else None
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
