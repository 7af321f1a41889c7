"""The space of allowed choices and the observations so far."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.search.batch_size.history import Evidence, Space


@pytest.mark.parametrize(
    ("sizes", "default", "words"),
    [
        ((), 8, "at least one"),
        ((8, 16), 12, "default batch size 12"),
        ((0, 8), 8, "below 1"),
        ((16, 8), 8, "ascending"),
        ((8, 8), 8, "twice"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_in_words(
    sizes: tuple[int, ...], default: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        Space(sizes, default)


def test_a_power_limit_is_the_nearest_that_may_be_set() -> None:
    evidence = Evidence(Space((8,), 8, (100.0, 250.0, 200.0)))
    assert [evidence.column(limit_w) for limit_w in (None, 100.0, 130.0, 240.0, 999.0, 130.0)] == [
        1,
        0,
        0,
        1,
        1,
        0,
    ]
    assert Evidence(Space((8,), 8)).column(None) == Evidence(Space((8,), 8)).column(150.0) == 0


