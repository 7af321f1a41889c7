"""Describes a simulation: cluster, policies and their settings, number of random seeds, swept parameter.

None leaves a policy its own value. A policy ignores settings that it does not have, such as a threshold if it
never shares.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from ..errors import UsageError, check_fields, shown
from .generator import draw
from .policies import POLICIES
from .policy import Policy
from .power import A100_NODE, V100_LIMITS, V100_NODE, Cluster, NodeType

KINDS: dict[str, NodeType] = {kind.name: kind for kind in (V100_NODE, A100_NODE)}
NEVER_S = math.inf  # for `sleep_after_s`: nodes stay awake
SLACK_FROM = 1.05
MOST_NODES = 10_000
SETTINGS = ("load_threshold", "max_jobs", "sleep_after_s")  # of policies
UNITS = {  # of parameters that can be swept
    "nodes": "nodes", "load_threshold": "utilisation threshold", "max_jobs": "jobs per GPU",
    "slack": "deadline slack", "sleep_after_s": "sleep after (s)",
}


@dataclass(frozen=True)
class Scenario:
    """All settings of a comparison except the jobs.

    Attributes:
        nodes, kind: The cluster: number of nodes, and their type, from `KINDS` or user-defined.
        policies: Names of `POLICIES`, or one; the first is the reference of the comparison.
        load_threshold: Highest sum of solo utilisations on a shared GPU; may exceed 1.
        max_jobs: Highest number of jobs on one GPU.
        slack: All deadlines become the submission plus U(1.05, slack) times the duration. None: deadlines of
            the log, and U(1.05, 1.5) where it has none.
        sleep_after_s: Time after which an empty node goes to standby; `NEVER_S`: never. Policies that are
            always on ignore it.
        draws: Number of random seeds for generated values: `seed`, `seed` + 1, ...
        sweep: One of `UNITS`, to be varied over `values`; None for none.

    Raises:
        UsageError: A value of another type or beyond its range, or a policy that does not exist.
    """

    nodes: int = 28
    kind: NodeType = V100_NODE
    policies: tuple[str, ...] = ("fifo-spread-always-on", "fifo-best-fit", "eaco", "ours")
    load_threshold: float | None = None
    max_jobs: int | None = None
    slack: float | None = None
    sleep_after_s: float | None = None
    draws: int = 1
    seed: int = 0
    sweep: str | None = None
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.policies, str):
            object.__setattr__(self, "policies", (self.policies,))
        if isinstance(self.kind, str):
            if self.kind not in KINDS:
                raise UsageError(f"there is no node type {self.kind!r}; there are {', '.join(KINDS)}")
            object.__setattr__(self, "kind", KINDS[self.kind])
        check_fields(self)
        if unknown := [name for name in self.policies if name not in POLICIES]:
            raise UsageError(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise UsageError(f"policies={self.policies}: name at least one policy, and each once")
        if not isinstance(self.kind, NodeType):
            raise UsageError(
                f"kind is {shown(self.kind)}; a NodeType is needed, such as one of cluster.scenario.KINDS"
            )
        for name, low, high in (
            ("nodes", 1, MOST_NODES), ("draws", 1, math.inf), ("max_jobs", 1, math.inf),
            ("load_threshold", 0, math.inf), ("slack", SLACK_FROM, math.inf), ("sleep_after_s", 0, NEVER_S),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UsageError(f"{name} is {value:g}; a number from {low:g} to {high:g} is needed")
        if self.sweep is not None:
            if self.sweep not in UNITS:
                raise UsageError(f"{self.sweep!r} cannot be swept; {', '.join(UNITS)} can")
            if not self.values:
                raise UsageError(f"a sweep over {self.sweep} needs values, for instance (16, 28, 64)")
            for value in self.values:
                self.at(value)

    def at(self, value: float | None) -> Scenario:
        """This scenario with the swept parameter at one value; unchanged where nothing is swept."""
        swept: dict[str, Any] = {} if self.sweep is None or value is None else {self.sweep: value}
        return replace(self, sweep=None, values=(), **swept)

    @property
    def cluster(self) -> Cluster:
        return Cluster.of(self.nodes, self.kind)

    def cluster_of(self, name: str) -> Cluster:
        """The cluster for this policy: V100 nodes offer their power limits to policies that set them."""
        capped = name == "ours-capped" and not self.kind.caps and self.kind.gpu_type == "V100"
        return Cluster.of(self.nodes, replace(self.kind, caps=V100_LIMITS) if capped else self.kind)

    def maker(self, name: str) -> Callable[[], Policy]:
        """A factory of new policies with these settings; picklable."""
        given = {key: getattr(self, key) for key in takes(name) if getattr(self, key) is not None}
        if given.get("sleep_after_s") == NEVER_S:
            given["sleep_after_s"] = None
        return partial(POLICIES[name], **given)


def takes(name: str) -> frozenset[str]:
    """The `SETTINGS` that reach this policy: those that it has and that its name does not fix."""
    make = POLICIES[name]
    fixed = make.keywords if isinstance(make, partial) else {}
    return frozenset(set(SETTINGS) & (inspect.signature(make).parameters.keys() - fixed.keys()))


def label(name: str, scenario: Scenario | None = None) -> str:
    """A policy's name in tables; with a scenario, the name includes its settings.

    >>> label("eaco"), label("eaco", Scenario(max_jobs=2)), label("ours", Scenario(max_jobs=2))
    ('EaCO, as set', 'EaCO, 2 jobs, 100 %', 'workbench, 2 jobs')
    """
    if scenario is None:
        return "EaCO, as set" if name == "eaco" else POLICIES[name]().name
    text, known = scenario.maker(name)().name, takes(name)
    if name == "eaco":
        return text  # its name has both
    if scenario.max_jobs is not None and "max_jobs" in known:
        text += f", {scenario.max_jobs} job{'s' * (scenario.max_jobs != 1)}"
    if scenario.load_threshold is not None and "load_threshold" in known:
        text += f", {100 * scenario.load_threshold:.0f} %"
    return text


def prepared(jobs: pl.DataFrame, scenario: Scenario, seed: int) -> pl.DataFrame:
    """A log's jobs with all values for a simulation: `generator.draw` fills gaps, the slack sets deadlines.
    """
    given: dict[str, Any] = {}
    if scenario.slack is not None:
        jobs, given = jobs.drop("deadline_s", strict=False), {"slack": (SLACK_FROM, scenario.slack)}
    return draw(jobs, seed, memory_bytes=scenario.kind.memory_bytes, **given)


@dataclass(frozen=True)
class Task:
    """One run: a policy, a seed, a swept value, and the scenario at that value."""

    policy: str
    seed: int
    value: float | None
    scenario: Scenario
    keep: bool  # whether to keep the course of the run, not only the sums


def tasks(scenario: Scenario) -> Iterator[Task]:
    """All runs of a scenario; those of the first seed and the first value keep their course."""
    for number in range(scenario.draws):
        for place, value in enumerate(scenario.values if scenario.sweep else (None,)):
            for name in scenario.policies:
                keep = number == 0 and place == 0
                yield Task(name, scenario.seed + number, value, scenario.at(value), keep)
