"""Two Dask workers with two simulated GPUs: many trials, one worker killed midway, every trial recorded
once, both GPUs restored.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import polars as pl

from workbench.device.discovery import devices
from workbench.experiments.executors import DaskExecutor, dask_client
from workbench.experiments.sweep import Sweep
from workbench.experiments.workloads import example_training
from workbench.measurement import session

SCALE = 100.0  # of the simulated clock


def train(batch_size: int | None) -> float:
    """Five iterations of a training."""
    return float(
        sum((batch_size or 64) for _ in example_training("imagenet", iterations=5, batch_size=batch_size))
    )


def trials(count: int = 200) -> dict[str, Any]:
    """Run them and return the records."""
    mine = session.simulate("V100,V100", scale=SCALE)
    before = [device.setting().power_limit_w for device in mine.devices]
    limits = [100.0 + 150.0 * i / (count // 2 - 1) for i in range(count // 2)]
    space = {"batch_size": [32, 64], "power_limit_w": [round(each, 1) for each in limits]}
    client = dask_client([device.uuid for device in mine.devices])
    began, killed = time.perf_counter(), 0
    try:
        running = Sweep(train, space, order="grid", executor=DaskExecutor(client))
        for number, row in enumerate(running):
            if number == count // 2 and not killed:
                killed = int(row["worker"])
                os.kill(killed, signal.SIGKILL)
        seconds = time.perf_counter() - began
    finally:
        cluster = client.cluster
        client.close()
        cluster.close()
    time.sleep(1.0)
    frame = running.trials
    rows = frame.sort("uuid", "began_unix_s").with_columns(before=pl.col("ended_unix_s").shift().over("uuid"))
    result = {
        "trials": len(frame), "ok": frame.filter(pl.col("outcome") == "ok").height,
        "distinct": frame.select("batch_size", "power_limit_w").n_unique(), "killed_worker": killed,
        "two_on_one_gpu": rows.filter(pl.col("began_unix_s") < pl.col("before")).height,
        "restored": [device.setting().power_limit_w for device in devices()] == before, "seconds": seconds,
    }
    mine.close()
    print(
        f"\n{result['ok']} of {result['trials']} trials on two Dask workers in {seconds:.0f} s; worker "
        f"{killed} was killed midway; "
        f"{result['distinct']} distinct, {result['two_on_one_gpu']} overlaps, restored: {result['restored']}"
    )
    return result
