"""`workbench restore`: what an epilog or a preStop hook calls."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable

import pytest

import workbench
from workbench import cli
from workbench.device import journal, restore
from workbench.simulation.machine import Machine


@pytest.fixture
def left_changed(simulated: Callable[..., Machine]) -> Machine:
    """A GPU at 200 W, by a process of this boot that is gone and had another host name."""
    machine = simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    with gpu.applied(power_limit_w=200.0):
        mine = journal.of(gpu.uuid)
    assert mine is not None
    dataclasses.replace(mine, pid=2**22 + os.getpid() % 1000, host="an-earlier-container").write()
    machine.state.change_setting(0, limit_w=200.0)
    assert gpu.setting().power_limit_w == 200.0
    return machine


def limit_w() -> float | None:
    return workbench.open_device(0).setting().power_limit_w


def test_a_container_of_the_same_boot_counts_as_this_machine(left_changed: Machine) -> None:
    assert workbench.open_device(0).name in "".join(restore.recover())
    assert limit_w() == 400.0


def test_a_dry_run_reports_and_changes_nothing(
    left_changed: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["restore", "--dry-run"]) == 0
    assert "power_limit_w" in capsys.readouterr().out
    assert limit_w() == 200.0
    assert cli.main(["restore"]) == 0
    assert "power limit" in capsys.readouterr().out
    assert limit_w() == 400.0
    assert cli.main(["restore"]) == 0
    assert "No settings" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file to another user")
def test_a_root_epilog_restores_the_default_for_a_users_journal(
    left_changed: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root follows no journal of another user, and puts the GPU to its default."""
    found = journal.of(workbench.open_device(0).uuid)
    assert found is not None
    os.chown(found.path, 65534, 65534)
    assert cli.main(["restore"]) == 1
    assert "is another user's" in capsys.readouterr().out
    assert (cli.main(["restore", "--all"]), limit_w()) == (0, 400.0)
    assert not found.path.exists()
    assert cli.main(["restore"]) == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a file to another user")
def test_an_epilog_changes_only_the_settings_in_the_users_journal(simulated: Callable[..., Machine]) -> None:
    machine = simulated("A100,A100", stepped=True)
    used, capped = workbench.open_device(0), workbench.open_device(1)
    machine.state.change_setting(0, limit_w=300.0)  # an administrator's, as those of the other GPU
    machine.state.change_setting(1, limit_w=300.0, lock_sm_min=900, lock_sm_max=900)
    with used.applied(power_limit_w=200.0):
        mine = journal.of(used.uuid)
    assert mine is not None
    left = dataclasses.replace(mine, pid=2**22 + os.getpid() % 1000)
    left.write()
    os.chown(left.path, 65534, 65534)
    machine.state.change_setting(0, limit_w=200.0)
    assert cli.main(["restore", "--other-users"]) == 0
    assert (used.setting().power_limit_w, capped.setting().power_limit_w) == (300.0, 300.0)
    assert machine.state.control(1, "lock_sm_max") == 900
    assert not left.path.exists()


def test_all_restores_unheld_gpus_to_the_default_of_the_driver(
    simulated: Callable[..., Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = simulated("A100,V100", stepped=True)
    for gpu in range(2):
        machine.state.change_setting(gpu, limit_w=180.0, lock_sm_min=900, lock_sm_max=900)
    machine.step(1.0)
    assert cli.main(["restore", "--all", "--dry-run"]) == 0
    assert re.search("180 W.*400 W", capsys.readouterr().out)
    assert machine.state.control(0, "limit_w") == 180.0
    assert cli.main(["restore", "--all"]) == 0
    assert [machine.state.control(gpu, "limit_w") for gpu in range(2)] == [400.0, 250.0]
    assert [machine.state.control(gpu, "lock_sm_max") for gpu in range(2)] == [0, 0]


def test_settings_held_by_a_living_process_are_left_alone(
    simulated: Callable[..., Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    simulated("A100", stepped=True)
    gpu = workbench.open_device(0)
    with gpu.applied(power_limit_w=250.0):
        assert cli.main(["restore", "--all"]) == 1
        assert "this process" in capsys.readouterr().out
        assert limit_w() == 250.0
