"""Logs of W&B, MLflow, TensorBoard, Prometheus, nvitop, codecarbon, Zeus and Slurm: joules with an interval."""

from __future__ import annotations

import datetime
import json
import struct
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import workbench
from workbench import cli
from workbench.errors import UsageError
from workbench.logbook.log_readers import ENERGIES, energy_of, import_log, read_log
from workbench.logbook.store import Store
from workbench.trace import SCHEMA

START_S = 1_790_000_000.0


def wandb_file(rows: list[tuple[float, dict[str, float]]]) -> bytes:
    """An offline run: header of 7 bytes, then records in blocks of 32 KiB, some in two pieces."""
    Record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record  # noqa: N806
    raw = b":W&B\xe1\xbe\x00"
    for at_s, metrics in rows:
        record = Record(control={"local": True}, uuid="x" * 300)
        record.stats.timestamp.FromMicroseconds(round(1e6 * at_s))
        for name, value in metrics.items():
            record.stats.item.add(key=name, value_json=json.dumps(value))
        body = record.SerializeToString()
        left = 32768 - len(raw) % 32768
        if left < 7:
            raw += b"\0" * left
            left = 32768
        if len(body) + 7 <= left:
            raw += struct.pack("<IHB", 0, len(body), 1) + body
        else:
            first = body[: left - 7]
            raw += struct.pack("<IHB", 0, len(first), 2) + first
            raw += struct.pack("<IHB", 0, len(body) - len(first), 4) + body[len(first):]
    return raw


def check(path: Path, gpus: int = 1, **options: float) -> pl.DataFrame:
    """100 W for 60 s on each GPU."""
    found = read_log(path, **options)
    assert len(found) == gpus
    assert found.energies.schema == ENERGIES
    for trace in found.values():
        assert trace.schema == SCHEMA
        assert trace["time_s"][0] == 0.0
    for row in found.energies.iter_rows(named=True):
        assert row["energy_j"] == pytest.approx(6000.0, rel=1e-6)
        assert row["low_j"] <= 6000.0 <= row["high_j"]
        assert row["time_s"] == pytest.approx(60.0)
    return found.energies


TIMES = [START_S + 15.0 * number for number in range(5)]


def test_wandb_offline_run(tmp_path: Path) -> None:
    rows = [(at, {"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 100, "gpu.0.gpu": 55, "cpu": 3.0,
                  "gpu.0.powerPercent": 40.0}) for at in TIMES]
    (tmp_path / "run-1.wandb").write_bytes(wandb_file(rows))
    energies = check(tmp_path / "run-1.wandb", gpus=2)
    assert energies["started_unix_s"][0] == pytest.approx(START_S)
    assert read_log(tmp_path / "run-1.wandb")["0"]["utilisation"][0] == pytest.approx(0.55)


def test_a_wandb_file_of_many_blocks_that_was_cut_off(tmp_path: Path) -> None:
    rows = [(START_S + number, {"gpu.0.powerWatts": 100.0}) for number in range(400)]
    raw = wandb_file(rows)
    assert len(raw) > 3 * 32768
    (tmp_path / "whole.wandb").write_bytes(raw)
    assert read_log(tmp_path / "whole.wandb")["0"].height == 400
    (tmp_path / "cut.wandb").write_bytes(raw[:-100])
    assert read_log(tmp_path / "cut.wandb")["0"].height == 399


def test_wandb_export(tmp_path: Path) -> None:
    frame = pl.DataFrame({"_timestamp": TIMES, "_runtime": range(5), "system.gpu.0.powerWatts": [100.0] * 5,
                          "system.gpu.process.0.powerWatts": [None] * 5, "system.cpu": [2.0] * 5})
    frame.write_csv(tmp_path / "events.csv")
    check(tmp_path / "events.csv")
    (tmp_path / "events.json").write_text(json.dumps(frame.to_dicts()))
    check(tmp_path / "events.json")
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in frame.to_dicts()))
    check(tmp_path / "events.jsonl")


def test_decimal_commas(tmp_path: Path) -> None:
    lines = ["_timestamp;system.gpu.0.powerWatts", *(f"{at:.1f};100,0".replace(".", ",") for at in TIMES), ""]
    (tmp_path / "comma.csv").write_text("\n".join(lines))
    check(tmp_path / "comma.csv")


def test_mlflow_folder_and_export(tmp_path: Path) -> None:
    folder = tmp_path / "mlruns" / "0" / "abc" / "metrics" / "system"
    folder.mkdir(parents=True)
    lines = "".join(f"{int(1000 * at)} 100.0 {step}\n" for step, at in enumerate(TIMES))
    (folder / "gpu_0_power_usage_watts").write_text(lines)
    (folder / "gpu_0_power_usage_percentage").write_text(lines)
    (folder / "cpu_utilization_percentage").write_text(lines)
    check(tmp_path / "mlruns" / "0" / "abc")
    rows = [f"system/gpu_0_power_usage_watts,100.0,{int(1000 * at)},0,abc" for at in TIMES]
    (tmp_path / "metrics.csv").write_text("\n".join(["key,value,timestamp,step,run_id", *rows, ""]))
    check(tmp_path / "metrics.csv")


def test_tensorboard(tmp_path: Path) -> None:
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    writer = writers.EventFileWriter(str(tmp_path))
    for at in TIMES:
        for name, value in (("gpu_0/power_w", 100.0), ("loss", 3.0), ("gpu_0/power_limit_w", 300.0)):
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writer.add_event(Event(wall_time=at, summary=summary))
    writer.close()
    (path,) = tmp_path.iterdir()
    check(path)


@pytest.mark.parametrize(("name", "raw"), [("a.wandb", b":W&B\xe1\xbe\x00"), ("b", b"\0" * 12 + b"brain.Event:2")])
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, raw: bytes
) -> None:
    for module in ("wandb.proto.wandb_internal_pb2", "tensorboard.backend.event_processing.event_file_loader"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UsageError, match=r"workbench\[sinks\]"):
        read_log(tmp_path / name)


def test_prometheus_range(tmp_path: Path) -> None:
    series = [{"metric": {"__name__": name, "gpu": str(gpu), "UUID": f"GPU-{gpu}"},
               "values": [[at, str(value)] for at in TIMES]}
              for gpu in (0, 1) for name, value in (("DCGM_FI_DEV_POWER_USAGE", 100.0), ("DCGM_FI_DEV_GPU_UTIL", 50))]
    series.append({"metric": {"__name__": "up"}, "values": [[TIMES[0], "1"]]})
    whole = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    (tmp_path / "range.json").write_text(json.dumps(whole))
    assert set(check(tmp_path / "range.json", gpus=2)["gpu"]) == {"GPU-0", "GPU-1"}


def test_exporter_scrapes(tmp_path: Path) -> None:
    scrape = ('# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n'
              'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="n"} 100.0\n')
    (tmp_path / "scrapes.txt").write_text(5 * scrape)
    with pytest.raises(UsageError, match="every_s=15"):
        read_log(tmp_path / "scrapes.txt")
    check(tmp_path / "scrapes.txt", every_s=15)
    timed = "".join(scrape.replace("100.0\n", f"100.0 {int(1000 * at)}\n") for at in TIMES)
    (tmp_path / "timed.txt").write_text(timed)
    check(tmp_path / "timed.txt")


def test_nvitop(tmp_path: Path) -> None:
    head = "train/cuda:0 (gpu:3)/power_usage (W)/mean,train/cuda:0 (gpu:3)/power_usage (W)/max,train/timestamp"
    (tmp_path / "nvitop.csv").write_text("\n".join([head, *(f"100.0,180.0,{at}" for at in TIMES), ""]))
    assert check(tmp_path / "nvitop.csv")["gpu"].to_list() == ["3"]


def test_codecarbon(tmp_path: Path) -> None:
    (tmp_path / "emissions.csv").write_text(
        "timestamp,project_name,run_id,duration,emissions,gpu_energy,energy_consumed,gpu_count,gpu_model\n"
        "2026-11-20T10:00:00,mine,1,60.0,0.001,0.002,0.003,1,1 x NVIDIA A100\n"
        "2026-11-20T11:00:00,none,2,60.0,0.001,0.0,0.003,1,1 x NVIDIA A100\n")
    first, second = read_log(tmp_path / "emissions.csv").energies.to_dicts()
    assert first["energy_j"] == pytest.approx(7200.0)
    assert first["low_j"] < 7200 < first["high_j"]
    assert second["energy_j"] is None
    assert second["note"]


def test_codecarbon_rows_of_one_run_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "emissions.csv").write_text(
        "timestamp,project_name,run_id,duration,emissions,gpu_energy,energy_consumed,gpu_count,gpu_model\n"
        + "".join(f"2026-11-20T10:0{n}:00,mine,1,{60.0 * n},0.001,{0.001 * n},0.003,1,A100\n" for n in (1, 2, 3)))
    (row,) = read_log(tmp_path / "emissions.csv").energies.to_dicts()
    assert row["energy_j"] == pytest.approx(0.003 * 3.6e6)
    begun = datetime.datetime(2026, 11, 20, 10, 0).timestamp()
    assert row["started_unix_s"] == begun


def test_series_that_differ_in_their_host_or_label_alone_are_different_gpus(tmp_path: Path) -> None:
    scrape = "".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",Hostname="{host}"}} 100.0\n' for host in ("a", "b"))
    (tmp_path / "scrapes.txt").write_text(5 * scrape)
    assert sorted(read_log(tmp_path / "scrapes.txt", every_s=15)) == ["a 0", "b 0"]
    csv = "timestamp,Hostname,gpu,DCGM_FI_DEV_POWER_USAGE\n" + "".join(
        f"2026-11-20 10:00:0{n},{host},0,100\n" for n in range(5) for host in ("a", "b"))
    (tmp_path / "dcgm.csv").write_text(csv)
    assert sorted(read_log(tmp_path / "dcgm.csv")) == ["a 0", "b 0"]
    (tmp_path / "range.json").write_text(json.dumps({"data": {"result": [
        {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0", "UUID": "GPU-1", "instance": f"n:{port}"},
         "values": [[at + 60 * port, "100"] for at in TIMES]} for port in (1, 2)]}}))
    assert list(read_log(tmp_path / "range.json")) == ["GPU-1"]  # the exporter's port is no other GPU
    names = [f"system.gpu.0.powerWatts/l:{label}" for label in ("rank_0", "rank_1")]
    rows = "".join(f"{START_S + n},100,50\n" for n in range(5))
    (tmp_path / "wandb.csv").write_text(f"_timestamp,{','.join(names)}\n{rows}")
    found = read_log(tmp_path / "wandb.csv")
    assert [round(float(found[gpu]["power_w"][0])) for gpu in ("rank_0 0", "rank_1 0")] == [100, 50]


def test_dates_are_those_of_the_log_or_missing(tmp_path: Path) -> None:
    (tmp_path / "zeus.csv").write_text(
        "start_time,window_name,elapsed_time,gpu0_energy\n14000000.5,of a clock since boot,10.0,2000.0\n"
        "1790000000.5,civil,10.0,2000.0\n")
    assert read_log(tmp_path / "zeus.csv").energies["started_unix_s"].to_list() == [None, 1790000000.5]
    undated, dated = import_log(tmp_path / "zeus.csv")
    assert ["without a date" in each.gpus[0].notes[0] for each in (undated, dated)] == [True, False]
    assert undated.started_unix_s > 1.7e9  # the file's
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobName|Start|Elapsed|ConsumedEnergyRaw\n12|train|2026-11-20T10:00:00|00:10:00|8640000\n"
        "13|train|Unknown|00:10:00|8640000\n")
    begun = datetime.datetime(2026, 11, 20, 10, 0).timestamp()
    assert read_log(tmp_path / "sacct.txt").energies["started_unix_s"].to_list() == [begun, None]
    smi = "timestamp, index, power.draw [W]\n" + "".join(
        f"2026/11/20 10:00:0{n}.000, 0, 75.20 W\n" for n in range(5))
    (tmp_path / "smi.csv").write_text(smi)
    assert read_log(tmp_path / "smi.csv").energies["started_unix_s"].to_list() == [begun]


def test_zeus(tmp_path: Path) -> None:
    (tmp_path / "zeus.csv").write_text(
        "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy\n"
        "1790000000.5,epoch,10.0,2000.0,1000.0\n")
    found = read_log(tmp_path / "zeus.csv").energies
    assert found["energy_j"].to_list() == [2000.0, 1000.0]
    assert found["label"].to_list() == ["epoch", "epoch"]
    assert found["high_j"][0] == pytest.approx(2020.0)


def test_slurm(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobName|Elapsed|ConsumedEnergyRaw\n12|train|1-00:00:10|8640000\n12.batch|batch|1-00:00:10|8640000\n"
        "13|zero|00:10:00|0\n14|none|00:10:00|\n")
    found = read_log(tmp_path / "sacct.txt").energies
    assert found["energy_j"].to_list() == [8640000.0, None]
    assert found["time_s"][0] == 86410.0
    assert found["scope"].to_list() == ["node", "node"]


def test_holes_and_counters_that_go_back_are_reported() -> None:
    plain = pl.DataFrame({"time_s": [0.0, 1.0, 2.0, 3.0, 60.0, 61.0], "power_w": [100.0, 300, 100, 300, 100, 300]})
    found = energy_of(pl.concat([plain.select(plain.columns)], how="diagonal").with_columns(
        *[pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in plain.columns]))
    assert "not recorded and not in the energy: 57 s" in found["note"]
    assert (found["time_s"], found["energy_j"]) == (4.0, 800.0)
    counted = pl.DataFrame({"time_s": [0.0, 1.0, 2.0], "energy_j": [100.0, 200.0, 50.0]})
    assert "went back" in energy_of(counted.with_columns(power_w=pl.lit(None, pl.Float64)))["note"]


def test_the_interval_contains_the_joules_of_averaged_power() -> None:
    draw, inside = np.random.default_rng(1), []
    for _ in range(60):
        every = int(draw.integers(10, 300))
        period = draw.uniform(0.3, 20)
        times = np.arange(0, 900, 0.1)
        watts = 200 + 80 * (np.sin(2 * np.pi * times / period) > draw.uniform(-0.5, 0.5)) + draw.normal(0, 3, len(times))
        blocks = len(times) // every
        means = watts[: blocks * every].reshape(blocks, every).mean(1)
        trace = pl.DataFrame({"time_s": (np.arange(blocks) + 1) * every / 10, "power_w": means,
                              "energy_j": pl.Series([None] * blocks, dtype=pl.Float64)})
        truth = watts[every : blocks * every].sum() * 0.1
        found = energy_of(trace)
        inside.append(found["low_j"] <= truth <= found["high_j"] or abs(found["energy_j"] / truth - 1) < 0.01)
    assert sum(inside) >= 57


@pytest.mark.parametrize(("name", "content", "description"), [
    ("a.json", "{}", "JSON of no known kind"),
    ("a.json", '{"data": {"result": []}}', "no power"),
    ("sacct.txt", "JobID|Elapsed\n", "Elapsed|elapsed"),
    ("a.csv", "a,b\n1,2\n", "nvidia-smi"),
    ("empty.csv", "", "empty"),
])
def test_what_cannot_be_read_is_reported(tmp_path: Path, name: str, content: str, description: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=description):
        read_log(tmp_path / name)


def test_a_folder_that_is_no_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MLflow"):
        workbench.read_log(tmp_path)


def test_a_log_is_compared_with_stored_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"_timestamp": TIMES, "gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 50.0})
    frame.write_csv(tmp_path / "run-1.csv")
    (tmp_path / "zeus.csv").write_text(
        "start_time,window_name,elapsed_time,gpu0_energy\n1790000000.5,epoch,10.0,2000.0\n"
        "1790000010.5,epoch,10.0,2100.0\n")
    for _ in range(2):  # a second time adds nothing
        assert cli.main(["import", str(tmp_path / "run-1.csv"), str(tmp_path / "zeus.csv")]) == 0
    first, _, again = capsys.readouterr().out.partition("run-1: already imported")
    assert "run-1: 9.00 kJ" in first
    assert again.split("\n")[1] == "epoch: already imported"
    log = Store().log()
    assert log["label"].to_list() == ["run-1", "epoch", "epoch"]
    assert log["energy_j"].to_list() == pytest.approx([9000.0, 2000.0, 2100.0])
    assert set(log["kind"]) == {"imported"}
    trace = Store().trace(log["id"][0])
    assert trace is not None
    assert trace["uuid"].n_unique() == 2
    with pytest.raises(UsageError, match="different GPU models"):
        workbench.compare("run-1", "epoch")


def test_jobs_of_one_name_and_length_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(
        "JobID|JobName|Elapsed|ConsumedEnergyRaw\n1_1|train|01:00:00|1000000\n1_2|train|01:00:00|1200000\n")
    first, second = import_log(tmp_path / "sacct.txt")
    assert (first.energy_j, second.energy_j) == (1e6, 1.2e6)
    assert "1.00 MJ (whole node, error unknown)" in str(first)


def test_a_gpu_without_energy_leaves_the_others_their_traces(tmp_path: Path) -> None:
    frame = pl.DataFrame({"_timestamp": TIMES, "gpu.0.powerWatts": [100.0, *[None] * 4], "gpu.1.powerWatts": 50.0})
    frame.write_csv(tmp_path / "run.csv")
    (kept,) = import_log(tmp_path / "run.csv")
    trace = Store().trace(kept.id)
    assert trace is not None
    assert set(trace["power_w"]) == {50.0}


def test_a_log_without_energy_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text("JobID|JobName|Elapsed|ConsumedEnergyRaw\n13|zero|00:10:00|0\n")
    with pytest.raises(UsageError, match="has no energy"):
        import_log(tmp_path / "sacct.txt")
