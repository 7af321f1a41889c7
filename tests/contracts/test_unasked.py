"""Messages from the kernel arrive even where it receives none while a cell runs (ipykernel 6, or a front end
without a subshell). Where no widget is drawn at all, the picture is drawn again.
"""

from __future__ import annotations

from typing import Any

import IPython.display
import pytest

from workbench.panels._core import jupyter, live, persistent
from workbench.panels._core.live import LivePanel


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Counter(LivePanel):
    """Shows a number."""

    _esm = "export default { render() {} }"

    def __init__(self) -> None:
        super().__init__(live=True)
        self.number = 0
        self.sent: list[dict[str, Any]] = []
        self.send = lambda content, buffers=None: self.sent.append(content)  # type: ignore[method-assign]

    def news(self, *, whole: bool = False) -> live.Message:
        return {"kind": "news", "number": self.number}, []

    def svg(self) -> str:
        return f"<svg>{self.number}</svg>"

    def start(self) -> None:
        """The test is its thread."""

    publish = LivePanel._publish

    def kinds(self) -> list[str]:
        kinds = [each["kind"] for each in self.sent]
        self.sent.clear()
        return kinds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live, "time", made)
    return made


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What each display id has shown."""
    found: dict[str, list[dict[str, Any]]] = {}

    def show(bundle: dict[str, Any], raw: bool, display_id: str) -> None:
        found.setdefault(display_id, []).append(bundle)

    monkeypatch.setattr(IPython.display, "display", show)
    monkeypatch.setattr(IPython.display, "update_display", show)
    monkeypatch.setattr(persistent, "kernel", lambda: object())
    monkeypatch.setattr(persistent, "has_widgets", lambda: True)
    for name in ("VSCODE_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_silent_view_is_greeted_anyway(cells: Any, clock: Clock) -> None:
    panel = Counter()
    panel.show()
    clock.now_s += 1.4
    panel.publish(False)
    assert panel.kinds() == []
    clock.now_s += 0.2
    panel.publish(False)
    assert panel.kinds() == ["bokeh", "greeting"]
    panel.number, clock.now_s = 1, clock.now_s + 0.2
    panel.publish()
    assert panel.sent == [{"kind": "news", "number": 1}]
    panel.kinds()
    greetings = 0
    for _ in range(1200):  # two minutes
        clock.now_s += 0.1
        panel.publish()
        greetings += panel.kinds().count("greeting")
    assert greetings == 5  # after 3, 6, 12, 24 and 48 s: a page may have taken long


def test_a_view_that_answers_is_not_greeted_unasked(cells: Any, clock: Clock) -> None:
    panel = Counter()
    panel.show()
    panel.receive({"kind": "hello", "view": "a", "bokeh": True, "n": 1})
    assert panel.kinds() == ["pong", "bokeh", "greeting"]
    clock.now_s += 100.0
    panel.publish()
    assert panel.kinds() == []  # nothing moved, and there is nothing to say


def test_a_view_is_fed_for_as_long_as_a_cell_keeps_it_from_speaking(
    cells: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Counter()
    panel.receive({"kind": "hello", "view": "a", "n": 1})
    panel.kinds()
    busy = [True]
    monkeypatch.setattr(live, "cell_is_running", lambda: busy[0])
    for running, expected in ((True, ["news"]), (False, [])):
        busy[0] = running
        clock.now_s += live.ABSENT_S + 1
        panel.number += 1
        panel.publish()
        assert panel.kinds() == expected


def test_a_running_cell_is_known_by_what_the_main_thread_is_in() -> None:
    assert not jupyter.cell_is_running()

    def run_code() -> bool:
        return jupyter.cell_is_running()

    assert run_code()


def test_where_no_widget_is_drawn_the_picture_is_drawn_again(
    cells: dict[str, list[dict[str, Any]]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent, "has_widgets", lambda: False)
    panel = Counter()
    panel.show()
    ((shown, bundles),) = [(name, each) for name, each in cells.items() if "widget-view" in str(each)]
    for number in (1, 2):
        panel.number, clock.now_s = number, clock.now_s + 5.0
        panel.publish(False)
        assert f"<svg>{number}</svg>" in bundles[-1]["text/html"]
    assert panel.kinds() == []
    panel.number = 3
    panel.finish()
    assert list(cells[shown][-1]) == ["text/html", "text/plain"]
    assert "<svg>3</svg>" in cells[shown][-1]["text/html"]


def test_a_picture_alone_is_replaced_in_its_place(cells: dict[str, list[dict[str, Any]]]) -> None:
    shown = persistent.DisplayHandle(False)
    shown.display({"text/html": "first"}, {})
    shown.leave({"text/html": "last"})
    assert [[each["text/html"] for each in bundles] for bundles in cells.values()] == [["first", "last"]]
