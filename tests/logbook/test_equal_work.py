"""One rule decides which measurements are compared, and per what."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import workbench
from workbench.logbook.equal_work import (
    UNKNOWN_WORK,
    comparison_basis,
    describe_change,
    describe_comparison,
)
from workbench.logbook.store import Store, as_frame, from_row
from workbench.measurement.setting_segments import setting_segments
from workbench.records import GpuMeasurement, IterationSummary, Measurement, Setting, SettingSegment, WorkDone
from workbench.simulation.machine import Machine

GPU = GpuMeasurement("Tesla V100", "GPU-1", 100.0, 3.0, "counter", False)


def run(
    energy_j: float | None, bar_j: float = 1.0, *, time_s: float = 1.0, iterations: int | None = None,
    samples: float | None = None, **changes: object,
) -> Measurement:
    """A run of 100 J and 1 s, or so, that counted iterations or samples where they are given."""
    gpu = replace(GPU, energy_j=energy_j, energy_uncertainty_j=bar_j)
    made = Measurement("id", "a", 0.0, time_s, (gpu,))
    if iterations is not None and energy_j is not None:
        each_j, each_s = energy_j / iterations, time_s / iterations
        summary = IterationSummary(iterations, each_s, 0.0, each_j, bar_j / iterations, "marks")
        made = replace(made, iterations=summary)
    if samples is not None:
        made = replace(made, work=(WorkDone("samples", samples),))
    return replace(made, **changes)  # type: ignore[arg-type]


CHANGE = r"[−+].*?% [a-z ]+"


def test_runs_of_equal_work_are_compared_as_they_are() -> None:
    description = describe_change(run(100.0, samples=64), run(80.0, time_s=1.5, samples=64))
    assert re.findall(CHANGE, description) == ["−20.0 ± 1.3 % energy", "+50.0 % time"]


def test_80_against_25_iterations_are_compared_per_iteration() -> None:
    description = describe_change(run(80.0, iterations=80), run(25.0, time_s=0.3125, iterations=25))
    assert ("%" in description, "per iteration" in description) == (False, True)
    description = describe_change(run(80.0, iterations=80), run(20.0, 0.1, time_s=0.3125, iterations=25))
    assert description.startswith("−20.0 ± 1.1 % energy, ")


def test_samples_count_before_iterations() -> None:
    """25 iterations of 12 samples did half of the work of 25 iterations of 24."""
    small = run(100.0, iterations=25, samples=300, batch_size=12)
    large = run(150.0, iterations=25, samples=600, batch_size=24)
    assert comparison_basis((small, large)).unit == "sample"
    assert re.findall(CHANGE, describe_change(small, large)) == ["−25.0 ± 0.9 % energy", "−50.0 % time per sample"]


@pytest.mark.parametrize("outcome", ["interrupted", "error"])
def test_an_incomplete_run_is_not_compared(outcome: str) -> None:
    description = describe_change(run(100.0, iterations=80), run(59.0, iterations=47, outcome=outcome))
    assert description.startswith("not compared: a ")
    assert "%" not in description


@pytest.mark.parametrize(("first", "second", "why"), [
    (run(100.0), run(80.0), UNKNOWN_WORK),
    (run(100.0, iterations=20), run(80.0), UNKNOWN_WORK),
    (run(None), run(80.0), "no energy"),
    (run(0.0, 0.1), run(80.0), "no energy"),
    (run(1.0, time_s=0.0), run(1.0), "no time"),
    (run(1.0, iterations=5, batch_size=12), run(1.0, iterations=5, batch_size=24), "12, 24"),
    (run(100.0, samples=5), run(80.0, samples=5, gpus=(replace(GPU, name="A100"),)), "(A100, Tesla V100)"),
])
def test_what_did_no_known_equal_work_has_no_percentage(first: Measurement, second: Measurement, why: str) -> None:
    description = describe_comparison(first, second)
    assert "not compared" in description
    assert why in description
    assert "%" not in description


def test_no_percentage_is_shown_where_its_interval_includes_zero() -> None:
    description = describe_comparison(run(100.0, 3.0, samples=5), run(104.0, 4.0, samples=5, time_s=1.2))
    assert re.findall(CHANGE, description) == ["+20.0 % time"]


def test_a_comparison_has_joules_and_what_else_may_explain_the_difference() -> None:
    changed = (SettingSegment(Setting(250.0), 1.0, 60.0), SettingSegment(Setting(150.0), 1.0, 20.0))
    other = replace(GPU, uuid="GPU-2", energy_j=80.0, energy_uncertainty_j=4.0)
    description = describe_comparison(run(100.0, 3.0, samples=5), run(80.0, samples=5, label="b", gpus=(other,)))
    assert "; 20.0 ± 5.0 J less" in description
    assert "10 %" in description
    tuned = run(80.0, samples=5, label="b", kind="tuned cell")
    assert "b was tuned" in describe_comparison(run(100.0, samples=5), tuned)
    dragged = run(80.0, samples=5, label="b", gpus=(replace(other, segments=changed),))
    assert "setting changed" in describe_comparison(run(100.0, samples=5), dragged)


def test_batch_size_and_settings_survive_the_store() -> None:
    segments = (SettingSegment(Setting(250.0), 1.0, 60.0), SettingSegment(Setting(150.0, 1380), 1.0, None))
    kept = run(80.0, batch_size=12, gpus=(replace(GPU, segments=segments),))
    Store().save(kept)
    assert from_row(Store().log().row(0, named=True)) == kept
    assert as_frame([kept])["batch_size"].to_list() == [12]


# measured on the stepped simulated GPU


def measured(machine: Machine, label: str, *, limit_w: float | None = None) -> Measurement:
    """A job of 10 s at 200 W; under a limit it draws no more than that. The limit changes inside the window."""
    device = workbench.measurement.session.current().devices[0]
    with workbench.measure(label) as found:
        machine.step(0.05)
        with device.applied(power_limit_w=limit_w or 250.0):
            machine.state.publish(0, machine.clock(), [], (min(200.0, limit_w or 250.0), 1380, 877, 1.0, 0.5, 0))
            machine.step(10.0)
        machine.step(0.05)
    return found.measurement


def test_a_limit_that_is_set_inside_the_run_is_the_one_that_is_stored(machine: Machine) -> None:
    limited = measured(machine, "limited", limit_w=150.0)
    (gpu,) = limited.gpus
    assert gpu.setting == Setting(150.0)
    assert gpu.power_limit_w == 150.0
    assert gpu.segments == ()
    assert not any("changed inside" in note for note in gpu.notes)


def test_each_setting_of_a_run_is_stored_with_its_time_and_energy(machine: Machine) -> None:
    device = workbench.measurement.session.current().devices[0]
    with workbench.measure("dragged") as found:
        for watts in (250.0, 150.0):
            with device.applied(power_limit_w=watts, sm_clock_mhz=1380 if watts == 150.0 else None):
                machine.state.publish(0, machine.clock(), [], (watts - 50.0, 1380, 877, 1.0, 0.5, 0))
                machine.step(5.0)
    (gpu,) = found.measurement.gpus
    assert [each.setting for each in gpu.segments] == [Setting(250.0), Setting(150.0, 1380)]
    assert [each.time_s for each in gpu.segments] == pytest.approx([5.0, 5.0], abs=0.3)
    assert [each.energy_j for each in gpu.segments] == pytest.approx([1000.0, 500.0], rel=0.08)
    assert sum(each.energy_j or 0.0 for each in gpu.segments) == pytest.approx(gpu.energy_j, rel=0.01)
    assert any("setting changed" in note for note in gpu.notes)


def test_marked_iterations_have_a_cost_under_each_setting(machine: Machine) -> None:
    device = workbench.measurement.session.current().devices[0]
    with workbench.measure("marked") as found:
        for watts in (250.0, 150.0):
            with device.applied(power_limit_w=watts):
                for _ in range(20):
                    machine.state.publish(0, machine.clock(), [], (watts - 50.0, 1380, 877, 1.0, 0.5, 0))
                    machine.step(0.25)
                    workbench.step()
    assert found.measurement.iterations is not None
    costs = {each.setting: each.each_j for each in found.measurement.iterations.levels if each.setting}
    assert costs == {"250 W": pytest.approx(50.0, rel=0.1), "150 W": pytest.approx(25.0, rel=0.1)}


def test_of_many_changes_each_setting_is_stored_once() -> None:
    times = np.arange(0.0, 36_000.0, 0.2)
    limits_w = np.where(times // 10 % 3 == 0, 250.0, 150.0)
    locks = [(float(at_s), Setting(sm_clock_mhz=None if at_s % 100 else 1380)) for at_s in range(0, 36_000, 50)]
    segments = setting_segments(times, limits_w, locks, (0.0, 36_000.0), lambda moments_s: 200.0 * np.diff(moments_s))
    assert {each.setting for each in segments} == {
        Setting(watts, clock) for watts in (250.0, 150.0) for clock in (None, 1380)}
    assert len(segments) == 4
    assert sum(each.time_s for each in segments) == pytest.approx(36_000.0)
    assert sum(each.energy_j or 0.0 for each in segments) == pytest.approx(7_200_000.0)
