"""Fixtures for all tests: simulated machines that leave nothing behind, a separate home, and the published
data.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before NumPy, LightGBM and Polars start their threads: threads that wait for one another spin where other
# workers have the cores, and a test takes five times as long.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["POLARS_MAX_THREADS"] = "2"

import hypothesis
import pynvml
import pytest

from benchmarks.fixtures.bulk import replace_ring
from workbench.device.nvml import library
from workbench.logbook import keeping
from workbench.simulation import machine as machines
from workbench.simulation.machine import Machine
from workbench.simulation.state import SEGMENT

sys.path.insert(0, str(Path(__file__).parent / "fixtures" / "nvml"))

# A grammar of IRIs that jsonschema compiles for 3 s in each process that imports nbformat. No test needs it.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# How long an example takes says something of the machine, and nothing of the code.
hypothesis.settings.register_profile("anywhere", deadline=None)
hypothesis.settings.load_profile("anywhere")

REPOSITORY = Path(__file__).resolve().parent.parent
# Files whose tests go to any worker: they are long, and share no costly fixture.
SINGLE = {
    "test_control.py", "test_failing_driver.py", "test_hold.py", "test_job.py", "test_machines.py", "test_notebooks.py", "test_runs.py", "test_sweep.py", "test_tuning.py"
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_configure(config: pytest.Config) -> None:
    """Workers that run side by side keep locks and temporary files apart: GPUs of one seed have one UUID.

    A shell starts a job in the background with ignored interrupts, and every child process inherits that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        own = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="workbench-tests-")
        config.add_cleanup(lambda: shutil.rmtree(own, ignore_errors=True))


@pytest.fixture(autouse=True)
def own_surroundings(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """No test sees the caller's settings, GPUs or home, nor writes there, nor what another test has measured."""
    for name in list(os.environ):
        if name.startswith("WORKBENCH_") and name not in ("WORKBENCH_DATA", "WORKBENCH_REQUIRE_BROWSER"):
            monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    # Browsers and the like live in the real home's cache and are told so by variables of their own.
    browsers = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(browsers))
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        directory = home / name.lower()
        directory.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(directory))
    yield
    keeping.renew()  # while the home is still the test's own


@pytest.fixture
def simulated() -> Iterator[Callable[..., Machine]]:
    """Make simulated machines: `simulated("A100,V100", stepped=True)`. One at a time, as in any process."""
    _without_nvml()
    made: list[Machine] = []

    def simulate(cards: str = "V100", **options: object) -> Machine:
        made.append(machines.simulate(cards, **{"seed": 1, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield simulate
    _without_nvml()
    for machine in made:
        machine.close()


@pytest.fixture
def machine(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A stepped V100 without noise that this process' session has measured at rest for 3 s."""
    from workbench.measurement import marks, session

    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(marks, "_open", {})  # a test before may have left a window open
    made = simulated("V100", stepped=True)
    made.state.set_card(0, "noise", 0.0)
    _ = session.current().meter
    made.step(3.0)
    yield made
    session.current().close()


@pytest.fixture
def stepped(simulated: Callable[..., Machine]) -> Machine:
    """A stepped V100 for numbers that one can work out on paper.

    Its sensor has neither noise nor error and ticks at whole periods. It has idled at 26 W and 33 degrees for
    an hour when time 0 comes, and warms by 0.16 degrees per watt.
    """
    machine = simulated("V100", stepped=True)
    on_paper = {
        "noise": 0.0,
        "gain": 1.0,
        "sensor_phase_s": 0.0,
        "counter_lag_s": 0.0,
        "idle_w": 26.0,
        "idle_c": 33.0,
        "c_per_w": 0.16,
    }
    for name, value in on_paper.items():
        machine.state.set_card(0, name, value)
    replace_ring(machine.state, 0, SEGMENT.pack(-3600.0, 26.0, 0.0, 135, 877, 0.0, 0.0, 1), 1)
    return machine


def _without_nvml() -> None:
    """Leave pynvml and our door to it as in a process that never met a GPU."""
    machines.nvml_library.uninstall()
    pynvml.nvmlLib = None  # a test of a real GPU may have loaded the real one
    pynvml._nvmlGetFunctionPointer_cache.clear()
    library._initialised_library = None


@pytest.fixture(scope="session")
def c_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for LD_LIBRARY_PATH that holds the C NVML of simulated machines."""
    import build

    if sys.platform != "linux" or build.compiler() is None:
        pytest.skip("the C NVML is built with gcc on Linux, and there is none here")
    return build.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The published traces and tables that some tests compare with."""
    directory = Path(os.environ.get("WORKBENCH_DATA", REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip("the published data is not here; WORKBENCH_DATA names its directory")
    return directory


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files go to workers: fixtures are slow. One worker gets all browser tests; slow files are split.

    Not xdist's own groups: it writes them into names that pytest 9 no longer takes.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.startswith("tests/browser/"):
                return "browser"
            return nodeid if path.rpartition("/")[2] in SINGLE else path

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real GPUs and browsers are skipped, with the reason, where there is none."""
    for item in items:
        if item.get_closest_marker("browser"):  # their waits have limits of their own, which tell more
            item.add_marker(pytest.mark.timeout(1200))
    if any(item.get_closest_marker("gpu") for item in items):
        _mark(items, "gpu", "" if _real_nvml() else "there is no NVIDIA driver here (libnvidia-ml.so.1)")
    if (
        any(item.get_closest_marker("browser") for item in items)
        and os.environ.get("WORKBENCH_REQUIRE_BROWSER") != "1"
    ):
        _mark(
            items,
            "browser",
            "" if _chromium() else "there is no Chromium here; `playwright install chromium` gets one",
        )


def _mark(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if reason and item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def _real_nvml() -> bool:
    if pynvml.nvmlLib is not None:
        return not getattr(pynvml.nvmlLib, "simulated", False)
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return bool(library.nvmlInit_v2() == 0 and library.nvmlShutdown() == 0)


def _chromium() -> str | None:
    for name in CHROMIUM:
        if found := shutil.which(name):
            return found
    browsers = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    found = sorted(browsers.glob("chromium*/**/chrome")) + sorted(
        browsers.glob("chromium*/**/headless_shell")
    )
    return str(found[0]) if found else None


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program. Fails where it is asked for and not there."""
    found = _chromium()
    if found is None:
        pytest.fail(
            "WORKBENCH_REQUIRE_BROWSER=1 asks for Chromium and there is none; `playwright install chromium` "
            "gets one"
        )
    return found
