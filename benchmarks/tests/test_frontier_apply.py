"""Random sequences of changes, faults and kills of `benchmarks.frontier_apply`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.frontier_apply import sequences
from workbench.device import lease, watchdog
from workbench.measurement import session as sessions


@pytest.mark.usefixtures("simulated")
def test_random_sequences_with_faults_restore_or_report_the_remaining_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sessions.current().close()
    try:
        found = sequences(25, seed=5)
    finally:
        sessions.current().close()
        lease._held.clear()
        lease._owed.clear()
        watchdog.stop()
    assert found["silent"] == []
    assert sum(found["ends"].values()) == 25
    assert found["ends"].get("restored", 0) > 5
