"""The texts of a frontier's panel, about its points and the chosen one."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ....errors import UsageError
from ....logbook.quantities import format_change, format_seconds
from ....logbook.report import format_duration, format_energy
from ....logbook.store import for_spreadsheets
from ....search import frontier, tradeoff
from ....search.objective import ZeusCost, check_slowdown
from ....search.tradeoff import Z95, FrontierAnalysis, Saving, Work, describe
from ....tariff import Tariff

KNOB_HEADS = {
    "power_limit_w": ("limit (W)", "power limit in watts"), "sm_clock_mhz": ("SM (MHz)", "SM clock"),
    "mem_clock_mhz": ("memory (MHz)", "memory clock"), "batch_size": ("batch", "batch size"),
}
CHANGES = (("energy", "energy_j"), ("time", "time_s"))
MANUAL, ETA, SLOWDOWN = "hand", "eta", "slowdown"  # how a choice was made
RULES = (MANUAL, ETA, SLOWDOWN)


@dataclass(frozen=True)
class FrontierChoice:
    """The chosen point and its rule.

    Attributes:
        row: Row of the points.
        rule: "hand" (a step, a click), "eta" (least cost), "slowdown" (least energy within the limit).
        eta: Weight of energy in the lines of equal cost.
        max_slowdown: Slowdown limit relative to the default, as a fraction; None for no limit.
    """

    row: int
    rule: str = ETA
    eta: float = 0.5
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UsageError(f"a choice is made by {', '.join(RULES)}, not by {self.rule!r}")
        ZeusCost(self.eta, 1.0)  # raises for an invalid eta
        check_slowdown(self.max_slowdown)


def ruled(analysis: FrontierAnalysis, choice: FrontierChoice) -> int:
    """The row that a rule selects; for "hand" the row itself, or the slowest within the limit."""
    allowed = analysis.allowed(choice.max_slowdown)
    if choice.rule == ETA:
        return int(analysis.front[analysis.optimum(choice.eta, choice.max_slowdown)])
    if choice.rule == SLOWDOWN:
        return int(analysis.front[allowed - 1])
    place = analysis.place(choice.row)
    return choice.row if place is None or place < allowed else int(analysis.front[allowed - 1])


def table(analysis: FrontierAnalysis, work: Work) -> list[dict[str, Any]]:
    """The points as columns: name, hint, values to sort by, and texts where these are not the values."""
    points, unit = analysis.points, a(work.unit)
    costs = [amounts(analysis, row) for row in range(len(points))]
    columns: list[tuple[str, str, Any, Any]] = [
        ("time", f"time {unit}", points["time_s"], [time for time, _ in costs]),
        ("energy", f"energy {unit}", points["energy_j"], [energy for _, energy in costs]),
    ]
    if analysis.reference is not None:
        for each, column in CHANGES:
            shares = points[column] / points[column][analysis.reference] - 1
            columns.append((f"{each} vs. default", "relative to default", shares, [*map(rounded, shares)]))
    known = [name for name in KNOB_HEADS if points[name].is_not_null().any()]
    columns += [(*KNOB_HEADS[name], points[name], None) for name in known]
    if len(analysis.gpus) > 1:
        columns.append(("GPU", "its name", points["gpu"], None))
    chances = [f"{100 * chance:.0f} %" for chance in analysis.chance]
    pooled = [str(row["repeats"]) if row["measured"] else "predicted" for row in analysis.rows]
    columns += [
        ("frontier", "probability of being on the frontier", analysis.chance, chances),
        ("repeats", "measurements that are pooled", points["repeats"] * points["measured"], pooled),
    ]
    return [dict(zip(("name", "hint", "values", "texts"), (*head, list(values), texts), strict=True))
            for *head, values, texts in columns]


def begins(analysis: FrontierAnalysis, row: int) -> int:
    """The place on the frontier that a step from a row begins at: the nearest, axes in shares."""
    points = np.log(analysis.points.select("time_s", "energy_j").to_numpy())
    return int(np.argmin(((points[analysis.front] - points[row]) ** 2).sum(axis=1)))


# words


def name(analysis: FrontierAnalysis, row: int) -> str:
    """A point's configuration, with its GPU if there are several; predicted points are marked."""
    at = analysis.rows[row]
    gpu = f", {at['gpu']}" if at["gpu"] and len(analysis.gpus) > 1 else ""
    return describe(tradeoff.configured(at)) + gpu + ("" if at["measured"] else " (predicted)")


def amounts(analysis: FrontierAnalysis, row: int) -> tuple[str, str]:
    """Time and energy of a point, with their errors where they are known."""
    at = analysis.rows[row]
    error_s, error_j = (Z95 * (at[column] or 0.0) or None for column in ("time_se_s", "energy_se_j"))
    exact = error_s is None or at["time_s"] >= 1e4
    time = format_duration(at["time_s"]) if exact else format_seconds(at["time_s"], error_s)
    return time, format_energy(at["energy_j"], error_j)


def known_of(analysis: FrontierAnalysis, row: int) -> tuple[str, ...]:
    """A point's name, time, energy, probability of being on the frontier, and origin."""
    at = analysis.rows[row]
    known = "measured" if at["measured"] else "predicted, not measured"
    if at["repeats"] > 1:
        known = f"mean of {at['repeats']} measurements"
    return name(analysis, row), *amounts(analysis, row), f"{100 * analysis.chance[row]:.0f} %", known


def headline(analysis: FrontierAnalysis, row: int) -> str:
    """A point's change and configuration: "−20 % energy for +12 % time: 175 W"."""
    return f"{change(analysis, row)}: {name(analysis, row)}"


def change(analysis: FrontierAnalysis, row: int) -> str:
    """A row's change from the default, gains first; without a default its energy and time."""
    if analysis.reference is None:
        return " in ".join(reversed(amounts(analysis, row)))
    if row == analysis.reference:
        return "Default"
    one, other = (analysis.rows[number] for number in (row, analysis.reference))
    shares = {name: one[column] / other[column] - 1 for name, column in CHANGES}
    gain_first = sorted(shares.items(), key=lambda item: item[1] > 0)
    parts = [f"{rounded(share)} {name}" for name, share in gain_first]
    return (" for " if min(shares.values()) < 0 < max(shares.values()) else ", ").join(parts)


def rounded(share: float) -> str:
    """A share in per cent with its sign: two digits, or one behind the point below 10 %.

    >>> rounded(-0.2042), rounded(0.0312), rounded(0.0996)
    ('−20 %', '+3.1 %', '+10 %')
    """
    return format_change(share, digits=0 if abs(share) >= 0.0995 else 1)


def a(unit: str) -> str:
    """A unit with its article."""
    return f"{'an' if unit[0] in 'aeiou' else 'a'} {unit}"


def rule_text(analysis: FrontierAnalysis, choice: FrontierChoice) -> str:
    """The rule of a choice in words.

    "least cost at eta 0.5", "least energy at most 5 % slower", "selected, step 3 of 12".
    """
    bound = "" if choice.max_slowdown is None else f" at most {100 * choice.max_slowdown:.3g} % slower"
    place = analysis.place(choice.row)
    if choice.rule == ETA:
        return f"least cost at eta {choice.eta:g}{bound}"
    if choice.rule == SLOWDOWN:
        return f"least energy{bound}"
    return "selected, dominated" if place is None else f"selected, step {place + 1} of {len(analysis.front)}"


def details(analysis: FrontierAnalysis, choice: FrontierChoice, work: Work, tariff: Tariff) -> list[str]:
    """Sentences: rule, time and energy of the choice, the default, savings, place on the frontier.

    Args:
        analysis: The frontier.
        choice: Point and rule.
        work: Unit and amount of work.
        tariff: Price and carbon of a joule.
    """
    repeats, rule = analysis.rows[choice.row]["repeats"], rule_text(analysis, choice)
    mean = f", mean of {repeats}" * (repeats > 1)
    costs = " and ".join(amounts(analysis, choice.row))
    sentences = [f"{rule[:1].upper()}{rule[1:]}: {costs} {a(work.unit)}{mean}; {origin(analysis)}"]
    sentences += [saving_text(each, tariff) for each in tradeoff.savings(analysis, choice.row, work)]
    sentences.append(standing(analysis, choice.row))
    return sentences


def origin(analysis: FrontierAnalysis) -> str:
    """The default that changes are relative to, or the reason for having none."""
    if analysis.reference is None:
        return analysis.why
    default = tradeoff.configured(analysis.rows[analysis.reference])
    return f"the default is {describe(default)} ({analysis.why})"


def front_names(analysis: FrontierAnalysis) -> list[str]:
    """Names of the frontier's rows: the knobs in which they differ, "175 W" or "175 W · 64".

    >>> front_names(tradeoff.analyse_frontier(tradeoff.collect(pl.DataFrame(
    ...     {"time_s": [1.0, 2.0], "energy_j": [9.0, 8.0], "power_limit_w": [250, 175]})).points))
    ['250 W', '175 W']
    """
    front = analysis.frontier
    units = {"power_limit_w": " W", "sm_clock_mhz": " MHz", "mem_clock_mhz": " MHz mem", "batch_size": ""}
    differ = [name for name in units if front[name].n_unique() > 1] or [
        name for name in units if front[name].is_not_null().any()
    ][:1]
    rows = front.select(differ).iter_rows()
    known = [
        [f"{value:g}{units[name]}" for name, value in zip(differ, row, strict=True) if value is not None]
        for row in rows
    ]
    return [" · ".join(parts) or "driver default" for parts in known] if differ else [""] * len(front)


def saving_text(saved: Saving, tariff: Tariff) -> str:
    """A saving as a sentence."""
    periods = {"hour": "Per hour of baseline work", "epoch": "Per epoch", "job": "Per job"}
    verb = "saves" if saved.energy_j >= 0 else "costs"
    amount = format_energy(abs(saved.energy_j), saved.uncertainty_j or None)
    money = tariff.text(abs(saved.energy_j))
    longer = f"{format_duration(abs(saved.time_s))} {'less' if saved.time_s >= 0 else 'more'} time"
    more = "" if saved.energy_j >= 0 else " more"
    return (
        f"{periods[saved.per]} it {verb} {amount}"
        f"{more}{', ' + money if money else ''} and takes {longer}"
    )


def standing(analysis: FrontierAnalysis, row: int) -> str:
    """The probability of a point's place on the frontier, or the saving that it misses."""
    place = analysis.place(row)
    chance = float(analysis.chance[row])
    if place is not None:
        likely = f" ({100 * chance:.0f} % likely)" if chance < 0.995 else ""
        return ("Pareto-optimal" if chance >= frontier.SURE else "Perhaps Pareto-optimal") + likely
    at = analysis.rows[row]
    left = frontier.distance(analysis.frontier, at["time_s"], at["energy_j"])
    parts = []
    if left.energy_j > 0:
        parts.append(f"a point at least as fast needs {format_energy(left.energy_j, None)} less")
    if left.time_s > 0:
        parts.append(f"a point with no more energy takes {format_duration(left.time_s)} less")
    return f"Dominated: {', '.join(parts)}" if parts else "Equal to a point on the frontier"


def counts(analysis: FrontierAnalysis) -> str:
    """Numbers of measured and predicted points, and of points on the frontier."""
    measured = int(analysis.points["measured"].sum())
    total = len(analysis.points)
    if total == 1:
        return "Only one configuration: measure another to compare"
    hollow = f", {total - measured} predicted" if measured < total else ""
    return f"{measured} configurations measured{hollow}; {len(analysis.front)} on the frontier"


def table_file(analysis: FrontierAnalysis, row: int, what: str) -> bytes:
    """The points and their analysis as a file ("csv" or "parquet"); `row` is the chosen one.

    Raises:
        UsageError: Another kind of file.
    """
    if what not in ("csv", "parquet"):
        hint = "; use the PNG button of the panel" if what == "png" else ""
        raise UsageError(f"a frontier can be exported as .svg, .csv or .parquet, not as .{what}{hint}")
    rows = pl.Series(range(len(analysis.points)))
    frame = analysis.points.with_columns(
        on_frontier=rows.is_in(analysis.front.tolist()), frontier_probability=pl.Series(analysis.chance),
        chosen=rows == row,
    )
    if what == "csv":
        joined = frame.with_columns(pl.col("measurements").list.join(" "))
        return for_spreadsheets(joined).write_csv().encode()
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()
