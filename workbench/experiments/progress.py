"""One line about something that runs for minutes: with a bar in a notebook, on stderr elsewhere."""

from __future__ import annotations

import html
import sys
import time
from types import TracebackType
from typing import Any


class ProgressLine:
    """A running job and its progress. Use it as a context: a notebook's bar is gone at its end.

    Args:
        name: The running job.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = None
        self._shown_s = float("-inf")
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        self._notebook = getattr(shell, "kernel", None) is not None

    def tell(self, share: float, text: str) -> None:
        """Show how much is done (0..1), and a few words; updates that follow too fast are left out."""
        if time.monotonic() - self._shown_s < 0.2:
            return
        self._shown_s = time.monotonic()
        if not self._notebook:
            print(f"\r{self.name}: {text}".ljust(79), end="", file=sys.stderr, flush=True)
            return
        from IPython.display import display

        name = html.escape(self.name, quote=True)
        bar = f"<progress aria-label='{name}' max='1' value='{share:.3f}' style='width:220px'></progress>"
        line = f"{bar} <b>{name}</b> {html.escape(text)}"
        shown = {
            "text/plain": f"{self.name}: {text}",
            "text/html": f"<div style='font:13px/1.5 system-ui,sans-serif'>{line}</div>",
        }
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
        elif self._shown_s > 0:
            print("\r".ljust(80), end="\r", file=sys.stderr, flush=True)
