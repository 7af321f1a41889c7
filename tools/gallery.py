"""Record what each panel of the gallery shows, on simulated GPUs.

    python -m tools.gallery [NAME ...]        writes docs/gallery/data/NAME.json

A recording is what the kernel says to a view that greets it. The site draws it with the panel's own scripts
and the installed BokehJS (docs/gallery_pages.py), so it moves, zooms and answers without a kernel.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "docs" / "gallery" / "data"


def power() -> Any:
    import workbench
    from workbench.panels import PowerView
    from workbench.simulation.training import TrainingJob

    session = workbench.simulate("V100", stepped=True)
    recorder = session.meter.recorder
    _rest(2.0)
    view = PowerView(
        recorder, list(session.devices), label="train", set_power_limit=lambda uuid, watts: watts
    )
    gpu = session.devices[0]
    view._publish()
    for number, _ in enumerate(TrainingJob("librispeech", 24, iterations=56)):
        if number == 30:
            gpu.write(workbench.Setting(power_limit_w=200))
            view.mark(recorder.clock() - view.start_s, "200 W")
        if number % 4 == 0:
            view._publish()
    view.refresh()
    return view


def period() -> Any:
    import workbench
    from workbench.simulation.training import TrainingJob

    workbench.simulate("V100", stepped=True)
    _rest(2.0)
    with workbench.measure("train") as result:
        for _ in TrainingJob("imagenet", iterations=42, checkpoint_every=14, checkpoint_s=2.5):
            workbench.step()
    return workbench.panels.period(result.measurement)


def apply() -> Any:
    import workbench

    workbench.simulate("V100", stepped=True)
    return workbench.panels.apply(workbench.Setting(power_limit_w=175))


def frontier() -> Any:
    import workbench
    from workbench.experiments.executors import HereExecutor

    workbench.simulate("V100", stepped=True)

    def train(batch_size: int) -> int:
        batches = workbench.example_training("imagenet", iterations=12, batch_size=batch_size)
        return sum(batch_size for _ in batches)

    space = {"batch_size": [64, 128, 256], "power_limit_w": range(100, 251, 25)}
    found = workbench.sweep(train, space, n_trials=12, executor=HereExecutor(), progress=False)
    return workbench.panels.frontier(
        found, unit="sample", per_epoch=1_281_167, epochs=90, name="imagenet", max_slowdown=0.1
    )


def recurring() -> Any:
    import workbench
    from notebooks.learning import Accuracy, shorter
    from workbench.simulation.training import TrainingJob

    workbench.simulate("V100", stepped=True)
    workload = shorter("cifar100", 6_400)
    sizes = [64, 128, 256, 512, 1024]
    job = workbench.RecurringJob("nightly", sizes, 1024, target=0.6, max_epochs=60, seed=1)
    for _ in range(12):
        for run in job.attempts():
            with run:
                accuracy = Accuracy(run.batch_size, seed=run.attempt.number)
                while not run.should_stop():
                    for _ in TrainingJob(workload, run.batch_size, seed=run.attempt.number):
                        workbench.step()
                        if run.should_stop():
                            break
                    run.report(accuracy.after_epoch())
    return workbench.panels.recurring(job)


def clocks() -> Any:
    import workbench
    from workbench.simulation.training import TrainingJob

    workbench.simulate("RTX3080TI", stepped=True)
    _rest(2.0)
    with workbench.tune(max_slowdown=0.05, over="clocks", label="train") as tuning:
        for _ in TrainingJob("librispeech", 64, iterations=200):
            workbench.step()
    return workbench.panels.clocks(tuning)


def cluster() -> Any:
    import workbench
    from workbench.cluster import generate

    panel = workbench.panels.cluster(generate(1500, gpus=64, seed=0), nodes=8)
    panel.run()
    return panel


def log() -> Any:
    import workbench
    from workbench.simulation.training import TrainingJob

    workbench.simulate("V100", stepped=True)
    _rest(2.0)
    runs = ("baseline", 250), ("baseline", 250), ("limited", 200), ("limited", 200), ("low", 150)
    for label, watts in runs:
        with workbench.gpu_settings(power_limit_w=watts, gpus=0), workbench.measure(label):
            for _ in TrainingJob("imagenet", iterations=12):
                workbench.step()
    return workbench.panels.log()


def _rest(seconds: float) -> None:
    from workbench.simulation.machine import attached

    machine = attached()
    if machine is not None:
        machine.step(seconds)


PANELS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (power, period, frontier, clocks, recurring, apply, cluster, log)
}


def recorded(panel: Any) -> dict[str, Any]:
    """What the kernel says to a view that greets it, as JSON."""
    with panel._lock:
        content, buffers = panel.snapshot()
    panel.end()
    return {
        "panel": type(panel).__name__,
        "content": {**content, "kind": "greeting", "state": "done", "problem": ""},
        "buffers": [base64.b64encode(bytes(each)).decode("ascii") for each in buffers],
        "words": panel.summary(),
    }


def main(names: list[str]) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    for name, make in PANELS.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as home:
            os.environ["WORKBENCH_HOME"] = home
            text = json.dumps(recorded(make()), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        path = DATA / f"{name}.json"
        path.write_text(text.replace(home, "~") + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
