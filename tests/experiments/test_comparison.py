"""`workbench.compare`: functions, settings and labels; it ends by itself and puts the GPU back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import workbench
from workbench.errors import NoDriver, UsageError
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.records import GpuMeasurement, Measurement, Setting, WorkDone
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]


def job(machine: Machine, power_w: float, seconds: float = 2.0) -> Callable[[], None]:
    def train() -> None:
        machine.state.publish(0, machine.clock(), [], (power_w, 1380, 877, 1.0, 0.5, 0))
        machine.step(seconds)

    return train


def test_two_functions_alternate(machine: Machine) -> None:
    found = workbench.compare(job(machine, 200), job(machine, 180), labels=("old", "new"), seed=1)
    assert found.energy.low - 1e-3 < 0.9 < found.energy.high + 1e-3
    assert found.energy.significant
    assert found.time.value == pytest.approx(1.0)
    assert found.runs.height >= 10
    assert str(found).startswith("new takes 10")
    assert "less energy" in str(found)
    assert "(simulated)" in found._repr_html_()


def test_both_ways_are_in_the_log(machine: Machine) -> None:
    workbench.compare(job(machine, 200), job(machine, 180), labels=("old", "new"), seed=1)
    log = Store().log()
    assert set(log["label"]) == {"old", "new"}
    assert log["repeats"].min() >= 5


def test_equal_work_shows_no_difference(machine: Machine) -> None:
    found = workbench.compare(job(machine, 200), job(machine, 200), labels=("a", "b"), seed=2)
    assert not found.energy.significant
    assert str(found).count("no measurable difference") == 2


def test_short_calls_are_put_together_to_a_run(machine: Machine) -> None:
    short, long = counting(machine, 200, 0.1, 64), counting(machine, 150, 0.25, 64)
    found = workbench.compare(short, long, labels=("a", "b"), seed=1)
    assert found.unit == "call"
    assert found.runs.filter(way=0)["calls"].to_list()[0] == 20
    assert found.time.value == pytest.approx(2.5, rel=0.02)
    assert found.energy.value == pytest.approx(2.5 * 0.75, rel=0.03)


def test_settings_are_compared_and_restored(machine: Machine) -> None:
    device = sessions.current().devices[0]
    before = device.setting()
    observed: list[float | None] = []

    def train() -> None:
        observed.append(limit_w := device.setting().power_limit_w)
        job(machine, limit_w or 0.0)()

    found = workbench.compare(Setting(power_limit_w=200.0), Setting(power_limit_w=150.0), work=train, seed=1)
    assert set(observed) == {200.0, 150.0}
    assert found.energy.value == pytest.approx(0.75, rel=0.02)
    assert found.labels == ("200 W", "150 W")
    assert device.setting() == before


def test_the_log_has_the_joules_of_one_call(machine: Machine) -> None:
    workbench.compare(job(machine, 200, 0.25), job(machine, 200, 0.5), labels=("short", "long"), seed=1)
    joules = dict(Store().log().select("label", "energy_j").iter_rows())
    assert joules["short"] == pytest.approx(50.0, rel=0.03)
    assert joules["long"] == pytest.approx(100.0, rel=0.03)


def test_one_logged_run_each_is_compared_by_label_and_not_by_time(machine: Machine) -> None:
    gpu = GpuMeasurement("A100", "u", 50.0, 1.0, "counter", False)
    after = Measurement("1", "after", 1.7e9, 1.0, (gpu,), work=(WorkDone("samples", 64.0),))
    Store().save(after)
    Store().save(replace(after, id="2", label="before", started_unix_s=1.8e9, gpus=(replace(gpu, energy_j=100.0),)))
    assert workbench.compare("before", "after").energy.value == pytest.approx(0.5)


def test_the_budget_ends_it(machine: Machine) -> None:
    found = workbench.compare(job(machine, 200), job(machine, 180), timeout_s=5.0, seed=1)
    assert found.runs.height < 10
    assert "budget" in found.ended


def test_an_error_of_the_work_passes_and_what_was_measured_is_kept(machine: Machine) -> None:
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        job(machine, 200)()
        if calls > 4:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        workbench.compare(fails, job(machine, 180), labels=("a", "b"), timeout_s=50, seed=1)
    assert set(Store().log()["label"]) == {"a", "b"}


def test_labels_of_the_log_are_compared(machine: Machine) -> None:
    workbench.compare(job(machine, 200), job(machine, 180), labels=("old", "new"), seed=1)
    found = workbench.compare("old", "new")
    assert found.energy.value == pytest.approx(0.9, rel=0.01)
    assert any("one run each" in note for note in found.notes)
    with pytest.raises(UsageError, match="itself"):
        workbench.compare("old", "old")
    with pytest.raises(UsageError, match="'none'"):
        workbench.compare("old", "none")


@pytest.mark.parametrize(("a", "b", "options", "text"), [
    (1, 2, {}, "cannot be compared"),
    (print, "a", {}, "cannot be compared"),
    (Setting(), Setting(power_limit_w=200.0), {}, "give work="),
    (print, repr, {"work": print}, "work="),
    (print, repr, {"min_effect": 0.0}, "between 0 and 1"),
    (print, repr, {"timeout_s": -1.0}, "above 0"),
    (print, repr, {"labels": ["ab"]}, "two names"),
    (print, repr, {"max_pairs": 1}, "at least 2 pairs"),
])
def test_invalid_arguments_are_refused(
    machine: Machine, a: object, b: object, options: dict[str, object], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        workbench.compare(a, b, **options)  # type: ignore[arg-type]


def test_without_a_gpu_the_error_suggests_a_simulated_one() -> None:
    sessions.current().close()
    with pytest.raises(NoDriver, match="simulate"):
        workbench.compare(print, dict)


def counting(machine: Machine, power_w: float, seconds: float, samples: int) -> Callable[[], None]:
    def train() -> None:
        job(machine, power_w, seconds)()
        workbench.work(samples=samples)

    return train


def test_functions_that_do_unequal_work_are_compared_per_sample(machine: Machine) -> None:
    """Half of the energy for half of the samples is no saving."""
    small, large = counting(machine, 200, 2.0, 300), counting(machine, 200, 4.0, 600)
    found = workbench.compare(small, large, labels=("12", "24"), seed=1)
    assert found.unit == "sample"
    assert found.energy.value == pytest.approx(1.0, abs=0.01)
    assert "J per sample" in found._repr_html_()
    assert workbench.compare("12", "24").unit == "sample"


def test_labels_of_unequal_work_are_compared_per_iteration_and_of_unknown_work_not_at_all(
    machine: Machine,
) -> None:
    for label, iterations in (("eighty", 80), ("few", 25)):
        with workbench.measure(label):
            for _ in range(iterations):
                job(machine, 200, 0.25)()
                workbench.step()
    found = workbench.compare("eighty", "few")
    assert found.unit == "iteration"
    assert found.energy.value == pytest.approx(1.0, abs=0.05)
    with workbench.measure("unknown"):
        job(machine, 200)()
    with pytest.raises(UsageError, match="not compared"):
        workbench.compare("eighty", "unknown")
