"""What a panel's kernel says to its view, as types for TypeScript: python -m tools.js.messages writes
`static/messages.d.ts`. What is sent as it is kept are the panels' own records; the rest is declared here, and
`tests/panels` holds every message that its panels send against it.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from workbench.panels._views.apply.model import ApplyView
from workbench.panels._views.clocks.text import TuningText
from workbench.panels._views.cluster.drill import Drilled
from workbench.panels._views.cluster.model import TableLine

PATH = Path(__file__).parents[2] / "workbench" / "panels" / "static" / "messages.d.ts"
Theme = dict[str, tuple[str, str, str]]
Number = float | None


class Greeting(TypedDict):
    theme: Theme


class Gpu(TypedDict):
    uuid: str
    index: int
    name: str
    simulated: bool
    colour: str
    dash: list[int]
    low: Number
    high: Number
    default: Number
    reason: str


class NamedLevel(TypedDict):
    name: str
    seconds: float
    words: NotRequired[str]


class Layer(TypedDict):
    kind: str
    ink: str
    width: Number
    dashes: list[int]
    opacity: Number
    hover: list[str]
    rows: dict[str, list[Any]]
    shape: NotRequired[str]
    framed: NotRequired[bool]
    size: NotRequired[int]
    weight: NotRequired[str]
    spread: NotRequired[bool]
    name: NotRequired[str]


class Frame(TypedDict):
    title: str
    label: str
    height: Number
    x: tuple[float, float]
    y: tuple[float, float]
    left: int | list[tuple[float, str]]
    below: int | list[tuple[float, str]]
    layers: list[Layer]


class Period(TypedDict):
    gpu: int
    since: Number
    headline: str
    details: list[str]
    sure: bool
    levels: list[NamedLevel]
    level: NamedLevel | None
    spans: int
    figure: list[list[Frame]]
    range: tuple[float, float] | None


class PowerNews(TypedDict):
    kind: NotRequired[str]
    counts: list[int]
    elapsed: float
    energy: list[Number]
    iteration: Number
    marks: NotRequired[list[tuple[float, str]]]
    period: NotRequired[Period]


class PowerPlot(TypedDict):
    title: str
    column: str
    gpus: list[int]
    height: int
    ticks: int


class PowerResult(TypedDict):
    answer: str
    details: str


class Applicable(TypedDict):
    kind: NotRequired[str]
    gpus: list[tuple[str, str]]
    uuid: str
    view: ApplyView | None
    wanted: dict[str, Number] | None
    doing: str
    done: str
    plot: str


class OwnSettings(Applicable):
    table: str
    name: str


class PowerGreeting(Greeting, PowerNews):
    title: str
    plots: list[PowerPlot]
    label: str
    gpus: list[Gpu]
    window: float
    stop: bool
    slider: bool
    follows: bool
    result: PowerResult | None
    lanes: list[list[Frame]]
    settings: NotRequired[OwnSettings | None]


class LimitAnswer(TypedDict):
    kind: str
    applied: dict[str, Number]
    asked: Number


class TracedGpu(TypedDict):
    index: int
    name: str
    colour: str


class PeriodNews(TypedDict):
    kind: NotRequired[str]
    title: str
    count: int
    period: Period


class PeriodGreeting(Greeting, PeriodNews):
    gpus: list[TracedGpu]
    simulated: bool


class Progress(TypedDict):
    share: float
    words: str
    can_cancel: bool


class Sheet(TypedDict):
    kind: str
    name: str
    html: str
    bar: Progress | None
    theme: NotRequired[Theme]


class LogRun(TypedDict):
    id: str
    cells: list[str]
    numbers: list[Number]


class LogNews(TypedDict):
    kind: str
    columns: list[str]
    runs: list[LogRun]
    whole: bool
    chosen: list[str]
    look: str
    theme: NotRequired[Theme]


class LogSparks(TypedDict):
    kind: str
    sparks: dict[str, list[int]]


class ApplyKnobs(TypedDict):
    limits: tuple[Number, Number, Number] | None
    sm: list[int]
    memory: list[int]


class Apply(TypedDict):
    kind: str
    title: str
    uuid: str
    view: ApplyView | None
    wanted: dict[str, Number] | None
    doing: str
    done: str
    plot: str
    theme: NotRequired[Theme]
    knobs: NotRequired[ApplyKnobs]
    gpus: NotRequired[list[tuple[str, str]]]


class JobPoint(TypedDict):
    text: str
    layers: list[Layer]


class Applied(Applicable):
    job: JobPoint | None


class ClocksWanted(TypedDict):
    objective: str | None
    bound: Number


class ClocksDrawing(TypedDict):
    knobs: list[str]
    figure: list[list[Frame]]


class ClocksNews(TypedDict):
    kind: str
    title: str
    simulated: bool
    words: TuningText | None
    begins: bool
    wanted: ClocksWanted
    asked: NotRequired[int | None]
    drawing: NotRequired[ClocksDrawing]


class ClocksGreeting(Greeting, ClocksNews):
    steps: list[str]
    objectives: dict[str, str]
    nothing: str


class Policy(TypedDict):
    name: str
    words: str
    takes: list[str]


class ClusterChosen(TypedDict):
    presets: dict[str, list[str]]
    log: str
    logs: list[str]
    part: str
    parts: list[str]
    jobs: int | None
    wrong: str
    trimmed: bool
    keep_valid: bool
    nodes: int
    kind: str
    kinds: list[str]
    gpus: int
    draws: int
    sweep: str | None
    values: list[Number]
    atOnce: bool
    load_threshold: Number
    max_jobs: Number
    slack: Number
    sleep_after_s: float | str | None
    policies: list[Policy]
    chosen: list[str]


class PolicyShare(TypedDict):
    policy: str
    share: float


class ClusterRun(TypedDict):
    state: str
    words: str
    each: list[PolicyShare]
    stale: bool


class DrawnCurve(TypedDict):
    policy: str
    text: str
    ink: str
    dashes: list[int]
    open: bool
    notable: dict[str, list[str]]


class ClusterDrawn(TypedDict):
    lines: list[TableLine]
    curves: list[DrawnCurve]
    figure: list[list[Frame]]
    headline: str
    details: list[str]
    about: list[str]
    nodeCount: int


class ClusterNews(TypedDict):
    kind: str
    title: str
    settings: ClusterChosen
    run: ClusterRun
    asked: NotRequired[int | None]
    drawn: NotRequired[ClusterDrawn]
    version: NotRequired[int]


class ClusterGreeting(Greeting, ClusterNews):
    palette: list[str]
    heads: list[tuple[str, str]]
    units: dict[str, str]
    swept: list[str]
    distributions: list[tuple[str, str]]
    drilled: Drilled | None
    distribution: str


class FrontierStep(TypedDict):
    headline: str
    name: str
    details: list[str]


class FrontierColumn(TypedDict):
    name: str
    hint: str
    values: list[float | str | None]
    texts: list[str] | None


class FrontierView(TypedDict):
    figure: list[list[Frame]]
    front: list[int]
    steps: list[FrontierStep]
    knee: int
    compared: bool
    slowest: float
    table: list[FrontierColumn]


class FrontierChoice(FrontierStep):
    kind: str
    version: int
    row: int
    rule: str
    eta: float
    slowdown: Number
    note: str
    place: int
    allowed: int
    on: bool
    best: bool
    least: bool
    knee: bool
    python: str
    moved: list[Layer]
    asked: NotRequired[int | None]


class FrontierPoints(TypedDict):
    kind: str
    title: str
    simulated: bool
    said: str
    filters: dict[str, Any]
    options: dict[str, list[Any]]
    relative: bool
    whole: bool
    view: FrontierView | None
    choice: FrontierChoice | None
    applied: NotRequired[Applied | None]
    theme: NotRequired[Theme]


class FrontierFile(TypedDict):
    kind: str
    what: str
    name: str
    view: str | None


class RecurringView(TypedDict):
    headline: str
    details: list[str]
    eta: Number
    objective: str
    figure: list[list[Frame]]


class RecurringNews(TypedDict):
    kind: NotRequired[str]
    view: RecurringView | None
    left: int
    asked: NotRequired[int | None]


class RecurringGreeting(Greeting, RecurringNews):
    title: str
    name: str
    simulated: bool
    whyNot: str


NAMES = {
    TuningText: "ClocksWords", Drilled: "ClusterDrilled",
    TableLine: "ClusterLine",
}
RECORDS = (ApplyView, TuningText, Drilled, TableLine)
# Of each panel: what greets a view, and by its kind what comes later.
SAID: dict[str, tuple[type, dict[str, type]]] = {
    "PowerView": (PowerGreeting, {"news": PowerNews, "limit": LimitAnswer}),
    "JobPanel": (PowerGreeting, {"applied": OwnSettings}),
    "PeriodPanel": (PeriodGreeting, {"news": PeriodNews}),
    "SweepPanel": (Sheet, {"news": Sheet}),
    "LogPanel": (LogNews, {"news": LogNews, "sparks": LogSparks}),
    "ApplyPanel": (Apply, {"news": Apply, "knobs": Apply}),
    "ClocksPanel": (ClocksGreeting, {"news": ClocksNews}),
    "ClusterPanel": (ClusterGreeting, {"news": ClusterNews}),
    "FrontierPanel": (
        FrontierPoints,
        {"points": FrontierPoints, "choice": FrontierChoice, "file": FrontierFile,
         "applied": Applied},
    ),
    "RecurringPanel": (RecurringGreeting, {"news": RecurringNews}),
}


def declared() -> list[type]:
    """Every type that a message consists of."""
    own = [each for each in vars(sys.modules[__name__]).values() if typing.is_typeddict(each)]
    return [*RECORDS, *own]


def fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Of a message or record: each field's type, and whether it may be absent."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: (typing.get_args(hint)[0], True) if typing.get_origin(hint) is NotRequired else (hint, False)
        for name, hint in hints.items()
    }


def typescript(hint: Any) -> str:
    """A type in TypeScript's words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(typescript, inner)))
    if origin is dict:
        return f"Record<string, {typescript(inner[1])}>"
    if origin is list or (origin is tuple and inner[-1] is ...):
        return f"({typescript(inner[0])})[]" if "|" in typescript(inner[0]) else f"{typescript(inner[0])}[]"
    if origin is tuple:
        return f"[{', '.join(map(typescript, inner))}]"
    plain = {str: "string", bool: "boolean", int: "number", float: "number"}
    plain |= {types.NoneType: "null", Any: "any"}
    return plain.get(hint) or NAMES.get(hint, getattr(hint, "__name__", "any"))


def declaration() -> str:
    """The whole of `messages.d.ts`."""
    text = ["// Made by `python -m tools.js.messages` from what the panels in Python send; not to be edited."]
    for kind in declared():
        text.append(f"export interface {NAMES.get(kind, kind.__name__)} {{")
        for name, (hint, absent) in fields(kind).items():
            text.append(f"  {name}{'?' * absent}: {typescript(hint)};")
        text.append("}")
    return "\n".join(text) + "\n"


def troubles(found: Any, hint: Any, where: str = "") -> Iterator[str]:
    """What of a message is not as declared."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (typing.Union, types.UnionType):
        tried = [list(troubles(found, each, where)) for each in inner]
        yield from min(tried, key=len)
    elif typing.is_typeddict(hint) or dataclasses.is_dataclass(hint):
        if not isinstance(found, dict):
            yield f"{where}: {found!r} is no {hint.__name__}"
            return
        known = fields(hint)
        yield from (f"{where}.{name} is not declared" for name in found if name not in known)
        for name, (kind, absent) in known.items():
            if name in found:
                yield from troubles(found[name], kind, f"{where}.{name}")
            elif not absent:
                yield f"{where}.{name} is missing"
    elif origin is dict:
        for name, each in found.items() if isinstance(found, dict) else [(where, found)]:
            yield from troubles(each, inner[1], f"{where}.{name}")
    elif origin in (list, tuple):
        if not isinstance(found, (list, tuple)):
            yield f"{where}: {found!r} is no list"
        elif origin is list or inner[-1] is ...:
            for each in found:
                yield from troubles(each, inner[0], f"{where}[]")
        elif len(found) != len(inner):
            yield f"{where}: {found!r} has {len(found)} parts"
        else:
            for n, (each, kind) in enumerate(zip(found, inner, strict=True)):
                yield from troubles(each, kind, f"{where}[{n}]")
    elif not isinstance(found, (int, float) if hint is float else hint):
        yield f"{where}: {found!r} is no {hint.__name__}"


if __name__ == "__main__":
    PATH.write_text(declaration(), encoding="utf-8")
