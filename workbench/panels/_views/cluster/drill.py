"""Pictures of one job or one node of a simulated run; the arithmetic is in `cluster.drill`."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from ....cluster import drill
from ....cluster.result import Result
from ....cluster.summary import per_job
from ....logbook.quantities import format_change
from ....logbook.report import format_duration, format_energy
from ..._core.svg import INK, Frame, Pen, Picture, Span
from ..._core.theme import colour

LANE = 18  # pixels of a GPU
MOST_BOXES = 800  # drawn residents of a node; of more, those that stayed longest
GREYS = {"waiting": 0.08, "waking": 0.3, "stopping": 0.5}
MOST_NAMES = 8
# Shortest time axis for each unit, and the unit's seconds.
UNITS = (
    (4 * 86400, 86400.0, "days"), (3 * 3600, 3600.0, "hours"), (180, 60.0, "minutes"), (0, 1.0, "seconds"),
)


@dataclass(frozen=True)
class Drilled:
    """One job or node: a picture, facts (name, words), and links to jobs or nodes (name, words)."""

    kind: str
    policy: str
    name: str
    title: str
    picture: str
    facts: tuple[tuple[str, str], ...]
    jobs: tuple[tuple[str, str], ...]
    nodes: tuple[int, ...]


def job(result: Result, policy: str, text: str, job_id: str) -> Drilled:
    """A job from its submission to its end.

    Args:
        result: Result of the run.
        policy: Policy of the run.
        text: The policy's name for a reader.
        job_id: The job's id in the log.
    """
    history, beside = drill.job_history(result, job_id), drill.companions(result, job_id)
    about = per_job(result.jobs.filter(pl.col("job_id") == job_id)).row(0, named=True)
    nodes = history["nodes"].explode().drop_nulls().unique().sort().to_list()
    title = f"Job {job_id} under {text} (simulated)"
    waited, late_s = format_duration(about["wait_s"]), about["end_s"] - (about["deadline_s"] or 0.0)
    company, deadline = "no other job", "none"
    if beside.height:
        longest = format_duration(beside["seconds"][0])
        company = f"{beside.height} other job{'s' * (beside.height != 1)}, {longest} with one at the longest"
    if about["deadline_s"] is not None:
        deadline = f"{'missed' if about['missed'] else 'met'} by {format_duration(abs(late_s))}"
    nobody_j = about["energy_j"] - about["own_energy_j"]
    facts = {
        "asks for": f"{about['num_gpus']} GPU{'s' * (about['num_gpus'] != 1)} for "
        f"{format_duration(about['duration_s'])} alone; {about['model']}, utilisation "
        f"{100 * about['utilisation']:.0f} %, {about['memory_bytes'] / 2**30:.1f} GiB",
        "arrived": f"{format_duration(about['submit_s'] - result.start_s)} after the first job"
        + (f", from {about['user']}" if about["user"] else ""),
        "waited": waited if about["wait_s"] > 0 else "not at all",
        "ran": f"{format_duration(about['run_s'])} on GPUs, {format_change(about['inflation'])} against "
        f"alone; ended {format_duration(about['jct_s'])} after it arrived, {about['slowdown']:.2f} times its "
        "duration",
        "where": f"node{'s' * (len(nodes) != 1)} {', '.join(map(str, nodes[:MOST_NAMES]))}"
        + f" and {len(nodes) - MOST_NAMES} more" * (len(nodes) > MOST_NAMES),
        "shared with": company,
        "energy": f"{format_energy(about['energy_j'], None)}, with {format_energy(nobody_j, None)} as its "
        "share of empty nodes",
        "deadline": deadline,
        "stopped": f"{about['undos']} placements undone, {about['moves']} moves",
    }
    picture = _job_picture(title, history, about["deadline_s"])
    going_on = _named(beside), tuple(nodes[:MOST_NAMES])
    return Drilled("job", policy, job_id, title, picture, tuple(facts.items()), *going_on)


def node(result: Result, policy: str, text: str, number: int) -> Drilled:
    """A node over the whole run.

    Args:
        result: Result of the run.
        policy: Policy of the run.
        text: The policy's name for a reader.
        number: Number of the node.
    """
    history, there = drill.node_history(result, number), drill.residents(result, number)
    title = f"Node {number} under {text} (simulated)"
    about = result.nodes.row(number, named=True)
    span_s = result.end_s - result.start_s
    # A job on several GPUs of it was there once.
    stays = there.unique(["job_id", "from_s", "to_s"]).group_by("job_id").agg(drill.LENGTH.sum())
    stays = stays.sort("seconds", "job_id", descending=[True, False])
    facts = {
        "is": about["kind"],
        "hosted": f"{stays.height} jobs; {100 * about['hosting_s'] / span_s:.0f} % of the time it had at "
        "least one",
        "awake": f"{100 * about['awake_s'] / span_s:.0f} % of the time; woken {about['wakes']} "
        f"time{'s' * (about['wakes'] != 1)}",
        "energy": f"{format_energy(about['energy_j'], None)}, {about['energy_j'] / span_s:.0f} W on average",
    }
    if limits_w := history["power_limit_w"].drop_nulls().to_list():
        facts["limits"] = f"power limits of {min(limits_w):g} to {max(limits_w):g} W, part of the time"
    if there.height > MOST_BOXES:
        facts["drawn"] = f"the {MOST_BOXES:,} longest of {there.height:,} stays"
    picture = _node_picture(title, history, there.top_k(MOST_BOXES, by=drill.LENGTH))
    return Drilled("node", policy, str(number), title, picture, tuple(facts.items()), _named(stays), ())


def _named(jobs: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """Links to the first jobs of a frame of job ids and seconds."""
    return tuple((name, format_duration(seconds)) for name, seconds in jobs.head(MOST_NAMES).iter_rows())


def _job_picture(title: str, history: pl.DataFrame, deadline_s: float | None) -> str:
    """The job's speed over time; below, the number of jobs sharing its GPUs."""
    picture, start_s, scale, unit, span = _begun(title, history, 36.0)
    frame = picture.frame(110, span, (0.0, max(1.1, 1.05 * max(history["speed"]))))
    picture.down(110, 10)
    lane = picture.frame(10, span, (-5.0, 5.0))
    frame.axes("Speed: seconds of work alone per second")
    for row in history.iter_rows(named=True):
        x0, x1 = ((row[edge] - start_s) / scale for edge in ("from_s", "to_s"))
        text = _stretch_text(row)
        if row["state"] == "running":
            _box(frame, x0, x1, (0.0, row["speed"]), colour(int(bool(row["beside"]))), 0.55, text)
        else:
            _box(frame, x0, x1, None, INK, GREYS[row["state"]], text)
        if row["beside"]:
            half = min(1 + len(row["beside"]), 4)
            _box(lane, x0, x1, (-half, half), colour(1), 1.0, text)
    lane.label(0.0, 0.0, "shared", dx=-6, dy=4, anchor="end", opacity=0.75)
    if deadline_s is not None:
        frame.upright((deadline_s - start_s) / scale, Pen(colour(5), dashes=(4, 3)), text="deadline")
    picture.down(10, 3)
    text = f"{unit} since its arrival; grey: waiting, dark: node wake-up or checkpoint, orange: GPUs shared"
    picture.frame(0, span, (0.0, 1.0)).below(text, 8)
    picture.down(0)
    return picture.svg()


def _node_picture(title: str, history: pl.DataFrame, there: pl.DataFrame) -> str:
    """The jobs on each GPU, and the node's power."""
    picture, start_s, scale, unit, span = _begun(title, history, 38.0)
    gpus = 1 + max(there["gpu"], default=0)
    frame = picture.frame(gpus * LANE, span, (gpus, 0.0))  # GPU 0 above
    frame.name("Jobs on each GPU: one above the other where they share")
    for gpu in range(gpus):
        frame.label(0.0, gpu, str(gpu), dx=-6, dy=11, anchor="end")
    for job_id, gpu, from_s, to_s, level, levels in _levels(there):
        top, high = gpu + 0.83 * level / levels, max(0.83 / levels - 0.03, 0.06)
        text = f"job {job_id}, GPU {gpu}: {format_duration(to_s - from_s)}"
        ink = colour(crc32(job_id.encode()) % 8)  # which it keeps from picture to picture
        x0, x1 = (from_s - start_s) / scale, (to_s - start_s) / scale
        _box(frame, x0, x1, (top + high, top), ink, 0.75, text, job_id)
    picture.down(gpus * LANE, 30)
    power = picture.frame(90, span, (0.0, 1.1 * max([*history["power_w"], 1.0])))
    power.axes("Power (W)")
    times_s, mean_w = mean_power(history, int(power.right - power.left))
    power.line((times_s - start_s) / scale, [*mean_w, mean_w[-1]], Pen(colour(0), 1.2), steps=True)
    power.below(f"{unit} since the first submission", 8)
    picture.down(90)
    return picture.svg()


def mean_power(history: pl.DataFrame, pieces: int) -> tuple[Any, Any]:
    """The borders of equal pieces of time, and the node's mean power in each."""
    times_s = np.append(history["from_s"], history["to_s"][-1])
    energy_j = np.append(0.0, ((history["to_s"] - history["from_s"]) * history["power_w"]).cum_sum())
    edges_s = np.linspace(times_s[0], times_s[-1], pieces + 1)
    return edges_s, np.diff(np.interp(edges_s, times_s, energy_j)) / np.diff(edges_s)


def _box(
    frame: Frame, x0: float, x1: float, y: Span | None, ink: str, opacity: float, text: str, job_id: str = ""
) -> None:
    """A filled rectangle with a tooltip; a click on one with a job inspects that job."""
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
        while free_s.get((gpu, level), from_s) > from_s:
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


def _begun(title: str, history: pl.DataFrame, y: float) -> tuple[Picture, float, float, str, Span]:
    """A picture from `y` on, the first moment, the unit of time in seconds and as text, and the time axis."""
    picture, start_s = Picture(title, size=12), history["from_s"][0]
    span_s = history["to_s"][-1] - start_s
    picture.y = y
    scale, unit = next((scale, unit) for least, scale, unit in UNITS if span_s >= least)
    return picture, start_s, scale, unit, (0.0, span_s / scale)
