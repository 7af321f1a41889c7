"""The result of a measurement as a card: energy in large, what it means, and the rest behind "details".

HTML without script; colours and the size of letters are inherited, so that it reads in any theme.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from ..records import Measurement
from ..tariff import NO_TARIFF, Tariff, significant
from .quantities import format_duration, format_energy, format_measured, format_seconds, gpu_names
from .work_rates import padding_share, rates

IDLE = 0.98  # share of a measurement in which a GPU did nothing, from which its user should know
IDLE_FROM_S = 0.4
MOST_SETTINGS = 3  # whose iterations fit into the headline
CARD = ("<div class='gpu-energy' style='font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;"
        "border-left:4px solid;padding:.1em 0 .1em .8em;margin:.3em 0 .6em'>")
BIG = "font-size:26px;font-weight:600;line-height:1.2;margin-right:.7em;white-space:nowrap"
SOURCES = {"marks": "marked", "detected": "found in the power"}  # of iterations
# Words of the notes that change what an energy means; other notes stand in the details.
DECISIVE = ("other process", "other ranks", "MIG is on", "assume", "setting changed")


def card(
    m: Measurement, tariff: Tariff = NO_TARIFF, *, against: str = "", details: str = "",
    remarks: Iterable[str] = (),
) -> str:
    """A measurement as HTML.

    Args:
        m: The measurement.
        tariff: What energy is worth; nothing of it is shown where it is not set.
        against: What changed against the last run of its label, where there is one.
        details: HTML that is folded away.
        remarks: Sentences that stand below.
    """
    names = gpu_names(gpu.name for gpu in m.gpus)
    title = " · ".join(filter(None, (m.label, names)))
    badge = " <b>SIMULATED</b>" * m.simulated
    alarms = "".join(f"<div>⚠ {html.escape(each)}</div>" for each in warnings(m))
    lines = "".join(f"<div>{html.escape(each)}</div>" for each in remarks)
    facts = " ".join(
        f"<span style='margin-right:1.2em;white-space:nowrap'><span style='opacity:.7'>{name}</span> "
        f"<b>{html.escape(value)}</b></span>"
        for name, value in _facts(m, tariff, against)
    )
    summary = "<summary style='cursor:pointer'>details</summary>"
    folded = f"<details>{summary}{details}</details>" if details else ""
    energy, bracket, errors = format_measured(m.energy_j, m.energy_uncertainty_j).partition(" (")
    return (
        f"{CARD}<div>{html.escape(title)}{badge}</div><div><span style='{BIG}'>{html.escape(energy)}</span>"
        f"<span style='opacity:.7;margin-right:1.2em'>{html.escape(bracket + errors)}</span> {facts}</div>"
        f"{alarms}{lines}{folded}</div>"
    )


def _facts(m: Measurement, tariff: Tariff, against: str) -> Iterable[tuple[str, str]]:
    """What stands beside the energy: names and values."""
    yield "time", format_duration(m.time_s)
    if m.mean_power_w is not None:
        yield "mean power", f"{significant(m.mean_power_w)} W"
    if m.repeats > 1 and m.energy_sd_j is not None:
        yield "mean of", f"{m.repeats} runs (sd {significant(m.energy_sd_j, 2)} J)"
    found = m.iterations
    under = [level for level in found.levels if level.setting and level.each_j is not None] if found else []
    if len(under) > MOST_SETTINGS:
        yield "per iteration", f"{len(under)} settings, see details"
    else:  # one by one: their mean is the cost under none of them
        for level in under:
            cost = f"{format_energy(level.each_j, None)}, {format_seconds(level.each_s)} ({level.count})"
            yield f"per {level.name}", cost
    if not under and found is not None and found.count and found.seconds is not None:
        energy = format_energy(found.energy_j, found.energy_uncertainty_j)
        cost = "" if found.energy_j is None else f"{energy}, "
        taken = format_seconds(found.seconds, found.seconds_uncertainty)
        yield "per iteration", f"{cost}{taken} ({found.count} {SOURCES.get(found.source, found.source)})"
    for rate in rates(m):
        yield rate.name, f"{rate}, {significant(rate.per_s)}/s"
    if padding := padding_share(m):
        yield "padding", f"{100 * padding:.0f} % of all tokens"
    if worth := tariff.text(m.energy_j):
        yield "worth", worth
    if against:
        yield "against the last run", against


def warnings(m: Measurement) -> list[str]:
    """Sentences about what changes the meaning of a measurement's energy, most important first."""
    found = []
    if m.outcome != "ok":
        found.append({"error": "It ended with an error.", "interrupted": "It was interrupted."}.get(
            m.outcome, f"It ended so: {m.outcome}."))
    if m.energy_j is None:
        found.append(f"No energy: {why_no_energy(m)}.")
    several = len(m.gpus) > 1
    for number, gpu in enumerate(m.gpus):
        who = f"GPU {number}" if several else "The GPU"
        if gpu.idle_share is not None and gpu.idle_share >= IDLE and m.time_s >= IDLE_FROM_S:
            idle = f"{100 * gpu.idle_share:.0f} %"
            found.append(f"{who} was idle {idle} of the time: this code hardly used it.")
        lines = [note for note in decisive_notes(gpu.notes)
                if not (m.kind.startswith("tuned") and "setting changed" in note)]
        found += [f"{f'{who}: ' * several}{note[:1].upper()}{note[1:]}." for note in lines]
    return list(dict.fromkeys(found))


def why_no_energy(m: Measurement) -> str:
    """Why a measurement has no energy, as far as its notes tell."""
    reasons = m.notes[:1] or tuple(note for gpu in m.gpus for note in gpu.notes[-1:])
    return "; ".join(reasons) or "no GPU was measured"


def decisive_notes(notes: Iterable[str]) -> list[str]:
    """Those of a GPU's notes that change what its energy means."""
    return [note for note in notes if any(text in note for text in DECISIVE)]
