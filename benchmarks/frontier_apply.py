"""Applied settings under faults: random sequences of apply and undo that end restored, or report exactly the
settings that remain changed.

    python -m benchmarks.frontier_apply [--json FILE] [--quick]

Each sequence sets a simulated V100 to random configurations and restores some. Faults occur in between: no
rights, a driver that times out, a lost GPU, a limit that another program sets, the limit slider of a live
view, a cell's end, a kernel that is killed (SIGKILL of its own process). In the end everything is undone. The
driver's settings are then compared with those at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from workbench.device import lease
from workbench.device.discovery import open_device
from workbench.errors import DeviceError, WorkbenchError
from workbench.measurement import session as sessions
from workbench.records import Configuration, Setting
from workbench.simulation import machine as machines
from workbench.simulation.machine import Machine
from workbench.tuning import manual

from .common import finish, table

SET_LIMIT, LOCK_SM, RESET_SM = (
    "nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks",
)
NO_PERMISSION, TIMEOUT, LOST = 4, 10, 15
FOUND_W = 250.0
KILLED_SHARE = (
    0.02  # of the sequences run in a process of their own, which is killed; each takes about a second
)
PATIENCE_S = 30.0
ACTS = ("apply", "undo", "default", "others", "refused", "busy", "lost", "slider", "cell ends")
WEIGHTS = (0.34, 0.16, 0.06, 0.08, 0.10, 0.06, 0.06, 0.09, 0.05)

CHILD = """
import sys, time
from workbench.tuning import ManualControl
from workbench.device.discovery import open_device
from workbench.records import Setting
hand = ManualControl(open_device())
for text in sys.argv[1:]:
    limit, clock = text.split(":")
    if limit == "undo":
        hand.undo()
    else:
        hand.apply(Setting(float(limit) if limit else None, int(clock) if clock else None))
print("ready", flush=True)
time.sleep(600)
"""


def sequences(count: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Run random sequences; `silent` counts those that ended neither restored nor with a report. It must be
    0.

    Args:
        count: Number of sequences.
        seed: Random seed.
    """
    begun_s = time.monotonic()
    rng = np.random.default_rng(seed)
    machine = _machine()
    ends: Counter[str] = Counter()
    met: Counter[str] = Counter()
    silent: list[dict[str, Any]] = []
    kept = open_device(1)  # held throughout, so that one watchdog serves all sequences
    lease.change(kept, Setting(power_limit_w=300.0))
    try:
        for number in range(count):
            _reset(machine)
            if rng.random() < KILLED_SHARE or number == 0:
                met["killed kernel"] += 1
                end, story = _killed(machine, rng), ["killed kernel"]
            else:
                end, story = _sequence(machine, rng, met)
            ends[end] += 1
            if end == "silent":
                silent.append(
                    {
                        "sequence": number, "story": story, "limit_w": _limit_w(machine),
                        "locked_mhz": _locked_mhz(machine),
                    }
                )
    finally:
        _reset(machine)
        lease.restore_all()
    return {
        "sequences": count, "seed": seed, "ends": dict(ends), "met": dict(met), "silent": silent,
        "restored_or_said_share": 1 - len(silent) / count if count else 1.0,
        "wall_s": round(time.monotonic() - begun_s, 1),
    }


def _machine() -> Machine:
    present = machines.attached()
    if present is None or present.cards[:2] != ("V100", "A100"):
        sessions.simulate("V100,A100", stepped=True)
        present = machines.attached()
        assert present is not None
    return present


def _limit_w(machine: Machine) -> float:
    return float(machine.state.control(0, "limit_w"))


def _locked_mhz(machine: Machine) -> int:
    return int(machine.state.control(0, "lock_sm_max"))


def _reset(machine: Machine) -> None:
    machine.state.clear_faults()
    machine.state.set_control(0, "lost", 0)
    sessions.current().restore()
    device = next(each for each in sessions.current().devices if each.index == 0)
    with contextlib.suppress(DeviceError):
        lease.change(device, Setting())  # takes up what the sequence before may owe
    lease.restore(device)
    machine.state.change_setting(0, limit_w=FOUND_W)
    device.reset(("sm_clock_mhz",))


def _wanted(rng: np.random.Generator) -> Configuration:
    limit_w = (
        None if rng.random() < 0.3 else float(rng.choice([100, 125, 150, 175, 200, 225, 250, 275]))
    )  # 275 W the card does not take
    clock = (
        None if rng.random() < 0.6 else int(rng.choice([1380, 1200, 1005, 900, 777]))
    )  # 777 MHz it has not
    return Configuration(
        Setting(limit_w, clock), None if rng.random() < 0.8 else int(rng.choice([32, 64, 0]))
    )


def _sequence(machine: Machine, rng: np.random.Generator, met: Counter[str]) -> tuple[str, list[str]]:
    session = sessions.current()
    device = next(each for each in session.devices if each.index == 0)
    hand = manual.ManualControl(device)
    found_w, story, said = FOUND_W, list[str](), list[str]()
    for _ in range(int(rng.integers(2, 11))):
        act = str(rng.choice(ACTS, p=WEIGHTS))
        met[act] += 1
        story.append(act)
        try:
            if not lease.holder(device.uuid) and not lease.owes(device.uuid):
                found_w = _limit_w(machine)
            if act == "apply":
                said += hand.apply(_wanted(rng)).text
            elif act == "undo":
                said.append(hand.undo())
            elif act == "default":
                said += hand.restore_default().text
            elif act == "others":
                others_w = float(rng.choice([110, 185, 215]))
                machine.state.change_setting(0, limit_w=others_w)
                found_w = found_w if lease.holder(device.uuid) else others_w
            elif act in ("refused", "busy"):
                code = NO_PERMISSION if act == "refused" else TIMEOUT
                function = str(rng.choice([SET_LIMIT, LOCK_SM, RESET_SM]))
                machine.inject(function, code, times=int(rng.integers(1, 4)), after=int(rng.integers(0, 2)))
            elif act == "lost":
                machine.lose(0, 0 if machine.state.control(0, "lost") else LOST)
            elif act == "slider":
                session.set_power_limit(device.uuid, float(rng.choice([130, 160, 190])))
            else:
                said += session.restore()
        except WorkbenchError as error:
            story.append(f"  {type(error).__name__}: {error}")
    return _end(machine, hand, found_w, said), story


def _end(machine: Machine, hand: manual.ManualControl, found_w: float, text: list[str]) -> str:
    """Undo everything, in the trouble that there is; then without it, where something is reported to be
    left.
    """
    text += sessions.current().restore()
    said = ""
    try:
        said = hand.undo_all()
    except DeviceError as error:
        said = str(error)
    if said:
        text.append(said)
    if (_limit_w(machine), _locked_mhz(machine)) == (found_w, 0):
        return "restored"
    if not text:
        return "silent"
    if any(f"left alone at {_limit_w(machine):g} W" in each for each in text) and not _locked_mhz(machine):
        return "kept another program's setting, and reported it"
    if any("nothing that was set from here is left" in each for each in text) and not _locked_mhz(machine):
        return "kept another program's setting, and reported it"
    machine.state.clear_faults()
    machine.state.set_control(0, "lost", 0)
    try:
        hand.undo()
    except WorkbenchError:
        return "silent"
    if (_limit_w(machine), _locked_mhz(machine)) == (found_w, 0):
        return "reported the changed setting, and restored it when the GPU answered again"
    said_so = any(f"left alone at {_limit_w(machine):g} W" in each for each in [*text, hand.not_restored])
    return (
        "kept another program's setting, and reported it"
        if said_so and not _locked_mhz(machine)
        else "silent"
    )


def _killed(machine: Machine, rng: np.random.Generator) -> str:
    """A process applies some settings and is killed; its watchdog puts the GPU back."""
    steps = [
        f"{rng.integers(100, 226)}:{rng.choice(['', '1005', '900'])}" for _ in range(int(rng.integers(1, 4)))
    ]
    here = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": here, "WORKBENCH_SIMULATED_GPUS": str(machine.state.path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *steps], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        changed = (_limit_w(machine), _locked_mhz(machine)) != (FOUND_W, 0)
        os.kill(child.pid, signal.SIGKILL)
    uuid = sessions.current().devices[0].uuid
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if changed and (_limit_w(machine), _locked_mhz(machine)) == (FOUND_W, 0) and not lease.holder(uuid):
            return "restored by the watchdog after a kill"
        time.sleep(0.02)
    return "silent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:  # locks and journals of its own
        os.environ["TMPDIR"] = home
        tempfile.tempdir = None
        result = sequences(100 if asked.quick else 1000, asked.seed)
        sessions.current().close()
    print(table(["end of a sequence", "how many"], sorted(result["ends"].items(), key=lambda row: -row[1])))
    for each in result["silent"]:
        print(each)
    share = 100 * result["restored_or_said_share"]
    print(f"{result['sequences']} sequences in {result['wall_s']} s; restored or reported: {share:g} %")
    finish(result, asked.json)


if __name__ == "__main__":
    main()
