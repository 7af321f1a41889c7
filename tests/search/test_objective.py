"""Objectives are one number of a time and an energy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from workbench.errors import MeasurementError, UsageError
from workbench.records import GpuMeasurement, Measurement
from workbench.search.objective import (
    Energy,
    EnergyDelay,
    EnergyWithin,
    Time,
    ZeusCost,
    check_measured,
    check_objective,
    resolve_objective,
)

ALL = [ZeusCost(0.3, 250), Energy(), Time(), EnergyDelay(1), EnergyDelay(2), EnergyWithin(1e9, 1.0)]


def measured(time_s: float, energy_j: float | None) -> Measurement:
    return Measurement(
        "1", "run", 0.0, time_s, (GpuMeasurement("GPU", "u", energy_j, None, "counter", False),)
    )


def test_the_cost_of_zeus_prices_time_at_the_highest_power() -> None:
    assert ZeusCost(0.5, 250).cost(10.0, 1000.0) == 0.5 * 1000 + 0.5 * 250 * 10
    assert ZeusCost(1, 250).cost(10.0, 1000.0) == 1000
    assert ZeusCost(0, 250).cost(10.0, 1000.0) == 2500


def test_the_power_of_all_gpus_of_a_job_counts_since_their_energies_are_summed() -> None:
    assert ZeusCost(0, 250, gpus=4).cost(10.0, 1000.0) == 10_000


def test_energy_delay_products_multiply_as_their_names_state() -> None:
    assert EnergyDelay(1).cost(3.0, 5.0) == 15
    assert EnergyDelay(2).cost(3.0, 5.0) == 45


def test_a_setting_slower_than_allowed_costs_infinitely_much() -> None:
    costs = EnergyWithin(1.05, 100.0).cost(np.array([100.0, 105.0, 106.0]), np.array([5.0, 4.0, 1.0]))
    assert costs.tolist() == [5.0, 4.0, math.inf]


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_a_run_k_times_as_long_costs_k_to_the_degree_as_much(objective: object) -> None:
    assert objective.cost(6.0, 15.0) == pytest.approx(3**objective.degree * objective.cost(2.0, 5.0))  # type: ignore[attr-defined]


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_many_runs_cost_what_each_of_them_does(objective: object) -> None:
    times, energies = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    each = [objective.cost(t, e) for t, e in zip(times, energies, strict=True)]  # type: ignore[attr-defined]
    assert objective.cost(times, energies).tolist() == pytest.approx(each)  # type: ignore[attr-defined]


@pytest.mark.parametrize("eta", [Fraction(1, 4), np.float32(0.25), 0.25])
def test_an_eta_of_any_kind_of_number_is_one(eta: object) -> None:
    assert resolve_objective(check_objective(eta), 400.0, 2).cost(2.0, 5.0) > 0


@pytest.mark.parametrize("eta", [-0.1, 1.1, math.nan])
def test_an_eta_outside_0_to_1_is_refused_in_words(eta: float) -> None:
    with pytest.raises(UsageError, match=r"0 to 1"):
        ZeusCost(eta, 250)


@pytest.mark.parametrize(("time_s", "energy_j"), [(math.nan, 1.0), (-1.0, 1.0), (1.0, math.inf), (1.0, -2.0)])
def test_what_cannot_have_been_measured_is_refused(time_s: float, energy_j: float) -> None:
    with pytest.raises(MeasurementError, match="not recorded"):
        check_measured(time_s, energy_j)
