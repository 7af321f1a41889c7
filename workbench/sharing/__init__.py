"""Two to four trainings on one GPU: the saving, the slowdown of each, and a verdict.

    workbench.share("python a.py", "python b.py")                       commands, or functions, which run in
                                                                        processes of their own
    workbench.share([train_a, train_b], gpus=0, max_slowdown=0.2, until="verdict")

What happens, and how sure it is: docs/explanation/sharing.md.

    comparing           ratios of sums over blocks, with their errors; the attribution rule (pure functions)
    watching            from a recorder and marks to blocks
    period_separation   iterations of jobs without marks
    children, launch    the jobs; how each begins
    automatic           marks from PyTorch without a change to the training
    stages, run         the jobs and their schedule; the verdict, the first epoch, and the rest
    result, picture     the table and the verdict; the power over time
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._processes import ProcessReaper
from ..device import driver, mps
from ..device.discovery import Gpu, Gpus, named
from ..errors import (
    MeasurementError,
    NoDriver,
    StoreError,
    UsageError,
    WorkbenchError,
    checked,
    shown,
)
from ..measurement import marks
from ..measurement.meter import Meter
from .children import GRACE_S, LONGEST_LABEL, JobProcess, Work, label_of, mark_of
from .comparing import ConfidenceInterval, SharingEffect
from .result import SharedJob, SharingResult
from .run import SharingRun, interruptible
from .stages import Say, SharingPlan

FEWEST, MOST = 2, 4
last: SharingResult | None = None  # what is known of the latest comparison, also of one that was interrupted


@checked
def share(
    *jobs: Work | Sequence[Work], gpus: Gpus = 0, max_slowdown: float = 0.2, stage_s: float = 10.0,
    rounds: int = 2, until: str = "end", watch: bool = True, watch_s: float = 60.0,
    on_break: str = "stop", labels: Sequence[str] | None = None, start_s: float = 300.0,
    grace_s: float = GRACE_S, keep: bool = True, say: Say | None = print,
) -> SharingResult:
    """Measure two to four jobs on one GPU, each alone and all together, with a verdict on sharing.

    All of them run to their end.

    Args:
        jobs: Commands ("python a.py" or ["python", "a.py"]) or functions without arguments; the last one is
            the newcomer. One list of them will do too.
        gpus: One GPU, as `open_device` takes it. The jobs see it only.
        max_slowdown: How much longer an iteration of each may take than alone: 0.2 is 20 %.
        stage_s: How long each stage is measured, at least; longer where iterations are. There are `rounds`
            times one stage for each job alone and one for all together.
        until: "end" sees the jobs to their end, "verdict" stops them when it is known whether they should
            share.
        watch: Watch the first epoch together, and take the newcomer off if it breaks the bound.
        watch_s: How long is watched at most, whether a job reports of its epochs (workbench.phase("epoch") or
            ("evaluation")) or not.
        on_break: What happens to the newcomer then: "stop" (SIGINT at a safe point, as Ctrl-C), or "pause"
            until the others have ended.
        labels: Names of the jobs, up to 80 bytes each.
        start_s: How long a job may take, in real seconds, until it iterates.
        grace_s: How long a job that is asked to end may take, in real seconds, before it is made to.
        keep: Store the measurement of the whole.
        say: Called with a message at each event; None for no messages.

    Returns:
        The jobs, alone and together, with errors of 95 %, and a verdict. Jobs that die, hang or run out of
            memory are reported of in it.

    Raises:
        UsageError: not two to four jobs, a command that cannot be run, a bound or time that makes no sense.
        NoDriver, UnknownGpu: no such GPU.
        MeasurementError: its energy cannot be followed.
    """
    works = _works(jobs)
    names = _labels(works, labels)
    if not 0.0 < max_slowdown < MOST:  # jobs that take turns slow each other by less
        hint = f"; did you mean {max_slowdown / 100:g}?" if MOST <= max_slowdown <= 100 else ""
        raise UsageError(
            f"max_slowdown={max_slowdown:g}: give how much longer an iteration may take, above 0; 0.2 allows "
            f"20 % more{hint}"
        )
    if until not in ("end", "verdict"):
        raise UsageError(
            f"until={until!r}: 'end' sees the jobs to their end, 'verdict' stops them when it is known"
        )
    plan = SharingPlan(
        1.0 + max_slowdown, stage_s, rounds, start_s, watch, watch_s, until == "end", on_break, grace_s,
    )
    gpu = _one(gpus)
    session, meter = _meter(gpu)
    try:
        device = session.devices[0]
        directory = Path(tempfile.mkdtemp(prefix="workbench-share-"))
        with contextlib.ExitStack() as stack:
            stack.callback(_tidy, directory)
            asked = str(getattr(gpu, "uuid", gpu))
            environment = {**os.environ, **driver.current().environment(device.uuid, asked)}
            others = {name: value for name, value in os.environ.items() if name != marks.ENVIRONMENT_VARIABLE}
            clients = not device.simulated and mps.running(environment)
            grace = mps.GRACE_S if clients else 0.0
            guardian = ProcessReaper(mark_of(f"{directory}/"), others, grace)  # itself nobody's job
            stack.callback(guardian.close)
            writer = getattr(device.clock, "writer", None)  # of a simulated machine
            children = [
                JobProcess(name, work, directory, environment, guardian=guardian, writer=writer,
                           client=clients)
                for name, work in zip(names, works, strict=True)
            ]
            mode = mps.describe(clients, device.simulated)
            run = SharingRun(device, meter, children, plan, mode, say or (lambda _: None))
            run.jobs.notes += [device.note] if device.note else []
            return _carry_out(run, keep)
    finally:
        session.close()


def _tidy(directory: Path) -> None:
    """Leave nothing but what the jobs have written."""
    for path in directory.glob("*.function"):
        path.unlink(missing_ok=True)
    for path in (*directory.glob(f"*{marks.SUFFIX}"), directory / "python"):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):  # there are logs
        directory.rmdir()


def _carry_out(run: SharingRun, keep: bool) -> SharingResult:
    global last
    try:
        with interruptible():
            last = run.go()
    except BaseException:
        with contextlib.suppress(WorkbenchError):
            last = run.result()
        raise
    if keep and last.board is not None:
        from ..logbook.store import Store
        from ..measurement import session

        with contextlib.suppress(StoreError):
            session.keep(last.board, run.window, run.meter, Store(), kind="shared GPU")
    return last


def _works(jobs: Sequence[Any]) -> list[Work]:
    found = list(jobs)
    if len(found) == 1 and not isinstance(found[0], str) and not callable(found[0]):
        try:
            found = list(found[0])
        except TypeError as error:
            raise _no_job(found[0]) from error
    if not FEWEST <= len(found) <= MOST:
        raise UsageError(
            f"share() needs {FEWEST} to {MOST} jobs, got {len(found)}; for example "
            "share('python a.py', 'python b.py')"
        )
    for each in found:
        if not (
            isinstance(each, str) or callable(each)
            or (isinstance(each, Sequence) and not isinstance(each, bytes | bytearray))
        ):
            raise _no_job(each)
    return found


def _no_job(what: object) -> UsageError:
    return UsageError(
        f"{shown(what)} is no job; give a command ('python a.py' or ['python', 'a.py']) or a function "
        "without arguments"
    )


def _labels(works: Sequence[Work], labels: Sequence[str] | None) -> list[str]:
    named = list(labels or [label_of(work, number) for number, work in enumerate(works)])
    if len(named) != len(works) or (labels and len(set(named)) < len(named)):
        raise UsageError(f"{len(named)} labels for {len(works)} jobs; give each a name of its own")
    if max(len(label.encode(errors="replace")) for label in named) > LONGEST_LABEL:
        raise UsageError(f"the label {max(named, key=len)[:30]!r}... is longer than {LONGEST_LABEL} bytes")
    safe = [
        "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in name) or "job"
        for name in named
    ]
    return [name if safe.count(name) == 1 else f"{name} {number + 1}" for number, name in enumerate(safe)]


def _one(gpus: Gpus) -> Gpu:
    """The one GPU that jobs share."""
    found = named(0 if gpus is None else gpus)
    if len(found) != 1:
        raise UsageError(f"gpus={gpus!r}: jobs share one GPU; name one")
    return found[0]


def _meter(gpu: Gpu) -> tuple[Any, Meter]:
    from ..measurement.session import Session

    session = Session([gpu], sync=False)
    try:
        meter = session.meter
        if not meter.devices:
            raise NoDriver(session.why_no_gpu() or "there is no GPU here")
        if meter.recorder is None or not meter.devices[0].can("power"):
            raise MeasurementError(
                "; ".join(session.messages) or f"{meter.devices[0].name} does not report its power"
            )
        if getattr(meter.clock, "stepped", False):
            raise UsageError(
                "jobs of several processes need a clock that runs by itself; this simulated machine's is "
                f"stepped. workbench.simulate({meter.devices[0].name!r}, scale=10) makes a fast one"
            )
    except BaseException:
        session.close()
        raise
    return session, meter


__all__ = ["ConfidenceInterval", "SharedJob", "SharingEffect", "SharingResult", "share"]
