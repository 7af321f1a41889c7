"""A table and an energy statement for a paper, from measurements of the log; and its check, years later.

    workbench.report("resnet50", "vit").write("energy.tex")      # .md, .html, .json, too
    workbench report --label resnet50 --latex > energy.tex       # from a shell
    workbench verify energy.tex                                  # every number again, from the log

A report names its measurements and their digest (in a comment at its end; JSON-LD in the terms of W3C PROV in
.json), so that `verify` can make it again and compare each number.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError, check_fields, checked, named_file, shown
from ..records import Measurement
from ..tariff import J_PER_KWH, significant
from .quantities import student_half_width
from .report import as_dict, format_energy
from .run_table import set_to
from .store import Store, from_row

FORMATS = {".md": "markdown", ".tex": "latex", ".html": "html", ".json": "json"}
MARK = "workbench-report:"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
HEADS = ("run", "GPU", "setting", "runs", "energy", "time (s)", "mean power (W)", "energy per iteration")
LATEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | {
    "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "×": r"$\times$", "°": r"\textdegree{}"})


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a measurement does not know and a statement needs; None where it is not given.

    Attributes:
        pue: Power usage effectiveness of the data centre: all power over that of its machines, 1 or more.
        location: Where it ran.
        g_co2_per_kwh: Intensity of the grid there and then; `intensity_source`: where that number is from.
        order: How runs were ordered ("random, in turns").
        driver: Version of the GPU's driver.
    """

    pue: float | None = None
    location: str = ""
    g_co2_per_kwh: float | None = None
    intensity_source: str = ""
    order: str = ""
    driver: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.pue is not None and not self.pue >= 1:
            raise UsageError(f"a PUE of {shown(self.pue)}: all power over that of the machines is 1 or more")
        if self.g_co2_per_kwh is not None and not self.g_co2_per_kwh >= 0:
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
        return [_row(group) for group in self._groups().values()]

    @property
    def text(self) -> str:
        """The statement: hardware, scope, sensor, interval, repeats, what is in it and what is not."""
        return " ".join(each for each in _sentences(self.measurements, self.surroundings) if each)

    @property
    def provenance(self) -> dict[str, Any]:
        """Which measurements it rests on, with their digest, and what was given beside."""
        return {"ids": [each.id for each in self.measurements], "sha256": digest(self.measurements),
                "surroundings": {name: value for name, value in asdict(self.surroundings).items()
                                 if value not in (None, "")}}

    def markdown(self) -> str:
        """A table and the statement as Markdown."""
        rows = ["| " + " | ".join(row) + " |" for row in (HEADS, ("---",) * len(HEADS), *self.rows)]
        return "\n".join([*rows, "", self.text, "", f"<!-- {self._mark()} -->", ""])

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
        def row(tag: str, cells: Sequence[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row("td", cells) for cells in self.rows)
        return (f"<table>{row('th', HEADS)}{body}</table>\n<p>{html.escape(self.text)}</p>\n"
                f"<!-- {self._mark()} -->\n")

    _repr_html_ = html

    def __repr__(self) -> str:
        return self.text

    def json(self) -> str:
        """Provenance in JSON-LD: the report is derived from the measurements, each with all of its values."""
        ids = [f"urn:gpu-energy-workbench:measurement:{each.id}" for each in self.measurements]
        graph = [{"@id": name, "@type": "prov:Entity", **as_dict(each)}
                 for name, each in zip(ids, self.measurements, strict=True)]
        table = [dict(zip(HEADS, row, strict=True)) for row in self.rows]
        whole = {"@context": {"prov": "http://www.w3.org/ns/prov#"}, "@type": "prov:Entity",
                 "prov:wasDerivedFrom": ids, "table": table,
                 "statement": self.text, "measurements": graph, "mark": self._mark()}
        return json.dumps(whole, indent=1) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write it; the ending says how. Raises UsageError for another one."""
        target = Path(path)
        if target.suffix not in FORMATS:
            raise UsageError(f"{target.name}: a report ends with {', '.join(FORMATS)}")
        target.write_text(getattr(self, FORMATS[target.suffix])(), encoding="utf-8")
        return target

    def _groups(self) -> dict[tuple[str, ...], list[Measurement]]:
        groups: dict[tuple[str, ...], list[Measurement]] = {}
        for each in _complete(self.measurements):
            key = (each.label or each.id, str(each.simulated), *(gpu.name for gpu in each.gpus), *_done(each))
            groups.setdefault(key, []).append(each)
        return groups

    def _mark(self) -> str:
        return f"{MARK} {json.dumps(self.provenance, separators=(',', ':'))}"


@checked
def report(
    *names: str, last: int | None = None, label: str | None = None, since: str | None = None,
    pue: float | None = None, location: str = "", g_co2_per_kwh: float | None = None,
    intensity_source: str = "", order: str = "", driver: str = "",
) -> EnergyStatement:
    """A table and an energy statement for a paper, from the log.

    Args:
        names: Labels (all their runs) or ids; everything where none is given.
        last: The newest so many of those only.
        label: Another way to give one label.
        since: Only those from this day on (2026-11-22, local time).
        pue, location, g_co2_per_kwh, intensity_source, order, driver: See `Surroundings`.

    Raises:
        UsageError: nothing in the log fits, or a number that makes no sense.
    """
    surroundings = Surroundings(pue, location, g_co2_per_kwh, intensity_source, order, driver)
    rows = [from_row(row) for row in Store().log().iter_rows(named=True)]
    wanted = {*names, *([label] if label is not None else [])}
    found = [each for each in rows if not wanted or each.label in wanted or each.id in wanted]
    if missing := wanted - {each.label for each in found} - {each.id for each in found}:
        raise UsageError(f"the log has nothing called {', '.join(sorted(missing))}; `workbench log` shows "
                         "what it has")
    if since is not None:
        found = [each for each in found if each.started_unix_s >= _day_s(since)]
    if last is not None and last < 1:
        raise UsageError(f"last={last}: give 1 or more")
    found = found[-last:] if last is not None else found
    if not found:
        raise UsageError("no measurement fits; `workbench log` shows what there is")
    return EnergyStatement(found, surroundings)


@checked
def verify(path: str | Path) -> list[str]:
    """Make a report again from the log and compare it, number by number; what differs, a sentence each.

    Raises:
        UsageError: it is no report, or the log does not have its measurements (any more).
    """
    try:
        text = named_file(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
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
    return problems + _differences(text, fresh)


def digest(measurements: Sequence[Measurement]) -> str:
    """SHA-256 over all values of some measurements."""
    values = [as_dict(each) for each in measurements]
    for each in (*values, *(gpu for row in values for gpu in row["gpus"])):
        for name in ("batch_size", "calls", "segments"):  # reports without them stay valid
            if name in each and not each[name]:
                del each[name]
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _kept(text: str, path: Path) -> dict[str, Any]:
    try:
        line = json.loads(text)["mark"] if path.suffix == ".json" else text
        found = re.search(re.escape(MARK) + r"\s*(\{.*\})", line)
        kept = json.loads(found[1] if found else "")
        return {"ids": [str(each) for each in kept["ids"]], "sha256": str(kept["sha256"]),
                "surroundings": Surroundings(**kept["surroundings"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path.name} has no sound line `{MARK} ...`; `workbench report` writes one at the "
                         "end") from error


def _differences(given: str, fresh: str) -> list[str]:
    """Numbers, and otherwise lines, in which two texts differ."""
    problems = []
    old, new = given.splitlines(), fresh.splitlines()
    for number, (line, right) in enumerate(zip(old, new, strict=False), start=1):
        if line == right:
            continue
        if MARK in line or MARK in right:
            problems.append(f"line {number}: the line that names the measurements was changed or moved")
            continue
        numbers, rights = NUMBER.findall(line), NUMBER.findall(right)
        wrong = [f"{a} should be {b}" for a, b in zip(numbers, rights, strict=False) if a != b]
        problems.append(f"line {number}: " + ("; ".join(wrong) or f"the text is not {right[:80]!r}"))
    if len(old) != len(new):
        problems.append(f"it has {len(old)} lines and should have {len(new)}")
    return problems


def _complete(measured: Sequence[Measurement]) -> list[Measurement]:
    """Without runs that failed or were interrupted."""
    return [each for each in measured if each.outcome == "ok"]


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
        return time.mktime(time.strptime(day, "%Y-%m-%d"))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"since={shown(day)}: give a day such as 2026-11-22") from error


def _row(group: Sequence[Measurement]) -> tuple[str, ...]:
    first, setting = group[0], ", ".join(filter(None, _done(group[0])[:2]))
    runs = sum(each.repeats for each in group)
    weights = [each.repeats for each in group]
    halves = [each.energy_uncertainty_j for each in group]
    energy_j, half_j = _mean([each.energy_j for each in group], halves, weights)
    time_s, _ = _mean([each.time_s for each in group], [], weights)
    counted = [each.iterations for each in group if each.iterations is not None and each.iterations.sure]
    halves = [each.energy_uncertainty_j for each in counted]
    weights = [max(each.count, 1) for each in counted]
    each_j, each_half = _mean([each.energy_j for each in counted], halves, weights)
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in first.gpus)) or "none"
    if len(first.gpus) > 1:
        gpus = f"{len(first.gpus)} × {gpus}"
    power_w = None if energy_j is None or not time_s else energy_j / time_s
    return (
        (first.label or first.id) + " (simulated)" * first.simulated, gpus, setting, str(runs),
        format_energy(energy_j, half_j), "" if time_s is None else significant(time_s),
        "" if power_w is None else significant(power_w),
        "" if each_j is None else format_energy(each_j, each_half),
    )


def _mean(
    values: Sequence[float | None], halves: Sequence[float | None], weights: Sequence[int]
) -> tuple[float | None, float | None]:
    """The weighted mean, and a 95 % half width: the larger of Student's over the measurements and what their
    errors leave.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None, None
    own = math.sqrt(sum((half or 0.0) ** 2 for half in halves)) / len(known)
    spread = 0.0
    if len(known) > 1:
        spread = student_half_width(float(np.std(known, ddof=1)), len(known))
    return float(np.average(known, weights=weights)), max(own, spread)


def _sentences(measured: Sequence[Measurement], around: Surroundings) -> list[str]:
    """The statement, a sentence for each point that a reader needs to judge a joule."""
    gpus = [gpu for each in measured for gpu in each.gpus]
    names = ", ".join(sorted({gpu.name for gpu in gpus})) or "no GPU"
    cards = len({gpu.uuid for gpu in gpus})
    energies = [
        None if each.energy_j is None else each.energy_j * each.repeats * (each.calls or 1)
        for each in measured
    ]
    total = None if None in energies else sum(each for each in energies if each is not None)
    sources = {gpu.source for gpu in gpus}
    how = {"counter": "differences of the driver's energy counter", "integrated":
           "integrals of the driver's power readings"}
    sensors = " and ".join(how.get(each, each) for each in sorted(sources)) or "nothing"
    complete = _complete(measured)
    runs, failed = sum(each.repeats for each in complete), len(measured) - len(complete)
    shared = sum(any(gpu.other_processes for gpu in each.gpus) for each in measured)
    limits = sorted({gpu.power_limit_w for gpu in gpus if gpu.power_limit_w is not None})
    host = any(each.cpu_energy_j is not None for each in measured)
    simulated = any(each.simulated for each in measured)
    driver = f", driver {around.driver}" if around.driver else ""
    whole = [
        "The GPUs are simulated: their energy is not real." if simulated else "",
        f"Energy of {cards} {'GPU' if cards == 1 else 'GPUs'} ({names}{driver}) is that of whole boards, "
        f"from {sensors}.",
        "CPU, memory, fans, power supply and network are not in it" + (
            "; the processor's own counter (RAPL) is in the data beside." if host else "."),
        "Idle power while a run lasted is in it.",
        f"The figures are means of {runs} {'run' if runs == 1 else 'runs'} with 95 % intervals: of the "
        "measurement, and of the spread over runs where there were several. The cards' calibration "
        "(typically within 5 %) comes on top.",
        f"Power limits were {', '.join(f'{each:g}' for each in limits)} W." if limits else "",
        f"Runs were ordered: {around.order}." if around.order else "",
        f"{failed} of {len(measured)} measurements failed or were interrupted: the table leaves them out."
        if failed else "",
        f"During {shared} of {len(measured)} measurements other processes used the GPUs: their energy is in "
        "it." if shared else "",
    ]
    if total is not None:
        kwh = total / J_PER_KWH * (around.pue or 1.0)
        with_pue = f" with a PUE of {around.pue:g}" if around.pue is not None else ""
        whole.append(f"In all {significant(total / J_PER_KWH * 1000)} Wh were measured" + (
            f", {significant(kwh * 1000)} Wh{with_pue}." if with_pue else "."))
        if around.g_co2_per_kwh is not None:
            where = f" in {around.location}" if around.location else ""
            source = f" ({around.intensity_source})" if around.intensity_source else ""
            whole.append(f"At {around.g_co2_per_kwh:g} g CO2 per kWh{where}{source} that is "
                         f"{significant(kwh * around.g_co2_per_kwh)} g.")
    if around.location and around.g_co2_per_kwh is None:
        whole.append(f"It ran in {around.location}.")
    return whole
