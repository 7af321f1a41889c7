"""A pytest plugin: tests that may fail on joules, and report inconclusive results.

    def test_step(energy):
        energy.assert_at_most(train_step, joules=120.0)
        energy.assert_at_most(train_step, baseline="step")     # against energy_baselines.json

    pytest --energy-update          measure the baselines and write that file, to be committed
    pytest --energy-simulate V100   on a simulated GPU, which is never taken unasked
    pytest --energy-strict          what cannot be reported fails too

Without a GPU that counts its energy these tests are skipped. Three verdicts: worse (fails), not worse,
inconclusive (passes, and is in the table at the end).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workbench.measurement.meter import Meter

FILE = "energy_baselines.json"
RUNS, BASELINE_RUNS = 10, 30
SURE = 3e-5  # probability of calling an unchanged step worse
WORTH = 0.05  # a baseline is not worse when it is sure to be within this
PROPERTY = "energy"


@dataclass(frozen=True)
class EnergyBaseline:
    """A baseline of a piece of work on one GPU model: mean and standard deviation of log joules over runs."""

    log_j: float
    log_sd: float
    runs: int


@dataclass(frozen=True)
class EnergyVerdict:
    """What came of one assertion. `energy_j` has a 95 % interval `low_j` .. `high_j`."""

    test: str
    energy_j: float
    low_j: float
    high_j: float
    limit_j: float
    verdict: str  # "worse", "not worse", "cannot report", "baseline written"
    gpu: str

    def __str__(self) -> str:
        return (f"{self.energy_j:.4g} J ({self.low_j:.4g} to {self.high_j:.4g}) against {self.limit_j:.4g} J "
                f"on {self.gpu}: {self.verdict}")


def verdict(logs: Sequence[float], limit: float | EnergyBaseline) -> str:
    """Whether runs take more than a limit in joules or than a baseline did, as far as their spread allows.

    Args:
        logs: Log joules of each run.
        limit: Joules, or a baseline; a baseline has its own spread.
    """
    from scipy.special import stdtrit

    count, mean = len(logs), sum(logs) / len(logs)
    squares = sum((each - mean) ** 2 for each in logs)
    if isinstance(limit, EnergyBaseline):
        free = count + limit.runs - 2
        squares += limit.log_sd**2 * (limit.runs - 1)
        weight, aim, allowed = 1 / count + 1 / limit.runs, limit.log_j, math.log1p(WORTH)
    else:
        free, weight, aim, allowed = count - 1, 1 / count, math.log(limit), 0.0
    error = math.sqrt(weight * squares / free)
    above = mean - aim
    if above > max(float(stdtrit(free, 1 - SURE)) * error, 0.0):
        return "worse"
    return "not worse" if above + float(stdtrit(free, 0.975)) * error <= allowed else "cannot tell"


class EnergyAsserter:
    """The `energy` fixture: asserts on the joules of a call."""

    def __init__(self, request: pytest.FixtureRequest, meter: Meter) -> None:
        self._meter, self._config, self._node = meter, request.config, request.node
        self._gpu = ", ".join(dict.fromkeys(device.name for device in meter.devices))
        self._path = Path(request.config.rootpath) / FILE

    def assert_at_most(
        self, work: Callable[[], object], *, joules: float | None = None, baseline: str | None = None
    ) -> EnergyVerdict:
        """Fail where a call of `work` surely takes more than so many joules, or than its baseline did.

        Args:
            work: A function without arguments; it is called for ten runs of two seconds.
            joules: The limit for one call.
            baseline: A name in the file of baselines, for this kind of GPU.
        """
        if (joules is None) == (baseline is None):
            raise pytest.UsageError("assert_at_most takes joules= or baseline=, one of the two")
        if joules is not None and not joules > 0:
            raise pytest.UsageError(f"joules={joules!r}: give a number above 0")
        update = baseline is not None and self._config.getoption("energy_update")
        limit: float | EnergyBaseline | None = joules
        if baseline is not None and not update:
            limit = self._known(baseline)
        logs = self._runs(work, BASELINE_RUNS if update else RUNS)
        if update:
            found = self._write(str(baseline), logs)
        else:
            assert limit is not None
            found = self._verdict(logs, limit, verdict(logs, limit))
        self._node.user_properties.append((PROPERTY, str(found)))
        strict = self._config.getoption("energy_strict")
        if found.verdict == "worse" or (strict and found.verdict == "cannot tell"):
            pytest.fail(str(found), pytrace=False)
        return found

    def _runs(self, work: Callable[[], object], count: int) -> list[float]:
        from .comparison import calls_of_a_run, countable_j, measure_calls

        calls = calls_of_a_run(self._meter, work)
        measured = [measure_calls(self._meter, self._node.name, work, calls)[0] for _ in range(count)]
        return [math.log(countable_j(each) / calls) for each in measured]

    def _verdict(self, logs: Sequence[float], limit: float | EnergyBaseline, word: str) -> EnergyVerdict:
        from ..logbook.quantities import student_half_width

        mean, sd = _moments(logs)
        half = student_half_width(sd, len(logs))
        limit_j = math.exp(limit.log_j) if isinstance(limit, EnergyBaseline) else limit
        return EnergyVerdict(self._node.nodeid, math.exp(mean), math.exp(mean - half), math.exp(mean + half),
                             limit_j, word, self._gpu)

    def _known(self, name: str) -> EnergyBaseline:
        kept = _read(self._path).get(name, {}).get(self._gpu)
        if kept is None:
            pytest.skip(f"no baseline {name!r} for {self._gpu} in {FILE}: pytest --energy-update writes it")
        try:
            return EnergyBaseline(float(kept["log_j"]), float(kept["log_sd"]), int(kept["runs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise pytest.UsageError(f"{FILE}: {name!r} for {self._gpu} cannot be read ({error}); "
                                    "pytest --energy-update writes it again") from error

    def _write(self, name: str, logs: Sequence[float]) -> EnergyVerdict:
        mean, sd = _moments(logs)
        kept = _read(self._path)
        kept.setdefault(name, {})[self._gpu] = asdict(EnergyBaseline(mean, sd, len(logs)))
        self._path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return self._verdict(logs, math.exp(mean), "baseline written")


def _moments(logs: Sequence[float]) -> tuple[float, float]:
    mean = sum(logs) / len(logs)
    return mean, math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1))


def _read(path: Path) -> dict[str, Any]:
    """The file of baselines; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{path.name} cannot be read ({error}); fix or remove it") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise pytest.UsageError(f"{path.name} has no baselines in it; remove it, and pytest --energy-update "
                                "writes it")
    return found


# what pytest calls


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("energy", "energy of GPUs (workbench)")
    group.addoption("--energy-update", action="store_true", help=f"measure baselines and write {FILE}")
    group.addoption("--energy-simulate", metavar="CARD", help="measure a simulated GPU, such as V100")
    group.addoption("--energy-strict", action="store_true", help="what cannot be reported fails")


@pytest.fixture
def energy(request: pytest.FixtureRequest) -> EnergyAsserter:
    """Asserts on the energy of a piece of work; skips where no GPU counts its energy."""
    from workbench.device.discovery import why_no_gpu
    from workbench.errors import WorkbenchError
    from workbench.measurement import session

    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("tests that run side by side draw from one GPU; give those of energy a run with -n 0")
    card = request.config.getoption("energy_simulate")
    try:
        if card and not any(device.simulated for device in session.current().devices):
            session.simulate(card)
        meter = session.current().meter_or_clock(None)
    except WorkbenchError as error:
        raise pytest.UsageError(f"--energy-simulate {card}: {error}") from error
    if not meter.devices:
        pytest.skip(f"no GPU to measure ({why_no_gpu()}); --energy-simulate V100 takes a simulated one")
    return EnergyAsserter(request, meter)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = {report.nodeid: report for each in terminalreporter.stats.values() for report in each
               if getattr(report, "user_properties", None)}
    lines = [f"{node}: {value}" for node, report in reports.items()
             for name, value in report.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("energy")
        for line in lines:
            terminalreporter.write_line(line)
