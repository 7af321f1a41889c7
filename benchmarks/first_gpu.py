"""The first minutes on a GPU: what its sensors do, and how right the workbench is on it. Changes no setting.

    python -m benchmarks.first_gpu --out DIR [--minutes 8] [--quick]     on the machine with the GPU
    python -m benchmarks.first_gpu --read DIR [--json FILE]              the tables, there or elsewhere

It needs Python 3.11 or newer, the checkout, and the packages of the small installation. PyTorch with CUDA
gives the loads. It sets `WORKBENCH_READ_ONLY`. It writes at most eight files: `results.json`, `tables.md` and
six recordings in the format of `workbench doctor --record`. The first two are written after each stage, so
that a run that is killed leaves the tables of its finished stages.

    doctor     versions, modes, every reading that the driver answers, performance counters
    rest       a recording at rest
    load       a recording under constant load, with windows of 0.1 to 10 s
    known      bursts of 5 to 500 ms with pauses, a copy that is bound by memory, a ramp; all with true times
    resnet, gpt, stall
               three trainings with `workbench.step()`, measured as `%%energy` does, with their true steps
    overhead   time per training step with and without the sampling process
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = {  # module -> package; all that measuring needs (docs/how-to/install.md)
    "numpy": "numpy",
    "scipy": "scipy",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "polars": "polars",
    "platformdirs": "platformdirs",
}
MINUTES, QUICK_MINUTES = 8.0, 0.6
SECONDS = {  # of the stages, for `MINUTES`
    "doctor": 10.0,
    "rest": 60.0,
    "load": 60.0,
    "known": 90.0,
    "resnet": 45.0,
    "gpt": 45.0,
    "stall": 45.0,
    "overhead": 40.0,
}
BURSTS_S, PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5), (0.005, 0.02, 0.08, 0.2)
OTHERS_EVERY_S = 0.01  # between two reads of the readings that the workbench does not use
# Fields that the workbench does not use: mean power, and power and energy of the module (scope 1).
OTHER_FIELDS = [(185, 0), (186, 1), (185, 1), (83, 1)]
GETTERS = (  # of nvidia-ml-py, where it has them: what they answer is noted
    "PowerUsage",
    "TotalEnergyConsumption",
    "PowerManagementLimit",
    "EnforcedPowerLimit",
    "PowerManagementMode",
    "PowerManagementDefaultLimit",
    "PowerManagementLimitConstraints",
    "PowerState",
    "PowerSource",
    "PersistenceMode",
    "CurrentClocksEventReasons",
    "SupportedClocksEventReasons",
    "CurrentClockFreqs",
    "PerformanceModes",
    "PerformanceState",
    "ComputeMode",
    "MigMode",
    "UtilizationRates",
    "Architecture",
    "CudaComputeCapability",
    "PowerMizerMode_v1",
    "EccMode",
    "GspFirmwareVersion",
    "GspFirmwareMode",
    "NumGpuCores",
    "MemoryBusWidth",
)
PROFILES = ("WorkloadPowerProfileGetProfilesInfo", "WorkloadPowerProfileGetCurrentProfiles")


def missing_packages() -> list[str]:
    """The packages that are not installed, by the names that pip knows."""
    absent = []
    for module, package in PACKAGES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            absent.append(package)
    return absent


class Run:
    """The stages of a run, and what they have found.

    Args:
        directory: Where the files go.
        minutes: How long all stages may take together.
        torch_on: "cpu" rehearses the trainings of PyTorch on the processor.
    """

    def __init__(self, directory: Path, minutes: float, torch_on: str = "") -> None:
        from workbench.measurement import session

        self.directory, self.scale = directory, minutes / MINUTES
        # A quick run on a busy machine takes minutes to start its processes.
        self.deadline_s = time.monotonic() + max(60 * minutes + 60, 300)
        self.meter = session.current().meter
        if not self.meter.devices:
            raise SystemExit(f"no GPU can be measured here: {self.meter.why}")
        self.device = self.meter.devices[0]
        self.clock = self.device.clock
        self.torch_on, self.load = torch_on, None
        self.found: dict[str, Any] = {"minutes": minutes, "stages": {}, "problems": {}}

    def stage(self, name: str, act: Callable[[float], dict[str, Any]]) -> None:
        """Run a stage, note its result or what went wrong, and write both files."""
        from benchmarks.first_gpu_tables import write

        began_s = time.monotonic()
        if began_s > self.deadline_s:
            self.found["problems"][name] = "left out: the time was used up"
        else:
            print(f"{name} ...", flush=True)
            try:
                self.found["stages"][name] = act(self.scale * SECONDS[name])
            except Exception as error:  # the next stage may still work
                self.found["problems"][name] = f"{type(error).__name__}: {error}"
                print(f"{name}: {self.found['problems'][name]}", flush=True)
            self.found["stages"].setdefault(name, {})["took_s"] = time.monotonic() - began_s
        write(self.directory, self.found)

    # stages

    def doctor(self, seconds: float) -> dict[str, Any]:
        from benchmarks.first_gpu_loads import load_for
        from workbench.measurement import doctor

        findings = [*doctor.gpu_findings(self.device, None, seconds=max(seconds, 2.0))]
        self.load = load_for(self.device, self.torch_on)  # imports PyTorch
        return {
            "load": self.load.name,
            "on_gpu": self.load.on_gpu,
            "gpu": self.device.name,
            "simulated": self.device.simulated,
            "architecture": self.device.architecture,
            "power_window_s": self.device.power_window_s,
            "doctor": doctor.report(doctor.machine_findings(), {self.device: findings}),
            "answers": answers(self.device.index),
            "calls_ms": call_times(self.device.index),
        }

    def rest(self, seconds: float) -> dict[str, Any]:
        with self.recording("rest"):
            start_s = self.clock()
            time.sleep(seconds)
            return {"start_s": start_s, "end_s": self.clock()}

    def under_load(self, seconds: float) -> dict[str, Any]:
        counters: list[Any] = []
        with self.recording("load"), self.windows(seconds) as windows:
            start_s = self.clock()
            while self.clock() < start_s + seconds:
                self.load.burst(0.5)
                if len(counters) < 2 and self.device.can("gpm"):
                    counters.append(self.device.counters())
            end_s = self.clock()
        counted = self.device.counted(*counters) if len(counters) == 2 else {}
        return {"start_s": start_s, "end_s": end_s, "windows": windows, "gpm": counted}

    def known(self, seconds: float) -> dict[str, Any]:
        """Bursts in random order for three quarters of the time, then the copy, then a ramp."""
        rng, bursts, ramp = random.Random(0), [], []
        with self.recording("known"):
            start_s = self.clock()
            while self.clock() < start_s + 0.75 * seconds:
                length_s, pause_s = rng.choice(BURSTS_S), rng.choice(PAUSES_S)
                for _ in range(max(1, round(1.0 / (length_s + pause_s)))):
                    bursts.append(self.load.burst(length_s))
                    time.sleep(pause_s * rng.uniform(0.8, 1.2))
            copy = self.load.copy(0.1 * seconds)
            time.sleep(0.5)
            for tenth in range(1, 11):
                end_s = self.clock() + 0.01 * seconds
                while self.clock() < end_s:
                    ramp.append(self.load.burst(0.002 * tenth))
                    time.sleep(0.002 * (10 - tenth))
            return {"start_s": start_s, "end_s": self.clock(), "bursts": bursts, "copy": copy, "ramp": ramp}

    def training(self, kind: str) -> Callable[[float], dict[str, Any]]:
        def run(seconds: float) -> dict[str, Any]:
            import workbench

            for _ in self.load.steps(kind, 0.1):  # built, and warm
                pass
            with self.recording(kind), self.windows(seconds) as windows:
                before = self.counter()
                with workbench.measure(kind) as block:
                    for _ in self.load.steps(kind, seconds):
                        workbench.step()
                after = self.counter()
            measured = block.measurement
            (gpu,) = measured.gpus[:1]
            found = block.found.summary
            return {
                "windows": windows,
                "step_ends_s": self.load.step_ends_s,
                "whole": {
                    "start_s": block.closed.start_s,
                    "end_s": block.closed.end_s,
                    "energy_j": gpu.energy_j,
                    "half_j": gpu.energy_uncertainty_j,
                    "source": gpu.source,
                    "notes": list(gpu.notes),
                    "plain_j": after - before,
                    "true_j": self.load.true_energy_j(block.closed.start_s, block.closed.end_s),
                },
                "iterations": {
                    "count": found.count,
                    "time_s": found.time_s,
                    "half_s": found.time_uncertainty_s,
                    "energy_j": found.energy_j,
                    "source": found.source,
                },
                "line": str(measured),
            }

        return run

    def overhead(self, seconds: float) -> dict[str, Any]:
        """Blocks of training steps, in turns without and with a sampling process."""
        from workbench.measurement import session
        from workbench.measurement.recorder import Recorder

        session.current().close()
        block_s = min(2.0, max(seconds / 12, 0.4))
        means: dict[str, list[float]] = {"without": [], "with": []}
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds or len(means["with"]) < 2:
            for name in ("without", "with"):
                recorder = Recorder([self.device]) if name == "with" else None
                if recorder is not None:
                    recorder.calibrated()
                for _ in self.load.steps("stall", block_s):
                    pass
                steps_s = [
                    b - a for a, b in zip(self.load.step_ends_s, self.load.step_ends_s[1:], strict=False)
                ]
                means[name].append(sorted(steps_s)[len(steps_s) // 2])
                if recorder is not None:
                    recorder.stop()
        return means

    # what the stages share

    def counter(self) -> float:
        """The energy counter (J), read once as ZeusMonitor reads it."""
        return float(self.device.energy_j()) if self.device.can("energy") else float("nan")

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[None]:
        """Record what the driver answers, from a process of its own, while the block runs."""
        path = self.directory / f"{name}.jsonl.gz"
        mine = [str(path), self.device.uuid, str(os.getpid())]
        command = [sys.executable, "-m", "benchmarks.first_gpu", "--recorder", *mine]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            if not child.stdout.readline().strip():
                raise RuntimeError(f"the recording process ended with {child.wait()}")
            yield
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(30)
            finally:
                child.kill()

    @contextlib.contextmanager
    def windows(self, seconds: float) -> Iterator[list[dict[str, Any]]]:
        """Measure overlapping windows of four lengths in a thread while the block runs."""
        from benchmarks.measurement_drivers import overlapping

        result: list[dict[str, Any]] = []
        edges: dict[int, float] = {}

        def begin(number: int) -> None:
            edges[number] = self.counter()

        def end(number: int) -> dict[str, Any]:
            return {"plain_j": self.counter() - edges.pop(number)}

        thread = threading.Thread(
            target=lambda: result.extend(overlapping(self.meter, seconds - 1.0, begin, end)), daemon=True
        )
        thread.start()
        yield result
        thread.join(seconds + 30)
        for window in result:
            window["true_j"] = self.load.true_energy_j(window["start_s"], window["end_s"])


def answers(index: int) -> dict[str, Any]:
    """The driver's answers to every getter and field of this pynvml: values, or errors as text."""
    import pynvml

    from workbench.device.nvml.readings import field_number

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    found: dict[str, Any] = {}
    for name in (*(f"Get{getter}" for getter in GETTERS), *PROFILES):
        try:
            found[name] = _plain(getattr(pynvml, f"nvmlDevice{name}")(handle))
        except Exception as error:  # which is an answer too
            found[name] = f"{type(error).__name__}: {error}"
    for name in sorted(name for name in dir(pynvml) if name.startswith(("NVML_FI_DEV_", "NVML_FI_PWR_"))):
        number = getattr(pynvml, name)
        for scope in (0, 1) if "POWER" in name or "ENERGY" in name else (0,):
            try:
                value = pynvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0]
                answer = field_number(value) if not value.nvmlReturn else f"error {value.nvmlReturn}"
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            found[f"{name} ({number}, scope {scope})"] = answer
    return found


def _plain(value: Any) -> Any:
    """A value as JSON: structures by field, arrays as lists."""
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if hasattr(value, "__len__") and not isinstance(value, str | bytes):
        return [_plain(each) for each in value][:64]
    return value if isinstance(value, int | float | str) else str(value)


def call_times(index: int) -> dict[str, list[float]]:
    """The median and the longest time (ms) of 200 calls of what the sampler asks."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    asked: dict[str, Callable[[], Any]] = {
        "fields": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [83, 186, 190]),
        "energy": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "processes": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
    }
    times: dict[str, list[float]] = {}
    for name, ask in asked.items():
        took_ms = []
        for _ in range(200):
            before_s = time.perf_counter()
            with contextlib.suppress(pynvml.NVMLError):
                ask()
            took_ms.append(1000 * (time.perf_counter() - before_s))
        times[name] = [sorted(took_ms)[100], max(took_ms)]
    return times


def record(path: Path, uuid: str, parent: int) -> None:
    """Record a GPU until an interrupt, with readings that the workbench does not use. Prints a line first.

    Args:
        path: The recording.
        uuid: Of the GPU.
        parent: Process that this one ends with.
    """
    import pynvml

    from workbench._processes import die_with
    from workbench.device import driver
    from workbench.device.discovery import open_device
    from workbench.measurement.sampler import FOLLOW_S, LOCK_SHARE, STATUS_EVERY_S

    die_with(parent, signal.SIGINT)  # then the recording is written all the same
    device = open_device(uuid)
    handle, stop = pynvml.nvmlDeviceGetHandleByUUID(uuid), threading.Event()

    def ask_others() -> None:
        while not stop.wait(OTHERS_EVERY_S):
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlDeviceGetFieldValues(handle, OTHER_FIELDS)
                pynvml.nvmlDeviceGetPowerUsage(handle)

    threading.Thread(target=ask_others, daemon=True).start()
    threading.Timer(0.2, lambda: print("recording", flush=True)).start()
    found = driver.current().recorder()(  # type: ignore[attr-defined]
        [device], 3600.0, every_s=FOLLOW_S, share=LOCK_SHARE, status_s=STATUS_EVERY_S
    )
    stop.set()
    found.write(path)


def main() -> None:
    if sys.argv[1:2] == ["--recorder"]:
        record(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="measure, and write the files into DIR")
    parser.add_argument("--read", type=Path, metavar="DIR", help="write the tables of the files in DIR")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help=f"time for all stages (default: {MINUTES:g})"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MINUTES:g} minutes, for a first look")
    parser.add_argument("--simulate", metavar="CARD", help="use a simulated GPU, such as H100")
    parser.add_argument(
        "--torch", choices=("cpu",), default="", help="rehearse PyTorch's trainings on the CPU"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="with --read: write every figure to this file"
    )
    options = parser.parse_args()
    if (options.out is None) == (options.read is None):
        parser.error("give --out DIR to measure, or --read DIR for the tables of an earlier run")
    minutes = options.minutes or (QUICK_MINUTES if options.quick else MINUTES)
    if not 0.3 <= minutes <= 60:
        parser.error(f"--minutes {minutes:g} is outside 0.3 to 60")
    if absent := missing_packages():
        sys.exit(
            f"these packages are missing: {', '.join(absent)}. Run `pip install {' '.join(absent)}`, or "
            "carry their wheels here and put them on PYTHONPATH"
        )
    if options.read is not None:
        from benchmarks.first_gpu_tables import read

        read(options.read, options.json)
        return
    os.environ["WORKBENCH_READ_ONLY"] = "1"
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["WORKBENCH_HOME"] = home  # nothing of earlier measurements, and nothing left behind
        measure_all(options, minutes)
    print((options.out / "tables.md").read_text(encoding="utf-8"))


def measure_all(options: argparse.Namespace, minutes: float) -> None:
    """Run every stage, in the order of their worth."""
    import workbench
    from workbench.measurement import session

    if options.simulate:
        workbench.simulate(options.simulate)
    run = Run(options.out, minutes, options.torch)
    run.found["python"] = platform.python_version()
    run.found["packages"] = {
        name: getattr(importlib.import_module(name), "__version__", "")
        for name in ("numpy", "scipy", "polars")
    }
    run.stage("doctor", run.doctor)
    if run.load is None:
        sys.exit("the GPU cannot be examined; see above")
    run.stage("rest", run.rest)
    run.stage("load", run.under_load)
    run.stage("known", run.known)
    for kind in ("resnet", "gpt", "stall"):
        run.stage(kind, run.training(kind))
    run.stage("overhead", run.overhead)
    session.current().close()


if __name__ == "__main__":
    main()
