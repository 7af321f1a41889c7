"""Power of a node of GPUs: concave in its utilisation, which is why sharing saves energy at all.

The form is that of Fan, Weber and Barroso (ISCA'07, section 4): `P(u) = idle + span (2u - u^r)` with u in
0..1, here over GPU utilisation summed over the node's GPUs. A first busy GPU costs far more than the last
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

# utilisation is counted in whole ten-thousandths, so that adding and removing the same job changes nothing
UNIT = 10_000
STEPS_PER_W = 1024


@dataclass(frozen=True)
class CapLevel:
    """A power limit in W, with the `speed` of work and the `active` power above idle relative to no limit."""

    power_limit_w: float
    speed: float
    active: float


# Effect of power limits on a V100 that trains: means over 14 workloads and cards whose power limits Zeus (You
# et al., NSDI'23; traces under Apache-2.0) has swept, each relative to its own highest limit.
# `benchmarks/cluster_caps.py` computes them from the files.
V100_LIMITS = (
    CapLevel(power_limit_w=225.0, speed=0.9856, active=0.9458),
    CapLevel(power_limit_w=200.0, speed=0.9779, active=0.8661),
    CapLevel(power_limit_w=175.0, speed=0.9518, active=0.7753),
    CapLevel(power_limit_w=150.0, speed=0.931, active=0.6667),
    CapLevel(power_limit_w=125.0, speed=0.8616, active=0.5395),
)


@dataclass(frozen=True)
class NodeType:
    """A type of node.

    Attributes:
        name: Name in results.
        gpu_type: Name that a job can request by `gpu_type`.
        gpus: GPUs on a node.
        memory_bytes: Memory of one GPU.
        idle_w: Power of an awake node without work.
        span_w: Additional power at full utilisation of all GPUs.
        exponent: r of the power form.
        standby_w: Power in standby.
        wake_s: Time from standby to the start of the first job; the node draws `idle_w` meanwhile.
        caps: Power limits that a policy may set on a node, highest first; with none, the node is not limited.
    """

    name: str
    gpu_type: str
    gpus: int
    memory_bytes: int
    idle_w: float
    span_w: float
    exponent: float = 1.55
    standby_w: float = 30.0
    wake_s: float = 60.0
    caps: tuple[CapLevel, ...] = ()

    def __post_init__(self) -> None:
        rises = 0 <= self.standby_w <= self.idle_w and self.span_w >= 0 and 1 <= self.exponent <= 2
        limited = all(0 < cap.speed <= 1 and 0 <= cap.active <= 1 for cap in self.caps)
        if not (self.gpus >= 1 and self.memory_bytes >= 1 and self.wake_s >= 0 and rises and limited):
            raise UsageError(
                f"{self}: a node has 1 GPU and 1 byte at least, wake_s of 0 s at least, power that rises "
                "from standby to idle to busy and is concave (exponent 1..2), and limits of a speed and "
                "activity within 0..1"
            )

    def power_w(self, utilisation: float, cap: CapLevel | None = None) -> float:
        """Power of an awake node at this mean utilisation of its GPUs, 0..1.

        >>> V100_NODE.power_w(0.0), round(V100_NODE.power_w(0.3661))
        (650.0, 1334)
        """
        active: float = self.span_w * (2 * utilisation - utilisation**self.exponent)
        return self.idle_w + active * (cap.active if cap else 1.0)


# Fitted to the ten measured sets of EaCO's tables 1 and 3 (arXiv 2412.08294, 8x V100, ImageNet training):
# mean error 2.2 %, worst 7.1 %.
V100_NODE = NodeType("8x V100", "V100", 8, 32 * 2**30, idle_w=650.0, span_w=1311.0)

# 10th (idle) and 99th percentile (all GPUs busy) of the server power that Acme states (Hu et al., NSDI'24, 8x
# A100 servers, CC BY 4.0), with the exponent of the V100 node.
A100_NODE = NodeType("8x A100", "A100", 8, 80 * 2**30, idle_w=1512.0, span_w=3940.0)


@dataclass(frozen=True)
class Cluster:
    """So many nodes of one type."""

    size: int
    kind: NodeType

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"a cluster of {self.size} nodes has no GPU; give at least one node")

    @classmethod
    def of(cls, count: int, kind: NodeType = V100_NODE) -> Cluster:
        """That many nodes of one type."""
        return cls(count, kind)

    @property
    def gpus(self) -> int:
        """How many GPUs all nodes have."""
        return self.size * self.kind.gpus


def in_steps(power_w: float) -> float:
    """The power rounded to whole steps of 1/1024 W.

    Sums and differences of such powers are exact up to 2^43 W, so that adding and removing a job leaves no
    rounding error.

    >>> in_steps(0.1)
    0.099609375
    """
    return round(STEPS_PER_W * power_w) / STEPS_PER_W


class PowerTable(dict[int, float]):
    """Power in whole steps by utilisation in units, computed when first needed."""

    def __init__(self, kind: NodeType, cap: CapLevel | None = None) -> None:
        self.kind, self.cap = kind, cap

    def __missing__(self, used: int) -> float:
        power = self[used] = in_steps(self.kind.power_w(used / (UNIT * self.kind.gpus), self.cap))
        return power
