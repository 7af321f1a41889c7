"""Several simulated jobs at once in one thread, each on its GPUs; those of one GPU share it.

    together([TrainingJob("imagenet", 64, iterations=100), TrainingJob("squad", 8, iterations=100)])

On a stepped clock this is the way to run more than one job: the next to run out of work is always the one that goes on, so nothing hangs
on which of two threads steps the clock first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..errors import UsageError
from .state import GUARD_S
from .training import AHEAD_S, LOOK_S, TrainingJob


def together(jobs: Sequence[TrainingJob], seconds: float | None = None) -> None:
    """Run jobs until all have ended, or for so many seconds of the machine's clock.

    Raises:
        UsageError: no job, or jobs of different machines.
        OutOfMemory: they do not fit their GPUs together; none has run.
    """
    if not jobs or any(job.machine.state.path != jobs[0].machine.state.path for job in jobs):
        raise UsageError(f"{len(jobs)} jobs were given; give one or more, all of one simulated machine")
    machine = jobs[0].machine
    clock = machine.clock
    look_s = machine.state.card(jobs[0].gpus[0], "governor_delay_s") if clock.stepped else LOOK_S * clock.scale
    with contextlib.ExitStack() as places:
        left = {}
        for job in jobs:
            place = places.enter_context(contextlib.ExitStack())
            place.enter_context(job.claimed())
            left[id(job)] = (job, job.pieces(), place)
        stop_s = float("inf") if seconds is None else clock() + seconds
        for _, pieces, _ in left.values():
            next(pieces, None)
        while left and clock() < stop_s:
            job, pieces, place = min(left.values(), key=lambda each: each[0].end_s)
            wait_s = min(job.end_s - AHEAD_S, stop_s) - clock()
            if wait_s > 0:
                clock.sleep(min(wait_s, max(look_s, 2 * GUARD_S)))
                for each, _, _ in left.values():
                    each.follow()
            elif next(pieces, job) is job:  # nothing more to queue
                while (rest_s := job.end_s - clock()) > 0:
                    clock.sleep(min(rest_s, look_s))
                    for each, _, _ in left.values():
                        each.follow()
                place.close()
                del left[id(job)]
