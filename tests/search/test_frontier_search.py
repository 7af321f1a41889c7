"""The search for a whole frontier: its estimates, its proposals, and when it stops."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from benchmarks.common import area
from workbench.errors import MeasurementError, UsageError
from workbench.search.surrogates.expected_hypervolume import FrontierSearch, knobs_of
from workbench.search.surrogates.physics_prior import bank

LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
BATCHES = (16, 32, 64, 128, 256)
SPACE = pl.DataFrame(
    list(itertools.product(BATCHES, LIMITS)), schema=["batch_size", "power_limit_w"], orient="row"
)


def cost(row: dict[str, float]) -> tuple[float, float]:
    """A card that nothing here was fitted to: time falls with the root of the limit up to 210 W, and with
    the batch size.
    """
    drawn_w = min(row["power_limit_w"], 210.0)
    time_s = (1.0 + 20.0 / row["batch_size"]) * (210.0 / drawn_w) ** 0.5
    return time_s, time_s * drawn_w


def run(search: FrontierSearch, space: pl.DataFrame, most: int = 35) -> list[int]:
    rows = space.to_dicts()
    while len(search.measured) < most and (step := search.ask()) is not None:
        search.tell(step.row, *cost(rows[step.row]))
    return search.measured


def test_a_third_of_the_grid_shows_99_percent_of_the_frontier_and_soon_it_stops() -> None:
    search = FrontierSearch(SPACE, min_gain=0.002, rng=np.random.default_rng(1))
    measured = run(search, SPACE)
    time_s, energy_j = np.array([cost(row) for row in SPACE.to_dicts()]).T
    worst = time_s.max(), energy_j.max()
    early = measured[:12]
    assert len(measured) <= 16
    assert area(time_s[early], energy_j[early], *worst) > 0.98 * area(time_s, energy_j, *worst)
    assert search.reason.startswith("the frontier")
    assert search.reason.endswith("less than 0.2 %")


CLOCKS = pl.DataFrame({"sm_clock_mhz": range(855, 1755, 15)})


def card(clock_mhz: int, rng: np.random.Generator, kind: str) -> tuple[float, float]:
    """A card by its clock: as the physics gives it, or with a cliff of 7 % above 1050 MHz. A third kind
    meets a limit from 1400 MHz on, above which time scatters by 2 %.
    """
    x = clock_mhz / 1740
    time_s, power_w = 0.8 / x + 0.2, 60 + 280 * x * (0.7 + 0.3 * max(0.0, (x - 0.6) / 0.4)) ** 2
    if kind == "cliff" and clock_mhz > 1050:
        time_s *= 1.07
    if kind == "capped" and clock_mhz >= 1400:
        time_s, power_w = 1.3 * np.exp(0.02 * rng.standard_normal()), 220.0
    return time_s, time_s * power_w * np.exp(0.002 * rng.standard_normal())


@pytest.mark.parametrize("seed", [0, 2])
def test_a_cliff_that_physics_alone_cannot_make_takes_no_whole_sweep(seed: int) -> None:
    """99 % of the area, of 60 clocks: physics with smooth deviations alone takes nearly all."""
    rng = np.random.default_rng(seed)
    truth = np.array([card(clock, rng, "cliff") for clock in CLOCKS["sm_clock_mhz"]])
    time_s, energy_j = truth.T
    worst, seen = truth.max(axis=0), list[int]()
    search = FrontierSearch(CLOCKS, min_gain=0.0, rng=np.random.default_rng(seed))
    while area(time_s[seen], energy_j[seen], *worst) < 0.99 * area(time_s, energy_j, *worst):
        step = search.ask()
        assert step is not None
        search.tell(step.row, time_s[step.row], energy_j[step.row])
        seen.append(step.row)
        assert len(seen) <= 54


@pytest.mark.parametrize("kind", ["plain", "capped"])
def test_the_search_notes_a_card_off_the_usual_curve(kind: str) -> None:
    rng, search = np.random.default_rng(5), FrontierSearch(CLOCKS, rng=np.random.default_rng(0))
    assert search.note == ""
    for row in range(0, 60, 4):
        search.tell(row, *card(CLOCKS["sm_clock_mhz"][row], rng, kind))
    assert search.ask() is not None
    assert ("usual curve" in search.note) is (kind == "capped")
    assert search.reason == ""


def test_the_same_seed_asks_for_the_same_configurations() -> None:
    one, other = (run(FrontierSearch(SPACE, rng=np.random.default_rng(4)), SPACE, most=5) for _ in range(2))
    assert one == other


def test_measured_points_are_exact_and_relevant_predictions_are_close() -> None:
    search = FrontierSearch(SPACE, rng=np.random.default_rng(2))
    run(search, SPACE, most=8)
    belief, truth = search.belief(), np.array([cost(row) for row in SPACE.to_dicts()])
    seen = belief["measured"].to_numpy()
    assert seen.sum() == len(search.measured)
    np.testing.assert_allclose(belief["time_s"].to_numpy()[seen], truth[seen, 0], rtol=1e-6)
    large = (
        SPACE["batch_size"].to_numpy() >= 64
    )  # the others are far from the frontier, and nothing was paid to know them
    assert np.abs(np.log(belief["energy_j"].to_numpy() / truth[:, 1]))[large].mean() < 0.1


def test_reading_the_belief_does_not_change_the_next_proposal() -> None:
    one, other = (FrontierSearch(SPACE, rng=np.random.default_rng(4)) for _ in range(2))
    for search in (one, other):
        search.tell(3, *cost(SPACE.row(3, named=True)))
    one.belief()
    assert one.ask() == other.ask()


def test_repeats_are_averaged() -> None:
    search = FrontierSearch(SPACE)
    search.tell(3, 1.0, 100.0)
    search.tell(3, 3.0, 300.0)
    assert search.belief()["time_s"][3] == pytest.approx(2.0)


def test_a_configuration_that_cannot_be_measured_is_not_asked_for() -> None:
    search = FrontierSearch(SPACE.head(3), min_gain=0.0)
    first = search.ask()
    assert first is not None
    search.cannot(first.row, "out of memory")
    second = search.ask()
    assert second is not None
    assert second.row != first.row


def test_when_all_is_measured_there_is_nothing_to_ask_for() -> None:
    search = FrontierSearch(SPACE.head(2), min_gain=0.0)
    search.tell(0, 2.0, 10.0)
    search.tell(1, 1.0, 20.0)
    assert search.ask() is None
    assert search.reason.startswith("every other configuration")


def test_prior_samples_obey_physics() -> None:
    space = pl.DataFrame({"sm_clock_mhz": [600, 900, 1200, 1500], "mem_clock_mhz": [1000] * 4})
    log_time, log_power = bank(knobs_of(space))
    assert (np.diff(log_time, axis=1) <= 1e-9).all()  # a higher clock is never slower
    assert (np.diff(log_power, axis=1) >= -1e-9).all()  # nor draws it less power
    limits = pl.DataFrame({"power_limit_w": [100.0, 150.0, 200.0, 250.0]})
    log_time, log_power = bank(knobs_of(limits))
    assert (np.diff(log_time, axis=1) <= 1e-9).all()
    assert (np.diff(log_power, axis=1) >= -1e-9).all()


def test_a_knob_that_is_left_to_the_driver_counts_as_the_highest() -> None:
    log_time, _ = bank(knobs_of(pl.DataFrame({"power_limit_w": [None, 250.0, 100.0]})))
    assert (log_time[:, 0] <= log_time[:, 2] + 1e-12).all()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (pl.DataFrame({"limit": [1.0]}), "of the columns"),
        (SPACE.clear(), "no candidate configurations"),
        (pl.DataFrame({"power_limit_w": [100.0, -5.0]}), "power_limit_w .* -5"),
    ],
)
def test_a_space_that_is_none_is_refused(space: pl.DataFrame, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FrontierSearch(space)


def test_numbers_that_cannot_have_been_measured_change_nothing() -> None:
    search = FrontierSearch(SPACE)
    for time_s, energy_j in ((float("nan"), 1.0), (1.0, -1.0)):
        with pytest.raises(MeasurementError):
            search.tell(0, time_s, energy_j)
    with pytest.raises(UsageError, match="above 0"):
        search.tell(0, 0.0, 1.0)
    with pytest.raises(UsageError, match="no candidate 99"):
        search.tell(99, 1.0, 1.0)
    assert search.measured == []
