"""A tuner's knowledge of its GPUs, and of the work on them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from ..errors import UsageError
from ..experiments.evidence import known_runs
from ..experiments.iteration_sources import Guess, Marked, MarkedIterations, MarkSource, Trace
from ..experiments.stretch_energy import energy
from ..records import Configuration, Observation, Setting
from ..search.clocks.descent import Descent, Plan
from ..search.clocks.effects import ladders
from ..search.clocks.gpoeo import Gpoeo
from ..search.clocks.knowledge import SURE_SD, time_bounds
from ..search.earlier import Cost, best_row, first_known
from ..search.objective import Objective, resolve_objective
from .balance import Balance
from .blocks import ITERATIONS, BlockMeter, Usual, clock_under_load, power_error, work_unit
from .change_detection import ForeignProcessMonitor, IdleMonitor
from .detect_iterations import DetectedIterations
from .gpus import TunedGpus
from .options import TuningRequest
from .record import TuningRecord
from .results import PROBES

MEETS = 1.03  # times the highest power under load: above such a limit a GPU does not slow down
KINDS = {"trial": "probe", "default": "re-check"}  # of a block, in the table of trials
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
        counts_work: Whether iterations are weighted by the work that the job reports for them.
    """

    request: TuningRequest
    log: TuningRecord
    marked: MarkedIterations
    gpus: TunedGpus
    earlier_s: tuple[float, float] = (0.0, 0.0)
    counts_work: bool = True

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
        prior: A prediction by a model of this GPU, for a method that uses one.

    Attributes:
        method: Decides.
        source: What counts iterations; None: the clocks alone keep the limit.
        unit: What blocks count.
        pinned: A row that a person has chosen.
        distrusted: Whether the power trace has shown no trustworthy period.
        lost: Whether it does not show the iterations any more: the work may be another.
    """

    def __init__(self, work: Workplace, from_s: float, to_s: float, prior: Any = None) -> None:
        self.work, self.log, self.gpus = work, work.log, work.gpus
        self.source: Marked | Trace | None = None
        self.unit = ITERATIONS
        self.pinned: int | None = None
        self.distrusted, self.lost, self.failures = False, False, 0
        self.usual = Usual()
        self.balance = Balance(work.gpus, self.ends_s, self.log.note)
        self._period = 0, 0.0, 0.0  # of a trace, as measured last: row, s, when
        self.begun_s = work.log.begun_s
        self.default_s = from_s, to_s  # at the default setting, before iterations were known
        self._default: Observation | None = None
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
            clock.append(clock_under_load(each, SURE_SD))
        top_w = space.max_power_limit_w or math.inf
        rungs = ladders(space, max(tops), min(max(meets), top_w))
        most = np.max([time_bounds(rungs, *each) for each in bounds], axis=0)
        method = partial(Gpoeo, space=space, prior=prior) if request.search == "gpoeo" else Descent
        self.method: Descent = method(
            rungs, most, work.objective, request.max_slowdown, busy=max(busy),
            clock_mhz=clock[int(np.argmax(busy))], earlier_s=work.earlier_s,
        )
        self.method.recheck = request.recheck
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

    def costs(self, method: Descent) -> tuple[Cost, dict[Setting, Cost]] | None:
        """Time (s) and energy (J) of an iteration at the default setting, and at each that was measured."""
        rows = {*method.visited(counted=True)}
        if not method.counted or not rows:
            return None
        unit_s, unit_j = method.default
        known = {row: method.about(row) for row in rows}
        return (unit_s, unit_j), {
            self.setting(row): (unit_s * each.time_ratio, unit_j * each.energy_ratio)
            for row, each in known.items()
        }

    # iterations

    def count_by(self, found: DetectedIterations) -> None:
        """Iterations are known from now on."""
        self.source = found.source if isinstance(found.source, Marked | Trace) else None
        self.log.found = found
        self.log.note(found.text)
        self.usual, self.failures, self.unit = Usual(), 0, ITERATIONS
        if self.work.counts_work and isinstance(found.source, MarkSource):
            self.unit = work_unit(found.source, found.from_s, math.inf)
            if self.unit.name:
                self.log.note(f"counted in {self.unit.name}: {self.unit.amount:.4g} per iteration")
        self._period = self.row, found.iteration_s, self.log.elapsed_s
        self.method.count(True)

    def distrust(self, why: str) -> None:
        """Count no iterations of the power trace any more; the clocks keep the limit."""
        self.log.note(f"the period of the power readings cannot be trusted: {why}; the clocks alone keep the "
                      "limit")
        self.source, self.log.found = None, None
        self.by_clocks()

    def by_clocks(self) -> None:
        """The clocks alone keep the limit from now on; the power at the default setting is known."""
        self.distrusted = True
        if self._default is not None and not self.method.measured:
            self.method.blocks.insert(0, self._default)
        self.method.count(False)

    def read_default(self) -> None:
        """Read the energy of the first look at the default setting."""
        from_s, to_s = self.default_s
        used = energy(self.gpus.meter, from_s, to_s)
        if used is not None:
            error_j = math.hypot(
                used.uncertainty_j / 1.96, used.energy_j * power_error(self.gpus, from_s, to_s)
            )
            here = self.method.rungs.settings[self.method.rungs.reference]
            self._default = Observation(
                Configuration(here), 0.0, to_s - from_s, used.energy_j, error_j,
                at_s=0.5 * (from_s + to_s) - self.begun_s,
            )

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
        return Guess(math.sqrt(low * high), max(math.log(high / low) / 4, 0.02), low, high)

    # blocks

    def begin(self, plan: Plan, now_s: float) -> BlockMeter:
        """Measure a block from now on; the GPUs are at its setting."""
        traced = isinstance(self.source, Trace)
        return BlockMeter(
            self.gpus, self.source, plan, self.usual, asked_s=now_s, unit_s=self.method.unit_s,
            guess=self._guess(plan.row) if traced else None, origin_s=self.begun_s,
            unit=self.unit,
        )

    def tell(self, block: Observation, unseen: str = "") -> bool:
        """A block was measured; returns whether the work has changed.

        Args:
            block: The measurement.
            unseen: Why it has no iterations, where some were expected.
        """
        method = self.method
        row = method.row(block)
        if unseen:
            changed = method.tell(block)
            if not method.doubtful:  # the power is as usual, so the period was not one
                self.failed(unseen)
            return changed or self.lost
        if isinstance(self.source, Trace) and block.count:
            guess, unit_s, error = self._guess(row), block.time_s / block.count, 3 * block.time_sd
            # An alias moves many times as far as the clocks allow, or becomes shorter.
            if not guess.least_s * (1 - error) < unit_s < guess.most_s * (1 + error):
                self.failed(f"an iteration would take {unit_s:.3g} s, and the clocks allow "
                            f"{guess.least_s:.3g} to {guess.most_s:.3g} s")
                return self.lost
            self._period = row, unit_s, self.log.elapsed_s
        self.failures = 0
        first = row == method.rungs.reference and block.count and row not in method.visited(counted=True)
        changed = method.tell(block)
        if first and self.work.request.warm_start:
            self._recall((block.time_s / block.count, block.energy_j / block.count))
        return changed

    def _recall(self, baseline: Cost) -> None:
        """Try first what was best in an earlier run of this job.

        Args:
            baseline: Time (s) and energy (J) of an iteration at the default setting.
        """
        method = self.method
        same = known_runs(self.work.request.label, self.gpus.devices[0], baseline=baseline)
        costs, known = first_known(same, self.gpus.space)
        if costs:
            here = method.rungs.reference
            row = best_row(costs, here, (1.0, 1.0), method.objective, method.max_slowdown)
            method.first = -1 if row == here else row
            self.log.note(known)

    def failed(self, why: str) -> None:
        """A block has shown nothing.

        Raises:
            UsageError: the energy cannot be measured, which nothing replaces.
        """
        self.failures += 1
        self.log.note(f"a block has failed: {why}")
        if self.failures >= TRIES and "energy" in why:
            raise UsageError(f"{why}, {self.failures} times in a row; without it nothing can be compared")
        if self.failures >= TRIES and isinstance(self.source, Trace):
            if len({*self.method.visited(counted=True)}) < 2:
                self.distrust(why)
            else:
                self.lost = True

    # for the record

    def planned(self, plan: Plan, now_s: float) -> None:
        """Note that a block begins."""
        log, setting = self.log, self.method.rungs.settings[plan.row]
        if plan.kind in KINDS:
            log.text = f"measuring {self.name(plan.row)}: {plan.why}"
            return
        log.text = self.method.sentence(plan.row)
        if setting != log.held:
            log.note(f"held: {log.text}")
            log.held, log.held_since_s = setting, now_s - log.begun_s
        if log.settled_s is None:
            log.settled_s = log.held_since_s
            log.settled_iterations = round(log.iterations) if log.found is not None else None

    def probed(self, meter: BlockMeter, now_s: float) -> None:
        """Add a trial, or a block at the default setting, to the table of trials."""
        plan, block, method, log = meter.plan, meter.block, self.method, self.log
        if plan.kind not in KINDS:
            return
        first = plan.kind == "default" and not (log.trials["kind"] == "baseline").any()
        row: dict[str, Any] = {
            **asdict(method.rungs.settings[plan.row]), "kind": "baseline" if first else KINDS[plan.kind],
            "outcome": "failed" if block is None else "kept", "reason": meter.failed or plan.why,
            "at_s": meter.asked_s - log.begun_s, "cost_s": now_s - meter.asked_s, "iterations": 0,
        }
        if block is not None and block.count:
            log.made += 1
            unit_s, unit_j = method.default
            variance = method.time_variance(block, method.scatter)
            row |= {
                "iterations": round(block.count), "time_s": block.time_s, "energy_j": block.energy_j,
                "energy_uncertainty_j": 1.96 * block.energy_sd_j,
                "time_sd": math.sqrt(variance),
                "energy_sd": math.sqrt(variance + (block.energy_sd_j / block.energy_j) ** 2),
                "cost_j": block.energy_j / block.time_s * row["cost_s"],
                "time_ratio": block.time_s / block.count / unit_s,
                "energy_ratio": block.energy_j / block.count / unit_j,
            }
            if plan.kind == "trial":
                slower, less = 100 * (row["time_ratio"] - 1), 100 * (1 - row["energy_ratio"])
                time_error, energy_error = (
                    196 * row[f"{each}_ratio"] * row[f"{each}_sd"] for each in ("time", "energy")
                )
                log.note(f"{self.name(plan.row)}: {slower:.1f} ± {time_error:.1f} % slower, "
                         f"{less:.1f} ± {energy_error:.1f} % less energy")
        log.trials = pl.concat([log.trials, pl.DataFrame([row], schema=PROBES)])

    def rebalance(self, now_s: float) -> bool:
        """Reduce clocks of GPUs that wait, or restore them; returns whether anything was changed."""
        clocks_mhz = self.balance.change(now_s)
        if clocks_mhz is None:
            return False
        self.gpus.reduce(clocks_mhz)
        return True
