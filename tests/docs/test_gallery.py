"""Pages of the gallery live without a kernel and a network: the panel is drawn, and its slider chooses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gallery_pages
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WITHOUT_PLOTS = ("apply", "log")


def test_every_panel_is_drawn_and_answers(chromium: str, tmp_path: Path) -> None:
    gallery_pages.write(tmp_path)
    script = Path(__file__).parent / "look_at_gallery.py"
    done = subprocess.run([sys.executable, str(script), chromium, str(tmp_path)], text=True, capture_output=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {each["page"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert set(found) == set(gallery_pages.PANELS)
    for name, each in found.items():
        assert each["wrong"] == [], name
        assert each["problem"] == "", name
        assert "simulated" in each["words"], name
        assert (each["plots"] > 0) is (name not in WITHOUT_PLOTS), name
    frontier = found["frontier"]
    assert frontier["words"] != frontier["then"]
    assert "200 W" in frontier["words"].splitlines()[1] + frontier["words"].splitlines()[2]
    assert "225 W" in frontier["then"].splitlines()[1] + frontier["then"].splitlines()[2]
