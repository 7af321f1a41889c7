"""The predictor of clocks on measured counters: trained on microbenchmarks, scored on unseen applications.

`benchmarks.clocks` calls `predictor`; alone: python -m benchmarks.clocks_predictor [--data DIR] [--json FILE]
[--quick]

Every pair `counters/NAME_microbenchmarks.csv`, `counters/NAME_applications.csv` is one card. The only inputs
from the applications are those that a user has, too: counters and power at the highest clocks. Contestants:

- "plain": Default LightGBM on the counters, the power and the relative clocks. It predicts ln relative time
  and power.
- "ours": `ClockModel`. GPOEO's search starts from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import arguments, finish, table
from benchmarks.peers import make_search, report
from workbench.errors import UsageError
from workbench.records import Setting
from workbench.search.space import SettingSpace, space_of
from workbench.search.surrogates.predictor import CLOCKS, ClockModel, Prediction

Array = np.ndarray[Any, Any]
COUNTERS = {
    "SMACT": "sm_active", "SMOCC": "sm_occupancy", "TENSO": "tensor_active", "FP64A": "fp64_active",
    "FP32A": "fp32_active", "FP16A": "fp16_active", "DRAMA": "dram_active",
}
COLUMNS = {
    "core_frequency": "sm_clock_mhz", "memory_frequency": "mem_clock_mhz", "time": "iteration_s",
    "average_power": "power_w", **COUNTERS,
}
SLOWDOWN = 0.05
ITERATIONS = 1000  # of a trial, of one second each at the reference
TARGETS = {
    "time_ratio_to_plain": 0.85, "power_ratio_to_plain": 0.85, "choice_regret": 0.025, "bound_broken": 0.05,
}


@dataclass(frozen=True)
class Measured:
    """Workloads of one file: features and power at the highest clocks, ln relative time and power at all
    settings (reference first).
    """

    names: tuple[str, ...]
    settings: tuple[Setting, ...]
    features: pl.DataFrame
    power_w: Array
    log_time: Array
    log_power: Array

    def __len__(self) -> int:
        return len(self.names)


def frame_of(path: Path) -> pl.DataFrame:
    """A counters file in the columns of `ClockModel.train`."""
    frame = pl.read_csv(path, infer_schema_length=None)
    return frame.rename({old: new for old, new in COLUMNS.items() if old in frame.columns}).with_columns(
        workload=pl.concat_str("benchmark", "kernel", "argNo", separator="/"),
        # Variants of one benchmark share most of their kernels ("cachebench", "cachebench-l2-only"): they are
        # one group.
        group=pl.col("benchmark").str.extract(r"^([A-Za-z0-9]+)", 1),
        reference=pl.all_horizontal(pl.col(name) == pl.col(name).max() for name in CLOCKS),
    )


def measured(frame: pl.DataFrame) -> Measured:
    """Workloads that were measured at the highest clocks; settings that some of them lack are NaN there."""
    knobs = list(CLOCKS)
    means = frame.group_by("workload", *knobs, maintain_order=True).agg(
        pl.col("iteration_s", "power_w", *COUNTERS.values()).mean()
    )
    keys = means.select(knobs).unique().sort("mem_clock_mhz", "sm_clock_mhz", descending=True)
    top = means.join(keys.head(1), on=knobs).sort("workload")
    order = {name: row for row, name in enumerate(top["workload"].to_list())}
    place = {key: at for at, key in enumerate(keys.rows())}
    times, powers = np.full((len(order), keys.height), np.nan), np.full((len(order), keys.height), np.nan)
    for workload, sm, mem, time_s, power_w in means.select(
        "workload", *knobs, "iteration_s", "power_w"
    ).rows():
        if workload in order:
            times[order[workload], place[sm, mem]], powers[order[workload], place[sm, mem]] = (
                np.log(time_s), np.log(power_w),
            )
    settings = tuple(Setting(sm_clock_mhz=int(sm), mem_clock_mhz=int(mem)) for sm, mem in keys.rows())
    return Measured(
        tuple(order), settings, top.select(COUNTERS.values()), top["power_w"].to_numpy(),
        times - times[:, :1], powers - powers[:, :1],
    )


# the plain contestants


def plain(train: Measured, test: Measured) -> tuple[Array, Array]:
    """LightGBM with its defaults; ln relative time and power, (workloads, settings)."""
    import lightgbm

    def rows(of: Measured) -> Array:
        places = [(each.sm_clock_mhz, each.mem_clock_mhz) for each in train.settings]
        clocks = np.array(places, float) / np.array(places[0], float)
        columns = np.hstack([of.features.to_numpy(), of.power_w[:, None]])
        return np.hstack([np.repeat(columns, len(clocks), axis=0), np.tile(clocks, (len(columns), 1))])

    found = []
    for target in (train.log_time, train.log_power):
        seen = np.isfinite(target.ravel())
        data = lightgbm.Dataset(rows(train)[seen], target.ravel()[seen])
        booster = lightgbm.train(
            {"objective": "regression", "num_threads": 1, "verbosity": -1, "deterministic": True}, data, 100
        )
        found.append(
            np.asarray(booster.predict(rows(test), num_threads=1)).reshape(len(test), len(train.settings))
        )
    return found[0], found[1]


# ours


def predictions(model: ClockModel, test: Measured, space: SettingSpace) -> list[Prediction]:
    return [
        model.predict(
            {name: value for name, value in row.items() if value is not None}, space, float(test.power_w[i])
        )
        for i, row in enumerate(test.features.iter_rows(named=True))
    ]


def logs(found: Sequence[Prediction]) -> tuple[Array, Array]:
    """ln relative time and power of predictions, (workloads, settings); what a model cannot report is scored
    as "no change".
    """
    times, energies = (
        np.array([each.frame[name].to_numpy() for each in found], float)
        for name in ("log_time", "log_energy")
    )
    told = np.isfinite(times + energies)
    return np.where(told, times, 0.0), np.where(told, energies - times, 0.0)


# scores


def errors(found: tuple[Array, Array], test: Measured) -> tuple[float, float]:
    """Mean absolute relative error of time and power over all lower settings, in percent."""
    pairs = ((found[0], test.log_time), (found[1], test.log_power))
    # type: ignore[return-value]
    return tuple(float(100 * np.nanmean(np.abs(np.exp(said - true)[:, 1:] - 1))) for said, true in pairs)


def charged(test: Measured, picks: Sequence[int]) -> dict[str, Any]:
    """Regret of picks: energy over the best that keeps the bound; one that breaks it is charged as the
    highest clock and counted.
    """
    energy, allowed = test.log_time + test.log_power, test.log_time <= np.log1p(SLOWDOWN)
    best = np.nanmin(np.where(allowed, energy, np.nan), axis=1)
    line = np.arange(len(picks))
    kept = allowed[line, list(picks)]
    got = np.where(kept, energy[line, list(picks)], 0.0)
    regret = np.expm1(got - best)
    return {
        "regret": float(regret.mean()), "worst": float(regret.max()), "broken": float(np.mean(~kept)),
        "picks": list(map(int, picks)),
    }


def by_the_numbers(found: tuple[Array, Array]) -> list[int]:
    """The choice of a plain prediction: the least predicted energy among settings that it predicts to keep
    the slowdown limit.
    """
    energy = np.where(found[0] <= np.log1p(SLOWDOWN), found[0] + found[1], np.inf)
    energy[:, 0] = 0.0
    return [int(each) for each in energy.argmin(axis=1)]


def searched(
    found: Sequence[Prediction | None], space: SettingSpace, test: Measured
) -> tuple[list[int], dict[str, float]]:
    """Picks of GPOEO's search; and what its trials took, in iterations at the highest clocks."""
    picks, spent, broken = [], np.zeros(2), 0
    for i, prediction in enumerate(found):
        search = make_search("gpoeo", space, max_slowdown=SLOWDOWN, prior=prediction)
        while (plan := search.next(search.now_s)).kind != "held":
            at = plan.row
            time = float(test.log_time[i, at])
            energy = time + float(test.log_power[i, at])
            if not np.isfinite(energy):
                search.bar(at, "not measured")
                continue
            report(search, at, ITERATIONS, *(ITERATIONS * np.exp([time, energy])).tolist())
            spent += np.exp([time, energy]) * (at > 0)
            broken += time > np.log1p(SLOWDOWN)
        picks.append(plan.row)
    return picks, {
        "time": spent[0] / len(found), "energy": spent[1] / len(found), "beyond_bound": broken / len(found),
    }


def card(name: str, train_frame: pl.DataFrame, test_frame: pl.DataFrame) -> dict[str, Any]:
    """All contestants on one card."""
    train, test = measured(train_frame), measured(test_frame)
    space = space_of(test.settings, test.settings[0])
    model = ClockModel.train(train_frame, gpu=name, feature_set="gpm")
    found = predictions(model, test, space)
    law = replace(model, curves=replace(model.curves, share=0.0))
    aligned = _aligned(train, test)
    simple = plain(aligned, test)
    ours = logs(found)
    rows = {
        "plain": errors(simple, test), "ours": errors(ours, test),
        "physics alone": errors(logs(predictions(law, test, space)), test),
    }
    none = [None] * len(test)
    choices = {
        "always the highest": charged(test, [0] * len(test)), "plain": charged(test, by_the_numbers(simple)),
        "ours, by the numbers": charged(test, by_the_numbers(ours)),
    }
    for title, priors in (("GPOEO's search with ours", found), ("GPOEO's search without a model", none)):
        picks, cost = searched(priors, space, test)
        choices[title] = charged(test, picks) | {"probes": cost}
    ratios = [rows["ours"][i] / rows["plain"][i] for i in (0, 1)]
    summary = {
        "time_ratio_to_plain": ratios[0], "power_ratio_to_plain": ratios[1],
        "choice_regret": choices["ours, by the numbers"]["regret"],
        "bound_broken": choices["ours, by the numbers"]["broken"],
    }
    return {
        "name": name,
        "summary": summary,
        "errors": rows,
        "choices": choices,
        "by_clock": _by_clock({"plain": simple, "ours": ours}, test),
        "model": {"held_out": model.error, "workloads": model.workloads},
    }


def _aligned(train: Measured, test: Measured) -> Measured:
    """The training set at the settings of the test set, in their order."""
    at = {setting: i for i, setting in enumerate(train.settings)}
    missing = [str(each) for each in test.settings if each not in at]
    if missing:
        raise UsageError(
            f"the applications were measured at {', '.join(missing)}, where no microbenchmark was; leave "
            "these rows out"
        )
    order = [at[each] for each in test.settings]
    return Measured(
        train.names, test.settings, train.features, train.power_w, train.log_time[:, order],
        train.log_power[:, order],
    )


def _by_clock(found: dict[str, tuple[Array, Array]], test: Measured) -> list[dict[str, Any]]:
    rows = []
    for at, setting in enumerate(test.settings):
        if at == 0:
            continue
        row: dict[str, Any] = {"setting": str(setting)}
        for name, (time, power) in found.items():
            row[f"{name}: time"] = float(
                100 * np.nanmean(np.abs(np.expm1(time[:, at] - test.log_time[:, at])))
            )
            row[f"{name}: power"] = float(
                100 * np.nanmean(np.abs(np.expm1(power[:, at] - test.log_power[:, at])))
            )
        rows.append(row)
    return rows


def held_out(
    frame: pl.DataFrame, *, keep_clocks: int = 1, noise: float = 0.0, memory: bool = True
) -> tuple[float, float]:
    """Errors in percent on microbenchmarks of groups that were left out, with less to learn from.

    Args:
        keep_clocks: Learn from every n-th clock only, the highest and the lowest among them; score all.
        noise: Relative noise on counters, on power at the reference, and on all that is learned from.
        memory: Whether memory activity is reported.
    """
    rng = np.random.default_rng(1)
    noisy = frame.with_columns(
        (pl.col(name) * pl.Series(np.exp(noise * rng.standard_normal(frame.height)))).alias(name)
        for name in (*COUNTERS.values(), "iteration_s", "power_w")
    )
    clocks = sorted(frame["sm_clock_mhz"].unique().to_list(), reverse=True)
    learned = {*clocks[::keep_clocks], clocks[-1]}
    wrong, counts = [], []
    for group in sorted(frame["group"].unique().to_list()):
        train = noisy.filter((pl.col("group") != group) & pl.col("sm_clock_mhz").is_in(learned))
        test, seen = (
            measured(frame.filter(pl.col("group") == group)),
            measured(noisy.filter(pl.col("group") == group)),
        )
        counters = seen.features
        if not memory:
            train, counters = train.drop("dram_active"), counters.drop("dram_active")
        model = ClockModel.train(train, gpu="left out", feature_set="gpm")
        seen = replace(test, features=counters, power_w=seen.power_w)
        wrong.append(errors(logs(predictions(model, seen, space_of(test.settings, test.settings[0]))), test))
        counts.append(len(test))
    mean = np.average(np.array(wrong), axis=0, weights=counts)
    return float(mean[0]), float(mean[1])


def robust(frame: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """`held_out` in several ways; the applications are not touched."""
    return {
        "as it is": held_out(frame), "5 % noise on counters, power and time": held_out(frame, noise=0.05),
        "every other clock learned": held_out(frame, keep_clocks=2),
        "every fourth clock learned": held_out(frame, keep_clocks=4),
        "power only": held_out(frame, memory=False),
    }


def predictor(data: Path, quick: bool = False) -> dict[str, Any]:
    """Results of every card of `data/counters`; the summary is the mean over cards, `bound_broken` the worst.

    Args:
        data: Directory of measured data.
        quick: Omit the results with less training data.

    Raises:
        UsageError: There is no pair of files.
    """
    cards = []
    for path in sorted((data / "counters").glob("*_microbenchmarks.csv")):
        name = re.sub(r"_microbenchmarks$", "", path.stem)
        other = path.with_name(f"{name}_applications.csv")
        if other.exists():
            cards.append(card(name, frame_of(path), frame_of(other)))
            if not quick:
                cards[-1]["robust"] = robust(frame_of(path))
    if not cards:
        raise UsageError(
            f"{data / 'counters'} has no pair NAME_microbenchmarks.csv, NAME_applications.csv; name the data "
            "with --data DIR"
        )
    summary = {key: float(np.mean([each["summary"][key] for each in cards])) for key in TARGETS}
    summary["bound_broken"] = max(each["summary"]["bound_broken"] for each in cards)
    result = {"summary": summary, "cards": cards}
    tell(result)
    return result


def tell(result: dict[str, Any]) -> None:
    """Print the results as tables."""
    for each in result["cards"]:
        print(f"\n## {each['name']}: {each['model']['workloads']} workloads to learn from\n")
        print(
            table(
                ["from counters alone", "time, %", "power, %"],
                [[name, *pair] for name, pair in each["errors"].items()],
            )
        )
        print()
        heads = [
            "choice within 5 %", "mean regret, %", "worst, %", "bound broken", "probes: time",
            "probes: energy", "probes beyond",
        ]
        rows = []
        for name, one in each["choices"].items():
            cost = one.get("probes", {})
            paid = [cost.get(key) for key in ("time", "energy", "beyond_bound")]
            rows.append([name, 100 * one["regret"], 100 * one["worst"], one["broken"], *paid])
        print(table(heads, rows))
        print()
        print(table(list(each["by_clock"][0]), [list(row.values()) for row in each["by_clock"]]))
        if "robust" in each:
            print()
            print(
                table(
                    ["groups of microbenchmarks left out", "time, %", "power, %"],
                    [[n, *pair] for n, pair in each["robust"].items()],
                )
            )
        print(f"\nheld-out error of time and power: {each['model']['held_out']}")
    print()
    print(
        table(
            ["figure", "value", "aim"],
            [[key, result["summary"][key], f"<= {aim}"] for key, aim in TARGETS.items()],
        )
    )


def main() -> None:
    options = arguments("Predicted time and power at every clock, from counters.")
    result = predictor(options.data, options.quick)
    finish({"summary": {"predictor": result["summary"]}, "predictor": result}, options.json)


if __name__ == "__main__":
    main()
