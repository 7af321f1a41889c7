"""Shows and steers a running tuner: the estimated cost of every setting, each trial, the choice, the saving.

    workbench.panels.clocks()           the newest tuner of this process; its Start button tunes the work
                                        of this process on the GPU
    workbench.panels.clocks(tuner)      one tuner, or the result of `workbench.tune()`

`%%energy --tune` shows it above the live view. It stays when the cell ends.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....tuning import OBJECTIVES, TuningView
from ..._core.jupyter import kernel
from ..._core.live import Content, LivePanel, Message, field, script
from ..._core.persistent import captioned
from ..._core.svg import titled
from .figure import draw
from .model import Drawing, drawing
from .sources import LatestTuner, TunerSource, source
from .text import ENDED, STEPS, TuningText, describe

if TYPE_CHECKING:
    from ....tuning import Tuner

NOTHING = "No tuning yet: start a training, then press Start; or write %%energy --tune above its cell"


class ClocksPanel(LivePanel):
    """Shows a tuner's estimates, trials and saving, and steers it.

    Args:
        tuner: A `tuning.Tuner` or the result of `workbench.tune`; None follows the newest tuner of this
            process, and can start one.
        live: True for a widget, False for a picture; None takes a widget if the front end supports them.

    Raises:
        UsageError: `tuner` is not a tuner.
    """

    poll_s = 0.25
    _esm = script("clocks")

    def __init__(self, tuner: Any = None, *, live: bool | None = None) -> None:
        self.source: TunerSource = source(tuner)
        self._tuning: TuningView | None = None
        self._text: TuningText | None = None
        self._drawing: Drawing | None = None
        self._drawn = self._sent_version = 0  # counts of new drawings, and the count sent last
        # For a tuner that this panel starts.
        self._wanted: Content = {"objective": None, "max_slowdown": 0.05}
        super().__init__(live=live)
        self._reread()

    # for the caller

    @property
    def tuning(self) -> TuningView | None:
        """The view of the tuner, as values and frames; None without a tuner."""
        self.refresh()
        return self._tuning

    def refresh(self) -> None:
        """Read the newest state of the tuner."""
        with self._lock:
            tuner = self.source.tuner
            if tuner is None:
                return
            tuning = tuner.view()
            before, self._tuning = self._tuning, tuning
            self._text = describe(tuning)
            if before is None or not _draws_alike(before, tuning):
                self._drawing = drawing(tuning)
                self._drawn += 1

    def finish(self) -> None:
        """Show the end of the tuning, and stop publishing; a second call does nothing."""
        with self._lock:
            if not self.running:
                return
            with self._report_errors():
                self.tell()
        self.end()
        self.stay(captioned(self.html(), self.summary() if kernel() is None else "", self._problem))

    # showing

    def title(self) -> str:
        """Names of the tuned work and of its GPU."""
        tuning = self._tuning
        if tuning is None:
            return "Tuning"
        name = titled(tuning.gpu, tuning.simulated)
        return f"Tuning of {tuning.label} · {name}" if tuning.label else f"Tuning of {name}"

    def summary(self) -> str:
        sentences = self._text.sentences if self._text is not None else (NOTHING,)
        return "\n".join([self.title(), *sentences])

    def svg(self) -> str:
        with self._lock:
            return draw(self.title(), self.summary().splitlines()[1:], self._drawing).svg()

    def show(self) -> None:
        """Display it as every panel. The widget of a given tuner ends with it."""
        super().show()
        if self._shown.widget_id:
            self.start()

    # for the views

    def about(self) -> Content:
        return {
            "steps": STEPS, "objectives": dict(OBJECTIVES), "nothing": NOTHING,
        }

    def news(self, *, whole: bool = False) -> Message:
        """The texts, and the drawing if views do not have it yet."""
        bound = self._wanted["max_slowdown"]
        content: Content = {
            "kind": "news", "title": self.title(), "simulated": bool(self._tuning and self._tuning.simulated),
            "words": None if self._text is None else asdict(self._text), "begins": not self.source.given,
            "wanted": {
                "objective": self._wanted["objective"], "bound": None if bound is None else 100 * bound,
            },
        }
        if self._drawing is None or (self._sent_version == self._drawn and not whole):
            return content, []
        self._sent_version = self._drawn
        figure = draw("", (), self._drawing, every=True).described()
        return {**content, "drawing": {"knobs": self._drawing.knobs, "figure": figure}}, []

    def on_message(self, kind: str, content: Content) -> None:
        try:
            if kind == "start":
                self._start()
            elif kind == "step":
                self._tuner().step_once()
            elif kind == "pause":
                self._tuner().pause()
            elif kind == "hold":
                self._tuner().hold_here()
            elif kind == "stop":
                self._tuner().stop()
                if isinstance(self.source, LatestTuner):
                    self.source.end()
            elif kind == "objective":
                self._change(objective=field(content, "name", "str"))
            elif kind == "slowdown":
                bound = field(content, "percent", "float", "None")
                self._change(max_slowdown=None if bound is None else bound / 100)
        finally:
            self.tell(asked=content.get("asked"))

    # commands

    def _going(self) -> bool:
        return self._tuning is not None and self._tuning.state not in ENDED

    def _tuner(self) -> Tuner:
        tuner = self.source.tuner
        if tuner is None:
            raise UsageError("no tuning is running; press Start first")
        return tuner

    def _start(self) -> None:
        """Continue, or start."""
        if self._going():
            self._tuner().resume()
        else:
            self.source.begin(**self._wanted)

    def _change(self, **wanted: Any) -> None:
        self._wanted |= wanted
        if self._going():
            self._tuner().change(**wanted)


def _draws_alike(a: TuningView, b: TuningView) -> bool:
    """Whether two views of one tuner look the same on the planes."""
    one, other = (
        (each.choice, each.current, each.reference, each.max_slowdown, each.state in ENDED) for each in (a, b)
    )
    return one == other and all(
        x is y or (x is not None and y is not None and x.equals(y))
        for x, y in ((a.belief, b.belief), (a.trials, b.trials))
    )


clocks = ClocksPanel
