"""The online loop over a running job: its iterations are found, settings tried, the best one held, changes noticed, savings measured.

    with workbench.tune(max_slowdown=0.05) as tuning:
        train()
    print(tuning.result)

    %%energy train --tune --max-slowdown 5

`Tuner` is the state machine (`tuner.machine`), advanced by whoever has a clock; `in_background` advances one beside whatever runs.
"""

from __future__ import annotations

from .tuning.api import Tuning, tune
from .tuning.driver import Driver, in_background
from .tuning.results import OBJECTIVES, PROBES, STATES, Saved, TuningResult, TuningView
from .tuning.state_machine import Tuner, latest, running

__all__ = [
    "OBJECTIVES",
    "PROBES",
    "STATES",
    "Driver",
    "Saved",
    "Tuner",
    "Tuning",
    "TuningResult",
    "TuningView",
    "in_background",
    "latest",
    "running",
    "tune",
]
