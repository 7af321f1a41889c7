"""Samples GPUs at the right moments into a shared ring; the child process is this module.

A GPU's energy counter and power reading refresh in steps of 20 to 100 ms, and who knows when knows the exact
energy then. So the sampler finds the steps (a burst at the start, then a reading around the expected moment
now and then), reads once after each, and stamps every row with the time of the step it belongs to.

A device that nobody has needed for a minute is read once per second, and after ten minutes no more;
when that is so of all of them, the process ends. It ends with its parent too, which closes its standard
input, unless other processes of the user read the ring. Standard library only, but for the driver's door: it
starts in some 50 ms and holds some 17 MB.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from .. import _processes
from ..clock import Clock
from ..device.protocol import Device
from ..errors import DeviceError, GpuLost, NoDriver, Transient
from ..records import Sample
from .edges import EdgeTracker
from .ring import LOST, RUNNING, Ring

STATUS_EVERY_S = 0.2  # between two readings of what changes slowly, also of who needs what
SLOWEST_S = 0.1  # between two looks while nothing is known about a sensor
FASTEST_S = 0.005
REST_AFTER_S, STOP_AFTER_S = 60.0, 600.0  # since a device was needed last
RESTING_S = 10 * SLOWEST_S  # between two looks then
FOLLOW_S = 0.003  # between two looks that wait for a refresh; its moment is then known to 1 ms
STILL_S = 60.0  # within which two missed refreshes show that there is no schedule
LOCK_SHARE = 0.1  # of the time, that looks of one process may hold the driver's lock

AWAKE, RESTING, STOPPED = range(3)


def pace_after(idle_s: float) -> int:
    """How a device is looked at that nobody has needed for some time.

    >>> [pace_after(idle_s) for idle_s in (-math.inf, 59.0, 60.0, 600.0)] == [AWAKE, AWAKE, RESTING, STOPPED]
    True
    """
    return AWAKE if idle_s < REST_AFTER_S else RESTING if idle_s < STOP_AFTER_S else STOPPED


class _Watched:
    """A device and its sensors: `edges` of what energy comes from, the counter or else power readings;
    `power_edges` of power readings next to a counter, for nothing says that the two refresh together.
    """

    def __init__(self, number: int, device: Device) -> None:
        self.number, self.device = number, device
        self.counts = device.can("energy")
        self.edges = EdgeTracker()
        self.power_edges = EdgeTracker() if self.counts else self.edges
        self.due_s = -math.inf
        self.open_s = self.shut_s = math.inf  # a look in between sees the next step and no other
        self.calm_s = -math.inf  # until then no step is near
        self.refine_s, self.refine_gap_s = math.inf, 0.25
        self.next_part = 0
        self.missing, self.search_s, self.search_gap_s = False, -math.inf, 0.5
        self.moves_s = math.nan  # between two changes of a counter that changes at every look
        self.last: Sample | None = None
        self.status: Sample | None = None
        self.error, self.lost = "", False
        self.pace, self.inside = AWAKE, False  # `inside` an open window
        self.call_s = self.status_call_s = 0.0  # what one sample takes, and one with what changes slowly
        self.still_s = -math.inf  # when a refresh was missed
        self.schedule: _Follower | None = None  # of refreshes that are on no line

    def followed(self) -> tuple[tuple[EdgeTracker, Callable[[Sample], float]], ...]:
        """The trackers, each with its column of a sample."""
        power = (self.power_edges, lambda sample: sample.power_w)
        return ((self.edges, lambda sample: sample.energy_j), power) if self.counts else (power,)

    @property
    def off_line(self) -> bool:
        """Whether the edges of a sensor are no longer near its line."""
        return any(edges.widen > 16 for edges, _ in self.followed())

    @property
    def astray(self) -> bool:
        """Whether its steps are to be looked for as if nothing was known."""
        steps = (self.schedule is not None or self.edges.locked
                 or (self.power_edges.locked and self.moves_s < SLOWEST_S))
        return self.missing or not steps or self.off_line

    def moved(self, sample: Sample) -> bool:
        """Whether a sample shows another value than the last one, of a sensor whose steps are not known."""
        last = self.last
        if last is None or (self.edges.locked and self.power_edges.locked):
            return False
        return any(
            not edges.locked and _changed(value(sample), value(last)) for edges, value in self.followed()
            if edges is not self.edges or math.isnan(self.moves_s)
        )


class _Follower:
    """Refreshes of a sensor that keeps no schedule: each is waited for, around one period after the last.

    Args:
        period_s: Mean time between two refreshes.
        at_s: When the last refresh was seen.
        gap_s: Least time between two looks.
    """

    def __init__(self, period_s: float, at_s: float, gap_s: float) -> None:
        self.period_s, self._gap_s = period_s, gap_s
        self.tick_s = self.error_s = math.nan
        self._refreshed_s, self._expected_s, self._scatter_s = at_s, at_s + period_s, gap_s

    def read(self, before_s: float, after_s: float, *, refreshed: bool) -> tuple[float, float]:
        """The last refresh and its standard error after a look.

        Args:
            before_s: When the look before began.
            after_s: When this look ended.
            refreshed: Whether the sensor refreshed in between.
        """
        if refreshed:
            half_s = (after_s - before_s) / 2
            self.tick_s, self.error_s = after_s - half_s, half_s / math.sqrt(3)
            off_s = self.tick_s - self._expected_s
            if abs(off_s) < self.period_s / 2:
                self.period_s += off_s / EdgeTracker.KEEP
            self._scatter_s = math.sqrt(0.9 * self._scatter_s**2 + 0.1 * min(abs(off_s), self.period_s) ** 2)
            self._refreshed_s, self._expected_s = self.tick_s, self.tick_s + self.period_s
        elif after_s > self._expected_s + self.period_s / 2:
            self._expected_s += self.period_s
        return self.tick_s, self.error_s

    def next_s(self, after_s: float) -> float:
        """When to look next; ever more seldom while a refresh stays away."""
        early_s = self._expected_s - min(max(3 * self._scatter_s, self._gap_s), self.period_s / 2)
        late_s = after_s - self._refreshed_s - self.period_s
        return max(early_s, after_s + max(self._gap_s, 0.03 * late_s))


class Sampler:
    """Reads devices at their sensors' pace into a ring. `due_s` is when `tick` is due next.

    Args:
        devices: In the ring's order, or by their numbers in it.
        ring: Where rows go.
        clock: The devices' clock.
        pause: Waits between the looks of a burst; a stepped clock is moved instead.
    """

    BURST_S, POLL_S, CLOSE_S, EARLY_S, MARGIN_S = 0.35, 0.0007, 0.0001, 0.002, 0.008
    # Calls wait for one lock of the driver, also those of what is measured: slow ones are made seldom.
    SLOW_S, SELDOM_S, LONG_S = 0.0003, 0.004, 2.5
    QUICK_S = 0.15  # of looks one after the other, where a burst found no steps
    STEP_S = 0.01  # a counter that changes more seldom has steps
    ENOUGH = 3  # edges for a line

    def __init__(
        self, devices: Sequence[Device] | Mapping[int, Device], ring: Ring, clock: Clock, *,
        pause: Callable[[float], None],
    ) -> None:
        self._ring, self._clock, self._pause = ring, clock, pause
        # Many GPUs are read in one wake-up, which costs more than the readings: all whose steps are not near.
        self._many = len(devices) > 2
        self._patience = 0.9 if self._many else 0.3
        numbered = devices if isinstance(devices, Mapping) else dict(enumerate(devices))
        self._all = [_Watched(number, device) for number, device in numbered.items()]
        # until when a burst may go on; a stepped clock goes no further than it is stepped
        self.horizon_s = math.inf
        self._attended_s = -math.inf

    def start(self) -> None:
        """Take the first samples, then find the sensors' steps: of the devices that somebody needs, and of
        the first of them where the driver is slow; the others' follow, one a tick.
        """
        for watched in self._all:
            self._read(watched)
            self._time_calls(watched)
        self.attend()
        needed = [watched for watched in self._all if watched.pace == AWAKE]
        first, *later = self._together(needed)
        if first:
            self._burst(first, self._clock() + self._search_s(first), until=4)
        if starved := [watched for watched in first if len(watched.edges.edges) < self.ENOUGH]:
            self._burst(starved, self._clock() + self.BURST_S, until=4)  # other processes had the cores
        now_s = self._clock()
        for watched in self._all:
            self._check_schedule(watched)
            watched.refine_s = now_s if [watched] in later else now_s + watched.refine_gap_s
            self._report(watched)

    def due_s(self) -> float:
        return min(
            watched.due_s if watched.pace else min(watched.due_s, watched.refine_s) for watched in self._all
        )

    @property
    def stopped(self) -> bool:
        """Whether nobody has needed any device for long."""
        return all(watched.pace == STOPPED for watched in self._all)

    def attend(self) -> None:
        """Look at each device as it is needed by those who read the ring."""
        self._attended_s = now_s = self._clock()
        needs = self._ring.needs()
        for watched in self._all:
            needed_s = needs[watched.number]
            watched.inside, pace = needed_s == math.inf, pace_after(now_s - needed_s)
            if pace == watched.pace:
                continue
            watched.pace, watched.open_s, watched.calm_s = pace, math.inf, -math.inf
            watched.due_s = now_s if pace == AWAKE else now_s + RESTING_S if pace == RESTING else math.inf
            watched.refine_s = now_s  # when it is awake: its steps went unfollowed

    def tick(self) -> None:
        """Look at every device that is due, and once in a while at how its sensor steps."""
        now_s = self._clock()
        if now_s - self._attended_s >= STATUS_EVERY_S:
            self.attend()
        self._read_where_due(now_s)
        vague = [watched for watched in self._all if watched.refine_s <= now_s and watched.pace == AWAKE]
        if astray := [watched for watched in vague if watched.astray]:
            self._search(self._together(astray)[0])
        elif vague:
            self._refine(vague[0])  # one a tick: a burst keeps the others waiting

    def _read_where_due(self, now_s: float) -> None:
        due = any(watched.due_s <= now_s for watched in self._all)
        for watched in self._all:
            # Where a step has passed and none is near, a look between two devices' moments saves a wake-up.
            if (watched.due_s <= now_s or watched.open_s < now_s < watched.shut_s
                    or (due and self._many and now_s < watched.calm_s)):
                self._read(watched)

    def _read(self, watched: _Watched) -> None:
        before_s = self._clock()
        every_s = max(STATUS_EVERY_S, watched.status_call_s * len(self._all) / LOCK_SHARE)
        stale = watched.status is None or before_s - watched.status.time_s >= every_s
        sample = self._sample(watched, None if stale else watched.status)
        if sample is None:
            return
        after_s = self._clock()
        if stale:
            watched.status, watched.status_call_s = sample, after_s - before_s
        tick_s, error_s = self._refresh(watched, sample, after_s)
        power_tick_s = watched.power_edges.tick(sample.time_s, after_s)[0]
        self._ring.append(watched.number, sample, tick_s, power_tick_s, error_s)
        watched.due_s, watched.open_s, watched.calm_s = sample.time_s + SLOWEST_S, math.inf, -math.inf
        if watched.pace == RESTING:
            watched.due_s, watched.last = sample.time_s + RESTING_S, sample
            return
        if watched.schedule is not None:
            watched.due_s = min(watched.due_s, watched.schedule.next_s(after_s))
        elif watched.edges.locked:
            period_s = watched.edges.period_s
            guard_s = min(max(0.0015, 3 * error_s), 0.2 * period_s)
            next_s = watched.edges.edge_before(sample.time_s) + period_s
            watched.open_s, watched.shut_s = next_s + guard_s, next_s + period_s - guard_s
            watched.calm_s = next_s - guard_s
            watched.due_s = next_s + max(guard_s, min(self._patience * period_s, period_s - self.MARGIN_S))
        asked_s = self._ring.asked_s(watched.number)
        if asked_s is not None:
            self._obey(watched, sample.time_s, max(asked_s, FASTEST_S))
        if sample.time_s >= watched.search_s and watched.moved(sample):  # it shows its steps now
            watched.refine_s, watched.missing = sample.time_s, True
        watched.last = sample

    def _refresh(self, watched: _Watched, sample: Sample, after_s: float) -> tuple[float, float]:
        """The refresh that a sample shows, and its standard error; NaN where that is not known."""
        last, value = watched.last, watched.followed()[0][1]
        refreshed = last is not None and _changed(value(sample), value(last))
        if watched.schedule is not None:
            before_s = sample.time_s if last is None else last.time_s
            return watched.schedule.read(before_s, after_s, refreshed=refreshed)
        edges = watched.edges
        tick_s, error_s = edges.tick(sample.time_s, after_s)
        # The counter of a powered GPU rises at every refresh.
        still = last is not None and value(sample) == value(last) and watched.counts
        if still and last is not None and tick_s - edges.period_s / 2 > last.time_s:
            self._check_schedule(watched, missed=watched.still_s > sample.time_s - STILL_S)
            watched.still_s = sample.time_s
        return tick_s, error_s

    def _check_schedule(self, watched: _Watched, *, missed: bool = False) -> None:
        """Follow each refresh from now on where the refreshes are on no line."""
        edges = watched.edges
        if watched.schedule is not None or not watched.counts or edges.period_s < self.STEP_S:
            return
        known = len(edges.edges) >= self.ENOUGH and not math.isnan(edges.period_s)
        if known and (missed or not edges.locked or edges.jitter_s > max(FOLLOW_S / 2, edges.bracket_s)):
            gap_s = max(FOLLOW_S, watched.call_s * len(self._all) / LOCK_SHARE)
            watched.schedule = _Follower(edges.period_s, edges.edges[-1][0], gap_s)

    def _obey(self, watched: _Watched, at_s: float, asked_s: float) -> None:
        """Look again after the time that was asked for, at the latest when the next step is due to be seen.
        """
        # A reader that doubts a period wants looks that keep no step with the sensor; energy wants one look
        # after every step. A pace clearly faster than the steps gives both.
        if watched.schedule is not None:
            watched.due_s = min(watched.due_s, at_s + asked_s)
        elif not watched.edges.locked:
            watched.due_s = at_s + asked_s
        elif asked_s < 0.9 * watched.edges.period_s:
            watched.due_s, watched.open_s = at_s + asked_s, math.inf

    def _sample(self, watched: _Watched, status: Sample | None) -> Sample | None:
        try:
            sample = watched.device.sample(status)
        except Transient:
            watched.due_s = self._clock() + SLOWEST_S
            return None
        except DeviceError as error:
            self._fail(watched, error)
            return None
        if watched.error:
            watched.error, watched.lost = "", False
            watched.refine_s, watched.refine_gap_s = sample.time_s, 0.25  # its steps went unfollowed
            self._report(watched)
        return sample

    def _fail(self, watched: _Watched, error: DeviceError) -> None:
        watched.due_s = self._clock() + 1.0  # it may come back
        watched.error = str(error)
        watched.status = None
        watched.lost = isinstance(error, (GpuLost, NoDriver))
        self._report(watched)

    def _report(self, watched: _Watched) -> None:
        edges, state = watched.edges, LOST if watched.lost else RUNNING
        period_s = edges.period_s if edges.locked else watched.moves_s
        error_s = edges.error_s(self._clock()) if edges.locked else math.nan
        if watched.schedule is not None:
            period_s, error_s = watched.schedule.period_s, watched.schedule.error_s
        self._ring.write_state(
            watched.number, state, len(edges.edges), period_s if watched.counts else math.nan, period_s,
            error_s, watched.device.uuid, watched.error,
        )

    # finding the steps

    def _time_calls(self, watched: _Watched) -> None:
        """Note what one sample takes; the quickest of three, as another process may hold the driver's lock.
        """
        taken_s = []
        with contextlib.suppress(DeviceError):
            for _ in range(3):
                before_s = self._clock()
                watched.device.sample(watched.status)
                taken_s.append(self._clock() - before_s)
        watched.call_s = min(taken_s, default=0.0)
        self._ring.note_call(watched.number, watched.call_s)

    @staticmethod
    def _together(found: list[_Watched]) -> list[list[_Watched]]:
        """Devices whose steps are looked for at the same time: all, unless their driver is slow."""
        return [found] if sum(watched.call_s for watched in found) < 0.004 else [[each] for each in found]

    def _gap_s(self, group: Sequence[_Watched], *, searching: bool = True) -> float:
        """Between two looks that are to find a step."""
        call_s = max(watched.call_s for watched in group)
        if call_s > self.SLOW_S:
            return max(self.SELDOM_S, 4 * call_s)
        return self.SELDOM_S if searching and any(watched.inside for watched in group) else self.POLL_S

    def _search_s(self, group: Sequence[_Watched]) -> float:
        """How long a search may take: longer where looks are far apart."""
        return self.LONG_S if self._gap_s(group) > self.POLL_S else self.BURST_S

    def _burst(
        self, group: Sequence[_Watched], end_s: float, *, until: int, gap_s: float | None = None
    ) -> dict[tuple[int, int], int]:
        """Look as fast as is decent until each sensor has shown `until` steps, or time is up.

        Returns the number of steps by device and sensor.
        """
        gap_s = gap_s or self._gap_s(group)
        last: dict[int, tuple[float, Sample]] = {}
        changes = {
            (watched.number, part): 0 for watched in group for part, _ in enumerate(watched.followed())
        }
        end_s = min(end_s, self.horizon_s)
        while (now_s := self._clock()) < end_s and min(changes.values()) < until:
            if any(watched.due_s <= now_s for watched in self._all):
                self._read_where_due(now_s)  # a burst keeps nobody waiting, and leaves no hole in the rows
            for watched in group:
                with contextlib.suppress(DeviceError):
                    before_s = self._clock()
                    sample = watched.device.sample(watched.status)
                    after_s = self._clock()
                    known = last.get(watched.number)
                    for part, (edges, value) in enumerate(watched.followed()):
                        if known is not None and _changed(value(sample), value(known[1])):
                            edges.add(known[0], after_s)
                            changes[watched.number, part] += 1
                    last[watched.number] = before_s, sample
            self._pause(gap_s)
        return changes

    def _refine(self, watched: _Watched) -> None:
        """See one step again, to follow the sensors' drift in turns; rarer as they become known."""
        known = [(part, edges) for part, (edges, _) in enumerate(watched.followed())
                 if edges.locked and (watched.schedule is None or edges is not watched.edges)]
        now_s = self._clock()
        if not known:
            watched.refine_s = now_s + 60.0
            return
        part, edges = known[watched.next_part % len(known)]
        gap_s = self._gap_s([watched], searching=False)
        if gap_s == self.POLL_S:  # some six looks, ever closer together
            gap_s = min(gap_s, max(self.CLOSE_S, 2 * watched.call_s, edges.error_s(now_s)))
        half_s = min(edges.widen * (gap_s + 3 * edges.error_s(now_s)), 0.5 * edges.period_s)
        edge_s = edges.edge_before(now_s) + edges.period_s
        if edge_s - half_s / 2 < now_s:
            edge_s += edges.period_s
        begin_s = edge_s - half_s
        if begin_s - now_s > 2 * self.EARLY_S:  # come back for it, a little early
            watched.refine_s = begin_s - self.EARLY_S
            return
        self._pause(max(0.0, begin_s - now_s))
        before = edges.edges[-1]
        steps = self._burst([watched], edge_s + half_s, until=1, gap_s=gap_s)
        if edges.edges[-1] != before:
            watched.next_part += 1
            edges.widen, edges.doubt_s = 1.0, 0.0
            watched.refine_gap_s = min(1.5 * watched.refine_gap_s, 8.0)
            watched.refine_s = self._clock() + watched.refine_gap_s
        elif self.horizon_s < edge_s + half_s:  # a stepped clock stood still before it: the next one
            watched.refine_s = self._clock() + edges.period_s
        else:
            if not steps[watched.number, part] and not watched.error:
                edges.doubt_s = half_s
                self._check_schedule(watched, missed=edges is watched.edges and edges.widen > 1.0)
            edges.widen *= 2
            watched.refine_s = self._clock() + 0.5 * watched.refine_gap_s
        self._check_schedule(watched)
        self._report(watched)

    def _search(self, group: Sequence[_Watched]) -> None:
        """Look again for the steps of sensors that have shown none, or have left their line."""
        for watched in group:
            off_line = watched.off_line
            for edges, _ in watched.followed():
                # Edges on no line, as a starved process sees them, would keep later ones from being fitted.
                unlocked = len(edges.edges) > self.ENOUGH and not edges.locked
                followed = watched.schedule is not None and edges is watched.edges
                if (off_line or unlocked) and not followed:
                    edges.forget()
            if off_line:
                watched.refine_gap_s = 0.25
        if present := [watched for watched in group if not watched.lost]:
            self._burst(present, self._clock() + self._search_s(present), until=4)
        for watched in group:
            self._check_schedule(watched)
            if not watched.lost and watched.counts and not watched.edges.locked and watched.schedule is None:
                spacing_s = self._spacing_s(watched)
                watched.moves_s = watched.moves_s if math.isnan(spacing_s) else spacing_s
            if all(edges.locked for edges, _ in watched.followed()):
                watched.search_gap_s = 0.5
            elif watched.missing:  # it moves, and not in steps; what stands still is seen when it moves
                watched.search_gap_s = min(2 * watched.search_gap_s, 60.0)
                watched.search_s = self._clock() + watched.search_gap_s
            watched.missing = False
            watched.refine_gap_s = 0.25 if watched.edges.locked else min(2 * watched.refine_gap_s, 60.0)
            watched.refine_s = self._clock() + watched.refine_gap_s
            self._report(watched)

    def _spacing_s(self, watched: _Watched) -> float:
        """The time between two changes of a counter that changes at every look; NaN where it has steps."""
        changes_s: list[float] = []
        end_s, last_j = min(self._clock() + self.QUICK_S, self.horizon_s), math.nan
        gap_s = self._gap_s([watched])
        gap_s = gap_s if gap_s > self.POLL_S else self.POLL_S / 14
        with contextlib.suppress(DeviceError):
            while len(changes_s) < 16 and (before_s := self._clock()) < end_s:
                energy_j = watched.device.energy_j()
                if energy_j != last_j:
                    changes_s.append((before_s + self._clock()) / 2)
                last_j = energy_j
                self._pause(gap_s)
        if len(changes_s) <= 4:
            return math.nan
        spacing_s = (changes_s[-1] - changes_s[1]) / (len(changes_s) - 2)  # the first is no change
        return spacing_s if spacing_s < max(self.STEP_S, 1.5 * gap_s) else math.nan


def _changed(now: float, before: float) -> bool:
    """Whether a sensor shows another value; one that does not answer shows none."""
    return not (math.isnan(now) or math.isnan(before)) and now != before


def main(argv: Sequence[str]) -> int:
    """The child process: a ring's path and UUIDs. Runs while somebody needs it, then removes the ring."""
    from ..device.driver import current

    ring, parent = Ring(argv[0]), os.getppid()
    devices = _opened(ring, argv[1:], current().open_uuid)
    if not devices:
        return 3
    clock = next(iter(devices.values())).clock
    scale, stepped = getattr(clock, "scale", 1.0), getattr(clock, "stepped", False)

    def pause(seconds: float) -> None:
        time.sleep(0.002 if stepped else max(0.0, seconds) / scale)

    sampler = Sampler(devices, ring, clock, pause=pause)
    ring.begin(clock())
    sampler.start()
    alone, asked_s = False, time.monotonic()  # without the parent; when other readers were looked for
    while not sampler.stopped:
        if sampler.due_s() <= clock():
            sampler.tick()
        wait_s = sampler.due_s() - clock()
        if wait_s > STATUS_EVERY_S:
            sampler.attend()
        timeout_s = 0.002 if stepped else min(max(0.0, wait_s / scale), STATUS_EVERY_S)
        if alone:
            time.sleep(timeout_s)
        elif _processes.heard(parent, timeout_s) is None:
            alone, asked_s = True, -math.inf
            ring.leave(0)
        if time.monotonic() - asked_s >= 1.0:
            asked_s = time.monotonic()
            if not ring.others() and alone:
                break
    ring.path.unlink(missing_ok=True)
    return 0


def _opened(ring: Ring, uuids: Sequence[str], opened: Callable[[str], Device]) -> dict[int, Device]:
    """The devices that can be opened, by number; of the others the ring gives the reason if not."""
    devices = {}
    for number, uuid in enumerate(uuids):
        try:
            devices[number] = opened(uuid)
        except DeviceError as error:
            ring.write_state(number, LOST, 0, math.nan, math.nan, math.nan, uuid, str(error))
    return devices


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
