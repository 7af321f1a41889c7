"""Recurring jobs on Zeus' published traces: cost of the search for the batch size and the power limit, and
its saving.

    python -m benchmarks.recurring [--data DIR] [--json FILE] [--quick] [--seeds N] [--gp-seeds
        N] [--only NAME ...]
                                   [--jobs N] [--generator NAME] [--generator-seed N] [--workers N]

A policy pays for everything that it requests: runs, stopped runs, retries, profiling windows. Regret is in
runs of the best fixed configuration: cumulative cost / its expected cost - recurrences. Random jobs come from
a generator in `fixtures`, the second if it is available.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from workbench.search.batch_size.history import Space
from workbench.search.batch_size.knowledge_gradient import KnowledgeGradient
from workbench.search.batch_size.policy import BatchSizePolicy
from workbench.search.batch_size.zeus import DefaultBatchSize, ZeusPolicy
from workbench.search.objective import ZeusCost

from .common import data_directory, finish, table
from .replay import Bill, Job, load, replay, zeus_cost
from .replay_contestants import Default, GridSearch, OptunaPeer, ZeusOwn
from .replay_random import GENERATORS, compare, generated, generator, safe_over_default
from .replay_random import summary as random_summary

CHECKPOINTS = (5, 10, 20, 40)
TPE_SEEDS, GP_SEEDS = 5, 1  # Optuna's samplers take tens of times as long for a decision

Make = Callable[[int], BatchSizePolicy]  # of a seed


def contestants(left_out: dict[str, str] | None = None) -> dict[str, Make]:
    """Everybody, by name; `left_out` gets who takes no part and why."""
    all_: dict[str, Make] = {
        "ours": lambda seed: KnowledgeGradient(), "ours, safe": lambda seed: KnowledgeGradient(safe=True),
        "Zeus' policy, ours": lambda seed: ZeusPolicy(), "best limit only": lambda seed: DefaultBatchSize(),
        "default": lambda seed: Default(), "grid search": lambda seed: GridSearch(),
    }
    peers: dict[str, Make] = {
        "Zeus": lambda seed: ZeusOwn(seed), "Optuna TPE": lambda seed: OptunaPeer(seed, "TPE"),
        "Optuna GP": lambda seed: OptunaPeer(seed, "GP"),
    }
    for name, make in peers.items():
        try:
            make(0)
            all_[name] = make
        except ImportError as error:
            if left_out is not None:
                left_out[name] = str(error)
    return all_


def play(make: Make, job: Job, objective: ZeusCost, seeds: range, **options: Any) -> list[Bill]:
    """One contestant on one job, all seeds."""
    by_epoch = not isinstance(make(0), KnowledgeGradient)
    return [
        replay(make(seed), job, objective, seed, job.horizon, profile_by_epoch=by_epoch, **options)
        for seed in seeds
    ]


def score(job: Job, objective: ZeusCost, bills: list[Bill]) -> dict[str, float]:
    """The figures of one contestant on one job, means over seeds."""
    expected = job.expected(objective)
    oracle = float(expected.min())
    highest = int(np.argmax(job.space.power_limits_w))
    b0 = job.space.batch_sizes.index(job.space.default)
    default = float(expected[b0, highest])
    costs = np.array([bill.cost for bill in bills])
    many = np.arange(1, costs.shape[1] + 1)
    mean = costs.cumsum(axis=1) / many
    over = (mean / default).mean(axis=0)
    last = job.horizon // 4
    default_s = job.mean_epochs()[b0] * job.epoch_time_s[b0, highest]
    above = np.flatnonzero(over > 1)
    out = {
        "regret_runs": float((costs.sum(axis=1) / oracle - costs.shape[1]).mean()),
        "regret_sd": float((costs.sum(axis=1) / oracle).std()),
        "last_gap": float(
            np.mean([[expected[c] for c in bill.chosen[-last:]] for bill in bills]) / oracle - 1
        ),
        "cost_over_oracle_all": float(mean[:, -1].mean() / oracle),
        "break_even": float(above[-1] + 2)
        if len(above) and above[-1] + 1 < len(over)
        else (1.0 if not len(above) else float("nan")),
        "over_default_from_5": float(over[4:].max()),
        "over_default_all": float(over[-1]),
        "energy_over_default": float(
            np.mean([np.mean(b.energy_j) for b in bills]) / (default_s * job.power_w[b0, highest])
        ),
        "time_over_default": float(np.mean([np.mean(b.time_s) for b in bills]) / default_s),
    }
    for n in CHECKPOINTS:
        if n <= costs.shape[1]:
            out[f"cost_over_oracle_at_{n}"] = float(mean[:, n - 1].mean() / oracle)
            out[f"cost_over_default_at_{n}"] = float(over[n - 1])
    return out


def curve(job: Job, objective: ZeusCost, bills: list[Bill]) -> list[float]:
    """Cumulative cost over the oracle's after each recurrence, mean over seeds."""
    costs = np.array([bill.cost for bill in bills]).cumsum(axis=1) / np.arange(1, job.horizon + 1)
    return [round(float(value), 4) for value in costs.mean(axis=0) / job.expected(objective).min()]


@dataclass(frozen=True)
class Played:
    """What one contestant did on one job: figures, curve, and how long it took."""

    figures: dict[str, float]
    curve: list[float]
    recurrences: int
    wall_s: float
    cpu_s: float


def play_one(name: str, job: Job, eta: float, seeds: int) -> Played:
    """One contestant on one job, so that several processes can share the work."""
    start, start_cpu = time.perf_counter(), time.process_time()
    objective = zeus_cost(job, eta)
    bills = play(contestants()[name], job, objective, range(seeds))
    took = time.perf_counter() - start, time.process_time() - start_cpu
    return Played(
        score(job, objective, bills), curve(job, objective, bills), sum(len(bill.cost) for bill in bills),
        *took,
    )


def drift(jobs: list[Job], seeds: int, names: dict[str, Make]) -> dict[str, Any]:
    """Half way one workload takes another's place on the same GPU: recurrences until 5 running ones cost
    within 5 % of the best again.
    """
    out: dict[str, Any] = {}
    for gpu in sorted({job.gpu for job in jobs}):
        pair = _far_apart([job for job in jobs if job.gpu == gpu])
        for old, new in (pair, pair[::-1]) if pair else ():
            objective = zeus_cost(old, 0.5)
            key = f"{old.workload} -> {new.workload} {gpu}"
            out[key] = {}
            for name, make in names.items():
                back = []
                for seed in range(seeds):
                    half, total = 60, 200
                    policy = make(seed)
                    by_epoch = not isinstance(policy, KnowledgeGradient)
                    bill = replay(
                        policy, old, objective, seed, total, swap=(half, new), profile_by_epoch=by_epoch
                    )
                    expected = new.expected(objective)
                    good = np.array([expected[c] for c in bill.chosen[half:]]) <= 1.05 * expected.min()
                    run = np.convolve(good, np.ones(5), "valid")
                    found = np.flatnonzero(run == 5)
                    back.append(int(found[0]) + 5 if len(found) else total - half)
                out[key][name] = float(np.mean(back))
    return out


def _far_apart(jobs: list[Job]) -> tuple[Job, Job] | None:
    """The two workloads, over the batch sizes that both can have, where what is best for one costs the
    other most.
    """
    best, most = None, 0.0
    for a, b in combinations(jobs, 2):
        sizes = {*a.space.batch_sizes} & {*b.space.batch_sizes}
        if (
            len(sizes) < 3
            or not {a.space.default, b.space.default} <= sizes
            or a.space.power_limits_w != b.space.power_limits_w
        ):
            continue
        pair = _common(a, b)
        of_a, of_b = (job.expected(zeus_cost(pair[0], 0.5)).ravel() for job in pair)
        apart = min(float(there[here.argmin()] / there.min()) for here, there in ((of_a, of_b), (of_b, of_a)))
        if apart > most:
            best, most = pair, apart
    return best


def _common(a: Job, b: Job) -> tuple[Job, Job]:
    both = tuple(x for x in a.space.batch_sizes if x in b.space.batch_sizes)

    def cut(job: Job) -> Job:
        keep = [job.space.batch_sizes.index(x) for x in both]
        space = Space(both, job.space.default, job.space.power_limits_w, 100, None, job.gpu)
        return replace(
            job, space=space, epoch_time_s=job.epoch_time_s[keep], power_w=job.power_w[keep],
            paths=[job.paths[i] for i in keep],
        )

    return cut(a), cut(b)


def decision_time(runs: int = 10_000) -> dict[str, float]:
    """Seconds per decision with so many recorded recurrences: of a frame that nobody has counted, and of kept
    evidence.
    """
    from workbench.experiments.history.attempts import Attempt
    from workbench.experiments.history.csv import as_frame
    from workbench.experiments.history.replay import Recorded

    rng = np.random.default_rng(0)
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    space = Space(sizes, 256, (100.0, 150.0, 200.0, 250.0))
    profile = {b: tuple((w, 5 + 200 / b, 0.9 * w) for w in space.power_limits_w) for b in sizes}
    made = [Attempt(n, b, purpose="slice", state="stopped", profile=profile[b]) for n, b in enumerate(sizes)]
    made += [
        Attempt(
            number, int(rng.choice(sizes)), number, state="reached", epochs=float(rng.integers(18, 25)),
            time_s=100.0, energy_j=2e4,
        )
        for number in range(len(made), len(made) + runs)
    ]
    frame = as_frame(made)
    evidence = Recorded(frame, space).ledger.evidence()
    objective, policy = ZeusCost(0.5, 250), KnowledgeGradient()

    def middle(decide: Callable[[], object], many: int = 15) -> tuple[float, float]:
        """Medians of wall and processor time: what else runs on the machine shows in the first."""
        wall, cpu = [], []
        for _ in range(many):
            start, start_cpu = time.perf_counter(), time.process_time()
            decide()
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
        return float(np.median(wall)), float(np.median(cpu))

    out: dict[str, float] = {}
    for name, decide in {
        "from_frame": lambda: policy.ask(Recorded(frame, space).ledger.evidence(), objective, rng),
        "kept": lambda: policy.ask(evidence, objective, rng),
    }.items():
        out[f"{name}_s"], out[f"{name}_cpu_s"] = middle(decide)
    return out


def main(argv: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, default=data_directory(), metavar="DIR",
        help="measured data (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="few seeds, for a first look")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument(
        "--gp-seeds", type=int, metavar="N",
        help=f"of Optuna's Gaussian process sampler; 0: none (default: {GP_SEEDS}, 0 if --quick)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="random jobs (default: 200, 80 if --quick)")
    parser.add_argument("--generator", choices=GENERATORS, help="of random jobs (default: the last there is)")
    parser.add_argument("--generator-seed", type=int, default=0, metavar="N", help="other jobs of it")
    parser.add_argument("--only", nargs="*", help="these contestants only")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    options = parser.parse_args(argv)
    seeds = 3 if options.quick else options.seeds
    jobs = load(options.data)
    result: dict[str, Any] = {"seeds": seeds, "eta": 0.5, "beta": 2.0}
    gp_seeds = (
        options.gp_seeds if options.gp_seeds is not None else 0 if options.quick else min(seeds, GP_SEEDS)
    )
    left_out: dict[str, str] = {}
    names = contestants(left_out)
    if not jobs:
        print(f"no traces of Zeus in {options.data}: random jobs only")
        names = {}
    if options.only:
        names = {name: make for name, make in names.items() if name in options.only}
    if gp_seeds == 0 and names.pop("Optuna GP", None):
        left_out["Optuna GP"] = "it is slow and was not asked for; --gp-seeds 1 plays it"
    for name, why in left_out.items():
        print(f"{name} takes no part: {why}")
    seeds_of = {
        name: {"Optuna TPE": min(seeds, TPE_SEEDS), "Optuna GP": gp_seeds}.get(name, seeds) for name in names
    }
    result |= {"seeds_of": seeds_of, "left_out": left_out}
    for key in ("contestants", "curves", "recurrences_per_s", "recurrences_per_cpu_s"):
        result[key] = {}
    pool = ProcessPoolExecutor(options.workers) if options.workers > 1 else None
    spread: Callable[..., Any] = pool.map if pool else map

    def each_job(function: Callable[..., Any], *rows: Any) -> list[Any]:
        return list(spread(function, *rows))

    for name in names:
        many = len(jobs)
        played = each_job(play_one, [name] * many, jobs, [0.5] * many, [seeds_of[name]] * many)
        result["contestants"][name] = {job.name: one.figures for job, one in zip(jobs, played, strict=True)}
        result["curves"][name] = {job.name: one.curve for job, one in zip(jobs, played, strict=True)}
        total = sum(one.recurrences for one in played)
        result["recurrences_per_s"][name] = total / sum(one.wall_s for one in played)
        result["recurrences_per_cpu_s"][name] = total / sum(one.cpu_s for one in played)
        each = f"{result['recurrences_per_s'][name]:.0f} recurrences/s"
        of = f"{seeds_of[name]} seed{'s' * (seeds_of[name] != 1)}"
        print(
            f"{name}, {of}: {each}, {result['recurrences_per_cpu_s'][name]:.0f} per second of the processor",
            flush=True,
        )
    tell(jobs, result)
    many = options.jobs if options.jobs is not None else 80 if options.quick else 200
    if many and not options.only:
        name = options.generator or generator()
        result["random_jobs"] = random_jobs(
            name, many, 3 if options.quick else 10, each_job, options.generator_seed
        )
        result["summary"] |= result["random_jobs"]["summary"]
    result["decision"] = decision_time()
    drifting = {name: make for name, make in names.items() if name in ("ours", "Zeus")}
    windowed: dict[str, Make] = (
        {**drifting, "Zeus": lambda seed: ZeusOwn(seed, window=10)} if "Zeus" in drifting else drifting
    )
    result["drift"] = drift(jobs, max(seeds // 5, 2), windowed)
    rows = [(key, *(value.get(name) for name in drifting)) for key, value in result["drift"].items()]
    print("\nRecurrences until within 5 % of the best again, after another workload took over\n")
    print(table(["drift", *drifting], rows))
    if not options.quick:
        result["eta_sweep"] = eta_sweep(jobs, max(seeds // 10, 3), list(drifting), each_job)
    if pool:
        pool.shutdown()
    finish(result, options.json)
    return result


def eta_sweep(
    jobs: list[Job], seeds: int, names: Sequence[str], each_job: Callable[..., list[Played]]
) -> dict[str, Any]:
    """Sum of mean regrets at other etas."""
    out: dict[str, dict[str, float]] = {}
    many = len(jobs)
    for eta in (0.0, 0.25, 0.75, 1.0):
        out[f"{eta:g}"] = {}
        for name in names:
            played = each_job(play_one, [name] * many, jobs, [eta] * many, [seeds] * many)
            out[f"{eta:g}"][name] = sum(one.figures["regret_runs"] for one in played)
    print("\nSum of mean regrets by eta\n")
    print(table(["eta", *names], [(eta, *row.values()) for eta, row in out.items()]))
    return out


def random_jobs(
    name: str, count: int, safe_seeds: int, each_job: Callable[..., list[Any]], seed: int = 0
) -> dict[str, Any]:
    """Ours and Zeus' policy on so many random jobs, safe mode and the default on the first 60 of them."""
    made = generated(name, count, seed)
    rows = each_job(_compare, [name] * count, [count] * count, [seed] * count, range(count))
    few = min(count, 60 if safe_seeds > 3 else 20)
    both = each_job(_safe, [name] * few, [count] * few, [seed] * few, range(few), [safe_seeds] * few)
    safe, chance = [one for one, _ in both], [other for _, other in both]
    jobs = [{"name": job.name, "family": job.family, **row} for job, row in zip(made, rows, strict=True)]
    found = random_summary(rows, safe, chance)
    print(f"\nRandom jobs of {name}, {count}, safe mode on {few} with {safe_seeds} seeds\n")
    print(table(["figure", "value"], list(found.items())))
    families = sorted({job.family for job in made})
    by_family = {
        family: random_summary([row for row in jobs if row["family"] == family], safe, chance)
        for family in families
    }
    shown = ("random_jobs_ratio", "random_jobs_ratio_median", "random_jobs_worse_than_zeus",
             "random_jobs_gap_share", "runs_in_a_recurrence_max")
    print("\n" + table(["family", *shown], [(f, *(by_family[f][key] for key in shown)) for f in families]))
    return {"generator": name, "seed": seed, "jobs": jobs, "safe_over_default": safe,
            "default_on_other_draws": chance, "summary": found}


def _compare(name: str, count: int, seed: int, number: int) -> dict[str, float]:
    # A job has a function in it, which no other process takes: each makes the list for itself.
    return compare(generated(name, count, seed)[number], 0)


def _safe(name: str, count: int, seed: int, number: int, seeds: int) -> tuple[float, float]:
    return safe_over_default(generated(name, count, seed)[number], seeds)


def tell(jobs: list[Job], result: dict[str, Any]) -> None:
    """Pairs and summary into `result`, and tables to the terminal."""
    scores = result["contestants"]
    result["pairs"] = []
    for job in jobs:
        row: dict[str, Any] = {"workload": job.workload, "gpu": job.gpu, "recurrences": job.horizon}
        row["regret_runs"] = {name: scores[name][job.name]["regret_runs"] for name in scores}
        for key in ("last_gap", "cost_over_default_at_5", "cost_over_default_at_20"):
            if "ours" in scores:
                row[key] = scores["ours"][job.name].get(key)
        result["pairs"].append(row)
    print("\nRegret, in runs of the best configuration\n")
    rows = [(job.name, *(scores[name][job.name]["regret_runs"] for name in scores)) for job in jobs]
    print(table(["pair", *scores], rows))
    result["summary"] = {}
    if "ours" not in scores or not jobs:
        return
    ours = scores["ours"]
    keys = [
        "regret_runs", "regret_sd", "last_gap", *(f"cost_over_oracle_at_{n}" for n in CHECKPOINTS),
        "cost_over_oracle_all", "break_even", "cost_over_default_at_5", "cost_over_default_at_20",
        "energy_over_default", "time_over_default",
    ]
    print("\nOurs\n")
    print(table(["pair", *keys], [(job.name, *(ours[job.name].get(key) for key in keys)) for job in jobs]))
    summary: dict[str, Any] = {"last_gap_max": max(row["last_gap"] for row in ours.values())}
    for n in (5, 20):
        over = [row[key] for row in ours.values() if (key := f"cost_over_default_at_{n}") in row]
        if over:
            summary[f"over_default_max_at_{n}"] = max(over)
    if "Zeus" in scores:
        zeus = scores["Zeus"]
        ratio = {name: ours[name]["regret_runs"] / zeus[name]["regret_runs"] for name in ours}
        summary["regret_ratio_to_zeus"] = sum(r["regret_runs"] for r in ours.values()) / sum(
            r["regret_runs"] for r in zeus.values()
        )
        summary["regret_ratio_by_gpu"] = {
            gpu: sum(ours[job.name]["regret_runs"] for job in jobs if job.gpu == gpu)
            / sum(zeus[job.name]["regret_runs"] for job in jobs if job.gpu == gpu)
            for gpu in sorted({job.gpu for job in jobs})
        }
        summary["pairs_worse_by_a_run"] = sum(
            ours[name]["regret_runs"] > zeus[name]["regret_runs"] + 1 for name in ours
        )
        summary["pairs_not_better_than_zeus"] = sum(value >= 1 for value in ratio.values())
        summary["ratio_by_pair"] = ratio
    if "ours, safe" in scores:
        safe = scores["ours, safe"]
        summary["safe_mode_max"] = max(row["over_default_from_5"] for row in safe.values())
        if "best limit only" in scores:
            for key, name in (("safe_mode_sum", "ours, safe"), ("best_limit_sum", "best limit only")):
                summary[key] = sum(
                    scores[name][job.name]["cost_over_oracle_all"] * job.horizon for job in jobs
                )
    result["summary"] = summary
    print("\nSummary\n")
    print(
        table(
            ["figure", "value"],
            [(key, value) for key, value in summary.items() if not isinstance(value, dict)],
        )
    )


if __name__ == "__main__":
    main()
