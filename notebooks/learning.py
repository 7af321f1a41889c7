"""Accuracy of a simulated training: the number of epochs to a target. The power model gives their cost.

Epochs to a given accuracy follow E(b) = E0 x (1 + b/Bc + Bs/b). Beyond a critical batch size, more samples
per step bring no gain (McCandlish et al., arXiv 1812.06162), and small batches are noisy. Runs scatter around
that curve, as with random seeds (Zeus, NSDI'23, section 4.3).
"""

from __future__ import annotations

import random
from dataclasses import replace

from workbench.errors import UsageError
from workbench.simulation.catalogue import Workload
from workbench.simulation.training import named

BEST_EPOCHS = 8.0
CRITICAL, NOISY = 512.0, 128.0  # batch sizes
SCATTER = 0.05  # of single runs, relative
STEEP = 0.4  # accuracy grows with this power of the epochs
TARGET = 0.6


class Accuracy:
    """The validation accuracy of one run after each of its epochs; it ends at `target`.

    Args:
        batch_size: Batch size of the run.
        target: Final accuracy.
        seed: Random seed of the scatter between runs.
    """

    def __init__(self, batch_size: int, *, target: float = TARGET, seed: int = 0) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {batch_size}")
        self.target, self.epochs = target, 0
        self.needed = epochs_to_target(batch_size) * random.Random(seed).lognormvariate(0.0, SCATTER)

    def after_epoch(self) -> float:
        """The accuracy after one more epoch."""
        self.epochs += 1
        return float(self.target * min(1.0, self.epochs / self.needed) ** STEEP)


def epochs_to_target(batch_size: int) -> float:
    """Typical epochs to the target.

    >>> [round(epochs_to_target(b)) for b in (64, 256, 1024)]
    [25, 16, 25]
    """
    return BEST_EPOCHS * (1 + batch_size / CRITICAL + NOISY / batch_size)


def shorter(workload: str, samples: int) -> Workload:
    """A named workload with an epoch of so many samples, short enough to wait for its end."""
    if samples < 1:
        raise UsageError(f"an epoch needs at least one sample, not {samples}")
    whole = named(workload)
    return replace(
        whole, samples=samples, evaluation_samples=max(1, whole.evaluation_samples * samples // whole.samples)
    )
