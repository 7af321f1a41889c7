"""The public interface: its names, their signatures, what a cell shows of what they return."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from IPython.core.formatters import HTMLFormatter

import workbench
from kernels_ext import cells
from workbench import cli
from workbench.errors import MeasurementError, UsageError
from workbench.measurement import session
from workbench.simulation.training import TrainingJob

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SIGNATURES = {
    "gpu_settings": "(setting: 'Setting | None' = None, *, power_limit_w: 'float | None' = None, sm_clock_mhz: "
    "'int | None' = None, mem_clock_mhz: 'int | None' = None, gpus: 'Gpus' = None) -> "
    "'Iterator[tuple[Setting, ...]]'",
    "best_configuration": "(frame: 'pl.DataFrame', *, objective: 'str | float | Objective' = 'energy', "
    "eta: 'float | None' = None, max_slowdown: 'float | None' = 0.05, "
    "default: 'Configuration | None' = None, max_power_w: 'float | None' = None) -> 'Configuration'",
    "compare": "(a: 'Work | Setting | str', b: 'Work | Setting | str', *, work: 'Work | None' = None, "
    "labels: 'Sequence[str] | None' = None, min_effect: 'float' = 0.02, timeout_s: 'float' = 300.0, max_pairs: "
    "'int' = 200, gpus: 'Gpus' = None, seed: 'int | None' = None) -> 'EnergyComparison'",
    "gpu_control": "(gpus: 'Gpus' = None) -> 'ManualControl'",
    "devices": "(gpus: 'Gpus' = None) -> 'list[OpenGpu]'",
    "example_training": "(workload: 'str' = 'imagenet', *, iterations: 'int' = 40, batch_size: 'int | None' "
    "= None) -> 'Iterator[int]'",
    "find_periods": "(trace: 'pl.DataFrame') -> 'Periods'",
    "frontier": "(points: 'Any') -> 'pl.DataFrame'",
    "iterations_of": "(measurement: 'Measurement | str') -> 'SegmentedIterations'",
    "log_to": "(where: 'str | Path | Sink', *, every_s: 'float' = 5.0, gpus: 'Gpus' = None) -> 'EnergyLogger'",
    "measure": "(label: 'str | Callable[..., Any]' = '', *, gpus: 'Gpus' = None) -> 'Any'",
    "open_device": "(which: 'int | str' = 0) -> 'OpenGpu'",
    "phase": "(kind: 'str') -> 'Iterator[None]'",
    "read_job": "(where: 'str | Path', job_id: 'str' = '') -> 'JobMeasurement'",
    "read_log": "(path: 'str | Path', *, every_s: 'float | None' = None) -> 'EnergyLog'",
    "report": "(*names: 'str', last: 'int | None' = None, label: 'str | None' = None, since: 'str | None' = "
    "None, pue: 'float | None' = None, location: 'str' = '', g_co2_per_kwh: 'float | None' = None, "
    "intensity_source: 'str' = '') -> 'EnergyStatement'",
    "share": "(*jobs: 'Work | Sequence[Work]', gpus: 'Gpus' = 0, max_slowdown: 'float' = 0.2, stage_s: "
    "'float' = 10.0, rounds: 'int' = 2, until: 'str' = 'end', watch: 'bool' = True, watch_s: 'float' = 60.0, "
    "on_break: 'str' = 'stop', labels: 'Sequence[str] | None' = None, start_s: 'float' = 300.0, "
    "grace_s: 'float' = 10.0, keep: 'bool' = True, say: 'Say | None' = <built-in function print>) -> 'SharingResult'",
    "show": "(what: 'Any' = None) -> 'Any'",
    "simulate": "(cards: 'str | Sequence[str]' = (), *, recording: 'str | Path | None' = None, every_s: "
    "'float | None' = None, scale: 'float' = 1.0, stepped: 'bool' = False) -> 'Session'",
    "step": "() -> 'None'",
    "sweep": "(work: 'Work', space: 'pl.DataFrame | Mapping[str, Sequence[float | None]]', n_trials: 'int | "
    "None' = None, *, order: \"Literal['frontier', 'grid']\" = 'frontier', gpus: 'Gpus' = None, label: 'str | "
    "None' = None, min_gain: 'float' = 0.002, seed: 'int' = 0, warm_start: 'bool' = False, executor: "
    "'Executor | None' = None, progress: 'bool | Callable[[Sweep], None]' = True) -> 'Sweep'",
    "trace_of": "(measurement: 'Measurement | str') -> 'pl.DataFrame'",
    "track": "(iterable: 'Iterable[T]', label: 'str' = '', *, gpus: 'Gpus' = None) -> 'TrackedLoop[T]'",
    "waste": "(what: 'Any' = None, *, label: 'str | None' = None, since: 'str | None' = None, last: "
    "'int | None' = None, tariff: 'Tariff' = Tariff(price_per_kwh=None, currency='EUR', g_co2_per_kwh=None)) "
    "-> 'Waste'",
    "work": "(**amounts: 'float') -> 'None'",
    "verify": "(path: 'str | Path') -> 'list[str]'",
    "tune": "(max_slowdown: 'float | None' = 0.05, *, objective: 'str | float | Objective' = 'energy', eta: 'float | None' = None, "
    "over: 'str' = "
    "'both', gpus: 'Gpus' = None, progress: 'Callable[[], float] | None' = None, search: 'str' = "
    "'model-guided', model: 'Any' = None, label: 'str' = '', recheck: 'bool' = True, "
    "warm_start: 'bool' = False) -> 'Tuning'",
}
MADE = {  # types that a person makes, by their arguments
    "Configuration": "(setting: 'Setting' = Setting(power_limit_w=None, sm_clock_mhz=None, "
    "mem_clock_mhz=None), batch_size: 'int | None' = None) -> None",
    "RecurringJob": "(label: 'str', batch_sizes: 'Sequence[int]', default: 'int | None' = None, objective: "
    "'Objective | float | str' = 0.5, *, eta: 'float | None' = None, storage: 'str | Path | optuna.storages.BaseStorage | None' = None, target: "
    "'float | None' = None, higher_is_better: 'bool' = True, max_epochs: 'int' = 100, policy: 'BatchSizePolicy | str | "
    "optuna.samplers.BaseSampler' = 'knowledge-gradient', power_limits_w: 'Sequence[float] | None' = None, "
    "gpus: 'Gpus' = None, meter: 'Meter | None' = None, seed: 'int | None' = None, accept_changes: 'bool' = "
    "False, retries: 'int' = 20, warm_start: 'bool' = False) -> 'None'",
    "Setting": "(power_limit_w: 'float | None' = None, sm_clock_mhz: 'int | None' = None, mem_clock_mhz: "
    "'int | None' = None) -> None",
    "Sweep": "(work: 'Work', space: 'pl.DataFrame | Mapping[str, Sequence[float | None]]', *, n_trials: 'int | "
    "None' = None, order: \"Literal['frontier', 'grid']\" = 'frontier', executor: 'Executor | None' = None, "
    "gpus: 'Gpus' = None, label: 'str | None' = None, min_gain: 'float' = 0.002, seed: 'int' = 0, "
    "warm_start: 'bool' = False) -> 'None'",
}
TYPES = {
    "BlockResult", "Configuration", "Device", "EnergyComparison", "EnergyStatement", "GpuMeasurement", "IterationSummary", "DetectedPeriod", "Limits",
    "Measurement", "Observation", "Periods", "JobRun", "RecurringJob", "SegmentedIterations", "Setting",
    "SharingResult", "Sweep", "TrackedLoop", "Tuning", "TuningResult", "WorkbenchError",
}
MODULES = {"callbacks", "chosen", "cluster", "errors", "panels", "records", "simulation"}


def test_the_names_are_these() -> None:
    assert set(workbench.__all__) == TYPES | SIGNATURES.keys()


def test_dir_has_every_name_that_a_person_may_use() -> None:
    hooks = {"__version__", "load_ipython_extension", "unload_ipython_extension"}
    assert set(dir(workbench)) == TYPES | SIGNATURES.keys() | MODULES | hooks
    assert all(hasattr(workbench, name) for name in dir(workbench))


@pytest.mark.parametrize("name", [*SIGNATURES, *MADE])
def test_the_signature_of_a_function_or_type_is_unchanged(name: str) -> None:
    signature = str(inspect.signature(getattr(workbench, name)))
    assert signature == {**SIGNATURES, **MADE}[name]


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_type_is_a_type(name: str) -> None:
    assert inspect.isclass(getattr(workbench, name))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_from_the_workbench_and_its_simulation_only(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")]
    found = {text[1] for line in lines if (text := line.split()) and text[0] in ("import", "from")}
    ours = {name for name in found if name.split(".")[0] in ("workbench", "kernels_ext")}
    assert ours <= {"workbench"} | {name for name in ours if name.startswith("workbench.simulation")}


# options


@pytest.mark.parametrize("line", ["--gpus 0,1", "--gpu 0,1", "--gpu 0 --gpus 1"])
def test_magics_and_command_line_take_the_same_names_of_gpus(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def named(gpus: Any, **options: Any) -> None:
        asked.append(",".join(gpus))
        raise UsageError("enough")

    monkeypatch.setattr(session, "Session", named)
    assert cli.main(["run", *line.split(), "--", "true"]) == 2
    assert asked == [cells.parse(line).gpus] == ["0,1"]


def test_a_slowdown_is_in_percent_on_every_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def named(*jobs: str, max_slowdown: float, **options: Any) -> None:
        asked.append(max_slowdown)
        raise UsageError("enough")

    monkeypatch.setattr("workbench.sharing.share", named)
    assert cli.main(["share", "--max-slowdown", "7", "a", "b"]) == 2
    assert [*asked, cells.parse("--tune --max-slowdown 7").tune["max_slowdown"]] == [0.07, 0.07]


# on two simulated GPUs


@pytest.fixture
def two(simulated: Callable[..., Any]) -> Iterator[session.Session]:
    simulated("V100,A100", stepped=True)
    session.current().close()
    yield session.current()
    session.current().close()


def train(iterations: int = 30, gpu: int = 0) -> None:
    for _ in TrainingJob("imagenet", batch_size=64, iterations=iterations, gpu=gpu, evaluate=False):
        workbench.step()


def html(value: Any) -> str:
    """The HTML that a cell shows for it."""
    return str(HTMLFormatter()(value))


@pytest.mark.parametrize(
    ("gpus", "cards"),
    [
        ([], []), (None, ["V100", "A100"]), (0, ["V100"]), ("1", ["A100"]), ("0, 1", ["V100", "A100"]),
        ([1, 0], ["A100", "V100"]), (["0", 0], ["V100"]), ("sim:A100", ["A100"]), (range(2), ["V100", "A100"]),
    ],
)
def test_gpus_have_one_way_to_be_named(two: Any, gpus: Any, cards: list[str]) -> None:
    found = workbench.devices(gpus)
    assert [next(card for card in cards if card in device.name) for device in found] == cards
    assert [each.uuid for each in workbench.devices([device.uuid for device in found])] == [
        each.uuid for each in workbench.devices(found)
    ]


@pytest.mark.parametrize("gpus", [True, 1.5, "", " , ", [None]])
def test_a_name_of_no_gpu_is_refused(two: Any, gpus: Any) -> None:
    with pytest.raises(UsageError, match="names no GPU"):
        workbench.devices(gpus)


def test_a_setting_is_applied_to_the_named_gpus_and_restored(two: Any) -> None:
    before = [device.setting() for device in two.devices]
    with workbench.gpu_settings(power_limit_w=150, gpus=1) as shown:
        assert shown == (workbench.Setting(150.0),)
        assert [device.setting().power_limit_w for device in two.devices] == [before[0].power_limit_w, 150.0]
    with workbench.gpu_settings(workbench.Setting(200.0)):
        assert [device.setting().power_limit_w for device in two.devices] == [200.0, 200.0]
    assert [device.setting() for device in two.devices] == before
    with pytest.raises(UsageError, match="what to set"), workbench.gpu_settings():
        pass


def test_only_the_gpus_that_are_named_are_measured(two: Any) -> None:
    with workbench.measure("both") as both, workbench.measure("second", gpus=1) as second:
        train(5, gpu=1)
    assert [len(each.measurement.gpus) for each in (both, second)] == [2, 1]
    assert "A100" in second.measurement.gpus[0].name
    assert second.energy_j == pytest.approx(both.measurement.gpus[1].energy_j, rel=1e-6)
    with pytest.raises(workbench.WorkbenchError, match="GPU 7"):
        two.meter_of(7)


@pytest.fixture
def results(two: Any, tmp_path: Path) -> dict[str, Any]:
    """One of everything that a cell may return."""
    from workbench.experiments.executors import HereExecutor

    measured = []
    for limit_w in (150.0, 200.0, 250.0):
        with workbench.gpu_settings(power_limit_w=limit_w, gpus=0), workbench.measure("<train>", gpus=0) as block:
            train()
        measured.append(block.measurement)
    loop = workbench.track(TrainingJob("imagenet", batch_size=64, iterations=3), "loop", gpus=0)
    for _ in loop:
        pass
    job = workbench.RecurringJob("nightly", [32, 64], target=0.5, gpus=0, storage=tmp_path / "jobs.db")
    run = job.recurrence()
    with run:
        train(3)
        run.finish(reached=True)

    def work(batch_size: int) -> int:
        train(3)
        return 3 * batch_size

    with workbench.tune(gpus=0) as tuning:
        train(5)
    space = {"batch_size": [32], "power_limit_w": [150, 200]}
    (trace,) = block.traces.values()
    configuration = workbench.Configuration(workbench.Setting(150.0), 64)
    return {
        "block": block, "measurement": measured[0], "measurements": measured, "loop": loop, "job": job,
        "run": run, "history": job.history(), "tuning": tuning, "tuned": tuning.result, "trace": trace,
        "sweep": workbench.sweep(work, space, progress=False, executor=HereExecutor()),
        "setting": configuration.setting, "configuration": configuration,
        "observation": workbench.Observation(configuration, 20.0, 2.0, 400.0, 3.0),
        "iterations": block.found, "summary": measured[0].iterations,
        "periods": workbench.find_periods(trace), "device": two.devices[0], "limits": two.devices[0].limits,
        "session": two, "gpu": measured[0].gpus[0], "control": workbench.gpu_control(0),
        "frontier": workbench.frontier(measured),
    }


def test_every_result_has_a_display_and_its_panel_where_one_exists(
    results: dict[str, Any], tmp_path: Path
) -> None:
    for name, value in results.items():
        if name == "measurements":  # a list
            continue
        page = html(value)
        assert "<table" in page or "<summary" in page, name
        assert "<script" not in page
        assert "<train>" not in page, name
        assert repr(value)
    marked = ("block", "measurement", "loop", "job", "sweep", "tuned", "device", "session", "gpu")
    for name in marked:
        assert "simulated" in html(results[name]), name

    kinds = {
        "block": "PeriodPanel", "measurement": "PeriodPanel", "measurements": "FrontierPanel", "job": "RecurringPanel",
        "run": "RecurringPanel", "history": "RecurringPanel", "tuning": "ClocksPanel", "trace": "PeriodPanel",
        "sweep": "FrontierPanel", "setting": "ApplyPanel", "configuration": "ApplyPanel",
        "device": "ApplyPanel", "frontier": "FrontierPanel", "tuned": "TuningResult",
        "periods": "Periods", "iterations": "SegmentedIterations",
    }
    for name, kind in kinds.items():
        panel = workbench.show(results[name])
        assert type(panel).__name__ == kind, name
        assert workbench.show(panel) is panel
        if hasattr(panel, "end"):
            panel.end()
    files = {"trace.parquet": "PeriodPanel", "points.csv": "FrontierPanel", "history.csv": "RecurringPanel"}
    results["trace"].write_parquet(tmp_path / "trace.parquet")
    results["frontier"].select("time_s", "energy_j", "power_limit_w").write_csv(tmp_path / "points.csv")
    results["job"].export_csv(tmp_path / "history.csv")
    for name, kind in files.items():
        assert type(workbench.show(tmp_path / name)).__name__ == kind


def test_a_log_of_another_tool_and_a_job_log_are_distinguished(tmp_path: Path) -> None:
    rows = [f"2026/11/20 10:00:{n // 10:02d}.{n % 10}00, 0, {200 + 50 * (n % 7 < 3)} W" for n in range(100)]
    smi = tmp_path / "smi.csv"
    smi.write_text("\n".join(["timestamp, index, power.draw [W]", *rows]), encoding="utf-8")
    assert list(workbench.read_log(smi)) == ["0"]
    assert type(workbench.show(str(smi))).__name__ == "PeriodPanel"
    jobs = pl.DataFrame({"job_id": ["a"], "submit_s": [0.0], "duration_s": [600.0], "num_gpus": [1]})
    jobs.write_csv(tmp_path / "jobs.csv")
    for given in (jobs, tmp_path / "jobs.csv"):
        panel = workbench.show(given)
        assert type(panel).__name__ == "ClusterPanel"
        panel.end()


def test_a_run_of_a_cluster_shows_itself_and_opens_the_panel() -> None:
    from workbench.cluster import Cluster, Simulator, generate
    from workbench.cluster.policies.fifo import Fifo

    log = generate(20, gpus=8, seed=0)
    result = Simulator(log, Cluster.of(2), Fifo()).run()
    assert "(simulated)" in html(result)
    panel = workbench.show(result)
    assert type(panel).__name__ == "ClusterPanel"
    panel.end()


@pytest.mark.parametrize("what", [5, object(), [], {}, pl.DataFrame({"x": [1]}), "no such label", Path("no.csv")])
def test_an_object_without_a_panel_is_refused(what: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        workbench.show(what)


def test_where_polars_finds_no_thread_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As Polars' own, which cannot be imported where its threads cannot start."""

    def panics(*_: object) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr(workbench, "import_module", panics)
    monkeypatch.delitem(vars(workbench), "tune", raising=False)
    with pytest.raises(MeasurementError, match=r"workbench\.tune needs Polars.*thread"):
        workbench.tune  # noqa: B018
