"""Cost of measurements: opening and closing windows, the sampling process, start-up, and the user's cell.

Windows alternate with those of ZeusMonitor (PyPI `zeus`) on the same simulated GPUs; both pay for the same
counter reads. The sampling process is measured from outside: time to the first sample, memory, CPU. It
samples eight simulated GPUs whose NVML is Python. If gcc is available, it also samples the C library of the
tests, whose calls cost as much as a driver call without a driver. The user's cell runs in a kernel, in pairs
with and without `%%energy --live`, with a front end that sends hello and reads every message.

    python -m benchmarks.overhead [--json FILE] [--quick]
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common import arguments, finish, table


def windows(gpus: int, pairs: int) -> dict[str, float]:
    """Median microseconds of an open and close pair: ours without and with synchronisation, and
    ZeusMonitor's.
    """
    from workbench.device.discovery import devices
    from workbench.measurement.meter import Meter
    from workbench.measurement.recorder import Recorder
    from workbench.simulation.machine import simulate

    machine = simulate(["A100"] * gpus, seed=1)
    found = devices()
    recorder = Recorder(found)
    recorder.calibrated()
    meter = Meter(found, recorder, zones=())
    zeus = _zeus(gpus)

    def ours(sync: bool) -> None:
        meter.close(meter.open("w", sync=sync), sync=sync)

    def theirs() -> None:
        zeus.begin_window("w", sync_execution=False)
        zeus.end_window("w", sync_execution=False)

    contenders: dict[str, Callable[[], None]] = {
        "ours_us": lambda: ours(False), "ours_sync_us": lambda: ours(True),
    }
    if zeus is not None:
        contenders["zeus_us"] = theirs
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(pairs):
        for name, act in contenders.items():  # in turns, so that a busy moment of the machine hits all alike
            start = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - start)
    window = meter.close(meter.open("w"))
    start = time.perf_counter()
    meter.settle(window)
    settle_s = time.perf_counter() - start
    start = time.perf_counter()
    meter.measure(window, settle=False)
    measure_s = time.perf_counter() - start
    recorder.stop()
    machine.close()
    result = {name: 1e6 * statistics.median(values) for name, values in times.items()}
    return {"gpus": gpus, **result, "settle_ms": 1e3 * settle_s, "measure_ms": 1e3 * measure_s}


def _zeus(gpus: int) -> Any:
    with contextlib.suppress(ImportError):
        import zeus.device.gpu as module
        from zeus.monitor import ZeusMonitor

        module._gpus = None
        return ZeusMonitor(gpu_indices=list(range(gpus)), cpu_indices=[])
    return None


def sampling(gpus: int, watch_s: float) -> dict[str, float]:
    """The sampling process on simulated GPUs: start-up, memory, CPU, samples kept while the interpreter is
    held.
    """
    from workbench.device.discovery import devices
    from workbench.measurement.recorder import Recorder
    from workbench.simulation.machine import simulate

    machine = simulate(["A100"] * gpus, seed=1)
    found = devices()
    starts = []
    for _ in range(5):
        start = time.perf_counter()
        recorder = Recorder(found)
        recorder.ready()
        starts.append(time.perf_counter() - start)
        recorder.stop()
    recorder = Recorder(found)
    recorder.calibrated()
    time.sleep(3.0)
    result = {"gpus": gpus, "start_ms": 1e3 * statistics.median(starts), **_watched(recorder.pid, watch_s)}
    before_s = machine.clock()
    held = time.perf_counter()
    count = int(3e7)
    while time.perf_counter() - held < 0.2:
        sum(range(count // 10))
    per_s = count / 10 / max((time.perf_counter() - held), 1e-3)
    held = time.perf_counter()
    sum(
        range(int(per_s * (2.0 if watch_s < 10 else 10.0) * 1.6))
    )  # one C call that never lets go of the interpreter
    result["held_s"] = time.perf_counter() - held
    after_s = machine.clock()
    rows = recorder.rows(found[0].uuid, before_s, after_s)
    ticks = np.unique(np.round(rows["tick_s"] / 0.101))
    result["kept_share"] = min(1.0, len(ticks) * 0.101 / (after_s - before_s))
    result["longest_gap_ms"] = 1e3 * float(np.diff(rows["time_s"]).max())
    recorder.stop()
    machine.close()
    return result


def _watched(pid: int | None, watch_s: float) -> dict[str, float]:
    process = psutil.Process(pid)
    before = process.cpu_times()
    time.sleep(watch_s)
    after = process.cpu_times()
    memory = process.memory_full_info()
    return {
        "rss_mb": memory.rss / 1e6, "unshared_mb": memory.uss / 1e6,
        "cpu_share": (after.user + after.system - before.user - before.system) / watch_s,
    }


def sampling_in_c(gpus: int, watch_s: float) -> dict[str, float] | None:
    """CPU of the same sampler, on a thread of a process that does nothing else, on the C library of the
    tests; None without gcc.
    """
    from tests.fixtures.nvml.build import build, compiler
    from workbench.simulation.machine import simulate

    if compiler() is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        library = build(Path(directory))
        code = (
            "import os, threading, time\n"
            "from benchmarks.overhead import _watched\n"
            "from workbench.device import nvml\n"
            "from workbench.measurement.ring import Ring\n"
            "from workbench.measurement.sampler import Sampler\n"
            f"found = [nvml.open_index(i) for i in range({gpus})]\n"
            "assert not nvml.library.library_is_simulated()\n"
            f"ring = Ring.create({str(Path(directory) / 'ring')!r}, [each.uuid for each in found])\n"
            f"ring.own(range({gpus}), shared=False)\n"
            "sampler = Sampler(found, ring, found[0].clock, pause=time.sleep)\n"
            "def sample():\n"
            "    sampler.start()\n"
            "    while True:\n"
            "        wait_s = sampler.due_s() - time.monotonic()\n"
            "        time.sleep(min(wait_s, 1.0)) if wait_s > 0 else sampler.tick()\n"
            "threading.Thread(target=sample, daemon=True).start(); time.sleep(5)\n"
            f"print(_watched(os.getpid(), {watch_s})['cpu_share'])\n"
        )
        machine = simulate(["A100"] * gpus, seed=1)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        machine.close()
        return {"cpu_share": float(found.stdout)} if found.returncode == 0 else None


RANK = """
import json, sys, time
import numpy, polars
from workbench.measurement.session import Session
session = Session(sync=False)
begin, used = time.perf_counter(), time.process_time()
meter = session.meter
print(json.dumps([session.recorder.pid, time.perf_counter() - begin, time.process_time() - used]), flush=True)
sys.stdin.readline()
window = meter.open()
time.sleep(float(sys.argv[1]))
window = meter.close(window)
gpu = meter.measure(window).gpus[0]
print(json.dumps([gpu.uuid, window.start_s, window.end_s, gpu.energy_j, gpu.energy_uncertainty_j]),
      flush=True)
sys.stdin.readline()
session.close()
"""


def ranks(count: int, seconds: float) -> dict[str, float]:
    """Ranks of one job on a node of as many GPUs: set-up, sampling processes, and their energies' sum against
    the node's true energy (J).
    """
    from workbench.simulation.machine import simulate

    machine = simulate(["A100"] * count, seed=1)
    jobs = [
        subprocess.Popen([sys.executable, "-c", RANK, str(seconds)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)})
        for rank in range(count)
    ]

    def answers() -> list[list[Any]]:
        found = [json.loads(job.stdout.readline()) for job in jobs if job.stdout]
        for job in jobs:
            if job.stdin:
                print(file=job.stdin, flush=True)
        return found

    begun, measured = answers(), answers()
    for job in jobs:
        job.communicate()
    numbers = {machine.state.card(gpu, "uuid"): gpu for gpu in range(count)}
    truths_j = [
        machine.gain(numbers[uuid]) * machine.true_energy_j(numbers[uuid], start_s, end_s)
        for uuid, start_s, end_s, _, _ in measured
    ]
    machine.close()
    bars_j, energies_j = [row[4] for row in measured], [row[3] for row in measured]
    return {
        "ranks": count, "gpus_measured": len({row[0] for row in measured}),
        "sampling_processes": len({row[0] for row in begun}), "set_up_s": max(row[1] for row in begun),
        "set_up_cpu_s": statistics.mean(row[2] for row in begun), "energy_j": sum(energies_j),
        "true_j": sum(truths_j), "bars_j": sum(bars_j),
    }


def starting() -> dict[str, float]:
    """Milliseconds of `import workbench` and `%load_ext` beyond IPython, medians over fresh processes."""
    code = (
        "import time, sys; from IPython.core.interactiveshell import InteractiveShell; shell = "
        "InteractiveShell.instance()\n"
        "a = time.perf_counter(); import workbench; b = time.perf_counter()\n"
        "shell.run_line_magic('load_ext', 'kernels_ext'); c = time.perf_counter()\n"
        "heavy = [n for n in ('numpy', 'polars', 'bokeh', 'ipywidgets', 'anywidget', 'lightgbm', 'pynvml') "
        "if n in sys.modules]\n"
        "print(1e3 * (b - a), 1e3 * (c - b), len(heavy))"
    )
    rows = []
    for _ in range(7):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rows.append([float(word) for word in found.stdout.split()])
    imports, loads, heavy = zip(*rows, strict=True)
    return {
        "import_ms": statistics.median(imports), "load_ext_ms": statistics.median(loads),
        "heavy_modules": max(heavy),
    }


PYTHON_CELL = "x = 0\nfor i in range({n}):\n    x += i * i % 7"
NUMPY_CELL = "import numpy as np\na = np.ones((600, 600))\nfor i in range({n}):\n    a = a @ a * 1e-3"


def cells(pairs: int, seconds: float) -> list[dict[str, Any]]:
    """The user's cell with and without `%%energy --live`: CPU of our threads over the cell's, and its
    slow-down with an interval.
    """
    from jupyter_client.manager import start_new_kernel

    from workbench.simulation.machine import simulate

    machine = simulate("A100", seed=1)
    manager, client = start_new_kernel(kernel_name="python3")
    rows = []
    try:
        _run(client, "%load_ext kernels_ext\nimport time, threading, os")
        _run(client, "%%energy warm --live\npass")
        subshell = _subshell(client)
        for name, template in (("pure Python", PYTHON_CELL), ("NumPy", NUMPY_CELL)):
            n = _calibrated(client, template, seconds)
            body = template.format(n=n)
            timed = f"t0, c0, m0 = time.perf_counter(), time.process_time(), time.thread_time()\n{body}\n"
            timed += "t1, c1, m1 = time.perf_counter(), time.process_time(), time.thread_time()"
            plain, live, ours = [], [], []
            for _ in range(pairs):
                for magic, times in (("", plain), ("%%energy --live\n", live)):
                    _run(client, magic + timed, subshell)
                    wall, cpu, mine = (
                        float(word) for word in _run(client, "print(t1 - t0, c1 - c0, m1 - m0)").split()
                    )
                    times.append(wall)
                    if magic:
                        ours.append((cpu - mine) / mine)
                    elif name == "NumPy":
                        ours_base = (cpu - mine) / mine  # BLAS threads are not ours
            base = ours_base if name == "NumPy" else 0.0
            ratios = np.log(np.array(live) / np.array(plain))
            half = 1.96 * ratios.std(ddof=1) / np.sqrt(pairs)
            rows.append(
                {
                    "cell": name, "pairs": pairs, "cell_s": statistics.median(plain),
                    "our_threads_cpu_share": statistics.median(ours) - base,
                    "slow_down": float(np.exp(ratios.mean()) - 1),
                    "slow_down_low": float(np.exp(ratios.mean() - half) - 1),
                    "slow_down_high": float(np.exp(ratios.mean() + half) - 1),
                }
            )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        machine.close()
    return rows


def _calibrated(client: Any, template: str, seconds: float) -> int:
    n = 1000 if "numpy" not in template else 20
    while True:
        taken = float(
            _run(client, f"t0 = time.perf_counter()\n{template.format(n=n)}\nprint(time.perf_counter() - t0)")
        )
        if taken > 0.3:
            return int(n * seconds / taken)
        n *= 4


def _subshell(client: Any) -> str:
    """A shell of the kernel next to the main one, as JupyterLab makes for widgets: the main one is busy
    with the cell.
    """
    client.control_channel.send(client.session.msg("create_subshell_request"))
    return str(client.get_control_msg(timeout=10)["content"]["subshell_id"])


def _run(client: Any, code: str, subshell: str | None = None) -> str:
    """Execute in the kernel, as a front end that shows every widget: it sends hello to each and reads all
    messages.
    """
    texts: list[str] = []

    def listen(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            texts.append(content["text"])
        if (
            subshell
            and message["msg_type"] == "comm_open"
            and "_esm" in str(content.get("data", {}).get("state", {}).keys())
        ):
            hello = {"kind": "hello", "view": content["comm_id"], "bokeh": False}
            said = {"comm_id": content["comm_id"], "data": {"method": "custom", "content": hello}}
            message = client.session.msg("comm_msg", said)
            message["header"]["subshell_id"] = subshell
            client.shell_channel.send(message)

    reply = client.execute_interactive(code, output_hook=listen, timeout=300, allow_stdin=False)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(reply["content"].get("evalue", "the kernel answered with an error"))
    return "".join(texts)


def main() -> None:
    options = arguments(__doc__ or "")
    quick = options.quick
    os.environ.setdefault("WORKBENCH_HOME", tempfile.mkdtemp(prefix="workbench-overhead-"))
    opened = [windows(gpus, 300 if quick else 3000) for gpus in (1, 8)]
    heads = ("gpus", "ours_us", "ours_sync_us", "zeus_us", "settle_ms", "measure_ms")
    print(table(heads, [[row.get(head) for head in heads] for row in opened]), "\n")
    process = sampling(8, 5.0 if quick else 20.0)
    in_c = sampling_in_c(8, 5.0 if quick else 20.0)
    process["cpu_share_with_c_library"] = in_c["cpu_share"] if in_c else float("nan")
    print(table(("sampling process, 8 GPUs", ""), [[name, value] for name, value in process.items()]), "\n")
    job = ranks(8, 2.0 if quick else 5.0)
    print(table(("8 ranks on one node", ""), [[name, value] for name, value in job.items()]), "\n")
    begun = starting()
    print(table(("start", ""), [[name, value] for name, value in begun.items()]), "\n")
    cell = cells(4 if quick else 20, 2.0 if quick else 4.0)
    heads = (
        "cell", "pairs", "cell_s", "our_threads_cpu_share", "slow_down", "slow_down_low", "slow_down_high",
    )
    print(table(heads, [[row[head] for head in heads] for row in cell]))
    summary = {
        "open_close_over_zeus_1": opened[0]["ours_us"] / opened[0].get("zeus_us", float("nan")),
        "open_close_over_zeus_8": opened[1]["ours_us"] / opened[1].get("zeus_us", float("nan")),
        **{
            name: process[name]
            for name in ("start_ms", "rss_mb", "cpu_share", "cpu_share_with_c_library", "kept_share")
        },
        **begun,
        "sampler_share_8_gpus": in_c["cpu_share"] if in_c else process["cpu_share"],
        "live_threads_share": cell[0]["our_threads_cpu_share"],
        "rank_sampling_processes": job["sampling_processes"],
        "rank_set_up_s": job["set_up_s"],
        "rank_error_over_bars": abs(job["energy_j"] - job["true_j"]) / job["bars_j"],
        "live_cpu_share": max(row["our_threads_cpu_share"] for row in cell),
    }
    finish(
        {"summary": summary, "windows": opened, "sampling": process, "ranks": job, "start": begun,
         "cells": cell},
        options.json,
    )


if __name__ == "__main__":
    main()
