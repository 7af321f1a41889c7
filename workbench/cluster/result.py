"""The result of a run, as frames."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import polars as pl

from .._html import facts
from ..tariff import J_PER_KWH
from .power import Cluster
from .state import NEVER_S, Node

OUTCOME: list[tuple[str, type]] = [(name, float) for name in ("start_s", "end_s", "run_s", "own_energy_j")]
OUTCOME += [("undos", np.int32), ("moves", np.int32)]
TIMELINE = ("time_s", "power_w", "energy_j", "hosting", "awake", "running", "queued")


@dataclass(frozen=True)
class Result:
    """The result of a run; docs/explanation/cluster.md lists the columns of its frames."""

    policy: str
    cluster: Cluster
    jobs: pl.DataFrame
    nodes: pl.DataFrame
    timeline: pl.DataFrame
    energy_j: float
    start_s: float
    end_s: float
    events: int
    stays: pl.DataFrame
    job_changes: pl.DataFrame
    node_stretches: pl.DataFrame

    def _repr_html_(self) -> str:
        known = {
            "nodes": self.cluster.size, "jobs": len(self.jobs), "energy_kwh": self.energy_j / J_PER_KWH,
            "lasted_h": (self.end_s - self.start_s) / 3600, "first_jobs": self.jobs.head(5),
        }
        return facts(f"Cluster under {self.policy}", known, simulated=True)


def job_frame(log: pl.DataFrame, outcomes: np.ndarray, nodes: Sequence[Node]) -> pl.DataFrame:
    """One row per job. The energy of nodes without any job is divided by GPU-seconds."""
    run_s, own_j = outcomes["run_s"], outcomes["own_energy_j"]
    unowned = sum(node.unowned_j for node in nodes)
    shares = run_s * log["num_gpus"].to_numpy()
    total = float(shares.sum())
    overhead = unowned * shares / total if total > 0 else np.full(len(run_s), unowned / len(run_s))
    ended = pl.from_numpy(outcomes)
    return log.select(
        "job_id", "user", "model", "submit_s", "duration_s", "num_gpus", "utilisation", "memory_bytes",
        "deadline_s", "priority", *ended["start_s", "end_s", "run_s", "own_energy_j"],
        pl.Series("energy_j", own_j + overhead), *ended["undos", "moves"],
    )


def node_frame(nodes: Sequence[Node]) -> pl.DataFrame:
    """One row per node."""
    meters = ["energy_j", "unowned_j", "hosting_s", "awake_s", "wakes"]
    rows = [(node.index, node.kind.name, *attrgetter(*meters)(node)) for node in nodes]
    return pl.DataFrame(rows, orient="row", schema=["node", "kind", *meters])


class Timeline:
    """The cluster at equidistant moments: power, energy so far, nodes with jobs and awake, jobs running,
    queued.

    Args:
        start_s: The first moment.
        step_s: Distance of the moments; None: no moments.

    Attributes:
        due_s: The next moment.
    """

    def __init__(self, start_s: float, step_s: float | None) -> None:
        self.step_s = step_s or NEVER_S
        self.due_s = start_s if step_s else NEVER_S
        self._rows = array("d")

    def write(
        self, now_s: float, metered_s: float, energy_j: float, power_w: float, counts: tuple[int, ...]
    ) -> None:
        """Add the rows up to now; power has been constant since `metered_s`, when the energy was `energy_j`.

        Args:
            now_s: Time up to which rows are written.
            metered_s: Time since which the power has been constant.
            energy_j: Energy of the cluster up to `metered_s`.
            power_w: Power since then.
            counts: The further columns of `TIMELINE`.
        """
        while self.due_s <= now_s:
            self._rows.extend((self.due_s, power_w, energy_j + power_w * (self.due_s - metered_s), *counts))
            self.due_s += self.step_s

    def frame(self) -> pl.DataFrame:
        rows = self._rows
        table = np.frombuffer(rows).reshape(-1, len(TIMELINE)) if rows else np.zeros((0, len(TIMELINE)))
        frame = pl.DataFrame(table, schema=list(TIMELINE), orient="row")
        return frame.with_columns(pl.col(TIMELINE[3:]).cast(int))
