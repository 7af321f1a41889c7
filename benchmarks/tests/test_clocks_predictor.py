"""The clock model, scored on applications that it was not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_on_measured_counters_it_beats_plain_trees_on_new_applications(data_dir: Path) -> None:
    if not list((data_dir / "counters").glob("*_microbenchmarks.csv")):
        pytest.skip("there are no measured counters here")
    from benchmarks.clocks_predictor import predictor

    for card in predictor(data_dir, quick=True)["cards"]:
        summary = card["summary"]
        assert summary["time_ratio_to_plain"] < 0.95
        assert summary["power_ratio_to_plain"] < 0.95
        assert summary["choice_regret"] < card["choices"]["always the highest"]["regret"]
