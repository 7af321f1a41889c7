"""Iterations of different sizes are compared by the work that the job reports for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import workbench
from workbench.experiments.iteration_sources import MarkSource
from workbench.measurement import session as sessions
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning.blocks import ITERATIONS, WorkUnit, steps, work_unit
from workbench.tuning.state_machine import Tuner, running

TOKENS = [100.0, 300.0, 200.0, 400.0]


@pytest.fixture
def machine(simulated: Callable[..., Machine]) -> Iterator[Machine]:
    sessions.current().close()
    made = simulated("A100", stepped=True)
    _ = sessions.current().meter
    made.step(3.0)
    yield made
    for tuner in running():
        tuner.end()
    sessions.current().close()


def reported(*kinds: str, after: bool = False, without: int = -1) -> MarkSource:
    """Five steps at 1 s to 5 s, with work of each kind just before each step, or just after it."""
    source = MarkSource(lambda: 0.0)
    source.end()
    for number, amount in enumerate([50.0, *TOKENS]):
        source.steps.append(1.0 + number)
        for kind in kinds if number != without else ():
            source.worked(kind, 1.0 + number + (0.001 if after else -0.001), amount)
    return source


@pytest.mark.parametrize("after", [False, True])
def test_work_belongs_to_the_iteration_that_it_was_reported_for(after: bool) -> None:
    source = reported("tokens", after=after)
    unit = work_unit(source, 0.0, 9.0)
    assert unit.name == "tokens"
    assert unit.amount == pytest.approx(250.0, rel=0.01)
    ends, counts = steps(source, 0.0, 9.0, unit)
    assert list(ends) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert counts == pytest.approx(np.array(TOKENS) / 250.0, rel=0.02)


def test_several_reports_of_an_iteration_add_up() -> None:
    source = reported("tokens")
    for number in range(5):
        source.worked("padding", 0.5 + number, 10.0)  # it takes time too
    source.work["tokens"][0].insert(1, 1.5)
    source.work["tokens"][1].insert(1, 60.0)
    _, counts = steps(source, 0.0, 9.0, WorkUnit("tokens", 1.0))
    assert counts == pytest.approx(np.array(TOKENS) + np.array([70.0, 10.0, 10.0, 5.0]), abs=1.0)


def test_only_work_that_every_iteration_reports_is_counted() -> None:
    assert work_unit(reported("tokens", "samples"), 0.0, 9.0).name == "tokens"
    assert work_unit(reported("frames"), 0.0, 9.0).name == "frames"
    assert work_unit(reported("frames", "pages"), 0.0, 9.0) == ITERATIONS
    assert work_unit(reported(), 0.0, 9.0) == ITERATIONS
    late = reported("tokens")
    del late.work["tokens"][0][:3], late.work["tokens"][1][:3]
    assert work_unit(late, 0.0, 9.0) == ITERATIONS
    assert work_unit(late, 3.5, 9.0).name == "tokens"


def trained(machine: Machine, iterations: int, tokens: Callable[[int, int], float | None]) -> Tuner:
    """A tuner at work on a training of batches of two sizes, which reports its work by `tokens`."""
    tuner = Tuner(sessions.current().meter, model=False, over="clocks")
    begun = {size: iter(TrainingJob(
        "imagenet", size, machine=machine, iterations=10**6, evaluate=False, seed=1)) for size in (128, 256)}
    rng = np.random.default_rng(1)

    def advance(_: float) -> None:
        tuner.advance()

    machine.clock.on_step.append(advance)
    for number in range(iterations):
        size = 128 if rng.random() < 0.5 else 256
        next(begun[size])
        if (amount := tokens(number, size)) is not None:
            workbench.work(tokens=amount)
        workbench.step()
    machine.clock.on_step.remove(advance)
    return tuner


def test_a_job_with_batches_of_different_sizes_is_timed_by_its_tokens(machine: Machine) -> None:
    counted = trained(machine, 400, lambda number, size: 10.0 * size)
    view, result = counted.view(), counted.end()
    assert any(text.startswith("counted in tokens") for _, text in result.events), result.events
    assert result.retuned == 0
    assert view.iterations == 400
    assert view.period_s is not None
    plain = trained(machine, 400, lambda number, size: None)
    other = plain.view()
    plain.end()
    assert other.period_s is not None
    assert view.period_s == pytest.approx(other.period_s, rel=0.15)  # of an average iteration
    assert view.trials["time_sd"].mean() < 0.6 * other.trials["time_sd"].mean()  # type: ignore[operator]


def test_a_job_that_begins_to_report_its_work_is_measured_again_in_the_new_unit(machine: Machine) -> None:
    tuner = trained(machine, 300, lambda number, size: 10.0 * size if number > 100 else None)
    result = tuner.end()
    begun_s = [at_s for at_s, text in result.events if "it counts tokens now" in text]
    assert len(begun_s) == 1, result.events
    assert any(text.startswith("counted in tokens") for _, text in result.events)
    assert len(tuner.log.ledger.accounts) == 2
    assert result.retuned == 0  # it is the same work
    assert result.saved is not None


def test_a_job_that_reports_its_work_now_and_then_is_counted_in_iterations(machine: Machine) -> None:
    tuner = trained(machine, 300, lambda number, size: 10.0 * size if number < 60 or number % 40 > 30 else None)
    result = tuner.end()
    assert sum("now" in text for _, text in result.events if text.startswith("it counts")) <= 2
    assert result.saved is not None
