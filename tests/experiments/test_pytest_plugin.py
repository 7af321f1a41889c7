"""Tests that may fail on joules: three verdicts, baselines, a table at the end."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.experiments.pytest_plugin import BASELINE_RUNS, FILE, RUNS, EnergyBaseline, verdict

PLUGIN = "workbench.experiments.pytest_plugin"
JOB = """
import workbench
from workbench.measurement import session
from workbench.simulation.machine import attached

workbench.simulate("V100", stepped=True)
_ = session.current().meter
attached().step(3.0)
POWER_W = {power_w}

def train():
    machine = attached()
    machine.state.publish(0, machine.clock(), [], (POWER_W, 1380, 877, 1.0, 0.5, 0))
    machine.step(2.0)
"""


def run(directory: Path, test: str, *options: str, power_w: float = 200.0) -> str:
    """What pytest writes about one test in a directory of its own."""
    (directory / "test_it.py").write_text(JOB.format(power_w=power_w) + test, encoding="utf-8")
    repository = str(Path(__file__).parent.parent.parent)
    keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:workbench-energy", "-p", PLUGIN, "-p", "no:cacheprovider", "-rs", *options]
    done = subprocess.run([*command, "-c", os.devnull, "--rootdir", str(directory), str(directory)], text=True,
                          capture_output=True, env=keep | {"PYTHONPATH": repository}, timeout=300)
    return done.stdout + done.stderr


def drawn(level_j: float, runs: int, seed: int, noise: float = 0.02) -> list[float]:
    return list(math.log(level_j) + noise * np.random.default_rng(seed).normal(size=runs))


def baseline(seed: int) -> EnergyBaseline:
    logs = drawn(100.0, BASELINE_RUNS, seed)
    return EnergyBaseline(float(np.mean(logs)), float(np.std(logs, ddof=1)), BASELINE_RUNS)


def test_an_unchanged_step_is_never_called_worse() -> None:
    verdicts = [verdict(drawn(100.0, RUNS, 10_000 + seed), baseline(seed)) for seed in range(300)]
    assert verdicts.count("worse") == 0
    assert verdicts.count("not worse") > 290


def test_five_percent_more_is_found() -> None:
    verdicts = [verdict(drawn(105.0, RUNS, 10_000 + seed), baseline(seed)) for seed in range(300)]
    assert verdicts.count("worse") > 0.95 * 300
    assert verdicts.count("not worse") < 0.03 * 300


def test_a_limit_in_joules_has_three_verdicts() -> None:
    logs = drawn(100.0, RUNS, 1)
    assert [verdict(logs, limit) for limit in (90.0, 100.0, 110.0)] == ["worse", "cannot tell", "not worse"]


def test_a_limit_is_kept_or_fails_with_a_table(tmp_path: Path) -> None:
    kept = run(tmp_path, "\ndef test_kept(energy):\n    energy.assert_at_most(train, joules=500)\n")
    assert "1 passed" in kept
    assert "against 500 J" in kept
    assert ": not worse" in kept
    broken = run(tmp_path, "\ndef test_broken(energy):\n    energy.assert_at_most(train, joules=300)\n")
    assert "1 failed" in broken
    assert ": worse" in broken


def test_a_baseline_is_written_and_held(tmp_path: Path) -> None:
    test = "\ndef test_step(energy):\n    energy.assert_at_most(train, baseline='step')\n"
    assert "1 skipped" in (missing := run(tmp_path, test))
    assert "--energy-update" in missing
    assert "baseline written" in run(tmp_path, test, "--energy-update")
    (kept,) = json.loads((tmp_path / FILE).read_text())["step"].values()
    assert math.exp(kept["log_j"]) == pytest.approx(400, rel=0.02)
    assert "1 passed" in run(tmp_path, test)
    assert "1 failed" in run(tmp_path, test, power_w=215.0)


def test_a_damaged_file_of_baselines_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[1, 2", encoding="utf-8")
    test = "\ndef test_step(energy):\n    energy.assert_at_most(train, baseline='step')\n"
    assert f"{FILE} cannot be read" in run(tmp_path, test)


def test_without_a_gpu_it_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_step(energy):\n    energy.assert_at_most(print, joules=1)\n", encoding="utf-8")
    keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    repository = str(Path(__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:workbench-energy", "-p", PLUGIN, "-p", "no:cacheprovider", "-rs", "-c", os.devnull,
         "--rootdir", str(tmp_path), str(tmp_path)],
        text=True, capture_output=True, env=keep | {"PYTHONPATH": repository}, timeout=300)
    assert "1 skipped" in done.stdout
    assert "--energy-simulate V100" in done.stdout
