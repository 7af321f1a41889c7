"""The lock: one version of each package, each file by its hash, from wherever a person's pip looks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.lock import LOCK, UNLOCKED, parse, taken

ROOT = Path(__file__).resolve().parents[2]
TEXT = LOCK.read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_package_has_one_version_and_hashes_and_no_place() -> None:
    entries = parse(TEXT)
    assert len(entries) == TEXT.count("==") > 150
    for name, entry in entries.items():
        assert re.fullmatch(rf"{re.escape(name)}==\S+( \\\n    --hash=sha256:[0-9a-f]{{64}})+\n", entry)
    assert "://" not in TEXT


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - UNLOCKED))
def test_the_part_of_an_extra_has_what_the_extra_names(extra: str) -> None:
    part = {re.sub(r"[-_.]+", "-", name).lower() for name in parse(taken(TEXT, ["plain", extra]))}
    for requirement in EXTRAS[extra]:
        name = re.split(r"[\[<>=]", requirement)[0]
        assert name in part
    assert len(part) < len(parse(TEXT)) - 3  # and not all there is


def test_what_builds_a_checkout_is_in_the_lock_too() -> None:
    assert {"pip", "hatchling", "editables"} <= set(parse(taken(TEXT, ["build"])))


def test_a_part_that_is_not_there_is_named() -> None:
    asked = [sys.executable, "-m", "tools.lock", "--parts", "plain,nowhere"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "'nowhere'" in done.stderr
