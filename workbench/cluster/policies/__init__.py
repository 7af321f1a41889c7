"""Scheduling policies, one per class; `POLICIES` makes them by the names in benchmarks and panels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..policy import Policy
from .eaco import Eaco
from .energy_aware import EnergyAwarePolicy
from .fifo import Fifo
from .pairing import FifoPacked, Gandiva, Lucid
from .shortest import Sjf, Srtf, Tiresias

POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo-spread-always-on": partial(Fifo, spread=True, sleep_after_s=None),
    "fifo-spread": partial(Fifo, spread=True),
    "fifo-best-fit": Fifo,
    "fifo-packed": partial(FifoPacked, sleep_after_s=None),
    "gandiva": partial(Gandiva, sleep_after_s=None),
    "sjf": Sjf,
    "srtf": Srtf,
    "tiresias": Tiresias,
    "lucid": Lucid,
    "eaco": Eaco,  # settings apply to this one; names with numbers have fixed settings
    "eaco-2-80": partial(Eaco, max_jobs=2, load_threshold=0.8),
    "eaco-2-100": partial(Eaco, max_jobs=2, load_threshold=1.0),
    "eaco-3-80": partial(Eaco, max_jobs=3, load_threshold=0.8),
    "eaco-3-100": partial(Eaco, max_jobs=3, load_threshold=1.0),
    "ours": EnergyAwarePolicy,
    # Slows no job more than EaCO does with two jobs per GPU.
    "ours-calm": partial(EnergyAwarePolicy, max_excess=0.05, busy_excess=0.07, name="workbench, calm"),
    "ours-capped": partial(EnergyAwarePolicy, capped=True, name="workbench, power limits"),
}

__all__ = [
    "POLICIES", "Eaco", "EnergyAwarePolicy", "Fifo", "FifoPacked", "Gandiva", "Lucid", "Sjf", "Srtf",
    "Tiresias",
]
