"""Creates, attaches, steps, breaks and removes simulated machines.

    machine = simulate(["A100", "V100"])          # real time; other processes find it through the environment
    machine = simulate("H100", stepped=True)      # time advances when a test calls step()
    machine = simulate("8xH100")                  # a node, whose GPUs differ from each other

A machine is a file in shared memory (`state`) and an NVML that answers from it (`nvml_library`). There are no
simulated GPUs without a call, or the environment variable.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _processes as processes
from .. import _shared_memory
from ..errors import SimulationError
from . import catalogue, nvml_library, replay, rough
from .nvml_library import MachineClock, SimulatedLibrary
from .physics import Card
from .state import ABILITIES, ENVIRONMENT_VARIABLE, MAX_GPUS, MachineState


@dataclass(frozen=True)
class SensorModel:
    """How an architecture's sensors update, in seconds (Yang et al., arXiv 2312.02741; nvml.h)."""

    nvml_architecture: int
    power_update_s: float
    power_window_s: float
    average_window_s: float
    counter_update_s: float
    lacks: tuple[str, ...] = ()


SENSORS = {
    "pascal": SensorModel(4, 0.020, 0.010, 0.0, 0.0, ("energy", "average_field", "sm_lock", "mem_lock")),
    "volta": SensorModel(5, 0.020, 0.010, 0.0, 0.020, ("average_field", "mem_lock")),
    "turing": SensorModel(6, 0.100, 0.100, 0.0, 0.100, ("average_field", "mem_lock")),
    "ampere": SensorModel(7, 0.101, 0.025, 0.0, 0.101, ("average_field",)),
    "ampere-ga10x": SensorModel(7, 0.100, 0.100, 1.0, 0.100),
    "ada": SensorModel(8, 0.100, 0.100, 1.0, 0.100),
    "hopper": SensorModel(9, 0.100, 0.025, 1.0, 0.100),
}
# Ratio of reading to true power, as published for these models or their nearest relative (same source); 1.0
# where it is unknown.
GAIN = {"P100": 1.005, "A100": 0.945, "A40": 0.95, "RTX6000": 0.938, "RTX3080TI": 0.955, "RTX4090": 0.957}
NOISE = 0.003  # per update; without it readings repeat exactly, and tools that drop repeats get no data
UTILISATION_WINDOW_S = 1 / 6
GOVERNOR_DELAY_S = 0.1
# How GPUs of one model differ: standard deviations of the logarithms of dynamic power, leakage and heating,
# assumed. At a power limit the speed of 8 GPUs then differs by several percent. Sinha et al. (SC'22) report
# 8 % on average for V100s of a cluster. Thermal stragglers cost up to 6 % ("Lit Silicon", arXiv 2511.09861).
SPREAD = (0.03, 0.08, 0.10)


class Machine:
    """A simulated machine of this process: its state, its clock, and its controls."""

    def __init__(self, library: SimulatedLibrary) -> None:
        self.library = library
        self.state: MachineState = library.state
        self.clock: MachineClock = library.clock
        owner = self.state.header("owner_pid"), self.state.header("owner_namespace")
        self._owner: tuple[int, int] = owner
        self.inject = self.state.inject

    @property
    def cards(self) -> tuple[str, ...]:
        """Keys of the simulated cards, by index."""
        return tuple(self.state.card(gpu, "key") for gpu in range(self.state.count))

    @property
    def replayed(self) -> bool:
        """Whether it replays a recording; then no job can run on it."""
        return self.library.recording is not None

    @property
    def owned(self) -> bool:
        """Whether this process created the machine, and therefore removes it."""
        return self._owner == (os.getpid(), int(processes.namespace() or 0))

    def card(self, gpu: int) -> Card:
        card, silicon = catalogue.card(self.state.card(gpu, "key")), self.state.card(gpu, "silicon")
        return catalogue.individual(card, *silicon) if any(silicon) else card

    def is_rough(self, name: str) -> bool:
        """Whether it has all properties of a name of `rough`; False for an unknown one."""
        _, header, card = rough.split([name])
        return bool(header or card) and all(
            self.state.header(field) == value for field, value in header.items()
        ) and all(
            self.state.card(gpu, field) == value for gpu in range(self.state.count)
            for field, value in card.items()
        )

    def gain(self, gpu: int) -> float:
        """Ratio of the card's power readings to true power."""
        return float(self.state.card(gpu, "gain"))

    def true_energy_j(self, gpu: int, from_s: float, to_s: float) -> float:
        """The exact integral of true power between two times of the machine's clock."""
        return self.state.true_energy_j(gpu, to_s) - self.state.true_energy_j(gpu, from_s)

    def step(self, seconds: float) -> None:
        """Move a stepped clock."""
        self.clock.step(seconds)

    def lose(self, gpu: int, code: int = 15) -> None:
        """Make a GPU fall off the bus (15) or need a reset (16); 0 restores it."""
        self.state.set_control(gpu, "lost", code)

    def close(self) -> None:
        """Remove the simulated GPUs from this process and the environment, and their file if created here."""
        path = self.state.path
        if os.environ.get(ENVIRONMENT_VARIABLE) == str(path):
            del os.environ[ENVIRONMENT_VARIABLE]
        if nvml_library.installed() is self.library:
            nvml_library.uninstall()
        if self.owned:  # read earlier: a machine that replaced this one has closed its memory
            with contextlib.suppress(OSError):
                path.unlink()


def create(
    cards: str | Sequence[str], path: str | os.PathLike[str], *, stepped: bool = False, scale: float = 1.0,
    latency_s: float = 0.0, privileged: bool = True, seed: int | None = None,
) -> Path:
    """Write the file of a new machine with these cards, idle since its time 0. Returns the file's path, which
    differs from `path` if there is no space.

    Args:
        cards: Names of the catalogue ("A100"), separated by commas or as a list. "8xA100" makes 8 GPUs that
            differ from each other as real ones do. Names from `rough` ("part-time") make all irregular.
        stepped: The clock moves only when stepped.
        scale: Speed of the clock relative to real time.
        latency_s: Duration of every driver call, in real seconds.
        privileged: Whether power limits and clocks may be set.
        seed: Random seed of sensor noise and phases, and of differences in a node; None: a random one.

    Raises:
        UnknownGpu: A card that the catalogue does not have.
        SimulationError: No card, too many, a scale that is not a positive number, or no space.
    """
    names = [name for name in (cards.split(",") if isinstance(cards, str) else list(cards)) if name.strip()]
    names, header, changed = rough.split(names)
    counted = [_counted(name) for name in names]
    names = [name for count, name in counted for _ in range(count or 1)]
    in_node = [count > 0 for count, _ in counted for _ in range(count or 1)]
    if not 1 <= len(names) <= MAX_GPUS:
        raise SimulationError(
            f"{len(names)} simulated GPUs requested; use 1 to {MAX_GPUS}, for example `8xA100`"
        )
    if not scale > 0:
        raise SimulationError(f"the clock's speed must be a positive number, not {scale:g}")
    models = [catalogue.card(name) for name in names]
    rng = random.Random(seed)
    state = MachineState.create(path, len(models))
    try:
        for name, value in {
            "stepped": int(stepped), "scale": scale, "origin_s": time.monotonic(), "unix_s": time.time(),
            "latency_s": latency_s, "unprivileged": int(not privileged), "owner_pid": os.getpid(),
            "owner_namespace": int(processes.namespace() or 0), "seed": rng.getrandbits(63),
            "driver_version": "580.00 simulated", **header,
        }.items():
            state.set_header(name, value)
        for gpu, card in enumerate(models):
            if in_node[gpu]:
                silicon = tuple(rng.lognormvariate(0.0, spread) for spread in SPREAD)
                state.set_card(gpu, "silicon", silicon)
                card = catalogue.individual(card, *silicon)
            _write_card(state, gpu, card, rng)
            for name, value in changed.items():
                state.set_card(gpu, name, value)
            cap_w = state.card(gpu, "cap_share") * state.card(gpu, "limit_default_w")
            state.set_control(gpu, "enforced_w", cap_w)
        return state.path
    finally:
        state.close()


def _counted(name: str) -> tuple[int, str]:
    """The count of GPUs in a name and the card's name; 0 where the name has no count.

    >>> _counted("8xH100"), _counted("RTX 4090")
    ((8, 'H100'), (0, 'RTX 4090'))
    """
    found = re.fullmatch(r"\s*(-?\d+)\s*x\s*(.+)", name, re.IGNORECASE)
    if found is None:
        return 0, name
    count = int(found[1])
    if not 1 <= count <= MAX_GPUS:
        raise SimulationError(
            f"{name.strip()!r} means {count} GPUs; a simulated machine has 1 to {MAX_GPUS}. Use 8x{found[2]}"
        )
    return count, found[2]


def _write_card(state: MachineState, gpu: int, card: Card, rng: random.Random) -> None:
    sensor = SENSORS[card.architecture]
    lacks = {*sensor.lacks, *card.lacks} | ({"mem_lock"} if len(card.mem_clocks_mhz) < 2 else set())
    low_w, default_w, high_w = card.power_limit_w
    # The seed determines the behaviour of a card, not its identity. Two processes that simulate the same card
    # do not share it. Power and energy need not refresh together: the counter has its own lag.
    identity = uuid.UUID(int=rng.getrandbits(128) ^ os.getpid(), version=4)
    values = {
        "name": f"{card.name} (simulated)", "uuid": f"GPU-{identity}", "key": card.key, "index": gpu,
        "pci": f"00000000:{0x10 + gpu:02X}:00.0", "architecture": sensor.nvml_architecture,
        "cc_major": card.compute_capability[0], "cc_minor": card.compute_capability[1],
        "memory_bytes": card.memory_bytes, "limit_min_w": low_w, "limit_default_w": default_w,
        "limit_max_w": high_w, "n_mem_clocks": len(card.mem_clocks_mhz),
        "mem_clocks": _eight(card.mem_clocks_mhz), "mem_top_sm": _eight(card.mem_top_sm_mhz),
        "mem_low_sm": _eight(card.mem_low_sm_mhz), "power_update_s": sensor.power_update_s,
        "power_window_s": sensor.power_window_s, "average_window_s": sensor.average_window_s,
        "counter_update_s": sensor.counter_update_s, "sensor_phase_s": rng.uniform(0, sensor.power_update_s),
        "counter_lag_s": rng.uniform(0, sensor.counter_update_s), "gain": GAIN.get(card.key, 1.0),
        "noise": NOISE, "utilisation_window_s": UTILISATION_WINDOW_S, "governor_delay_s": GOVERNOR_DELAY_S,
        "idle_c": card.idle_c, "c_per_w": card.degrees_per_w, "thermal_s": card.thermal_time_s,
        "idle_w": card.idle_w,
        "abilities": sum(1 << bit for bit, name in enumerate(ABILITIES) if name not in lacks),
    }
    for name, value in values.items():
        state.set_card(gpu, name, value)
    state.set_sm_clocks(gpu, card.sm_clocks_mhz)
    state.set_control(gpu, "limit_w", default_w)
    state.set_control(gpu, "was_limit_w", default_w)
    state.publish(gpu, -3600.0, [], idle(card))


def _eight(clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    return (*clocks_mhz, *(0,) * (8 - len(clocks_mhz)))


def idle(card: Card) -> tuple[float, int, int, float, float, int]:
    """The segment of an idle GPU: power, clocks, utilisation, event reasons."""
    return (card.idle_w, card.sm_clocks_mhz[-1], card.mem_clocks_mhz[-1], 0.0, 0.0, 0x1)


def simulate(
    cards: str | Sequence[str] = (), *, recording: Sequence[dict[str, Any]] | None = None, **options: Any
) -> Machine:
    """A new simulated machine, for this process and its children (by the environment).

    Args:
        cards: Names of GPU models, one string with commas or a list; "8xH100" for a node of 8 GPUs.
        recording: Result of `replay.load` or `replay.of_traces`, replayed instead of simulated cards.
        options: Arguments of `create`.
    """
    _shared_memory.sweep()
    path = _shared_memory.directory() / f"workbench-gpus-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    if recording is None:
        path = create(cards, path, **options)
    else:
        path, count = path.with_name(f"{path.name}{replay.SUFFIX}"), len(recording[0]["gpus"])
        call_s = recording[0].get("call_us", 0) / 1e6
        options["latency_s"] = call_s if call_s > 1e-3 else 0.0  # a shorter sleep takes longer than requested
        path = create(["A100"] * count, path, privileged=False, **options)
        replay.put(path, recording)
    try:
        machine = Machine(nvml_library.install(path))
    except SimulationError:
        path.unlink()
        raise
    os.environ[ENVIRONMENT_VARIABLE] = str(path)
    atexit.register(machine.close)
    return machine


def attached() -> Machine | None:
    """The simulated machine of this process or its environment; None where there is none."""
    library = nvml_library.attach()
    return Machine(library) if library else None

