"""A fact has one value: in the result, its text, its frames, the log and what panels are sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

import workbench
from workbench.logbook.quantities import format_duration
from workbench.logbook.report import as_dict, describe_iterations, page
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.panels._views.clocks.text import describe
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob


@pytest.fixture
def machine(simulated: Callable[..., Machine]) -> Iterator[Machine]:
    made = simulated("A100", stepped=True)
    _ = sessions.current().meter
    made.step(3.0)
    yield made
    sessions.current().close()


@pytest.mark.parametrize("marked", [True, False])
def test_the_facts_of_a_plain_block_agree(machine: Machine, marked: bool) -> None:
    with workbench.measure("plain") as result:
        for _ in TrainingJob("librispeech", 24, iterations=25):
            if marked:
                workbench.step()
    machine.step(0.5)
    measured, stored = result.measurement, workbench.iterations_of("plain")
    summary = measured.iterations
    assert summary is not None
    (row,) = Store().log().rows(named=True)
    assert (row["energy_j"], row["energy_uncertainty_j"]) == (measured.energy_j, measured.energy_uncertainty_j)
    assert (row["iteration_s"], row["iteration_count"]) == (summary.time_s, summary.count)
    assert as_dict(measured)["iterations"]["energy_uncertainty_j"] == summary.energy_uncertainty_j
    assert stored.summary == result.found.summary == summary
    assert describe_iterations(summary) in str(measured)
    assert f"{summary.count} " in page(measured)
    assert stored.frame.equals(result.iterations)
    if not marked:
        for periods in (result.periods, stored.periods):
            assert periods is not None
            assert periods.iteration is not None
            assert periods.iteration.period_s == (summary.time_s or summary.detected_s)
    # Times begin with the measurement.
    (trace,) = result.traces.values()
    assert stored.frame["start_s"].min() == 0.0
    assert stored.frame["end_s"].max() == pytest.approx(measured.time_s)
    kept = workbench.trace_of("plain")["time_s"]  # the recorder goes on
    both = min(len(trace), len(kept))
    assert both > 1
    assert trace["time_s"].head(both).equals(kept.head(both))
    assert -0.6 < trace["time_s"].min() < 0.0 < measured.time_s < trace["time_s"].max()


@pytest.mark.parametrize("iterations", [4, 150])
def test_the_facts_of_a_tuned_block_agree(machine: Machine, iterations: int) -> None:
    with workbench.tune(label="tuned") as tuning:
        for _ in TrainingJob("imagenet", 512, iterations=iterations, evaluate=False):
            workbench.step()
    machine.step(5.0)
    result, view = tuning.result, tuning.view()
    assert (view.choice and view.choice.setting) == result.setting
    for fact in ("settled_s", "held_since_s", "settled_iterations", "spent_s", "spent_j", "elapsed_s", "saved", "events"):
        assert getattr(view, fact) == getattr(result, fact), fact
    words = describe(view).sentences
    if result.setting is None:
        assert "not tuned" in result.text
        assert not any("chosen" in each for each in words)
        return
    assert result.settled_s is not None
    assert f"setting found after {format_duration(result.settled_s)}" in result.text
    assert f"tuning took {format_duration(result.spent_s)}" in result.text
    assert any(f"tuning took {format_duration(result.spent_s)}" in each for each in words)
    assert f": {result.setting};" in result.text
    (chosen,) = (each for each in words if each.startswith(f"chosen: {result.setting}: "))
    (why,) = (each for each in words if each.startswith("why: "))
    energy = re.search(r"energy −([\d.]+ ± [\d.]+) %", chosen)
    assert energy is not None
    assert f"{energy[1]} % less energy" in why
