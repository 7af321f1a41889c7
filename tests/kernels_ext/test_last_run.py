"""The line "against the last run" of a cell's label, in a real kernel on a stepped GPU."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from a_kernel import Kernel, Ran

CELL = """%%energy {label} {options}
import workbench
from workbench.simulation.training import TrainingJob
for batch in TrainingJob("imagenet", 512, iterations={iterations}, evaluate=False):
    {each}
"""


@pytest.fixture(scope="module")
def kernel(start: Callable[..., Kernel]) -> Kernel:
    made = start()
    made("%load_ext kernels_ext\n%config EnergyMagics.live = False")
    made("from workbench.measurement import session\nsession.simulate('A100', stepped=True)")
    made("session.current().meter.clock.step(3.0)")
    return made


def train(kernel: Kernel, label: str, iterations: int, *, options: str = "", each: str = "workbench.step()") -> Ran:
    return kernel(CELL.format(label=label, options=options, iterations=iterations, each=each))


def against(ran: Ran) -> str:
    """The card's comparison against the last run; empty where there is none."""
    (shown,) = ran.reports
    found = re.search(r"against the last run</span> <b>(.*?)</b>", shown["text/html"])
    return found[1] if found else ""


def test_80_against_25_iterations_are_compared_per_iteration(kernel: Kernel) -> None:
    assert against(train(kernel, "unequal", 25)) == ""
    shown = against(train(kernel, "unequal", 80))
    assert "per iteration" in shown
    assert all(abs(float(each.replace("−", "-"))) < 5 for each in re.findall(r"([+−][\d.]+)(?: ±.*)? %", shown))


def test_an_interrupted_run_is_not_compared_and_nothing_is_compared_with_it(kernel: Kernel) -> None:
    train(kernel, "stopped", 30)
    stops = "workbench.step()\n    if batch.iteration == 10: raise KeyboardInterrupt"
    assert against(train(kernel, "stopped", 30, each=stops)) .startswith("not compared: ")
    shown = against(train(kernel, "stopped", 30))
    assert "not compared" not in shown
    assert "has changed" not in shown


def test_a_tuned_run_reports_its_own_saving_and_nothing_is_compared_with_it(kernel: Kernel) -> None:
    train(kernel, "tuned", 150)
    tuned = train(kernel, "tuned", 150, options="--tune")
    assert "saved " in tuned.reports[0]["text/plain"]
    assert against(tuned) == ""
    assert kernel("%energy_log --last 1")  # the log shows that it was tuned
    assert kernel("from workbench.logbook.store import Store\nStore().log()['kind'][-1]").value == "'tuned cell'"
    assert "has changed" not in against(train(kernel, "tuned", 150))


def test_a_run_of_unknown_work_has_no_percentage(kernel: Kernel) -> None:
    train(kernel, "unknown", 2, each="pass")
    shown = against(train(kernel, "unknown", 2, each="pass"))
    assert shown.startswith("not compared: ")
    assert "%" not in shown


def test_a_labelled_cell_reads_no_log(kernel: Kernel) -> None:
    """However long the log is, a cell costs the same."""
    kernel("from workbench.logbook.store import Store\nreal, Store.log = Store.log, lambda self: 1 / 0")
    train(kernel, "fast", 10)
    assert "energy" in against(train(kernel, "fast", 10))
    kernel("Store.log = real")
