"""Killed at a random moment: is the power limit put back, and is every finished measurement on disk?

Each trial starts a process that, cell after cell, opens a window, lowers the power limit, works, measures and stores, and tells when a
measurement is stored; it is killed (SIGKILL, every second time its whole process group) at a random moment after its first change.

    python -m benchmarks.kills [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import arguments, finish

CHILD = """
import random, sys, time
from workbench import session
from workbench.device import control
from workbench.records import Setting
from workbench.store import Store

mine, store, rng = session.current(), Store(), random.Random(int(sys.argv[1]))
meter, device = mine.meter, mine.devices[0]
while True:
    window = meter.open("cell")
    mine.set_power_limit(device.uuid, float(rng.randrange(120, 380)))
    print("changed", flush=True)
    time.sleep(rng.uniform(0.0, 0.08))
    mine.set_power_limit(device.uuid, float(rng.randrange(120, 380)))
    window = meter.close(window)
    measurement = meter.measure(window, settle=False)
    store.save(measurement, {device.uuid: meter.recorder.trace(device.uuid, window.start_s, window.end_s)})
    print("stored", measurement.id, flush=True)
    if rng.random() < 0.3:
        mine.restore()
"""


def main() -> None:
    options = arguments(__doc__ or "")
    trials = 10 if options.quick else 100
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        os.environ["WORKBENCH_HOME"] = directory
        from workbench.finder import open_device
        from workbench.simulation.machine import simulate
        from workbench.store import Store

        machine = simulate("A100", seed=1)
        device = open_device(0)
        default_w = device.setting().power_limit_w
        rng = random.Random(7)
        restored, delays_s, stored, lost = 0, [], 0, 0
        for trial in range(trials):
            told = _killed(trial, rng)
            started = time.monotonic()
            while device.setting().power_limit_w != default_w and time.monotonic() - started < 10:
                time.sleep(0.005)
            journals = list((Path(directory) / "journals").glob("*.json"))
            while journals and time.monotonic() - started < 10:
                time.sleep(0.01)
                journals = list((Path(directory) / "journals").glob("*.json"))
            good = device.setting().power_limit_w == default_w and not journals
            restored += good
            delays_s.append(time.monotonic() - started)
            store = Store()
            kept = set(store.log()["id"].to_list())
            lost += len(told - kept) + len(store.messages())
            stored += len(told)
            print(f"\r{trial + 1}/{trials}: restored {restored}, measurements stored {stored}, lost {lost}", end="", flush=True)
        machine.close()
    delays_s.sort()
    result = {"trials": trials, "restored": restored, "stored": stored, "lost": lost,
              "restore_median_s": delays_s[len(delays_s) // 2], "restore_max_s": delays_s[-1]}  # fmt: skip
    print(f"\nrestored {restored} of {trials}, in {result['restore_median_s']:.3f} s (median; at most {delays_s[-1]:.3f} s); "
          f"{lost} of {stored} stored measurements lost")  # fmt: skip
    finish({"summary": result}, options.json)


def _killed(trial: int, rng: random.Random) -> set[str]:
    """One process, killed at a random moment after its first change; ids of the measurements that it said were stored."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(trial)], stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    deadline = time.monotonic() + rng.uniform(0.0, 1.2)
    while time.monotonic() < deadline:
        time.sleep(0.001)
    if trial % 2:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    rest = child.stdout.read()
    child.wait()
    return {line.split()[1] for line in rest.splitlines() if line.startswith("stored ") and len(line.split()) == 2}


if __name__ == "__main__":
    main()
