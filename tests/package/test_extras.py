"""A part that needs an extra names the missing extra in one sentence; everything else needs only a plain
install.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench
from workbench.errors import StoreError, UsageError
from workbench.experiments.executors import dask_client
from workbench.experiments.history.storage import open_study, translate_storage_errors
from workbench.simulation.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
THE_BRIEFS_SIX = {"jupyterlab", "ipywidgets", "nvidia-ml-py", "bokeh", "polars", "lightgbm"}
# What a person brings: frameworks that are measured.
BROUGHT = {"torch"}
IMPORTED_AS = {"pynvml": "nvidia-ml-py", "IPython": "ipython", "distributed": "dask", "sqlalchemy": "optuna"}


def named(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement)[0]


PLAIN = {named(each) for each in PROJECT["dependencies"]}


def postgres() -> None:
    url = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with translate_storage_errors(url):
        open_study("job", url)


@pytest.mark.parametrize(("library", "use", "kind", "extra"), [
    ("distributed", lambda: dask_client(["GPU-0"]), UsageError, "cluster"),
    ("psycopg", postgres, StoreError, "postgres"),
    ("wandb", lambda: workbench.log_to("wandb"), UsageError, "sinks"),
    ("mlflow", lambda: workbench.log_to("mlflow"), UsageError, "sinks"),
    ("torch.utils.tensorboard", lambda: workbench.log_to("tensorboard"), UsageError, "sinks"),
])
def test_a_part_that_misses_its_extra_names_it(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, library: str,
    use: Callable[[], object], kind: type[Exception], extra: str,
) -> None:
    simulated("V100", scale=4.0)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(kind, match=rf"pip install (torch )?'gpu-energy-workbench\[{extra}\]'") as raised:
        use()
    assert extra in PROJECT["optional-dependencies"]
    assert len(str(raised.value).splitlines()) == 1


def test_a_plain_install_has_the_six_and_nothing_that_the_product_never_imports() -> None:
    assert PLAIN >= THE_BRIEFS_SIX
    imported = set()
    for folder in ("workbench", "kernels_ext"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names = [node.module]
                imported |= {each.split(".")[0] for each in names}
    packages = {IMPORTED_AS.get(name, name) for name in imported - sys.stdlib_module_names}
    packages -= {"workbench", "kernels_ext"}
    # Where it lives; widgets are met through anywidget, and Bokeh is the JavaScript in its wheel.
    assert PLAIN - packages <= {"jupyterlab", "ipykernel", "ipywidgets", "bokeh"}
    # MLflow is one of several sinks that are found by name, and imported where one is asked for.
    extras = {named(each) for name in ("cluster", "sinks") for each in PROJECT["optional-dependencies"][name]}
    extras -= {"mlflow-skinny"}
    assert packages - PLAIN == extras | BROUGHT


def test_the_version_is_defined_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", workbench.__version__)
    places = [
        path for path in ROOT.rglob("*.py")
        if not {"build", "node_modules"} & set(path.parts) and not any(part.startswith(".venv") for part in path.parts)
        and re.search(r'^__version__ = "', path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert places == [ROOT / "workbench" / "__init__.py"]
