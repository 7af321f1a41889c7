"""`benchmarks.first_gpu` in its quick form: in the smallest environment, on the stand-in driver, and killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("WORKBENCH_TEST_DRIVER", "")
# What the machine has, next to PyTorch; Polars and platformdirs are carried there as wheels.
PACKAGES = ("numpy", "scipy", "psutil", "nvidia-ml-py", "platformdirs")
STAGES = {"doctor", "rest", "load", "known", "resnet", "gpt", "stall", "overhead"}
ABSENT = ("IPython", "bokeh", "ipywidgets", "jupyterlab", "lightgbm", "optuna")
# A checkout and the wheels may have 60 MiB together; those of Polars 1.20 to 1.30 have 32 to 35.
MOST_BYTES = 24 << 20


def command(python: str, out: Path, *options: str) -> list[str]:
    return [python, "-m", "benchmarks.first_gpu", "--out", str(out), "--quick", *options]


def run(python: str, out: Path, *options: str, **environment: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of a quick run, and the figures of its tables."""
    for arguments in (command(python, out, *options), [
        python, "-m", "benchmarks.first_gpu", "--read", str(out), "--json", str(out / "figures.json")
    ]):
        done = subprocess.run(
            arguments, cwd=ROOT, capture_output=True, text=True, timeout=500, env={**os.environ, **environment}
        )
        assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads((out / "figures.json").read_text())
    (out / "figures.json").unlink()
    return json.loads((out / "results.json").read_text()), figures


def check(out: Path, found: dict[str, Any], figures: dict[str, Any]) -> None:
    assert found["problems"] == {}
    assert found["stages"].keys() == STAGES
    files = list(out.iterdir())
    assert len(files) <= 8
    assert all(file.stat().st_size < 16 << 20 for file in files)
    assert all(figures[title] for title in ("Machine", "Sensors", "Windows", "Trainings", "Cost of sampling"))
    assert {row["training"] for row in figures["Trainings"]} == {"resnet", "gpt", "stall"}
    for row in figures["Trainings"]:
        assert row["counted"] <= row["steps"]
    assert all(row["n"] > 0 and row["bar %"] > 0 for row in figures["Windows"])


def sensor(figures: dict[str, Any], name: str, what: str) -> float:
    return float(next(
        row["measured"] for row in figures["Sensors"] if (row["sensor"], row["what"]) == (name, what)
    ))


def python_of_the_machine() -> str:
    """Python 3.12, where it is installed; else this one."""
    for path in filter(None, (shutil.which("python3.12"),)):
        if subprocess.run([path, "-c", "import venv"], capture_output=True).returncode == 0:
            return path
    return sys.executable


@pytest.mark.slow
def test_it_runs_with_the_packages_of_the_machine_and_the_oldest_polars(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (floor,) = (found[1] for each in project["dependencies"] if (found := re.match(r"polars>=([\d.]+)", each)))
    subprocess.run([python_of_the_machine(), "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = subprocess.run(
        [python, "-m", "pip", "install", "-q", *PACKAGES, f"polars=={floor}.*"], capture_output=True, text=True
    )
    if pip.returncode:
        pytest.skip(f"the packages cannot be installed here: {pip.stderr[-200:]}")
    find = f"from importlib.util import find_spec; print([name for name in {ABSENT} if find_spec(name)])"
    assert subprocess.run([python, "-c", find], capture_output=True, text=True).stdout == "[]\n"
    out = tmp_path / "out"
    found, figures = run(python, out, "--simulate", "H100")
    check(out, found, figures)
    assert found["packages"]["polars"].startswith(floor)
    assert sensor(figures, "power, mean", "averaging window") == pytest.approx(1000, rel=0.2)
    assert sensor(figures, "power, mean", "refresh") == pytest.approx(100, rel=0.2)


@pytest.mark.slow
@pytest.mark.skipif(not DRIVER, reason="WORKBENCH_TEST_DRIVER names no stand-in driver")
def test_it_runs_on_a_driver_that_others_wrote(tmp_path: Path) -> None:
    library = Path(DRIVER).resolve()
    config = library.parents[2] / "configs" / "h100_exact.json"
    if not config.is_file():
        pytest.skip(f"{library} has no machine h100_exact")
    found, figures = run(
        sys.executable, tmp_path / "out", LD_LIBRARY_PATH=str(library.parent), MOCKNVML_CONFIG=str(config),
        MOCKNVML_STATE=str(tmp_path / "state"),
    )
    check(tmp_path / "out", found, figures)
    assert sensor(figures, "energy of the module", "refresh") == pytest.approx(100, rel=0.2)
    assert found["stages"]["doctor"]["simulated"] is False


def test_a_killed_run_leaves_the_tables_of_its_finished_stages(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen(command(sys.executable, out, "--simulate", "A100"), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 300
        while "rest" not in (json.loads(file.read_text())["stages"] if (file := out / "results.json").exists() else {}):
            assert child.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    text = (out / "tables.md").read_text()
    assert re.search(r"\| GPU +\| NVIDIA A100", text)
    assert "not measured" in text
    (out / "rest.jsonl.gz").read_bytes()


def test_missing_packages_are_named_before_anything_runs(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['polars'] = None; sys.argv[0] = 'x'; import runpy; "
    code = hide + "runpy.run_module('benchmarks.first_gpu', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", code, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "these packages are missing: polars. Run `pip install polars`" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_checkout_leaves_room_for_the_wheels() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) < MOST_BYTES
