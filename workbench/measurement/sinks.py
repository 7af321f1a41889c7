"""Where people already look: live power and joules into W&B, MLflow, TensorBoard, a CSV file or Prometheus.

    with workbench.log_to("wandb"):                  # also "mlflow", "tensorboard", "runs/energy.csv"
        train()
    with workbench.log_to("prometheus:9400"):        # http://127.0.0.1:9400/metrics, this machine alone
        train()

Every few seconds each sink receives the mean power since the last time, the joules so far and joules per
iteration, on the axis of the training's own steps; in the end the measured total with its interval. A library
is imported when its sink is made, and nothing is sent anywhere that was not named. When a sink fails, a
warning names it, nothing more is sent to it, and the training continues.

In a job of several processes (torchrun, mpirun, srun) each rank logs its own GPUs: into a CSV file
(`energy.rank1.csv`) or TensorBoard folder of its own, and to Prometheus at the port plus its local rank. A
rank above 0 whose sink cannot be opened warns and logs nothing.
"""

from __future__ import annotations

import bisect
import csv
import math
import os
import selectors
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..device.discovery import Gpus
from ..device.selection import local_rank
from ..errors import NoDriver, UsageError, checked, describe_error, missing, shown
from ..records import Measurement
from . import marks, session
from .blocks import BlockResult
from .foreign import SHARED_BY_RANKS
from .meter import Meter

PREFIX = "gpu_energy/"
IDLE_S, MOST_CLIENTS = 1.0, 16  # of clients of the metrics that send no request
HELP = {  # by the names that Prometheus shows
    "gpu_energy_power_w": "Mean power since the value before, W",
    "gpu_energy_energy_j": "Energy since the start, J",
    "gpu_energy_energy_per_iteration_j": "Energy per iteration since the value before, J",
    "gpu_energy_total_j": "Measured energy of the whole run, J",
    "gpu_energy_total_uncertainty_j": "Half width of its 95 % interval, J",
    "gpu_energy_total_s": "Length of the whole run, s",
    "gpu_energy_steps": "Iterations so far",
}
Values = Mapping[str, float]


class Sink(Protocol):
    """Takes values by name; one of your own may be given to `log_to`."""

    def write(self, values: Values, step: int, at_unix_s: float) -> None: ...
    def close(self) -> None: ...


class NoSink:
    """Sends values nowhere. Sinks that log into the run of another program derive from it."""

    def write(self, values: Values, step: int, at_unix_s: float) -> None:
        return None

    def close(self) -> None:
        return None


class CsvSink:
    """A row for each value: time (s since 1970), step, name, value, and the process that wrote it, as several
    may share the file. Raises UsageError for a bad path.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        self._rows = csv.writer(self._file)
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        if os.fstat(self._file.fileno()).st_size == 0:
            self._rows.writerow(("at_unix_s", "step", "name", "value", "process"))
            self._file.flush()

    def write(self, values: Values, step: int, at_unix_s: float) -> None:
        self._rows.writerows((f"{at_unix_s:.3f}", step, name, repr(value), self._process)
                             for name, value in values.items())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class RunSink(NoSink):
    """A run of W&B, MLflow or a logger of Lightning, by its function that takes values and a step."""

    def __init__(self, log: Callable[[dict[str, float], int], object]) -> None:
        self._log = log

    def write(self, values: Values, step: int, at_unix_s: float) -> None:
        self._log(dict(values), step)


def wandb_sink() -> RunSink:
    """The run of W&B that is active; values join the row that the training logs next."""
    run = _library("wandb", "W&B").run
    if run is None:
        raise UsageError("no run of W&B is active; call wandb.init() first")
    return RunSink(lambda values, _: run.log(values, commit=False))


def mlflow_sink() -> RunSink:
    """The run of MLflow that is active in the thread that makes this; others have runs of their own."""
    mlflow = _library("mlflow", "MLflow")
    run = mlflow.active_run()
    if run is None:
        raise UsageError("no run of MLflow is active; call mlflow.start_run() first, or give Lightning's "
                         "logger: log_to(trainer.logger)")
    return RunSink(lambda values, step: mlflow.log_metrics(values, step=step, run_id=run.info.run_id))


class TensorboardSink:
    """Event files in a folder, by PyTorch's writer."""

    def __init__(self, folder: str = "runs") -> None:
        library = _library("torch.utils.tensorboard", "torch or TensorBoard", "torch")
        self._writer = library.SummaryWriter(folder)

    def write(self, values: Values, step: int, at_unix_s: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, at_unix_s)

    def close(self) -> None:
        self._writer.close()


class PrometheusSink:
    """Answers scrapes on the loopback interface (text format 0.0.4). Port 0 takes a free one; `port` is its
    number. A closed sink shows its last values until the process ends or another sink takes its port. Raises
    UsageError where the port is taken.
    """

    _closed: ClassVar[dict[int, PrometheusSink]] = {}  # by port, still answering

    def __init__(self, port: int = 9400) -> None:
        self._values: dict[str, float] = {}
        if port in self._closed:
            self._closed.pop(port).stop()
        try:
            if not 0 <= port < 1 << 16:
                raise OSError("a port is 0 to 65535")
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"port {port} cannot be used ({error}); give another: prometheus:9401, or 0 for "
                             "a free one") from error
        self.port = int(self._listener.getsockname()[1])
        self._over = threading.Event()
        self._thread = _started(self._serve, "workbench-metrics", "no scrape is answered")

    def _serve(self) -> None:
        """Answer each request when it is complete. A client that sends none is closed after `IDLE_S`, and the
        oldest of too many immediately: they take no thread, and few file descriptors of the training.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in selector.select(0.2):
                    try:
                        if key.data is None:
                            client, _ = self._listener.accept()
                            client.settimeout(IDLE_S)
                            selector.register(client, selectors.EVENT_READ, [time.monotonic(), b""])
                        elif self._answered(key.fileobj, key.data):
                            key.data[0] = -math.inf
                    except OSError:  # the client has gone, or no file descriptor is left
                        self._over.wait(0.01)
                clients = [key for key in selector.get_map().values() if key.data]
                past_s = math.inf if self._over.is_set() else time.monotonic() - IDLE_S
                for number, key in enumerate(reversed(clients)):
                    if key.data[0] < past_s or number >= MOST_CLIENTS:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()

    def _answered(self, client: Any, data: list[Any]) -> bool:
        """Whether a client has its answer, or will get none."""
        new = client.recv(4096)
        data[1] = data[1][-3:] + new
        if new and b"\r\n\r\n" not in data[1]:
            return False
        body = self.text().encode()
        client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                       b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    def text(self) -> str:
        """The answer to a scrape: a gauge for each value, whose name may have labels: `power_w{gpu="0"}`.
        """
        families: dict[str, list[str]] = {}  # the format wants all lines of a name together
        for name, value in self._values.items():
            plain, brace, labels = name.partition("{")
            plain = plain.replace("/", "_")
            heads = [f"# HELP {plain} {HELP.get(plain, plain)}", f"# TYPE {plain} gauge"]
            families.setdefault(plain, heads).append(f"{plain}{brace}{labels} {value!r}")
        return "\n".join([*(line for lines in families.values() for line in lines), ""])

    def show(self, values: Values) -> None:
        """Answer with these values from now on."""
        self._values = {**self._values, **values}

    def write(self, values: Values, step: int, at_unix_s: float) -> None:
        self.show({**values, f"{PREFIX}steps": float(step)})

    def close(self) -> None:
        if self._values:
            self._closed[self.port] = self
        else:
            self.stop()

    def stop(self) -> None:
        """Answer nothing more, and free the port."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()


class GpuEnergy:
    """Power of one GPU of a meter, and its energy since this was made.

    It counts from refresh to refresh of the sensor, between which the energy is exact, so that the sum does
    not drift. A stretch that cannot be read is left out.
    """

    def __init__(self, meter: Meter, number: int) -> None:
        self._meter, self._number = meter, number
        self.from_s = meter.clock()  # up to where it has counted
        self._power_w = self._energy_j = 0.0

    def update(self) -> tuple[float, float] | None:
        """Power (W) since the last update, and energy (J) so far; None while it cannot be read."""
        recorder = self._meter.recorder
        row = None if recorder is None else recorder.latest(self._meter.devices[self._number].uuid)
        if row is None:
            return None
        start_s, end_s = self.from_s, float(row["time_s"] if math.isnan(row["tick_s"]) else row["tick_s"])
        if end_s > start_s:
            self.from_s = end_s
            found = self._meter.timeline(self._number, start_s, end_s).between(start_s, end_s)
            if found is None:
                return None
            self._power_w = found.energy_j / (end_s - start_s)
            self._energy_j += found.energy_j
        return self._power_w, self._energy_j


class MetricsServer:
    """Power of each GPU and its joules since this began, for Prometheus; no window is open for it.

    Args:
        port: On the loopback interface; 0 takes a free one.
        gpus: Which GPUs, as `devices` takes them; all visible ones where None.

    Raises:
        UsageError: a port that is taken. NoDriver: there is no GPU.
    """

    def __init__(self, port: int = 9400, gpus: Gpus = None) -> None:
        meter = session.current().meter_of(gpus)
        if not meter.devices:
            raise NoDriver(f"there is no GPU to report of: {meter.why}")
        self.sink, self._meter, recorder = PrometheusSink(port), meter, meter.recorder
        self._gpus = each = [GpuEnergy(meter, number) for number in range(len(meter.devices))]
        self._hold = recorder and recorder.hold(lambda: min(gpu.from_s for gpu in each))

    def update(self) -> None:
        """Update power and energy since the last call; a GPU that cannot be read keeps its last values."""
        for device, gpu in zip(self._meter.devices, self._gpus, strict=True):
            if (found := gpu.update()) is not None:
                labels = f'{{gpu="{device.index}",uuid="{device.uuid}",name="{device.name}"}}'
                names = f"{PREFIX}power_w{labels}", f"{PREFIX}energy_j{labels}"
                self.sink.show(dict(zip(names, found, strict=True)))

    def close(self) -> None:
        self._hold = None
        self.sink.stop()


class EnergyLogger:
    """What `log_to` gives: a context manager; `stop` ends it too. `sink` is where it goes."""

    def __init__(self, sink: Sink, every_s: float, gpus: Gpus) -> None:
        self.sink, self._every_s = sink, every_s
        self._meter = session.current().meter_or_clock(gpus)
        if gpus in ([], ()):
            raise UsageError("gpus=[] names no GPU to log; leave it out for all of them")
        self._block = BlockResult(self._meter, "log_to")
        self._marks = marks.MarkRecorder(self._meter.clock)
        marks.attach(self._marks)
        self._gpus = [GpuEnergy(self._meter, number) for number in range(len(self._meter.devices))]
        self._first = 0  # of the steps, which begins the first iteration that was not sent
        self._sound, self._end = True, threading.Event()
        name = type(sink).__name__
        self._thread = _started(self._run, "workbench-log-to", f"nothing but the total goes to {name}")

    def __enter__(self) -> EnergyLogger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop(kind)

    def publish(self) -> None:
        """Send new values."""
        iteration_j = self._iteration_j()
        found = [each for gpu in self._gpus if (each := gpu.update()) is not None]
        if not found or len(found) < len(self._gpus):
            return
        power_w, energy_j = (sum(column) for column in zip(*found, strict=True))
        values = {"power_w": power_w, "energy_j": energy_j}
        if iteration_j is not None:
            values["energy_per_iteration_j"] = iteration_j
        self._give(values)

    def _iteration_j(self) -> float | None:
        """Mean energy of the iterations that have ended since the last value, without phases in them."""
        steps = sorted(self._marks.steps[self._first :])
        if len(steps) < 2:
            return None
        self._first += len(steps) - 1  # iterations whose energy is not known are not sent later either
        phases = self._marks.phases_between(steps[0], steps[-1])
        count = len(steps) - 1
        for each in phases:  # such as a pause between two trainings
            count -= max(bisect.bisect(steps, each.end_s) - bisect.bisect_left(steps, each.start_s) - 1, 0)
        stretches = [(steps[0], steps[-1]), *((each.start_s, each.end_s) for each in phases)]
        energies = [self._meter.energy(*stretch) for stretch in stretches]
        known_j = [each.energy_j for each in energies if each is not None]
        if not count or len(known_j) < len(energies):
            return None
        return (known_j[0] - sum(known_j[1:])) / count

    def stop(self) -> Measurement | None:
        """End it: the measured total with its 95 % half width goes to the sink, and is returned."""
        return self._stop(None)

    def _stop(self, kind: type[BaseException] | None) -> Measurement | None:
        if self._end.is_set():
            return None
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=10 + self._every_s)
        marks.detach(self._marks)
        self._block.__exit__(kind)
        measured = self._block.measurement
        if measured.energy_j is not None:
            self._give({"energy_j": measured.energy_j, "total_j": measured.energy_j,
                        "total_s": measured.time_s,
                        "total_uncertainty_j": measured.energy_uncertainty_j or 0.0})
        if any(SHARED_BY_RANKS in gpu.notes for gpu in measured.gpus):
            warnings.warn(SHARED_BY_RANKS, stacklevel=2)
        self._attempt(self.sink.close)
        return measured

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self._attempt(self.publish)

    def _give(self, values: Values) -> None:
        named = {PREFIX + name: value for name, value in values.items()}
        self._attempt(lambda: self.sink.write(named, len(self._marks.steps), time.time()))

    def _attempt(self, act: Any) -> None:
        """Do something with the sink; the first time that it fails is the last, and is reported."""
        if not self._sound:
            return
        try:
            act()
        except Exception as error:
            self._sound = False
            name, why = type(self.sink).__name__, describe_error(error)
            warnings.warn(f"nothing more goes to {name}: {why}", stacklevel=2)


@checked
def log_to(where: str | Path | Sink, *, every_s: float = 5.0, gpus: Gpus = None) -> EnergyLogger:
    """Log power and energy while a training runs, to where its other metrics are.

    Args:
        where: "wandb", "mlflow", "tensorboard" or "tensorboard:FOLDER", "prometheus" or "prometheus:PORT", a
            .csv file, a logger of Lightning, or a sink of your own (`Sink`).
        every_s: How often.
        gpus: Which GPUs, as `devices` takes them; all visible ones where None.

    Raises:
        UsageError: an unknown place, a library or run that is not there, a port that is taken.
    """
    if not 0 < every_s < 1e9:
        raise UsageError(f"every_s={shown(every_s)}: give a finite number of seconds above 0")
    if not isinstance(where, str | Path) and hasattr(where, "write"):
        return EnergyLogger(where, every_s, gpus)
    if log := getattr(where, "log_metrics", None):
        return EnergyLogger(RunSink(log), every_s, gpus)
    rank = _rank()
    try:
        sink = _sink(str(where), rank)
    except UsageError as error:
        if not rank:
            raise
        warnings.warn(f"rank {rank} logs nothing: {error}", stacklevel=2)
        sink = NoSink()
    try:
        return EnergyLogger(sink, every_s, gpus)
    except BaseException:
        sink.close()
        raise


def _started(target: Callable[[], None], name: str, lost: str) -> threading.Thread | None:
    """A thread that runs; a warning of what is lost where none is left."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        warnings.warn(f"{lost}: {error}", RuntimeWarning, stacklevel=4)
        return None
    return thread


def _rank() -> int:
    """Of this process in its job; 0 where it is the only one."""
    ranks = (os.environ.get(name, "") for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
    return next((int(each) for each in ranks if each.isdigit()), local_rank(os.environ) or 0)


def _sink(where: str, rank: int) -> Sink:
    name, _, rest = where.partition(":")
    if name == "prometheus" and (not rest or rest.isdigit()):
        port = int(rest or 9400)
        return PrometheusSink(port + (local_rank(os.environ) or 0) if port else 0)
    if name == "tensorboard":
        return TensorboardSink((rest or "runs") + f"/rank{rank}" * bool(rank))
    if where in ("wandb", "mlflow"):
        return wandb_sink() if where == "wandb" else mlflow_sink()
    if where.endswith(".csv"):
        return CsvSink(where.removesuffix(".csv") + f".rank{rank}" * bool(rank) + ".csv")
    raise UsageError(f"{shown(where)} is no place to log to; give wandb, mlflow, tensorboard[:FOLDER], "
                     "prometheus[:PORT], a .csv file, a logger of Lightning or a sink of your own")


def _library(module: str, name: str, more: str = "") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(missing(name, "sinks", more)) from error
