"""Simulates which jobs share a GPU on a cluster, with the saving and the cost.

    jobs, readers, generator     logs as frames: the schema and its check, files of this and other systems,
                                 generated logs and missing columns
    power, colocation            power of nodes; slowdown of jobs that share a GPU
    state, engine, simulator     a cluster at one moment, changes on its nodes, from event to event
    columns, result              a log as records; the outcome of a run as frames
    policy, policies             who decides, behind a `ClusterControl`
    placement, capacity_index,   indices by which policies find nodes and GPUs
    ranking
    summary                      a run in numbers
    joblogs, sources             a log trimmed and cut into weeks; logs to choose from
    scenario, runs, comparison   the options of runs, many runs with progress, a choice and its runs
    views, recording, drill      runs as columns to be shown, a run in detail, one job or node

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
