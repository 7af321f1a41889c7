"""Compares policies that let jobs of a log share GPUs: saving and cost, simulated, down to each job and node.

    workbench.panels.cluster()                       log files that are found, and generated logs
    workbench.panels.cluster("jobs.parquet")         a file with the columns of Philly, Alibaba or sacct, a
                                                     frame, or several by name
    panel.run()                                      run from a cell: returns when all runs have ended
    panel.results                                    one row per run, as a frame

Runs have their own processes, so neither the kernel nor a cell waits for them. Everything here is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from ....cluster.comparison import PolicyComparison
from ....cluster.power import NodeType
from ....cluster.scenario import UNITS, Scenario
from ....cluster.sources import sources
from ....cluster.views import DISTRIBUTIONS
from ....errors import SimulationError, UsageError, shown
from ..._core import theme
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.svg import page
from . import drill
from . import messages as messages
from .drill import Drilled
from .figure import draw, table
from .model import DISTRIBUTION_AXES, HEADS, ClusterView, cluster_view


class ClusterPanel(LivePanel):
    """Policies over a job log. `cluster` documents the arguments."""

    poll_s = 0.2
    _esm = script("cluster")

    def __init__(self, comparison: PolicyComparison, *, live: bool | None = None) -> None:
        self.comparison = comparison
        self.at_once = False  # whether a change of the settings starts the runs
        self._view = ClusterView()
        self._counted = self._failed = self._version = self._sent_version = 0
        self._drilled: Drilled | None = None
        self._distribution = DISTRIBUTIONS[1]  # where no job waits, a distribution of waiting is empty
        super().__init__(live=live)

    # for the caller

    def set(self, **settings: Any) -> None:
        """Change the settings of the runs: fields of `Scenario`, and `log`, `part`, `trimmed`, `keep_valid`.

        Raises:
            UsageError: An invalid setting; nothing is changed then.
        """
        with self._lock:
            self.comparison.set(**settings)
            if self.at_once:
                self.begin()
            self.tell()

    def begin(self) -> None:
        """Start the runs and return; earlier runs are cancelled.

        Raises:
            UsageError: The log cannot be simulated; the message names row and value.
        """
        with self._lock:
            self.report_error("")
            self.comparison.begin()
            self._view, self._drilled = ClusterView(), None
            self._counted = self._failed = 0
            self._version += 1
            self.start()
            self.tell()

    def run(self, **settings: Any) -> pl.DataFrame:
        """Run, and return `results` when all runs have ended; an interrupt cancels.

        Args:
            settings: As in `set`.

        Raises:
            UsageError, SimulationError: A run failed, or the runs were cancelled.
        """
        if settings:
            self.set(**settings)
        if self.comparison.state != "running" or self.comparison.stale:
            self.begin()
        runs = self.comparison.runs
        assert runs
        try:
            while not runs.wait(0.1):
                pass
        except KeyboardInterrupt:
            runs.cancel()
            raise
        self.tell()
        if runs.errors:
            raise SimulationError(next(iter(runs.errors.values())))
        if runs.cancelled and len(runs.outcomes) < len(runs.tasks):
            ended = f"{len(runs.outcomes)} of {len(runs.tasks)} runs have ended"
            raise SimulationError(f"cancelled: {ended}; panel.results has them")
        return self.results

    def cancel(self) -> None:
        """End the present runs within some tenths of a second; finished runs are kept."""
        self.comparison.cancel()

    @property
    def logs(self) -> list[str]:
        """Names of the available logs."""
        return list(self.comparison.sources)

    @property
    def parts(self) -> list[str]:
        """Names of the parts of the chosen log."""
        return self.comparison.parts

    @property
    def results(self) -> pl.DataFrame:
        """One row per finished run: policy, seed, swept value, and all columns of `cluster.summarise`."""
        return self.comparison.results

    def job(self, policy: str, job_id: str) -> Drilled:
        """Inspect one job; it is shown below the plots."""
        return self._drill(drill.job, policy, job_id)

    def node(self, policy: str, number: int) -> Drilled:
        """Inspect one node; it is shown below the plots."""
        return self._drill(drill.node, policy, number)

    def refresh(self) -> None:
        """Read the results of finished runs."""
        with self._lock:
            runs, ran = self.comparison.runs, self.comparison.ran
            if runs is None or ran is None:
                return
            problems = list(runs.errors.values())
            for problem in problems[self._failed :]:
                self.report_error(problem)
            self._failed = len(problems)
            outcomes = self.comparison.outcomes
            if len(outcomes) > self._counted:
                self._counted = len(outcomes)
                self._view = cluster_view(ran.scenario, outcomes, self.results)
                self._version += 1

    def close(self) -> None:
        """Cancel the runs."""
        self.end()
        super().close()

    def end(self) -> None:
        self.comparison.cancel()
        super().end()

    def _drill(self, draw_one: Callable[..., Drilled], policy: str, which: str | int) -> Drilled:
        result = self.comparison.result(policy)
        text = next(curve.text for curve in self._view.curves if curve.policy == policy)
        drilled = draw_one(result, policy, text, which)
        with self._lock:
            self._drilled = drilled
            self._picture_later()
            self._say({"kind": "drilled", "drilled": asdict(drilled)})
            return drilled

    # showing

    def title(self) -> str:
        return messages.title(self.comparison)

    def sentences(self) -> list[str]:
        """The results and their basis."""
        found = [self._view.headline, *self._view.details] if self._view.headline else []
        going = [] if self.comparison.state == "done" else [messages.progress_text(self.comparison)]
        known = not self._problem or any(self._problem in text for text in going)
        return [*found, *going, *([] if known else [self._problem]), *messages.about(self.comparison)]

    def summary(self) -> str:
        rows = [" | ".join(line.cells) for line in self._view.lines]
        table = [" | ".join(name for name, _ in HEADS), *rows] if rows else []
        if found := self._drilled:
            table += [found.title, *(f"{name}: {text}" for name, text in found.facts)]
        return "\n".join([self.title(), *self.sentences(), *table])

    def svg(self) -> str:
        return draw(self.title(), self.sentences(), self._view, self._distribution).svg()

    def html(self) -> str:
        """The whole view as HTML without scripts."""
        more = f'<div style="margin-top:10px">{self._drilled.picture}</div>' if self._drilled else ""
        return page(self.svg(), self.summary(), table(self._view) + more)

    # for the views

    def about(self) -> Content:
        return {
            "palette": theme.PALETTE, "heads": HEADS, "units": UNITS, "swept": list(UNITS),
            "distributions": [[name, title] for name, (title, *_) in DISTRIBUTION_AXES.items()],
            "drilled": None if self._drilled is None else asdict(self._drilled),
            "distribution": self._distribution,
        }

    def drain(self) -> None:
        self.refresh()

    def news(self, *, whole: bool = False) -> Message:
        """The texts, and the drawing if views do not have it yet."""
        content = {
            "kind": "news", "title": self.title(),
            "settings": messages.sendable(messages.settings(self.comparison, self.at_once)),
            "run": messages.progress(self.comparison),
        }
        if self._sent_version == self._version and not whole:
            return content, []
        self._sent_version = self._version
        found = self._view
        drawn = {
            "lines": [asdict(line) for line in found.lines],
            "curves": [
                {"policy": each.policy, "text": each.text, "ink": theme.colour(each.number),
                 "dashes": theme.dash(each.number), "open": each.open,
                 "notable": each.notable if each.open else {}} for each in found.curves
            ],
            "figure": draw("", (), found, *DISTRIBUTION_AXES).described(),
            "headline": found.headline or messages.invitation(self.comparison),
            "details": found.details, "about": messages.about(self.comparison),
            "nodeCount": 0 if self.comparison.ran is None else self.comparison.ran.scenario.nodes,
        }
        return {**content, "drawn": messages.sendable(drawn), "version": self._version}, []

    def on_message(self, kind: str, content: Content) -> None:
        if not self.running and kind in ("set", "run", "each change", "open"):
            raise UsageError("this panel has ended; display a new one")
        try:
            match kind:
                case "set":
                    self.set(**messages.read(content.get("settings")))
                case "run":
                    self.begin()
                case "cancel":
                    self.cancel()
                case "each change":
                    self.at_once = field(content, "on", "bool")
                case "open":
                    self.comparison.open(field(content, "path", "str").strip())
                case "job":
                    self.job(field(content, "policy", "str"), field(content, "name", "str").strip())
                case "node":
                    self.node(field(content, "policy", "str"), field(content, "name", "int"))
                case "distribution" if (name := field(content, "name", "str")) in DISTRIBUTIONS:
                    self._distribution = name
                    self._picture_later()
        finally:
            self.tell(asked=content.get("asked"))


def cluster(
    log: Any = None, *, nodes: int = 28, kind: NodeType | str = "8x V100",
    policies: Sequence[str] | str = ("fifo-spread-always-on", "fifo-best-fit", "eaco", "ours"),
    part: str | None = None, draws: int = 1, seed: int = 0, load_threshold: float | None = None,
    max_jobs: int | None = None, slack: float | None = None, sleep_after_s: float | None = None,
    sweep: str | None = None, values: Sequence[float] = (), trim: bool | None = None,
    keep_valid: bool = False, executor: Any = None, workers: int | None = None, live: bool | None = None,
) -> ClusterPanel:
    """Compare policies over a job log, on a simulated cluster.

    Args:
        log: A frame of `workbench.cluster` jobs, a path or directory with the columns of Philly, Alibaba or
            sacct, or several of these by name. None takes the files of `$WORKBENCH_DATA/cluster` or
            `../shared/data/cluster`, else generated logs.
        nodes, kind: Number and type of the nodes (a name of `cluster.scenario.KINDS`, or a `NodeType`).
        policies: One or more names of `cluster.policies.POLICIES`. The first is the reference.
        part: "whole log", "busiest day", "busiest week", "median week".
        draws, seed: Number of seeds for the values missing from the log, and the first seed.
        load_threshold, max_jobs: For the sharing policies whose names do not fix them: highest sum of solo
            utilisations on a GPU, most jobs on one. None keeps each policy's own value.
        slack: Deadlines are the submission plus U(1.05, slack) times the duration. None takes the deadlines
            of the log, else U(1.05, 1.5).
        sleep_after_s: Seconds until empty nodes go to standby (`math.inf`: never); None keeps each policy's
            own value.
        sweep, values: A parameter to vary ("nodes", "load_threshold", "max_jobs", "slack", "sleep_after_s"),
            and its values.
        trim: Take jobs of 1 to 8 GPUs and at least 60 s, with durations cut at 3 days; None does so with
            files, not with frames.
        keep_valid: Skip rows that are invalid or too large for the cluster, instead of raising an error.
        executor: Executor of the runs: any `concurrent.futures.Executor`, or a Dask client; None takes
            processes of this machine.
        workers: Number of processes; None takes one per core.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: An invalid argument.
    """
    given = sources(log)
    scenario = Scenario(
        policies=policies,  # type: ignore[arg-type]
        kind=kind,  # type: ignore[arg-type]
        values=values,  # type: ignore[arg-type]
        nodes=nodes, load_threshold=load_threshold, max_jobs=max_jobs, slack=slack,
        sleep_after_s=sleep_after_s, draws=draws, seed=seed, sweep=sweep,
    )
    if scenario.values and sweep is None:
        raise UsageError(f"values={shown(values)} need sweep=, the setting that takes them")
    trimmed = not isinstance(log, pl.DataFrame) if trim is None else trim
    comparison = PolicyComparison(
        given, scenario, part=part, trimmed=trimmed, keep_valid=keep_valid, executor=executor, workers=workers
    )
    return ClusterPanel(comparison, live=live)
