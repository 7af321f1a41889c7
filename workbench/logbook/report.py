"""A measurement in words: one line of text, a small table of HTML, and JSON."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .._html import table
from ..records import GpuMeasurement, IterationSummary, LevelCost, Measurement
from ..tariff import NO_TARIFF, Tariff, significant
from .quantities import format_duration as format_duration
from .quantities import format_energy as format_energy
from .quantities import format_measured, format_seconds
from .result_card import card, why_no_energy
from .work_rates import rates

MIME = "application/vnd.gpu-energy-workbench.measurement+json"
CALIBRATION = (
    "The sensor of a GPU is typically good to ± 5 % (published measurements); comparisons on one card do not "
    "have this error."
)


def line(m: Measurement, tariff: Tariff = NO_TARIFF) -> str:
    """The line below a cell: `2.70 kJ (sensor ± 5 %, reading ± 0.1 %), 9.98 s, 270 W, simulated`."""
    label = f"{m.label}: " if m.label else ""
    if m.energy_j is None:
        return f"{label}{format_duration(m.time_s)}, no energy: {why_no_energy(m)}"
    parts = [format_measured(m.energy_j, m.energy_uncertainty_j), format_duration(m.time_s)]
    if m.mean_power_w is not None:
        parts.append(f"{significant(m.mean_power_w)} W")
    if m.repeats > 1 and m.energy_sd_j is not None and m.time_sd_s is not None:
        parts.append(f"mean of {m.repeats} runs (sd {significant(m.energy_sd_j, 2)} J, "
                     f"{significant(m.time_sd_s, 2)} s)")
    if len(m.gpus) > 1:
        parts.append(f"{len(m.gpus)} GPUs")
    parts += map(str, rates(m))
    if worth := tariff.text(m.energy_j):
        parts.append(worth)
    if m.outcome != "ok":
        parts.append("the cell ended with an error" if m.outcome == "error" else m.outcome)
    if m.simulated:
        parts.append("simulated")
    iterations_text = describe_iterations(m.iterations)
    return label + ", ".join(parts) + (f"; {iterations_text}" if iterations_text else "")


def describe_iterations(found: IterationSummary | None) -> str:
    """What one iteration takes and costs, or why that is not known; empty where it was not looked for.

    >>> describe_iterations(IterationSummary(24, 0.4123, 0.0031, 96.04, 2.1, "detected"))
    '412.3 ± 3.1 ms and 96.0 ± 2.1 J an iteration, 24 iterations (detected)'
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
    if not found.count or found.seconds is None:
        return f"no iterations found ({found.reason or 'nothing repeats'})"
    energy = format_energy(found.energy_j, found.energy_uncertainty_j)
    cost = "" if found.energy_j is None else f" and {energy}"
    plural = "s" if found.count > 1 else ""
    kinds = ("iteration", "micro-step", "cycle", "other")
    others = [_describe_level(level) for level in found.levels
              if level.name not in kinds and not level.setting]
    under = [f"{format_energy(level.each_j, None)} at {level.setting}" for level in found.levels
             if level.setting and level.each_j is not None]
    message = (
        f"{format_seconds(found.seconds, found.seconds_uncertainty)}{cost} an iteration, {found.count} "
        f"iteration{plural} ({found.source})"
    )
    check = "" if "off the marks" in found.check else found.check
    each = ", ".join(under) if len(under) <= 3 else f"{len(under)} settings, see details"
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
    m: Measurement, tariff: Tariff = NO_TARIFF, *, against: str = "",
    remarks: Sequence[str] = (),
) -> str:
    """A measurement as a card, with tables and notes folded away; HTML without script.

    Args:
        m: The measurement.
        tariff: Price and carbon of a joule.
        against: HTML of the comparison with the last run; empty for none.
        remarks: Sentences shown above the details.
    """
    notes = [*m.notes, *dict.fromkeys(f"{gpu.name}: {note}" for gpu in m.gpus for note in gpu.notes)]
    zones = ("CPU packages", m.cpu_energy_j), ("DRAM", m.dram_energy_j)
    if host := [f"{name} {significant(value)} J" for name, value in zones if value is not None]:
        notes.append(", ".join(host) + " (RAPL)")
    if m.gpus and m.energy_j is not None:
        notes.append(CALIBRATION)
    if (found := m.iterations) is not None:
        notes[:0] = filter(None, ("" if found.count else describe_iterations(found), found.check))
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    heads = ("GPU", "energy", "mean", "peak", "limit", "SM clock", "idle", "throttled by", "source")
    folded = (
        f"{table(heads, map(_cells, m.gpus))}{_levels(found)}<ul style='margin:.3em 0'>{items}</ul>"
    )
    return card(m, tariff, against=against, details=folded, remarks=remarks)


def _cells(gpu: GpuMeasurement) -> tuple[str, ...]:
    return (
        gpu.name, format_measured(gpu.energy_j, gpu.energy_uncertainty_j), _unit(gpu.mean_power_w, "W"),
        _unit(gpu.peak_power_w, "W"), _unit(gpu.power_limit_w, "W"), _unit(gpu.sm_clock_mhz, "MHz", 4),
        "" if gpu.idle_share is None else f"{100 * gpu.idle_share:.0f} %",
        ", ".join(gpu.throttle_reasons) or "-", gpu.source + (", simulated" if gpu.simulated else ""),
    )


def _levels(found: IterationSummary | None) -> str:
    """A table of what iterations, evaluations, checkpoints and the rest cost."""
    if found is None or not found.count:
        return ""
    heads = ("part", "number", "each", "energy each", "time in all", "energy in all")
    rows = [
        (each.name, str(each.count), format_duration(each.each_s), _unit(each.each_j, "J"),
         format_duration(each.time_s), _unit(each.energy_j, "J"))
        for each in found.levels
    ]
    return table(heads, rows)


def as_dict(m: Measurement) -> dict[str, Any]:
    """Everything, as JSON can hold it; derived sums included."""
    values = asdict(m)
    sums = ("energy_j", "energy_uncertainty_j", "mean_power_w", "source", "simulated")
    return {**values, **{name: getattr(m, name) for name in sums}}


def mimebundle(
    m: Measurement, tariff: Tariff = NO_TARIFF, *, against: str = "", remarks: Sequence[str] = ()
) -> dict[str, Any]:
    """Text, HTML and JSON; JupyterLab would show plain application/json in place of the HTML.

    Args:
        m: The measurement.
        tariff: Price and carbon of a joule.
        against: Comparison with the last run; empty for none.
        remarks: Sentences shown with it.
    """
    text = "\n".join([line(m, tariff), *remarks])
    return {"text/plain": text, "text/html": page(m, tariff, against=against, remarks=remarks),
            MIME: as_dict(m)}


class Report:
    """A measurement that shows itself; `against` is what changed against the last run of its label."""

    def __init__(
        self, measurement: Measurement, tariff: Tariff = NO_TARIFF, *, remarks: Sequence[str] = (),
        against: str = "",
    ) -> None:
        self.measurement, self._tariff, self._remarks = measurement, tariff, tuple(remarks)
        self._against = against

    def __repr__(self) -> str:
        return "\n".join([line(self.measurement, self._tariff), *self._remarks])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return mimebundle(self.measurement, self._tariff, against=self._against, remarks=self._remarks)


def _unit(value: float | None, unit: str, digits: int = 3) -> str:
    return "" if value is None else f"{significant(value, digits)} {unit}"
