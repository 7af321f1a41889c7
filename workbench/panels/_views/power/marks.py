"""The marks of a live view: what happened when, in a few words."""

from __future__ import annotations

from typing import Any

from .svg import VerticalMark

MOST = 500


class MarkList:
    """The newest marks; each keeps its number when older ones are forgotten."""

    def __init__(self) -> None:
        self.kept: list[VerticalMark] = []
        self._dropped = self._unsaid = 0  # forgotten at the front; the first one that views do not know

    @property
    def _end(self) -> int:
        return self._dropped + len(self.kept)

    def add(self, mark: VerticalMark) -> None:
        self.kept.append(mark)
        if len(self.kept) > MOST:
            del self.kept[0]
            self._dropped += 1

    def retract(self) -> None:
        """Take the newest back: another one says the same better."""
        del self.kept[-1]
        self._unsaid = min(self._unsaid, self._end)

    def rows(self, *, whole: bool = False) -> list[list[Any]]:
        """Number, time and words of those that views do not know yet, or of all."""
        first = 0 if whole else max(0, self._unsaid - self._dropped)
        self._unsaid = self._end
        return [
            [self._dropped + n, round(mark.time_s, 3), mark.text]
            for n, mark in enumerate(self.kept[first:], first)
        ]
