"""The first measured cell of a kernel: its window contains the cell and nothing of the workbench."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from a_kernel import Kernel

# Modules that are loaded when the edges of windows are read.
WATCHED = """
import sys, workbench.measurement.meter as meter
edges, read_edges = [], meter.Meter._edges
def watched(self):
    edges.append({name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names})
    return read_edges(self)
meter.Meter._edges = watched
"""
IMPORTED = "sorted(edges[{last}] - edges[0])"
TRAINING = """%%energy train --tune --max-slowdown 5 --warm-start --period
import workbench
from workbench.simulation.training import TrainingJob
edges[0].update(sys.modules)  # the training's own
for batch in TrainingJob("imagenet", 512, iterations=150, evaluate=False):
    workbench.step()
with workbench.measure("inner"):
    pass
"""
WITHOUT_GPU = "session.devices, session.why_no_gpu = list, lambda: 'no driver'"


@pytest.mark.parametrize(
    ("before", "cell", "last"),
    [
        (WITHOUT_GPU, "%%energy\ny = 2", 1),
        (WITHOUT_GPU, "%energy --repeat 2 sum([1])", 1),
        ("session.simulate('A100')", "%%energy\ny = 2", 1),
        ("session.simulate('A100')", "%%energy a --repeat 2 --gpus 0 --no-live -o m\ny = 2", 1),
        ("session.simulate('4xH100', stepped=True)", TRAINING, 3),
    ],
)
def test_nothing_is_imported_while_the_window_is_open(
    start: Callable[..., Kernel], before: str, cell: str, last: int
) -> None:
    kernel = start()
    kernel(f"%load_ext workbench\nfrom workbench.measurement import session\n{before}\n{WATCHED}")
    ran = kernel(cell)
    assert (ran.status, ran.error) == ("ok", "")
    assert kernel(IMPORTED.format(last=last)).value == "[]"
