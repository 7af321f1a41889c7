"""What may be chosen from, and what was seen."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.search.batch_size.history import Evidence, Run, Space


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


def test_a_whole_run_corrects_the_profile_that_a_slice_gave() -> None:
    evidence = Evidence(Space((8, 16), 8, (100.0, 200.0)))
    evidence.add_profile(0, 100.0, 10.0, 90.0)
    evidence.add_profile(0, 200.0, 8.0, 150.0)
    for _ in range(8):
        evidence.add(Run(0, "reached", 5.0, 51.0, 51.0 * 92.0, power_limit_w=100.0))
    assert evidence.epoch_time_s[0, 0] == pytest.approx(10.2, rel=1e-3)
    assert evidence.power_w[0, 0] == pytest.approx(92.0, rel=1e-3)
    assert evidence.epoch_time_s[0, 1] == 8.0
    # Neither one that was profiled inside, nor one that crashed, nor one of another card.
    evidence.add(Run(0, "reached", 5.0, 42.0, 5e3, profile_time_s=3.0, power_limit_w=200.0))
    evidence.add(Run(0, "crashed", 5.0, 42.0, 5e3, power_limit_w=200.0))
    evidence.add(Run(0, "reached", 5.0, 42.0, 5e3, power_limit_w=200.0), local=False)
    assert evidence.epoch_time_s[0, 1] == 8.0
