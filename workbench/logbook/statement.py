"""A table and an energy statement for a paper, from measurements of the log; and its check, years later.

    workbench.report("resnet50", "vit").write("energy.tex")      # .md, .html, .json, too
    workbench report --label resnet50 --latex > energy.tex       # from a shell
    workbench verify energy.tex                                  # every number again, from the log

A report names its measurements and their digest (in a comment at its end; JSON-LD in the terms of W3C PROV in
.json), so that `verify` can make it again and compare each number.
"""

from __future__ import annotations

import datetime
import hashlib
import html
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._html import table
from ..errors import UsageError, check_fields, checked, printable, read_file, shown
from ..records import Measurement
from ..tariff import J_PER_KWH, significant
from .quantities import SENSOR_ERROR, gpu_names, student_half_width
from .report import as_dict, format_energy
from .run_table import set_to
from .store import Store, from_row, unknown

FORMATS = {".md": "markdown", ".tex": "latex", ".html": "html", ".json": "json"}
MARK = "workbench-report:"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
HEADS = ("run", "GPU", "setting", "runs", "energy", "time (s)", "mean power (W)", "energy per iteration")
LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | {
    "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "×": r"$\times$", "°": r"\textdegree{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"})


@dataclass(frozen=True)
class Surroundings:
    """Facts that a statement needs and a measurement does not contain; None if not given.

    Attributes:
        pue: Power usage effectiveness of the data centre: all power over that of its machines, 1 or more.
        location: Where it ran.
        g_co2_per_kwh: Intensity of the grid there and then; `intensity_source`: where that number is from.
    """

    pue: float | None = None
    location: str = ""
    g_co2_per_kwh: float | None = None
    intensity_source: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.pue is not None and not 1 <= self.pue < math.inf:
            raise UsageError(f"a PUE of {shown(self.pue)}: all power over that of the machines is 1 or more")
        if self.g_co2_per_kwh is not None and not 0 <= self.g_co2_per_kwh < math.inf:
            raise UsageError(f"an intensity of {shown(self.g_co2_per_kwh)} g/kWh: give 0 or more")


NOWHERE = Surroundings()


class EnergyStatement:
    """Measurements as a table and a statement.

    A row has the complete runs of one label that did equal work on one GPU model at one setting. Runs that
    failed or were interrupted are left out, and the statement counts them.
    """

    def __init__(self, measurements: Sequence[Measurement], surroundings: Surroundings = NOWHERE) -> None:
        self.measurements, self.surroundings = tuple(measurements), surroundings

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The table's cells, without its heads."""
        groups: dict[tuple[str, ...], list[Measurement]] = {}
        for each in self.measurements:
            if each.outcome == "ok":
                names = (gpu.name for gpu in each.gpus)
                key = each.label or each.id, str(each.simulated), *names, *_done(each)
                groups.setdefault(key, []).append(each)
        return [tuple(map(printable, _row(group))) for group in groups.values()]

    @property
    def text(self) -> str:
        """The statement: hardware, scope, sensor, interval, repeats, inclusions and exclusions."""
        return printable(" ".join(_sentences(self.measurements, self.surroundings)))

    @property
    def provenance(self) -> dict[str, Any]:
        """Which measurements it rests on, with their digest, and what was given next to."""
        return {"ids": [each.id for each in self.measurements], "sha256": digest(self.measurements),
                "surroundings": asdict(self.surroundings)}

    def markdown(self) -> str:
        """A table and the statement as Markdown."""
        cells = [HEADS, ("---",) * len(HEADS), *(map(_markdown, row) for row in self.rows)]
        rows = [f"| {' | '.join(row)} |" for row in cells]
        return "\n".join([*rows, "", _markdown(self.text), "", f"<!-- {self._mark()} -->", ""])

    def latex(self) -> str:
        """A table with the lines of booktabs, and the statement as a paragraph."""
        rows = [" & ".join(cell.translate(LATEX) for cell in row) + r" \\" for row in self.rows]
        heads = " & ".join(head.translate(LATEX) for head in HEADS) + r" \\"
        return "\n".join([
            "% needs \\usepackage{booktabs}", r"\begin{tabular}{lllrrrrr}", r"\toprule", heads, r"\midrule",
            *rows, r"\bottomrule", r"\end{tabular}", "", self.text.translate(LATEX), "",
            f"% {self._mark()}", ""])

    def html(self) -> str:
        """A table and the statement as a page that needs no other file."""
        return f"{table(HEADS, self.rows)}\n<p>{html.escape(self.text)}</p>\n<!-- {self._mark()} -->\n"

    _repr_html_ = html

    def __repr__(self) -> str:
        return self.text

    def json(self) -> str:
        """Provenance in JSON-LD: the report is derived from the measurements, each with all of its values."""
        graph = [{"@id": f"urn:gpu-energy-workbench:measurement:{each.id}", "@type": "prov:Entity",
                  **as_dict(each)} for each in self.measurements]
        whole = {"@context": {"prov": "http://www.w3.org/ns/prov#"}, "@type": "prov:Entity",
                 "prov:wasDerivedFrom": [each["@id"] for each in graph],
                 "table": [dict(zip(HEADS, row, strict=True)) for row in self.rows],
                 "statement": self.text, "measurements": graph, "mark": self._mark()}
        return json.dumps(whole, indent=1) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write it, in the format of the name's ending. Raises UsageError for another one."""
        target = Path(path)
        if target.suffix not in FORMATS:
            raise UsageError(f"{target.name}: a report ends with {', '.join(FORMATS)}")
        target.write_text(getattr(self, FORMATS[target.suffix])(), encoding="utf-8")
        return target

    def _mark(self) -> str:
        text = json.dumps(self.provenance, separators=(",", ":"))
        # no text ends a comment of HTML or begins an element
        return f"{MARK} {text.replace('>', chr(92) + 'u003e').replace('<', chr(92) + 'u003c')}"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(text, quote=False))


@checked
def report(
    *names: str, last: int | None = None, label: str | None = None, since: str | None = None,
    pue: float | None = None, location: str = "", g_co2_per_kwh: float | None = None,
    intensity_source: str = "",
) -> EnergyStatement:
    """A table and an energy statement for a paper, from the log.

    Args:
        names: Labels (all their runs) or ids; everything where none is given.
        last: The newest so many of those only.
        label: Another way to give one label.
        since: Only those from this day on (2026-11-22, local time).
        pue, location, g_co2_per_kwh, intensity_source: See `Surroundings`.

    Raises:
        UsageError: nothing in the log fits, or a number that makes no sense.
    """
    surroundings = Surroundings(pue, location, g_co2_per_kwh, intensity_source)
    if intensity_source and g_co2_per_kwh is None:
        raise UsageError(f"intensity_source={shown(intensity_source)} is the source of a number that is not "
                         "given; give g_co2_per_kwh= too")
    if "" in (*names, label):
        raise UsageError("a label is empty; give one, or none for all runs")
    rows = [from_row(row) for row in Store().log().iter_rows(named=True)]
    wanted = {*names, *([label] if label is not None else [])}
    found = [each for each in rows if not wanted or each.label in wanted or each.id in wanted]
    if missing := wanted - {each.label for each in found} - {each.id for each in found}:
        raise unknown(min(missing), (each.label for each in rows))
    if since is not None:
        found = [each for each in found if each.started_unix_s >= _day_s(since)]
    if last is not None and last < 1:
        raise UsageError(f"last={last}: give 1 or more")
    found = found[-last:] if last is not None else found
    if not found:
        raise UsageError("no measurement was selected; `workbench log` lists them")
    return EnergyStatement(found, surroundings)


@checked
def verify(path: str | Path) -> list[str]:
    """Make a report again from the log and compare it, number by number; what differs, a sentence each.

    Raises:
        UsageError: it is no report, or the log does not have its measurements (any more).
    """
    try:
        text = read_file(path).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    kept = _kept(text, Path(path))
    known = {row["id"]: row for row in Store().log().iter_rows(named=True)}
    if missing := [each for each in kept["ids"] if each not in known]:
        raise UsageError(f"the log has no measurement {', '.join(missing[:5])}; verify where it was "
                         "measured, or bring its files along")
    again = EnergyStatement([from_row(known[each]) for each in kept["ids"]], kept["surroundings"])
    problems = []
    if again.provenance["sha256"] != kept["sha256"]:
        problems.append(
            "the digest differs: the last line of the report or a measurement in the log was changed"
        )
    fresh = getattr(again, FORMATS.get(Path(path).suffix, "markdown"))()
    return [*problems, *_differences(text, fresh)]


def digest(measurements: Sequence[Measurement]) -> str:
    """SHA-256 over all values of some measurements."""
    values = [as_dict(each) for each in measurements]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _kept(text: str, path: Path) -> dict[str, Any]:
    try:
        line = json.loads(text)["mark"] if path.suffix == ".json" else text
        found = re.search(re.escape(MARK) + r"\s*(\{.*\})", line)
        kept = json.loads(found[1] if found else "")
        return {"ids": [str(each) for each in kept["ids"]], "sha256": str(kept["sha256"]),
                "surroundings": Surroundings(**kept["surroundings"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path.name} is no report, or a damaged one: it has no line `{MARK} ...`, which "
                         "`workbench report` writes at the end") from error


def _differences(given: str, fresh: str) -> Iterator[str]:
    """Numbers, and otherwise lines, in which two texts differ."""
    pairs = itertools.zip_longest(given.splitlines(), fresh.splitlines(), fillvalue="")
    for number, (line, right) in enumerate(pairs, start=1):
        if line != right:
            numbers = zip(NUMBER.findall(line), NUMBER.findall(right), strict=False)
            wrong = [f"{a} should be {b}" for a, b in numbers if a != b]
            yield f"line {number}: " + ("; ".join(wrong) or f"the text is not {right[:80]!r}")


def _done(m: Measurement) -> tuple[str, ...]:
    """What runs of one row have in common: settings, batch size and work, as far as they are known."""
    settings = (set_to(gpu) for gpu in as_dict(m)["gpus"])
    work = (f"{each.amount:g} {each.name}" for each in m.work)  # of one run on average
    marked = m.iterations is not None and m.iterations.source == "marks"
    count = f"{m.iterations.count / m.repeats:g} iterations" if m.iterations is not None and marked else ""
    batch = "" if m.batch_size is None else f"batch size {m.batch_size}"
    return "; ".join(dict.fromkeys(settings)), batch, ", ".join([*work, count])


def _day_s(day: str) -> float:
    try:
        return datetime.datetime.strptime(day, "%Y-%m-%d").timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"since={shown(day)}: give a day such as 2026-11-22") from error


def _row(group: Sequence[Measurement]) -> tuple[str, ...]:
    first, setting = group[0], ", ".join(filter(None, _done(group[0])[:2]))
    weights = [each.repeats for each in group]
    energy_j, half_j = _mean([(each.energy_j, each.energy_uncertainty_j) for each in group], weights)
    time_s = float(np.average([each.time_s for each in group], weights=weights))
    counted = [each.iterations for each in group if each.iterations is not None and each.iterations.sure]
    each_j, each_half = _mean([(each.energy_j, each.energy_uncertainty_j) for each in counted],
                              [max(each.count, 1) for each in counted])
    return (
        (first.label or first.id) + " (simulated)" * first.simulated,
        gpu_names(gpu.name for gpu in first.gpus) or "none", setting, str(sum(weights)),
        format_energy(energy_j, half_j), significant(time_s),
        "" if energy_j is None or not time_s else significant(energy_j / time_s),
        "" if each_j is None else format_energy(each_j, each_half),
    )


def _mean(
    values: Sequence[tuple[float | None, float | None]], weights: Sequence[int]
) -> tuple[float | None, float | None]:
    """The weighted mean of values with half widths, and its 95 % half width: the larger of Student's over the
    values and what their errors leave.
    """
    known = [value for value, _ in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    own = math.sqrt(sum((half or 0.0) ** 2 for _, half in values)) / len(known)
    spread = student_half_width(float(np.std(known, ddof=1)), len(known)) if len(known) > 1 else 0.0
    return float(np.average(known, weights=weights)), max(own, spread)


SENSORS = {"counter": "differences of the driver's energy counter",
           "integrated": "integrals of the driver's power readings"}


def _sentences(measured: Sequence[Measurement], around: Surroundings) -> Iterator[str]:
    """The statement, a sentence for each point that a reader needs to judge a joule."""
    gpus = [gpu for each in measured for gpu in each.gpus]
    names = ", ".join(sorted({gpu.name for gpu in gpus})) or "no GPU"
    sources = sorted({gpu.source for gpu in gpus})
    sensors = " and ".join(SENSORS.get(each, each) for each in sources) or "nothing"
    complete = [each for each in measured if each.outcome == "ok"]
    if any(each.simulated for each in measured):
        yield "The GPUs are simulated: their energy is not real."
    cards = _counted(len({gpu.uuid for gpu in gpus}), "GPU")
    yield f"Energy of {cards} ({names}) is that of whole boards, from {sensors}."
    host = any(each.cpu_energy_j is not None for each in measured)
    beside = "; the processor's own counter (RAPL) is in the data too" if host else ""
    yield f"CPU, memory, fans, power supply and network are not in it{beside}."
    yield "Idle power while a run lasted is in it."
    runs = _counted(sum(each.repeats for each in complete), "run")
    yield (f"The figures are means of {runs} with 95 % intervals: of the measurement, and of the spread over "
           "runs where there were several. The cards' calibration (typically within "
           f"{100 * SENSOR_ERROR:g} %) comes on top.")
    if limits := sorted({gpu.power_limit_w for gpu in gpus if gpu.power_limit_w is not None}):
        yield f"Power limits were {', '.join(f'{each:g}' for each in limits)} W."
    if failed := len(measured) - len(complete):
        yield (f"{failed} of {len(measured)} measurements failed or were interrupted: the table leaves them "
               "out.")
    if shared := sum(any(gpu.other_processes for gpu in each.gpus) for each in measured):
        yield (f"During {shared} of {len(measured)} measurements other processes used the GPUs: their energy "
               "is in it.")
    where = f" in {around.location}" if around.location else ""
    energies = [each.energy_j for each in measured]
    if None not in energies:
        times = [each.repeats * (each.calls or 1) for each in measured]
        kwh = sum(each * n for each, n in zip(energies, times, strict=True) if each) / J_PER_KWH
        whole_kwh = kwh * (around.pue or 1.0)
        pue = "" if around.pue is None else (
            f", {significant(1000 * whole_kwh)} Wh with a PUE of {around.pue:g}")
        yield f"In all {significant(1000 * kwh)} Wh were measured{pue}."
        if around.g_co2_per_kwh is not None:
            source = f" ({around.intensity_source})" if around.intensity_source else ""
            yield (f"At {around.g_co2_per_kwh:g} g CO2 per kWh{where}{source} that is "
                   f"{significant(whole_kwh * around.g_co2_per_kwh)} g.")
    if where and around.g_co2_per_kwh is None:
        yield f"It ran{where}."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
