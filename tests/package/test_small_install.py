"""A small installation: measuring, `workbench run` and the log work without JupyterLab and its kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("numpy", "nvidia-ml-py", "platformdirs", "polars", "psutil", "scipy")  # as docs/how-to/install.md has it
ABSENT = (
    "IPython", "anywidget", "argcomplete", "bokeh", "cloudpickle", "ipykernel", "ipywidgets", "jupyter_client",
    "jupyterlab", "lightgbm", "notebook", "optuna", "tqdm", "traitlets",
)
BLOCK = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
SCRIPT = """
import json, sys, workbench
from workbench import cli

workbench.simulate("A100")
with workbench.measure("epoch") as result:
    for _ in workbench.example_training(iterations=20):
        workbench.step()
seen = {"line": str(result), "energy_j": result.energy_j, "iterations": result.found.summary.count}
seen["run"] = cli.main(["run", "--simulate", "A100", "--label", "night", "--", "sleep", "0.5"])
seen["log"] = cli.main(["log"])
seen["report"] = cli.main(["report", "epoch"])

def error(act):
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

seen["show"] = error(workbench.show)
seen["job"] = error(lambda: workbench.RecurringJob("nightly", [32, 64]))
seen["completion"] = cli.main(["completion", "bash"])
print(json.dumps(seen))
"""


def ran(python: str, code: str, home: Path) -> tuple[dict[str, object], str]:
    """The script's result and its other printed text."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORKBENCH_HOME": str(home)}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    return json.loads(last), "\n".join(printed) + done.stderr


def check(found: dict[str, object], printed: str) -> None:
    assert "epoch: " in str(found["line"])
    assert "J (sensor" in str(found["line"])
    assert float(str(found["energy_j"])) > 0
    assert int(str(found["iterations"])) > 10
    assert (found["run"], found["log"], found["report"]) == (0, 0, 0)
    assert "night: " in printed
    assert "epoch  block" in printed
    assert "pip install ipywidgets" in str(found["show"]) or "pip install bokeh" in str(found["show"])
    assert "pip install optuna" in str(found["job"])
    assert found["completion"] == 2
    assert "pip install argcomplete" in printed


@pytest.mark.slow
def test_measuring_and_the_log_work_where_jupyter_and_optuna_are_absent(tmp_path: Path) -> None:
    check(*ran(sys.executable, BLOCK + SCRIPT, tmp_path))


@pytest.mark.slow
def test_the_packages_of_the_small_installation_suffice(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = subprocess.run([python, "-m", "pip", "install", "-q", *SMALL], capture_output=True, text=True)
    if pip.returncode:
        pytest.skip(f"the packages cannot be installed here: {pip.stderr[-200:]}")
    check(*ran(python, SCRIPT, tmp_path / "home"))


def test_the_install_guide_names_the_packages_of_the_small_installation() -> None:
    guide = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    assert f"pip install {' '.join(SMALL)}" in guide
