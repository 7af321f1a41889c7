"""A browser's place in the tests of panels."""

from __future__ import annotations

from typing import Any

from IPython.core.formatters import MimeBundleFormatter

from workbench.panels._core.live import LivePanel


class Browser:
    """Takes what a panel sends, in place of a browser whose view is open."""

    def __init__(self, panel: LivePanel) -> None:
        self.messages: list[dict[str, Any]] = []
        self.buffers: list[list[bytes]] = []
        panel.start = lambda: None  # type: ignore[method-assign]  # a test publishes itself
        panel.send = self.take
        panel.receive({"kind": "hello", "view": "a view"})
        self.messages.clear()
        self.buffers.clear()

    def take(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self.messages.append(content)
        self.buffers.append(buffers or [])

    def last(self, kind: str) -> dict[str, Any]:
        """The newest message of a kind."""
        return next(message for message in reversed(self.messages) if message["kind"] == kind)


def ask(panel: LivePanel, kind: str, **content: Any) -> None:
    """Send a message as a browser does."""
    panel.receive({"kind": kind, "n": 1, **content})


def later(panel: LivePanel) -> Any:
    """The message that a panel publishes when it is time to read its source again."""
    panel.due = lambda: True  # type: ignore[method-assign]
    try:
        return panel.changes()
    finally:
        del panel.due


def bundle(shown: Any) -> dict[str, Any]:
    """What IPython displays of an object."""
    found, _ = MimeBundleFormatter()(shown)
    return dict(found)
