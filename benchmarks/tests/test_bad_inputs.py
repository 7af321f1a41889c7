"""The benchmark of bad inputs: what counts as refused, accepted, raw, a hang or too much memory."""

from __future__ import annotations

import sys
from collections.abc import Callable

import polars as pl
import pytest

from benchmarks import bad_inputs
from benchmarks.bad_inputs import Outcome, classified, summary
from benchmarks.fixtures import doors
from workbench.errors import UsageError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read in /proc")


def raises(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def shown(text: str, status: int) -> Callable[[], None]:
    def act() -> None:
        print(text, file=sys.stderr)
        raise SystemExit(status)

    return act


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: 3, "accepted"), (lambda: pl.DataFrame({"gpu": ["0"]}), "accepted"),
        (raises(UsageError("there is no such thing; take another")), "refused"),
        (raises(UsageError("")), "raw"), (raises(ValueError("inner")), "raw"),
        (raises(KeyboardInterrupt()), "raw"), (shown("workbench: no", 2), "refused"), (shown("", 2), "raw"),
        (shown("", 0), "accepted"),
        (lambda: print("Traceback (most recent call last):\n  x", file=sys.stderr), "raw"),
    ],
)
def test_a_workbench_error_with_a_message_is_a_refusal(act: Callable[[], object], kind: str) -> None:
    assert classified(act)[0] == kind


def test_an_input_is_the_same_whenever_it_is_drawn() -> None:
    assert [doors.name_of(0, number) for number in range(200)] == [doors.name_of(0, n) for n in range(200)]
    assert len({doors.name_of(0, number) for number in range(3000)}) == len(doors.DOORS)


def test_the_summary_counts_each_kind() -> None:
    outcomes = [Outcome(number, "x", kind) for number, kind in enumerate(("refused", "raw", "raw", "hangs"))]
    assert summary(outcomes) == {"inputs": 4, "refused": 1, "accepted": 0, "raw": 2, "hangs": 1, "memory": 0}


def test_a_few_inputs_from_beginning_to_end() -> None:
    found = bad_inputs.run(range(12), 0, workers=1)
    assert [each.number for each in found] == list(range(12))
    assert {each.kind for each in found} <= {"refused", "accepted"}


def test_what_hangs_dies_or_takes_memory_is_counted_and_the_next_input_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bad_inputs, "LIMIT_S", 4.0)
    monkeypatch.setattr(bad_inputs, "LIMIT_BYTES", 50 << 20)
    monkeypatch.setattr(bad_inputs, "START", START)
    found = bad_inputs.run(range(4), 0, workers=1)
    assert [each.kind for each in found] == ["hangs", "memory", "raw", "accepted"]
    assert "status -9" in found[2].words


START = """
import benchmarks.bad_inputs as bad, os, signal, time
from benchmarks.fixtures import doors

class House:
    def __init__(self, home): self.held = []
    def draw(self, seed, number):
        return "x", "", [lambda: time.sleep(60),
                         lambda: (self.held.append(b"x" * (200 << 20)), time.sleep(60)),
                         lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: None][number]
    def tidy(self): pass

doors.House = House
bad.work({seed})
"""
