"""The shipped model of first guesses: what it may say of a job of which only the draw is known."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from workbench.errors import UsageError, WorkbenchError
from workbench.search.surrogates.first_guess import (
    INPUTS,
    KNOWN,
    FirstGuesser,
    first_guess,
    rows_of,
    shipped,
    year_of,
)
from workbench.tuning.advice import guess_for

LIMITS_W = tuple(range(100, 401, 20))


def test_a_job_near_the_highest_limit_gets_a_lower_one_with_odds_that_hold() -> None:
    guess = first_guess(LIMITS_W, 360.0, gpu="NVIDIA A100-SXM4-80GB")
    assert guess.offered
    assert 240 <= guess.power_limit_w < 400
    assert 0.01 <= guess.saving < 0.5
    assert 0.8 <= guess.odds <= 1.0
    assert "guess, not measured" in str(guess)


def test_a_wider_bound_is_never_answered_by_a_higher_limit() -> None:
    limits = [first_guess(LIMITS_W, 340.0, bound).power_limit_w for bound in (0.02, 0.05, 0.1, 0.2)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] < limits[0]


def test_odds_rise_with_the_limit_and_the_bound() -> None:
    limits = np.linspace(0.4, 1.0, 25)
    for share in (0.3, 0.6, 0.9, 1.0):
        by_bound = [shipped().kept.predict(rows_of(limits, share, bound, {})) for bound in (0.02, 0.05, 0.1)]
        assert (np.diff(np.stack(by_bound), axis=0) >= -1e-12).all()
        assert (np.diff(np.stack(by_bound), axis=1) >= -1e-12).all()


def test_nothing_is_offered_where_nothing_can_be_saved_or_nothing_may_be_set() -> None:
    idle = first_guess(LIMITS_W, 45.0)
    assert not idle.offered
    assert idle.power_limit_w == 400
    assert "no limit" in str(idle)
    assert first_guess([250.0], 240.0).power_limit_w == 250.0


def test_what_is_not_known_may_be_left_out_and_what_is_known_is_taken() -> None:
    row = rows_of(np.array([0.8]), 0.9, 0.05, {"year": 2022.0})
    assert row.shape == (1, len(INPUTS))
    assert np.isnan(row[0, -len(KNOWN) + 1 :]).all()
    assert first_guess(LIMITS_W, 350.0, gpu="a card of the future").odds > 0
    known = first_guess(LIMITS_W, 350.0, idle_w=50.0, utilisation=0.97, memory_utilisation=0.6)
    assert 0.8 <= known.odds <= 1.0


@pytest.mark.parametrize(("gpu", "year"), [
    ("Tesla V100-PCIE-32GB", 2017), ("Quadro RTX 6000", 2018), ("NVIDIA RTX 6000 Ada Generation", 2022),
    ("NVIDIA GeForce RTX 3080 Ti", 2020), ("NVIDIA GH200 480GB", 2022), ("NVIDIA L40S", 2022),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2024), ("summary_power_p100 adadelta", 2016),
])
def test_the_year_of_an_architecture_is_told_by_the_name(gpu: str, year: int) -> None:
    assert year_of(gpu) == year


@pytest.mark.parametrize(("limits", "draw_w", "bound", "said"), [
    ([], 100.0, 0.05, "power limits above 0 W"), ([100, -5], 100.0, 0.05, "power limits above 0 W"),
    ([100, 200], 0.0, 0.05, "cannot draw 0 W"), ([100, 200], 150.0, 5.0, "0.05 stands for 5 %"),
])
def test_what_cannot_be_is_refused_in_a_sentence(
    limits: list[float], draw_w: float, bound: float, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        first_guess(limits, draw_w, bound)


def test_the_guess_is_the_best_of_those_whose_odds_suffice() -> None:
    class Table:
        def __init__(self, values: list[float]) -> None:
            self.values = values

        def predict(self, rows: np.ndarray, num_threads: int) -> np.ndarray:
            return np.array(self.values)

    guesser = FirstGuesser(Table([0.5, 0.85, 0.95]), Table([0.6, 0.8, 0.9]))
    guess = guesser.guess([100, 150, 200, 250], 240.0)
    assert (guess.power_limit_w, guess.odds) == (150, 0.85)
    assert guess.saving == pytest.approx(0.2)


@pytest.mark.parametrize("error", [OSError("libgomp.so.1: cannot open"), ImportError("no lightgbm")])
def test_where_lightgbm_cannot_be_loaded_there_is_no_guess(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "lightgbm":
                raise error

    shipped.cache_clear()
    monkeypatch.delitem(sys.modules, "lightgbm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(WorkbenchError, match=r"lightgbm cannot be loaded .*install it, and libgomp"):
        first_guess([100.0, 200.0, 300.0], 250.0)
    assert guess_for("A card", [100.0, 200.0, 300.0], 250.0, 0.05) is None  # tuning goes on without
