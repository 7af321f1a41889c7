"""Small HTML tables by which values show themselves in a notebook. No script, colours inherited, readable in
any theme. Standard library only.
"""

from __future__ import annotations

import html
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from typing import Any

from .errors import Suggesting, printable, shortened
from .tariff import significant, with_error

UNITS = {"w": "W", "j": "J", "s": "s", "mhz": "MHz", "c": "°C", "kwh": "kWh", "seconds": "s"}
SIMULATED = " (simulated)"
CELL = "style='text-align:left;padding:0 1em 0 0;white-space:normal;vertical-align:top'"
MOST_ROWS = 40  # of a table that is shown


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, bold: Container[int] = (), style: str = ""
) -> str:
    """A table of texts, escaped; empty where there is no row. `bold` are numbers of rows.

    Args:
        heads: Column names.
        rows: Cells, as many as heads each; they are escaped.
        bold: Numbers of rows in bold.
        style: CSS of the table.
    """
    body = "".join(_row("td", row, "font-weight:bold" * (n in bold)) for n, row in enumerate(rows))
    head = _row("th", heads) if any(heads) else ""
    return f"<table style='margin:.3em 0;{style}'>{head}{body}</table>" if body else ""


def facts(title: str, values: Mapping[str, object], *, simulated: bool = False) -> str:
    """A title, a row for each value that there is, and a table for each that has rows.

    Args:
        title: Of the whole.
        values: By name; the unit is the end of the name ("power_limit_w"). Lists of records or of mappings
            and data frames have rows.
        simulated: Whether no joule of it is real, which is reported.
    """
    plain: dict[str, object] = {}
    below = []
    for name, value in values.items():
        if rows := _records(value):
            below.append(f"<div>{html.escape(_name(name))}</div>{_record_table(rows)}")
        elif isinstance(value, HtmlFacts) and type(value).__str__ is HtmlFacts.__str__:
            below.append(value._repr_html_())
        elif value is not None and (not isinstance(value, Sized) or len(value)):  # what was measured
            plain[name] = value
    heading = f"<b>{html.escape(title)}{SIMULATED * simulated}</b>" if title else ""
    return f"<div class='gpu-facts'>{heading}{table((), _texts(plain).items())}{''.join(below)}</div>"


class HtmlFacts(Suggesting):
    """A dataclass that shows fields and plain properties: as a table in a notebook, as a line in print."""

    __slots__ = ()

    def __str__(self) -> str:
        values = ((name, value) for name, value in _values(self) if not _records(value))
        texts = [f"{name} {text}" for name, text in _texts(dict(values)).items() if text]
        return shortened(f"{type(self).__name__}: {', '.join(texts) or 'empty'}", 300)

    def _repr_html_(self) -> str:
        return record_table(self)


def record_table(record: Any) -> str:
    """A record (a dataclass or a named tuple) as a table of its fields and plain properties."""
    return facts(type(record).__name__, dict(_values(record)),
                 simulated=bool(getattr(record, "simulated", False)))


def _values(record: Any) -> Iterator[tuple[str, object]]:
    """Fields and plain properties of a dataclass, but the id and the civil time; items of a mapping."""
    if isinstance(record, Mapping):
        yield from record.items()
        return
    names = list(getattr(record, "_fields", ())) or [field.name for field in fields(record)]
    names += [name for name, value in vars(type(record)).items() if isinstance(value, property)]
    for name in names:
        value = getattr(record, name)
        if name not in ("id", "started_unix_s", "simulated") and not (
            is_dataclass(value) and isinstance(getattr(type(record), name, None), property)
        ):
            yield name, value


def _record_table(records: Sequence[Any]) -> str:
    rows = [_texts(dict(_values(record))) for record in records[:MOST_ROWS]]
    heads = [name for name in rows[0] if any(row.get(name) for row in rows)]
    left = f"<div>and {len(records) - MOST_ROWS} more</div>" if len(records) > MOST_ROWS else ""
    return table(heads, [[row.get(name, "") for name in heads] for row in rows]) + left


def _row(tag: str, cells: Iterable[object], style: str = "") -> str:
    drawn = "".join(f"<{tag} {CELL}>{html.escape(printable(str(c)))}</{tag}>" for c in cells)
    return f"<tr style='{style}'>{drawn}</tr>" if style else f"<tr>{drawn}</tr>"


def _name(name: str) -> str:
    stem, _, unit = name.rpartition("_")
    return (stem if unit in UNITS and stem else name).replace("_", " ")


def _records(value: Any) -> Sequence[Any]:
    """The rows of a value; empty where it has none."""
    if hasattr(value, "iter_rows"):
        return value.rows(named=True)  # type: ignore[no-any-return]
    listed = isinstance(value, (tuple, list)) and value
    return value if listed and (is_dataclass(value[0]) or isinstance(value[0], dict)) else ()


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Names and values as texts; an uncertainty stands with its value."""
    uncertain = {name: _uncertainty(name, values) for name in values}
    beside = {each for each in uncertain.values() if each}
    return {
        _name(name): _text(name, value, values.get(uncertain[name]))
        for name, value in values.items()
        if name not in beside
    }


def _uncertainty(name: str, values: Mapping[str, object]) -> str:
    """The name of a value's uncertainty among the others; empty where there is none."""
    stem, _, unit = name.rpartition("_")
    alone = {"seconds": "uncertainty_s", "energy_j": "uncertainty_j"}.get(name, "")
    for each in (f"{stem}_uncertainty_{unit}", f"{name}_uncertainty", alone):
        if values.get(each) is not None:
            return each
    return ""


def _text(name: str, value: object, uncertainty: object = None) -> str:
    unit = f" {UNITS[found]}" if (found := name.rpartition("_")[2]) in UNITS else ""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if isinstance(uncertainty, float) and 0 < uncertainty < 1e300 and abs(value) < 1e300:
            return with_error(value, uncertainty) + unit
        return (f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else significant(value, 4)) + unit
    if isinstance(value, int):
        return f"{value}{unit}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(name, each)}" for key, each in value.items())
    if isinstance(value, (tuple, list)):
        texts = [_text("", each) for each in value]
        few = len(texts) <= 8
        return (", ".join(texts) if few else f"{texts[0]} .. {texts[-1]} ({len(texts)} values)") + unit
    return str(value)
