"""Private parts of libraries that the product stands on, and the upper bounds that they are the reason for.

A bound may be lifted to the next major version where these tests and `tests/contracts/test_subshell.py` pass
against it: install it beside the others (`pip install --target DIR`) and put the directory on PYTHONPATH.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path

import optuna
import pytest
from ipykernel.comm.comm import BaseComm

from workbench.experiments.history.storage import open_study, storage_url
from workbench.panels._core.live import bokeh_js

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.mark.parametrize("library", ["bokeh", "ipykernel", "optuna"])
def test_a_library_whose_private_parts_are_used_is_bounded_above_by_its_next_major_version(library: str) -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (bound,) = (found[1] for each in declared if (found := re.fullmatch(rf"{library}>=[\d.]+,<(\d+)", each)))
    assert int(importlib.metadata.version(library).split(".")[0]) + 1 == int(bound)


def test_bokehs_wheel_has_the_library_for_the_browser_and_its_way_in() -> None:
    version, packed = bokeh_js()
    assert version == importlib.metadata.version("bokeh")
    text = gzip.decompress(packed).decode()
    for name in ("add_document_standalone", "ColumnDataSource", "BasicTicker", "VStrip", "HoverTool"):
        assert name in text


def test_ipykernels_comm_is_asked_for_the_shell_with_two_arguments_or_not_at_all() -> None:
    asked = getattr(BaseComm, "_reply_subshell_for", None)
    assert asked is None or list(inspect.signature(asked).parameters) == ["self", "data", "default"]


def test_optunas_study_shows_its_storage(tmp_path: Path) -> None:
    study = open_study("job", storage_url(tmp_path / "study.db"), optuna.samplers.RandomSampler())
    storage, number = study._storage, study._study_id
    trial = storage.create_new_trial(number, template_trial=optuna.trial.create_trial(value=1.0))
    assert storage.get_trial_number_from_id(trial) == 0
    assert storage.get_trial_id_from_study_id_trial_number(number, 0) == trial
    running = study.ask()
    storage.set_trial_user_attr(running._trial_id, "key", "value")
    assert storage.set_trial_state_values(running._trial_id, optuna.trial.TrialState.COMPLETE, [2.0])
    assert [(each.values, each.user_attrs) for each in study.trials] == [([1.0], {}), ([2.0], {"key": "value"})]
    getattr(storage, "_backend", storage).engine.dispose()
