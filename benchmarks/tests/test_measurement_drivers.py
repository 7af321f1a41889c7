"""Truth on a third-party driver: the summary, and the report without such a driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import measurement_drivers


def row(machine: str, covered: float, ratio: float | None, counter: str = "integrates") -> dict[str, object]:
    known = {"machine": machine, "counter": counter, "n": 100, "no bar": 1}
    return {**known, "covered": covered, "ours / Zeus": ratio}


def test_the_summary_names_the_machine_that_is_covered_least() -> None:
    rows = [row("good", 0.96, 0.1), row("good", 0.94, 0.3), row("poor", 0.8, 2.0, "sums readings")]
    found = measurement_drivers.summary(rows)
    assert found["mock_covered_min"] == pytest.approx(0.8)
    assert found["mock_covered_max"] == pytest.approx(0.95)
    assert found["mock_covered_least"] == "poor"
    assert found["mock_error_over_zeus_max"] == pytest.approx(0.3)  # of counters that integrate
    assert (found["mock_windows"], found["mock_no_bar"]) == (300, 3)


def test_without_a_driver_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WORKBENCH_TEST_DRIVER", raising=False)
    assert measurement_drivers.run(tmp_path / "data", quick=True) == {}
    assert "no stand-in driver" in capsys.readouterr().out
