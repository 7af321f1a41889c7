"""The messages to views, as TypeScript declares them."""

from __future__ import annotations

import pytest

from tools.js.messages import PATH, FrontierFile, Period, declaration, troubles


def test_the_types_that_the_views_are_checked_with_are_those_of_the_panels() -> None:
    assert PATH.read_text(encoding="utf-8") == declaration(), "run python -m tools.js.messages"


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        ({"kind": "file", "what": "csv", "name": "a", "view": None}, []),
        ({"kind": "file", "what": "csv", "name": "a"}, ["it.view is missing"]),
        ({"kind": "file", "what": 1, "name": "a", "view": ""}, ["it.what: 1 is no str"]),
        ({"kind": "file", "what": "csv", "name": "a", "view": "", "more": 1}, ["it.more is not declared"]),
    ],
)
def test_a_message_that_is_not_as_declared_is_found(found: dict[str, object], trouble: list[str]) -> None:
    assert list(troubles(found, FrontierFile, "it")) == trouble


def test_parts_of_a_message_are_checked() -> None:
    period = {"gpu": 0, "since": None, "headline": "", "details": [1], "sure": True, "levels": [], "level": None,
              "spans": 0, "figure": [], "range": [1.0]}
    assert list(troubles(period, Period, "it")) == ["it.details[]: 1 is no str", "it.range: [1.0] has 1 parts"]
