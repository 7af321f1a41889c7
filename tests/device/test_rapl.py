"""CPU and DRAM energy from a powercap tree; absent where it is not there or not ours to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.device import rapl


def zone(root: Path, place: str, name: str, energy_uj: int, range_uj: int = 1_000_000_000) -> Path:
    path = root / place
    path.mkdir(exist_ok=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    zone(tmp_path, "intel-rapl:0", "package-0", 10_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 5_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 2_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 20_000_000)
    zone(tmp_path, "intel-rapl:1:0", "dram", 3_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 7_000_000)
    (tmp_path / "intel-rapl-mmio:0").mkdir()
    return tmp_path


def test_packages_and_memory_are_counted_and_their_parts_are_not(two_sockets: Path) -> None:
    zones = rapl.zones(two_sockets)
    assert sorted((each.path.name, each.kind) for each in zones) == [
        ("intel-rapl:0", "cpu"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "cpu"),
        ("intel-rapl:1:0", "dram"),
    ]


def test_the_energy_between_two_readings_is_the_sum_of_the_sockets(two_sockets: Path) -> None:
    zones = rapl.zones(two_sockets)
    before = rapl.read(zones)
    for place, energy_uj in (
        ("intel-rapl:0", 40_000_000),
        ("intel-rapl:1", 25_500_000),
        ("intel-rapl:1:0", 4_000_000),
    ):
        (two_sockets / place / "energy_uj").write_text(f"{energy_uj}\n")
    after = rapl.read(zones)
    assert rapl.used_j(zones, before, after, "cpu", 1.0) == pytest.approx(35.5)
    assert rapl.used_j(zones, before, after, "dram", 1.0) == pytest.approx(1.0)


def test_a_counter_that_wrapped_is_put_right(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 990_000_000, range_uj=1_000_000_000)
    zones = rapl.zones(tmp_path)
    before = rapl.read(zones)
    (path / "energy_uj").write_text("15000000\n")
    assert rapl.used_j(zones, before, rapl.read(zones), "cpu", 1.0) == pytest.approx(25.0)


def test_a_window_in_which_a_counter_may_have_wrapped_twice_has_no_number(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000, range_uj=1_000_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000, range_uj=500_000_000)
    zones = rapl.zones(tmp_path)
    now = rapl.read(zones)
    assert rapl.used_j(zones, now, now, "cpu", 2.0) == 0.0  # 1000 J at 500 W
    assert rapl.used_j(zones, now, now, "cpu", 2.1) is None
    assert rapl.used_j(zones, now, now, "dram", 1.1) is None


def test_a_reading_that_fails_once_leaves_no_number(two_sockets: Path) -> None:
    zones = rapl.zones(two_sockets)
    before = rapl.read(zones)
    (two_sockets / "intel-rapl:1" / "energy_uj").write_text("")
    after = rapl.read(zones)
    assert rapl.used_j(zones, before, after, "cpu", 1.0) is None  # one socket of two is not the machine
    assert rapl.used_j(zones, before, after, "dram", 1.0) == 0.0


def test_no_tree_no_zones(tmp_path: Path) -> None:
    assert rapl.zones(tmp_path / "absent") == ()
    assert rapl.used_j((), {}, {}, "cpu", 1.0) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_counter_that_only_root_may_read_is_absent(two_sockets: Path) -> None:
    for path in two_sockets.glob("*/energy_uj"):
        path.chmod(0)
    assert rapl.zones(two_sockets) == ()


def test_a_zone_with_nonsense_in_it_is_left_out(two_sockets: Path) -> None:
    (two_sockets / "intel-rapl:0" / "energy_uj").write_text("enabled\n")
    (two_sockets / "intel-rapl:1" / "max_energy_range_uj").unlink()
    assert {each.kind for each in rapl.zones(two_sockets)} == {"dram"}
