"""`%%energy --tune` in a real kernel: the cell is tuned while it runs, and one line reports the saving."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from a_kernel import Kernel

SETTING = "from workbench.measurement import session\nstr(session.current().devices[0].setting())"
TRAINING = """%%energy train --tune --max-slowdown 5 {options}
import workbench
from workbench.simulation.training import TrainingJob
print("started", flush=True)
for batch in TrainingJob("imagenet", 512, iterations={iterations}, evaluate=False):
    workbench.step()
"""


@pytest.fixture(scope="module")
def kernel(start: Callable[..., Kernel]) -> Kernel:
    made = start()
    made("%load_ext kernels_ext\n%config EnergyMagics.live = False")
    made("from workbench.measurement import session\nsession.simulate('A100', stepped=True)")
    made("session.current().meter.clock.step(3.0)")
    return made


def test_a_cell_is_tuned_and_reports_its_saving(kernel: Kernel) -> None:
    ran = kernel(TRAINING.format(options="", iterations=150))
    assert (ran.status, ran.error) == ("ok", "")
    (shown,) = ran.reports
    first, second = shown["text/plain"].splitlines()
    assert first.startswith("train: ")
    assert second.startswith("saved ")
    assert "tuning included" in second
    assert "slowdown" in second
    assert second in shown["application/vnd.gpu-energy-workbench.measurement+json"]["notes"]
    assert kernel(SETTING).value == "'400 W'"
    settled = kernel("from workbench.tuning import latest\nlatest().result.settled_s > 0")
    assert settled.value == "True"


def test_an_interrupted_cell_leaves_the_gpu_as_it_was(kernel: Kernel) -> None:
    ran = kernel(
        TRAINING.format(options="--over clocks", iterations=100).replace(
            "    workbench.step()",
            """    workbench.step()
    if batch.iteration == 60:
        raise KeyboardInterrupt""",
        )
    )
    assert ran.status == "error"
    assert ran.report["outcome"] == "interrupted"
    assert kernel(SETTING).value == "'400 W'"


def test_a_cell_too_short_to_be_tuned_is_reported(kernel: Kernel) -> None:
    ran = kernel("%%energy --tune\n1 + 1")
    assert ran.value == "2"
    assert "not tuned: " in ran.reports[0]["text/plain"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--tune --max-slowdown -1", "-1 is outside 0 to 100"),
        ("--tune --max-slowdown 500", "500 is outside 0 to 100"),
        ("--tune --objective joy", "choose energy, edp"),
        ("--tune --max-slowdown 0.05", "did you mean 5?"),
        ("--over clocks", "--over needs --tune"),
    ],
)
def test_a_cell_with_bad_options_does_not_run(kernel: Kernel, line: str, part: str) -> None:
    kernel("ran = False")
    refused = kernel(f"%%energy {line}\nran = True")
    assert part in refused.error
    assert kernel("ran").value == "False"


def test_no_other_gpu_than_the_one_that_is_named_is_changed(kernel: Kernel) -> None:
    ran = kernel("%%energy --tune --gpus 9\n40 + 2")
    assert "GPU 9 not found" in ran.text
    assert "The cell was not run" in ran.text


def test_who_wants_to_see_nothing_sees_nothing(kernel: Kernel) -> None:
    ran = kernel("%%energy --tune --quiet -o m\n40 + 2")
    assert ran.value == "42"
    assert ran.reports == []
    assert "not tuned" in kernel("str(m.notes)").value
