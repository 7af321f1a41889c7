"""The kernel that comes with the package has the extension loaded, so that a launcher tile is enough to
begin.
"""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel

NAME = "gpu-energy-workbench"


def test_jupyter_finds_the_kernel_of_the_installed_package():
    spec = KernelSpecManager().get_kernel_spec(NAME)
    assert spec.display_name == "Python 3 (energy)"


def test_its_kernel_has_the_magics_from_the_start():
    texts: list[str] = []
    manager, client = start_new_kernel(kernel_name=NAME)
    try:
        client.execute_interactive(
            "print('energy' in get_ipython().magics_manager.magics['cell'])",
            output_hook=lambda message: texts.append(message["content"].get("text", "")),
            timeout=240,
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "True" in "".join(texts)
