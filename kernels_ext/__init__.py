"""The kernel extension: `%load_ext kernels_ext` (or `%load_ext workbench`).

It parses, calls and shows; the arithmetic is in `workbench`. Loading it imports no GPU, plot or data library:
they come with the first measured cell.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
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
    if getattr(shell, "kernel", None) is not None:
        from workbench.experiments import progress

        progress.display = _display
    shell.user_ns.setdefault("workbench", importlib.import_module("workbench"))
    _loaded[id(shell)] = (magics, hooks)


def _display(bundle: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Display a bundle in the running cell; returns the function that replaces it."""
    from IPython.display import display

    handle = display(bundle, raw=True, display_id=True)
    return lambda new: handle.update(new, raw=True)


def unload_ipython_extension(shell: Any) -> None:
    """Remove magics, hooks, the sampling process and simulated GPUs of this kernel; settings are restored."""
    if id(shell) not in _loaded:
        return
    magics, hooks = _loaded.pop(id(shell))
    hooks.remove()
    for kind, names in magics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    shell.configurables.remove(magics)
    if (sessions := sys.modules.get("workbench.measurement.session")) and (present := sessions.present()):
        present.close()
    machines = sys.modules.get("workbench.simulation.machine")
    if machines and (machine := machines.attached()) and machine.owned:
        machine.close()
