"""A tuner's knowledge of its GPUs, and of the work on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import UsageError
from ..experiments.evidence import known_runs
from ..experiments.iteration_sources import Guess, Marked, MarkedIterations, Trace
from ..records import Setting
from ..search.clocks.descent import Descent, Plan, time_bounds
from ..search.clocks.effects import Block, ladders
from ..search.earlier import EarlierCurve, best_row, first_known
from ..search.objective import Objective, resolve_objective
from ..search.space import SettingSpace
from .balance import Balance
from .blocks import BlockMeter, Usual, clock_under_load
from .change_detection import ForeignProcessMonitor, IdleMonitor
from .detect_iterations import DetectedIterations
from .gpus import TunedGpus
from .methods import make_method
from .options import TuningRequest
from .record import TuningRecord

MEETS = 1.03  # times the highest power under load: above such a limit a GPU does not slow down
PAUSE_S = 1.0  # without work: longer than within an iteration
TRIES = 3  # blocks in a row without a result before something else is tried
CLOCK_ERROR = 0.03  # of a ratio of times, next to three standard errors: clocks are sampled
GROWS_PER_S = 0.001  # the same, for each second: iterations become longer


@dataclass
class Workplace:
    """Shared by all states of a working tuner, for any work.

    Attributes:
        company: Other processes on the GPUs.
        earlier_s: Seconds that works before the present one have lost, and would have needed by default.
    """

    request: TuningRequest
    log: TuningRecord
    marked: MarkedIterations
    gpus: TunedGpus
    earlier_s: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        uuids = [device.uuid for device in self.gpus.devices]
        self.company = ForeignProcessMonitor(self.gpus.devices)
        self._vitals = IdleMonitor(self.gpus.recorder, uuids)

    @property
    def objective(self) -> Objective:
        """The cost that the request asks for, on these GPUs."""
        devices = self.gpus.devices
        return resolve_objective(self.request.objective, devices[0].limits.max_power_limit_w, len(devices))

    def idle_s(self, now_s: float) -> float:
        """For how long the GPUs have been idle, if that is longer than within an iteration; else 0."""
        self._vitals.observe(now_s)
        idle_s = self._vitals.idle_s
        return idle_s if idle_s > max(PAUSE_S, 1.5 * self.log.iteration_s) else 0.0


class TunedJob:
    """The work that is tuned, since its clocks under load at the default setting are known.

    Args:
        work: The GPUs.
        from_s, to_s: The default setting was active and the GPUs worked.

    Attributes:
        method: Decides.
        source: What counts iterations; None: the clocks alone keep the limit.
        pinned: A row that a person has chosen.
        distrusted: Whether the power trace has shown no trustworthy period.
        lost: Whether the power trace does not show the iterations any more: the work may be another.
    """

    def __init__(self, work: Workplace, from_s: float, to_s: float) -> None:
        self.work, self.log, self.gpus = work, work.log, work.gpus
        self.source: Marked | Trace | None = None
        self.pinned: int | None = None
        self.distrusted, self.lost, self.failures = False, False, 0
        self.usual = Usual()
        self.balance = Balance(work.gpus, self.ends_s, self.log.note)
        self._period: tuple[int, float, float] = (0, 0.0, 0.0)  # of a trace, as measured last: row, s, when
        self.begun_s = work.log.begun_s
        request, space, recorder = work.request, work.gpus.space, work.gpus.recorder
        rows = [recorder.rows(device.uuid, from_s, to_s) for device in work.gpus.devices]
        bounds, tops, meets, busy, clock = [], [], [], [], []
        for each in rows:
            used, power_w = np.nan_to_num(each["utilisation"], nan=1.0), each["power_w"]
            power_w = power_w[np.isfinite(power_w)]
            under = each["sm_clock_mhz"][used > 0.05]
            under = under[np.isfinite(under)]
            tops.append(float(under.max()) if len(under) else float(space.max_sm_clock_mhz or 1.0))
            mean_w = float(power_w.mean()) if len(power_w) else math.inf
            high_w = float(np.quantile(power_w, 0.98)) if len(power_w) else math.inf
            share = float(used.mean()) if len(used) else 1.0
            meets.append(max(MEETS * high_w, 1.05 * mean_w / max(share, 0.3)))
            bounds.append((each["sm_clock_mhz"], used))
            busy.append(share)
            clock.append(clock_under_load(each, 2.0))
        top_w = space.max_power_limit_w or math.inf
        rungs = ladders(space, min(tops), min(max(meets), top_w))
        most = np.max([time_bounds(rungs, *each) for each in bounds], axis=0)
        self.method: Descent = make_method(
            request.search, rungs, most, work.objective, request.max_slowdown, space=space,
            busy=max(busy), clock_mhz=clock[int(np.argmax(busy))], earlier_s=work.earlier_s,
            recheck=request.recheck,
        )
        self.method.now_s = to_s - self.begun_s

    # rows and settings

    def setting(self, row: int) -> Setting:
        """The setting of a row; `Setting()` for the default."""
        return self.gpus.own(self.method.rungs.settings[row])

    @property
    def row(self) -> int:
        """The row that the GPUs are at."""
        current = self.gpus.current
        return self.method.rungs.reference if current == Setting() else self.gpus.space.row(current)

    def name(self, row: int) -> str:
        return self.gpus.name(self.setting(row))

    # iterations

    def count_by(self, found: DetectedIterations) -> None:
        """Iterations are known from now on."""
        self.source = found.source if isinstance(found.source, Marked | Trace) else None
        self.log.found = found
        self.log.note(found.text)
        self.usual, self.failures = Usual(), 0
        self._period = self.row, found.iteration_s, self.log.elapsed_s
        self.method.count(True)
        request, here = self.work.request, self.method.rungs.reference
        if request.warm_start:
            same = known_runs(request.label, self.gpus.devices[0])
            self.method.first, known = first_row(same, self.gpus.space, self.method)
            self.method.first = -1 if self.method.first == here else self.method.first
            if known:
                self.log.note(known)

    def distrust(self, why: str) -> None:
        """Count no iterations of the power trace any more; the clocks keep the limit."""
        self.log.note(f"the period of the power readings cannot be trusted: {why}; the clocks alone keep the "
                      "limit")
        self.source, self.distrusted, self.log.found = None, True, None
        self.method.count(False)

    def ends_s(self, from_s: float, to_s: float) -> np.ndarray:
        """Ends of iterations between two times; none where the job does not report them."""
        return self.source.since(from_s, to_s) if isinstance(self.source, Marked) else np.empty(0)

    def _guess(self, row: int) -> Guess:
        """How long an iteration may take at a row, by the clocks and by what was measured last."""
        known, seconds, at_s = self._period
        wide = CLOCK_ERROR + GROWS_PER_S * (self.log.elapsed_s - at_s)
        here, there = (min(float(self.method.most[each]), 2.0) for each in (known, row))
        if known == row:
            here = there = 1.0
        low, high = seconds / here / (1.0 + wide), seconds * there * (1.0 + wide)
        middle = math.sqrt(low * high)
        return Guess(middle, max(math.log(high / low) / 4, 0.02), low, high)

    # blocks

    def begin(self, plan: Plan, now_s: float) -> BlockMeter:
        """Measure a block from now on; the GPUs are at its setting."""
        traced = isinstance(self.source, Trace)
        return BlockMeter(
            self.gpus, self.source, plan, self.usual, asked_s=now_s, unit_s=self.method.unit_s,
            guess=self._guess(plan.row) if traced else None, origin_s=self.begun_s,
        )

    def tell(self, block: Block) -> bool:
        """A block was measured; returns whether the work has changed."""
        if isinstance(self.source, Trace):
            why = self._wrong(block)
            if why:
                block = replace(block, count=0.0)  # its power counts
                self.failed(why)
            else:
                self._period = block.row, block.time_s / block.count, self.log.elapsed_s
        if block.count or self.source is None:
            self.failures = 0
        return self.method.tell(block)

    def _wrong(self, block: Block) -> str:
        """Why the length of a block's iterations cannot be true; empty where it can."""
        if not block.count:
            return f"no iteration is seen in {block.time_s:.0f} s"
        guess, unit_s = self._guess(block.row), block.time_s / block.count
        error = 3.0 * block.time_sd
        if guess.least_s * (1.0 - error) < unit_s < guess.most_s * (1.0 + error):
            return ""
        # An alias moves many times as far as the clocks allow, or becomes shorter.
        return (f"an iteration would take {unit_s:.3g} s, and the clocks allow {guess.least_s:.3g} to "
                f"{guess.most_s:.3g} s")

    def failed(self, why: str) -> None:
        """A block has shown nothing.

        Raises:
            UsageError: the energy cannot be measured, which nothing replaces.
        """
        self.failures += 1
        self.log.note(f"a block has failed: {why}")
        if self.failures >= TRIES and "energy" in why:
            raise UsageError(f"{why}, {self.failures} times in a row; without it nothing can be compared")
        counted = {each.row for each in self.method.blocks if each.count}
        if self.failures >= TRIES and isinstance(self.source, Trace):
            if len(counted) < 2:
                self.distrust(why)
            else:
                self.lost = True

    def rebalance(self, now_s: float) -> bool:
        """Reduce clocks of GPUs that wait, or restore them; returns whether anything was changed."""
        clocks_mhz = self.balance.change(now_s)
        if clocks_mhz is None:
            return False
        self.gpus.reduce(clocks_mhz)
        return True


def first_row(same: Sequence[EarlierCurve], space: SettingSpace, method: Descent) -> tuple[int, str]:
    """The row that was best in an earlier run of the job, and how it is called."""
    costs, known = first_known(same, space)
    if not costs:
        return -1, ""
    return best_row(costs, space.reference_row, (1.0, 1.0), method.objective, method.max_slowdown), known
