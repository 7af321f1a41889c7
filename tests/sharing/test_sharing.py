"""Trainings on one GPU: figures that can be checked on paper, verdicts with correct errors, and jobs that
misbehave.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench
from workbench import sharing
from workbench.cluster.colocation import Colocation, Profile
from workbench.device import mps, nvml
from workbench.errors import MeasurementError, NoDriver, UsageError
from workbench.measurement import marks, sensor_updates
from workbench.sharing import children, comparing, period_separation, result, stages
from workbench.sharing.children import JobProcess
from workbench.sharing.comparing import ConfidenceInterval, SharingEffect, Stage, compare
from workbench.sharing.picture import COLOURS, picture
from workbench.sharing.result import SharingResult, decide
from workbench.simulation import catalogue, tenants
from workbench.simulation.machine import Machine

EXACT = ConfidenceInterval(0.0, 0.0)


def stage(
    member: tuple[int, ...],
    seconds: float,
    watts: float,
    counts: tuple[float, ...],
    blocks: int = 5,
    **more: Any,
) -> Stage:
    """Blocks that are all alike."""
    return Stage(
        member,
        np.full(blocks, seconds),
        np.full(blocks, seconds * watts),
        np.tile(np.array(counts, float), (blocks, 1)),
        **more,
    )


# on paper


@pytest.fixture
def on_paper() -> SharingEffect:
    """A: 0.5 s and 100 J per iteration alone; B: 1 s and 100 J. Together at 240 W, 0.6 s and 1.25 s, above
    an idle card of 40 W.
    """
    a, b = stage((0,), 1.0, 200.0, (2.0, 0.0)), stage((1,), 1.0, 100.0, (0.0, 1.0))
    return compare([a, b], stage((0, 1), 3.0, 240.0, (5.0, 2.4)), idle_w=40.0)


def test_slowdown_and_saving_are_those_of_the_same_work(on_paper: SharingEffect) -> None:
    assert [each.value for each in on_paper.slowdown] == pytest.approx([1.2, 1.25])
    # In 3 s: 5 iterations of A and 2.4 of B cost 720 J together; one after the other they cost 500 + 240 J.
    assert on_paper.saving.value == pytest.approx(1 - 720 / 740)
    assert on_paper.progress.value == pytest.approx(1 / 1.2 + 1 / 1.25)
    assert [each.value for each in on_paper.alone_j] == pytest.approx([100.0, 100.0])
    assert [each.error for each in on_paper.slowdown] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_attributed_energies_add_up_to_the_boards(on_paper: SharingEffect) -> None:
    """120 J idle in halves; the 600 J above it by 5 * (100 - 20) = 400 of A and 2.4 * (100 - 40) = 144 of
    B.
    """
    assert on_paper.board_j == pytest.approx(5 * 720.0)
    assert on_paper.parts_j == pytest.approx((5 * (60 + 600 * 400 / 544), 5 * (60 + 600 * 144 / 544)))
    assert sum(on_paper.parts_j) == pytest.approx(on_paper.board_j)
    assert on_paper.attributed_j[0].value == pytest.approx(on_paper.parts_j[0] / 25)


def test_a_card_that_never_rose_above_idle_is_shared_in_equal_parts() -> None:
    found = compare(
        [stage((0,), 1.0, 40.0, (2.0, 0.0)), stage((1,), 1.0, 40.0, (0.0, 1.0))],
        stage((0, 1), 1.0, 40.0, (1.0, 1.0)),
        50.0,
    )
    assert found.parts_j == pytest.approx((100.0, 100.0))


def test_the_error_of_a_ratio_is_that_of_its_blocks() -> None:
    """Power of 10 blocks that are 90 or 110 J: a mean of 100 with a standard error of 10 / sqrt(9) and 9
    degrees of freedom.
    """
    joules = np.array([90.0, 110.0] * 5)
    alone = [stage((0,), 1.0, 100.0, (1.0, 0.0)), stage((1,), 1.0, 100.0, (0.0, 1.0))]
    together = Stage((0, 1), np.ones(10), joules, np.ones((10, 2)))
    assert compare(alone, together).together_w.value == pytest.approx(100.0)
    assert compare(alone, together).together_w.error == pytest.approx(2.262 * 10 / 3, rel=1e-3)


def test_what_blocks_do_not_show_is_in_the_error_too() -> None:
    """An energy that is good to 3 %, and a period that is good to 1 % (one standard deviation)."""
    alone = [
        stage((0,), 1.0, 100.0, (1.0, 0.0)),
        stage((1,), 1.0, 100.0, (0.0, 1.0), count_error=(0.0, 0.01)),
    ]
    found = compare(alone, stage((0, 1), 1.0, 150.0, (0.9, 0.9), energy_error=0.03))
    assert found.together_w.error == pytest.approx(0.03 * 150.0)
    assert found.slowdown[0].error == pytest.approx(0.0, abs=1e-12)
    assert found.slowdown[1].error == pytest.approx(1.96 * 0.01 / 0.9, rel=0.01)


def test_a_higher_confidence_level_widens_every_part_of_the_error() -> None:
    joules = np.array([90.0, 110.0] * 5)
    alone = [stage((0,), 1.0, 100.0, (1.0, 0.0)), stage((1,), 1.0, 100.0, (0.0, 1.0))]
    found = compare(alone, Stage((0, 1), np.ones(10), joules, np.ones((10, 2))), level=0.999)
    assert found.together_w.error == pytest.approx(
        4.781 * 10 / 3, rel=1e-3
    )  # Student's t of 9 degrees of freedom
    alone[1] = stage((1,), 1.0, 100.0, (0.0, 1.0), count_error=(0.0, 0.001))
    found = compare(alone, stage((0, 1), 1.0, 150.0, (0.9, 0.9), energy_error=0.03), level=0.999)
    assert found.together_w.error == pytest.approx(0.03 * 150.0 * 3.291 / 1.960, rel=1e-3)
    assert found.slowdown[1].error == pytest.approx(3.291 * 0.001 / 0.9, rel=0.01)


def test_a_period_is_no_surer_than_in_its_worst_stage() -> None:
    stages = [
        stage((0,), 1.0, 100.0, (1.0, 0.0), count_error=errors) for errors in ((0.02, 0.0), (0.01, 0.0), ())
    ]
    assert comparing.pooled(stages).count_error == (0.02, 0.0)


def test_too_little_data_is_refused_with_a_remedy() -> None:
    alone = [stage((0,), 1.0, 100.0, (1.0, 0.0)), stage((1,), 1.0, 100.0, (0.0, 1.0), blocks=3)]
    with pytest.raises(MeasurementError, match=r"3 blocks .* 4 are"):
        compare(alone, stage((0, 1), 1.0, 150.0, (0.9, 0.9)))
    with pytest.raises(MeasurementError, match="job 1"):
        compare([alone[0], stage((1,), 1.0, 100.0, (0.0, 1.0))], stage((0, 1), 1.0, 150.0, (0.0, 0.9)))


def test_blocks_lie_where_every_job_is_known_to_iterate_and_phases_are_left_out() -> None:
    first, second = np.arange(0.0, 10.1, 0.5), np.arange(2.25, 9.0, 0.75)
    borders = comparing.edges([first, second], 1.0, 9.5, 1.0)
    assert (borders[0], borders[-1], len(borders)) == (2.25, 8.25 + 0.75 * (second[-1] >= 9.0), 7)
    assert comparing.counts(first, borders).sum() == pytest.approx((borders[-1] - borders[0]) / 0.5)
    assert list(comparing.disturbed(borders, [(4.3, 4.4)])) == [False, False, True, False, False, False]
    assert len(comparing.edges([first, second[:1]], 1.0, 9.5, 1.0)) == 0


# the verdict


def verdict(
    slowdown: tuple[ConfidenceInterval, ...], saving: ConfidenceInterval, bound: float = 1.2
) -> tuple[str, str]:
    n = len(slowdown)
    found = SharingEffect(
        (EXACT,) * n,
        (EXACT,) * n,
        slowdown,
        (EXACT,) * n,
        (EXACT,) * n,
        saving,
        EXACT,
        EXACT,
        0.0,
        (0.0,) * n,
    )
    return decide(found, ("A", "B", "C")[:n], bound, 10.0)


def test_a_verdict_gives_the_saving_and_the_slowdowns() -> None:
    decision, message = verdict(
        (ConfidenceInterval(1.06, 0.011), ConfidenceInterval(1.09, 0.02)), ConfidenceInterval(0.24, 0.031)
    )
    assert decision == "share"
    assert all(each in message for each in ("saves 24 % ± 3.1 %", "A by 6.0 % ± 1.1 %", "B by 9.0 % ± 2.0 %"))


@pytest.mark.parametrize(
    ("slowdown", "saving", "decision", "message"),
    [
        (
            (1.30, 0.05),
            (0.2, 0.01),
            "do not share",
            "20 % for A",
        ),
        ((1.05, 0.05), (-0.03, 0.01), "do not share", "costs 3.0 % ± 1.0 % more energy"),
        (
            (1.19, 0.05),
            (0.2, 0.01),
            "undecided",
            "A's slowdown",
        ),
        ((1.05, 0.05), (0.01, 0.02), "undecided", "; the saving"),
        (
            (1.19, 0.05),
            (0.01, 0.02),
            "undecided",
            "and the saving",
        ),
    ],
)
def test_a_verdict_is_no_surer_than_its_errors(
    slowdown: tuple[float, float], saving: tuple[float, float], decision: str, message: str
) -> None:
    found, shown = verdict(
        (ConfidenceInterval(*slowdown), ConfidenceInterval(1.0, 0.01)), ConfidenceInterval(*saving)
    )
    assert found == decision
    assert message in shown


def test_a_result_shows_itself_as_a_table_with_the_boards_total(on_paper: SharingEffect) -> None:
    jobs = tuple(
        result.SharedJob(name, f"python {name}.py", "ok", 3 << 30, "", "marks") for name in ("A", "B<script>")
    )
    shared = SharingResult(
        "GPU",
        "GPU-1",
        True,
        jobs,
        on_paper,
        *decide(on_paper, ("A", "B<script>"), 1.3, 10.0),
        1.3,
        mode="time slicing",
        memory_used_bytes=30 << 30,
        memory_bytes=32 << 30,
        idle_w=40.0,
    )
    text = repr(shared)
    assert re.search("time slicing.* 2.7 %", text.splitlines()[0])
    assert "500.0 ± 0.1 ms" in text
    assert "B<script>" in text
    assert "20 % ± 0.1 %" in text
    assert re.search("3.60 kJ .* 240 W", text)
    assert "30.0 of 32 GiB" in text
    bundle = shared._repr_mimebundle_()
    assert "<script>" not in bundle["text/html"]
    assert bundle[result.MIME]["jobs"][0]["slowdown"] == pytest.approx(1.2)
    assert shared.excess == pytest.approx(0.225)
    learned = Colocation({("A", "B"): shared.excess or 0.0})
    assert learned.excess([Profile("A", 5000), Profile("B", 5000)]) == pytest.approx(0.225)


# as sure as it says: the simulator knows the truth


# jobs without marks


def waves(seconds: float, *periods: tuple[float, float]) -> pl.DataFrame:
    """Readings every 20 ms of jobs with these periods and swings."""
    time_s = np.arange(0.0, seconds, 0.02)
    power_w = 100.0 + np.random.default_rng(1).normal(0.0, 1.0, len(time_s))
    for period_s, swing_w in periods:
        power_w += swing_w * ((time_s / period_s) % 1.0 < 0.6)
    return pl.DataFrame({"time_s": time_s, "power_w": power_w})


def test_a_jobs_period_is_found_again_next_to_anothers() -> None:
    alone = period_separation.alone_period(waves(20.0, (0.5, 60.0)))
    beside = period_separation.beside(waves(20.0, (0.56, 40.0), (0.93, 25.0)), alone, "A")
    assert alone.seconds == pytest.approx(0.5, rel=0.01)
    assert abs(beside.seconds - 0.56) < 1.96 * beside.relative_error * beside.seconds + 0.002


def test_a_period_that_is_not_there_is_not_made_up() -> None:
    alone = period_separation.alone_period(waves(20.0, (0.5, 60.0)))
    with pytest.raises(MeasurementError, match=r"workbench\.step\(\)"):
        period_separation.beside(waves(20.0), alone, "A")
    with pytest.raises(MeasurementError, match="do not show"):
        period_separation.alone_period(waves(20.0))


@pytest.mark.parametrize(
    ("others_s", "alike"), [(0.5, True), (1.01, True), (0.25, True), (0.7, False), (4.0, False)]
)
def test_a_strong_period_is_not_taken_for_two(others_s: float, alike: bool) -> None:
    with pytest.raises(MeasurementError, match=r"B .* of A") if alike else contextlib.nullcontext():
        period_separation.require_distinct("B", 0.5, [("A", others_s)])


# MPS


def test_mps_is_detected_from_a_living_daemon(tmp_path: Path) -> None:
    pipes, daemon = tmp_path / "pipes", tmp_path / mps.DAEMON
    daemon.symlink_to(sys.executable)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    with subprocess.Popen([daemon, "-I", "-S", "-c", "import time; time.sleep(60)"]) as process:
        try:
            assert not mps.running(environment)
            pipes.mkdir()
            (pipes / "control").touch()
            assert mps.running(environment)
        finally:
            process.kill()
    assert not mps.running(environment)


# marks across processes


def test_steps_of_a_process_reach_its_parent(tmp_path: Path) -> None:
    code = (
        "import workbench\nfor _ in range(3): workbench.step()\nwith workbench.phase('evaluation'): pass\n"
        "with workbench.phase('mine'): pass\nwith workbench.phase('step'): pass\n"
        "from workbench.measurement import marks\nmarks.since_last('checkpoint')\n"
    )
    child = JobProcess("job", [sys.executable, "-c", code], tmp_path, dict(os.environ))
    before_s = time.monotonic()
    child.start()
    while child.running:
        time.sleep(0.01)
    steps = child.steps_s()
    assert len(steps) == 3
    assert before_s < steps[0] <= steps[-1] < time.monotonic()
    assert [kind for kind, _, _ in child.phases_s()] == ["evaluation", "mine", "step", "checkpoint"]
    assert not child.in_phase()
    assert child.outcome() == "ok"
    assert children.stop_all([child]) == []


def test_a_mark_that_cannot_be_written_stops_no_training() -> None:
    marks.attach(writer := marks.MarkWriter("/nowhere"))
    marks.step()
    assert writer not in marks._open  # detached by the first error
    marks.attach(full := marks.MarkWriter("/nowhere"))
    full._file = os.open("/dev/full", os.O_WRONLY)
    marks.step()
    assert full in marks._open  # a disk may have room again
    marks.detach(full)


OPTIMIZERS = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class SGD:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""


def trained(tmp_path: Path, code: str, environment: dict[str, str]) -> JobProcess:
    """A job that has run to its end."""
    child = JobProcess("job", [sys.executable, "-c", code], tmp_path, environment)
    child.start()
    while child.running:
        time.sleep(0.01)
    assert children.stop_all([child]) == []
    assert (child.outcome(), child.tail(20)) == ("ok", "")
    return child


def test_optimizer_steps_are_counted_without_a_change_to_the_training(tmp_path: Path) -> None:
    """Where two optimizers step in turn, those of the first count. The environment's own sitecustomize stays,
    and reported steps take precedence.
    """
    package = tmp_path / "site" / "torch" / "optim"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "optimizer.py").write_text(OPTIMIZERS)
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.own = 'kept'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = (
        "import sys; assert sys.own == 'kept'\nfrom torch.optim.optimizer import SGD\na, b = SGD(), SGD()\n"
    )
    observed = trained(tmp_path, code + "for _ in range(5): a.step(); b.step()", environment)
    assert (observed.count(), observed.source) == (5, "optimizer")
    later = trained(tmp_path, code + "a.step()\nfor _ in range(30): b.step()", environment)
    assert later.count() == 1 + 20  # b counts from its eleventh step on, when a is taken to be done
    reported = trained(
        tmp_path, code + "import workbench\nfor _ in range(3): a.step(); workbench.step()", environment
    )
    assert (reported.count(), reported.source) == (3, "marks")


def test_steps_of_pytorch_are_counted(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    code = (
        "import torch\nw = torch.nn.Parameter(torch.zeros(2))\noptimizer = torch.optim.Adam([w])\n"
        "for _ in range(4):\n    w.sum().backward()\n    optimizer.step()\n"
    )
    child = trained(tmp_path, code, dict(os.environ))
    assert (child.count(), child.source) == (4, "optimizer")


# commands


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("python a.py && rm b", r"takes a shell for '&&'; give \['bash', '-c'"),
        ("no-such-program-here x", "no-such-program-here"),
        ("", "an empty command"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_before_anything_starts(work: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        children.arguments_of(work)


def test_jobs_are_called_by_their_scripts_and_functions(lab: Machine) -> None:
    def train() -> None: ...

    works = ["python -u runs/resnet.py --lr 1", train, lambda: None, "sh x"]
    assert [children.label_of(work, number) for number, work in enumerate(works)] == [
        "resnet",
        "train",
        "job 3",
        "sh",
    ]
    shared = workbench.share("python a.py", "python a.py", until="verdict", say=None, **FAST)
    assert [job.label for job in shared.jobs] == ["a 1", "a 2"]


@pytest.mark.parametrize(
    ("jobs", "options", "message"),
    [
        (["true"], {}, "2 to 4 jobs, got 1"),
        (["true"] * 5, {}, "2 to 4 jobs, got 5"),
        (["true"] * 2, {"max_slowdown": 0.0}, "max_slowdown=0"),
        (["true"] * 2, {"max_slowdown": 20}, "did you mean 0.2?"),
        (["true"] * 2, {"max_slowdown": float("nan")}, "max_slowdown=nan"),
        (["true"] * 2, {"stage_s": 0.0}, "stage_s=0"),
        (["true"] * 2, {"rounds": 0}, "rounds=0"),
        (["true"] * 2, {"rounds": 1.5}, "rounds=1.5 .* float"),
        (["true"] * 2, {"max_slowdown": "x"}, "max_slowdown='x' .* str"),
        (["true"] * 2, {"watch_s": None}, "watch_s=None"),
        (["true"] * 2, {"labels": [1, 2]}, "labels=1 .* int"),
        (["true"] * 2, {"labels": "ab"}, "labels='ab' .* list"),
        (["true"] * 2, {"labels": ["a", "b" * 81]}, "longer than 80 bytes"),
        ([5, "true"], {}, "5 is no job"),
        (5, {}, "5 is no job"),
        (["echo 'a", "true"], {}, "No closing quotation"),
        (["true"] * 2, {"until": "dawn"}, "until='dawn'"),
        (["true"] * 2, {"on_break": "explode"}, "on_break='explode'"),
        (["true"] * 2, {"labels": ["a", "a"]}, "2 labels"),
    ],
)
def test_invalid_options_are_refused_with_valid_ones(
    jobs: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        workbench.share(jobs, **options)


def test_without_a_gpu_it_names_a_simulated_one(
    monkeypatch: pytest.MonkeyPatch, simulated: Callable[..., Machine]
) -> None:
    with pytest.raises(NoDriver, match="A100"):
        workbench.share("true", "true")


def test_python_is_a_kernels_own_and_else_what_a_shell_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert children.arguments_of("python a.py --lr 1") == [sys.executable, "a.py", "--lr", "1"]
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr(children.shutil, "which", lambda name: f"/bin/{name}")
    assert children.arguments_of("python a.py") == ["python", "a.py"]


def test_a_stepped_machine_is_no_place_for_several_processes(stepped: Machine) -> None:
    with pytest.raises(UsageError, match="scale=10") as reported:
        workbench.share("true", "true")
    advised = re.search(r"simulate\('(.*)', scale=10\)", str(reported.value))
    assert advised is not None
    assert catalogue.card(advised[1]).key == "V100"  # what is advised works


@pytest.mark.parametrize(
    ("gpu", "visible", "observed"),
    [
        (0, None, "GPU-1"),
        (1, "GPU-2,GPU-1", "GPU-1"),
        (1, "GPU-2, MIG-5", "MIG-5"),
        ("0", "MIG-GPU-1/2/0", "MIG-GPU-1/2/0"),
        ("MIG-7", "MIG-5", "MIG-7"),
        ("GPU-1", "MIG-5", "GPU-1"),
    ],
)
def test_jobs_see_the_gpu_or_the_part_of_it_that_was_asked_for(
    gpu: int | str, visible: str | None, observed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.environment("GPU-1", str(gpu))["CUDA_VISIBLE_DEVICES"] == observed


def test_a_terminal_that_is_closed_interrupts_as_ctrl_c_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the test itself may run under `nohup`
    try:
        with pytest.raises(KeyboardInterrupt), sharing.interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with sharing.interruptible():
            signal.raise_signal(signal.SIGHUP)  # `nohup` is left in force
    finally:
        signal.signal(signal.SIGHUP, before)


# real processes on a simulated GPU

TRAIN = """
import os, sys, time, workbench
from pathlib import Path
from workbench.simulation.training import TrainingJob
def train(workload, batch_size, done=None, iterations=1000000):
    for batch in TrainingJob(workload, batch_size, iterations=iterations, evaluate=False):
        workbench.step()
        if done and os.path.exists(done):
            break
"""
QUIET = """
import os, sys, time, workbench
from pathlib import Path
def steps(number, each=0.01, done=None):
    for _ in range(number):
        time.sleep(each)
        workbench.step()
        if done and os.path.exists(done):
            break
"""
FAST: dict[str, Any] = {"stage_s": 6.0, "rounds": 1, "grace_s": 3.0, "keep": False, "start_s": 60.0}


def python(code: str, *, base: str = TRAIN) -> list[str]:
    return [sys.executable, "-c", base + code]


@pytest.fixture
def lab(
    simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Machine]:
    """An A100 that runs eight times as fast as time; nothing is left on it, nor of the jobs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where outputs go
    # A moment for which a busy machine keeps the sampler waiting is eight times as long, too.
    monkeypatch.setattr(sensor_updates, "LATE_S", 8 * sensor_updates.LATE_S)
    machine = simulated("A100", scale=8.0)
    yield machine
    assert tenants.present(machine.state, 0) == []
    assert _marked(tmp_path) == []
    mine = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(int(pid)) == os.getpid()]
    guards = [pid for pid in mine if b"workbench._processes" in _command(pid)]
    assert guards == []
    for directory in tmp_path.glob("workbench-share-*"):
        assert {path.suffix for path in directory.iterdir()} == {".log"}


def _marked(directory: Path) -> list[int]:
    """Living processes whose marks go to somewhere below this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"WORKBENCH_MARKS={directory}/".encode() in path.read_bytes() and not _gone(
                int(path.parent.name)
            ):
                found.append(int(path.parent.name))
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_two_trainings_are_measured_alone_and_together(lab: Machine) -> None:
    shown: list[str] = []
    options = {**FAST, "keep": True}
    shared = workbench.share(
        python("train('cifar100', 1024)"),
        python("train('squad', 8)"),
        labels=["cifar", "squad"],
        max_slowdown=0.6,
        until="verdict",
        say=shown.append,
        **options,
    )
    found = shared.comparison
    assert found is not None, shared.verdict
    assert shared.decision != "unknown", shared.verdict
    assert [job.outcome for job in shared.jobs] == ["stopped", "stopped"]
    assert [job.source for job in shared.jobs] == ["marks", "marks"]
    memory = [
        catalogue.WORKLOADS[name].memory_bytes(size) for name, size in (("cifar100", 1024), ("squad", 8))
    ]
    assert [job.memory_bytes for job in shared.jobs] == memory
    assert shared.memory_used_bytes == sum(memory)
    assert sum(found.parts_j) == pytest.approx(found.board_j)
    assert all(
        0.8 < each.value < 2.5 for each in found.slowdown
    )  # the precision is tested on a stepped clock
    assert shared.idle_w == pytest.approx(58.0 * lab.gain(0), rel=0.1)
    assert shared.board is not None
    assert shared.board.energy_j is not None
    assert shared.board.energy_j > found.board_j
    assert shown[-1] == shared.verdict
    assert {members for members, _, _ in shared.spans} == {("cifar",), ("squad",), ("cifar", "squad")}
    assert shared.trace.height > 20
    assert sharing.last is shared
    from workbench.logbook.store import Store

    assert Store().log()["label"].to_list() == ["share: cifar + squad"]


def test_functions_run_in_processes_of_their_own(lab: Machine, tmp_path: Path) -> None:
    places = [tmp_path / "first", tmp_path / "second"]

    def generator() -> Iterator[int]:
        places[0].write_text(str(os.getpid()))
        for number in range(100000):
            time.sleep(0.02)
            yield number

    def plain() -> None:
        places[1].write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        for _ in range(100000):
            time.sleep(0.02)
            workbench.step()

    shared = workbench.share([generator, plain], until="verdict", say=None, **FAST)
    assert [job.label for job in shared.jobs] == ["generator", "plain"]
    assert shared.comparison is not None
    assert int(places[0].read_text()) != os.getpid()
    assert places[1].read_text() == lab.state.card(0, "uuid") == shared.uuid


def until(message: str, path: Path) -> Callable[[str], None]:
    """Makes a file, which ends the jobs that wait for it, once a message with any of these words appears."""

    def say(sentence: str) -> None:
        if any(each in sentence for each in message.split("|")):
            path.touch()

    return say


def test_a_job_that_dies_is_reported_and_the_other_continues(lab: Machine, tmp_path: Path) -> None:
    done, ended = tmp_path / "done", tmp_path / "ended"
    good = python(f"steps(1000000, done={str(done)!r})\nPath({str(ended)!r}).touch()", base=QUIET)
    bad = python("steps(5); raise ValueError('learning rate of nan')", base=QUIET)
    shared = workbench.share(good, bad, labels=["good", "bad"], say=until("no comparison", done), **FAST)
    assert shared.decision == "unknown", shared.verdict
    assert shared.comparison is None
    assert re.match("no comparison.*ValueError", shared.verdict)
    assert shared.verdict.endswith("good goes on")
    assert [job.outcome for job in shared.jobs] == ["ok", "error"]
    assert ended.exists()
    assert "bad" in repr(shared)


def test_a_job_that_does_not_fit_next_to_the_other_is_reported(lab: Machine, tmp_path: Path) -> None:
    big, late = (
        python(f"train('imagenet', 360, done={str(tmp_path / 'done')!r})"),
        python("train('imagenet', 256)"),
    )
    shared = workbench.share(
        big,
        big,
        late,
        labels=["big", "second", "late"],
        say=until("no comparison", tmp_path / "done"),
        **FAST,
    )
    assert "big holds 30.5 GiB" in shared.verdict
    assert "second holds 30.5 GiB" in shared.verdict
    assert [job.outcome for job in shared.jobs] == ["ok", "ok", "out of memory"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes no iteration for 0.7 s of real time hangs."""
    monkeypatch.setattr(stages, "HANG_S", 0.7)


def test_a_job_that_hangs_is_stopped_where_all_would_be(lab: Machine, impatient: None) -> None:
    hangs = python("steps(8); time.sleep(1000)", base=QUIET)
    good = python("steps(1000000)", base=QUIET)
    shared = workbench.share(good, hangs, labels=["good", "stuck"], until="verdict", say=None, **FAST)
    assert "stuck hung" in shared.verdict
    assert any("stuck" in note and "was stopped" in note for note in shared.notes)
    assert [job.outcome for job in shared.jobs] == ["stopped", "hung"]


def test_a_job_that_seems_to_hang_is_followed_to_its_end(lab: Machine, impatient: None, tmp_path: Path) -> None:
    done = tmp_path / "done"
    silent = python(
        f"steps(8)\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)\nsteps(3)", base=QUIET
    )
    good = python(f"steps(1000000, done={str(done)!r})", base=QUIET)
    shared = workbench.share(
        good, silent, labels=["good", "silent"], say=until("no comparison", done), **FAST
    )
    assert shared.verdict.endswith("good goes on")
    assert sum("silent" in note and "was left alone" in note for note in shared.notes) == 1
    assert [job.outcome for job in shared.jobs] == ["ok", "ok"]


@pytest.mark.slow
def test_an_evaluation_is_no_hang_however_long_it_is(lab: Machine, impatient: None) -> None:
    evaluates = (
        "for _ in range(1000):\n    steps(60)\n    with workbench.phase('evaluation'): time.sleep(1.5)"
    )
    jobs = python(evaluates, base=QUIET), python("steps(1000000)", base=QUIET)
    shared = workbench.share(
        *jobs, labels=["evaluates", "other"], until="verdict", say=None, **{**FAST, "stage_s": 16.0}
    )
    assert [job.outcome for job in shared.jobs] == ["stopped", "stopped"]
    assert not any("no iteration" in note for note in shared.notes)


@pytest.mark.slow
def test_a_gpu_that_is_busy_is_not_taken_for_a_hang(lab: Machine, impatient: None) -> None:
    """Nothing reports the evaluation: its callback is called at its end only."""
    quiet_then_busy = (
        "steps(8)\nfor batch in TrainingJob('cifar100', 1024, iterations=1000000, evaluate=False):\n"
        f"    if time.monotonic() > {time.monotonic()!r} + 6: workbench.step()\n"
    )
    job = python(quiet_then_busy, base="from workbench.simulation.training import TrainingJob\n" + QUIET)
    shared = workbench.share(
        job, python("steps(1000000)", base=QUIET), labels=["busy", "other"], until="verdict", say=None, **FAST
    )
    assert [job.outcome for job in shared.jobs] == ["stopped", "stopped"]
    assert not any("no iteration" in note for note in shared.notes)


def test_a_job_that_never_iterates_is_given_up(lab: Machine, tmp_path: Path) -> None:
    options, ended = {**FAST, "start_s": 1.0}, tmp_path / "ended"
    other = python(f"Path({str(ended)!r}).touch()", base=QUIET)
    shared = workbench.share(
        python("time.sleep(1000)", base=QUIET), other, labels=["silent", "other"], say=None, **options
    )
    assert any("silent" in note and "start_s=" in note for note in shared.notes)
    assert [job.outcome for job in shared.jobs] == ["hung", "ok"]
    assert ended.exists()  # what was not begun had its turn afterwards


@pytest.mark.slow
@pytest.mark.parametrize(("on_break", "ends"), [("stop", ["ok", "stopped"]), ("pause", ["ok", "ok"])])
def test_a_newcomer_that_breaks_the_bound_leaves_the_gpu_and_the_other_goes_on(
    lab: Machine, tmp_path: Path, on_break: str, ends: list[str]
) -> None:
    """Two trainings that fill the card: each takes nearly twice as long with the other on it."""
    done = tmp_path / "done"
    first, second = (python(f"train('imagenet', {size}, done={str(done)!r})") for size in (360, 192))
    options = {**FAST, "on_break": on_break, "max_slowdown": 0.05}
    shared = workbench.share(
        first,
        second,
        labels=["first", "second"],
        say=until("second was|bound held|no comparison", done),
        **options,
    )
    assert shared.decision == "do not share", shared.verdict
    assert "beyond" in shared.watched
    assert "an iteration" in shared.watched
    assert [job.outcome for job in shared.jobs] == ends


@pytest.mark.slow
def test_a_bound_that_is_broken_in_the_first_epoch_only_is_noticed_there(
    lab: Machine, tmp_path: Path
) -> None:
    """The newcomer is light until the verdict and heavy afterwards; it is taken off at its next checkpoint.
    """
    shown, done = tmp_path / "said", tmp_path / "done"
    changing = (
        f"train('cifar100', 64, done={str(shown)!r})\n"
        f"while not os.path.exists({str(done)!r}):\n    train('imagenet', 192, iterations=6)\n"
        "    with workbench.phase('checkpoint'): time.sleep(0.02)\n"
    )

    def say(sentence: str) -> None:
        if any(message in sentence for message in ("asked to end", "no comparison", "bound held")):
            done.touch()
        if "no comparison" in sentence:
            shown.touch()  # the test fails, and ends
        elif sentence.startswith("sharing"):
            shown.touch()

    old = python(f"train('imagenet', 192, done={str(done)!r})")
    shared = workbench.share(
        old, python(changing), labels=["old", "new"], max_slowdown=0.45, say=say, **{**FAST, "watch_s": 1000.0}
    )
    assert re.search("first epoch.* 45 %", shared.watched)
    assert "new was asked" in shared.watched
    assert shared.decision == "do not share", shared.verdict
    assert [job.outcome for job in shared.jobs] == ["ok", "stopped"]


def test_an_interrupt_leaves_nothing_running_and_loses_nothing(lab: Machine) -> None:
    def say(sentence: str) -> None:
        if sentence.startswith("b starts"):
            raise KeyboardInterrupt

    endless = python("steps(1000000)", base=QUIET)
    with pytest.raises(KeyboardInterrupt):
        workbench.share(endless, endless, labels=["a", "b"], say=say, **FAST)
    assert sharing.last is not None
    assert [job.outcome for job in sharing.last.jobs] == ["stopped", "stopped"]
    assert sharing.last.board is not None
    assert sharing.last.board.energy_j is not None


ENDLESS = [sys.executable, "-c", QUIET + "steps(1000000)"]
APART = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"
SHAPES = {
    "alone": ENDLESS,
    "under a shell": ["bash", "-c", f"{shlex.join(ENDLESS)}; true"],
    "in a session of its own": [sys.executable, "-c", APART, *ENDLESS],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_all_processes_of_a_job_are_paused_continued_and_killed(shape: str, tmp_path: Path) -> None:
    child = JobProcess("job", SHAPES[shape], tmp_path, dict(os.environ))
    child.start()

    def goes_on() -> bool:
        have, until = child.count(), time.monotonic() + 60
        while child.count() < have + 3 and time.monotonic() < until:
            time.sleep(0.01)
        return child.count() >= have + 3

    try:
        assert goes_on()
        child.pause()
        have = child.count()
        pids = _marked(tmp_path)
        assert len(pids) == (1 if shape == "alone" else 2)
        assert all(child.has(pid) for pid in pids)
        time.sleep(0.1)
        assert child.count() == have
        child.resume()
        assert goes_on()
    finally:
        child.kill()
    assert _left(pids) == []


def test_the_paused_processes_of_a_killed_job_are_ended(tmp_path: Path) -> None:
    """Its leader was killed by somebody else, while it was paused."""
    child = JobProcess("job", SHAPES["under a shell"], tmp_path, dict(os.environ))
    child.start()
    while child.count() < 3:
        time.sleep(0.01)
    child.pause()
    pids = _marked(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    while child.running:
        time.sleep(0.01)
    assert children.stop_all([child]) == []
    assert _left(pids) == []


def test_a_job_that_cannot_be_paused_continues_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = JobProcess("job", ENDLESS, tmp_path, dict(os.environ), writer=lambda: child.pid)
    monkeypatch.setattr(children, "GRACE_S", 0.05)
    child.start()
    try:
        while child.count() < 3:
            time.sleep(0.01)
        with pytest.raises(MeasurementError, match="cannot be paused"):
            child.pause()
        have = child.count()
        until = time.monotonic() + 60
        while child.count() < have + 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert child.count() >= have + 3
    finally:
        child.kill()


def test_a_job_is_asked_to_end_also_where_interrupts_were_ignored(tmp_path: Path) -> None:
    """As they are for what a shell starts in the background."""
    child = JobProcess("job", ENDLESS, tmp_path, dict(os.environ))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, before)
    while child.count() < 3:
        time.sleep(0.01)
    assert children.stop_all([child], grace_s=20.0) == []
    assert "KeyboardInterrupt" in child.tail()


def _left(pids: list[int]) -> list[int]:
    """Of these processes those that are there after a minute."""
    deadline = time.monotonic() + 60
    while (left := [pid for pid in pids if not _gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_paused_jobs_die_with_the_process_that_paused_them(lab: Machine, tmp_path: Path, shape: str) -> None:
    """Killed outright, nothing can be tidied up: a stopped job would hold its memory for ever."""
    code = (
        f"import workbench\nworkbench.share(*[{SHAPES[shape]!r}] * 2, labels=['a', 'b'], stage_s=1.0, "
        "rounds=100, say=None)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    deadline, pids = time.monotonic() + 120, []
    many = 2 if shape == "alone" else 4  # the first job is paused when the second one runs
    while time.monotonic() < deadline and len(pids) < many and parent.poll() is None:
        time.sleep(0.02)
        pids = _marked(tmp_path)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len(pids) == many
    assert _left(pids) == []
    for path in tmp_path.glob("workbench-share-*/*"):  # which nobody could tidy up
        path.unlink() if path.suffix == ".function" else shutil.rmtree(
            path
        ) if path.is_dir() else None


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def test_the_command_line_prints_and_writes_the_verdict(
    lab: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from workbench.cli import main

    path, script = tmp_path / "shared.json", tmp_path / "train.py"
    script.write_text(QUIET + "steps(1000000)")
    job = f"{sys.executable} {script}"
    assert (
        main(
            ["share", job, job, "--until", "verdict", "--stage-s", "8", "--rounds", "1", "--json", str(path)]
        )
        == 0
    )
    out, reported = capsys.readouterr(), json.loads(path.read_text())
    assert reported["verdict"] in out.out
    assert "workbench: train 1 starts" in out.err
    assert [row["label"] for row in reported["jobs"]] == ["train 1", "train 2"]
    assert reported["total_j"] > reported["board_j"] == pytest.approx(sum(row["part_j"] for row in reported["jobs"]))
    assert main(["share", job]) == 2
    assert "2 to 4 jobs, got 1" in capsys.readouterr().err


def test_a_picture_shows_the_power_and_who_ran_when() -> None:
    trace = waves(30.0, (0.5, 60.0))
    spans = ((("A",), 2.0, 10.0), (("B & co",), 11.0, 19.0), (("A", "B & co"), 20.0, 29.0))
    drawn = picture(trace, spans, ["A", "B & co"], 40.0)
    assert drawn.count("<rect") == 3
    assert "B &amp; co" in drawn
    assert "together" in drawn
    assert f'fill="{COLOURS[1]}"' in drawn
    assert "stroke-dasharray" in drawn
    from xml.etree import ElementTree

    points = (
        next(each for each in ElementTree.fromstring(drawn) if each.tag.endswith("polyline"))
        .attrib["points"]
        .split()
    )
    assert 500 < len(points) <= 620
    assert picture(trace.head(5), spans, ["A"], 40.0) == ""


def test_others_on_the_gpu_are_noticed(lab: Machine) -> None:
    hold = "with TrainingJob('squad', 8).claimed():\n    print(1, flush=True)\n    sys.stdin.read()"
    stranger = subprocess.Popen(
        [sys.executable, "-c", TRAIN + hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert stranger.stdin is not None
    assert stranger.stdout is not None
    stranger.stdout.readline()
    try:
        endless = python("steps(1000000)", base=QUIET)
        shared = workbench.share(endless, endless, labels=["a", "b"], until="verdict", say=None, **FAST)
    finally:
        stranger.stdin.close()
        stranger.wait(10)
        stranger.stdout.close()
    assert any(f"({stranger.pid})" in note and "other processes" in note for note in shared.notes)


def test_a_job_that_ignores_being_asked_is_made_to_end(tmp_path: Path) -> None:
    deaf = (
        "import signal, time\nfor each in (signal.SIGINT, signal.SIGTERM): signal.signal(each, "
        "signal.SIG_IGN)\n"
        "print('on', flush=True)\ntime.sleep(1000)"
    )
    child = JobProcess("deaf", [sys.executable, "-c", deaf], tmp_path, dict(os.environ))
    child.start()
    until = time.monotonic() + 60
    while not child.tail() and time.monotonic() < until:
        time.sleep(0.01)
    child.pause()
    (note,) = children.stop_all([child], grace_s=0.2)
    assert re.match("deaf .*killed", note)
    assert not child.running


def test_a_refused_command_leaves_no_directory(lab: Machine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no program"):
        workbench.share("true", "no-such-program-here")
    assert list(tmp_path.glob("workbench-share-*")) == []
