"""The simulator's physics, scored on data outside of its fit."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_model_predicts_held_out_limits_of_the_v100(data_dir: Path) -> None:
    path = data_dir / "zeus" / "summary_power_v100.csv"
    if not path.exists():
        pytest.skip("the Zeus power traces are not here; set WORKBENCH_DATA to their folder")
    pytest.importorskip("scipy", reason="fitting needs SciPy")
    from benchmarks.physics import measure

    held_out = measure(path, quick=True)["held_out_limits"]
    never_fitted = held_out["physics"]["never fitted"]
    assert never_fitted["time"] <= 3.5
    assert never_fitted["power"] <= 3.0
    assert never_fitted["time"] < held_out["interpolation"]["never fitted"]["time"]
