"""Iteration periods: the detector and its peers on traces with known truth, on simulated jobs, and through
the simulated GPU.

    python -m benchmarks.periods [--data DIR] [--json FILE] [--quick]

`period_scores` defines the scores. Every detector gets time, power and utilisations, and no truth. About five
minutes on one core; with `--quick` a sixth of the traces and a tenth of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import period_calibration as calibration
from benchmarks import period_endtoend as endtoend
from benchmarks import period_generated as made
from benchmarks import period_live as live
from benchmarks.common import arguments, finish, table
from benchmarks.period_cases import Case, load_cases, published_answers, stratified
from benchmarks.period_peers import detectors
from benchmarks.period_scores import CRASHED, Detector, guarded, score_cases, tell
from benchmarks.tracking import measure_online_cost, time_to_sure
from workbench.errors import UsageError
from workbench.periods.detect import find_periods

OURS = guarded(find_periods)
COLUMNS = (
    "iteration_exact", "level_exact", "false_levels", "factor_errors", "sure_share", "wrong_but_sure",
    "rhythm_sure", "rhythm_wrong", "role_sure", "role_wrong", "false_alarms", "unobservable_sure_wrong",
    "cpu_ms",
)
GROUP = (
    "observable", "iteration_exact", "level_exact", "false_levels", "factor_errors", "sure_share",
    "wrong_but_sure", "rhythm_sure", "rhythm_wrong", "role_sure", "role_wrong",
)
MIXED, APERIODIC, NESTED, ONLINE_S, GRAMMAR, LIVE = 2000, 1000, 22, 600.0, 600, 60


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(__doc__ or "", argv)
    quick = options.quick
    result: dict[str, Any] = {"quick": quick, "summary": {}}
    cases: list[Case] = []
    try:
        cases = load_cases(options.data)
    except UsageError as error:
        print(f"{error}\nThat part is left out.\n")
    if cases:
        result |= on_data(stratified(cases, 6) if quick else cases, options.data)
    result["generated"] = on_generated(MIXED // (10 if quick else 1), APERIODIC // (10 if quick else 1))
    result["grammar"] = on_grammar(GRAMMAR // (10 if quick else 1))
    result["live"] = on_live(LIVE // (6 if quick else 1))
    result["nested"] = on_nested(NESTED // (6 if quick else 1))
    if cases:
        result["until_sure"] = how_soon(
            stratified(cases, 12 if quick else 1), published_answers(options.data)
        )
    result["cpu"] = what_it_costs(cases, quick)
    result["end_to_end"] = through_the_gpu(quick)
    result["limits"] = limits(result)
    print(
        "\nLimits\n\n"
        + table(("what", "measured", "limit", "kept"), [list(row.values()) for row in result["limits"]])
    )
    finish(_plain(result), options.json)


def on_data(cases: Sequence[Case], data: Path) -> dict[str, Any]:
    """Ours, the peers and GPOEO's published answers: whole traces, and the seconds that GPOEO's online
    loop used.
    """
    published = published_answers(data)
    result: dict[str, Any] = {}
    scores = _everyone(cases)
    if published is None:
        print(
            f"{data} holds no answers of GPOEO (*gpoeo*.csv): it is left out, and so are the seconds that it "
            "used\n"
        )
    else:
        scores["gpoeo"] = tell(made.published_rows(published, cases))
        scores["gpoeo"]["summary"]["cpu_ms"] = _published_cpu_ms(data)
    kinds = [sum(test(case) for case in cases) for test in (_seen, _hidden, _negative)]
    print(
        f"{len(cases)} traces with known truth: {kinds[0]} observable, {kinds[1]} not observable, {kinds[2]} "
        "aperiodic; whole traces\n"
    )
    _show(scores)
    _show_families(scores)
    ours = scores["ours"]
    print("\nOurs by family and by sensor\n")
    for key in ("families", "sensors"):
        print(
            table(
                (key, *GROUP),
                [[name, *(group[column] for column in GROUP)] for name, group in ours[key].items()],
            )
            + "\n"
        )
    result["summary"] = {name: _flat(score["summary"]) for name, score in scores.items()}
    result["details"] = {
        name: {key: value for key, value in score.items() if key != "rows"} for name, score in scores.items()
    }
    result["rows"] = ours["rows"]
    if published is not None:
        short = [case.first(published[case.name]["seconds_used"]) for case in cases if case.name in published]
        scores = _everyone(short)
        scores["gpoeo"] = tell(made.published_rows(published, cases))
        scores["gpoeo"]["summary"]["cpu_ms"] = _published_cpu_ms(data)
        print("The same traces, cut to the seconds that GPOEO's own online loop used\n")
        _show(scores)
        result["summary_gpoeo_seconds"] = {name: _flat(score["summary"]) for name, score in scores.items()}
        result["details_gpoeo_seconds"] = {name: score["families"] for name, score in scores.items()}
    return result


def on_generated(mixed: int, aperiodic: int) -> dict[str, Any]:
    """Calibration over a mixture of simulated jobs (a quarter aperiodic), and false alarms over aperiodic
    ones.
    """
    rows = made.scored(OURS, made.generated(made.MIXTURE, mixed))
    told, found = tell(rows), calibration.tell(rows)
    few = list(made.generated(made.MIXTURE, mixed // 4))
    peers = {name: score_cases(detect, few) for name, detect in detectors().items()}
    print(
        f"\n{mixed} jobs of our own simulator, {found['negatives']} of them aperiodic; the peers on the "
        f"first {len(few)}\n"
    )
    _show({"ours": told, **peers})
    print(
        "\n"
        + table(
            ("family", *GROUP),
            [
                [name, *(group[key] for key in GROUP)]
                for name, group in told["families"].items()
                if group["observable"]
            ],
        )
    )
    for key in ("iteration", "all_levels"):
        bins, words = found[key]["bins"], key.replace("_", " ")
        error, even = (
            _number(found[key][f"expected_calibration_error{kind}"]) for kind in ("", "_equal_count")
        )
        print(
            f"\nConfidence of {words}: expected calibration error {error} (bins of equal count {even}), "
            f"{found[key]['claims']} claims\n"
        )
        if bins:
            print(table(tuple(bins[0]), [list(each.values()) for each in bins]))
    covered = found["coverage"]
    print(
        f"\nStated 95 % uncertainty of the iteration holds the true mean in {_number(covered['covered'])} of "
        f"{covered['cases']} "
        f"(sure ones: {_number(found['coverage_sure']['covered'])} of {found['coverage_sure']['cases']})"
    )
    negatives = tell(made.scored(OURS, made.generated(made.NEGATIVES, aperiodic, negatives=1.0)))
    kinds = {
        name: group["false_alarms"] for name, group in negatives["families"].items() if group["false_alarms"]
    }
    print(
        f"False alarms on {aperiodic} aperiodic jobs: {negatives['summary']['false_alarms']:.4f} "
        f"{kinds or ''}"
    )
    return {
        "mixture": told["summary"], "families": told["families"], "calibration": found,
        "negatives": negatives["summary"],
        "peers": {name: _flat(score["summary"]) for name, score in peers.items()},
        "negatives_by_family": {name: group["false_alarms"] for name, group in negatives["families"].items()},
    }


def on_grammar(count: int) -> dict[str, Any]:
    """Jobs by a grammar, in physical seconds, from seeds that were drawn after the last change."""
    told = tell(made.scored(OURS, made.by_grammar(count)))
    print(f"\n{count} jobs by a grammar, in physical seconds\n")
    _show({"ours": told})
    heads = ("family", "unobservable", "unobservable_sure_wrong", *GROUP)
    print("\n" + table(heads, [[name, *(group[key] for key in heads[1:])]
                              for name, group in told["families"].items()]))
    return {"summary": _flat(told["summary"]), "families": told["families"]}


def on_live(count: int) -> dict[str, Any]:
    """Beats and periods in a running measurement: their separation and its delay."""
    told = live.beats(count)
    print(f"\nLive, beats and periods of the same length: {_scalars(told)}")
    return told


def on_nested(count: int) -> dict[str, Any]:
    """Steps inside optimizer steps inside checkpoint cycles, polled at 0.1 s."""
    cases = made.nested(count)
    scores = _everyone(cases)
    print(
        f"\n{len(cases)} simulated data-parallel trainings with checkpoints, as the recorded ones are "
        "described\n"
    )
    _show(scores, ("step_exact", *COLUMNS))
    return {name: _flat(score["summary"]) for name, score in scores.items()} | {
        "rows": scores["ours"]["rows"]
    }


def how_soon(cases: Sequence[Case], published: Mapping[str, Any] | None) -> dict[str, Any]:
    """Periods of data until sure and right: the detector on growing traces, the online tracker, GPOEO."""
    rows = made.until_sure(OURS, cases)
    result: dict[str, Any] = {"detector": made.tell_until_sure(rows)}
    families = sorted({row["family"] for row in rows})
    result["by_family"] = {
        family: made.tell_until_sure([row for row in rows if row["family"] == family]) for family in families
    }
    if published is not None:
        result["gpoeo"] = made.gpoeo_until_sure(published, cases)
    print("\nData until sure and right, in periods\n")
    told = {key: result[key] for key in ("detector", "gpoeo") if key in result} | result["by_family"]
    print(table(("who", *result["detector"]), [[name, *values.values()] for name, values in told.items()]))
    result["tracker"] = made.tell_until_sure(_followed(cases))
    print(f"\nThe online tracker, until it is right and stays so: {_scalars(result['tracker'])}")
    return result


def _followed(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """How soon `PeriodTracker` is right and sure to the end of the trace, in the shape of `until_sure`."""
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for case in cases:
        if not case.truth.observable or not case.truth.mean_s:
            continue
        try:
            (row,) = time_to_sure([(case.trace, case.truth.mean_s)])
        except Exception as error:  # one bad trace must not end a benchmark; it never got there
            failed.append(f"case {case.name}: {type(error).__name__}: {error}")
            row = {"seconds": None, "periods": None, "right": False, "wrong_first": False}
        rows.append(
            row | {"first_sure_right": False if row["wrong_first"] else True if row["right"] else None}
        )
    if failed:
        print(f"\nThe tracker failed on {len(failed)} cases; {failed[0]}")
    return rows


def what_it_costs(cases: Sequence[Case], quick: bool) -> dict[str, Any]:
    """CPU time of a two-minute trace at 10 Hz, and online of a sample."""
    result: dict[str, Any] = {"two_minutes_ms": made.cpu_ms(OURS, cases)}
    result["lomb_scargle_ms"] = made.cpu_ms(guarded(detectors()["lomb_scargle"]), cases)
    own, peer = (result[key]["median"] for key in ("two_minutes_ms", "lomb_scargle_ms"))
    result["times_lomb_scargle"] = own / peer if own and peer else None
    print(f"\nCPU time of a two-minute trace at 10 Hz (ms): {_scalars(result['two_minutes_ms'])}; "
          f"Lomb-Scargle {_scalars(result['lomb_scargle_ms'])}")
    result["online"] = measure_online_cost(ONLINE_S / (10 if quick else 1), detect=OURS)
    print(f"Online: {_scalars(result['online'])}")
    return result


def through_the_gpu(quick: bool) -> dict[str, Any]:
    """The six workloads on simulated cards, through driver, sampler and recorder, against the job's own
    marks.
    """
    rows = endtoend.trainings(
        OURS, endtoend.CARDS[1:3] if quick else endtoend.CARDS, 1 if quick else endtoend.SIZES
    )
    heads = (
        "card", "workload", "batch_size", "checkpoints", "seconds", "true_s", "observable", "found_s",
        "relative_error", "right", "level_right", "sure", "confidence",
    )
    print("\nThrough the simulated GPU: seconds per iteration against the job's true marks\n")
    print(table(heads, [[row[head] for head in heads] for row in rows]))
    told = endtoend.summary(rows)
    print(f"\n{_scalars(told)}")
    return {"summary": told, "rows": rows}


def limits(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Promised values next to measured ones; figures without a measurement in this run are missing."""
    ours, made_up = result["summary"].get("ours", {}), result["generated"]
    soon, cpu = result.get("until_sure", {}), result["cpu"]
    covered = made_up["calibration"]["coverage"]["covered"]
    crashes = sum(part.get("crashes", 0) for part in (ours, made_up["mixture"], made_up["negatives"]))
    most = [
        ("errors raised", crashes, 0), ("factor errors", ours.get("factor_errors"), 0.03),
        ("sure, and not the iteration", ours.get("wrong_but_sure"), 0.04),
        ("sure of a role, and wrong", ours.get("role_wrong"), 0.04),
        ("sure of a period, and no true level", ours.get("rhythm_wrong"), 0.015),
        ("nested, sure of a wrong role", result["nested"]["ours"].get("role_wrong"), 0.05),
        ("false alarms, traces", ours.get("false_alarms"), 0.0),
        ("false alarms, simulated", made_up["negatives"]["false_alarms"], 0.001),
        ("wrong claims on unobservable", ours.get("unobservable_sure_wrong"), 0.08),
        ("beats followed, live", result["live"]["beats_followed"], 0.05),
        ("calibration error", made_up["calibration"]["iteration"]["expected_calibration_error"], 0.05),
        ("periods until sure (median)", soon.get("detector", {}).get("median_periods"), 5.0),
        ("the same, online tracker", soon.get("tracker", {}).get("median_periods"), 5.0),
        ("CPU of two minutes, times Lomb-Scargle", cpu["times_lomb_scargle"], 1.5),
        ("CPU of a sample online (us)", cpu["online"]["us_per_sample"], 50.0),
        ("the same, without a period", cpu["online"]["us_per_sample_in_vain"], 50.0),
    ]
    least = [
        ("iteration exact", ours.get("iteration_exact"), 0.875),
        ("level exact", ours.get("level_exact"), 0.955), ("sure of a role", ours.get("role_sure"), 0.70),
        ("sure of a period", ours.get("rhythm_sure"), 0.78),
        ("nested, only true levels named", result["nested"]["ours"].get("level_exact"), 0.95),
        ("beats recognised within 10 s", result["live"]["beats_recognised"], 0.95),
        ("uncertainty covers, at least", covered, 0.85),
    ]
    most.append(("uncertainty covers, at most", covered, 0.95))
    told = [
        (name, value, f">= {bound:g}", value is not None and value >= bound) for name, value, bound in least
    ]
    told += [
        (name, value, f"<= {bound:.3g}", value is not None and value <= bound) for name, value, bound in most
    ]
    return [
        dict(zip(("what", "value", "limit", "kept"), row, strict=True)) for row in told if row[1] is not None
    ]


def _everyone(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    everyone: dict[str, Detector] = {"ours": OURS, **detectors()}
    return {name: score_cases(detect, cases) for name, detect in everyone.items()}


def _show(scores: Mapping[str, Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> None:
    print(
        table(
            ("detector", *columns),
            [[name, *(score["summary"][key] for key in columns)] for name, score in scores.items()],
        )
    )
    for name, score in scores.items():
        if count := score["summary"][
            "crashes"
        ]:  # an error counts as no answer, which must not pass for caution
            first = next(row["reason"] for row in score["rows"] if row["reason"].startswith(CRASHED))
            print(f"\n{name} raised an error on {count} cases; the first {first}")


def _show_families(scores: Mapping[str, Mapping[str, Any]]) -> None:
    families = [name for name, group in scores["ours"]["families"].items() if group["observable"]]
    rows = [
        [
            family, scores["ours"]["families"][family]["observable"],
            *(score["families"][family]["iteration_exact"] for score in scores.values()),
        ]
        for family in families
    ]
    print("\nIteration exact, by family\n\n" + table(("family", "cases", *scores), rows))


def _published_cpu_ms(data: Path) -> float | None:
    """GPOEO's CPU time as published with its answers; None where that file is not there."""
    directory = data / "period" if (data / "period").is_dir() else data
    for path in directory.glob("*detector_results*.csv"):
        rows = pl.read_csv(path)
        if {"method", "cpu_ms"} <= set(rows.columns):
            known = rows.filter(pl.col("method") == "gpoeo")["cpu_ms"]
            return float(known[0]) if len(known) else None
    return None


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if not isinstance(value, dict)}


def _plain(value: Any) -> Any:
    """The same without what JSON has no word for: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _scalars(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {value:.3g}"
        if isinstance(value, float)
        else f"{key.replace('_', ' ')} {value}"
        for key, value in values.items()
        if isinstance(value, (int, float, str))
    )


def _seen(case: Case) -> bool:
    return case.truth.periodic and case.truth.observable


def _hidden(case: Case) -> bool:
    return case.truth.periodic and not case.truth.observable


def _negative(case: Case) -> bool:
    return not case.truth.periodic


if __name__ == "__main__":
    main()
