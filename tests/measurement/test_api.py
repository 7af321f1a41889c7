"""For scripts: a block, a function, a call, a loop; measured as they are, changed in nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

import pytest

import workbench
from workbench.errors import StoreError
from workbench.logbook import keeping
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.measurement.meter import Meter
from workbench.records import Measurement
from workbench.simulation.machine import Machine

Simulated = Callable[..., Machine]


def work(machine: Machine, power_w: float, seconds: float) -> None:
    machine.state.publish(0, machine.clock(), [], (power_w, 1380, 877, 1.0, 0.5, 0))
    machine.step(seconds)


def test_a_block_is_measured(machine: Machine) -> None:
    with workbench.measure("epoch") as result:
        work(machine, 200.0, 2.0)
    machine.step(0.2)
    assert result.energy_j == pytest.approx(400.0, rel=0.01)
    assert result.measurement.label == "epoch"


def test_a_result_prints_its_measurement(machine: Machine) -> None:
    with workbench.measure("epoch") as result:
        assert "running" in repr(result)
        machine.step(2.0)
    assert str(result).startswith("epoch: ")
    assert re.search("J.*5 %.*2 s", str(result))
    assert "simulated" in str(result)


def test_a_measurement_that_cannot_be_stored_is_a_warning(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, "save", full)
    with workbench.measure("epoch"):
        machine.step(2.0)
    with pytest.warns(RuntimeWarning, match="the disk is full"):
        keeping.writer().flush()


def test_the_same_measure_serves_again(machine: Machine) -> None:
    each = workbench.measure("epoch")
    for seconds in (1.0, 2.0):
        with each as result:
            work(machine, 100.0, seconds)
        machine.step(0.2)
        assert result.time_s == pytest.approx(seconds)


def test_an_error_goes_through_and_is_kept_in_the_outcome(machine: Machine) -> None:
    with pytest.raises(KeyError), workbench.measure() as result:  # noqa: PT012
        work(machine, 100.0, 1.0)
        raise KeyError("x")
    assert result.measurement.outcome == "error"


def test_a_bare_decorator_measures_every_call(machine: Machine) -> None:
    @workbench.measure
    def epoch(seconds: float, *, power_w: float = 100.0) -> str:
        """One epoch."""
        work(machine, power_w, seconds)
        machine.step(0.0)
        return "done"

    assert epoch(1.0, power_w=200.0) == "done"
    machine.step(0.2)
    assert (epoch.__name__, epoch.__doc__) == ("epoch", "One epoch.")
    assert inspect.signature(epoch).parameters.keys() == {"seconds", "power_w"}
    assert epoch.measurement.label.endswith("epoch")
    assert epoch.measurement.time_s == pytest.approx(1.0)
    epoch(3.0)
    assert epoch.measurement.time_s == pytest.approx(3.0)


def test_a_decorator_with_a_label_names_the_measurement(machine: Machine) -> None:
    @workbench.measure("warm-up")
    def run() -> None:
        work(machine, 100.0, 1.0)

    run()
    assert run.measurement.label == "warm-up"


def test_a_decorated_function_that_calls_itself_measures_the_whole(machine: Machine) -> None:
    @workbench.measure
    def twice(depth: int) -> None:
        work(machine, 100.0, 1.0)
        if depth:
            twice(depth - 1)

    twice(2)
    assert twice.measurement.time_s == pytest.approx(3.0)


def test_a_decorated_function_that_fails_keeps_its_measurement(machine: Machine) -> None:
    @workbench.measure
    def train() -> None:
        work(machine, 100.0, 1.0)
        raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        train()
    assert train.measurement.outcome == "error"


def test_a_loop_is_measured_iteration_by_iteration(machine: Machine) -> None:
    observed = []
    for batch in (loop := workbench.track(["a", "b"], "epoch")):
        work(machine, 100.0, 1.0)
        observed.append(batch)
    machine.step(0.2)
    assert observed == ["a", "b"]
    assert loop.iterations["energy_j"].to_list() == pytest.approx([100.0, 100.0], rel=0.02)
    assert loop.measurement.label == "epoch"


def test_a_loop_over_nothing_has_no_iterations(machine: Machine) -> None:
    loop = workbench.track([])
    assert list(loop) == []
    assert loop.iterations.height == 0
    assert loop.measurement.time_s == 0.0


# whatever is wrong, a training goes on


def a_training() -> list[Measurement]:
    """Everything that a script may use, as it uses it; what the block, the call and the loop have cost."""
    with workbench.measure("block") as result:
        workbench.step()
    assert result.time_s >= 0

    @workbench.measure
    def epoch() -> str:
        with workbench.phase("evaluation"):
            return "done"

    assert epoch() == "done"
    batches = []
    for batch in (loop := workbench.track([1, 2], "loop")):
        batches.append(batch)
        workbench.step()
    assert batches == [1, 2]
    assert loop.iterations.height <= 2
    return [result.measurement, epoch.measurement, loop.measurement]  # type: ignore[attr-defined]


@pytest.fixture
def no_session(simulated: Simulated) -> Iterator[Simulated]:
    sessions.current().close()
    yield simulated
    sessions.current().close()


@pytest.mark.filterwarnings("ignore:only the time is measured:RuntimeWarning")
@pytest.mark.parametrize("code", [9, 10, 12, 15, 999])
def test_a_driver_that_does_not_start_costs_the_energy_and_not_the_training(
    no_session: Simulated, code: int
) -> None:
    no_session("V100").state.set_header("driver_fault", code)
    for m in a_training():
        assert (m.energy_j, m.outcome) == (None, "ok")
        assert m.notes[0]


@pytest.mark.filterwarnings("ignore:only the time is measured:RuntimeWarning")
@pytest.mark.parametrize("broken", ["recover", "devices", "Recorder", "Meter"])
@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No usable temporary directory found"), RuntimeError("can't start new thread")],
)
def test_a_session_that_cannot_be_made_costs_the_energy_and_not_the_training(
    no_session: Simulated, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    no_session("V100", scale=4.0)

    def fails(*_: object, **__: object) -> None:
        raise error

    if broken == "Meter":  # one that is made and fails later
        for name in ("open", "measure", "count", "energies"):
            monkeypatch.setattr(Meter, name, fails)
    else:
        monkeypatch.setattr(sessions, broken, fails)
    harmless = isinstance(error, OSError) and broken in ("recover", "Recorder")
    for m in a_training():
        assert m.time_s >= 0
        assert (m.energy_j is not None) == harmless
        assert harmless or type(error).__name__ in m.notes[0]


def test_a_meter_that_fails_on_the_way_leaves_the_time_and_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workbench.measure("epoch") as result:
        work(machine, 100.0, 1.0)
        monkeypatch.setattr(Meter, "close", lambda *_: 1 / 0)
    m = result.measurement
    assert (m.label, m.energy_j, m.outcome) == ("epoch", None, "ok")
    assert "ZeroDivisionError" in m.notes[0]


@pytest.mark.parametrize("broken", [(Meter, "measure"), (Store, "save")])
def test_a_panic_that_is_no_exception_costs_the_measurement_and_not_the_training(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, broken: tuple[type, str]
) -> None:
    """As Polars has it where there are no threads left."""

    class Panic(BaseException):
        pass

    def panics(*_: object, **__: object) -> None:
        raise Panic("no thread")

    monkeypatch.setattr(*broken, panics)
    with workbench.measure("epoch") as result:
        work(machine, 100.0, 1.0)
    keeping.writer().flush()
    assert result.measurement.time_s >= 0
    with workbench.measure("epoch"):  # the log goes on
        pass


def test_a_simulated_machine_that_goes_away_stops_no_loop(machine: Machine) -> None:
    observed = []
    for batch in (loop := workbench.track(range(3), "epoch")):
        if batch == 1:
            machine.close()
            machine.state.close()
        observed.append(batch)
    assert observed == [0, 1, 2]
    assert loop.measurement.time_s >= 0


@pytest.mark.parametrize("label", ["tr\udce9n.sh", "\ud800", 5])
def test_any_label_can_be_stored(machine: Machine, label: str) -> None:
    with workbench.measure(label) as result:
        pass
    result.measurement.label.encode()
    Store().save(result.measurement)
    assert (
        Store().find(label).id == result.measurement.id
        if isinstance(label, str)
        else result.measurement.label == "5"
    )
