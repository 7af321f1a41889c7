"""One attempt as a study keeps it; from attempts: barred batch sizes, evidence for a policy."""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ... import _processes
from ...errors import UsageError, check_fields, checked_list
from ...search.batch_size.history import MOST_RUNS, Evidence, Run, Space
from ...search.objective import Objective

# power limit, seconds of an epoch and watts of all GPUs, at each limit
Profile = tuple[tuple[float, float, float], ...]
PATIENCE_S = 86_400.0  # without a word from another machine; an epoch that takes longer needs more
ENDED = ("reached", "stopped", "failed", "crashed")
STATES = ("running", *ENDED, "killed", "interrupted", "withdrawn")


@dataclass(frozen=True)
class Attempt:
    """The stored values of one attempt.

    Attributes:
        number: In its study, growing.
        recurrence: Which it was for, by the number of its first attempt (-1: it is that itself); retries and
            slices share it.
        purpose: "run", or "slice": a few seconds only.
        state: As `history` has them; "running" has not ended, "killed" has without a word, "interrupted" by
            hand.
        epochs: Done; profiling's included.
        time_s, energy_j: Without profiling, which is booked apart.
        profile: (power limit, seconds of an epoch, watts of all GPUs) at each limit.
        iterations_per_epoch: Where the training marked its steps.
        oom: It crashed because memory ran out.
    """

    number: int
    batch_size: int
    recurrence: int = -1
    purpose: str = "run"
    state: str = "running"
    power_limit_w: float | None = None
    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    profile_time_s: float = 0.0
    profile_energy_j: float = 0.0
    profile: Profile = ()
    iterations_per_epoch: float | None = None
    metric: float | None = None
    target: float | None = None
    gpu: str | None = None
    oom: bool = False
    reason: str = ""
    stop_after_epochs: float = math.inf
    stop_after_cost: float = math.inf
    owner: dict[str, Any] = field(default_factory=dict)
    heartbeat_unix_s: float = 0.0
    late_for: int | None = None

    def as_json(self) -> dict[str, Any]:
        """For a study; infinite numbers are no JSON and are left out."""
        return {
            key: value for key, value in asdict(self).items()
            if key != "number" and not (isinstance(value, float) and not math.isfinite(value))
        }

    @classmethod
    def of_json(cls, number: int, kept: dict[str, Any]) -> Attempt:
        """Back from a study; keys of a later version are left alone.

        Raises:
            UsageError: it is no record of an attempt.
        """
        if not isinstance(kept, dict) or "batch_size" not in kept or kept.get("state") not in STATES:
            raise UsageError("it is no record of an attempt")
        known = {each.name for each in fields(cls)}
        lists = checked_list("profile", kept.get("profile", ()), "list")
        profile = tuple(checked_list("profile", row, "float") for row in lists)
        if any(len(row) != 3 for row in profile):
            raise UsageError("profile has rows of other than 3 numbers")
        if not isinstance(kept.get("owner", {}), dict):
            raise UsageError("its owner is not recorded")
        values = {**{key: value for key, value in kept.items() if key in known}, "profile": profile}
        attempt = cls(number, **values)
        check_fields(attempt)
        return attempt if attempt.recurrence >= 0 else replace(attempt, recurrence=number)

    @property
    def ended(self) -> bool:
        return self.state != "running"

    @property
    def lost(self) -> bool:
        """Whether it trained without success: it ended by itself, without the target."""
        return self.state in ("stopped", "failed")

    def cost(self, objective: Objective) -> float:
        """Of all that it took, profiling included."""
        time_s, energy_j = self.time_s + self.profile_time_s, self.energy_j + self.profile_energy_j
        return float(objective.cost(time_s, energy_j))


def count(evidence: Evidence, attempt: Attempt) -> None:
    """Let a policy see one attempt more that has ended."""
    space = evidence.space
    local = attempt.gpu is None or space.gpu is None or attempt.gpu == space.gpu
    arm = evidence.index.get(attempt.batch_size)
    cost = (attempt.time_s + attempt.profile_time_s, attempt.energy_j + attempt.profile_energy_j)
    bug = attempt.state == "crashed" and not attempt.oom
    if arm is None:  # a batch size that is not allowed any more: paid for all the same
        if local:
            evidence.add_slice(*cost)
        return
    if local:
        for limit_w, epoch_time_s, power_w in attempt.profile:
            evidence.add_profile(arm, limit_w, epoch_time_s, power_w)
    if attempt.target is not None and space.target is not None and attempt.target != space.target:
        if attempt.state == "reached":
            evidence.others.setdefault(attempt.target, []).append((arm, attempt.epochs))
    elif attempt.purpose == "slice" or attempt.state not in ENDED or bug:
        # One that was killed, interrupted or had a bug says nothing of the batch size; `Bars` counts them.
        if local:
            evidence.add_slice(*cost)
    else:
        run = Run(
            arm, attempt.state, attempt.epochs, *cost, attempt.profile_time_s, attempt.profile_energy_j,
            attempt.recurrence, attempt.power_limit_w,
        )
        evidence.add(run, local=local)


class Bars:
    """Which batch sizes are not to be tried again, counted as attempts end.

    One that ran out of memory bars all that are not smaller, on that card, until one of them has run an epoch
    there. `MOST_RUNS` other crashes or kills in a row bar a batch size, and only if another batch size has
    ended well: else it is not the batch size. From attempt `pardoned[batch_size]` on all counts.
    """

    def __init__(self, space: Space, pardoned: dict[int, int] | None = None) -> None:
        self.space, self.pardoned = space, dict(pardoned or {})
        self._memory: dict[int, str] = {}
        self._crashes: dict[int, int] = {}
        self._well: set[int] = set()
        self._reached, self._runs = False, 0
        self._exhausted: dict[int, int] = {}
        self._last: float | None = None

    def see(self, attempt: Attempt) -> None:
        """One attempt more that has ended."""
        self._see_target(attempt)
        b = attempt.batch_size
        if attempt.number < self.pardoned.get(b, 0) or (
            attempt.gpu and self.space.gpu and attempt.gpu != self.space.gpu
        ):
            return
        if attempt.oom:
            self._memory[b] = f"batch size {b} ran out of memory"
        elif attempt.state in ("crashed", "killed"):
            self._crashes[b] = self._crashes.get(b, 0) + 1
        elif attempt.state in ENDED:
            if attempt.epochs >= 1 or attempt.purpose == "slice":
                self._memory = {size: why for size, why in self._memory.items() if size > b}
            self._crashes.pop(b, None)
            self._well.add(b)

    def _see_target(self, attempt: Attempt) -> None:
        if attempt.target != self.space.target or attempt.purpose != "run":
            return
        self._runs += 1
        self._reached |= attempt.state == "reached"
        self._last = attempt.metric if attempt.metric is not None else self._last
        if attempt.state == "failed" and attempt.epochs >= self.space.max_epochs:
            self._exhausted[attempt.batch_size] = self._exhausted.get(attempt.batch_size, 0) + 1

    @property
    def out(self) -> dict[int, str]:
        """Batch sizes that are barred, and why."""
        found = {}
        for b in self.space.batch_sizes:
            smaller = [size for size in self._memory if size <= b]
            if smaller:
                found[b] = self._memory[min(smaller)]
            elif self._well - {b} and self._crashes.get(b, 0) >= MOST_RUNS:
                found[b] = f"batch size {b} crashed or was killed {self._crashes[b]} times in a row"
        return found

    def check_reachable(self) -> None:
        """Raise UsageError where every batch size has had all its epochs and none has reached the target."""
        space = self.space
        twice = self._exhausted.get(space.default, 0) >= 2
        if self._reached or not twice or not all(b in self._exhausted for b in space.batch_sizes):
            return
        what = "its target" if space.target is None else f"the target of {space.target:g}"
        last = f" (last seen: {self._last:g})" if self._last is not None else ""
        raise UsageError(
            f"no batch size has reached {what} within {space.max_epochs} epochs, in {self._runs} runs{last}; "
            "choose a target that training reaches, or allow more epochs. The history is kept"
        )


def without(space: Space, out: dict[int, str]) -> Space:
    """The space without barred batch sizes; the next smaller batch size, or the smallest, is in as default.

    Raises:
        UsageError: nothing is left.
    """
    left = tuple(b for b in space.batch_sizes if b not in out)
    if not left:
        raise UsageError(
            f"no batch size is left to try: {'; '.join(dict.fromkeys(out.values()))}. Allow smaller ones, or "
            "call `unblock()` when the cause is gone; the history is kept"
        )
    if space.default in left:
        return space if len(left) == len(space.batch_sizes) else replace(space, batch_sizes=left)
    default = max((b for b in left if b < space.default), default=left[0])
    return replace(space, batch_sizes=left, default=default)


# who runs one, and whether they still do


def current_owner() -> dict[str, Any]:
    """This process, so that another one can report whether it still runs."""
    pid = os.getpid()
    host, boot, started = socket.gethostname(), _processes.boot_id(), _processes.started_at(pid)
    return {"host": host, "boot": boot, "pid": pid, "started": started}


def is_abandoned(owner: dict[str, Any], heartbeat_unix_s: float) -> str:
    """Why an attempt is nobody's any more; empty while it may still end."""
    if owner.get("host") == socket.gethostname():
        if owner.get("boot") != _processes.boot_id() and owner.get("boot") and _processes.boot_id():
            return "the machine was restarted while it ran"
        pid = int(owner.get("pid", 0))
        gone = not (pid > 0 and _processes.runs(pid, owner.get("started", "")))
        return f"its process ({owner.get('pid')}) is gone" if gone else ""
    silent_s = time.time() - heartbeat_unix_s
    where = owner.get("host", "its machine")
    return f"no sign of life from {where} for {silent_s / 3600:.0f} hours" if silent_s > PATIENCE_S else ""
