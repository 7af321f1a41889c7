"""How long a trace lasts."""

from __future__ import annotations

import polars as pl
import pytest

from workbench.trace import duration_s


@pytest.mark.parametrize(("times_s", "length_s"), [([], 0.0), ([1.0], 0.0), ([0.5, 1.0, 3.0], 2.5)])
def test_a_trace_lasts_from_its_first_row_to_its_last(times_s: list[float], length_s: float) -> None:
    assert duration_s(pl.DataFrame({"time_s": times_s}, schema={"time_s": pl.Float64})) == length_s
