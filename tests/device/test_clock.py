"""The machine's clock."""

from __future__ import annotations

import time

import pytest

from workbench import clock


def test_civil_time_is_right_after_the_clock_was_set_or_the_machine_has_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = clock.MONOTONIC()
    civil_s = time.time
    monkeypatch.setattr(clock.time, "time", lambda: civil_s() + 8 * 3600)
    assert clock.MONOTONIC.unix_s(now_s) == pytest.approx(civil_s() + 8 * 3600, abs=5.0)
