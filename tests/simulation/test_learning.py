"""How many epochs a simulated training takes: a law over batch sizes, and scatter between runs."""

from __future__ import annotations

import math
import statistics

import pytest

from notebooks.learning import SCATTER, Accuracy, epochs_to_target, shorter
from workbench.errors import UsageError


def epochs(batch_size: int, seed: int, target: float = 0.6) -> int:
    accuracy = Accuracy(batch_size, target=target, seed=seed)
    while accuracy.after_epoch() < target:
        pass
    return accuracy.epochs


def test_the_accuracy_rises_to_the_target_and_stays() -> None:
    accuracy = Accuracy(256, target=0.7, seed=3)
    observed = [accuracy.after_epoch() for _ in range(30)]
    assert observed == sorted(observed)
    assert observed[-1] == 0.7
    assert observed[0] < 0.35


@pytest.mark.parametrize("batch_size", [64, 256, 1024])
def test_runs_scatter_around_the_law(batch_size: int) -> None:
    needed = [Accuracy(batch_size, seed=seed).needed for seed in range(200)]
    assert statistics.median(needed) == pytest.approx(epochs_to_target(batch_size), rel=0.02)
    assert statistics.stdev(map(math.log, needed)) == pytest.approx(SCATTER, rel=0.2)
    assert epochs(batch_size, 7) == math.ceil(needed[7])


def test_very_small_and_very_large_batches_need_more() -> None:
    assert epochs_to_target(16) > 2 * epochs_to_target(256) < epochs_to_target(4096)


def test_a_shorter_workload_is_the_same_but_for_its_length() -> None:
    short = shorter("cifar100", 5_000)
    assert (short.samples, short.evaluation_samples, short.sample_bytes) == (5_000, 1_000, 5_500_000)


@pytest.mark.parametrize(
    "wrong", [lambda: Accuracy(0), lambda: shorter("cifar100", 0), lambda: shorter("mnist", 10)]
)
def test_invalid_input_is_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=r"not 0|'mnist'"):
        wrong()
