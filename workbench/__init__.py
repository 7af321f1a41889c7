"""GPU Energy Workbench: what a training cell costs in joules, why, and how to lower it.

The rooms, from the ground up; a room imports only rooms above it in this list:

    records, errors, clock   the nouns, the error tree, time as a parameter
    trace, samples, tariff   the schema of a power trace; rows of the sampler; prices and carbon of a joule
    simulation               simulated GPUs below the driver's door, chosen by name
    search                   what to try next: objectives, spaces, the frontier, batch sizes, limits and
                             clocks
    cluster                  job logs, an exact simulator of GPU clusters, policies that place jobs
    periods                  iteration periods in power traces, found and followed
    device                   GPUs through NVML: find, read, set, put back
    measurement              samples to joules: recorder, meter, marks, session, store, report
    experiments              configurations tried: one trial, sweeps, recurring jobs and their history
    sharing                  two to four trainings on one GPU: what it saves, what it costs each
    tuning                   a running job's best power limit and clocks, found online or set by hand
    panels                   Bokeh views in JupyterLab
    cli                      `workbench run -- python train.py`

In a notebook: `%load_ext workbench`, then `%%energy` above a cell. In a script: `with
workbench.measure("epoch") as m:`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
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
    "Limits", "Measurement", "RecurringJob", "Setting", "WorkbenchError", "devices", "iterations_of",
    "measure", "open_device", "phase", "share", "simulate", "step", "sweep", "track", "tune",
]

_HOMES = {
    "Limits": "records",
    "Measurement": "records",
    "RecurringJob": "experiments.job",
    "Setting": "records",
    "WorkbenchError": "errors",
    "devices": "device.discovery",
    "iterations_of": "measurement.api",
    "measure": "measurement.api",
    "open_device": "device.discovery",
    "phase": "measurement.marks",
    "share": "sharing",
    "simulate": "measurement.session",
    "step": "measurement.marks",
    "sweep": "experiments.sweep",
    "track": "measurement.api",
    "tune": "tuning.api",
}


_MODULES = {  # that a person uses by name
    "applying": "tuning.manual",
    "callbacks": "measurement.callbacks",
    "chosen": "tuning.selection",
    "cluster": "cluster",
    "panels": "panels",
    "readers": "measurement.log_readers",
    "records": "records",
    "trade_off": "search.tradeoff",
}


class _Aliases:
    """`import workbench.readers` and the like, which pickled callbacks do too, lead to where the module
    is.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        moved = package == __name__ and _MODULES.get(module, module) != module
        return ModuleSpec(name, self) if moved else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        sys.modules[name] = import_module(f".{_MODULES[name.rpartition('.')[2]]}", __name__)


if not any(type(finder).__qualname__ == _Aliases.__qualname__ for finder in sys.meta_path):
    sys.meta_path.append(_Aliases())


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f".{_MODULES[name]}", __name__)
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__", "load_ipython_extension", "unload_ipython_extension"})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext workbench` does what `%load_ext kernels_ext` does."""
    from kernels_ext import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    from kernels_ext import unload_ipython_extension as unload

    unload(shell)
