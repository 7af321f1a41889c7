"""The progress of work that takes minutes: a line on stderr, or a bar if the kernel extension is loaded."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import Any

Bundle = dict[str, Any]  # texts by MIME type
# Displays a bundle in a notebook and returns the function that replaces it; set by the kernel extension.
display: Callable[[Bundle], Callable[[Bundle], None]] | None = None


class ProgressLine:
    """The progress of one piece of work. Use it as a context: the line disappears at the end.

    Args:
        name: Name of the work.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._replace: Callable[[Bundle], None] | None = None
        self._shown_s = float("-inf")

    def tell(self, share: float, text: str) -> None:
        """Show the finished share (0..1) and a short text; updates within 0.2 s are skipped."""
        if time.monotonic() - self._shown_s < 0.2:
            return
        self._shown_s = time.monotonic()
        if display is None:
            print(f"\r{self.name}: {text}".ljust(79), end="", file=sys.stderr, flush=True)
            return
        name = html.escape(self.name)
        bar = f"<progress aria-label='{name}' max='1' value='{share:.3f}' style='width:220px'></progress>"
        line = f"{bar} <b>{name}</b> {html.escape(text)}"
        shown = {
            "text/plain": f"{self.name}: {text}",
            "text/html": f"<div style='font:13px/1.5 system-ui,sans-serif'>{line}</div>",
        }
        if self._replace is None:
            self._replace = display(shown)
        else:
            self._replace(shown)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._replace is not None:
            self._replace({"text/plain": "", "text/html": ""})
        elif self._shown_s > 0:
            print("\r".ljust(80), end="\r", file=sys.stderr, flush=True)
