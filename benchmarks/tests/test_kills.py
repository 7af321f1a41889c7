"""The trials of the benchmark of kills: what counts as restored, by whom, and what as silent."""

from __future__ import annotations

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


def named(name: str) -> Surrounding:
    return next(each for each in kills.SURROUNDINGS if each.name == name)


@pytest.mark.parametrize("name", ["the kernel", "SIGHUP"])
def test_a_kill_that_spares_the_watchdog_is_restored_by_it(name: str, changed: None) -> None:
    outcome = kills.trial(1, 0, named(name))
    assert (outcome.restored_by, outcome.lost, outcome.silent) == ("watchdog", 0, False)
    assert outcome.delay_s is not None


def test_a_kill_of_both_is_restored_by_the_next_start_which_says_so(changed: None) -> None:
    outcome = kills.trial(2, 0, named("kernel, watchdog and sampler at once"))
    assert (outcome.restored_by, outcome.changed_at_kill) == ("next start", True)
    assert ["is restored" in shown for shown in outcome.said] == [True]


def test_an_unreported_change_is_silent_and_a_reported_one_is_not(changed: None) -> None:
    """No journal tells the next start what was set: it went with the home. The default does."""
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


def test_a_figure_of_no_trials_is_none() -> None:
    reported = kills.summary([Outcome("x", 0, ended_early="exit status -7")])
    assert (reported["trials"], reported["silent"], reported["restore_median_s"]) == (0, 0, None)


def test_every_surrounding_has_a_name_of_its_own_and_every_kill_a_target() -> None:
    every = kills.SURROUNDINGS
    assert len({each.name for each in every}) == len(every)
    assert {role for each in every for role in each.kills} <= {
        "kernel",
        "group",
        "watchdog",
        "sampler",
        "second",
        "cgroup",
    }
    assert len(set(kills.MODULES)) == 30
    assert all(each.with_signal != signal.SIGINT for each in every)
