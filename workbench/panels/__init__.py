"""What a person looks at and touches: live plots, sliders, buttons. Importing this loads no plotting library.

`PowerView` is the live view of a running cell with its iterations; `period` shows the iterations of a
recorded trace; `recurring` shows a recurring job and runs it; `clocks` shows a tuner at work and steers it;
`frontier` shows energy against time and chooses a configuration; `apply` puts a GPU to it and back; `cluster`
compares policies that let jobs share GPUs; `open` has them all on tabs.

`_views` has a folder per panel, `_core` what all of them stand on.
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

_HOMES = {
    "PowerView": ("_views.power.panel", "PowerView"), "apply": ("_views.apply.panel", "apply"),
    "clocks": ("_views.clocks.panel", "clocks"), "cluster": ("_views.cluster.panel", "cluster"),
    "frontier": ("_views.frontier.panel", "frontier"), "open": ("tabs", "open_workbench"),
    "period": ("_views.period.panel", "period"), "recurring": ("_views.recurring.panel", "recurring"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
