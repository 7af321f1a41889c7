"""Files of nvidia-smi and DCGM become traces; a file of another tool is refused with a clear message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.logbook.log_readers import read_log
from workbench.trace import SCHEMA

SMI = """timestamp, index, power.draw [W], utilization.gpu [%], utilization.memory [%], clocks.current.sm [MHz], temperature.gpu
2026/11/20 23:59:59.900, 0, 75.20 W, 0 %, 1 %, 1410 MHz, 29
2026/11/21 00:00:00.000, 0, 591.49 W, 52 %, 40 %, 1980 MHz, 50
2026/11/21 00:00:00.100, 0, [N/A], 53 %, [Not Supported], 1980 MHz, 50
"""
DMON = """#Entity   POWER     TOTEC       SMCLK   GPUTL   MCUTL
ID        W         mJ          MHz
GPU 1     48.100    2000        1410    10      5
GPU 0     120.500   1234567     1410    N/A     20
GPU 1     49.100    6900        1410    12      5
#Entity   POWER     TOTEC       SMCLK   GPUTL   MCUTL
ID        W         mJ          MHz
GPU 0     121.500   1246667     1400    51      9223372036854775794
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


def test_a_log_of_ten_thousand_years_has_no_date(file: Path) -> None:
    file.write_text("timestamp, index, power.draw [W]\n"
                    + "".join(f"{year}/01/01 00:00:00.000, 0, 5 W\n" for year in ("0001", "9998", "9999")))
    assert read_log(file).energies["started_unix_s"].to_list() == [None]


def test_nvidia_smi_gives_seconds_watts_and_shares(file: Path) -> None:
    file.write_text(SMI)
    (trace,) = read_log(file).values()
    assert trace.schema == SCHEMA
    assert trace["time_s"].to_list() == pytest.approx([0.0, 0.1, 0.2])  # over midnight
    assert trace["power_w"].to_list() == [75.2, 591.49, None]
    assert trace["utilisation"].to_list() == pytest.approx([0.0, 0.52, 0.53])
    assert trace["memory_utilisation"].to_list() == pytest.approx([0.01, 0.4, None])
    assert trace["sm_clock_mhz"].to_list() == [1410.0, 1980.0, 1980.0]
    assert trace["energy_j"].null_count() == 3


def test_units_may_be_left_out_and_windows_may_have_written_it(file: Path) -> None:
    plain = (
        SMI.replace(" W,", ",")
        .replace(" %,", ",")
        .replace(" MHz,", ",")
        .replace("[W]", "")
        .replace("[%]", "")
    )
    for number, text in enumerate((plain, plain.replace("\n", "\r\n"), "\ufeff" + plain)):
        each = file.with_name(f"{number}.csv")
        each.write_text(text)
        assert read_log(each)["0"]["power_w"].to_list() == [75.2, 591.49, None]
    file.write_bytes(SMI.encode("utf-16"))
    assert read_log(file)["0"]["power_w"].to_list() == [75.2, 591.49, None]


def test_several_gpus_are_distinguished_by_uuid_before_index(file: Path) -> None:
    rows = [
        f"2026/11/20 10:00:0{second}.{gpu:03d}, {gpu}, GPU-{'ab'[gpu]}, {100 * gpu + second}.00 W"
        for second in range(3)
        for gpu in (0, 1)
    ]
    file.write_text("timestamp, index, uuid, power.draw [W]\n" + "\n".join(rows) + "\n")
    traces = read_log(file)
    assert list(traces) == ["GPU-a", "GPU-b"]
    assert traces["GPU-b"]["power_w"].to_list() == [100.0, 101.0, 102.0]
    assert traces["GPU-b"]["time_s"].to_list() == pytest.approx([0.001, 1.001, 2.001])  # one clock for all


def test_the_better_power_reading_is_taken_if_there_is_any(file: Path) -> None:
    for instant, wanted in (("90.00 W", 90.0), ("[N/A]", 80.0)):
        file.write_text(
            "timestamp, power.draw [W], power.draw.instant [W]\n2026/11/20 10:00:00.000, 80.00 W, "
            f"{instant}\n"
        )
        assert read_log(file)["0"]["power_w"].to_list() == [wanted]


def test_rows_out_of_order_twice_or_cut_off_do_no_harm(file: Path) -> None:
    head, first, second, third, _ = SMI.split("\n")
    file.write_text("\n".join([head, second, first, head, second, "", third, "2026/11/21 00:00:00.200, 0, 5"]))
    (trace,) = read_log(file).values()
    assert trace["time_s"].to_list() == pytest.approx([0.0, 0.1, 0.2])
    assert trace["power_w"].to_list() == [75.2, 591.49, None]
    file.write_text(SMI + "2026/11/21 00:00:00.200, 0, 59")  # a number that lost its end is no reading
    assert read_log(file)["0"].height == 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        (SMI.split("\n", 1)[1], "75.20"),
        ("a,b\n1,2\n", "--query-gpu"),
        ("timestamp, utilization.gpu [%]\n2026/11/20 10:00:00.000, 5 %\n", "utilization.gpu"),
        ("# gpu   pwr gtemp\n# Idx     W     C\n    0     8    42\n", "gtemp"),
        ("timestamp, power.draw [W]\nyesterday, 5 W\n", "yesterday"),
        ("timestamp, power.draw [W]\n2026/11/20 10:00:00.000, [N/A]\n", "1 whole rows"),
        ("timestamp, power.draw [W]\n", "times"),
        ("#Entity   SMCLK\nID\nGPU 0   1410\n", "smclk"),
        ("time,gpu,DCGM_FI_DEV_SM_CLOCK\n1,0,1410\n", "dcgm_fi_dev_sm_clock"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_contents(file: Path, text: str, named: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=named):
        read_log(file)


def test_gpus_that_cannot_be_distinguished_are_not_mixed(file: Path) -> None:
    rows = [f"2026/11/20 10:00:0{second}.{gpu:03d}, {gpu}.00 W" for second in range(5) for gpu in range(3)]
    file.write_text("timestamp, power.draw [W]\n" + "\n".join(rows) + "\n")
    with pytest.raises(UsageError, match="index or uuid"):
        read_log(file)


def test_a_file_that_is_not_there_is_reported(file: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_log(file)


def test_dmon_needs_a_given_interval_and_counts_joules(file: Path) -> None:
    file.write_text(DMON)
    traces = read_log(file, every_s=0.1)
    assert list(traces) == ["GPU 0", "GPU 1"]
    zero = traces["GPU 0"]
    assert zero.schema == SCHEMA
    assert zero["time_s"].to_list() == pytest.approx([0.0, 0.1])
    assert zero["power_w"].to_list() == [120.5, 121.5]
    assert zero["energy_j"].to_list() == pytest.approx([1234.567, 1246.667])
    assert zero["utilisation"].to_list() == [None, 0.51]
    assert zero["memory_utilisation"].to_list() == pytest.approx(
        [0.2, None]
    )  # a blank of DCGM's is no number
    assert zero["sm_clock_mhz"].to_list() == [1410.0, 1400.0]
    with pytest.raises(UsageError, match="every_s=15"):
        read_log(file)


@pytest.mark.parametrize(
    "stamps", [("1777708107.135", "1777708107.235"), ("2026-11-20 10:00:00.135", "2026-11-20 10:00:00.235")]
)
def test_dmon_with_a_time_before_each_line_needs_no_pace(file: Path, stamps: tuple[str, str]) -> None:
    first, second = stamps
    file.write_text(
        f"{first} #Entity   POWER\n{first} ID        W\n{first} GPU 0     100.0\n{second} GPU 0     101.0\n"
    )
    (trace,) = read_log(file).values()
    assert trace["time_s"].to_list() == pytest.approx([0.0, 0.1], abs=1e-5)


def test_profiling_fields_replace_utilisation(file: Path) -> None:
    file.write_text(
        "#Entity   POWER   GRACT   DRAMA\nID\nGPU 0   100.0   0.750   0.250\nGPU-I 3   N/A  0.1 0.1\nGPU 0   "
        "100.0\n"
    )
    trace = read_log(file, every_s=1.0)["GPU 0"]
    assert trace.select("utilisation", "memory_utilisation").rows() == [(0.75, 0.25)]


def test_exporter_metrics_may_be_columns_or_rows(file: Path) -> None:
    wide = (
        "timestamp,gpu,UUID,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\n"
        + "".join(
            f"{1_777_708_107 + number}000,0,GPU-a,{100 + number}.5,50,{1000 * number}\n"
            for number in range(3)
        )
    )
    long = "timestamp,metric,gpu,value\n" + "".join(
        f"{1_777_708_107 + number},DCGM_FI_DEV_POWER_USAGE,0,{100 + number}.5\n{1_777_708_107 + number},DCGM_FI_DEV_GPU_UTIL,0,50\n"
        for number in range(3)
    )
    for text, name in ((wide, "GPU-a"), (long, "0")):
        file.write_text(text)
        trace = read_log(file)[name]
        assert trace.select("time_s", "power_w", "utilisation").rows() == [
            (0.0, 100.5, 0.5),
            (1.0, 101.5, 0.5),
            (2.0, 102.5, 0.5),
        ]
    file.write_text(wide)
    assert read_log(file)["GPU-a"]["energy_j"].to_list() == [0.0, 1.0, 2.0]


def test_a_trace_from_a_file_works_like_a_recorded_one(file: Path) -> None:
    from workbench.measurement.iterations import energies_of
    from workbench.periods.segment import iterations, per_iteration
    from workbench.records import DetectedPeriod, Periods

    rows = [
        f"2026/11/20 10:{number // 600:02d}:{number / 10 % 60:06.3f}, {200 if number % 20 < 15 else 60}.00 W"
        for number in range(900)
    ]
    file.write_text("timestamp, power.draw [W]\n" + "\n".join(rows) + "\n")
    (trace,) = read_log(file).values()
    summary = per_iteration(
        iterations(
            trace,
            Periods((DetectedPeriod("iteration", 2.01, 0.02, 0.9, 10.0, 0.9),), sure=True),
            energies=energies_of([trace]),
        )
    )
    assert summary.time_s == pytest.approx(2.0, abs=0.01)
    assert summary.energy_j == pytest.approx(2.0 * (0.75 * 200 + 0.25 * 60), rel=0.02)
    assert isinstance(trace, pl.DataFrame)


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_any_end_of_a_line_will_do(file: Path, end: str) -> None:
    file.write_bytes(SMI.replace("\n", end).encode())
    assert read_log(file)["0"]["power_w"].to_list() == [75.2, 591.49, None]


@pytest.mark.parametrize("spoiled", ["x" * 200_000, '"' + "x" * 200_000])
def test_a_field_that_is_too_long_is_refused(file: Path, spoiled: str) -> None:
    file.write_text(SMI.replace("75.20 W", spoiled))
    with pytest.raises(UsageError, match="field larger"):
        read_log(file)
    file.write_text(f"timestamp,gpu,DCGM_FI_DEV_POWER_USAGE\n1700000000,0,{spoiled}\n1700000001,0,5\n")
    with pytest.raises(UsageError, match="field larger"):
        read_log(file)


@pytest.mark.parametrize("raw", [b"PAR1PAR1", b"PAR1" + bytes(40), b"PAR1" + bytes(40) + b"PAR1"])
def test_a_damaged_parquet_file_is_refused(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    with pytest.raises(UsageError, match="damaged Parquet"):
        read_log(file)


@pytest.mark.parametrize("path", ["a\0b", "~nobody-of-this-name/a.csv", b"a.csv", 3, None, float("inf")])
def test_a_value_that_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(UsageError, match="path="):
        read_log(path)


def test_impossible_powers_and_times_are_missing_values(file: Path) -> None:
    rows = [("1700000000", "250"), ("1700000001", "-5"), ("1700000002", "1.7e9"), ("1700000003", "2999"),
            ("inf", "200"), ("1e308", "200"), ("1700000004", "nan"), ("-1e300", "200")]  # fmt: skip
    text = "".join(f"{time},0,{power}\n" for time, power in rows)
    file.write_text(f"timestamp,gpu,DCGM_FI_DEV_POWER_USAGE\n{text}")
    (trace,) = read_log(file).values()
    assert trace["time_s"].to_list() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert trace["power_w"].to_list() == [250.0, None, None, 2999.0, None]
