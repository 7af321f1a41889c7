"""`%%energy` where a recording is replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from a_kernel import Kernel


def test_a_cell_on_a_replay_is_marked_simulated(start: Callable[..., Kernel], tmp_path: Path) -> None:
    rows = [f"{0.1 * number:.1f},0,{100 + 50 * (number % 2)},{12.5 * number:.1f}" for number in range(300)]
    (tmp_path / "trace.csv").write_text("\n".join(["time_s,gpu,power_w,energy_j", *rows, ""]))
    kernel = start()
    kernel("%load_ext kernels_ext\n%config EnergyMagics.live = False")
    assert "(replayed)" in kernel(f"%gpu simulate {tmp_path / 'trace.csv'}").text
    ran = kernel("%%energy train\nimport time; time.sleep(1.0)")
    assert ran.status == "ok"
    assert ran.report["simulated"]
    assert 80 < ran.report["mean_power_w"] < 170
