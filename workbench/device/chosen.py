"""The last applied choice on a frontier. A running job cannot change its batch size; the next one reads it
here.

    loader = DataLoader(data, batch_size=workbench.chosen.batch_size or 128)

Read the names through the module; they change when another configuration is applied.
"""

from __future__ import annotations

from ..records import Configuration, Setting

configuration: Configuration | None = None
batch_size: int | None = None
setting: Setting | None = None


def choose(chosen: Configuration | None) -> None:
    """Make a configuration the chosen one; None forgets it."""
    global configuration, batch_size, setting
    configuration = chosen
    batch_size = chosen.batch_size if chosen is not None else None
    setting = chosen.setting if chosen is not None else None
