"""Sharing GPUs on a cluster: the paper's tables, policies compared on a job log, ours against EaCO, speed.

    python -m benchmarks.cluster [--data DIR] [--json FILE] [--quick]

Job logs are the files of DIR/cluster that have the columns of one; models, memory, deadlines and
sensitivities are drawn (`workbench.cluster.draw`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from workbench.cluster import V100_NODE, CapLevel, Cluster, Colocation, Simulator, summarise
from workbench.cluster.colocation import Profile, prior
from workbench.cluster.policies import POLICIES, EnergyAwarePolicy
from workbench.cluster.policy import Policy
from workbench.cluster.power import UNIT

from .cluster_caps import clock_curves, levels, limit_curves
from .cluster_logs import drawn, job_logs, usable, weeks
from .cluster_speed import measured
from .common import arguments, finish, table

NODES = (28, 64)
MOST_A_WEEK, MOST = 20_000, 150_000  # jobs: of a longer log the first so many, so that a run takes minutes
EACO = ("eaco-2-80", "eaco-2-100", "eaco-3-80", "eaco-3-100")
BASELINES = (
    "fifo-spread-always-on", "fifo-spread", "fifo-best-fit", "fifo-packed", "gandiva", "sjf", "srtf",
    "tiresias", "lucid",
)
SHOWN = ("energy_kwh", "active_nodes", "runtime_inflation", "jct_h", "jct_p95_h", "misses", "undos", "moves")
CLOCK_IDLE_W = 60.0  # of the card of the clock sweeps, an A100


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__.splitlines()[0] if __doc__ else "", argv)
    tables = published(options.data)
    logs = job_logs(options.data)
    if not logs:
        print(
            f"there is no job log in {options.data}: the paper's tables are checked, and speed on generated "
            "logs; no policy is compared"
        )
    seeds = range(1) if options.quick else range(3)
    caps = {
        "limits": levels(limit_curves(options.data), 250.0),
        "clocks": levels(clock_curves(options.data), 250.0, idle_w=CLOCK_IDLE_W),
    }
    told(caps)
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    cleaned = {name: usable(log) for name, log in logs.items()}
    for name, log in cleaned.items():
        left_out = logs[name].height - log.height
        print(f"\n{name}: {log.height} jobs; {left_out} too wide, too short or wrong are left out")
        for week, part in weeks(log).items():
            part = part.head(3000 if options.quick else MOST_A_WEEK)
            first = not rows
            for nodes in NODES:
                new = [
                    row for seed in seeds for row in one(name, week, part, nodes, seed, caps, everyone=first)
                ]
                rows += new
                verdicts.append(verdict(new, name, week, nodes))
                report(new, verdicts[-1])
    if not options.quick:
        for name, log in cleaned.items():
            if len(weeks(log)) == 1:
                continue  # it was taken whole
            new = one(name, "all jobs", log.head(MOST), 64, 0, {**caps, "clocks": ()}, everyone=False)
            rows += new
            verdicts.append(verdict(new, name, "all jobs", 64))
            report(new, verdicts[-1])
    speeds = speed(options.data, next(iter(logs), None), quick=options.quick)
    summary = summarised(rows, verdicts, speeds)
    print("\n" + table(("figure", "value"), [(key, value) for key, value in summary.items()]))
    result: dict[str, Any] = {
        "tables": tables, "caps": {key: [_cap(cap) for cap in value] for key, value in caps.items()},
    }
    result |= {"runs": rows, "verdicts": verdicts, "speed": speeds, "summary": summary}
    finish(result, options.json)
    return result


def published(data: Path) -> list[dict[str, Any]]:
    """Each row of the paper's tables against the models: excess by the prior alone and by measured pairs,
    utilisation, power.
    """
    path = data / "colocation" / "eaco_tables.csv"
    if not path.exists():
        print(f"no published tables: {path} is absent")
        return []
    frame = pl.read_csv(path)
    alone = {row["job_set"]: row for row in frame.iter_rows(named=True) if row["n_jobs"] == 1}
    names = {"J1": "AlexNet", "J2": "ResNet-18", "J3": "ResNet-50", "J4": "VGG-16"}
    model = Colocation()
    rows = []
    for row in frame.iter_rows(named=True):
        members = row["job_set"].split("&")
        loads = [round(alone[member]["avg_gpu_util"] / 100 * UNIT) for member in members]
        mean_h = statistics.mean(alone[member]["avg_jct_h"] for member in members)
        used = min(sum(loads) / UNIT, 1.0)
        rows.append(
            {
                "set": row["job_set"],
                "excess_published": row["avg_jct_h"] / mean_h - 1,
                "excess_prior": prior(len(members), sum(loads)),
                "excess_model": model.excess(
                    [Profile(names[member], load) for member, load in zip(members, loads, strict=True)]
                ),
                "util_published": row["avg_gpu_util"] / 100,
                "util_model": used,
                "power_published_w": float(row["avg_power_w"]),
                "power_model_w": V100_NODE.power_w(used),
                "power_error": V100_NODE.power_w(used) / row["avg_power_w"] - 1,
            }
        )
    print("The paper's tables\n" + table(list(rows[0]), [list(row.values()) for row in rows]))
    return rows


def contestants(
    caps: dict[str, tuple[CapLevel, ...]], *, everyone: bool
) -> dict[str, tuple[Callable[[], Policy], tuple[CapLevel, ...]]]:
    """By name: how to make it, and which caps its nodes offer."""
    names = [*BASELINES, *EACO] if everyone else ["fifo-spread-always-on", "fifo-best-fit", *EACO]
    made: dict[str, tuple[Callable[[], Policy], tuple[CapLevel, ...]]] = {
        name: (POLICIES[name], ()) for name in names
    }
    made["ours"] = (POLICIES["ours"], ())
    made["ours, calm"] = (POLICIES["ours-calm"], ())
    made["ours, no moves"] = (partial(EnergyAwarePolicy, review_s=None), ())
    for kind, name in (("limits", "ours, power limits"), ("clocks", "ours, clocks")):
        if caps[kind]:
            made[name] = (POLICIES["ours-capped"], caps[kind])
    return made


def one(
    log: str, part: str, jobs: pl.DataFrame, nodes: int, seed: int, caps: dict[str, tuple[CapLevel, ...]], *,
    everyone: bool,
) -> list[dict[str, Any]]:
    """All contestants on one draw."""
    frame = drawn(jobs, seed)
    rows = []
    for name, (make, offered) in contestants(caps, everyone=everyone).items():
        cluster = Cluster.of(nodes, replace(V100_NODE, caps=offered))
        row = summarise(Simulator(frame, cluster, make(), timeline_s=None).run())
        rows.append(
            {
                **row, "title": row["policy"], "policy": name, "log": log, "part": part, "nodes": nodes,
                "seed": seed,
            }
        )
    return rows


def mean(rows: list[dict[str, Any]], policy: str, figure: str) -> float:
    return statistics.mean(float(row[figure]) for row in rows if row["policy"] == policy)


def spread(rows: list[dict[str, Any]], policy: str, figure: str) -> float:
    values = [float(row[figure]) for row in rows if row["policy"] == policy]
    return max(values) - min(values)


def verdict(rows: list[dict[str, Any]], log: str, part: str, nodes: int) -> dict[str, Any]:
    """Ours against the EaCO of least mean energy, and its calm form also against the better EaCO of two
    jobs a GPU; means over seeds.
    """
    best = min(EACO, key=lambda name: mean(rows, name, "energy_kwh"))
    found: dict[str, Any] = {"log": log, "part": part, "nodes": nodes, "eaco_at_its_best": best}
    fifo = mean(rows, "fifo-spread-always-on", "energy_kwh")
    found["eaco_energy_over_fifo_spread"] = mean(rows, best, "energy_kwh") / fifo
    found["eaco_energy_over_fifo_best_fit"] = mean(rows, best, "energy_kwh") / mean(
        rows, "fifo-best-fit", "energy_kwh"
    )
    for ours in [name for name in dict.fromkeys(row["policy"] for row in rows) if name.startswith("ours")]:
        found[ours] = against(rows, ours, best)
    two = min(EACO[:2], key=lambda name: mean(rows, name, "energy_kwh"))
    if "ours, calm" in found:
        found["calm_against_two_jobs"] = {"eaco": two, **against(rows, "ours, calm", two)}
    return found


def against(rows: list[dict[str, Any]], ours: str, other: str) -> dict[str, Any]:
    """One policy against another, means over seeds, and whether it saves 8 % with nothing else worse."""
    compared: dict[str, Any] = {
        "energy_ratio": mean(rows, ours, "energy_kwh") / mean(rows, other, "energy_kwh")
    }
    for figure in ("jct_h", "jct_p95_h"):
        compared[f"{figure}_ratio"] = mean(rows, ours, figure) / mean(rows, other, figure)
    for figure in ("runtime_inflation", "mean_job_inflation", "misses"):
        compared[f"{figure}_difference"] = mean(rows, ours, figure) - mean(rows, other, figure)
    energy = {(row["policy"], row["seed"]): row["energy_kwh"] for row in rows}
    compared["worst_seed_energy_ratio"] = max(
        energy[ours, seed] / energy[other, seed] for name, seed in energy if name == ours
    )
    compared["holds"] = (
        compared["energy_ratio"] <= 0.92
        and compared["jct_h_ratio"] <= 1
        and compared["jct_p95_h_ratio"] <= 1
        and compared["runtime_inflation_difference"] <= 0
        and compared["misses_difference"] <= 0
    )
    return compared


def report(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    seeds = len({row["seed"] for row in rows})
    print(
        f"\n{found['log']}, {found['part']}, {rows[0]['jobs']} jobs, {found['nodes']} nodes, means over "
        f"{seeds} seeds"
    )
    lines = [
        [name, *(mean(rows, name, figure) for figure in SHOWN), spread(rows, name, "energy_kwh")]
        for name in policies
    ]
    print(table(["policy", *SHOWN, "energy spread"], lines))
    best = found["eaco_at_its_best"]
    compared = {f"{ours} against {best}": found[ours] for ours in policies if ours.startswith("ours")}
    compared["ours, calm against two jobs a GPU"] = found.get("calm_against_two_jobs", {})
    for title, figures in compared.items():
        print(f"{title}: " + ", ".join(f"{key} {_short(value)}" for key, value in figures.items()))


def speed(data: Path, log: str | None, *, quick: bool) -> list[dict[str, Any]]:
    """The whole log on 64 nodes, then generated logs of growing size on growing clusters, each in its own
    process.

    Without a log a generated one of Philly's size stands for it.
    """
    of = {"log": data, "name": log} if log is not None else {"jobs": 74_331}
    rows = [measured(policy, **of) for policy in ("fifo-best-fit", "eaco-2-100", "eaco-3-100", "ours")]
    sizes = (
        [(20_000, 512), (100_000, 512)]
        if quick
        else [(100_000, 512), (100_000, 2_000), (100_000, 10_000), (1_000_000, 10_000)]
    )
    for jobs, gpus in sizes:
        # Ours takes some eight minutes over a million jobs: a tenth stands for it.
        who = ("fifo-best-fit", "eaco-3-100", "ours")[: 2 if quick or jobs > 500_000 else 3]
        rows += [measured(policy, jobs=jobs, gpus=gpus) for policy in who]
    print("\nSpeed\n" + table(list(rows[0]), [list(row.values()) for row in rows]))
    return rows


def summarised(
    rows: list[dict[str, Any]], verdicts: list[dict[str, Any]], speeds: list[dict[str, Any]]
) -> dict[str, Any]:
    """The overall figures; ratios are the worst over logs, parts and cluster sizes with several seeds.

    A figure without data (no job log, no measured limits) is None.
    """
    by_policy = {row["policy"]: row for row in reversed(speeds)}
    judged = [each for each in verdicts if each["part"] != "all jobs"] or verdicts
    capped = [each["ours, power limits"] for each in judged if "ours, power limits" in each]
    return {
        "fifo_jobs_per_cpu_s": by_policy["fifo-best-fit"]["jobs_per_cpu_s"],
        "eaco_jobs_per_cpu_s": min(
            by_policy["eaco-2-100"]["jobs_per_cpu_s"], by_policy["eaco-3-100"]["jobs_per_cpu_s"]
        ),
        "peak_mb": max(by_policy[name]["peak_mb"] for name in ("fifo-best-fit", "eaco-2-100", "eaco-3-100")),
        "ours_energy_over_eaco": max([each["ours"]["energy_ratio"] for each in judged], default=None),
        "ours_capped_energy_over_eaco": max([each["energy_ratio"] for each in capped], default=None),
        "eaco_energy_over_fifo_spread": max(
            [each["eaco_energy_over_fifo_spread"] for each in judged], default=None
        ),
        "ours_holds": all(each["ours"]["holds"] for each in judged) if judged else None,
        "ours_capped_holds": all(each["holds"] for each in capped) if capped else None,
    }


def told(caps: dict[str, tuple[CapLevel, ...]]) -> None:
    for kind, found in caps.items():
        text = ", ".join(
            f"{cap.power_limit_w:g} W: speed {cap.speed:.3f}, active {cap.active:.3f}" for cap in found
        )
        print(f"\nEffect of {kind}, as measured: {text or 'no such traces here'}")


def _cap(cap: CapLevel) -> dict[str, float]:
    return {"power_limit_w": cap.power_limit_w, "speed": cap.speed, "active": cap.active}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
