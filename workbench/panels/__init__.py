"""Interactive panels: live plots, sliders, buttons. Importing this loads no plotting library.

`PowerView` is the live view of a running cell with its iterations. `period` shows the iterations of a
recorded trace. `job` shows which GPUs of a job wait for each other. `recurring` shows and runs a recurring
job. `clocks` shows and steers a tuner. `frontier` shows energy against time and chooses a configuration.
`apply` applies it to a GPU and undoes it. `cluster` compares policies that let jobs share GPUs. `log` lists
every run, to open one or to compare two. `open` has all panels on tabs.

`_views` has one folder per panel, and `_core` the base of all panels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._views.apply.panel import apply
    from ._views.clocks.panel import clocks
    from ._views.cluster.panel import cluster
    from ._views.frontier.panel import frontier
    from ._views.job.panel import job
    from ._views.log.panel import log
    from ._views.period.panel import period
    from ._views.power.panel import PowerView
    from ._views.recurring.panel import recurring
    from .tabs import open_workbench as open

__all__ = ["PowerView", "apply", "clocks", "cluster", "frontier", "job", "log", "open", "period",
           "recurring"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "open":
        return import_module(".tabs", __name__).open_workbench
    folder = "power" if name == "PowerView" else name
    return getattr(import_module(f"._views.{folder}.panel", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
