"""Every message that a panel sends in these tests is one that the types of its view declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tools.js.messages import SAID, troubles
from workbench.measurement import session as sessions
from workbench.panels._core.live import LivePanel
from workbench.panels._core.persistent import Displayed
from workbench.panels._views.apply.panel import ApplyPanel
from workbench.panels._views.clocks.panel import ClocksPanel
from workbench.panels._views.cluster.panel import ClusterPanel
from workbench.panels._views.frontier.panel import FrontierPanel
from workbench.panels._views.job.panel import JobPanel
from workbench.panels._views.log.panel import LogPanel
from workbench.panels._views.period.panel import PeriodPanel
from workbench.panels._views.power.panel import PowerView
from workbench.panels._views.recurring.panel import RecurringPanel
from workbench.panels.tab_sheets import SweepPanel

PANELS = (
    SweepPanel, ApplyPanel, ClocksPanel, ClusterPanel, FrontierPanel, JobPanel, LogPanel, PeriodPanel, PowerView,
    RecurringPanel,
)


def check(panel: LivePanel, content: dict[str, Any]) -> None:
    """Compare a message with its declared type; messages of all panels, such as "pong", have no type."""
    greeting, others = SAID[next(each.__name__ for each in type(panel).__mro__ if each.__name__ in SAID)]
    kind = content.get("kind")
    declared = others.get(str(kind))
    if kind == "greeting":
        content = {name: each for name, each in content.items() if name not in ("state", "problem")}
        declared = greeting
    if declared is not None:
        content = {"kind": "greeting", **content}
        found = [each for each in troubles(content, declared, type(panel).__name__) if ".kind is not" not in each]
        assert not found, found


@pytest.fixture(autouse=True)
def declared_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(kind: type[LivePanel], snapshot: Callable[[LivePanel], Any]) -> None:
        def checked(self: LivePanel) -> Any:
            content, buffers = snapshot(self)
            check(self, {**content, "kind": "greeting"})
            return content, buffers

        monkeypatch.setattr(kind, "snapshot", checked)

    def assign(self: LivePanel, name: str, value: Any) -> None:
        if name == "send":  # a test listens
            heard = value

            def value(content: dict[str, Any], buffers: Any = None) -> Any:
                check(self, content)
                return heard(content, buffers)

        super(LivePanel, self).__setattr__(name, value)

    for kind in PANELS:
        watch(kind, kind.snapshot)
    monkeypatch.setattr(LivePanel, "__setattr__", assign, raising=False)


@pytest.fixture
def own_session(simulated: Callable[..., Any]) -> Iterator[None]:
    """No session of another test before this one, none of this test after it."""
    sessions.current().close()
    yield
    sessions.current().close()


OUTSIDE = re.compile(r"<script|javascript:|\bon\w+=|<(?:img|link|iframe|use)\b|@import|url\((?!#)|\b(?:src|href)=[\"']?https?:")


@pytest.fixture(autouse=True)
def complete_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no widget is drawn (VS Code without its renderer, Colab, Kaggle, nbconvert, a saved notebook) a panel is
    its words and a picture, which needs no script and nothing from outside. Every picture of these tests is held
    against that.
    """
    def watch(kind: type[Displayed], drawn: Callable[[Displayed], str]) -> None:
        def checked(self: Displayed) -> str:
            html = drawn(self)
            assert html.strip()
            assert self.summary().strip()
            found = OUTSIDE.search(html)
            assert not found, html[found.start() - 80:found.end() + 80]
            return html

        monkeypatch.setattr(kind, "html", checked)

    for kind in PANELS:
        watch(kind, kind.html)
