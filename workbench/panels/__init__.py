"""What a person looks at and touches: live plots, sliders, buttons. Importing this loads no plotting library.

`power` is the live view of a running cell, with its iterations (`rhythm`); `periods` looks at the iterations of a trace that was
recorded; `recurring_job` looks at a recurring job and runs it; `clocks` looks at a tuner at work and steers it; `frontier` looks at
energy against time and chooses a configuration; `apply` puts a GPU to it and back; `cluster` compares who shares a GPU on a simulated
cluster; `open` has them all on tabs. Every panel stands on `base.LivePanel`; colours come from `theme`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._views.apply.panel import apply
    from ._views.clocks.panel import clocks
    from ._views.cluster.panel import cluster
    from ._views.frontier.panel import frontier
    from ._views.period.panel import period
    from ._views.power.panel import PowerView
    from ._views.recurring.panel import recurring
    from .tabs import open_workbench as open

__all__ = ["PowerView", "apply", "clocks", "cluster", "frontier", "open", "period", "recurring"]


def __getattr__(name: str) -> Any:
    if name == "PowerView":
        from ._views.power.panel import PowerView

        return PowerView
    if name in ("apply", "clocks", "cluster", "frontier"):
        from importlib import import_module

        return import_module(f".{name}", __name__)  # a module that can be called; see there
    if name == "period":
        from ._views.period.panel import period

        return period
    if name == "recurring":
        from ._views.recurring.panel import recurring

        return recurring
    if name == "open":
        from .tabs import open_workbench

        return open_workbench
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
