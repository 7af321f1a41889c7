"""Speed and power of a GPU at a power limit and a pair of clocks.

A busy phase is described by its load at the card's highest clocks (`Load`). `operate` returns its time and
power at any other setting. With x and u the SM and memory clock relative to their highest, and V the relative
core voltage:

    V(x)    = v_knee up to x = knee, then a straight line to V(1) = 1
    time    = S * (k/S * x**-n + m/S * u**-n) ** (1/n) + 1 - S          k, m: the load's shares, S = k + m
    power   = static(u) + C * V(x)**2 * x * activity + M * u * (share of time the memory is busy)

For a card with n = 1 and no memory figures this is P = P_s + D * x * V(x)**2 and T = k/x + 1 - k, the model
fitted to the traces of Zeus (NSDI'23). A power limit lowers x, never u, until the power fits. x does not go
below `x_min`, so the power exceeds a limit that is too low, as measured.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


@dataclass(frozen=True)
class Card:
    """A model of GPU: data-sheet values, and the constants of its power and time.

    Tuples that go with `mem_clocks_mhz` have its order, highest first. An empty tuple means that the card has
    no such effect.

    Attributes:
        power_limit_w: Lowest, default and highest power limit.
        sm_clocks_mhz: SM clocks the driver supports, highest first.
        idle_w: Power with no job and no context.
        gap_w: Power while a job is resident and waits for its host or its data.
        static_w: Power of a busy card at its highest memory clock that does not depend on the SM clock.
        knee: Relative SM clock below which the voltage no longer falls.
        v_knee: Relative voltage at and below the knee.
        x_min: Lowest relative SM clock that a power limit can cause.
        overlap: n above: 1 adds compute and memory time, a larger value lets them overlap.
        clocked_share: Share of the core's dynamic power spent whenever the card is busy, even while the SMs
            wait.
        mem_dynamic_w: M above: power of the always busy memory at its highest clock.
        mem_static_w: Addition of each memory clock to `static_w` and `gap_w` over the lowest.
        mem_top_sm_mhz: The highest SM clock the driver pairs with each memory clock.
        mem_low_sm_mhz: The lowest one, where not all are paired.
        lacks: Abilities missing in its driver (names of `state.ABILITIES`), beyond those missing in its
            architecture.
        dynamic: Dynamic power of this GPU relative to that of its model.
        idle_c: Temperature at idle power.
        degrees_per_w: Rise of the settled temperature with power over idle.
        thermal_time_s: Time constant of the temperature.
    """

    key: str
    name: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    power_limit_w: tuple[float, float, float]
    sm_clocks_mhz: tuple[int, ...]
    mem_clocks_mhz: tuple[int, ...]
    idle_w: float
    gap_w: float
    static_w: float
    knee: float
    v_knee: float
    x_min: float
    overlap: float = 1.0
    clocked_share: float = 1.0
    mem_dynamic_w: float = 0.0
    mem_static_w: tuple[float, ...] = ()
    mem_top_sm_mhz: tuple[int, ...] = ()
    mem_low_sm_mhz: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()
    dynamic: float = 1.0
    idle_c: float = 33.0
    degrees_per_w: float = 0.15
    thermal_time_s: float = 25.0

    def __hash__(self) -> int:
        # A card is the key of every cached operating point, and a hash of its hundred clocks would take most
        # of the time of a call.
        return hash(self.key)


@dataclass(frozen=True)
class Load:
    """The load of a busy phase on a card, at the card's highest clocks.

    Attributes:
        compute: Share of the time bound by the SM clock.
        memory: Share bound by the memory clock; the rest, 1 - compute - memory, depends on no clock.
        dynamic_w: Power over the card's static power.
    """

    compute: float
    memory: float
    dynamic_w: float


@dataclass(frozen=True)
class OperatingPoint:
    """The operating point of a card under a load.

    Attributes:
        stretch: Time relative to the highest clocks, at least 1.
        capped: The power limit, not a lock, decided the clock.
    """

    sm_clock_mhz: int
    mem_clock_mhz: int
    power_w: float
    stretch: float
    capped: bool


class SelfSettling(Hashable, Protocol):
    """A load that knows where a card settles under it, such as a measured one (`tables.Measured`)."""

    def operate(
        self, card: Card, *, power_limit_w: float, max_sm_clock_mhz: int | None = None,
        min_sm_clock_mhz: int | None = None, mem_clock_mhz: int | None = None,
    ) -> OperatingPoint:
        """As `operate`; `stretch` is relative to this work's own reference and may be below 1.

        Args:
            card: The GPU model.
            power_limit_w: In watts.
            max_sm_clock_mhz: Locked highest SM clock; None for none.
            min_sm_clock_mhz: Locked lowest SM clock; None for none.
            mem_clock_mhz: Locked memory clock; None for none.
        """


@lru_cache(maxsize=65536)
def operate(
    card: Card, load: Load | SelfSettling | None, *, power_limit_w: float,
    max_sm_clock_mhz: int | None = None, min_sm_clock_mhz: int | None = None,
    mem_clock_mhz: int | None = None,
) -> OperatingPoint:
    """The card's operating point under a load; without one (`None`) it waits in a gap.

    Clocks snap to the card's lists, downwards. Under a power limit a real clock alternates between two steps.
    So power reaches the limit exactly, and only the reported clock is rounded. A limit has priority over
    `min_sm_clock_mhz`.

    Args:
        card: The GPU model.
        load: None in a gap.
        power_limit_w: In watts.
        max_sm_clock_mhz: Locked highest SM clock; None for none.
        min_sm_clock_mhz: Locked lowest SM clock; None for none.
        mem_clock_mhz: Locked memory clock; None for none.

    >>> from dataclasses import replace
    >>> from workbench.simulation.catalogue import CARDS
    >>> card = replace(CARDS["V100"], static_w=50.0, knee=0.5, v_knee=0.5, x_min=0.1)
    >>> point = operate(card, Load(compute=0.6, memory=0.4, dynamic_w=160.0), power_limit_w=70.0)
    >>> point.sm_clock_mhz, point.power_w, round(point.stretch, 3), point.capped
    (690, 70.0, 1.6, True)
    """
    if load is not None and not isinstance(load, Load):
        return load.operate(
            card, power_limit_w=power_limit_w, max_sm_clock_mhz=max_sm_clock_mhz,
            min_sm_clock_mhz=min_sm_clock_mhz, mem_clock_mhz=mem_clock_mhz,
        )
    memory = memory_index(card, mem_clock_mhz, min_sm_clock_mhz)
    mem_clock = card.mem_clocks_mhz[memory]
    clock = locked_clock(card, memory, min_sm_clock_mhz, max_sm_clock_mhz)
    if load is None:
        return OperatingPoint(clock, mem_clock, _at_memory(card, memory, card.gap_w), 1.0, False)
    top = card.sm_clocks_mhz[0]
    u = mem_clock / card.mem_clocks_mhz[0]
    static_w = _at_memory(card, memory, card.static_w)
    x = clock / top
    power_w = static_w + _dynamic_w(card, load, x, u)
    capped = power_w > power_limit_w and x > card.x_min
    if capped:
        x = _clock_for(card, load, power_limit_w - static_w, card.x_min, x, u)
        power_w = max(power_limit_w, static_w + _dynamic_w(card, load, card.x_min, u))
        clock = nearest_clock(card.sm_clocks_mhz, x * top)
    return OperatingPoint(clock, mem_clock, power_w, _time(card, load, x, u), capped)


def voltage(card: Card, x: float) -> float:
    """Core voltage at relative SM clock `x`, relative to the highest clock's."""
    if x <= card.knee:
        return card.v_knee
    return card.v_knee + (1.0 - card.v_knee) * (x - card.knee) / (1.0 - card.knee)


def nearest_clock(clocks_mhz: tuple[int, ...], clock_mhz: float) -> int:
    """The clock of a descending list that is closest to `clock_mhz`."""
    below = clock_at_most(clocks_mhz, clock_mhz)
    index = clocks_mhz.index(below)
    above = clocks_mhz[max(0, index - 1)]
    return above if abs(above - clock_mhz) < abs(clock_mhz - below) else below


def clock_at_most(clocks_mhz: tuple[int, ...], clock_mhz: float) -> int:
    """The highest clock of a descending list not above `clock_mhz`, or else the lowest."""
    skipped = len(clocks_mhz) - bisect_right(clocks_mhz[::-1], clock_mhz)
    return clocks_mhz[min(skipped, len(clocks_mhz) - 1)]


def memory_index(card: Card, mem_clock_mhz: int | None, min_sm_clock_mhz: int | None) -> int:
    """Place in the card's list of the memory clock that is granted."""
    if mem_clock_mhz is None:
        return 0
    index = card.mem_clocks_mhz.index(clock_at_most(card.mem_clocks_mhz, mem_clock_mhz))
    # The lowest memory clocks are paired with low SM clocks only: an RTX 3080 Ti with a request for 630 MHz
    # and 405 MHz runs at 630 and 810 (GPU-FREQUENCY-DVFS). The driver raises the memory clock, not the SM
    # clock.
    while index and card.mem_top_sm_mhz and (min_sm_clock_mhz or 0) > card.mem_top_sm_mhz[index]:
        index -= 1
    return index


def locked_clock(card: Card, memory: int, min_mhz: int | None, max_mhz: int | None) -> int:
    """SM clock of a card that no power limit slows down.

    Args:
        card: The GPU model.
        memory: Memory clock (MHz).
        min_mhz: Locked lowest SM clock; None for none.
        max_mhz: Locked highest SM clock; None for none.
    """
    clocks = card.sm_clocks_mhz
    bound = clocks[0] if max_mhz is None else max_mhz
    if card.mem_top_sm_mhz:
        bound = min(bound, card.mem_top_sm_mhz[memory])
    if min_mhz is not None:
        bound = max(bound, min(min_mhz, clocks[0]))
    return clock_at_most(clocks, bound)


def _at_memory(card: Card, memory: int, power_w: float) -> float:
    if not card.mem_static_w:
        return power_w
    return power_w - card.mem_static_w[0] + card.mem_static_w[memory]


def _time(card: Card, load: Load, x: float, u: float) -> float:
    """Time at relative clocks `x` and `u`, relative to the highest clocks."""
    if card.overlap == 1.0:
        return 1.0 + load.compute * (1.0 / x - 1.0) + load.memory * (1.0 / u - 1.0)
    bound = load.compute + load.memory
    if bound <= 0.0:
        return 1.0
    n = card.overlap
    mean = (load.compute * math.pow(x, -n) + load.memory * math.pow(u, -n)) / bound
    return 1.0 + bound * (math.pow(mean, 1.0 / n) - 1.0)


def _dynamic_w(card: Card, load: Load, x: float, u: float) -> float:
    """Power over static at relative clocks `x` and `u`."""
    core_w = load.dynamic_w * card.dynamic
    volts = voltage(card, x)
    if card.clocked_share == 1.0 and not card.mem_dynamic_w:
        return core_w * x * volts * volts
    time = _time(card, load, x, u)
    # Utilisation of the SMs and of the memory falls as each waits for the other.
    memory_w = min(core_w, card.mem_dynamic_w * busy_share(card, load, load.memory))
    core_w -= memory_w
    activity = card.clocked_share + (1.0 - card.clocked_share) / (x * time)
    return core_w * x * volts * volts * activity + memory_w / time


def busy_share(card: Card, load: Load, share: float) -> float:
    """Share of the time, at the highest clocks, in which the unit behind `share` of it is busy."""
    bound = load.compute + load.memory
    if bound <= 0.0 or share <= 0.0:
        return 0.0
    return bound * math.pow(share / bound, 1.0 / card.overlap)


def _clock_for(card: Card, load: Load, dynamic_w: float, low: float, high: float, u: float) -> float:
    """The highest relative SM clock in low..high of at most `dynamic_w` W over static, or else `low`."""
    if _dynamic_w(card, load, low, u) >= dynamic_w:
        return low
    for _ in range(52):
        middle = 0.5 * (low + high)
        if _dynamic_w(card, load, middle, u) > dynamic_w:
            high = middle
        else:
            low = middle
        if math.isclose(low, high, rel_tol=1e-13):
            break
    return low
