"""Pictures of one job or one node of a simulated run; the arithmetic is in `cluster.drill`."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from ....cluster import drill
from ....cluster.recording import RunRecord
from ....logbook.quantities import format_change
from ....logbook.report import format_duration, format_energy
from ..._core.svg import INK, Frame, Pen, Picture, Span
from ..._core.theme import colour
from .model import hours

LANE = 18  # pixels of a GPU
MOST_BOXES = 800  # residents of a node that are drawn; of more, the ones that stayed longest
MOST_WAKES = 300  # that are drawn in a node's power
GREYS = {"waiting": 0.08, "waking": 0.3, "stopping": 0.5}
MOST_NAMES = 8
# From how many seconds on a time axis has which seconds for a unit.
UNITS = ((4 * 86400, 86400.0, "days"), (3 * 3600, 3600.0, "hours"), (180, 60.0, "minutes"))


@dataclass(frozen=True)
class Drilled:
    """What is shown: a picture, facts (name, words), and jobs or nodes to go on to (name, words)."""

    kind: str
    policy: str
    name: str
    title: str
    picture: str
    facts: tuple[tuple[str, str], ...]
    jobs: tuple[tuple[str, str], ...]
    nodes: tuple[int, ...]


def job(record: RunRecord, log: pl.DataFrame, policy: str, text: str, job_id: str) -> Drilled:
    """A job from its submission to its end.

    Args:
        record: Of the run.
        log: Its jobs.
        policy: Of the run.
        text: The policy's name for a reader.
        job_id: In the log.
    """
    history = drill.job_history(record, log, job_id)
    about = drill.facts(record, job_id)
    beside = drill.companions(history)
    nodes = tuple(sorted({node for nodes in history["nodes"].to_list() for node in nodes}))
    title = f"Job {job_id} under {text} (simulated)"
    own = log.filter(pl.col("job_id") == job_id).row(0, named=True)
    gpus = f"{about['num_gpus']} GPU{'s' * (about['num_gpus'] != 1)}"
    load = f"utilisation {100 * own['utilisation']:.0f} %, {own['memory_bytes'] / 2**30:.1f} GiB"
    waited = "not at all"
    if about["wait_h"] > 0:
        late_s = about["start_s"] - about["submit_s"]
        late = f"{format_duration(late_s)} after it arrived" if late_s > 0 else "directly"
        first = f"first on a GPU {late}"
        waited = f"{format_duration(3600 * about['wait_h'])}, {first}"
    came = f"{_since(about['submit_s'] - record.result.start_s)} after the first job"
    against = f"on GPUs, {format_change(about['inflation'])} against alone"
    done = format_duration(3600 * about["jct_h"])
    ended = f"ended {done} after it arrived, {about['slowdown']:.2f} times its"
    company = "no other job"
    if beside.height:
        others = f"{beside.height} other job{'s' * (beside.height != 1)}"
        company = f"{others}, {format_duration(beside['seconds'][0])} with one at the longest"
    shared = f"{format_energy(about['shared_energy_j'], None)} of it is its share of empty nodes"
    stops = f"{about['undos']} placements put back, {about['moves']} moves"
    facts = [
        ("asks for", f"{gpus} for {format_duration(about['duration_s'])} alone; {own['model']}, {load}"),
        ("arrived", f"{came}, from {about['user']}" if about["user"] else came), ("waited", waited),
        ("ran", f"{format_duration(about['run_s'])} {against}; {ended} duration"),
        ("where", _nodes(nodes)), ("shared with", company),
        ("energy", f"{format_energy(about['energy_j'], None)}; {shared}"),
        ("deadline", _deadline(about)),
        ("stopped", stops if about["undos"] or about["moves"] else "never"),
    ]
    picture = _job_picture(title, history, about)
    nodes = nodes[:MOST_NAMES]
    return Drilled("job", policy, job_id, title, picture, tuple(facts), _named(beside), nodes)


def node(record: RunRecord, log: pl.DataFrame, policy: str, text: str, number: int) -> Drilled:
    """A node over the whole run.

    Args:
        record: Of the run.
        log: Its jobs.
        policy: Of the run.
        text: The policy's name for a reader.
        number: Of the node.
    """
    kind = drill.node_kind(record, number)
    history = drill.node_history(record, log, number)
    there = drill.residents(record, number)
    title = f"Node {number} under {text} (simulated)"
    length = history["to_s"] - history["from_s"]
    span_s = float(length.sum())
    energy_j = float((length * history["power_w"]).sum())

    def share(chosen: pl.Series) -> float:
        """Of the time, in per cent."""
        return 100 * float(length.filter(chosen).sum()) / span_s if span_s else 0.0

    awake = share(history["state"].is_in(["awake", "waking"]))
    standby, hosting = share(history["state"] == "standby"), share(history["jobs"] > 0)
    wakes = int(record.result.nodes.filter(pl.col("node") == number)["wakes"][0])
    once = there.unique(["job_id", "from_s", "to_s"])  # a job on several GPUs of it was there once
    seconds = (pl.col("to_s") - pl.col("from_s")).sum().alias("seconds")
    stays = once.group_by("job_id").agg(seconds).sort("seconds", "job_id", descending=[True, False])
    kinds = f"{kind.standby_w:g} W in standby, {kind.idle_w:g} W idle, {kind.idle_w + kind.span_w:g} W full"
    facts = [
        ("is", f"{kind.name}, {kinds}"),
        ("hosted", f"{stays.height} jobs; {hosting:.0f} % of the time it had at least one"),
        ("awake", f"{awake:.0f} % of the time, in standby {standby:.0f} %; "
                      f"woken {wakes} time{'s' * (wakes != 1)}"),
        ("energy", f"{energy_j / 3.6e6:.4g} kWh, {energy_j / span_s if span_s else 0:.0f} W on average"),
    ]
    if limits_w := history["power_limit_w"].drop_nulls().to_list():
        limits = f"{min(limits_w):g} to {max(limits_w):g} W"
        facts.append(("limits", f"its GPUs were under a power limit, {limits}, for part of the time"))
    if there.height > MOST_BOXES:
        facts.append(("drawn", f"the {MOST_BOXES:,} longest of {there.height:,} stays"))
    drawn = there.top_k(MOST_BOXES, by=pl.col("to_s") - pl.col("from_s"))
    picture = _node_picture(title, history, drawn, kind.gpus, record.result.start_s)
    return Drilled("node", policy, str(number), title, picture, tuple(facts), _named(stays), ())


def _named(jobs: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """The first jobs of a frame of job ids and seconds, to go on to."""
    return tuple((name, format_duration(seconds)) for name, seconds in jobs.head(MOST_NAMES).iter_rows())


def _job_picture(title: str, history: pl.DataFrame, about: dict[str, Any]) -> str:
    """Its speed over time; below, how many shared its GPUs."""
    start_s, end_s = float(history["from_s"][0]), float(history["to_s"][-1])
    scale, unit = _unit(end_s - start_s)
    picture = Picture(title, size=12)
    picture.y = 36.0
    span, fastest = (0.0, max((end_s - start_s) / scale, 1e-9)), max(history["speed"].to_list())
    frame = picture.frame(110, span, (0.0, max(1.1, 1.05 * fastest)))
    picture.down(110, 10)
    lane = picture.frame(10, span, (-5.0, 5.0))
    frame.axes("Speed: seconds of work alone per second")
    for row in history.iter_rows(named=True):
        x0, x1 = ((row[edge] - start_s) / scale for edge in ("from_s", "to_s"))
        text = _stretch_text(row)
        if row["state"] == "running":
            ink = colour(1) if row["beside"] else colour(0)
            _box(frame, x0, x1, (0.0, row["speed"]), ink, 0.55, text)
        else:
            _box(frame, x0, x1, None, INK, GREYS[row["state"]], text)
        if row["beside"]:
            half = min(1 + len(row["beside"]), 4)
            _box(lane, x0, x1, (-half, half), colour(1), 1.0, text)
    lane.label(0.0, 0.0, "shared", dx=-6, dy=4, anchor="end", opacity=0.75)
    if about["deadline_s"] is not None and about["deadline_s"] < end_s:
        at = (about["deadline_s"] - start_s) / scale
        frame.upright(at, Pen(colour(5), dashes=(4, 3)), text="deadline")
    picture.down(10, 3)
    text = f"{unit} since it arrived; grey: waiting, dark: node wakes, or a checkpoint; orange: GPUs shared"
    picture.frame(0, span, (0.0, 1.0)).below(text, 8)
    picture.down(0)
    return picture.svg()


def _node_picture(title: str, history: pl.DataFrame, there: pl.DataFrame, gpus: int, origin_s: float) -> str:
    """Who was on each GPU, and the node's power."""
    end_s = float(history["to_s"][-1]) if history.height else origin_s + 1.0
    scale, unit = _unit(end_s - origin_s)
    span = (0.0, max((end_s - origin_s) / scale, 1e-9))

    def at(time_s: float) -> float:
        return (time_s - origin_s) / scale

    picture = Picture(title, size=12)
    picture.y = 38.0
    frame = picture.frame(gpus * LANE, span, (gpus, 0.0))  # GPU 0 above
    frame.name("Jobs on each GPU: one above the other where they share")
    for gpu in range(gpus):
        frame.label(0.0, gpu, str(gpu), dx=-6, dy=11, anchor="end")
    for job_id, gpu, from_s, to_s, level, levels in _levels(there):
        top, high = gpu + 0.83 * level / levels, max(0.83 / levels - 0.03, 0.06)
        text = f"job {job_id}, GPU {gpu}: {format_duration(to_s - from_s)}"
        ink = colour(crc32(job_id.encode()) % 8)  # which it keeps from picture to picture
        _box(frame, at(from_s), at(to_s), (top + high, top), ink, 0.75, text, job_id)
    picture.down(gpus * LANE, 30)
    power = picture.frame(90, span, (0.0, 1.1 * max([*history["power_w"].to_list(), 1.0])))
    power.axes("Power (W); dark: waking")
    wakes = history.filter(pl.col("state") == "waking").top_k(
        MOST_WAKES, by=pl.col("to_s") - pl.col("from_s")
    )
    for from_s, to_s in wakes.select("from_s", "to_s").iter_rows():
        _box(power, at(from_s), at(to_s), None, INK, 0.4, "waking")
    steps = _thinned(history, int(power.right - power.left))
    times, watts = [at(from_s) for from_s, _, _ in steps], [power_w for _, _, power_w in steps]
    if steps:
        power.line([*times, at(steps[-1][1])], [*watts, watts[-1]], Pen(colour(0), 1.2), steps=True)
    power.below(f"{unit} since the first submission", 8)
    picture.down(90)
    return picture.svg()


def _thinned(history: pl.DataFrame, most: int) -> list[tuple[float, float, float]]:
    """The node's power in at most so many steps (from, to, watts) of the same energy."""
    if history.height <= most:
        return list(history.select("from_s", "to_s", "power_w").iter_rows())
    from_s, to_s = history["from_s"].to_numpy(), history["to_s"].to_numpy()
    edges = np.linspace(from_s[0], to_s[-1], most + 1)
    energy_j = np.concatenate([[0.0], np.cumsum((to_s - from_s) * history["power_w"].to_numpy())])
    mean_w = np.diff(np.interp(edges, np.append(from_s, to_s[-1]), energy_j)) / np.diff(edges)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), mean_w.tolist(), strict=True))


def _box(
    frame: Frame, x0: float, x1: float, y: Span | None, ink: str, opacity: float, text: str, job_id: str = ""
) -> None:
    """A filled rectangle with words for who points at it; a click on one with a job looks into that job."""
    named = f' data-job="{html.escape(job_id, quote=True)}"' if job_id else ""
    least = 0.6 * (frame.x_span[1] - frame.x_span[0]) / (frame.right - frame.left)  # else it is not seen
    area = frame.rectangle(x0, max(x1, x0 + least), y)
    frame.picture.area(area, ink, opacity=opacity, more=named, title=text)


def _levels(there: pl.DataFrame) -> list[tuple[str, int, float, float, int, int]]:
    """Each stay with its level on its GPU, and how many levels that GPU ever needs."""
    found: list[tuple[str, int, float, float, int]] = []
    deepest: dict[int, int] = {}
    free_s: dict[tuple[int, int], float] = {}
    stays = there.sort("gpu", "from_s", "job_id").select("job_id", "gpu", "from_s", "to_s")
    for job_id, gpu, from_s, to_s in stays.iter_rows():
        level = 0
        while free_s.get((gpu, level), float("-inf")) > from_s:
            level += 1
        free_s[gpu, level] = to_s
        deepest[gpu] = max(deepest.get(gpu, 0), level + 1)
        found.append((job_id, gpu, from_s, to_s, level))
    return [(*each, deepest[each[1]]) for each in found]


def _stretch_text(row: dict[str, Any]) -> str:
    text = f"{row['state']} for {format_duration(row['to_s'] - row['from_s'])}"
    if row["nodes"]:
        text += f" on node{'s' * (len(row['nodes']) > 1)} {', '.join(map(str, row['nodes']))}"
    if row["beside"]:
        others = ", ".join(row["beside"][:4])
        text += f" sharing with {others}: {100 * row['excess']:.1f} % longer an iteration"
    return text


def _unit(span_s: float) -> tuple[float, str]:
    for least, scale, unit in UNITS:
        if span_s >= least:
            return scale, unit
    return 1.0, "seconds"


def _since(seconds: float) -> str:
    return "0 s" if seconds <= 0 else format_duration(seconds) if seconds < 86400 else hours(seconds / 3600)


def _nodes(nodes: tuple[int, ...]) -> str:
    more = f" and {len(nodes) - MOST_NAMES} more" if len(nodes) > MOST_NAMES else ""
    shown = ", ".join(map(str, nodes[:MOST_NAMES]))
    return f"node{'s' * (len(nodes) != 1)} {shown}{more}" if nodes else "nowhere"


def _deadline(about: dict[str, Any]) -> str:
    if about["deadline_s"] is None:
        return "none"
    late_s = about["end_s"] - about["deadline_s"]
    if about["missed"]:
        return f"missed by {format_duration(late_s)}"
    return f"met, with {format_duration(max(-late_s, 0.0))} to spare"
