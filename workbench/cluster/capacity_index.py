"""Index of GPUs that can take one more job, by mix: finds the most utilised one without a full scan."""

from __future__ import annotations

from collections.abc import Callable

from .colocation import Mix
from .state import Gpu, Job


class CapacityIndex:
    """All open GPUs. `file` must be called for every GPU whose jobs or openness have changed."""

    def __init__(self) -> None:
        self._open: dict[Mix, dict[Gpu, None]] = {}

    def file(self, gpu: Gpu, opened: bool) -> None:
        """Set whether this GPU takes more jobs from now on."""
        if gpu.note:
            before = self._open[gpu.note]
            del before[gpu]
            if not before:
                del self._open[gpu.note]
            gpu.node.opened -= 1
        gpu.note = gpu.mix if opened else None
        if opened:
            self._open.setdefault(gpu.mix, {})[gpu] = None
            gpu.node.opened += 1

    def find(
        self, job: Job, limit: int, fits: Callable[[Job, Mix], bool], accepts: Callable[[Job, Gpu], bool]
    ) -> list[Gpu] | None:
        """The open GPU of the highest utilisation that can take the job.

        Args:
            job: The job to place.
            limit: Highest load, in units, of the GPU before the job is placed.
            fits: Whether the job may join this mix at all.
            accepts: Whether this GPU takes the job.
        """
        mixes = [mix for mix in self._open if mix.load <= limit]
        mixes.sort(key=lambda mix: (mix.load, mix.key), reverse=True)
        open_gpus = (gpu for mix in mixes if fits(job, mix) for gpu in self._open[mix])
        return next(([gpu] for gpu in open_gpus if accepts(job, gpu)), None)
