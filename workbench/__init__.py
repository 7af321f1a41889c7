"""GPU Energy Workbench: what a training cell costs in joules, why, and how to lower it.

    records, errors, clock   the nouns, the error tree, time as a parameter
    finder                   which GPUs are here; open one
    device                   GPUs through NVML: read, set, put back
    simulation               simulated GPUs behind the same door, chosen by name
    sampler, recorder        the process that looks at GPUs, and the traces that come of it
    trace, estimate          pure functions over traces; energy between two moments with its error
    meter, store, report     windows to measurements; on disk; in words
    marks, callbacks         a training says where its iterations end
    period, periodicity      iteration periods found in a trace; the estimators and the ranker behind it
    tracker, tracking        the period of a running job, followed; following asks a recorder for it
    iterations, counting     iterations as a frame: found in a trace or told by marks; those of a measurement
    readers                  traces that nvidia-smi and DCGM have written
    session                  one process's GPUs, recorder, meter and store
    search                   what to try next: objectives, batch-size policies, power profiles, histories as Optuna studies
    recurring, profiling     jobs that recur, each at the batch size and power limit that cost least; limits profiled while they run
    features, dcgm           what a running job does to its GPU in a few numbers: GPM, DCGM or NVML, whichever is there
    graded, gpu_profile      built-in workloads, and the measurements of a GPU's profile
    profile_gpu, models      `workbench profile-gpu`; where its models are kept
    trial, executors         one configuration measured; where trials run: a process or a Dask worker per GPU
    sweeping                 many configurations measured, next where the energy-time frontier is expected to grow most
    trade_off                points pooled, the default, bounds, choices and what they save
    tuning, tuner            a running job's best power limit and clocks, found online, held, watched
    applying, in_force       a configuration put to a GPU by hand, read back, undone; what is in force, and whose it is
    chosen                   what was chosen last, for the next run to read
    sharing                  two to four trainings on one GPU: what it saves, what it costs each, whether to
    cluster                  job logs, an exact simulator of GPU clusters, and policies that decide which jobs share a GPU
    panels                   Bokeh views in JupyterLab
    cli                      `workbench run -- python train.py`

In a notebook: `%load_ext workbench`, then `%%energy` above a cell. In a script: `with workbench.measure("epoch") as m:`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device.discovery import devices, open_device
    from .errors import WorkbenchError
    from .experiments.job import RecurringJob
    from .experiments.sweep import sweep
    from .measurement.api import iterations_of, measure, track
    from .measurement.marks import phase, step
    from .measurement.session import simulate
    from .records import Limits, Measurement, Setting
    from .sharing import share
    from .tuning.api import tune

__version__ = "0.1.0"
__all__ = [
    "Limits",
    "Measurement",
    "RecurringJob",
    "Setting",
    "WorkbenchError",
    "devices",
    "iterations_of",
    "measure",
    "open_device",
    "phase",
    "share",
    "simulate",
    "step",
    "sweep",
    "track",
    "tune",
]

_HOMES = {
    "Limits": "records",
    "Measurement": "records",
    "RecurringJob": "recurring",
    "Setting": "records",
    "WorkbenchError": "errors",
    "devices": "finder",
    "iterations_of": "scripting",
    "measure": "scripting",
    "open_device": "finder",
    "phase": "marks",
    "share": "sharing",
    "simulate": "session",
    "step": "marks",
    "sweep": "sweeping",
    "track": "scripting",
    "tune": "tuning",
}


_ROOMS = ("applying", "chosen", "cluster", "panels", "readers", "records", "trade_off")  # that a person uses by name


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _ROOMS:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext workbench` does what `%load_ext kernels_ext` does."""
    from kernels_ext import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    from kernels_ext import unload_ipython_extension as unload

    unload(shell)
