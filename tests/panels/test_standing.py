"""The picture that a panel leaves in its cell: above the live view, redrawn when the choice rests, alone at
the end.
"""

from __future__ import annotations

import threading
from typing import Any

import IPython.display
import pytest

from workbench.panels._core import persistent
from workbench.panels._core.persistent import DisplayHandle

VIEW = "application/vnd.jupyter.widget-view+json"
PICTURE = {"text/html": "<svg></svg>", "text/plain": "a picture"}
WIDGET = {"text/plain": "a widget", VIEW: {"model_id": "1"}}


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Outputs of a notebook by their display id, in order, as display and update_display would leave them."""
    found: dict[str, dict[str, Any]] = {}

    def show(bundle: dict[str, Any], raw: bool, display_id: str = "") -> None:
        found[display_id] = bundle

    def update(bundle: dict[str, Any], raw: bool, display_id: str) -> None:
        assert display_id in found
        found[display_id] = bundle

    monkeypatch.setattr(IPython.display, "display", show)
    monkeypatch.setattr(IPython.display, "update_display", update)
    monkeypatch.setattr(persistent, "kernel", lambda: object())
    monkeypatch.setattr(persistent, "has_widgets", lambda: True)
    for name in ("VSCODE_PID", "COLAB_RELEASE_TAG"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_the_picture_is_above_the_live_view_with_a_style_that_hides_it(
    cells: dict[str, dict[str, Any]],
) -> None:
    DisplayHandle(True).display(PICTURE, WIDGET)
    above, below = cells.values()
    assert above["text/html"].startswith("<style>")
    assert "<svg></svg></div>" in above["text/html"]
    assert VIEW not in above
    assert below == {"text/plain": "", VIEW: {"model_id": "1"}}


def test_a_front_end_without_that_style_gets_both_as_one_output(
    cells: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VSCODE_PID", "1")
    shown = DisplayHandle(True)
    shown.display(PICTURE, WIDGET)
    assert list(cells.values()) == [{**PICTURE, **WIDGET}]
    shown.leave({"text/html": "last"})
    assert list(cells.values()) == [{"text/html": "last"}]


def test_where_no_widget_is_drawn_there_is_a_picture_only(cells: dict[str, dict[str, Any]]) -> None:
    DisplayHandle(False).display(PICTURE, WIDGET)
    assert list(cells.values()) == [PICTURE]


def test_the_picture_is_drawn_once_when_the_choice_rests(
    cells: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent, "REST_S", 0.05)
    shown, drawn, done = DisplayHandle(True), list[int](), threading.Event()

    def draw() -> dict[str, Any]:
        drawn.append(len(drawn))
        threading.Timer(0.0, done.set).start()
        return {"text/html": "anew", "text/plain": ""}

    shown.changed(draw)  # nothing is displayed yet
    shown.display(PICTURE, WIDGET)
    for _ in range(50):
        shown.changed(draw)
    assert done.wait(60)
    for thread in threading.enumerate():  # the timer may have been set again, and draws on a thread of its own
        if isinstance(thread, threading.Timer):
            thread.join(60)
    assert drawn == [0]
    assert "anew" in next(iter(cells.values()))["text/html"]


def test_at_the_end_the_last_picture_is_alone_and_stays(cells: dict[str, dict[str, Any]]) -> None:
    shown = DisplayHandle(True)
    shown.display(PICTURE, WIDGET)
    shown.changed(lambda: pytest.fail("a last one is there"))
    shown.leave({"text/html": "last", "text/plain": ""})
    assert [each["text/html"] for each in cells.values()] == ["last", ""]
    assert not any(VIEW in each for each in cells.values())
    shown.changed(lambda: pytest.fail("it is over"))
    assert not [each for each in threading.enumerate() if isinstance(each, threading.Timer) and each.is_alive() and not each.finished.is_set()]


def test_outside_of_a_notebook_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: pytest.fail("there is no notebook"))
    shown = DisplayHandle(True)
    shown.display(PICTURE, WIDGET)
    shown.leave(PICTURE)
