"""Further tabs of the workbench: a sweep's progress."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from ._core.live import Content, LivePanel, Message, script

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
        return f"Sweep\n{self.sweep.progress()[1]}"

    def html(self) -> str:
        return f"<p>{html.escape(self.sweep.progress()[1])}</p>"

    def news(self, *, whole: bool = False) -> Message:
        share, text = self.sweep.progress()
        going = not self.sweep.cancelled and not self.sweep.reason
        bar = {"share": share, "words": text, "can_cancel": going}
        return {"kind": "news", "name": "Sweep", "html": self.html(), "bar": bar}, []

    def on_message(self, kind: str, content: Content) -> None:
        if kind == "cancel":
            self.sweep.cancel()
            self.tell()
