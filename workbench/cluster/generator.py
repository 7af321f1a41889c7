"""Generates missing values of a log by a documented rule and random seed, and whole logs of any size."""

from __future__ import annotations

import numpy as np
import polars as pl

from ..errors import UsageError, checked
from .jobs import SCHEMA
from .power import V100_NODE

# Mean utilisation alone, EaCO, table 1 (arXiv 2412.08294), and share of a GPU's memory: the paper's peaks of
# memory traffic taken as proportions, scaled so that the four together take 90 %
# (docs/explanation/cluster.md).
MODELS: dict[str, tuple[float, float]] = {
    "AlexNet": (0.0472, 0.0332), "ResNet-18": (0.1117, 0.1155), "ResNet-50": (0.3661, 0.3466),
    "VGG-16": (0.4801, 0.4048),
}

SIGMA = 0.3  # of log-normal memory and sensitivity
MOST_JOBS = 1_000_000  # generated immediately


def draw(
    jobs: pl.DataFrame, seed: int, *, memory_bytes: int = V100_NODE.memory_bytes,
    slack: tuple[float, float] = (1.05, 1.5),
) -> pl.DataFrame:
    """Generate models, memory, deadlines and sensitivities for jobs whose log has none.

    Each job trains one of `MODELS`, all equally likely, which gives its utilisation and the median of its
    peak memory. Memory is log-normal around it with `SIGMA` (batch sizes differ), at most the whole GPU. The
    deadline is the submission plus the duration times a slack drawn evenly from `slack`. The sensitivity is
    log-normal with median 1 and `SIGMA`. Columns of the log are kept.

    Args:
        jobs: With `submit_s` and `duration_s`.
        seed: The same seed gives the same values for the same number of jobs.
        memory_bytes: Memory of the GPU that the shares refer to.
    """
    if not 1 <= slack[0] <= slack[1]:
        raise UsageError(
            f"slack {slack[0]:g}..{slack[1]:g} must rise from at least 1: a job cannot end before its "
            "duration has passed"
        )
    rng = np.random.default_rng(seed)
    names, table = list(MODELS), np.array(list(MODELS.values()))
    which = rng.integers(len(names), size=jobs.height)
    median_bytes = table[which, 1] * memory_bytes
    memory = np.minimum(median_bytes * rng.lognormal(0.0, SIGMA, size=jobs.height), memory_bytes)
    allowed_s = jobs["duration_s"] * pl.Series(rng.uniform(*slack, size=jobs.height))
    drawn = pl.DataFrame({
        "model": [names[i] for i in which],
        "utilisation": table[which, 0],
        "memory_bytes": memory.round().astype(np.int64),
        "deadline_s": jobs["submit_s"] + allowed_s,
        "sensitivity": rng.lognormal(0.0, SIGMA, size=jobs.height),
    }, schema_overrides={"memory_bytes": pl.Int64})
    absent = [pl.lit(None, SCHEMA[name]).alias(name) for name in drawn.columns if name not in jobs.columns]
    # One model's utilisation with another's memory would be a job without any measurement.
    together = ("model", "utilisation", "memory_bytes")
    whole = pl.all_horizontal(pl.col(together).is_not_null())
    return jobs.with_columns(absent).with_columns(
        pl.when(whole if name in together else True).then(pl.col(name).cast(SCHEMA[name]))
        .fill_null(drawn[name]) for name in drawn.columns
    )


@checked
def generate(
    count: int, *, gpus: int, seed: int, load: float = 0.7, mean_s: float = 10_000.0
) -> pl.DataFrame:
    """A log of `count` jobs that offers `load` of `gpus` GPUs: Poisson arrivals, log-normal durations,
    Philly's mixture of GPU counts.

    Durations have median `mean_s` / 5 and the tail that this mean asks for (Philly: median 1,144 s, mean
    13,136 s), cut at 60 s and 3 days. GPU counts: 94.8 % one, 0.6 % two, 2.4 % four, 2.2 % eight, as in
    Philly's jobs of at most eight.

    Args:
        count: Number of jobs.
        gpus: Number of GPUs in the cluster.
        seed: Random seed of arrivals, durations and GPU counts.
        load: Offered GPU seconds per available GPU second.
        mean_s: Mean duration of a job (s).
    """
    if not 1 <= count <= MOST_JOBS or gpus < 8 or not load > 0 or not mean_s > 60:
        raise UsageError(
            f"count {count}, gpus {gpus}, load {load:g}, mean_s {mean_s:g}: a log needs 1 to {MOST_JOBS:,} "
            "jobs, 8 GPUs, a load above 0 and a mean above 60 s"
        )
    rng = np.random.default_rng(seed)
    drawn_s = rng.lognormal(np.log(mean_s / 5), np.sqrt(2 * np.log(5)), size=count)
    duration_s = np.clip(drawn_s, 60.0, 3 * 86400.0).round(3)
    num_gpus = rng.choice([1, 2, 4, 8], p=[0.948, 0.006, 0.024, 0.022], size=count)
    span_s = float((duration_s * num_gpus).sum()) / (gpus * load)
    submit_s = np.sort(rng.uniform(0, span_s, size=count)).round(3)
    jobs = pl.DataFrame({
        "job_id": [str(i) for i in range(count)], "submit_s": submit_s, "duration_s": duration_s,
        "num_gpus": num_gpus.astype(np.int64),
    })
    return draw(jobs, seed + 1)
