"""A running job's best power limit and clocks: measured online and held; or set by hand.

    api, driver                       `workbench.tune`; the caller of `advance`: a thread, or a stepped clock
    state_machine, phases,            the tuner: its lock and commands; its states, each an object that
    tuner_phase                       returns the next one
    tuned_job, gpus, record,          shared by the states: the work that is tuned, its GPUs, the events,
    options, results                  the options; views and results
    blocks                            measures one setting over whole iterations
    ledger                            time and energy at each setting, and what was saved
    models, features                  a model of this GPU, and the features that it asks for
    detect_iterations                 which source of iterations a job has (`experiments.iteration_sources`)
    change_detection                  whether the GPUs work, and for this job alone
    balance                           lower clocks for GPUs that wait for others of their job
    manual                            a setting applied by a person, read back, undone
    gpu_profile                       `workbench profile-gpu`

The names below are for other rooms; each is loaded when it is used first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import advise, lowest_clock
    from .api import Tuning, tune
    from .balance import reduced_clocks
    from .driver import TunerThread, cell_over
    from .manual import AFTER_S, BEFORE_S, ManualControl, StepResponse, gpu_control
    from .results import OBJECTIVES, TuningResult, TuningView
    from .state_machine import Tuner, latest, running

__all__ = [
    "AFTER_S", "BEFORE_S", "OBJECTIVES", "ManualControl", "StepResponse", "Tuner", "TunerThread", "Tuning",
    "TuningResult", "TuningView", "advise", "cell_over", "gpu_control", "latest", "lowest_clock",
    "reduced_clocks", "running", "tune",
]
_NAMES = {  # by module
    "advice": "advise lowest_clock",
    "api": "Tuning tune",
    "balance": "reduced_clocks",
    "driver": "TunerThread cell_over",
    "manual": "AFTER_S BEFORE_S ManualControl StepResponse gpu_control",
    "results": "OBJECTIVES TuningResult TuningView",
    "state_machine": "Tuner latest running",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
