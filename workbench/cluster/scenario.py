"""What is to be simulated: a cluster, policies, what of them is set otherwise than they are by themselves,
how many draws, what is swept.

A value of None leaves a policy its own; what a policy does not know (a threshold, for one that never shares)
leaves it as it is.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import polars as pl

from ..errors import MOST_VALUES, UsageError, is_list, shown
from .generator import draw
from .policies import POLICIES, Eaco
from .policy import Policy
from .power import A100_NODE, V100_LIMITS, V100_NODE, Cluster, NodeType

KINDS: dict[str, NodeType] = {kind.name: kind for kind in (V100_NODE, A100_NODE)}
NEVER_S = math.inf  # of `sleep_after_s`: nodes stay awake
SLACK_FROM = 1.05
MOST_NODES, MOST_DRAWS, MOST_SEED = 10_000, 50, 2**32 - 1

# "eaco" takes what is set here; those with numbers in their names have them fixed.
CHOICES: dict[str, Callable[[], Policy]] = {}
for _name, _make in POLICIES.items():
    if _name.startswith("eaco-"):
        CHOICES.setdefault("eaco", Eaco)
    CHOICES[_name] = _make
LABELS = {
    "fifo-spread-always-on": "FIFO spread, always on", "fifo-spread": "FIFO spread, sleep",
    "fifo-best-fit": "FIFO best-fit, sleep", "fifo-packed": "FIFO packed, always on",
    "gandiva": "Gandiva-like, always on", "sjf": "SJF", "srtf": "SRTF", "tiresias": "Tiresias-like",
    "lucid": "Lucid-like", "eaco": "EaCO, as set", "eaco-2-80": "EaCO, 2 jobs, 80 %",
    "eaco-2-100": "EaCO, 2 jobs, 100 %", "eaco-3-80": "EaCO, 3 jobs, 80 %",
    "eaco-3-100": "EaCO, 3 jobs, 100 %", "ours": "workbench", "ours-calm": "workbench, calm",
    "ours-capped": "workbench, power limits",
}
SWEPT = ("nodes", "load_threshold", "max_jobs", "slack", "sleep_after_s")
UNITS = {
    "nodes": "nodes", "load_threshold": "utilisation threshold", "max_jobs": "jobs per GPU",
    "slack": "deadline slack", "sleep_after_s": "sleep after (s)",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything of a comparison but the jobs.

    Attributes:
        nodes, kind: The cluster: so many nodes of a type of `KINDS`, or of a type of one's own.
        policies: Names of `CHOICES`, or one; the first is what the others are compared with.
        load_threshold: Highest sum of solo utilisations on a shared GPU, 0..1 and above.
        max_jobs: On one GPU.
        slack: Deadlines are the submission plus U(1.05, slack) times the duration, all drawn anew; None: as
            the log has them, else with U(1.05, 1.5).
        sleep_after_s: When an empty node goes to standby; `NEVER_S`: never. Policies that are always on stay
            so.
        draws: How many draws of what the log does not tell, by seeds `seed`, `seed` + 1, ...
        sweep: One of `SWEPT`, to be varied over `values`; None for none.
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
        put = partial(object.__setattr__, self)
        policies = (self.policies,) if isinstance(self.policies, str) else self.policies
        put("policies", _several("policies", policies, "('eaco', 'ours')"))
        values = _several("values", self.values, "(16, 28, 64)")
        # As Python's own numbers, which can be sent.
        put("values", tuple(
            value if not _is_number(value) else int(value) if isinstance(value, Integral) else float(value)
            for value in values
        ))
        unknown = [name for name in self.policies if not isinstance(name, str) or name not in CHOICES]
        if unknown:
            raise UsageError(f"there is no policy {unknown[0]!r}; there are {', '.join(CHOICES)}")
        if not self.policies:
            raise UsageError("no policy is chosen; choose at least one, and a second to compare it with")
        if len(set(self.policies)) < len(self.policies):
            raise UsageError("a policy is chosen twice; name each once")
        if not isinstance(self.kind, NodeType):
            raise UsageError(
                f"kind is {shown(self.kind)}; a NodeType is needed, such as one of cluster.scenario.KINDS"
            )
        for name, low, high, whole in (
            ("nodes", 1, MOST_NODES, True), ("draws", 1, MOST_DRAWS, True), ("seed", 0, MOST_SEED, True),
            ("max_jobs", 1, 16, True), ("load_threshold", 0.05, 4.0, False),
            ("slack", SLACK_FROM, 100.0, False),
        ):
            if getattr(self, name) is not None or name in ("nodes", "draws", "seed"):
                put(name, _within(name, getattr(self, name), low, high, whole=whole))
        if self.sleep_after_s is not None:
            if not (_is_number(self.sleep_after_s) and self.sleep_after_s >= 0):
                raise UsageError(
                    f"sleep_after_s is {_shown(self.sleep_after_s)}; it must be 0 s or more (infinite: never)"
                )
            put("sleep_after_s", float(self.sleep_after_s))
        if self.sweep is not None:
            if self.sweep not in SWEPT:
                raise UsageError(f"{self.sweep!r} cannot be swept; {', '.join(SWEPT)} can")
            if not self.values:
                raise UsageError(f"a sweep over {self.sweep} needs values")
            for value in self.values:
                if not _is_number(value) or math.isnan(value):
                    raise UsageError(
                        f"{self.sweep} is swept over numbers, not {value}; give for instance (16, 28, 64)"
                    )
                self.at(value)

    def at(self, value: float | None) -> Scenario:
        """This scenario with the swept parameter at one value; as it is where nothing is swept."""
        if self.sweep is None or value is None:
            return replace(self, sweep=None, values=())
        whole = self.sweep in ("nodes", "max_jobs")
        if whole and not (math.isfinite(value) and value == int(value)):
            raise UsageError(f"{self.sweep} is swept over whole numbers, not {value:g}")
        swept: dict[str, Any] = {self.sweep: int(value) if whole else float(value)}
        return replace(self, sweep=None, values=(), **swept)

    @property
    def cluster(self) -> Cluster:
        return Cluster.of(self.nodes, self.kind)

    def cluster_of(self, name: str) -> Cluster:
        """The cluster as this policy gets it: V100 nodes offer their power limits to those that set them."""
        capped = name == "ours-capped" and not self.kind.caps and self.kind.gpu_type == "V100"
        return Cluster.of(self.nodes, replace(self.kind, caps=V100_LIMITS) if capped else self.kind)

    def maker(self, name: str) -> Callable[[], Policy]:
        """Makes a fresh policy with what is set here; picklable."""
        make = CHOICES[name]
        wanted: dict[str, Any] = {"load_threshold": self.load_threshold, "max_jobs": self.max_jobs}
        if self.sleep_after_s is not None:
            wanted["sleep_after_s"] = None if math.isinf(self.sleep_after_s) else self.sleep_after_s
        given = {
            key: value for key, value in wanted.items()
            if key in takes(name) and (value is not None or key == "sleep_after_s")
        }
        return partial(make, **given) if given else make


def takes(name: str) -> frozenset[str]:
    """Which of "load_threshold", "max_jobs", "sleep_after_s" reach this policy.

    Not those that its name fixes; nor a sleep, where it is always on by itself.
    """
    make = CHOICES[name]
    fixed = set(make.keywords) if isinstance(make, partial) else set()
    policy = make()
    found = set()
    for ancestor in type(policy).__mro__:
        if "__init__" in vars(ancestor) and ancestor is not object:
            found |= set(inspect.signature(vars(ancestor)["__init__"]).parameters)
    if policy.sleep_after_s is None:
        found.discard("sleep_after_s")
    return frozenset(found & {"load_threshold", "max_jobs", "sleep_after_s"} - fixed)


def label(name: str, scenario: Scenario) -> str:
    """What a policy is called in tables, with what is set of it.

    >>> label("eaco", Scenario(max_jobs=2))
    'EaCO, 2 jobs, 100 %'
    """
    if name == "eaco":
        text = scenario.at(None).maker(name)().name
        return text.replace("%", " %").replace("  %", " %").replace(" 1 jobs", " 1 job")
    text = LABELS.get(name, name)
    known = takes(name)
    if scenario.max_jobs is not None and "max_jobs" in known:
        text += f", {scenario.max_jobs} job{'s' * (scenario.max_jobs != 1)}"
    if scenario.load_threshold is not None and "load_threshold" in known:
        text += f", {scenario.load_threshold:.0%}".replace("%", " %")
    return text


def prepared(jobs: pl.DataFrame, scenario: Scenario, seed: int) -> pl.DataFrame:
    """A log's jobs with what a simulation needs: `generator.draw` fills gaps, the slack sets deadlines."""
    if jobs.height == 0:
        raise UsageError("the log has 0 jobs; there is nothing to simulate")
    kind = scenario.kind
    if scenario.slack is None:
        return draw(jobs, seed, memory_bytes=kind.memory_bytes)
    bare = jobs.drop("deadline_s") if "deadline_s" in jobs.columns else jobs
    return draw(bare, seed, memory_bytes=kind.memory_bytes, slack=(SLACK_FROM, scenario.slack))


@dataclass(frozen=True, slots=True)
class Task:
    """One run: a policy, a seed, a value of what is swept, and the scenario at that value."""

    policy: str
    seed: int
    value: float | None
    scenario: Scenario
    keep: bool  # whether to keep who was where, not only the sums


def tasks(scenario: Scenario) -> Iterator[Task]:
    """All runs of a scenario; those of the first draw and the first value keep who was where."""
    for draw_number in range(scenario.draws):
        for place, value in enumerate(scenario.values if scenario.sweep else (None,)):
            for name in scenario.policies:
                seed = scenario.seed + draw_number
                yield Task(name, seed, value, scenario.at(value), keep=draw_number == 0 and place == 0)


def _within(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> float:
    """The number, as an int where a whole one is needed."""
    if not _is_number(value) or not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise UsageError(f"{name} is {_shown(value)}; {kind} from {_plain(low)} to {_plain(high)} is needed")
    return int(value) if whole else float(value)


def _several(name: str, given: Any, example: str) -> tuple[Any, ...]:
    if not is_list(given):
        raise UsageError(f"{name} is {shown(given)}; several are needed, for instance {example}")
    found = tuple(itertools.islice(given, MOST_VALUES + 1))
    if len(found) > MOST_VALUES:
        raise UsageError(f"{name} has more than {MOST_VALUES:,} values; give fewer")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return _plain(value) if _is_number(value) else shown(value)


def _plain(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:g}"
