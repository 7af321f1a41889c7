"""`workbench profile-gpu`: learns how a GPU answers its clocks and limits, for better first guesses.

Workloads of graded intensity are measured at the default and at a handful of other settings (`collector`). A
finished workload is in a file, so that an interrupted profile continues. Then a model for each set of
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


def train(rows: pl.DataFrame, gpu: str, notes: list[str]) -> list[tuple[Path, ClockModel]]:
    """Models of a GPU from its profile, one for each set of features, kept where tuning looks for them.

    Args:
        rows: As in the file of a profile.
        gpu: The card's name.
        notes: A note is added for each set that too few workloads report.

    Raises:
        UsageError: too few workloads for any, or none that was measured at the reference.
    """
    import polars as pl

    from ...search.surrogates.predictor import FEATURE_SETS, ClockModel
    from .. import models

    made = []
    measured = rows.filter(pl.col("iteration_s").is_not_null())
    for name, memory in FEATURE_SETS.items():
        known = measured
        if name != "nvml":  # which all workloads report
            known = measured.filter(pl.col(memory).is_not_null().any().over("workload"))
            if known.is_empty():
                continue
        try:
            model = ClockModel.train(known, gpu=gpu, feature_set=name)
        except UsageError as error:
            if known is measured:
                raise
            notes.append(f"no model from {name}: {error}")
        else:
            made.append((model.save(models.model_path(gpu, name)), model))
    return made


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
    with contextlib.closing(session.Session(arguments.gpus, sync=False)) as mine:
        return _profile(mine, arguments)


def _profile(mine: Session, arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

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
    settings = collecting.settings_to_try(device)
    if not settings:
        why = device.why_not("set_power_limit")
        raise UsageError(f"{device.name} has nothing to set: {why}; try another GPU")
    path = models.models_directory() / f"{models.slug(device.name)}.profile.csv"
    if arguments.output:
        path = named_file(arguments.output)
    loads = workloads.workloads(device)
    collector = collecting.Collector(mine.meter, loads, settings, path, arguments.seconds)
    total, left = (len(each) * collector.steps for each in (loads, collector.left))
    minutes = max(1, round(left * (2.0 * collecting.SETTLE_S + arguments.seconds) / 60))
    about = f", which takes about {minutes} minutes" if left and not device.simulated else ""
    print(
        f"{device.name}: {len(loads)} workloads at the default and {len(settings)} other settings; {left} of "
        f"{total} measurements are to be made{about}",
        flush=True,
    )
    found: dict[str, Any] = {
        "gpu": device.name, "simulated": device.simulated, "file": str(path), "measurements": total,
        "left": left, "workloads": [load.name for load in loads], "models": [], "notes": collector.notes,
    }
    if arguments.list:
        for load in loads:
            print(f"    {load.name} ({load.group})")
        return 0, found
    on_screen = sys.stderr.isatty()
    bar = tqdm(
        total=total, initial=total - left, unit="measurement", mininterval=0.2 if on_screen else 30.0,
        dynamic_ncols=on_screen, disable=not left,
    )
    try:
        with bar, contextlib.closing(collector.run()) as running:
            for text in running:
                bar.set_description_str(text, refresh=False)
                bar.update()
    except KeyboardInterrupt:
        print(
            f"\nstopped: {len(loads) - len(collector.left)} of {len(loads)} workloads are in {path} and the "
            "GPU is as it was; the same command goes on from there",
            file=sys.stderr,
        )
        return 130, {**found, "left": len(collector.left) * collector.steps}
    try:
        made = train(collector.rows, device.name, collector.notes)
    finally:
        for note in collector.notes:
            print(f"    {note}")
    for file, model in made:
        time, power = model.error
        print(
            f"{model.feature_set}: learnt from {model.workloads} workloads; held-out error {time:.1%} of "
            f"time, {power:.1%} of power; kept as {file}"
        )
        found["models"].append(
            {"features": model.feature_set, "file": str(file), "time_error": time, "power_error": power}
        )
    return 0, {**found, "left": 0}
