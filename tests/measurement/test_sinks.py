"""Power and joules where other metrics are: each sink by a double of its library; totals are the measured ones."""

from __future__ import annotations

import csv
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import workbench
from workbench.cli import main
from workbench.errors import UsageError
from workbench.logbook.store import Store, from_row
from workbench.measurement import foreign, marks
from workbench.measurement import session as sessions
from workbench.measurement.meter import Meter
from workbench.measurement.sinks import EnergyLogger, MetricsServer, PrometheusSink
from workbench.records import Process
from workbench.simulation.machine import Machine

NEVER_S = 1e6  # the thread does not wake; `publish` is called in its place


class Kept:
    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], int]] = []
        self.closed = False

    def write(self, values: Mapping[str, float], step: int, at_unix_s: float) -> None:
        self.rows.append((dict(values), step))

    def close(self) -> None:
        self.closed = True


def train(machine: Machine, logger: EnergyLogger, steps: int = 4) -> None:
    for _ in range(3):
        for _ in range(steps):
            machine.state.publish(0, machine.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
            machine.step(0.5)
            workbench.step()
        logger.publish()


def test_power_and_energy_per_iteration_are_logged_by_step(machine: Machine) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        train(machine, logger)
    assert [step for _, step in sink.rows] == [4, 8, 12, 12]
    last = sink.rows[2][0]
    assert last["gpu_energy/power_w"] == pytest.approx(200.0, rel=0.02)
    assert last["gpu_energy/energy_j"] == pytest.approx(1200.0, rel=0.02)
    assert last["gpu_energy/energy_per_iteration_j"] == pytest.approx(100.0, rel=0.05)
    assert sink.closed


def busy(machine: Machine, seconds: float, power_w: float = 200.0) -> None:
    for _ in range(round(10 * seconds)):
        machine.state.publish(0, machine.clock(), [], (power_w, 1380, 877, 1.0, 0.5, 0))
        machine.step(0.1)


def test_iterations_longer_than_the_interval_get_their_whole_energy(machine: Machine) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        workbench.step()
        for number in range(9):
            busy(machine, 1.0)
            if number % 3 == 2:
                workbench.step()
            logger.publish()
    costs = [row.get("gpu_energy/energy_per_iteration_j") for row, _ in sink.rows[:-1]]
    assert [cost is not None for cost in costs] == [False, False, True] * 3
    assert [cost for cost in costs if cost] == pytest.approx([600.0] * 3, rel=0.03)


def test_values_follow_although_the_first_interval_cannot_be_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        begun_s, timeline = machine.clock(), Meter.timeline

        def unknown_at_first(meter: Meter, number: int, start_s: float, end_s: float) -> Any:
            found = timeline(meter, number, start_s, end_s)
            return SimpleNamespace(between=lambda a, b: None) if start_s <= begun_s + 0.05 else found

        monkeypatch.setattr(Meter, "timeline", unknown_at_first)
        workbench.step()
        for _ in range(3):
            busy(machine, 2.0)
            workbench.step()
            logger.publish()
        monkeypatch.undo()
    assert [row["gpu_energy/power_w"] for row, _ in sink.rows[:-1]] == pytest.approx([200.0, 200.0], rel=0.03)
    costs = [row.get("gpu_energy/energy_per_iteration_j") for row, _ in sink.rows[:-1]]
    assert costs == pytest.approx([400.0, 400.0], rel=0.03)


def test_power_is_that_of_its_own_interval_although_the_one_before_is_unknown(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        busy(machine, 2.0)
        logger.publish()
        second_s, timeline = machine.clock(), Meter.timeline

        def second_unknown(meter: Meter, number: int, start_s: float, end_s: float) -> Any:
            unknown = second_s - 3.0 < start_s < second_s and end_s <= second_s
            return SimpleNamespace(between=lambda a, b: None) if unknown else timeline(meter, number, start_s, end_s)

        monkeypatch.setattr(Meter, "timeline", second_unknown)
        busy(machine, 2.0)
        logger.publish()
        busy(machine, 2.0)
        logger.publish()
        monkeypatch.undo()
    rows = [row for row, _ in sink.rows[:-1]]
    assert [row["gpu_energy/power_w"] for row in rows] == pytest.approx([200.0] * 3, rel=0.03)
    assert [row["gpu_energy/energy_j"] for row in rows] == pytest.approx([400.0, 800.0, 1200.0], rel=0.03)


def test_evaluations_and_pauses_are_no_part_of_an_iteration(machine: Machine) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        for _ in range(2):
            marks.begin()
            for number in range(4):
                busy(machine, 1.0)
                if number == 2:
                    with workbench.phase("evaluation"):
                        busy(machine, 1.0, 100.0)
                workbench.step()
            busy(machine, 2.0, 100.0)  # between two trainings
        logger.publish()
    assert sink.rows[0][0]["gpu_energy/energy_per_iteration_j"] == pytest.approx(200.0, rel=0.03)


def test_the_sum_does_not_drift_from_the_total(machine: Machine) -> None:
    sink = Kept()
    with workbench.log_to(sink, every_s=NEVER_S) as logger:
        for number in range(60):
            busy(machine, 0.3, 150.0 + 90.0 * (number % 2))
            logger.publish()
    energies = [row["gpu_energy/energy_j"] for row, _ in sink.rows]
    assert energies[:-1] == sorted(energies[:-1])
    last = sink.rows[-1][0]
    assert energies[-1] == last["gpu_energy/total_j"]
    assert energies[-2] == pytest.approx(energies[-1], abs=2 * last["gpu_energy/total_uncertainty_j"])


def test_each_process_of_a_job_has_a_file_and_a_port_of_its_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        workbench.log_to(tmp_path / "energy.csv", every_s=NEVER_S).stop()
        logger = workbench.log_to(f"prometheus:{port}", every_s=NEVER_S)
        assert isinstance(logger.sink, PrometheusSink)
        assert logger.sink.port == port + int(rank)
        logger.stop()
    monkeypatch.setenv("RANK", "5")  # on another node, into the same file system
    workbench.log_to(tmp_path / "energy.csv", every_s=NEVER_S).stop()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["energy.csv", "energy.rank1.csv", "energy.rank5.csv"]


def test_a_rank_whose_port_is_taken_or_run_is_missing_warns_and_trains_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(monkeypatch, "wandb", run=None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for where in (f"prometheus:{taken.getsockname()[1] - 1}", "wandb"):
            with pytest.warns(UserWarning, match="rank 1"):
                logger = workbench.log_to(where, every_s=NEVER_S)
            train(machine, logger)
            measured = logger.stop()
            assert measured is not None
            assert measured.energy_j == pytest.approx(1200.0, rel=0.05)


def test_ranks_that_share_a_gpu_are_a_warning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "is_sibling", lambda pid: True)
    monkeypatch.setattr(foreign, "is_ours", lambda pid: pid == 1)
    both = [Process(1, "python", 1), Process(2, "python", 1)]
    monkeypatch.setattr(type(sessions.current().devices[0]), "processes", lambda *_, **__: both)
    logger = workbench.log_to(Kept(), every_s=NEVER_S)
    busy(machine, 1.0)
    with pytest.warns(UserWarning, match="add them up"):
        logger.stop()


def test_prometheus_shows_the_totals_after_the_end(machine: Machine) -> None:
    with workbench.log_to("prometheus:0", every_s=NEVER_S) as logger:
        train(machine, logger)
    assert isinstance(logger.sink, PrometheusSink)
    port = logger.sink.port
    measured = from_row(Store().log().row(-1, named=True))
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert f"gpu_energy_total_j {measured.energy_j!r}" in text.splitlines()
    assert f"gpu_energy_energy_j {measured.energy_j!r}" in text.splitlines()
    assert "# HELP gpu_energy_total_j " in text
    again = PrometheusSink(port)
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read() == b""
    again.close()


def test_a_logger_of_lightning_knows_its_run(machine: Machine) -> None:
    logged: list[tuple[float, int]] = []
    own = SimpleNamespace(log_metrics=lambda values, step: logged.append((min(values.values()), step)))
    with workbench.log_to(own, every_s=NEVER_S) as logger:
        train(machine, logger)
    assert [step for _, step in logged] == [4, 8, 12, 12]


def test_the_total_is_the_measured_one(machine: Machine) -> None:
    sink = Kept()
    logger = workbench.log_to(sink, every_s=NEVER_S)
    train(machine, logger)
    measured = logger.stop()
    assert measured is not None
    assert sink.rows[-1][0]["gpu_energy/total_j"] == measured.energy_j
    assert sink.rows[-1][0]["gpu_energy/total_uncertainty_j"] == measured.energy_uncertainty_j
    assert logger.stop() is None


def test_a_sink_that_fails_is_given_up_and_the_training_goes_on(machine: Machine) -> None:
    class Broken(Kept):
        def write(self, values: Mapping[str, float], step: int, at_unix_s: float) -> None:
            self.rows.append(({}, 0))
            raise ConnectionError("the server is gone")

    sink = Broken()
    logger = workbench.log_to(sink, every_s=NEVER_S)
    with pytest.warns(UserWarning, match="Broken: ConnectionError"):
        train(machine, logger)
    logger.stop()
    assert len(sink.rows) == 1


@pytest.mark.parametrize("where", ["energy.csv", "prometheus:0"])
def test_without_a_thread_left_the_training_goes_on_and_the_total_is_sent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    place = where if ":" in where else tmp_path / where
    sessions.current().meter  # noqa: B018  # its threads are there
    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.warns(RuntimeWarning, match="can't start new thread"), workbench.log_to(place) as logger:
        machine.step(1.0)
    if where == "energy.csv":
        assert "total_j" in Path(place).read_text(encoding="utf-8")
    else:
        assert "total_j" in logger.sink.text()
        logger.sink.stop()


def test_csv(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "energy.csv"
    for _ in range(2):
        with workbench.log_to(str(path), every_s=NEVER_S) as logger:
            train(machine, logger)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["name"] for row in rows].count("gpu_energy/total_j") == 2
    assert {row["step"] for row in rows} >= {"4", "12"}


def test_prometheus_answers_on_this_machine_alone(machine: Machine) -> None:
    with workbench.log_to("prometheus:0", every_s=NEVER_S) as logger:
        assert isinstance(logger.sink, PrometheusSink)
        train(machine, logger)
        address = f"http://127.0.0.1:{logger.sink.port}/metrics"
        text = urllib.request.urlopen(address, timeout=30).read().decode()
        with pytest.raises(UsageError, match="cannot be used"):
            workbench.log_to(f"prometheus:{logger.sink.port}")
    assert "power_w gauge\ngpu_energy_power_w " in text
    assert "gpu_energy_steps 12.0" in text


def test_idle_clients_of_prometheus_take_no_threads_and_others_are_answered(machine: Machine) -> None:
    with workbench.log_to("prometheus:0", every_s=NEVER_S) as logger:
        assert isinstance(logger.sink, PrometheusSink)
        before, at = threading.active_count(), ("127.0.0.1", logger.sink.port)
        clients = [socket.create_connection(at, timeout=30) for _ in range(2)]
        urllib.request.urlopen(f"http://127.0.0.1:{at[1]}/metrics", timeout=30).close()
        assert threading.active_count() == before
        for client in clients:
            client.close()


def test_a_logger_that_cannot_be_made_leaves_no_sink_open(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    closed: list[int] = []
    close = PrometheusSink.close

    def noted(self: PrometheusSink) -> None:
        closed.append(self.port)
        close(self)

    def refused(*_: object) -> None:
        raise UsageError("CUDA_VISIBLE_DEVICES hides it")

    monkeypatch.setattr(PrometheusSink, "close", noted)
    monkeypatch.setattr(sessions.Session, "uuids", refused)
    with pytest.raises(UsageError, match="hides it"):
        workbench.log_to(f"prometheus:{port}", gpus=[1])
    assert closed == [port]


@pytest.mark.parametrize(("error", "outcome"), [(ValueError, "error"), (KeyboardInterrupt, "interrupted")])
def test_a_training_that_fails_is_logged_as_that(
    machine: Machine, error: type[BaseException], outcome: str
) -> None:
    with pytest.raises(error), workbench.log_to(Kept(), every_s=NEVER_S):
        raise error
    assert Store().log()["outcome"].to_list() == [outcome]


def double(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    module = ModuleType(name)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)


def test_wandb_joins_the_row_that_the_training_logs_next(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    message: list[tuple[dict[str, float], bool]] = []
    run = SimpleNamespace(log=lambda values, commit: message.append((values, commit)))
    double(monkeypatch, "wandb", run=run)
    with workbench.log_to("wandb", every_s=NEVER_S) as logger:
        train(machine, logger)
    assert len(message) == 4
    assert not any(commit for _, commit in message)
    double(monkeypatch, "wandb", run=None)
    with pytest.raises(UsageError, match=r"wandb\.init"):
        workbench.log_to("wandb")


def test_mlflow(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    message: list[tuple[str, int]] = []
    active = threading.local()  # as MLflow keeps it; without one `log_metrics` begins a run

    def log_metrics(values: dict[str, float], step: int, run_id: str | None = None) -> None:
        message.append((run_id or getattr(active, "run_id", "a stray one"), step))

    def active_run() -> SimpleNamespace | None:
        run_id = getattr(active, "run_id", "")
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id)) if run_id else None

    double(monkeypatch, "mlflow", active_run=active_run, log_metrics=log_metrics)
    with pytest.raises(UsageError, match="start_run"):
        workbench.log_to("mlflow")
    active.run_id = "mine"
    with workbench.log_to("mlflow", every_s=NEVER_S) as logger:
        train(machine, logger)
        machine.step(1.0)
        thread = threading.Thread(target=logger.publish)
        thread.start()
        thread.join()
    assert message == [("mine", 4), ("mine", 8), ("mine", 12), ("mine", 12), ("mine", 12)]


def test_tensorboard(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    message: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            message.append((folder,))

        def add_scalar(self, *description: Any) -> None:
            message.append(description[:1] + description[2:3])

        def close(self) -> None:
            message.append(("closed",))

    for name in ("torch", "torch.utils"):
        double(monkeypatch, name)
    double(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    with workbench.log_to("tensorboard:runs/a", every_s=NEVER_S) as logger:
        train(machine, logger)
    assert message[0] == ("runs/a",)
    assert ("gpu_energy/power_w", 8) in message
    assert message[-1] == ("closed",)
    monkeypatch.setenv("RANK", "1")
    workbench.log_to("tensorboard:runs/a", every_s=NEVER_S).stop()
    assert ("runs/a/rank1",) in message


@pytest.mark.parametrize(("where", "options", "description"), [
    ("carrier pigeon", {}, "place to log"),
    ("prometheus:high", {}, "place to log"),
    ("prometheus:99999", {}, "cannot be used"),
    ("/nowhere/at/all.csv", {}, "cannot be written"),
    ("a.csv", {"every_s": 0.0}, "above 0"),
])
def test_invalid_input_is_an_error(machine: Machine, where: str, options: dict[str, float], description: str) -> None:
    with pytest.raises(UsageError, match=description):
        workbench.log_to(where, **options)


def test_a_library_that_is_missing_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"MLflow .*gpu-energy-workbench\[sinks\]"):
        workbench.log_to("mlflow")


def test_a_server_of_metrics_reports_power_and_joules_of_each_gpu(machine: Machine) -> None:
    server = MetricsServer(0)
    machine.step(2.0)
    server.update()
    machine.state.publish(0, machine.clock(), [], (200.0, 1380, 877, 1.0, 0.5, 0))
    before_s = machine.clock()
    machine.step(10.0)
    server.update()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.sink.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    reported = {line.split("{")[0]: line for line in lines if 'gpu="0"' in line}
    assert sum("TYPE gpu_energy_power_w" in line for line in lines) == 1
    assert float(reported["gpu_energy_power_w"].split()[-1]) == pytest.approx(200.0, rel=0.05)
    true_j = machine.true_energy_j(0, before_s, machine.clock()) * machine.gain(0)
    assert float(reported["gpu_energy_energy_j"].split()[-1]) == pytest.approx(true_j + 2 * 26, rel=0.05)
    server.close()


def test_values_of_one_name_are_grouped() -> None:
    sink = PrometheusSink(0)
    sink.show({'power_w{gpu="0"}': 1.0, 'energy_j{gpu="0"}': 2.0, 'power_w{gpu="1"}': 3.0})
    assert sink.text().splitlines() == [
        "# HELP power_w power_w", "# TYPE power_w gauge", 'power_w{gpu="0"} 1.0', 'power_w{gpu="1"} 3.0',
        "# HELP energy_j energy_j", "# TYPE energy_j gauge", 'energy_j{gpu="0"} 2.0',
    ]
    sink.close()


def test_a_taken_port_is_one_sentence(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve-metrics", "--port", str(taken.getsockname()[1])]) == 2
    message = capsys.readouterr().err
    assert "cannot be used" in message
    assert len(message.splitlines()) == 1


def test_a_training_without_a_driver_goes_on_and_logs_nothing(
    simulated: Callable[..., Machine], tmp_path: Path
) -> None:
    simulated("V100", stepped=True).state.set_header("driver_fault", 999)
    with workbench.log_to(tmp_path / "energy.csv", gpus=0):
        workbench.step()
    assert (tmp_path / "energy.csv").read_text("utf-8").count("\n") == 1
