"""What a person looks at and touches: live plots, sliders, buttons. Importing this loads no plotting library.

`power` is the live view of a running cell. Every panel stands on `base.LivePanel`; colours come from `theme`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .power import PowerView

__all__ = ["PowerView"]


def __getattr__(name: str) -> Any:
    if name == "PowerView":
        from .power import PowerView

        return PowerView
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
