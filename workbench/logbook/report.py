"""A measurement as one line of text, as a card of HTML, and as JSON.

The card shows the energy in large letters, then its meaning, and the rest under "details". HTML without
script; colours and the size of letters are inherited, so that it reads in any theme.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .._html import table
from ..errors import listed, printable
from ..records import GpuMeasurement, IterationSummary, LevelCost, Measurement
from ..tariff import NO_TARIFF, Tariff, significant
from .quantities import MOST_SETTINGS, SENSOR_ERROR, as_columns, format_measured, format_seconds, gpu_names
from .quantities import format_duration as format_duration
from .quantities import format_energy as format_energy
from .work_rates import padding_share, rates

MIME = "application/vnd.gpu-energy-workbench.measurement+json"
CALIBRATION = (
    f"The sensor of a GPU is typically good to ± {100 * SENSOR_ERROR:g} % (published measurements); "
    "comparisons on one card do not have this error."
)
IDLE = 0.98  # share of a measurement in which a GPU did nothing, from which its user should know
IDLE_FROM_S = 0.4
CARD = ("<div class='gpu-energy' style='font-family:system-ui,sans-serif;font-size:13px;line-height:1.5;"
        "margin:.3em 0 .6em'>")
BIG = "font-size:20px;font-weight:600;line-height:1.5;margin-right:.6em;white-space:nowrap"
SOURCES = {"marks": "marked", "detected": "found in the power"}  # of iterations
# Parts of the notes that change what an energy means; other notes are in the details.
DECISIVE = ("other process", "other ranks", "MIG is on", "assume", "setting changed")


def line(m: Measurement, tariff: Tariff = NO_TARIFF) -> str:
    """The line below a cell: `2.70 kJ (sensor ± 5 %, reading ± 0.1 %), 9.98 s, 270 W, simulated`."""
    label = f"{m.label}: " if m.label else ""
    if m.energy_j is None:
        return printable(f"{label}{format_duration(m.time_s)}, no energy: {why_no_energy(m)}")
    parts = [_with_errors(m, m.gpus), *(text for _, text in _facts(m, tariff))]
    if len(m.gpus) > 1:
        parts.append(f"{len(m.gpus)} GPUs")
    parts += map(str, rates(m))
    if m.outcome != "ok":
        parts.append("ended with an error" if m.outcome == "error" else m.outcome)
    if m.simulated:
        parts.append("simulated")
    return printable(label + "; ".join(filter(None, [", ".join(parts), describe_iterations(m.iterations)])))


Measurement.__str__ = line  # type: ignore[method-assign, assignment]


def _with_errors(m: Measurement | GpuMeasurement, gpus: Sequence[GpuMeasurement]) -> str:
    """The energy with its errors. The error of a node's meter, which Slurm reads, is not known."""
    if any(gpu.uuid.startswith("Slurm:") for gpu in gpus):
        return f"{format_energy(m.energy_j, None)} (whole node, error unknown)"
    return format_measured(m.energy_j, m.energy_uncertainty_j)


def _facts(m: Measurement, tariff: Tariff) -> Iterator[tuple[str, str]]:
    """What line and card show next to the energy: names and texts."""
    yield "time", format_duration(m.time_s)
    if m.mean_power_w is not None:
        yield "mean power", f"{significant(m.mean_power_w)} W"
    if m.repeats > 1 and m.energy_sd_j is not None and m.time_sd_s is not None:
        deviations = f"sd {significant(m.energy_sd_j, 2)} J, {significant(m.time_sd_s, 2)} s"
        yield "repeats", f"mean of {m.repeats} runs ({deviations})"
    if worth := tariff.text(m.energy_j):
        yield "worth", worth


def describe_iterations(found: IterationSummary | None) -> str:
    """What one iteration takes and costs, or why that is not known; empty where it was not looked for.

    >>> describe_iterations(IterationSummary(24, 0.4123, 0.0031, 96.04, 2.1, "detected"))
    '412.3 ± 3.1 ms and 96.0 ± 2.1 J per iteration, 24 iterations (detected)'
    >>> describe_iterations(IterationSummary(0, reason="flat: the power hardly changes"))
    'no iterations found (flat: the power hardly changes)'
    """
    if found is None:
        return ""
    cycle = next((level for level in found.levels if level.name == "cycle"), None)
    if not found.count and cycle is not None:
        joules = "" if cycle.each_j is None else f"{format_energy(cycle.each_j, None)} "
        each = f"{joules}per {format_duration(cycle.each_s)} cycle, {cycle.count} cycles (detected)"
        return f"{each}; {found.reason}" if found.reason else each
    if not found.count and found.detected_s is not None:
        return (f"iterations of perhaps {format_duration(found.detected_s)}, not sure "
                f"({found.reason or 'the period is a best guess'})")
    if not found.count or found.time_s is None:
        return f"no iterations found{f' ({found.reason})' * bool(found.reason)}"
    energy = format_energy(found.energy_j, found.energy_uncertainty_j)
    cost = "" if found.energy_j is None else f" and {energy}"
    plural = "s" if found.count > 1 else ""
    kinds = ("iteration", "micro-step", "cycle", "other")
    others = [_describe_level(level) for level in found.levels
              if level.name not in kinds and not level.setting]
    under = [f"{format_energy(level.each_j, None)} at {level.setting}" for level in found.levels
             if level.setting and level.each_j is not None]
    message = (
        f"{format_seconds(found.time_s, found.time_uncertainty_s)}{cost} per iteration, {found.count} "
        f"iteration{plural} ({found.source})"
    )
    check = "" if "% off the " in found.check else found.check
    each = ", ".join(under) if len(under) <= MOST_SETTINGS else f"{len(under)} settings, see details"
    settings = [each] if under else []
    return "; ".join([message, *settings, *others[:2], *([check] if check else [])])


def _describe_level(level: LevelCost) -> str:
    """How often something came and how long it took; "every" only where it repeats.

    >>> _describe_level(LevelCost("evaluation", 3, 9.0, None, 3.0, None, every=12.0))
    'a 3 s evaluation every 12 iterations'
    >>> _describe_level(LevelCost("pause", 2, 9.6, None, 4.8, None))
    '2 pauses, 4.8 s each on average'
    """
    each = format_duration(level.each_s)
    if level.count == 1:
        return f"one {each} {level.name}"
    if level.count == 2 or level.every is None:
        return f"{level.count} {level.name}s, {each} each on average"
    whole = round(level.every)
    return f"a {each} {level.name} every {f'{whole} iterations' if whole > 1 else 'iteration'}"


def page(
    m: Measurement, tariff: Tariff = NO_TARIFF, *, against: str = "", remarks: Sequence[str] = (),
    picture: str = "", more: str = "",
) -> str:
    """A measurement as a card: the answer, a picture, and folded details; HTML without script.

    Args:
        m: The measurement.
        tariff: Price and carbon of a joule.
        against: What changed against the last run of its label; empty for none.
        remarks: Sentences shown above the details.
        picture: HTML shown above the details.
        more: HTML shown first in the details.
    """
    title = printable(" · ".join(filter(None, (m.label, gpu_names(gpu.name for gpu in m.gpus)))))
    return (
        f"{CARD}<div><b>{html.escape(title)}</b>{' · simulated' * m.simulated}</div>"
        f"{answer(m, tariff, against=against, remarks=remarks)}{picture}"
        f"<details><summary style='cursor:pointer'>details</summary>{more}{details(m)}</details></div>"
    )


def answer(
    m: Measurement, tariff: Tariff = NO_TARIFF, *, against: str = "", remarks: Sequence[str] = ()
) -> str:
    """The first part of a card: the energy in one line, warnings, and a table of several settings.

    Args:
        m: The measurement.
        tariff: Price and carbon of a joule.
        against: What changed relative to the last run of its label; empty for none.
        remarks: Sentences shown below the warnings.
    """
    below = [*(f"⚠ {each}" for each in warnings(m)), *remarks]
    facts = [*_facts(m, tariff), *_per_unit(m), *([("against the last run", against)] if against else [])]
    spans = " ".join(
        "<span style='margin-right:1.2em;display:inline-block'>"
        f"<span style='opacity:.7'>{html.escape(name)}</span> <b>{html.escape(value)}</b></span>"
        for name, value in facts)
    energy, bracket, errors = _with_errors(m, m.gpus).partition(" (")
    rows = [(level.setting, format_energy(level.each_j, None), format_seconds(level.each_s), f"{level.count}")
            for level in _under_settings(m)]
    more = [(f"{len(rows) - MOST_SETTINGS} more in the details", "", "", "")]
    settings = table(("setting", "energy per iteration", "time per iteration", "iterations"),
                     rows[:MOST_SETTINGS] + more * (len(rows) > MOST_SETTINGS))
    return (
        f"<div><span style='{BIG}'>{html.escape(energy)}</span>"
        f"<span style='opacity:.7;margin-right:1.2em'>{html.escape(bracket + errors)}</span> {spans}</div>"
        f"{''.join(f'<div>{html.escape(printable(each))}</div>' for each in below)}{settings}"
    )


def _under_settings(m: Measurement) -> list[LevelCost]:
    """The cost of an iteration under each of several settings; their mean is the cost under none of them."""
    levels = m.iterations.levels if m.iterations is not None else ()
    known = [level for level in levels if level.setting and level.each_j is not None]
    return sorted(known, key=lambda level: -level.count)


def _per_unit(m: Measurement) -> Iterator[tuple[str, str]]:
    """What the card shows for an iteration, where all ran under one setting, and for a token or sample."""
    found = m.iterations
    if not _under_settings(m) and found is not None and found.count and found.time_s is not None:
        energy = format_energy(found.energy_j, found.energy_uncertainty_j)
        cost = "" if found.energy_j is None else f"{energy}, "
        taken = format_seconds(found.time_s, found.time_uncertainty_s)
        yield "per iteration", f"{cost}{taken} ({found.count} {SOURCES.get(found.source, found.source)})"
    for rate in rates(m):
        yield rate.name, f"{rate}, {significant(rate.per_s)}/s"
    if padding := padding_share(m):
        yield "padding", f"{100 * padding:.0f} % of all tokens"


def details(m: Measurement) -> str:
    """Tables of the GPUs and of what iterations, evaluations and the rest cost, and the notes."""
    notes = [*m.notes, *dict.fromkeys(f"{gpu.name}: {note}" for gpu in m.gpus for note in gpu.notes)]
    zones = ("CPU packages", m.cpu_energy_j), ("DRAM", m.dram_energy_j)
    if host := [f"{name} {significant(value)} J" for name, value in zones if value is not None]:
        notes.append(", ".join(host) + " (RAPL)")
    if "sensor" in _with_errors(m, m.gpus):
        notes.append(CALIBRATION)
    levels: Sequence[LevelCost] = ()
    if (found := m.iterations) is not None:
        notes[:0] = filter(None, ("" if found.count else describe_iterations(found), found.check))
        levels = found.levels if found.count else ()
    gpus = table(("GPU", "energy", "mean", "peak", "limit", "SM clock", "idle", "throttled by", "source"),
                 map(_cells, m.gpus))
    parts = table(("part", "number", "each", "energy each", "time in all", "energy in all"), [
        (each.name, str(each.count), format_duration(each.each_s), _unit(each.each_j, "J"),
         format_duration(each.time_s), _unit(each.energy_j, "J")) for each in levels])
    items = "".join(f"<li>{html.escape(printable(note))}</li>" for note in notes)
    return f"{gpus}{parts}<ul style='margin:.3em 0'>{items}</ul>"


def _cells(gpu: GpuMeasurement) -> tuple[str, ...]:
    return (
        gpu.name, _with_errors(gpu, (gpu,)), _unit(gpu.mean_power_w, "W"),
        _unit(gpu.peak_power_w, "W"), _unit(gpu.power_limit_w, "W"), _unit(gpu.sm_clock_mhz, "MHz", 4),
        "" if gpu.idle_share is None else f"{100 * gpu.idle_share:.0f} %",
        ", ".join(gpu.throttle_reasons) or "-", gpu.source + (", simulated" if gpu.simulated else ""),
    )


def _unit(value: float | None, unit: str, digits: int = 3) -> str:
    return "" if value is None else f"{significant(value, digits)} {unit}"


def warnings(m: Measurement) -> list[str]:
    """Sentences about what changes the meaning of a measurement's energy, most important first."""
    found = []
    if m.outcome != "ok":
        found.append({"error": "It ended with an error.", "interrupted": "It was interrupted."}.get(
            m.outcome, f"It ended so: {m.outcome}."))
    if m.energy_j is None:
        found.append(f"No energy: {why_no_energy(m)}.")
    several = len(m.gpus) > 1
    shares = [gpu.idle_share or 0.0 for gpu in m.gpus]
    idle = [number for number, share in enumerate(shares) if share >= IDLE and m.time_s >= IDLE_FROM_S]
    if idle:
        who = f"GPU {listed(idle)}" if several else "The GPU"
        least = 100 * min(shares[number] for number in idle)
        found.append(f"{who} was idle {least:.0f} % of the time: this code hardly used it.")
    for number, gpu in enumerate(m.gpus):
        who = f"GPU {number}"
        lines = [note for note in decisive_notes(gpu.notes)
                if not (m.kind.startswith("tuned") and "setting changed" in note)]
        found += [f"{f'{who}: ' * several}{note[:1].upper()}{note[1:]}." for note in lines]
    return list(dict.fromkeys(found))


def why_no_energy(m: Measurement) -> str:
    """Why a measurement has no energy, from its notes."""
    reasons = m.notes[:1] or tuple(note for gpu in m.gpus for note in gpu.notes[-1:])
    return "; ".join(reasons) or "no GPU was measured"


def decisive_notes(notes: Iterable[str]) -> list[str]:
    """Those of a GPU's notes that change what its energy means."""
    return [note for note in notes if any(text in note for text in DECISIVE)]


def as_dict(m: Measurement) -> dict[str, Any]:
    """Everything, as JSON can hold it; derived sums included."""
    sums = ("energy_j", "energy_uncertainty_j", "mean_power_w", "source", "simulated")
    return {**asdict(m), **{name: getattr(m, name) for name in sums}}


class Report:
    """A measurement that shows itself as text, HTML and JSON; JupyterLab would show plain application/json in
    place of the HTML.

    Args:
        measurement: The measurement to show.
        tariff: Price and carbon of a joule.
        remarks: Sentences shown with it.
        against: What changed against the last run of its label; empty for none.
        tables: Heads and rows of further tables, as of the ranks of a job.
    """

    def __init__(
        self, measurement: Measurement, tariff: Tariff = NO_TARIFF, *, remarks: Sequence[str] = (),
        against: str = "", tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = (),
    ) -> None:
        self.measurement, self._tariff, self._remarks = measurement, tariff, tuple(remarks)
        self._against, self._tables = against, tables

    def __repr__(self) -> str:
        parts = (as_columns(*each) for each in self._tables)
        return "\n".join([line(self.measurement, self._tariff), *map(printable, self._remarks), *parts])

    def answer(self) -> str:
        """The energy, warnings, and a table of several settings, as HTML."""
        return answer(self.measurement, self._tariff, against=self._against, remarks=self._remarks)

    def details(self) -> str:
        """Tables and notes, as HTML."""
        return "".join(table(*each) for each in self._tables) + details(self.measurement)

    def bundle(self, picture: str = "", more: str = "") -> dict[str, Any]:
        """Text, HTML and JSON, with a picture above the details, and `more` first in them."""
        shown = page(self.measurement, self._tariff, against=self._against, remarks=self._remarks,
                     picture=picture, more=more + "".join(table(*each) for each in self._tables))
        return {"text/plain": repr(self), "text/html": shown, MIME: as_dict(self.measurement)}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.bundle()
