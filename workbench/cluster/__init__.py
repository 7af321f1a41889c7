"""Simulates which jobs share a GPU on a cluster, with the saving and the cost.

- `jobs`, `readers`, `generator`: Job logs as Polars frames, their check, file formats and generated logs.
- `power`, `colocation`: Power of a node, and slowdown of jobs that share a GPU.
- `state`, `engine`, `simulator`: State of the cluster, its changes, and the event loop.
- `columns`, `result`: A log as arrays, and the result of a run as frames.
- `policy`, `policies`: Scheduling policies, and the `ClusterControl` that they use.
- `placement`, `capacity_index`, `ranking`: Indices with which policies find nodes and GPUs.
- `summary`: Key figures of a run.
- `joblogs`, `sources`: Logs trimmed and cut into weeks, and the logs on offer.
- `scenario`, `runs`, `comparison`: Settings of a simulation, parallel runs, and a comparison of policies.
- `views`, `recording`, `drill`: Runs as columns for panels, a recorded run, and one job or node.

`summarise(Simulator(draw(log, seed=0), Cluster.of(28), EnergyAwarePolicy()).run())` does a whole run.
"""

from __future__ import annotations

from .colocation import Colocation, History
from .generator import MODELS, draw, generate
from .jobs import SCHEMA, check
from .policy import IllegalPlacement, Policy
from .power import A100_NODE, V100_NODE, CapLevel, Cluster, NodeType
from .result import Result
from .simulator import Simulator
from .summary import summarise
from .views import notable

__all__ = [
    "A100_NODE", "MODELS", "SCHEMA", "V100_NODE", "CapLevel", "Cluster", "Colocation",
    "History", "IllegalPlacement", "NodeType", "Policy", "Result", "Simulator", "check", "draw", "generate",
    "notable", "summarise",
]
