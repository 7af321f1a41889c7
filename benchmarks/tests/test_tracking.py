"""The tracking benchmark's measure: after how many periods a tracker is right and sure."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from benchmarks.tracking import time_to_sure


def test_the_benchmark_counts_the_periods_until_the_tracker_is_right_and_sure() -> None:
    time_s = np.arange(0, 60, 0.1)
    # A plateau and a gap alone may as well be many hidden iterations and a pause: two steps are no such.
    phase_s = time_s % 1.7
    power_w = np.select([phase_s < 0.6, phase_s < 1.3], [230.0, 270.0], 90.0)
    trace = pl.DataFrame({"time_s": time_s, "power_w": power_w})
    right, wrong = time_to_sure([(trace, 1.7), (trace, 3.4)])
    assert (right["sure"], right["right"], right["wrong_first"]) == (True, True, False)
    assert right["periods"] == pytest.approx(right["seconds"] / 1.7)
    assert 2.0 < right["periods"] < 12.0
    assert (wrong["sure"], wrong["right"], wrong["periods"]) == (True, False, None)
    assert wrong["wrong_first"]
