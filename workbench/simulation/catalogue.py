"""The GPUs and the training workloads of the simulator.

The batch-size laws, the A100's voltage curve and the RTX 3080 Ti come from `python -m tools.fit_catalogue`,
which reads these files (sha256):

    f0b066dd1a451bd78f730e001ac3a7c411979bc7f0846f12c1a9fb604aa90628  zeus/summary_power_v100.csv
    158e9a6784b6e2d26710529b132cf173b227dc8688f4931c19a637bce2b7503b  zeus/summary_power_p100.csv
    ee3c44e877c98a3a8f1e93107d9b93301e895a2ec6db9f37fd17124bf0db2d53  clocks/perseus_a100_sxm_bloom.csv
    362bb134259443524cb6617bdb9f5309cf9952076670765e3c39e0bb12c456a7  clocks/perseus_a100_sxm_gpt3_175b.csv
    c09b0246a5e7d37e20f17b0b7e1965e4d80a32811b13104cc845f52a071563a9  clocks/rtx3080ti_kernels.csv

Comments mark cards whose numbers are assumed or scaled. For those, use the shape, not the watts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from workbench.simulation.physics import Card, Load, SelfSettling

GIB = 1 << 30


def _steps(highest_mhz: int, lowest_mhz: int, step_mhz: float) -> tuple[int, ...]:
    """Clocks from highest to lowest, as whole numbers like the driver's list."""
    count = round((highest_mhz - lowest_mhz) / step_mhz)
    return tuple(math.floor(highest_mhz - i * step_mhz) for i in range(count + 1))


# Four cards have numbers fitted to the Zeus NSDI'23 traces (epoch time and mean power over 25 W steps of the
# limit), on the workloads cifar100, librispeech and squad. The errors (time, then power) are those at every
# second limit, on workloads outside the fit. Those traces have no clock column, so the fit infers relative
# clocks from the power. Gap power is fixed to the power of a waiting job. `benchmarks.physics` fits it
# instead, which predicts averages better but differs from a meter's reading between two iterations.

# Fitted; 2.8 % and 1.6 %. The traced card's limits (100-250 W) are those of the PCIe board.
_V100 = Card(
    key="V100", name="Tesla V100-PCIE-32GB", architecture="volta", compute_capability=(7, 0),
    memory_bytes=32 * GIB, power_limit_w=(100.0, 250.0, 250.0), sm_clocks_mhz=_steps(1380, 135, 7.5),
    mem_clocks_mhz=(877,), idle_w=26.0, gap_w=38.3, static_w=35.5, knee=0.741, v_knee=0.827, x_min=0.114,
    degrees_per_w=0.16,
)
# Fitted; 2.3 % and 8.2 %, the latter from pure waiting (NCF draws 35 W, the fit gives 39 W). `gap_w` here is
# NCF's.
_P100 = Card(
    key="P100", name="Tesla P100-PCIE-16GB", architecture="pascal", compute_capability=(6, 0),
    memory_bytes=16 * GIB, power_limit_w=(125.0, 250.0, 250.0), sm_clocks_mhz=_steps(1328, 544, 784 / 62),
    mem_clocks_mhz=(715,), idle_w=27.0, gap_w=35.0, static_w=50.0, knee=0.385, v_knee=0.796, x_min=0.341,
    degrees_per_w=0.17,
)
# Fitted; 5.3 % and 1.6 %, worst (11 % of time) at 125 W. The power of its memory clocks is assumed.
_A40 = Card(
    key="A40", name="NVIDIA A40", architecture="ampere-ga10x", compute_capability=(8, 6),
    memory_bytes=48 * GIB, power_limit_w=(100.0, 300.0, 300.0), sm_clocks_mhz=_steps(1740, 210, 15),
    mem_clocks_mhz=(7251, 6251, 5001, 810, 405), idle_w=31.0, gap_w=82.5, static_w=76.3, knee=0.650,
    v_knee=0.826, x_min=0.131, mem_static_w=(30.0, 25.0, 19.0, 1.0, 0.0),
    mem_top_sm_mhz=(1740, 1740, 1740, 1740, 420), degrees_per_w=0.16,
)
# Fitted; 2.6 % and 0.7 %. The power of its memory clocks is assumed.
_RTX6000 = Card(
    key="RTX6000", name="Quadro RTX 6000", architecture="turing", compute_capability=(7, 5),
    memory_bytes=24 * GIB, power_limit_w=(100.0, 260.0, 260.0), sm_clocks_mhz=_steps(2100, 300, 15),
    mem_clocks_mhz=(7001, 6501, 5001, 810, 405), idle_w=22.0, gap_w=54.6, static_w=82.0, knee=0.755,
    v_knee=0.714, x_min=0.080, mem_static_w=(25.0, 23.0, 16.0, 1.0, 0.0),
    mem_top_sm_mhz=(2100, 2100, 2100, 2100, 420), degrees_per_w=0.19,
)
# V/f curve and static power fitted to 8 forward and backward passes of GPT-3 175B and BLOOM on A100 SXM
# (Perseus, SOSP'24), each at 34 clocks of 855..1350 MHz: 0.3 % mean error of time, 0.7 % of power; static
# power is good to 20 W. Above 1350 MHz those cards ran at their limit, at 475 W. Gap and idle power are
# assumed.
_A100 = Card(
    key="A100", name="NVIDIA A100-SXM4-80GB", architecture="ampere", compute_capability=(8, 0),
    memory_bytes=80 * GIB, power_limit_w=(100.0, 400.0, 400.0), sm_clocks_mhz=_steps(1410, 210, 15),
    mem_clocks_mhz=(1593,), idle_w=58.0, gap_w=78.0, static_w=51.9, knee=0.783, v_knee=0.814, x_min=0.149,
    degrees_per_w=0.09,
)
# Not fitted: limits and clocks as published (data sheet, DCGM reports), the A100's V/f curve, static and
# gap power in proportion to its 700 W. Good for shape only.
_H100 = Card(
    key="H100", name="NVIDIA H100 80GB HBM3", architecture="hopper", compute_capability=(9, 0),
    memory_bytes=80 * GIB, power_limit_w=(200.0, 700.0, 700.0), sm_clocks_mhz=_steps(1980, 345, 15),
    mem_clocks_mhz=(2619,), idle_w=70.0, gap_w=116.0, static_w=105.0, knee=0.70, v_knee=0.78, x_min=0.174,
    degrees_per_w=0.055,
)
# Fitted to 9 kernels at up to 26 pairs of clocks (GPU-FREQUENCY-DVFS): 4.7 % mean error of time, 4.0 % of
# power. Static power at the lower memory clocks is part of that fit; idle power is assumed.
_RTX3080TI = Card(
    key="RTX3080TI", name="NVIDIA GeForce RTX 3080 Ti", architecture="ampere-ga10x",
    compute_capability=(8, 6), memory_bytes=12 * GIB, power_limit_w=(100.0, 350.0, 350.0),
    sm_clocks_mhz=_steps(2100, 210, 15), mem_clocks_mhz=(9501, 9251, 5001, 810, 405), idle_w=18.0, gap_w=88.0,
    static_w=87.0, knee=0.827, v_knee=0.481, x_min=0.10, overlap=4.4, clocked_share=0.35, mem_dynamic_w=66.9,
    mem_static_w=(55.2, 55.2, 30.9, 2.8, 0.0), mem_top_sm_mhz=(2100, 2100, 2100, 2100, 420),
    degrees_per_w=0.135,
)
# Not fitted: limits and clocks of the data sheet and of published dumps, and the RTX 3080 Ti's power split
# between cores and memory and its voltage slope. Good for shape only.
_RTX4090 = Card(
    key="RTX4090", name="NVIDIA GeForce RTX 4090", architecture="ada", compute_capability=(8, 9),
    memory_bytes=24 * GIB, power_limit_w=(150.0, 450.0, 600.0), sm_clocks_mhz=_steps(3105, 210, 15),
    mem_clocks_mhz=(10501, 10251, 5001, 810, 405), idle_w=22.0, gap_w=75.0, static_w=78.0, knee=0.72,
    v_knee=0.60, x_min=0.08, overlap=3.5, clocked_share=0.35, mem_dynamic_w=60.0,
    mem_static_w=(45.0, 44.0, 25.0, 2.0, 0.0), mem_top_sm_mhz=(3105, 3105, 3105, 3105, 420),
    degrees_per_w=0.10,
)

CARDS: dict[str, Card] = {
    each.key: each for each in (_V100, _P100, _A40, _RTX6000, _A100, _H100, _RTX3080TI, _RTX4090)
}


def card(name: str) -> Card:
    """The card of that name, in any spelling.

    >>> card("rtx 3080 ti").key, card("a100-80gb").key, card("Tesla V100-SXM2-32GB (simulated)").key
    ('RTX3080TI', 'A100', 'V100')
    """
    if name in _MEASURED:
        return _MEASURED[name]
    wanted = _bare(name.removesuffix(" (simulated)"))
    for known in CARDS.values():
        if wanted == _bare(known.key):
            return known
    from workbench.errors import UnknownGpu

    raise UnknownGpu(f"no simulated GPU is called {name!r}; there are {', '.join(CARDS)}")


# Cards known by measurements only, by the key given to `add`.
_MEASURED: dict[str, Card] = {}


def add(card: Card) -> Card:
    """Add a card to this process under its key of 1 to 15 letters. It replaces one of the same key."""
    _MEASURED[card.key] = card
    return card


@lru_cache
def individual(card: Card, dynamic: float, leakage: float, heat: float) -> Card:
    """One GPU of a model.

    Args:
        card: The model.
        dynamic: Factor of its dynamic power.
        leakage: Factor of its idle, gap and static power.
        heat: Factor of its idle temperature, and of its rise with power.
    """
    return replace(
        card, dynamic=dynamic, idle_w=card.idle_w * leakage, gap_w=card.gap_w * leakage,
        static_w=card.static_w * leakage, idle_c=card.idle_c * heat,
        degrees_per_w=card.degrees_per_w * heat,
    )


_TRIMMINGS = re.compile(r"nvidia|geforce|quadro|tesla|rtx|sxm\d?|pcie|hbm\d|\d+ ?gb|[^a-z0-9]")


def _bare(name: str) -> str:
    """A card's name without maker, form factor, memory size and separators."""
    return _TRIMMINGS.sub("", name.casefold())


PhaseKind = Literal[
    "forward", "backward", "optimizer", "data", "evaluation", "checkpoint", "wait", "transfer"
]


@dataclass(frozen=True)
class WorkloadPhase:
    """An interval of a training run with one type of work.

    Attributes:
        time_s: Time at the highest clocks; a `load` of None takes that long at any clock.
        load: The card's load, or None while it waits.
        utilisation: GPU utilisation that the driver would report, 0..1.
        memory_utilisation: Memory utilisation that the driver would report, 0..1.
    """

    name: str
    kind: PhaseKind
    time_s: float
    load: Load | SelfSettling | None
    utilisation: float
    memory_utilisation: float


@dataclass(frozen=True)
class Workload:
    """A training job; the six are those of Zeus (NSDI'23).

    Attributes:
        samples: Training samples of an epoch.
        evaluation_samples: Samples of the evaluation after it.
        batch_sizes: Possible batch sizes of the job.
        fixed_bytes: Device memory for any batch size: weights, gradients, optimizer state, context.
        sample_bytes: Device memory for each sample of a batch.
        checkpoint_bytes: Size of a checkpoint.
        phases: Measured phases of an iteration, if they follow no law; then `card` is the key of the card
            that it runs on.
    """

    key: str
    title: str
    samples: int
    evaluation_samples: int
    default_batch_size: int
    batch_sizes: tuple[int, ...]
    fixed_bytes: int
    sample_bytes: int
    checkpoint_bytes: int
    phases: tuple[WorkloadPhase, ...] = ()
    card: str = ""

    def memory_bytes(self, batch_size: int) -> int:
        """Device memory the job needs at a batch size."""
        return self.fixed_bytes + batch_size * self.sample_bytes

    def iterations(self, batch_size: int) -> int:
        """Iterations of an epoch, the last one of a smaller batch included."""
        return -(-self.samples // batch_size)

    def evaluation_batches(self, batch_size: int) -> int:
        """Batches of the evaluation after an epoch."""
        return -(-self.evaluation_samples // batch_size)


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << i for i in range(low.bit_length() - 1, high.bit_length()))


# Samples per epoch are the datasets' published sizes. SQuAD counts the features of its 384-token windows.
# NCF has four sampled negatives for each of 994,169 positives. Sentiment140 is complete, the only size at
# which the traces' time per sample fits a 60-token BERT. Memory sizes follow from Zeus's runs: the largest
# batch that ran on the 32 GB V100 and on the 16 GB P100 fits there, and the next larger one does not.
WORKLOADS: dict[str, Workload] = {
    each.key: each
    for each in (
        Workload(
            key="cifar100", title="ShuffleNetV2 on CIFAR-100",  samples=50_000,
            evaluation_samples=10_000, default_batch_size=1024, batch_sizes=_powers(8, 4096),
            fixed_bytes=900_000_000, sample_bytes=5_500_000, checkpoint_bytes=12_000_000,
        ),
        Workload(
            key="imagenet", title="ResNet-50 on ImageNet",  samples=1_281_167,
            evaluation_samples=50_000, default_batch_size=256,
            batch_sizes=(8, 16, 32, 64, 128, 192, 256, 360), fixed_bytes=1_200_000_000,
            sample_bytes=87_500_000, checkpoint_bytes=205_000_000,
        ),
        Workload(
            key="librispeech", title="DeepSpeech2 on LibriSpeech",  samples=281_241,
            evaluation_samples=2_703, default_batch_size=192,
            batch_sizes=(2, 4, 8, 12, 16, 24, 32, 48, 56, 64, 72, 96, 128, 156, 192),
            fixed_bytes=1_100_000_000, sample_bytes=168_000_000, checkpoint_bytes=350_000_000,
        ),
        Workload(
            key="movielens", title="NCF on MovieLens-1M",  samples=4_970_845,
            evaluation_samples=604_000, default_batch_size=1024, batch_sizes=_powers(4, 16384),
            fixed_bytes=1_000_000_000, sample_bytes=10_000, checkpoint_bytes=30_000_000,
        ),
        Workload(
            key="sentiment140", title="BERT on Sentiment140",  samples=1_600_000,
            evaluation_samples=498, default_batch_size=128, batch_sizes=_powers(8, 128),
            fixed_bytes=2_000_000_000, sample_bytes=200_000_000, checkpoint_bytes=1_310_000_000,
        ),
        Workload(
            key="squad", title="BERT on SQuAD",  samples=88_524,
            evaluation_samples=10_784, default_batch_size=32, batch_sizes=(4, 8, 12, 16, 24, 32, 48, 56),
            fixed_bytes=2_000_000_000, sample_bytes=500_000_000, checkpoint_bytes=1_310_000_000,
        ),
    )
}


@dataclass(frozen=True)
class Law:
    """Time and power of an iteration as functions of the batch size b.

    The host launches an iteration's kernels in `overhead_s` while the GPU works on those before, and the
    slower of the two sets the pace. The GPU waits for its work on samples, a little longer for each in a
    large batch, where all are padded to the longest.

        busy = sample_s * (b + floor_samples)
        iteration = (overhead_s**5 + busy**5) ** (1/5) + host_s * b**host_exponent
        dynamic power = base_w + batch_w * b / (b + half_samples)

    Attributes:
        compute: Share of the busy time bound by the SM clock.
    """

    overhead_s: float
    host_s: float
    floor_samples: float
    sample_s: float
    compute: float
    base_w: float
    batch_w: float
    half_samples: float
    host_exponent: float

    def at(self, batch_size: int) -> tuple[float, float, Load]:
        """Gap and busy time of an iteration at the highest clocks, and the mean load of the busy part."""
        busy_s = self.sample_s * (batch_size + self.floor_samples)
        paced_s = (self.overhead_s**5 + busy_s**5) ** 0.2
        dynamic_w = self.base_w + self.batch_w * batch_size / (batch_size + self.half_samples)
        load = Load(self.compute, _MEMORY_OF_REST * (1.0 - self.compute), dynamic_w)
        return paced_s - busy_s + self.host_s * batch_size**self.host_exponent, busy_s, load


# Share of the memory clock in the time that does not depend on the SM clock. The traced cards have one memory
# clock, so this is a guess that affects only the other cards.
_MEMORY_OF_REST = 0.6

# Fitted to all batch sizes and limits of the traces, CIFAR-100 with Adadelta. Mean error of time and of
# power, %:
#   V100  cifar100 2.0 8.3, imagenet 1.6 1.9, librispeech 2.6 4.0, movielens 4.3 2.1,
#         sentiment140 1.9 2.2, squad 1.5 1.7
#   P100  cifar100 2.4 8.4, imagenet 0.5 2.1, librispeech 1.5 3.9, movielens 3.1 2.0,
#         sentiment140 1.7 1.9, squad 0.8 1.9
# Worst: the power of cifar100 at batch sizes 8 to 64 (up to 21 %), the time of movielens at 4096 (8 %).
LAWS: dict[tuple[str, str], Law] = {
    ("V100", "cifar100"): Law(0.03974, 1.499e-06, 149.9, 0.0001084, 0.589, 0.0, 200.0, 119.8, 1.441),
    ("V100", "imagenet"): Law(0.0001273, 0.0002853, 6.905, 0.002277, 0.5941, 141.7, 129.7, 18.2, 0.984),
    ("V100", "librispeech"): Law(0.2823, 0.0008359, 22.14, 0.011, 0.4777, 126.2, 200.0, 84.93, 1.432),
    ("V100", "movielens"): Law(
        0.002979, 8.01e-07, 1557.0, 1.364e-07, 0.9199, 0.00037, 0.000479, 121100.0, 1.047
    ),
    ("V100", "sentiment140"): Law(0.02511, 5.679e-05, 6.936, 0.001971, 0.539, 162.5, 200.0, 66.61, 1.321),
    ("V100", "squad"): Law(0.07323, 0.0005218, 0.04979, 0.01674, 0.7543, 142.7, 172.6, 14.79, 1.282),
    ("P100", "cifar100"): Law(0.06483, 4.178e-05, 88.05, 0.0002404, 0.1955, 0.1529, 114.5, 33.91, 1.079),
    ("P100", "imagenet"): Law(0.04628, 0.0008542, 7.613, 0.003575, 0.2908, 121.0, 47.59, 58.55, 1.054),
    ("P100", "librispeech"): Law(1.385, 0.06419, 18.31, 0.03322, 0.5187, 104.5, 200.0, 334.3, 0.7731),
    ("P100", "movielens"): Law(
        0.005893, 1.329e-06, 0.04979, 1.603e-08, 0.92, 0.0001984, 0.001634, 121100.0, 1.056
    ),
    ("P100", "sentiment140"): Law(0.04356, 8.753e-05, 5.77, 0.003493, 0.2449, 73.69, 83.47, 11.34, 1.5),
    ("P100", "squad"): Law(0.07361, 0.002216, 0.04979, 0.02744, 0.3433, 127.3, 113.2, 59.34, 1.293),
}


# Cards relative to the V100: training speed and dynamic power. Scaled, not measured: speed is a round figure
# of published FP32/TF32 training throughput of ResNet-50 and BERT. The dynamic power brings heavy work to
# 100-110 % of the default limit at the highest clocks (more on the RTX cards, whose highest clocks no load
# reaches).
_SCALES = {
    "A40": (1.2, 1.05), "RTX6000": (0.95, 0.84), "A100": (2.2, 1.62), "H100": (4.0, 2.75),
    "RTX3080TI": (1.3, 1.85), "RTX4090": (2.2, 2.1),
}


def law(card: Card, workload: Workload) -> Law:
    """The batch-size law of a workload on a card: fitted to its traces, or scaled from the V100's."""
    if fitted := LAWS.get((card.key, workload.key)):
        return fitted
    base = LAWS["V100", workload.key]
    speed, dynamic = _SCALES.get(card.key, (1.0, 1.0))
    # A faster card is in a newer host, whose gain is smaller: from P100 to V100 it was the square root of the
    # card's gain.
    host = speed**-0.5
    return replace(
        base, overhead_s=base.overhead_s * host, host_s=base.host_s * host, sample_s=base.sample_s / speed,
        base_w=base.base_w * dynamic, batch_w=base.batch_w * dynamic,
    )


# Shares of an iteration's busy time, and each phase's SM-bound share and power relative to the mean load. A
# backward pass does twice the arithmetic of a forward pass. An optimizer step streams the weights through the
# memory.
_FORWARD_SHARE, _FORWARD_COMPUTE, _FORWARD_POWER = 0.31, 1.0, 0.97
_OPTIMIZER_SHARE, _OPTIMIZER_COMPUTE, _OPTIMIZER_POWER = 0.07, 0.3, 0.75
_BACKWARD_SHARE = 1.0 - _FORWARD_SHARE - _OPTIMIZER_SHARE


def _backward(forward: float, optimizer: float) -> float:
    """The factor of the backward pass that keeps the mean load."""
    return (1.0 - _FORWARD_SHARE * forward - _OPTIMIZER_SHARE * optimizer) / _BACKWARD_SHARE


@lru_cache(maxsize=1024)
def iteration(card: Card, workload: Workload, batch_size: int) -> tuple[WorkloadPhase, ...]:
    """One training iteration: forward, backward, optimizer, and the wait for host and data.

    Raises:
        UsageError: A workload or a card that is known by measurements alone, in another combination than the
            measured one.
    """
    if workload.phases or card.key in _MEASURED:
        if workload.card != card.key:
            from workbench.errors import UsageError

            raise UsageError(
                f"{workload.title} was not measured on {card.name}, and one of the two is known by "
                "measurements alone"
            )
        return workload.phases
    gap_s, busy_s, load = law(card, workload).at(batch_size)
    forward = _scaled(load, _FORWARD_COMPUTE, _FORWARD_POWER)
    backward = _scaled(
        load, _backward(_FORWARD_COMPUTE, _OPTIMIZER_COMPUTE), _backward(_FORWARD_POWER, _OPTIMIZER_POWER),
    )
    optimizer = _scaled(load, _OPTIMIZER_COMPUTE, _OPTIMIZER_POWER)
    return (
        busy("forward", "forward", _FORWARD_SHARE * busy_s, forward),
        busy("backward", "backward", _BACKWARD_SHARE * busy_s, backward),
        busy("optimizer", "optimizer", _OPTIMIZER_SHARE * busy_s, optimizer),
        WorkloadPhase("data", "data", gap_s, None, 0.0, 0.0),
    )


@lru_cache(maxsize=1024)
def evaluation(card: Card, workload: Workload, batch_size: int) -> tuple[WorkloadPhase, ...]:
    """One batch of the evaluation after an epoch: forward only. An epoch has
    `workload.evaluation_batches(batch_size)` of them.

    The host launches only the forward pass, so the GPU's wait for it is shorter in proportion. The wait for
    data is not.
    """
    if workload.phases:
        return ()
    numbers = law(card, workload)
    gap_s, busy_s, load = numbers.at(batch_size)
    read_s = numbers.host_s * batch_size**numbers.host_exponent
    forward = _scaled(load, _FORWARD_COMPUTE, _FORWARD_POWER)
    return (
        busy("evaluation", "evaluation", _FORWARD_SHARE * busy_s, forward),
        WorkloadPhase("data", "data", read_s + _FORWARD_SHARE * (gap_s - read_s), None, 0.0, 0.0),
    )


_CHECKPOINT_BYTES_PER_S = 1.0e9


def checkpoint(workload: Workload) -> tuple[WorkloadPhase, ...]:
    """Writing a checkpoint at a local disk's 1 GB/s, during which the card waits."""
    time_s = workload.checkpoint_bytes / _CHECKPOINT_BYTES_PER_S
    return (WorkloadPhase("checkpoint", "checkpoint", time_s, None, 0.0, 0.01),)


def fits(card: Card, workload: Workload, batch_size: int) -> bool:
    """Whether the job at this batch size fits into the card's memory, without the driver's part."""
    return workload.memory_bytes(batch_size) <= usable_bytes(card)


def usable_bytes(card: Card) -> int:
    """Memory of a card that is available to jobs."""
    return card.memory_bytes - _DRIVER_BYTES


_DRIVER_BYTES = 500_000_000


def _scaled(load: Load, compute: float, power: float) -> Load:
    compute = min(1.0, load.compute * compute)
    return Load(compute, _MEMORY_OF_REST * (1.0 - compute), load.dynamic_w * power)


def busy(name: str, kind: PhaseKind, time_s: float, load: Load) -> WorkloadPhase:
    """A phase of `time_s` seconds in which the card works all the time.

    Args:
        name: Name of the phase.
        kind: Forward, backward, ...
        time_s: Time at the reference clocks.
        load: Compute, memory and power.
    """
    return WorkloadPhase(name, kind, time_s, load, 1.0, round(min(1.0, 0.15 + load.memory), 3))
