"""What a job does to a simulated GPU's units in each of its phases: the side of the counters that knows the
physics.

They follow from the same load that gives a phase its time and power (`physics`). With b_c and b_m the shares
of a phase in which the SM clock and the memory clock are at work at the setting in force, and h the load's
power over the most that the card may draw:

    sm_active     0.35 + 0.65 * (share of the phase that some clock bounds); what bounds the rest (launches,
                  latency) leaves SMs empty
    sm_occupancy  the mix's occupancy * sm_active
    pipes         b_c * (0.3 + 0.6 h) * the mix's share of tensor, FP64, FP32 and FP16 instructions
    dram_active   0.92 b_m + 0.10 b_c

Stated, not measured: trust it for shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .counters import Activity, pack
from .physics import Card, Load, OperatingPoint, SelfSettling, busy_share


@dataclass(frozen=True, slots=True)
class KernelMix:
    """What a job's kernels are made of: shares of its arithmetic by pipe, their occupancy, and what the host
    sends meanwhile.

    Attributes:
        host_mib_per_s: Over PCIe to the GPU while it waits for data.
    """

    tensor: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.8
    fp16: float = 0.0
    occupancy: float = 0.5
    host_mib_per_s: float = 256.0


# By network, as they run on a card with tensor cores and TF32 or mixed precision; stated.
MIXES: dict[str, KernelMix] = {
    "shufflenetv2": KernelMix(tensor=0.12, fp32=0.45, fp16=0.08, occupancy=0.42, host_mib_per_s=64.0),
    "resnet50": KernelMix(tensor=0.55, fp32=0.18, fp16=0.12, occupancy=0.38, host_mib_per_s=4096.0),
    "deepspeech2": KernelMix(tensor=0.35, fp32=0.35, fp16=0.05, occupancy=0.30, host_mib_per_s=1024.0),
    "ncf": KernelMix(tensor=0.05, fp32=0.40, occupancy=0.55, host_mib_per_s=32.0),
    "bert_base_uncased": KernelMix(tensor=0.65, fp32=0.12, fp16=0.15, occupancy=0.33, host_mib_per_s=32.0),
}


def mix_of(network: str) -> KernelMix:
    """The mix of a network; a plain FP32 one where it is not known."""
    return MIXES.get(network, KernelMix())


def know(network: str, mix: KernelMix) -> None:
    """Let this process know the mix of jobs of that network."""
    MIXES[network] = mix


def activity(card: Card, mix: KernelMix, load: Load | SelfSettling | None, point: OperatingPoint) -> Activity:
    """What the counters count in a phase with this load, where the card has settled at `point`; without a
    load it waits for its host.

    Of work that is known by measurements of its time and power alone nothing is counted.

    Args:
        card: The GPU model.
        mix: Kernels of the workload.
        load: None while it waits for its host.
        point: Where the card has settled.
    """
    if load is None:
        return Activity(pcie_rx_mib_per_s=mix.host_mib_per_s)
    if not isinstance(load, Load):
        return Activity()
    x, u = point.sm_clock_mhz / card.sm_clocks_mhz[0], point.mem_clock_mhz / card.mem_clocks_mhz[0]
    computing = min(1.0, busy_share(card, load, load.compute) / (x * point.stretch))
    moving = min(1.0, busy_share(card, load, load.memory) / (u * point.stretch))
    bound = 1.0 - (1.0 - load.compute - load.memory) / point.stretch
    hunger = min(1.0, load.dynamic_w / (card.power_limit_w[1] - card.static_w))
    active = 0.35 + 0.65 * bound
    pipes = computing * (0.3 + 0.6 * hunger)
    return Activity(
        active, mix.occupancy * active, pipes * mix.tensor, pipes * mix.fp64, pipes * mix.fp32,
        pipes * mix.fp16, min(1.0, 0.92 * moving + 0.10 * computing),
    )


@lru_cache(maxsize=65536)
def packed(card: Card, mix: KernelMix, load: Load | SelfSettling | None, point: OperatingPoint) -> int:
    """`activity` as the bits that go above a segment's event reasons.

    Args:
        card: The GPU model.
        mix: Kernels of the workload.
        load: None while it waits for its host.
        point: Where the card has settled.
    """
    return pack(activity(card, mix, load, point))
