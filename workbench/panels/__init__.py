"""What a person looks at and touches: live plots, sliders, buttons. Importing this loads no plotting library.

`power` is the live view of a running cell, with its iterations (`rhythm`); `periods` looks at the iterations of a trace that was
recorded; `recurring_job` looks at a recurring job and runs it; `clocks` looks at a tuner at work and steers it; `frontier` looks at
energy against time and chooses a configuration; `apply` puts a GPU to it and back; `cluster` compares who shares a GPU on a simulated
cluster; `open` has them all on tabs. Every panel stands on `base.LivePanel`; colours come from `theme`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apply import apply
    from .clocks import clocks
    from .cluster import cluster
    from .frontier import frontier
    from .periods import period
    from .power import PowerView
    from .recurring_job import recurring
    from .workbench import open_workbench as open

__all__ = ["PowerView", "apply", "clocks", "cluster", "frontier", "open", "period", "recurring"]


def __getattr__(name: str) -> Any:
    if name == "PowerView":
        from .power import PowerView

        return PowerView
    if name in ("apply", "clocks", "cluster", "frontier"):
        from importlib import import_module

        return import_module(f".{name}", __name__)  # a module that can be called; see there
    if name == "period":
        from .periods import period

        return period
    if name == "recurring":
        from .recurring_job import recurring

        return recurring
    if name == "open":
        from .workbench import open_workbench

        return open_workbench
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
