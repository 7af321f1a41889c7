"""`%gpu advise`: the lowest SM clock that cannot be slower than the limit by the clocks under load."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import workbench
from tools.figures import stored
from workbench.measurement import session as sessions
from workbench.records import Limits, Setting
from workbench.search.space import space_from
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import advice

CLOCKS = space_from(Limits(sm_clocks_mhz={1215: tuple(range(210, 1411, 15))}), "clocks")


@pytest.fixture
def card(simulated: Callable[..., Machine]) -> Iterator[Machine]:
    sessions.current().close()
    machine = simulated("A100", stepped=True)
    _ = sessions.current().meter
    machine.step(3.0)
    yield machine
    sessions.current().close()


def ask(machine: Machine, setting: Setting | None = None) -> str:
    """The advice in the middle of a training, at a setting."""
    said: list[str] = []
    with contextlib.nullcontext() if setting is None else workbench.gpu_settings(setting):
        for batch in TrainingJob("imagenet", 256, machine=machine, iterations=41, evaluate=False):
            if batch.iteration == 40:
                said += advice.advise(sessions.current().meter)
    return "".join(said)


def test_the_lowest_clock_within_the_limit_is_the_ratio_of_the_clocks() -> None:
    found = advice.lowest_clock(CLOCKS, np.full(20, 1410.0), np.ones(20))
    assert found is not None
    assert found[0] == 1350  # 1335 would be 5.6 % slower
    assert found[1] == pytest.approx(1410 / 1350)


def test_a_gpu_that_waits_for_its_host_may_go_lower() -> None:
    half = advice.lowest_clock(CLOCKS, np.full(20, 1410.0), np.full(20, 0.5))
    assert half is not None
    assert half[0] == 1290
    assert half[1] == pytest.approx(0.5 + 0.5 * 1410 / 1290)


def test_without_known_clocks_or_a_lower_one_there_is_none() -> None:
    assert advice.lowest_clock(CLOCKS, np.full(20, np.nan), np.ones(20)) is None
    assert advice.lowest_clock(CLOCKS, np.full(20, 1410.0), np.ones(20), 0.001) is None


def test_an_idle_gpu_has_no_suggestion(card: Machine) -> None:
    assert re.fullmatch("GPU 0: no suggestion: the GPU is idle; .*", "".join(advice.advise(sessions.current().meter)))


def test_a_clock_is_suggested_for_a_running_job(card: Machine) -> None:
    said = ask(card)
    found = re.match(r"GPU 0: lock SM (\d+) MHz: about ([\d.]+) % slower at most by its clocks \((\d+) MHz", said)
    assert found is not None, said
    assert 1.0 < float(found[3]) / float(found[1]) < 1.06
    assert float(found[2]) <= 5.0
    assert f"{advice.EXCEEDED} exceeded such a bound, by up to {100 * advice.WORST:.1f} %" in said


@pytest.mark.parametrize("setting", [Setting(power_limit_w=200.0), Setting(sm_clock_mhz=900)], ids=str)
def test_a_gpu_away_from_its_default_has_no_suggestion(card: Machine, setting: Setting) -> None:
    said = ask(card, setting)
    assert "no suggestion" in said
    assert "%gpu restore" in said


def test_the_cited_curves_are_those_of_the_benchmark() -> None:
    figures = stored()["clock_bounds"]["figures"]
    assert [figures["all/curves"], figures["all/exceeded"]] == [advice.CURVES, advice.EXCEEDED]
    assert figures["all/worst"] == pytest.approx(advice.WORST, abs=5e-4)
