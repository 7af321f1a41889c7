"""GPU Energy Workbench: measure, explain and reduce the energy of GPU training.

The subpackages; each imports only those above it in this list:

    records, errors, clock   frozen records, the error classes, clocks
    trace, samples, tariff   the schema of a power trace, rows of the sampler, price and CO2 of a joule
    simulation               simulated GPUs below the driver's interface, chosen by name
    search                   what to try next: objectives, spaces, the frontier, batch sizes, limits and
                             clocks
    cluster                  job logs, an exact simulator of GPU clusters, policies that place jobs
    periods                  iteration periods in power traces, found and followed
    device                   GPUs through NVML: find, read, set, restore
    logbook                  the log: store, comparisons, reports, statements, logs of other tools
    measurement              samples to joules: sampler, recorder, meter, marks, session, sinks
    experiments              configurations tried: one trial, sweeps, recurring jobs and their history
    sharing                  two to four trainings on one GPU: the saving and each slowdown
    jobs                     a training on several GPUs: ranks, nodes, waiting, pipelines
    tuning                   a running job's best power limit and clocks, found online or set by hand
    callbacks                marks in the training loops of Hugging Face, Lightning and Keras
    panels                   Bokeh views in JupyterLab
    cli                      `workbench run -- python train.py`

In a notebook: `%load_ext workbench`, then `%%energy` above a cell. In a script:

    with workbench.gpu_settings(power_limit_w=250, gpus=0), workbench.measure("epoch") as result:
        train()
    workbench.show(result)                   # the panel for a result

Functions that use GPUs take `gpus=` (index, UUID, PCI id, "sim:V100", an open device, or several). Functions
with a slowdown limit take `max_slowdown=` (0.05 is 5 %).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device.discovery import devices, open_device
    from .device.protocol import Device
    from .errors import WorkbenchError
    from .experiments.comparison import EnergyComparison, compare
    from .experiments.job import RecurringJob
    from .experiments.recurrence import JobRun
    from .experiments.sweep import Sweep, sweep
    from .experiments.workloads import example_training
    from .jobs.reading import read_job
    from .logbook.log_readers import read_log
    from .logbook.statement import EnergyStatement, report, verify
    from .logbook.waste import waste
    from .measurement.api import gpu_settings, iterations_of, measure, trace_of, track
    from .measurement.blocks import BlockResult, TrackedLoop
    from .measurement.marks import phase, step
    from .measurement.session import simulate
    from .measurement.sinks import log_to
    from .measurement.work import work
    from .panels.show import frontier, show
    from .periods.detect import find_periods
    from .periods.segment import SegmentedIterations
    from .records import (
        Configuration,
        DetectedPeriod,
        GpuMeasurement,
        IterationSummary,
        Limits,
        Measurement,
        Observation,
        Periods,
        Setting,
    )
    from .search.tradeoff import best_configuration
    from .sharing import share
    from .sharing.result import SharingResult
    from .tuning import Tuning, TuningResult, gpu_control, tune

__version__ = "0.1.0"
__all__ = [
    "BlockResult", "Configuration", "DetectedPeriod", "Device", "EnergyComparison", "EnergyStatement",
    "GpuMeasurement", "IterationSummary", "JobRun", "Limits", "Measurement", "Observation", "Periods",
    "RecurringJob", "SegmentedIterations", "Setting", "SharingResult", "Sweep", "TrackedLoop",
    "Tuning", "TuningResult", "WorkbenchError", "best_configuration", "compare", "devices",
    "example_training", "find_periods", "frontier", "gpu_control", "gpu_settings", "iterations_of",
    "log_to", "measure", "open_device", "phase", "read_job", "read_log", "report", "share", "show",
    "simulate", "step", "sweep", "trace_of", "track", "tune", "verify", "waste", "work",
]

_NAMES = {  # by module
    "device.discovery": "devices open_device",
    "device.protocol": "Device",
    "errors": "WorkbenchError",
    "experiments.comparison": "EnergyComparison compare",
    "experiments.job": "RecurringJob",
    "experiments.recurrence": "JobRun",
    "experiments.sweep": "Sweep sweep",
    "experiments.workloads": "example_training",
    "jobs.reading": "read_job",
    "logbook.log_readers": "read_log",
    "logbook.statement": "EnergyStatement report verify",
    "logbook.waste": "waste",
    "measurement.api": "gpu_settings iterations_of measure trace_of track",
    "measurement.blocks": "BlockResult TrackedLoop",
    "measurement.marks": "phase step",
    "measurement.session": "simulate",
    "measurement.sinks": "log_to",
    "measurement.work": "work",
    "panels.show": "frontier show",
    "periods.detect": "find_periods",
    "periods.segment": "SegmentedIterations",
    "records": "Configuration GpuMeasurement IterationSummary DetectedPeriod Limits Measurement "
        "Observation Periods Setting",
    "search.tradeoff": "best_configuration",
    "sharing": "share",
    "sharing.result": "SharingResult",
    "tuning": "Tuning TuningResult gpu_control tune",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {  # that a person uses by name
    "callbacks": "callbacks",
    "chosen": "device.chosen",
    "cluster": "cluster",
    "errors": "errors",
    "panels": "panels",
    "records": "records",
    "simulation": "simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        from .errors import near

        hint = near(name, __dir__(), "dir(workbench) lists its names")
        raise AttributeError(f"module 'workbench' has no attribute {name!r}{hint}")
    try:
        module = import_module(f".{_MODULES.get(name) or _HOMES[name]}", __name__)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        from .errors import MeasurementError

        raise MeasurementError(f"workbench.{name} needs Polars, which finds no thread left here; load it "
                               "before the limit of processes or threads is reached") from error
    if name in _MODULES:
        return module
    value = globals()[name] = getattr(module, name)
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
