"""Truth against `%%energy` on a driver that others wrote: a stand-in for `libnvidia-ml` with machines.

`WORKBENCH_TEST_DRIVER` names its library, `build/VERSION/libnvidia-ml.so.1` next to a directory `configs` of
machines. Without it the sources are looked for in `mock_driver` next to the measured data; they are built
where there are a C compiler and NVIDIA's header (PyPI `nvidia-nvml-dev`). Each machine starts fresh and runs
a load of its own in real time. Windows of four lengths overlap, and ZeusMonitor measures the same ones. The
stand-in knows the energy between any two moments.

    python -m benchmarks.measurement_drivers [--data DIR] [--json FILE] [--quick]
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table

LENGTHS_S = {0.1: 1, 0.5: 1, 2.0: 2, 10.0: 9}  # and how many windows of a length are open at a time
SECONDS, QUICK_S = 60.0, 24.0
SETTLED_S = 0.6  # after a window, when it is measured
COLUMNS = (
    "machine", "counter", "window s", "n", "covered", "error %", "bar %", "Zeus error %", "ours / Zeus",
)


def library(data: Path, scratch: Path) -> Path | None:
    """The stand-in's library of one version; None, with a message, where there is none."""
    named = os.environ.get("WORKBENCH_TEST_DRIVER")
    if named:
        return Path(named).resolve()
    sources = data.parent / "mock_driver"
    if not (sources / "Makefile").is_file() or shutil.which("cc") is None or shutil.which("make") is None:
        print(f"no stand-in driver: {sources} or a C compiler is missing")
        return None
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        subprocess.run([*pip, "--dest", str(scratch), "nvidia-nvml-dev"], check=True, timeout=120)
        (wheel,) = scratch.glob("nvidia_nvml_dev-*.whl")
        shutil.unpack_archive(wheel, scratch / "header", "zip")
        shutil.copytree(sources, scratch / "driver")
        (header,) = (scratch / "header").rglob("nvml.h")
        make = ["make", "--silent", "-C", str(scratch / "driver"), f"NVML_H={header}"]
        subprocess.run(make, check=True, timeout=300, stdout=subprocess.DEVNULL)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"no stand-in driver: it could not be built ({error})")
        return None
    return sorted((scratch / "driver" / "build").glob("5[57]*/libnvidia-ml.so.1"))[-1]


def run(data: Path, *, quick: bool) -> dict[str, Any]:
    """Rows and a summary of all machines; empty without a stand-in."""
    with tempfile.TemporaryDirectory() as scratch:
        path = library(data, Path(scratch))
        if path is None:
            return {}
        versions = {each.parent.name: each for each in path.parent.parent.glob(f"*/{path.name}")}
        rows, problems = [], {}
        for config in sorted((path.parents[2] / "configs").glob("*.json")):
            wanted = str(json.loads(config.read_text()).get("driver", ""))[:3]
            try:
                rows += _machine(config, versions.get(wanted, path), QUICK_S if quick else SECONDS)
            except (subprocess.SubprocessError, ValueError) as error:
                problems[config.stem] = str(error)[-400:]
                print(f"{config.stem}: {problems[config.stem]}")
    print(table(COLUMNS, [[row[column] for column in COLUMNS] for row in rows]))
    return {"rows": rows, "problems": problems, "summary": summary(rows)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Least and greatest coverage of a machine, all lengths together; worst ratio to Zeus' error where the
    counter integrates.
    """
    covered = {}
    for name in {row["machine"] for row in rows}:
        mine = [row for row in rows if row["machine"] == name and row["covered"] is not None]
        if mine:
            covered[name] = float(np.average([r["covered"] for r in mine], weights=[r["n"] for r in mine]))
    ratios = [r["ours / Zeus"] for r in rows if r["counter"] == "integrates" and r["ours / Zeus"] is not None]
    return {
        "mock_machines": len(covered), "mock_windows": sum(r["n"] for r in rows),
        "mock_covered_min": min(covered.values(), default=None),
        "mock_covered_max": max(covered.values(), default=None),
        "mock_covered_least": min(covered, key=lambda name: covered[name], default=None),
        "mock_error_over_zeus_max": max(ratios, default=None), "mock_no_bar": sum(r["no bar"] for r in rows),
    }


def _machine(config: Path, path: Path, seconds: float) -> list[dict[str, Any]]:
    """One row per length, measured by a process of its own on a fresh machine."""
    knobs = json.loads(config.read_text())
    sums = {gpu.get("counter", 1) in (2, 6, 7) for gpu in knobs["gpus"]}
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")},
            "LD_LIBRARY_PATH": str(path.parent), "MOCKNVML_CONFIG": str(config),
            "MOCKNVML_STATE": f"{scratch}/state", "WORKBENCH_HOME": f"{scratch}/home",
        }
        child = [sys.executable, "-m", "benchmarks.measurement_drivers", "--machine", str(path), str(seconds)]
        limit_s = 3 * seconds + 120
        done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        raise ValueError(f"ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    windows = json.loads(done.stdout.splitlines()[-1])
    counter = "sums readings" if True in sums else "integrates"
    if sum(each["source"].startswith("integrated") for each in windows) > len(windows) / 2:
        counter = "none"
    rows = []
    for length_s in LENGTHS_S:
        of_length = [each for each in windows if each["length_s"] == length_s]
        barred = [each for each in of_length if each["energy_j"] is not None]
        errors = np.array([abs(each["energy_j"] - each["true_j"]) / each["true_j"] for each in barred])
        bars = np.array([each["half_j"] / each["true_j"] for each in barred])
        zeus = [abs(e["zeus_j"] / e["zeus_true_j"] - 1) for e in barred if e["zeus_j"] is not None]
        ours, theirs = _median(errors), _median(np.array(zeus))
        rows.append({
            "machine": config.stem, "counter": counter,
            "window s": length_s, "n": len(barred), "no bar": len(of_length) - len(barred),
            "covered": float(np.mean(errors <= bars)) if barred else None,
            "error %": ours, "bar %": _median(bars), "Zeus error %": theirs,
            "ours / Zeus": ours / theirs if ours is not None and theirs else None,
        })
    return rows


def _median(shares: np.ndarray) -> float | None:
    return 100 * float(np.median(shares)) if len(shares) else None


def windows_here(path: Path, seconds: float) -> list[dict[str, Any]]:
    """Windows on the machine of this process' environment: measurements and truth."""
    from workbench.measurement import session

    truth = ctypes.CDLL(str(path))
    truth.mock_attach()
    truth.mock_truth_j.restype = ctypes.c_double

    def true_j(gpu: int, start_s: float, end_s: float) -> float:
        low, high = (truth.mock_truth_j(gpu, ctypes.c_double(at_s)) for at_s in (start_s, end_s))
        return float(high - low)

    logging.disable(logging.CRITICAL)
    mine = session.current()
    meter, zeus = mine.meter, _zeus(len(mine.meter.devices))
    numbers = [int(re.findall("[0-9a-f]{2}$", device.uuid)[0], 16) for device in meter.devices]
    started_s: dict[int, float] = {}

    def begin(number: int) -> None:
        if zeus is not None:
            zeus.begin_window(str(number), sync_execution=False)
            started_s[number] = time.monotonic()

    def end(number: int) -> dict[str, Any]:
        end_s, by_gpu = time.monotonic(), None
        if zeus is not None:
            with suppress(Exception):  # whatever a failing driver makes of it
                by_gpu = list(zeus.end_window(str(number), sync_execution=False).gpu_energy.values())
        return {"zeus_s": (started_s.pop(number, 0.0), end_s), "zeus_j": by_gpu}

    found = overlapping(meter, seconds, begin, end)
    mine.close()
    for window in found:
        gpu, by_gpu = numbers[window["gpu"]], window["zeus_j"]
        window["true_j"] = true_j(gpu, window["start_s"], window["end_s"])
        window["zeus_j"] = by_gpu[window["gpu"]] if by_gpu else None
        window["zeus_true_j"] = true_j(gpu, *window["zeus_s"]) if by_gpu else None
    return found


def overlapping(
    meter: Any, seconds: float, begin: Callable[[int], None], end: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Windows of each length at random moments, several open at a time: one row per window and GPU.

    Args:
        meter: Opens, closes and measures them.
        seconds: For how long.
        begin: Called where a window opens, with its number.
        end: Called where it closes, with its number. Its result is added to the row.
    """
    rng, began_s, plan = random.Random(1), time.monotonic() + 0.3, []
    for length_s, at_once in LENGTHS_S.items():
        for _ in range(at_once):
            start_s = began_s + rng.random() * length_s
            while start_s + length_s < began_s + seconds:
                lasts_s = length_s * rng.uniform(0.95, 1.05)
                plan.append((start_s, start_s + lasts_s, length_s))
                start_s += lasts_s + rng.uniform(0.2, 0.45)
    events = sorted(
        event for number, (start_s, end_s, _) in enumerate(plan)
        for event in (
            (start_s, number, "open"), (end_s, number, "close"), (end_s + SETTLED_S, number, "measure"),
        )
    )
    opened: dict[int, Any] = {}
    others: dict[int, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for at_s, number, what in events:
        time.sleep(max(0.0, at_s - time.monotonic()))
        if what == "open":
            opened[number] = meter.open(str(number), sync=False)
            begin(number)
        elif what == "close":
            others[number] = end(number)
            opened[number] = meter.close(opened[number], sync=False)
        else:
            window, other = opened.pop(number), others.pop(number)
            for place, gpu in enumerate(meter.measure(window, settle=False).gpus):
                found.append({
                    "gpu": place, "length_s": plan[number][2], "source": gpu.source,
                    "start_s": window.start_s, "end_s": window.end_s, "energy_j": gpu.energy_j,
                    "half_j": gpu.energy_uncertainty_j, "notes": list(gpu.notes), **other,
                })
    return found


def _zeus(gpus: int) -> Any:
    """ZeusMonitor of all GPUs; None where it does not work on them."""
    with suppress(Exception):
        from zeus.monitor import ZeusMonitor

        return ZeusMonitor(gpu_indices=list(range(gpus)))
    return None


def main() -> None:
    if sys.argv[1:2] == ["--machine"]:
        print(json.dumps(windows_here(Path(sys.argv[2]), float(sys.argv[3]))))
        return
    options = arguments(__doc__ or "")
    found = run(options.data, quick=options.quick)
    if found:
        print(json.dumps(found["summary"], indent=1))
    finish(found or {"summary": {}}, options.json)


if __name__ == "__main__":
    main()
