"""Loads of graded intensity for a simulated card: training data for a model of the card.

Six families cover the types of kernels: arithmetic with and without tensor cores, streaming through the
memory, stencils between the two, kernels too small to fill the card, and mixtures as in trainings. Each
family varies the time shares of SM clock and memory clock, the power, and the card's wait for its host
between two iterations. None of them is a training of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

from .catalogue import Workload, WorkloadPhase, busy
from .physics import Card, Load

Range = tuple[float, float]
# kernels and a gap, at the highest clocks; short: gaps vary by 15 %, and a measurement should include many
CYCLE_S = 0.0346
# cycles of an iteration, no multiple of a sensor's update: otherwise a stepped clock would sample one phase
TOGETHER = 5
GAPS = (0.0, 0.0, 0.1, 0.25, 0.5, 0.8)  # shares of an iteration in which the card waits


@dataclass(frozen=True)
class Family:
    """Loads of one family. Ranges extend from the first grade to the last.

    Attributes:
        compute: Share of the busy time bound by the SM clock.
        memory: Share bound by the memory clock, of the time that compute leaves.
        power: Power over static power, relative to the available power at the default limit.
        grades: Number of grades.
    """

    name: str
    compute: Range
    memory: Range
    power: Range
    grades: int = 5


FAMILIES = (
    Family("matmul-tensor", (0.78, 0.98), (0.8, 0.4), (0.55, 1.25)),
    Family("matmul-fp32", (0.85, 1.0), (0.9, 0.5), (0.35, 1.0)),
    Family("stream", (0.25, 0.03), (0.75, 0.97), (0.25, 0.7)),
    Family("stencil", (0.35, 0.65), (0.95, 0.7), (0.35, 0.9)),
    Family("small", (0.15, 0.5), (0.15, 0.45), (0.12, 0.5)),
    Family("mixed", (0.35, 0.9), (0.45, 0.75), (0.4, 1.25), 20),
)


def workloads(card: Card) -> list[tuple[str, Workload]]:
    """(family, workload) of every grade, as jobs of `TrainingJob` that accumulate `TOGETHER` cycles."""
    return [
        (family.name, _workload(card, family, grade, shift=number)) for number, family in enumerate(FAMILIES)
        for grade in range(family.grades)
    ]


def _workload(card: Card, family: Family, grade: int, shift: int) -> Workload:
    at = grade / max(1, family.grades - 1)
    # Shares, power and waiting vary in different orders, so that a model can separate their effects.
    compute = _between(family.compute, at)
    memory = (1.0 - compute) * _between(family.memory, _fold(grade, 0.618))
    span_w = card.power_limit_w[1] - card.static_w
    load = Load(compute, memory, span_w * _between(family.power, _fold(grade, 0.382)))
    gap = GAPS[(grade * 5 + shift) % len(GAPS)]
    name = f"{family.name}-{grade + 1}of{family.grades}"
    phases = [busy("kernels", "forward", CYCLE_S * (1.0 - gap), load)]
    if gap:
        phases.append(WorkloadPhase("waiting", "data", CYCLE_S * gap, None, 0.0, 0.0))
    return Workload(
        key=name, title=name, samples=1 << 30, evaluation_samples=0, default_batch_size=1,
        batch_sizes=(1,), fixed_bytes=1 << 30, sample_bytes=0, checkpoint_bytes=0, phases=tuple(phases),
        card=card.key,
    )


def _between(ends: Range, at: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * at


def _fold(grade: int, step: float) -> float:
    """Grades in another order, spread evenly over 0..1: multiples of an irrational step, folded."""
    return (0.5 + grade * step) % 1.0
