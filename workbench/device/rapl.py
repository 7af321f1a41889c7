"""CPU package and DRAM energy from Linux's powercap tree (Intel RAPL; AMD's driver uses the same names),
which since 2020 (CVE-2020-8694) root alone may read. Counters wrap; one wrap between two readings is put
right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/class/powercap")
MOST_W = 500.0  # more than a package or its memory draws for long


@dataclass(frozen=True)
class Zone:
    """One RAPL counter: `kind` is "cpu" (a package) or "dram"; `range_j` is where it wraps."""

    path: Path
    kind: str
    range_j: float

    def energy_j(self) -> float:
        return int(self.path.joinpath("energy_uj").read_text()) / 1e6


def zones(root: Path = ROOT) -> tuple[Zone, ...]:
    """Package and DRAM counters that this process may read; empty where there are none."""
    found = []
    for path in sorted(root.glob("intel-rapl:*")):
        try:
            name = path.joinpath("name").read_text().strip()
            kind = "cpu" if name.startswith("package") else "dram" if name == "dram" else ""
            if kind:
                zone = Zone(path, kind, int(path.joinpath("max_energy_range_uj").read_text()) / 1e6)
                zone.energy_j()
                found.append(zone)
        except (OSError, ValueError):
            continue
    return tuple(found)


def read(counters: tuple[Zone, ...]) -> dict[str, float]:
    """Joules of each counter now, by path; one that fails this once is left out."""
    values = {}
    for zone in counters:
        try:
            values[str(zone.path)] = zone.energy_j()
        except (OSError, ValueError):
            continue
    return values


def used_j(
    counters: tuple[Zone, ...], before: Mapping[str, float], after: Mapping[str, float], kind: str,
    seconds: float,
) -> float | None:
    """Joules between two readings of a kind's counters; None where one is missing or wrapped twice.

    Args:
        counters: RAPL zones of this machine.
        before: Readings (J) by zone at the start.
        after: Readings (J) by zone at the end.
        kind: "package" or "dram".
        seconds: Between the readings: a counter may have wrapped once.
    """
    total, some = 0.0, False
    for zone in counters:
        if zone.kind != kind:
            continue
        key = str(zone.path)
        if key not in before or key not in after or seconds > zone.range_j / MOST_W:
            return None
        difference = after[key] - before[key]
        total += difference + zone.range_j if difference < 0 else difference
        some = True
    return total if some else None
