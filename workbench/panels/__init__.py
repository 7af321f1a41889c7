"""What a person looks at and touches: live plots, sliders, buttons. Importing this loads no plotting library.

`power` is the live view of a running cell, with its iterations (`rhythm`); `periods` looks at the iterations of a trace that was
recorded; `recurring_job` looks at a recurring job and runs it. Every panel stands on `base.LivePanel`; colours come from `theme`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .periods import period
    from .power import PowerView
    from .recurring_job import recurring

__all__ = ["PowerView", "period", "recurring"]


def __getattr__(name: str) -> Any:
    if name == "PowerView":
        from .power import PowerView

        return PowerView
    if name == "period":
        from .periods import period

        return period
    if name == "recurring":
        from .recurring_job import recurring

        return recurring
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
