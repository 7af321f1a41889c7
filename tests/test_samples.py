"""The refreshes of a sensor among its samples."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.samples import ROWS, refreshes


@pytest.mark.parametrize(
    ("energies_j", "first_rows"),
    [([], []), ([1.0], [0]), ([1.0, 1.0, 2.0, 2.0, 3.0], [0, 2, 4]), ([np.nan] * 4, [0, 2])],
    ids=["no sample", "one", "a counter", "no counter"],
)
def test_each_refresh_is_its_first_row(energies_j: list[float], first_rows: list[int]) -> None:
    rows = np.zeros(len(energies_j), ROWS)
    rows["time_s"] = 0.05 * np.arange(len(rows))
    rows["tick_s"] = 0.1 * (np.arange(len(rows)) // 2)
    rows["energy_j"] = energies_j
    assert refreshes(rows, 0.1)["time_s"] == pytest.approx(rows["time_s"][first_rows])


def test_samples_before_the_schedule_is_known_show_no_refresh() -> None:
    rows = np.zeros(3, ROWS)
    rows["tick_s"] = np.nan
    assert len(refreshes(rows, 0.1)) == 0
