"""What the cluster panel says besides its results: the choice, how far the runs are; and what it reads."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from ....cluster.comparison import PolicyComparison
from ....cluster.joblogs import WHOLE
from ....cluster.scenario import CHOICES, LABELS, NEVER_S, takes
from ....errors import UsageError
from ....measurement.report import format_duration

MOST_REASONS = 3  # why runs have failed
WHOLE_NUMBERS = ("nodes", "draws", "max_jobs")
SLIDERS = ("load_threshold", "max_jobs", "slack", "sleep_after_s")


def title(comparison: PolicyComparison) -> str:
    """Log, part, jobs and cluster; of the runs, where there are any."""
    about = comparison.ran or comparison.choice
    scenario = about.scenario
    where = f"{scenario.nodes} node{'s' * (scenario.nodes != 1)} of {scenario.kind.name}"
    what = about.log if about.part == WHOLE else f"{about.log}, {about.part}"
    count = ""
    if comparison.ran is not None:
        count = f", {comparison.log.height:,} job{'s' * (comparison.log.height != 1)}"
    return f"Cluster: {what}{count}, on {where} (simulated)"


def progress_words(comparison: PolicyComparison) -> str:
    """How far the runs are."""
    runs, state = comparison.runs, comparison.state
    if runs is None:
        return "Nothing is run yet: Run, or panel.run()"
    done, count = len(runs.outcomes), len(runs.tasks)
    words = f"{done} of {count} run{'s' * (count != 1)}, {format_duration(max(runs.seconds, 0.1))}"
    words = words if state in ("running", "done") else f"{state}: {words}"
    reasons = list(dict.fromkeys(runs.errors.values()))
    more = [f"and {len(reasons) - MOST_REASONS} more"] if len(reasons) > MOST_REASONS else []
    return ". ".join([words, *reasons[:MOST_REASONS], *more])


def about(comparison: PolicyComparison) -> list[str]:
    """What of the jobs is drawn and left out."""
    what = comparison.ran or comparison.choice
    source = comparison.sources[what.log]
    with contextlib.suppress(UsageError):  # it is said where the log is chosen
        trimmed, _ = source.pieces(what.trimmed, what.keep_valid)
        left = f"; {trimmed.words}" if trimmed is not None and trimmed.words else ""
        if comparison.ran_jobs is not None and (wrong := comparison.ran_jobs.height - comparison.log.height):
            rows = f"{comparison.ran_jobs.height:,} row{'s' * (comparison.ran_jobs.height != 1)}"
            left += f"; {wrong:,} of {rows} are left out: wrong, or too large for the cluster"
        if source.drawn:
            return [f"Everything is simulated, the jobs too: they are drawn{left}"]
        drawn = "models, memory and deadlines that it does not tell are drawn by seed"
        return [f"Simulated over the jobs of a log; {drawn}{left}"]
    return []


def node_count(comparison: PolicyComparison) -> int:
    """Of the runs that can be looked into."""
    records = (each.record for each in comparison.outcomes if each.record is not None)
    return next((record.result.cluster.size for record in records), 0)


def settings(comparison: PolicyComparison, at_once: bool) -> dict[str, Any]:
    """What is chosen, and what can be."""
    choice = comparison.choice
    s = choice.scenario
    jobs, names, wrong = None, [WHOLE], ""
    try:
        names, jobs = comparison.parts, comparison.jobs.height
    except UsageError as error:
        wrong = str(error)
    values = {name: getattr(s, name) for name in SLIDERS}
    if s.sleep_after_s == NEVER_S:
        values["sleep_after_s"] = "never"
    policies = [
        {"name": name, "words": LABELS.get(name, name), "takes": sorted(takes(name))} for name in CHOICES
    ]
    return {
        "log": choice.log, "logs": list(comparison.sources), "part": choice.part, "parts": names,
        "jobs": jobs, "wrong": wrong, "trimmed": choice.trimmed, "keep_valid": choice.keep_valid,
        "nodes": s.nodes, "kind": s.kind.name, "kinds": list(comparison.kinds), "gpus": s.cluster.gpus,
        "draws": s.draws, "sweep": s.sweep, "values": list(s.values), "atOnce": at_once, **values,
        "policies": policies, "chosen": list(s.policies),
    }


def sendable(found: Any) -> Any:
    """The same without infinite numbers, for which JSON has no word: they become None."""
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    if isinstance(found, dict):
        return {name: sendable(each) for name, each in found.items()}
    return type(found)(map(sendable, found)) if isinstance(found, (list, tuple)) else found


def progress(comparison: PolicyComparison) -> dict[str, Any]:
    """How far the runs are, in sum and by policy."""
    runs = comparison.runs
    shares: dict[str, list[float]] = {}
    if runs is not None:
        for task, share in zip(runs.tasks, runs.progress, strict=True):
            shares.setdefault(task.policy, []).append(share)
    each = [{"policy": name, "share": round(sum(found) / len(found), 3)} for name, found in shares.items()]
    return {
        "state": comparison.state, "words": progress_words(comparison), "each": each,
        "stale": comparison.stale,
    }


def read(sent: dict[str, Any]) -> dict[str, Any]:
    """Settings as a browser sends them; raises UsageError where a number is missing."""
    found = dict(sent)
    if found.get("sleep_after_s") == "never":
        found["sleep_after_s"] = NEVER_S
    if isinstance(values := found.get("values"), list):
        found["values"] = [NEVER_S if value == "never" else value for value in values]
    for name in ("nodes", "draws"):
        if name in found and not isinstance(found[name], (int, float)):
            raise UsageError(f"{name} is {found[name]}; a whole number is needed")
    for name in WHOLE_NUMBERS:
        if isinstance(value := found.get(name), float) and value.is_integer():
            found[name] = int(value)
    return found
