"""One recurring job over several processes, a rank each (torchrun): one batch size, one history, one sum.

The first rank asks the policy, measures all GPUs and writes the history; the others use its choice and stop
with it. All ranks go through the same loop, as any distributed training does:

    torch.distributed.init_process_group("nccl")        # before RecurringJob
    for run in job.attempts():
        with run:
            loader = DataLoader(data, batch_size=run.batch_size // torch.distributed.get_world_size(), ...)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ..errors import UsageError, WorkbenchError
from .history.attempts import Attempt
from .recurrence import JobContext, JobRun


class Ranks(Protocol):
    """The processes of one job.

    Attributes:
        rank: Of this process; 0 leads.
        size: How many there are.
    """

    rank: int
    size: int

    def share(self, value: Any) -> Any:
        """The value of rank 0, on every rank; all of them call this, and wait for each other."""


class TorchRanks:
    """The ranks of torch's default process group."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank, self.size = int(distributed.get_rank()), int(distributed.get_world_size())

    def share(self, value: Any) -> Any:
        values = [value]
        self._distributed.broadcast_object_list(values, src=0)
        return values[0]


def current_ranks() -> Ranks | None:
    """The ranks that torch has connected; None where this process is alone, or not connected yet."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return TorchRanks(distributed) if distributed.get_world_size() > 1 else None


def require_connected(environ: Mapping[str, str]) -> None:
    """Refuse a rank of torchrun that torch has not connected to the others: each would write a history of
    its own, of one GPU.

    Raises:
        UsageError: such a rank.
    """
    size = environ.get("WORLD_SIZE", "1")
    if "LOCAL_RANK" in environ and size.isdigit() and int(size) > 1:
        raise UsageError(
            f"this process is rank {environ.get('RANK', environ['LOCAL_RANK'])} of {size}, and torch has not "
            "connected them yet; call torch.distributed.init_process_group() before RecurringJob, or give "
            "gpus=... where each rank is a job of its own"
        )


def gpus_of_ranks(ranks: Ranks, batch_sizes: tuple[int, ...]) -> list[int]:
    """The GPUs that the ranks of this node use, one each.

    Raises:
        UsageError: a batch size that the ranks cannot share equally, or ranks on other nodes.
    """
    for batch_size in batch_sizes:
        if batch_size % ranks.size:
            raise UsageError(
                f"batch size {batch_size} cannot be shared equally by {ranks.size} ranks; give multiples of "
                f"{ranks.size}: a batch size is that of the whole job"
            )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
    if here != ranks.size:
        raise UsageError(
            f"{ranks.size - here} of the {ranks.size} ranks run on other nodes, whose energy is not measured "
            "here; run the recurring job on one node, or give it the meter that measures all: meter=..."
        )
    return list(range(here))


def lead(
    attempts: Callable[[Callable[..., JobRun]], Iterator[JobRun]], ranks: Ranks
) -> Iterator[JobRun]:
    """The attempts of the first rank, which reports the others of each."""

    def make(job: JobContext, attempt: Attempt) -> JobRun:
        return _Leading(job, attempt, ranks)

    try:
        for run in attempts(make):
            ranks.share((run.attempt.number, run.attempt.as_json()))
            yield run
    except WorkbenchError as error:
        ranks.share(str(error))
        raise
    ranks.share(None)


def follow(job: JobContext, ranks: Ranks) -> Iterator[JobRun]:
    """The same attempts on another rank.

    Raises:
        UsageError: what the first rank has raised.
    """
    while (shared := ranks.share(None)) is not None:
        if isinstance(shared, str):
            raise UsageError(shared)
        yield _Following(job, Attempt.of_json(*shared), ranks)


class _Leading(JobRun):
    """An attempt that is measured here, and tells the other ranks when it stops."""

    def __init__(self, job: JobContext, attempt: Attempt, ranks: Ranks) -> None:
        super().__init__(job, attempt)
        self._ranks = ranks

    def report(self, metric: float | None = None) -> None:
        super().report(metric)
        self._ranks.share((self.reached, self.stop_reason))

    def should_stop(self) -> bool:
        stop = super().should_stop()
        # A slice may end at any iteration, a run only where an epoch does, which all have heard.
        return bool(self._ranks.share(stop)) if self.purpose == "slice" else stop

    def __exit__(self, kind: object, error: BaseException | None, *trace: object) -> None:
        super().__exit__(kind, error, *trace)
        if error is None:
            self._ranks.share((self.reached, self.stop_reason))


class _Following(_Leading):
    """The same attempt on another rank: it measures nothing, sets nothing, and stops when the first does."""

    def __enter__(self) -> JobRun:
        self.entered = True
        return self

    def step(self) -> None:
        """Nothing: the first rank counts iterations."""

    def report(self, metric: float | None = None) -> None:
        self.epochs, self.metric = self.epochs + 1, metric
        self.reached, self.stop_reason = self._ranks.share(None)

    def should_stop(self) -> bool:
        if self.purpose == "slice":
            return bool(self._ranks.share(None))
        return self.reached or bool(self.stop_reason)

    def finish(self, *, reached: bool, metric: float | None = None) -> None:
        self.reached = reached

    def __exit__(self, kind: object, error: BaseException | None, *trace: object) -> None:
        if error is None:
            self.reached, self.stop_reason = self._ranks.share(None)
