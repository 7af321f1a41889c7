"""GPUs with jobs that may take one more, by mix: finds the highest utilised without looking at all."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from .colocation import Mix
from .state import NEVER_S, Gpu, Job

REFUSED_S = NEVER_S
# GPUs that are asked for one job at most: all of a cluster of that size, and a bound on what a job costs in a
# larger one
MOST_CHECKS = 512


@dataclass(slots=True, eq=False)
class Bucket:
    """The open GPUs of one mix. Every profile that asks has a cursor of its own into `log` and looks at
    each entry once; `kept` are those that it has seen and that may still take another job of the profile."""

    mix: Mix
    log: list[tuple[Gpu, int]] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)
    kept: dict[int, list[tuple[Gpu, int]]] = field(default_factory=dict)
    live: int = 0


class CapacityIndex:
    """All open GPUs. A GPU that refuses a profile is not asked by that profile again before it has changed,
    or before the moment that it named.

    `file` must be told of every GPU whose jobs, or whose openness, have changed.
    """

    def __init__(self) -> None:
        self._buckets: dict[Mix, Bucket] = {}
        self._order: list[tuple[int, tuple[int, ...], int, Bucket]] = []
        self._later: list[tuple[float, int, Gpu, int]] = []
        self._seq = 0

    def file(self, gpu: Gpu, opened: bool) -> None:
        """This GPU takes more jobs from now on, or does not."""
        bucket = gpu.note
        mix = gpu.mix
        if isinstance(bucket, Bucket):
            if opened and bucket.mix is mix:
                bucket.log.append((gpu, gpu.stamp))  # its jobs may be others, or the same in another state
                self._trim(bucket)
                return
            bucket.live -= 1
            if not bucket.live:
                self._drop(bucket)
            gpu.note = None
            gpu.node.opened -= 1
        if opened:
            found = self._buckets.get(mix)
            if found is None:
                self._seq += 1
                found = self._buckets[mix] = Bucket(mix)
                insort(self._order, (mix.load, mix.key, self._seq, found))
            found.live += 1
            found.log.append((gpu, gpu.stamp))
            self._trim(found)
            gpu.note = found
            gpu.node.opened += 1

    def find(
        self, job: Job, limit: int, now_s: float, fits: Callable[[Job, Mix], bool],
        accepts: Callable[[Job, Gpu], float | None],
    ) -> Gpu | None:
        """The open GPU of the highest utilisation that takes the job.

        Args:
            limit: Highest load in units that the GPU may have before the job comes.
            fits: Whether the job may join this mix at all.
            accepts: 0 where the GPU takes the job; otherwise the moment from which on it may take a job of
                this profile (`REFUSED_S`: not before it has changed), or None where it refuses this job only.
        """
        later = self._later
        while later and later[0][0] <= now_s:
            _, _, gpu, stamp = heapq.heappop(later)
            bucket = gpu.note
            if gpu.stamp == stamp and isinstance(bucket, Bucket):
                bucket.log.append((gpu, stamp))
        profile = job.profile
        order = self._order
        checks_left = MOST_CHECKS
        for at in range(bisect_right(order, (limit + 1,)) - 1, -1, -1):
            bucket = order[at][3]
            log = bucket.log
            cursor = bucket.cursors.get(profile, 0)
            earlier = bucket.kept.get(profile)
            if (cursor == len(log) and not earlier) or not fits(job, bucket.mix):
                continue
            fresh = log[cursor:]
            entries = [*earlier, *fresh] if earlier else fresh
            kept: list[tuple[Gpu, int]] = []
            found: Gpu | None = None
            for number, entry in enumerate(entries):
                gpu, stamp = entry
                if gpu.stamp != stamp or gpu.note is not bucket:
                    continue
                if not checks_left:
                    kept = entries[number:] + kept  # next time these come first
                    break
                checks_left -= 1
                until_s = accepts(job, gpu)
                if until_s is None:
                    kept.append(entry)
                elif until_s == 0:
                    found = gpu
                    kept += entries[number:]  # with the one found: the policy may leave it be after all
                    break
                elif until_s < NEVER_S:
                    self._seq += 1
                    heapq.heappush(later, (until_s, self._seq, gpu, stamp))
            bucket.cursors[profile] = len(log)
            bucket.kept[profile] = kept
            if found is not None or not checks_left:
                return found
        return None

    def _trim(self, bucket: Bucket) -> None:
        """Keep the log within a few times the GPUs that it is about."""
        if len(bucket.log) > 64 + 8 * bucket.live:
            live: dict[Gpu, int] = {
                gpu: stamp for gpu, stamp in bucket.log if gpu.stamp == stamp and gpu.note is bucket
            }
            bucket.log = list(live.items())
            bucket.cursors.clear()
            bucket.kept.clear()

    def _drop(self, bucket: Bucket) -> None:
        del self._buckets[bucket.mix]
        at = bisect_right(self._order, (bucket.mix.load, bucket.mix.key))
        while self._order[at][3] is not bucket:
            at += 1
        del self._order[at]
