"""The made-up jobs that the period detector is trained and checked on."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fixtures.traces import APERIODIC, PERIODIC, explained, random_case


@pytest.mark.parametrize("family", sorted(PERIODIC))
def test_a_periodic_job_includes_its_true_iterations(family: str) -> None:
    for seed in range(8):
        case = random_case(np.random.default_rng([1, seed]), family)
        truth = case.truth
        assert truth.iteration_s is not None
        assert truth.low_s is not None
        assert truth.high_s is not None
        assert truth.low_s <= truth.high_s
        assert (truth.ends_s > truth.starts_s).all()
        assert (np.diff(truth.starts_s) > 0).all()
        inside = truth.ends_s - truth.starts_s
        if len(inside) > 20 and family not in (
            "stalling", "hiccups",
        ):  # whose waits are at the end of an iteration
            assert inside.mean() == pytest.approx(truth.iteration_s, rel=0.12)


@pytest.mark.parametrize("family", sorted(APERIODIC))
def test_an_aperiodic_job_has_none(family: str) -> None:
    case = random_case(np.random.default_rng(3), family)
    assert not case.periodic
    assert not case.truth.observable


def test_a_trace_is_what_a_polling_loop_can_read() -> None:
    for seed in range(40):
        case = random_case(np.random.default_rng([2, seed]))
        trace = case.trace
        assert trace["time_s"].is_sorted()
        assert (trace["time_s"].diff().drop_nulls() > 0).all()
        assert (trace["power_w"] >= 0).all()
        if "utilisation" in trace.columns:
            assert trace["utilisation"].is_between(0, 1).all()
            assert np.allclose(trace["utilisation"] * 100, (trace["utilisation"] * 100).round())


def test_the_same_chance_gives_the_same_case() -> None:
    one, other = (random_case(np.random.default_rng(9)) for _ in range(2))
    assert one.trace.equals(other.trace)


def test_the_true_phase_explains_a_square_wave_but_not_noise() -> None:
    time_s = np.arange(0, 40, 0.05)
    starts_s = np.arange(0, 40, 2.0)
    square = np.where(time_s % 2 < 1, 1.0, 0.0)
    assert explained(time_s, square, starts_s, starts_s + 2) > 0.95
    assert explained(time_s, np.random.default_rng(0).normal(size=len(time_s)), starts_s, starts_s + 2) < 0.05
