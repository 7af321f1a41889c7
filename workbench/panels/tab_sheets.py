"""Further tabs of the workbench: a sweep's progress."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from ..logbook.report import format_duration
from ._core.live import LivePanel, Message, script

if TYPE_CHECKING:
    from ..experiments.sweep import Sweep


class SweepPanel(LivePanel):
    """Progress of a sweep, and a button that cancels it."""

    poll_s = 1.0
    _esm = script("sheet")

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        super().__init__()

    def summary(self) -> str:
        return f"Sweep\n{progress_text(self.sweep)}"

    def html(self) -> str:
        return f"<p>{html.escape(progress_text(self.sweep))}</p>"

    def news(self, *, whole: bool = False) -> Message:
        share = min(self.sweep.done / max(self.sweep.n_trials, 1), 1.0)
        going = not self.sweep.cancelled and not self.sweep.reason
        bar = {"share": share, "words": progress_text(self.sweep), "can_cancel": going}
        return {"kind": "news", "name": "Sweep", "html": self.html(), "bar": bar}, []

    def on_message(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "cancel":
            self.sweep.cancel()
            self.tell()


def progress_text(sweep: Sweep) -> str:
    """Progress of a sweep: "12 of 40 configurations, 3 min left"."""
    text = f"{sweep.done} of {sweep.n_trials} configurations"
    left_s = sweep.remaining_s
    if sweep.failure and sweep.failure not in sweep.reason:
        text += f"; the first failure: {sweep.failure}"
    if sweep.reason:
        return f"{text}; ended: {sweep.reason}"
    if sweep.cancelled:
        return f"{text}; cancelled: running trials are finished and kept"
    text += f", {format_duration(left_s)} left" if left_s else ""
    return "; ".join(each for each in (text, sweep.note) if each)
