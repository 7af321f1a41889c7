"""GPUs of one job vote on its period: one's doubt is another's evidence."""

from __future__ import annotations

import pytest

from workbench.periods.vote import vote
from workbench.records import DetectedPeriod, Periods


def answer(
    seconds: float, period: float, role: float, *, name: str = "iteration", sure: bool = False
) -> Periods:
    level = DetectedPeriod(name, seconds, 0.01 * seconds, role * period, 0.0, 0.5, period)
    return Periods((level,), sure=sure, reason="" if sure else "not sure", steady=period > 0.87)


def test_one_sure_gpu_speaks_for_those_that_see_nothing() -> None:
    found = vote([Periods(reason="flat"), answer(2.0, 0.95, 0.9, sure=True), answer(2.01, 0.5, 0.5)])
    assert found.sure
    assert found.iteration is not None
    assert found.iteration.period_s == 2.0


def test_a_period_that_most_gpus_show_is_there_though_none_is_sure_alone() -> None:
    found = vote([answer(2.0, 0.8, 0.8), answer(2.02, 0.75, 0.9), Periods(reason="flat")])
    assert (found.main_sure, found.sure, found.reason) == (True, True, "")
    unclear = vote([answer(2.0, 0.8, 0.4), answer(2.02, 0.75, 0.3)])
    assert (unclear.main_sure, unclear.sure) == (True, False)
    faint = vote([answer(2.0, 0.8, 0.8), answer(2.02, 0.5, 0.9)])
    assert not faint.main_sure


def test_gpus_that_are_sure_of_different_periods_leave_the_role_open() -> None:
    found = vote([answer(2.0, 0.95, 0.9, sure=True), answer(13.2, 0.95, 0.9, sure=True)])
    assert not found.sure
    assert not found.role_sure
    assert found.reason.endswith("2 s and 13.2 s")


@pytest.mark.parametrize("founds", [[answer(2.0, 0.7, 0.5)], [Periods(reason="flat"), Periods(reason="idle")]])
def test_nothing_is_made_up(founds: list[Periods]) -> None:
    assert vote(founds) is founds[0]


def test_the_reported_period_is_the_winner_of_the_vote() -> None:
    def level(name: str, seconds: float, period: float, role: float) -> DetectedPeriod:
        return DetectedPeriod(name, seconds, 0.01 * seconds, role * period, 0.0, 0.5, period)

    plain = Periods((level("cycle", 1.0, 0.86, 0.95),), reason="not sure")
    both = Periods((level("iteration", 0.2, 0.85, 0.5), level("cycle", 1.0, 0.84, 0.99)), reason="not sure")
    assert both.main is not None
    assert both.main.period_s == 0.2
    for founds in ([plain, both], [both, plain]):
        found = vote(founds)
        assert found.cycle_sure
        assert found.main is not None
        assert (found.main.name, found.main.period_s) == ("cycle", 1.0)
