"""What stays of a panel where no widget is drawn; `conftest.complete_pictures` checks every picture of these tests."""

from __future__ import annotations

import pytest

from tests.panels.conftest import OUTSIDE, PANELS
from workbench.panels._core.live import LivePanel
from workbench.panels._core.persistent import Displayed


@pytest.mark.parametrize("kind", PANELS)
def test_a_panel_has_a_summary_and_a_picture_of_its_own(kind: type[LivePanel]) -> None:
    assert kind.summary is not Displayed.summary
    assert kind.svg is not Displayed.svg or kind.html is not Displayed.html


@pytest.mark.parametrize("html", [
    "<script>1</script>", "<img src='https://a/b.png'>", "<a onclick='x()'>", "<a href='https://a'>", "<style>@import 'a'",
    "<div style='background: url(http://a)'>", "<iframe>",
])
def test_what_needs_more_than_the_picture_is_found(html: str) -> None:
    assert OUTSIDE.search(html)
    assert not OUTSIDE.search("<svg><g clip-path='url(#a)'><text>once</text></g></svg><details>")
