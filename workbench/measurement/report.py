"""A measurement in words: one line of text, a small table of HTML, and JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .._html import table
from ..records import GpuMeasurement, IterationSummary, Measurement
from ..tariff import NO_TARIFF, Tariff, significant

MIME = "application/vnd.gpu-energy-workbench.measurement+json"
CALIBRATION = (
    "The card's own calibration (typically ±5 %) comes on top; comparisons on one card do not have it."
)


def format_energy(energy_j: float | None, uncertainty_j: float | None) -> str:
    """Joules with their error, rounded to what the error allows.

    >>> format_energy(123.4321, 1.8342), format_energy(0.0213, 0.0004), format_energy(1234567.0, 3210.0)
    ('123.4 ± 1.8 J', '0.02130 ± 0.00040 J', '1.2346 ± 0.0032 MJ')
    """
    if energy_j is None:
        return "no energy"
    scale, unit = (1e6, "MJ") if energy_j >= 1e6 else (1e3, "kJ") if energy_j >= 1e4 else (1.0, "J")
    value = energy_j / scale
    if uncertainty_j is None:
        return f"{significant(value, 4)} {unit}"
    error = max(uncertainty_j / scale, 1e-9)
    decimals = max(0, min(6, 1 - math.floor(math.log10(error))))
    return f"{value:.{decimals}f} ± {error:.{decimals}f} {unit}"


def format_duration(seconds: float) -> str:
    """A duration as a person says it.

    >>> format_duration(0.01234), format_duration(9.98), format_duration(754.0), format_duration(7384.0)
    ('12.3 ms', '9.98 s', '12 min 34 s', '2 h 3 min')
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 100:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def line(m: Measurement, tariff: Tariff = NO_TARIFF) -> str:
    """The one line that a cell leaves behind: `123.4 ± 1.8 J, 9.98 s, 12.4 W, simulated`."""
    label = f"{m.label}: " if m.label else ""
    if m.energy_j is None:
        notes = m.notes[:1] or [note for gpu in m.gpus for note in gpu.notes[-1:]]
        why = "; ".join(notes) or "no GPU was measured"
        return f"{label}{format_duration(m.time_s)}, no energy: {why}"
    parts = [format_energy(m.energy_j, m.energy_uncertainty_j), format_duration(m.time_s)]
    if m.mean_power_w is not None:
        parts.append(f"{significant(m.mean_power_w)} W")
    if m.repeats > 1 and m.energy_sd_j is not None and m.time_sd_s is not None:
        parts.append(f"mean of {m.repeats} runs (sd {significant(m.energy_sd_j, 2)} J, "
                     f"{significant(m.time_sd_s, 2)} s)")
    if len(m.gpus) > 1:
        parts.append(f"{len(m.gpus)} GPUs")
    if worth := tariff.words(m.energy_j):
        parts.append(worth)
    if m.outcome != "ok":
        parts.append("the cell ended with an error" if m.outcome == "error" else m.outcome)
    if m.simulated:
        parts.append("simulated")
    told = describe_iterations(m.iterations)
    return label + ", ".join(parts) + (f"; {told}" if told else "")


def describe_iterations(found: IterationSummary | None) -> str:
    """What one iteration takes and costs, or why that is not known; empty where it was not looked for.

    >>> describe_iterations(IterationSummary(24, 0.4123, 0.0031, 96.04, 2.1, "detected"))
    '412.3 ± 3.1 ms and 96.0 ± 2.1 J an iteration, 24 iterations (detected)'
    >>> describe_iterations(IterationSummary(0, reason="flat: the power hardly changes"))
    'no iterations found (flat: the power hardly changes)'
    """
    if found is None:
        return ""
    if not found.count and found.detected_s is not None:
        return (f"iterations of perhaps {format_duration(found.detected_s)}, not sure "
                f"({found.reason or 'the period is a best guess'})")
    if not found.count or found.seconds is None:
        return f"no iterations found ({found.reason or 'nothing repeats'})"
    energy = format_energy(found.energy_j, found.energy_uncertainty_j)
    cost = "" if found.energy_j is None else f" and {energy}"
    plural = "s" if found.count > 1 else ""
    others = [
        f"every {_count(level.every)} a {level.name} of {format_duration(level.each_s)}"
        for level in found.levels if level.name not in ("iteration", "micro-step", "cycle")
        and level.count > 1 and level.every is not None
    ]
    words = (f"{_seconds(found.seconds, found.seconds_uncertainty)}{cost} an iteration, {found.count} "
             f"iteration{plural} ({found.source})")
    check = "" if "off the marks" in found.check else found.check
    return "; ".join([words, *others[:2], *([check] if check else [])])


def _seconds(seconds: float, uncertainty_s: float | None) -> str:
    """A duration with its error, in milliseconds below a second.

    >>> _seconds(0.4123, 0.0031), _seconds(12.34, 0.21), _seconds(0.5, None)
    ('412.3 ± 3.1 ms', '12.34 ± 0.21 s', '500 ms')
    """
    scale, unit = (1e3, "ms") if seconds < 1 else (1.0, "s")
    if uncertainty_s is None:
        return f"{significant(scale * seconds)} {unit}"
    error = max(scale * uncertainty_s, 1e-3)
    decimals = max(0, min(6, 1 - math.floor(math.log10(error))))
    return f"{scale * seconds:.{decimals}f} ± {error:.{decimals}f} {unit}"


def _count(every: float) -> str:
    """An ordinal.

    >>> _count(50.0), _count(2.2), _count(1.0), _count(33.0), _count(12.0)
    ('50th', '2nd', '1st', '33rd', '12th')
    """
    number = round(every)
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def page(m: Measurement, tariff: Tariff = NO_TARIFF) -> str:
    """The line, with a table per GPU behind a fold; HTML without script, readable in any theme."""
    notes = [*m.notes, *dict.fromkeys(f"{gpu.name}: {note}" for gpu in m.gpus for note in gpu.notes)]
    zones = ("CPU packages", m.cpu_energy_j), ("DRAM", m.dram_energy_j)
    if host := [f"{name} {significant(value)} J" for name, value in zones if value is not None]:
        notes.append(", ".join(host) + " (RAPL)")
    if m.gpus and m.energy_j is not None:
        notes.append(CALIBRATION)
    if m.iterations is not None and m.iterations.check:
        notes.insert(0, m.iterations.check)
    told = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    heads = ("GPU", "energy", "mean", "peak", "limit", "SM clock", "idle", "throttled by", "source")
    gpus = table(heads, map(_cells, m.gpus))
    return (
        "<details class='gpu-energy'><summary style='cursor:pointer'>"
        f"{html.escape(line(m, tariff))}</summary>{gpus}{_levels(m.iterations)}<ul style='margin:.3em "
        f"0;opacity:.8'>{told}</ul></details>"
    )


def _cells(gpu: GpuMeasurement) -> tuple[str, ...]:
    return (
        gpu.name, format_energy(gpu.energy_j, gpu.energy_uncertainty_j), _unit(gpu.mean_power_w, "W"),
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


def mimebundle(m: Measurement, tariff: Tariff = NO_TARIFF) -> dict[str, Any]:
    """Text, HTML and JSON; JupyterLab would show plain application/json in place of the HTML."""
    return {"text/plain": line(m, tariff), "text/html": page(m, tariff), MIME: as_dict(m)}


class Report:
    """A measurement that shows itself."""

    def __init__(
        self, measurement: Measurement, tariff: Tariff = NO_TARIFF, *, remarks: Sequence[str] = ()
    ) -> None:
        self.measurement, self._tariff, self._remarks = measurement, tariff, tuple(remarks)

    def __repr__(self) -> str:
        return "\n".join([line(self.measurement, self._tariff), *self._remarks])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = mimebundle(self.measurement, self._tariff)
        remarks = "".join(f"<div>{html.escape(remark)}</div>" for remark in self._remarks)
        return {**bundle, "text/plain": repr(self), "text/html": f"{bundle['text/html']}{remarks}"}


def describe_comparison(a: Measurement, b: Measurement) -> str:
    """Two measurements compared: ratio of their energies, with its 95 % interval, and of their times.

    >>> one = Measurement("1", "a", 0.0, 2.0, (GpuMeasurement("G", "u", 100.0, 3.0, "counter", False),))
    >>> two = Measurement("2", "b", 0.0, 3.0, (GpuMeasurement("G", "u", 80.0, 4.0, "counter", False),))
    >>> describe_comparison(one, two)
    'b / a: energy 0.800 (0.753 .. 0.847), time 1.500; 20.0 ± 5.0 J less'
    """
    names = f"{b.label or b.id} / {a.label or a.id}"
    times = "times cannot be compared (one of them is zero)"
    if a.time_s > 0:
        times = f"time {b.time_s / a.time_s:.3f}"
    if a.energy_j is None or b.energy_j is None or not a.energy_j > 0:
        return f"{names}: {times}; the energies cannot be compared (one of them is missing or zero)"
    ratio = b.energy_j / a.energy_j
    error_a, error_b = a.energy_uncertainty_j or 0.0, b.energy_uncertainty_j or 0.0
    half = ratio * math.hypot(error_a / a.energy_j, error_b / b.energy_j if b.energy_j else 0.0)
    difference, error = b.energy_j - a.energy_j, math.hypot(error_a, error_b)
    verdict = "no sure difference" if abs(difference) <= error else (
        f"{format_energy(abs(difference), error)} {'less' if difference < 0 else 'more'}")
    cards = {gpu.uuid for gpu in a.gpus} == {gpu.uuid for gpu in b.gpus}
    caveat = "" if cards else "; on different GPUs, whose calibrations may differ by 10 %"
    span = f"{ratio:.3f} ({ratio - half:.3f} .. {ratio + half:.3f})"
    return f"{names}: energy {span}, {times}; {verdict}{caveat}"


def _unit(value: float | None, unit: str, digits: int = 3) -> str:
    return "" if value is None else f"{significant(value, digits)} {unit}"
