"""Hours of training in a moment: a stepped machine taken forward as arrays instead of iteration by iteration.

The same phases, variation and exact energy as `training`, at the setting in force; the machine's memory keeps the last segments,
and energy runs on. For long histories, not for control loops: nothing can be changed or sampled in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SimulationError, UsageError
from . import tenants
from .state import RING, SEGMENT
from .training import GAP_JITTER

if TYPE_CHECKING:
    from .training import Planned, TrainingJob

SEGMENTS = np.dtype(
    [("start_s", "<f8"), ("power_w", "<f8"), ("energy_before_j", "<f8"), ("sm", "<u4"), ("mem", "<u4"), ("busy", "<f4"),
     ("mem_busy", "<f4"), ("reasons", "<u8")]
)  # fmt: skip
CHUNK = 20_000  # iterations worked out at once


def advance(job: TrainingJob, seconds: float) -> int:
    """Run a job for about so many simulated seconds (to the end of an iteration); returns how many iterations that were.

    Raises:
        SimulationError: the clock is not stepped, or somebody samples this machine meanwhile.
        UsageError: seconds that are no positive number.
    """
    machine = job.machine
    if not machine.clock.stepped or machine.clock.on_step:
        raise SimulationError("only a stepped machine that nobody samples can be taken forward in one go")
    if not seconds > 0:
        raise UsageError(f"a machine goes forward by a positive number of seconds, not {seconds:g}")
    with job.claimed():
        if any(len(tenants.present(machine.state, gpu)) > 1 for gpu in job.gpus):
            raise SimulationError("a job that shares its GPU cannot be taken forward in one go; let the others end, or iterate it")
        start_s = machine.clock()
        phases, evaluation = job.plans(start_s)
        rng = np.random.default_rng(job.seed)
        writers = [_Writer(machine.state, gpu, start_s) for gpu in job.gpus]
        at_s, done = start_s, 0
        while at_s < start_s + seconds:
            mean_s = max(sum(row[0] for row in plan) for plan in phases)
            count = min(CHUNK, job.iterations_per_epoch - done % job.iterations_per_epoch, int((start_s + seconds - at_s) / mean_s) + 1)
            factor = rng.lognormal(0.0, job.variation, count)
            gap = rng.lognormal(0.0, GAP_JITTER, count)
            tables = [_durations(plan, factor, gap) for plan in phases]
            longest = np.max([table.sum(axis=1) for table in tables], axis=0)
            for writer, plan, table in zip(writers, phases, tables, strict=True):
                writer.add(at_s, plan, table, longest)
            at_s += float(longest.sum())
            done += count
            if evaluation and done % job.iterations_per_epoch == 0:
                spans = [np.array([[row[0] for row in plan]]) for plan in evaluation]
                slowest = np.max([span.sum(axis=1) for span in spans], axis=0)
                for writer, plan, span in zip(writers, evaluation, spans, strict=True):
                    writer.add(at_s, plan, span, slowest)
                at_s += float(slowest.sum())
        for writer in writers:
            writer.finish()
        machine.clock.show(at_s)
    return done


def _durations(plan: Sequence[Planned], factor: Any, gap: Any) -> Any:
    """(iterations, phases) of seconds: gaps vary more than kernels."""
    waits = np.array([row[4] == 0.0 for row in plan])
    spans = np.array([row[0] for row in plan])
    return spans * np.where(waits, gap[:, None], factor[:, None])


class _Writer:
    """The timeline of one GPU: energy runs on, and the last segments are kept."""

    def __init__(self, state: Any, gpu: int, start_s: float) -> None:
        self._state, self._gpu = state, gpu
        self._energy_j = state.true_energy_j(gpu, start_s)
        self._total = state.total_segments(gpu)
        self._kept: list[Any] = []

    def add(self, start_s: float, plan: Sequence[Planned], spans: Any, longest: Any) -> None:
        """Append iterations: what is left of each until the slowest GPU is done is waited."""
        spans = np.concatenate([spans, (longest - spans.sum(axis=1))[:, None]], axis=1)
        waiting = next((row for row in reversed(plan) if row[4] == 0.0), plan[-1])
        rows = np.zeros(spans.shape, SEGMENTS)
        columns = ("power_w", "sm", "mem", "busy", "mem_busy", "reasons")
        for number, row in enumerate([*plan, waiting]):
            for name, value in zip(columns, row[1:], strict=True):
                rows[name][:, number] = value
        flat, spans = rows.ravel(), spans.ravel()
        flat["start_s"] = start_s + np.concatenate([[0.0], np.cumsum(spans)[:-1]])
        energy = self._energy_j + np.concatenate([[0.0], np.cumsum(flat["power_w"] * spans)])
        flat["energy_before_j"], self._energy_j = energy[:-1], float(energy[-1])
        flat = flat[spans > 0]
        self._total += len(flat)
        self._kept.append(flat[-RING:])
        if sum(len(chunk) for chunk in self._kept) > 4 * RING:
            self._kept = [np.concatenate(self._kept)[-RING:]]

    def finish(self) -> None:
        rows = np.concatenate(self._kept)[-RING:]
        assert rows.dtype.itemsize == SEGMENT.size
        self._state.replace_ring(self._gpu, rows.tobytes(), self._total)
