"""Energy drawn while the GPU did no work: the limits contain the truth, and an unclear trace gives no answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import workbench
from workbench.cli import main
from workbench.errors import UsageError
from workbench.logbook.store import Store
from workbench.logbook.waste import describe_waste, waste, waste_of_run
from workbench.records import GpuMeasurement, Measurement
from workbench.tariff import Tariff


def trace(
    parts: list[tuple[float, float, float]], pace_s: float = 0.1, *, limit_w: float | None = 400.0,
    utilisation: bool = True,
) -> pl.DataFrame:
    """A trace of stretches of (seconds, watts, share of the time in which something runs)."""
    times = np.arange(0.0, sum(part[0] for part in parts), pace_s)
    ends = np.cumsum([part[0] for part in parts])
    place = np.searchsorted(ends, times, side="right")
    columns = {"time_s": times, "power_w": np.array([part[1] for part in parts])[place]}
    if utilisation:
        columns["utilisation"] = np.array([part[2] for part in parts])[place]
    return pl.DataFrame(columns).with_columns(power_limit_w=pl.lit(limit_w, pl.Float64))


def test_a_rest_before_the_work_is_found_with_its_joules() -> None:
    (found,) = waste(trace([(30.0, 60.0, 0.0), (60.0, 300.0, 1.0)])).findings
    assert found.kind == "rest"
    assert found.low_s <= 30.0 <= found.high_s < 32.0
    assert found.low_j <= 30 * 60 <= found.high_j < 1.1 * 30 * 60
    assert found.run_j == pytest.approx(30 * 60 + 60 * 300, rel=0.01)


def test_waits_between_iterations_are_bounded_by_the_lowest_readings() -> None:
    found = waste(trace([(0.7, 300.0, 1.0), (0.3, 90.0, 0.0)] * 60)).findings[0]
    assert found.kind == "waits"
    assert found.low_s <= 18.0 <= found.high_s
    assert found.low_j <= 18 * 90 <= found.high_j
    assert found.high_j < 1.4 * 18 * 90


def test_waits_that_no_reading_shows_alone_are_counted_by_utilisation() -> None:
    """Power and utilisation as means over a second: 70 % at 300 W and 30 % at 90 W."""
    found = waste(trace([(60.0, 237.0, 0.7)], pace_s=1.0)).findings[0]
    assert found.kind == "waits"
    assert found.low_s <= 18.0 <= found.high_s
    assert found.low_j <= 18 * 90 <= found.high_j


def test_what_works_all_the_time_wastes_nothing() -> None:
    assert waste(trace([(60.0, 300.0, 1.0)])).findings == ()
    assert "no waste found" in str(waste(trace([(60.0, 300.0, 1.0)])))


def test_a_forgotten_kernel_is_a_rest_of_another_name() -> None:
    (found,) = waste(trace([(60.0, 300.0, 1.0), (3600.0, 55.0, 0.0)], pace_s=1.0)).findings
    assert found.kind == "long rest"
    assert "kernel" in found.advice
    assert found.low_j == pytest.approx(3600 * 55, rel=0.03)


def test_readings_15_s_apart_show_rests_and_no_waits() -> None:
    found = waste(trace([(300.0, 60.0, 0.0), (600.0, 230.0, 0.7)], pace_s=15.0))
    assert [each.kind for each in found.findings] == ["rest"]
    assert "15 s" in found.notes[0]


@pytest.mark.parametrize("parts", [[(60.0, 300.0, 0.0)], [(20.0, 60.0, 0.0), (20.0, 300.0, 0.0)]])
def test_utilisation_that_stays_0_at_work_is_not_used(parts: list[tuple[float, float, float]]) -> None:
    found = waste(trace(parts))
    assert found.findings == ()
    assert "power" in found.notes[0]


def test_without_utilisation_nothing_is_claimed() -> None:
    found = waste(trace([(30.0, 60.0, 0.0), (60.0, 300.0, 1.0)], utilisation=False))
    assert found.findings == ()
    assert "utilisation" in found.notes[0]


def test_money_is_reported_where_there_is_a_price() -> None:
    found = waste(trace([(3600.0, 100.0, 0.0), (60.0, 300.0, 1.0)], pace_s=1.0), tariff=Tariff(0.30))
    assert "at most 0.03" in str(found)
    assert "EUR" in str(found)


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    store = Store()
    for number, rest_s in enumerate((20.0, 10.0)):
        observed = trace([(rest_s, 60.0, 0.0), (40.0, 300.0, 1.0)])
        gpu = GpuMeasurement("A100", "GPU-1", rest_s * 60 + 12_000, 5.0, "counter", False)
        run = Measurement(f"run{number}", "vit", 1.79e9 + number, rest_s + 40, (gpu,))
        store.save(run, {"GPU-1": observed})
    store.save(Measurement("run2", "untraced", 1.79e9, 1.0, ()))
    return store


def test_the_log_reports_all_of_its_runs_together(logged: Store) -> None:
    found = workbench.waste(label="vit")
    assert found.frame.select("kind").to_series().to_list() == ["rest", "rest"]
    assert "27.4 s to 30 s" in str(found)
    assert "1 of 3" in workbench.waste().notes[-1]
    assert workbench.waste("vit").findings[0].low_s < 11  # the newest of them
    html = found._repr_html_()
    assert "what to do" in html


def test_the_command_line_reports_it_and_writes_json(
    logged: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["waste", "--label", "vit", "--price", "0.3"]) == 0
    assert "A100: rest" in capsys.readouterr().out
    assert main(["waste", "--json", "-"]) == 0
    assert '"kind": "rest"' in capsys.readouterr().out
    file = tmp_path / "smi.csv"
    observed = trace([(30.0, 60.0, 0.0), (60.0, 300.0, 1.0)], pace_s=1.0)
    file.write_text("timestamp, index, power.draw [W], utilization.gpu [%]\n" + "".join(
        f"2026/11/20 10:{int(at // 60):02d}:{at % 60:06.3f}, 0, {watts} W, {100 * busy:.0f} %\n"
        for at, watts, busy in observed.select("time_s", "power_w", "utilisation").iter_rows()))
    assert main(["waste", str(file)]) == 0
    assert "0: rest: " in capsys.readouterr().out


def test_much_waste_is_reported_with_a_result_and_little_is_not() -> None:
    much = waste(trace([(30.0, 60.0, 0.0), (60.0, 300.0, 1.0)])).findings
    little = waste(trace([(6.0, 60.0, 0.0), (600.0, 300.0, 1.0)])).findings
    run = Measurement("r", "", 1.79e9, 90.0, (GpuMeasurement("A100", "", 2e4, 5.0, "counter", False),))
    assert describe_waste(much, run)
    assert describe_waste(little, run) == []


def test_of_a_repeated_cell_its_last_run_is_looked_at_and_a_stall_inside_a_marked_iteration_is_a_rest() -> None:
    last = trace([(7.0, 300.0, 1.0), (30.0, 60.0, 0.0), (8.0, 300.0, 1.0)])
    gpu = GpuMeasurement("A100", "u", 5000.0, 5.0, "counter", False)
    run = Measurement("r", "", 1.79e9, 24.0, (gpu,), repeats=3)
    (found,) = waste_of_run(run, {"u": last})[0]
    assert found.kind == "rest"
    assert found.low_s < 30.0 < found.high_s < 32.0


def test_of_several_gpus_the_one_that_waited_is_named_and_those_without_work_are_left_out() -> None:
    waited = waste(trace([(30.0, 60.0, 0.0), (60.0, 300.0, 1.0)])).findings
    one = GpuMeasurement("A100", "a", 1980.0, 5.0, "counter", False, idle_share=1.0)
    two = GpuMeasurement("A100", "b", 19800.0, 5.0, "counter", False, idle_share=0.3)
    run = Measurement("r", "", 1.79e9, 90.0, (one, two))
    (message,) = describe_waste([replace(each, gpu=uuid) for uuid in "ab" for each in waited], run)
    assert "GPU 1" in message
    assert f"{100 * waited[0].high_j / 21780:.0f} % of the energy" in message


def test_a_value_that_is_no_run_is_refused() -> None:
    with pytest.raises(UsageError):
        waste(3)
