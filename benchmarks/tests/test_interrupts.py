"""The trials of the benchmark of interrupts: they interrupt at the named place, and find remaining changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import interrupts
from workbench.measurement import session
from workbench.tuning import TunerThread


@pytest.fixture
def own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_current", None)
    for name in ("WORKBENCH_HOME", "WORKBENCH_SIMULATED_GPUS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_trial_interrupts_and_finds_nothing_left(own_session: None) -> None:
    outcomes = interrupts.run(12, seed=3)
    found = interrupts.summary(outcomes)
    assert found["trials"] == 12
    assert found["interrupts"] >= 12
    assert (found["left"], found["not_measured"]) == (0, 0), [each.left for each in outcomes]
    assert all(Path(place.partition(":")[0]).suffix == ".py" for each in outcomes for place in each.places)


def test_a_tuner_that_outlives_its_cell_is_found(own_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "SETTLES_S", 0.0)
    ended = []

    def end(thread: TunerThread) -> None:
        ended.append(thread)

    monkeypatch.setattr(TunerThread, "end", end)
    monkeypatch.setattr(interrupts, "CELLS", {"tuning": interrupts.CELLS["tuning in a cell"]})
    assert any(each.left for each in interrupts.run(5, seed=1))
    monkeypatch.undo()
    for each in ended:
        each.end()
