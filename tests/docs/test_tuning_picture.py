"""The picture of the tuner's explanation can be drawn again."""

from __future__ import annotations

from pathlib import Path

import pytest
import tuning_picture


@pytest.mark.slow
def test_the_picture_of_a_tuned_training_is_drawn(simulated: object, tmp_path: Path) -> None:
    tuning_picture.main(tmp_path / "tuning.svg")
    drawn = (tmp_path / "tuning.svg").read_text("utf-8")
    assert all(text in drawn for text in ("safe by the clocks", "trial", "held", "at most, by the clocks"))
