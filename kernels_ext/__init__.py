"""The kernel extension: `%load_ext kernels_ext` (or `%load_ext workbench`).

It parses, calls and shows; the arithmetic is in `workbench`. Loading it imports no GPU, plot or data library:
they come with the first measured cell.
"""

from __future__ import annotations

import importlib
from typing import Any

_loaded: dict[int, Any] = {}


def load_ipython_extension(shell: Any) -> None:
    """Register `%%energy`, `%energy`, `%energy_log` and `%gpu`; bring the name `workbench` where it is free.

    Loading twice is loading once.
    """
    if id(shell) in _loaded:
        return
    from .hooks import Hooks
    from .magics import EnergyMagics

    magics = EnergyMagics(shell=shell, parent=shell)  # which adds itself to what %config reaches
    hooks = Hooks(shell, magics)
    shell.register_magics(magics)
    hooks.install()
    shell.user_ns.setdefault("workbench", importlib.import_module("workbench"))
    _loaded[id(shell)] = (magics, hooks)


def unload_ipython_extension(shell: Any) -> None:
    """Take everything away again: magics, hooks, the sampling process; settings are put back."""
    loaded = _loaded.pop(id(shell), None)
    if loaded is None:
        return
    magics, hooks = loaded
    hooks.remove()
    magics.state.close()
    for kind, table in (("cell", magics.magics["cell"]), ("line", magics.magics["line"])):
        for name in table:
            shell.magics_manager.magics[kind].pop(name, None)
    shell.configurables[:] = [each for each in shell.configurables if each is not magics]
