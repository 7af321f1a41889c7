"""Recordings of any shape are examined or reported, and the figures count correctly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks import recordings

HEAD = b"time_s,gpu,power_w,energy_j\n"
UNUSABLE = {
    "empty.csv": b"", "head.csv": b"time_s,gpu,power_w,energy_j\n", "junk.csv": bytes(range(256)),
    "other.csv": b"a,b\n1,2\n", "one.csv": b"time_s,gpu,power_w,energy_j\n0,0,50,1\n",
    "no_power.csv": HEAD + b"".join(b"%d,0,,%d\n" % (n, 50 * n) for n in range(90)),
    "no_energy.csv": HEAD + b"".join(b"%d,0,50,\n" % n for n in range(90)),
    "back.csv": HEAD + b"".join(b"%d,0,50,%d\n" % (n, 90 - n) for n in range(90)),
}


def square(seconds: float = 60.0, pace_s: float = 0.05) -> pl.DataFrame:
    """A load of 100 and 300 W in periods of 2 s, read at random moments around a pace."""
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.uniform(0.9, 1.1, round(seconds / pace_s)) * pace_s)
    within_s = at_s % 2.0
    energy_j = 400.0 * (at_s // 2.0) + 100 * np.minimum(within_s, 1.0) + 300 * np.maximum(within_s - 1.0, 0.0)
    busy = within_s >= 1.0
    return pl.DataFrame({
        "time_s": at_s, "gpu": "0", "power_w": np.where(busy, 300.0, 100.0), "energy_j": energy_j,
        "sm_active": busy.astype(float), "phase": np.where(busy, "work", "wait"),
    })


def test_what_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name, content in UNUSABLE.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["", "--data", str(tmp_path), "--json", str(tmp_path / "found.json")])
    recordings.main()
    found = json.loads((tmp_path / "found.json").read_text())
    reported = {each["recording"] for each in found["unusable"]}
    assert reported == {name.removesuffix(".csv") for name in UNUSABLE}
    assert "Error" not in capsys.readouterr().out
    assert found["summary"]["periods_wrong_sure"] == 0


def test_windows_keep_out_of_gaps() -> None:
    part = square().filter(~pl.col("time_s").is_between(20.0, 30.0))
    at_s = part["time_s"].to_numpy()
    holes = recordings.gaps(part)
    assert holes.shape == (1, 2)
    for first, last in recordings.windows(at_s, 5.0, holes, np.random.default_rng(1)):
        assert not at_s[first] < 25.0 < at_s[last]


def test_a_counter_that_is_read_less_often_is_in_the_bars() -> None:
    for figure in recordings.FIGURES:
        rows, ratio = recordings.coverage(square(), figure)
        assert ratio == pytest.approx(1.0, abs=0.01)
        assert min(row["covered"] for row in rows if row["length_s"] <= 5.0) > 0.85


def test_periods_of_phases_and_signals() -> None:
    assert recordings.period_of_phases(square()) == pytest.approx(2.0, rel=0.05)
    assert recordings.period_of_signal(square(), "sm_active") == pytest.approx(2.0, rel=0.05)
    assert recordings.period_of_phases(square(pace_s=1.0)) is None
