"""A browser's place in the tests of panels."""

from __future__ import annotations

import math
from typing import Any

from workbench.panels._core.live import LivePanel


class Said:
    """Takes what a panel sends, in place of a browser that has said hello."""

    def __init__(self, panel: LivePanel) -> None:
        self.messages: list[dict[str, Any]] = []
        self.buffers: list[list[bytes]] = []
        panel._greeted["a view"] = 0.0
        panel._say = self._take  # type: ignore[method-assign]

    def _take(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self.messages.append(content)
        self.buffers.append(buffers or [])

    def last(self, kind: str) -> dict[str, Any]:
        """The newest message of a kind."""
        return next(message for message in reversed(self.messages) if message["kind"] == kind)


def ask(panel: LivePanel, kind: str, **content: Any) -> None:
    """What a browser sends."""
    panel.receive({"kind": kind, "n": 1, **content})


def later(panel: LivePanel) -> Any:
    """What a panel publishes when it is time to look at its source again."""
    panel._read_s = -math.inf
    return panel.changes()
