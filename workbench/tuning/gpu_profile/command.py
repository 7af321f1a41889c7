"""`workbench profile-gpu`: learns how a GPU answers its clocks and limits, for better first guesses.

Workloads of graded intensity are measured at the default and at a handful of other settings (`collector`),
row by row into a file (`rows`), so that an interrupted profile continues. Then a model for each set of
features is trained and kept (`search.surrogates.predictor`, `tuning.models`). The GPU is restored, whatever
happens.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MeasurementError, UsageError, named_file

if TYPE_CHECKING:
    import polars as pl

    from ...measurement.session import Session
    from ...search.surrogates.predictor import ClockModel
    from .collector import Collector


def train(frame: pl.DataFrame, gpu: str, notes: list[str] | None = None) -> list[tuple[Path, ClockModel]]:
    """Models of a GPU from its profile, one for each set of features, kept where tuning looks for them.

    Args:
        notes: Called with each set that too few workloads know.

    Raises:
        UsageError: too few workloads for any, or none that was measured at the reference.
    """
    import polars as pl

    from ...search.surrogates.predictor import ClockModel
    from .. import models
    from ..features import FEATURE_SETS

    sets = set(frame["feature_set"].drop_nulls().to_list())
    made = []
    for name in FEATURE_SETS:
        if name not in sets and name != "nvml":
            continue
        of_set = frame if name == "nvml" else frame.filter(pl.col("feature_set") == name)
        try:
            model = ClockModel.train(of_set, gpu=gpu, feature_set=name)
        except UsageError as error:
            if name == "nvml":  # which all workloads tell
                raise
            if notes is not None:
                notes.append(f"no model from {name}: {error}")
            continue
        made.append((model.save(models.model_path(gpu, name)), model))
    return made


# the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `profile-gpu`."""
    parser.add_argument(
        "--gpus", "--gpu", default="0", metavar="GPU",
        help="which one (index, UUID, PCI id; default: %(default)s)",
    )
    parser.add_argument("--simulate", metavar="CARD", help="profile a simulated GPU, by name: A100")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="least length of one measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="where the measurements are kept (default: next to the models)",
    )
    parser.add_argument(
        "--list", action="store_true",
        help="list the measurements and their duration, without measuring",
    )


def run(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """`workbench profile-gpu`; returns the exit status and what was found, as JSON can hold it."""
    from ...measurement import session

    if arguments.simulate:
        session.simulate(arguments.simulate, stepped=True)
    mine = session.Session(arguments.gpus, sync=False)
    try:
        return _profile(mine, arguments)
    finally:
        mine.close()


def _profile(mine: Session, arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    from .. import models
    from . import collector as collecting
    from . import workloads

    if len(mine.devices) != 1:
        raise UsageError(f"--gpus {arguments.gpus}: one GPU is profiled at a time; name one")
    (device,) = mine.devices
    for message in mine.messages:
        print(f"workbench: {message}", file=sys.stderr)
    if mine.recorder is None:
        raise MeasurementError(f"{device.name} cannot be sampled, so nothing can be learnt about it")
    tried = collecting.settings_to_try(
        device.limits, lock_sm=device.can("lock_sm_clock"),
        lock_memory=device.can("lock_mem_clock"), set_limit=device.can("set_power_limit"),
    )
    if not tried:
        why = device.why_not("set_power_limit")
        raise UsageError(f"{device.name} has nothing to set: {why}; try another GPU")
    plan = collecting.ProfilePlan(tuple(workloads.workloads(device)), tuple(tried), arguments.seconds)
    path = models.models_directory() / f"{models.slug(device.name)}.profile.csv"
    if arguments.output:
        path = named_file(arguments.output)
    collector = collecting.Collector(mine.meter, plan, path)
    left = collector.total - collector.done
    minutes = max(1, round(left * (2.0 * collecting.SETTLE_S + arguments.seconds) / 60))
    about = f", which takes about {minutes} minutes" if left and not device.simulated else ""
    print(
        f"{device.name}: {len(plan.workloads)} workloads at the default and {len(plan.settings)} other "
        f"settings; {left} of {collector.total} measurements are to be made{about}",
        flush=True,
    )
    found: dict[str, Any] = {
        "gpu": device.name, "simulated": device.simulated, "file": str(path), "measurements": collector.total,
        "left": left, "workloads": [workload.name for workload in plan.workloads], "models": [], "notes": [],
    }
    if arguments.list:
        for workload in plan.workloads:
            print(f"    {workload.name} ({workload.group})")
        return 0, found
    try:
        if left:
            show(collector)
    except KeyboardInterrupt:
        print(
            f"\nstopped: {collector.done} of {collector.total} measurements are in {path} and the GPU is as "
            "it was; the same command goes on from there",
            file=sys.stderr,
        )
        return 130, {**found, "left": collector.total - collector.done}
    made = train(collector.rows.frame(), device.name, collector.notes)
    for note in collector.notes:
        print(f"    {note}")
    for file, model in made:
        time_error, power_error = model.error
        print(
            f"{model.feature_set}: learnt from {model.workloads} workloads and {len(model.features)} "
            f"features; held-out error {time_error:.1%} of time, {power_error:.1%} of power; kept as {file}"
        )
    sets = [
        {"features": model.feature_set, "file": str(file), "time_error": model.error[0],
         "power_error": model.error[1]} for file, model in made
    ]
    return 0, {**found, "left": 0, "models": sets, "notes": list(collector.notes)}


def show(collector: Collector) -> None:
    """Run a collector to its end behind a progress bar with the time that is left."""
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    on_screen = sys.stderr.isatty()
    bar = tqdm(
        total=collector.total, initial=collector.done, unit="measurement",
        mininterval=0.2 if on_screen else 30.0, dynamic_ncols=on_screen,
    )
    with bar, contextlib.closing(collector.run()) as running:
        for text in running:
            bar.set_description_str(text, refresh=False)
            bar.update(collector.done - bar.n)
        bar.update(collector.done - bar.n)
