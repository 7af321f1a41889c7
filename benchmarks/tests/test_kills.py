"""The trials of the benchmark of kills: what counts as restored, by whom, and what as silent."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import kills
from benchmarks.kills import Outcome, Surrounding

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "WATCHDOG_S", 60.0)  # of a machine with other work


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that put nothing back by themselves, so that every kill leaves something changed."""
    restores = "if rng.random() < 0.03:"
    assert restores in kills.WORK
    monkeypatch.setattr(kills, "WORK", kills.WORK.replace(restores, "if False:"))


EVERY = kills.SURROUNDINGS + kills.STOPS_AND_DISKS + kills.OF_THE_STAND_IN + kills.FAULTS
STAND_IN = os.environ.get("WORKBENCH_TEST_DRIVER")


def named(name: str) -> Surrounding:
    return next(each for each in EVERY if each.name == name)


def permitted(name: str) -> Surrounding:
    surrounding = named(name)
    if problem := kills.permitted(surrounding)[1]:
        pytest.skip(problem)
    return surrounding


@pytest.mark.parametrize("name", ["the kernel", "SIGHUP"])
def test_a_kill_that_spares_the_watchdog_is_restored_by_it(name: str, changed: None) -> None:
    outcome = kills.trial(1, 0, named(name))
    assert (outcome.restored_by, outcome.lost, outcome.silent) == ("watchdog", 0, False)
    assert outcome.delay_s is not None


def test_after_a_kill_of_both_the_next_start_restores_and_reports(changed: None) -> None:
    outcome = kills.trial(2, 0, named("kernel, watchdog and sampler together"))
    assert (outcome.restored_by, outcome.changed_at_kill) == ("next start", True)
    assert ["is restored" in shown for shown in outcome.said] == [True]


def test_an_unreported_change_is_silent_and_a_reported_one_is_not(changed: None) -> None:
    """The next start has no journal of the changes, because it ended with the home. It knows the default."""
    outcome = kills.trial(3, 0, Surrounding("all gone", ("watchdog", "kernel"), home_goes=True))
    assert (outcome.restored_by, outcome.silent, outcome.told) == ("", False, True)
    assert "workbench restore --all" in outcome.said[0]
    wrong = replace(outcome, said=["A100 was left changed; its setting is restored"])
    assert wrong.silent  # it is not
    left, ended = replace(outcome, home_gone=False), replace(outcome, ended_early="refused")
    reported = kills.summary([outcome, replace(outcome, said=[]), left, ended])
    names = ("trials", "told", "not_restored", "silent", "ended_early")
    assert [reported[name] for name in names] == [3, 1, 2, 1, 1]


def test_a_trial_leaves_no_process_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kills.tempfile, "tempdir", str(tmp_path))
    trial = kills.Trial(4, 0, named("sampler, then kernel"))
    trial.run()
    assert trial._processes() == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_stopped_is_alive_and_is_restored_when_it_is_killed(
    changed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "STOPPED_S", 1.0)
    outcome = kills.trial(5, 0, named("stopped, then killed"))
    assert (outcome.changed_at_kill, outcome.restored_by, outcome.silent) == (True, "watchdog", False)


@pytest.mark.parametrize("disk", ["the home's disk full", "the home read-only"])
def test_neither_a_full_disk_nor_a_read_only_home_keeps_a_gpu_changed(disk: str) -> None:
    alive, dead = (kills.trial(6, 0, permitted(f"{disk}{more}")) for more in ("", ", all together"))
    assert (alive.ended_early, dead.ended_early) == ("", "")
    assert (alive.watchdog_failed, alive.silent, dead.silent) == (False, False, False)
    assert alive.restored_by
    assert dead.restored_by


@pytest.mark.skipif(not STAND_IN, reason="WORKBENCH_TEST_DRIVER names no stand-in driver")
@pytest.mark.parametrize("name", [each.name for each in kills.OF_THE_STAND_IN + kills.FAULTS])
def test_a_start_restores_or_reports_with_another_driver(name: str) -> None:
    outcome = kills.trial(7, 0, permitted(name), library=Path(str(STAND_IN)).resolve())
    assert (outcome.ended_early, outcome.silent, outcome.journal_lost) == ("", False, False)
    assert outcome.restored_by
    assert not outcome.hidden or outcome.said


def test_a_change_hidden_from_the_next_start_must_be_reported() -> None:
    hidden = Outcome("x", 0, restored_by="next start", hidden=True)
    assert hidden.silent
    assert not replace(hidden, said=["it is 200 W"]).silent


def test_a_figure_of_no_trials_is_none() -> None:
    reported = kills.summary([Outcome("x", 0, ended_early="exit status -7")])
    assert (reported["trials"], reported["silent"], reported["restore_median_s"]) == (0, 0, None)


def test_every_surrounding_has_a_name_of_its_own_and_every_kill_a_target() -> None:
    every = EVERY
    assert len({each.name for each in every}) == len(every)
    roles = {"kernel", "group", "watchdog", "sampler", "second", "cgroup"}
    assert {role for each in every for role in each.kills} <= roles
    assert len(set(kills.MODULES)) == 30
    assert all(each.with_signal != signal.SIGINT for each in every)
