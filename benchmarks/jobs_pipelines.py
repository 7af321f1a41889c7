"""Plans of pipelines against Perseus' own solver, lowtime, and against the bound of the linear programme.

    python -m benchmarks.jobs_pipelines [--data DIR] [--json FILE] [--quick]

The profiles are Perseus' measurements at 8 stages. At 4 stages, two neighbours make one stage: their times
and energies add up at each clock. lowtime (pip install lowtime) plans in steps of 1 ms, its authors' default.
Its clocks are counted with the same schedule and the same measurements as ours. Both are compared at the
iteration time that its clocks really lead to.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl

from workbench.jobs.pipeline import PipelineFrontier, frontier

from .common import arguments, finish, table

# An assumption: the profiles come without the power of a waiting GPU.
BLOCKING_W = 80.0
SLOWDOWNS = (0.0, 0.02, 0.05, 0.1)
UNIT_S = 0.001

Point = tuple[float, float]  # seconds, joules


def merged(profile: pl.DataFrame, stages: int) -> pl.DataFrame:
    """The profile with neighbouring stages as one, until there are `stages`."""
    each = profile["stage"].n_unique() // stages
    return profile.with_columns(pl.col("stage") // each).group_by("stage", "instruction", "frequency").agg(
        pl.col("time", "energy").sum()
    )


def lowtime_points(plans: PipelineFrontier) -> list[Point]:
    """Every plan of lowtime for the same graph and profile. Raises ImportError where it is not installed."""
    import networkx as nx
    from lowtime.cost_model import ExponentialModel
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, Operation, OperationSpec
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for key, options in plans._options.items():
        candidates = CandidateExecutionOptions([
            ExecutionOption(float(time_s), UNIT_S, float(energy_j), row)
            for row, (time_s, energy_j) in enumerate(zip(options.time_s, options.energy_j, strict=True))
        ])
        for each in candidates.options:  # as its example for pipelines counts waiting
            each.cost -= plans.blocking_power_w * each.quant_time * UNIT_S
        specs[key] = OperationSpec(candidates, ExponentialModel(candidates))
    operations = [Operation(specs[task.stage, task.instruction]) for task in plans._tasks]
    graph = nx.DiGraph()
    for row, operation in enumerate(operations):
        graph.add_node(row + 2, op=operation)
    graph.add_edges_from((before + 2, row + 2) for row, edges in enumerate(plans._edges) for before in edges)
    add_source_node(graph, 0)
    add_sink_node(graph, 1)
    graph.graph.update(source_node=0, sink_node=1)
    return [
        plans._cost([operation.assigned_knob for operation in operations])
        for _ in PhillipsDessouky(graph).run()
    ]


def case(profile: pl.DataFrame, stages: int, microbatches: int) -> dict[str, Any]:
    """Savings, ratios and times of one pipeline."""
    plans = frontier(merged(profile, stages), microbatches, blocking_power_w=BLOCKING_W)
    began = time.perf_counter()
    found = {slowdown: plans.at(slowdown) for slowdown in SLOWDOWNS}
    result: dict[str, Any] = {
        "stages": stages, "microbatches": microbatches,
        "seconds": (time.perf_counter() - began) / len(SLOWDOWNS),
        "over_bound": max(plan.energy_j / plan.bound_j for plan in found.values()),
        "saving_at_0": found[0.0].saving, "saving_at_5": found[0.05].saving,
    }
    began = time.perf_counter()
    result["saving_at_5_per_stage"] = plans.at(0.05, per="stage").saving
    result["seconds_per_stage"] = time.perf_counter() - began
    try:
        began = time.perf_counter()
        theirs = lowtime_points(plans)
        result["seconds_lowtime"] = time.perf_counter() - began
    except ImportError as error:
        print(f"lowtime takes no part: {error}; pip install lowtime")
        return result
    result["over_lowtime"] = []
    for slowdown in SLOWDOWNS:
        within = [each for each in theirs if each[0] <= plans.default.time_s * (1 + slowdown)]
        if within:  # rounding can leave lowtime without a plan as fast as the highest clocks
            time_s, energy_j = min(within, key=lambda each: each[1])
            result["over_lowtime"].append(plans.at(iteration_s=time_s).energy_j / energy_j)
    return result


def run(quick: bool, data: Path) -> dict[str, Any]:
    """Figures of all profiles; `frontier_over_lowtime` is the worst ratio of our energy to lowtime's at the
    same iteration time, None without lowtime.
    """
    counts = ((4, 4), (8, 8)) if quick else ((4, 4), (4, 16), (8, 8), (8, 16))
    cases = {}
    for path in sorted((data / "clocks").glob("perseus_*.csv")):
        for stages, microbatches in counts:
            name = f"{path.stem} {stages}x{microbatches}"
            cases[name] = case(pl.read_csv(path), stages, microbatches)
            print(f"{name}: {cases[name]}", flush=True)
    ratios = [ratio for each in cases.values() for ratio in each.get("over_lowtime", [])]
    return {
        "frontier_over_lowtime": max(ratios, default=None),
        "frontier_over_lowtime_mean": sum(ratios) / len(ratios) if ratios else None,
        "comparisons": len(ratios),
        "over_bound": max((each["over_bound"] for each in cases.values()), default=None),
        "seconds_to_solve": max((each["seconds"] for each in cases.values()), default=None), "cases": cases,
    }


def main() -> None:
    chosen = arguments("Plans of pipelines")
    result = run(chosen.quick, chosen.data)
    names = (
        "saving_at_0", "saving_at_5", "saving_at_5_per_stage", "over_bound", "seconds", "seconds_per_stage",
        "seconds_lowtime",
    )
    rows = [
        [name, *(each.get(part) for part in names), max(each.get("over_lowtime", []), default=None)]
        for name, each in result["cases"].items()
    ]
    print("\n" + table(["profile, stages x microbatches", *names, "worst over_lowtime"], rows))
    print("\n" + table(["figure", "value"], [each for each in result.items() if each[0] != "cases"]))
    finish(result, chosen.json)


if __name__ == "__main__":
    main()
