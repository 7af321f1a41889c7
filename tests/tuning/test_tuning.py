"""A running job is tuned on a simulated GPU: measured, tried, held. The GPU is restored from every state and
every fault.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench
from workbench.device import lease
from workbench.errors import UsageError
from workbench.experiments import harmonic_fit
from workbench.experiments.iteration_sources import Counter
from workbench.logbook.store import OBSERVATIONS, Store
from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.search.clocks.descent import Plan
from workbench.search.objective import EnergyDelay, ZeusCost, check_slowdown
from workbench.search.space import SettingSpace, knobs
from workbench.search.surrogates.predictor import Prediction
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning.driver import TunerThread
from workbench.tuning.options import objective_text
from workbench.tuning.results import OBJECTIVES, Saved, TuningResult
from workbench.tuning.state_machine import Tuner, latest, running
from workbench.tuning.tuned_job import TunedJob, Workplace
from workbench.tuning.tuner_phase import Interrupted

Simulated = Callable[..., Machine]


@dataclass
class Lab:
    """A stepped machine with the session's meter on it."""

    machine: Machine
    states: list[str] = field(default_factory=list)

    @property
    def device(self):  # type: ignore[no-untyped-def]
        return sessions.current().devices[0]

    def tuner(self, **options: object) -> Tuner:
        return Tuner(sessions.current().meter, **{"model": False, **options})  # type: ignore[arg-type]

    def train(
        self,
        tuner: Tuner | None,
        iterations: int,
        *,
        workload: str = "imagenet",
        batch_size: int | None = 256,
        marked: bool = True,
        seed: int = 1,
        until: Callable[[Tuner], bool] | None = None,
        each: Callable[[int], None] | None = None,
        **options: Any,
    ) -> TrainingJob:
        """Train while the clock advances a tuner; stops early where `until` is true."""
        job = TrainingJob(
            workload,
            batch_size,
            machine=self.machine,
            iterations=iterations,
            evaluate=False,
            seed=seed,
            **options,
        )
        last = [-math.inf]

        def beside(_target_s: float) -> None:
            now_s = self.machine.clock()
            if tuner is not None and now_s >= last[0] + tuner.pace_s:
                last[0] = now_s
                tuner.advance()
                if not self.states or self.states[-1] != tuner.state:
                    self.states.append(tuner.state)

        self.machine.clock.on_step.append(beside)
        try:
            for batch in job:
                if marked:
                    workbench.step()
                if each is not None:
                    each(batch.iteration)
                if until is not None and tuner is not None and until(tuner):
                    break
        finally:
            self.machine.clock.on_step.remove(beside)
        return job

    def until(self, tuner: Tuner, state: str, **options: object) -> None:
        """Train until the tuner is in a state; "hold" is a setting that was chosen by measurements."""
        def there(tuner: Tuner) -> bool:
            return tuner.state == state and (state != "hold" or tuner.result.trials > 1)

        if not there(tuner):
            self.train(tuner, 2000, until=there, **options)  # type: ignore[arg-type]
        assert tuner.state == state, tuner.log.events

    def idle(self, tuner: Tuner, seconds: float) -> None:
        """Let time pass without work while the tuner advances."""
        for _ in range(round(10 * seconds)):
            self.machine.step(0.1)
            tuner.advance()

    @property
    def as_found(self) -> bool:
        setting = self.device.setting()
        return bool(setting == Setting(power_limit_w=self.device.limits.default_power_limit_w))


@pytest.fixture
def lab(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Lab]]:
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # where locks are: simulated GPUs of other runs have the same UUIDs
    made: list[Lab] = []

    def make(card: str = "A100", **options: object) -> Lab:
        sessions.current().close()
        made.append(Lab(simulated(card, stepped=True, **options)))
        _ = sessions.current().meter
        made[-1].machine.step(3.0)
        return made[-1]

    yield make
    for each in list(running()):
        each.end()
    sessions.current().close()


def costs(lab: Lab, iterations: int, tuner: Tuner | None, **options: object) -> tuple[float, float]:
    """Seconds and joules, as the card's sensors would show them, of a training with or without a tuner."""
    before_s = lab.machine.clock()
    lab.train(tuner, iterations, **options)  # type: ignore[arg-type]
    now_s = lab.machine.clock()
    return now_s - before_s, lab.machine.true_energy_j(0, before_s, now_s) * lab.machine.gain(0)


def work_of(tuner: Tuner) -> Workplace:
    assert tuner.phase.work is not None
    return tuner.phase.work


def job_of(tuner: Tuner) -> TunedJob:
    """The job that a tuner tunes, which has a baseline by now."""
    assert tuner.phase.job is not None
    return tuner.phase.job


# what it is for


def test_a_training_is_tuned_and_the_reported_saving_is_true(lab: Callable[..., Lab]) -> None:
    plain_s, plain_j = costs(lab(), 500, None)
    here = lab()
    tuner = here.tuner()
    tuned_s, tuned_j = costs(here, 500, tuner)
    result = tuner.end()
    assert set(here.states) == {"wait", "detect", "baseline", "search", "hold"}
    saved = result.saved
    assert saved is not None
    truth, slower = 1 - tuned_j / plain_j, tuned_s / plain_s - 1
    assert truth > 0.05
    assert slower < 0.05
    assert saved.share == pytest.approx(truth, abs=saved.share_uncertainty + 0.005)
    assert saved.slowdown == pytest.approx(slower, abs=saved.slowdown_uncertainty + 0.005)
    assert saved.energy_j == pytest.approx(plain_j - tuned_j, rel=0.15)
    assert result.settled_s is not None
    assert result.settled_s < 20
    assert here.as_found
    assert result.text.startswith(f"saved {100 * saved.share:.1f} ± ")
    assert "tuning included" in result.text
    assert "simulated" in result.text


def test_a_training_without_marks_is_tuned_by_its_power_trace(lab: Callable[..., Lab]) -> None:
    options = {"batch_size": 512, "marked": False}
    plain_s, plain_j = costs(lab(), 400, None, **options)
    here = lab()
    tuner = here.tuner(over="clocks")
    tuned_s, tuned_j = costs(here, 400, tuner, **options)
    result = tuner.end()
    assert result.source == "power"
    assert result.saved is not None
    assert result.saved.share == pytest.approx(
        1 - tuned_j / plain_j, abs=result.saved.share_uncertainty + 0.005
    )
    assert result.saved.share > 0.04
    assert tuned_s / plain_s < 1.06
    assert here.as_found


def test_probes_time_iterations_as_the_true_marks_do(lab: Callable[..., Lab]) -> None:
    """From the power trace alone, at any clock."""
    here = lab()
    recorder = sessions.current().recorder
    assert recorder is not None
    guess_s, errors = None, []
    for clock in (None, 1305, 1200, 1005):
        if clock is not None:
            here.device.write(Setting(sm_clock_mhz=clock))
            here.machine.step(0.5)
        job = here.train(None, 24, batch_size=512, marked=False)
        marks = np.array(job.marks)
        true_s = float(np.mean(np.diff(marks[2:-2])))
        guess_s = guess_s or true_s
        time_s, power_w = harmonic_fit.readings(recorder.rows(here.device.uuid, marks[2], marks[-3]))
        found = harmonic_fit.timed(time_s, power_w, guess_s, low=0.9, high=1.5, sd=0.15)
        assert found is not None
        errors.append(abs(found.seconds / true_s - 1))
        assert errors[-1] < 3.5 * found.sd_s / true_s
    assert max(errors) < 0.01


def test_a_jobs_own_counter_will_do(lab: Callable[..., Lab]) -> None:
    here, done = lab(), [0]
    tuner = here.tuner(progress=lambda: done[0])
    here.train(tuner, 250, marked=False, each=lambda number: done.__setitem__(0, number + 1))
    result = tuner.end()
    assert result.source == "counter"
    assert result.settled_s is not None
    assert result.saved is not None
    assert result.saved.share > -result.saved.share_uncertainty


def test_a_counter_that_fails_costs_itself_only(lab: Callable[..., Lab]) -> None:
    def broken() -> float:
        raise OSError("no such file")

    counter = Counter(broken, lambda: 0.0)
    counter.sample(1.0)
    assert "OSError" in counter.failed
    falling = iter([3.0, 2.0])
    counter = Counter(lambda: next(falling), lambda: 0.0)
    counter.sample(1.0)
    counter.sample(2.0)
    assert "now 2" in counter.failed


def test_without_iterations_the_clocks_alone_keep_the_limit(
    lab: Callable[..., Lab],
) -> None:
    plain_s, plain_j = costs(lab(), 700, None, batch_size=128, marked=False, variation=0.9, seed=3)
    here = lab()
    tuner = here.tuner(over="clocks")
    tuned_s, tuned_j = costs(here, 700, tuner, batch_size=128, marked=False, variation=0.9, seed=3)
    result = tuner.end()
    assert result.source == "clocks"
    assert any("workbench.step()" in note for note in result.notes)
    assert tuned_s / plain_s - 1 < 0.05
    saved = result.saved
    assert saved is not None
    assert saved.slowdown + saved.slowdown_uncertainty > tuned_s / plain_s - 1
    assert 1 - tuned_j / plain_j > 0.02
    assert saved.share == pytest.approx(1 - tuned_j / plain_j, abs=saved.share_uncertainty + 0.005)
    assert "estimated from the clocks" in result.text
    assert here.as_found


@pytest.mark.slow
def test_iterations_too_short_for_the_sensor_are_not_used(lab: Callable[..., Lab]) -> None:
    """0.08 s behind a sensor of 0.1 s looks like 0.39 s."""
    here = lab()
    tuner = here.tuner(over="clocks")
    here.train(
        tuner,
        900,
        workload="cifar100",
        batch_size=1024,
        marked=False,
    )
    assert tuner.result.source == "clocks", tuner.log.events
    assert tuner.result.trials == 0
    tuner.end()
    assert here.as_found


def test_gpoeos_search_runs_in_the_same_loop(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(search="gpoeo", over="clocks")
    here.until(tuner, "hold")
    assert tuner.result.trials >= 3
    tuner.change(objective="ed2p")
    here.train(tuner, 100)
    assert not tuner.refused
    tuner.end()
    assert here.as_found


def test_gpoeos_search_begins_where_a_model_of_the_gpu_predicts(lab: Callable[..., Lab]) -> None:
    here = lab()

    class Model:
        """A model that predicts 1200 MHz as the best clock."""

        gpu = here.device.name

        def predict(self, values: dict[str, float], space: SettingSpace, power_w: float) -> Prediction:
            assert values["gpu_utilisation"] > 0.3
            assert 100 < power_w < 400
            lower = np.log([1410 / (each.sm_clock_mhz or 1410) for each in space.settings])
            return Prediction(space, knobs(space.settings).with_columns(
                log_time=pl.Series(0.29 * lower),  # 1200 MHz is 4.8 % slower
                log_energy=pl.Series(-lower),
            ), "a model of a test")

    tuner = here.tuner(search="gpoeo", over="clocks", model=Model())
    here.until(tuner, "search")
    assert tuner.view().model == "a model of a test"
    assert work_of(tuner).gpus.current.sm_clock_mhz == pytest.approx(1200, abs=20)
    tuner.end()


def test_a_job_that_ends_before_its_iterations_are_known_reports_what_its_clocks_show(
    lab: Callable[..., Lab],
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.train(tuner, 30, batch_size=512, marked=False, until=lambda t: t.log.elapsed_s > 6.0)
    assert tuner.log.found is None
    result = tuner.end()
    assert (result.source, result.settled_iterations) == ("clocks", None)
    assert result.saved is not None
    assert result.saved.slowdown_uncertainty > 0.01
    assert here.as_found


# the bound


def test_a_trial_beyond_the_slowdown_limit_is_ended_immediately(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    method = job_of(tuner).method
    slowest = int(np.argmax(method.rungs.z))
    slow = method.rungs.settings[slowest]
    wanted = [Plan(slowest, 20.0, 40, "trial", "a setting that is far too slow", 1.2 * method.unit_s)]
    real = method.next
    monkeypatch.setattr(method, "next", lambda now_s: wanted.pop() if wanted else real(now_s))
    at_slow_s: list[float] = []

    def watch(_: object) -> None:
        if work_of(tuner).gpus.current == slow:
            at_slow_s.append(here.machine.clock())

    here.machine.clock.on_step.append(watch)
    here.train(tuner, 60)
    here.machine.clock.on_step.remove(watch)
    assert at_slow_s
    assert work_of(tuner).gpus.current != slow
    assert at_slow_s[-1] - at_slow_s[0] < 8.0  # of the 20 s and 40 iterations that it was to take
    tuner.end()


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0.0, 0.02])
def test_the_bound_holds_for_the_whole_job(lab: Callable[..., Lab], bound: float) -> None:
    plain_s, _ = costs(lab(), 400, None)
    here = lab()
    tuner = here.tuner(max_slowdown=bound)
    tuned_s, _ = costs(here, 400, tuner)
    tuner.end()
    assert tuned_s / plain_s - 1 <= bound + 0.008


@pytest.mark.slow
def test_limits_above_the_one_that_was_found_are_never_set(lab: Callable[..., Lab]) -> None:
    here = lab()
    here.device.write(Setting(power_limit_w=300.0))
    tuner = here.tuner(over="power")
    here.train(tuner, 300)
    assert max(each.power_limit_w or 0 for each in work_of(tuner).gpus.space.settings) == 300.0
    tuner.end()
    assert here.device.setting().power_limit_w == 300.0


# what happens while a setting is held


@pytest.mark.slow
def test_another_job_is_noticed_and_tuned(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "hold")
    here.train(tuner, 30, seed=2)
    trials, period_s = tuner.result.trials, tuner.view().period_s
    assert period_s is not None
    assert tuner.result.retuned == 0
    here.train(tuner, 400, workload="imagenet", batch_size=512)
    assert any("work has changed" in text for _, text in tuner.log.events), tuner.log.events
    assert tuner.result.retuned == 1
    assert tuner.result.trials > trials
    assert abs(math.log((tuner.view().period_s or 0.0) / period_s)) > 0.1
    saved = tuner.end().saved  # of both jobs
    assert saved is not None
    assert saved.time_s > 0.8 * tuner.result.elapsed_s
    assert here.as_found


@pytest.mark.slow
def test_another_job_without_marks_is_noticed_by_its_power(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "hold", batch_size=512, marked=False)
    here.train(tuner, 15, batch_size=512, marked=False, seed=2)
    assert tuner.result.retuned == 0
    from_s = here.machine.clock() - tuner.log.begun_s
    here.train(tuner, 60, workload="librispeech", batch_size=192, marked=False)
    noticed = [at_s for at_s, text in tuner.log.events if "work has changed" in text]
    assert noticed, tuner.log.events
    assert noticed[0] - from_s < 40.0
    tuner.end()
    assert here.as_found


@pytest.mark.slow
def test_an_evaluation_is_no_other_job(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "hold")
    here.train(tuner, 300, checkpoint_every=60, checkpoint_s=4.0)
    assert tuner.result.retuned == 0
    tuner.end()


@pytest.mark.slow
def test_iterations_that_grow_or_vary_are_no_other_job(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "hold", variation=0.2)
    here.train(tuner, 400, variation=0.2, seed=2)
    assert tuner.result.retuned == 0, tuner.log.events
    tuner.end()


def test_a_pause_before_the_first_measurement_loses_no_iterations(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "baseline")
    here.idle(tuner, 6.0)  # the job writes a checkpoint
    here.until(tuner, "search")
    assert "detect" not in here.states[here.states.index("baseline") :]
    tuner.end()


@pytest.mark.slow
def test_an_idle_gpu_is_left_as_it_is_and_reported(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "hold")
    here.train(tuner, 60)
    here.idle(tuner, 2.0)
    held = work_of(tuner).gpus.current
    here.idle(tuner, 20.0)
    assert "is idle" in tuner.text
    assert work_of(tuner).gpus.current == held
    before = tuner.result.saved
    here.idle(tuner, 20.0)
    assert tuner.result.saved == before
    here.train(tuner, 60)
    assert "is idle" not in tuner.text
    assert any(text.endswith("works again") for _, text in tuner.log.events)
    assert tuner.result.retuned == 0
    after = tuner.end().saved
    assert before is not None
    assert after is not None
    assert after.time_s < tuner.result.elapsed_s - 30.0  # the pause is on neither side
    assert after.slowdown < 0.05


def test_other_processes_on_the_gpu_are_named_and_waited_for(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "hold")
    real = type(here.device).processes
    stranger = workbench.records.Process(1, "init")
    here.device.processes = lambda graphics=False: () if graphics else (stranger,)
    here.train(tuner, 60)
    assert "init (1)" in tuner.text
    assert here.as_found  # the neighbour is not slowed down
    here.device.processes = lambda graphics=False: real(here.device, graphics=graphics)
    here.train(tuner, 150)
    assert any("alone again" in text for _, text in tuner.log.events)
    assert tuner.result.retuned == 0
    assert not here.as_found
    tuner.end()


def test_a_limit_that_another_program_sets_is_left_alone(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="power")
    here.until(tuner, "hold")
    here.device.write(Setting(power_limit_w=222.0))
    here.train(tuner, 60)
    assert tuner.state == "refused"
    assert "another program" in tuner.refused
    assert here.device.setting().power_limit_w == 222.0


@pytest.mark.slow
def test_a_long_block_notices_a_limit_of_another_program_too(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "hold")
    tuner.hold_here()
    here.train(tuner, 900)  # blocks last for 8 % of that by now
    here.device.write(Setting(power_limit_w=222.0))
    begun_s = here.machine.clock()
    here.train(tuner, 60, until=lambda t: t.ended)
    assert "another program" in tuner.refused
    assert here.machine.clock() - begun_s < 10.0


def test_a_driver_that_accepts_no_setting_ends_the_search_early(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="power")
    here.until(tuner, "baseline")
    here.machine.inject("nvmlDeviceSetPowerManagementLimit", 2)  # invalid argument
    here.train(tuner, 30)
    assert tuner.state == "refused"
    assert "no setting takes effect" in tuner.refused
    assert sum("cannot be set" in text for _, text in tuner.log.events) <= 6
    tuner.end()
    assert here.as_found


# every state and every fault


def rights(machine: Machine) -> None:
    for function in ("SetPowerManagementLimit", "SetGpuLockedClocks", "SetMemoryLockedClocks"):
        machine.inject(f"nvmlDevice{function}", 4)


FAULTS: dict[str, Callable[[Machine], None]] = {
    "lost GPU": lambda machine: machine.lose(0), "lost rights": rights,
    "counter stuck": lambda machine: machine.state.set_card(0, "counter_update_s", 1e6),
    "driver busy": lambda machine: machine.inject("nvmlDeviceSetGpuLockedClocks", 10, times=3),
}


CASES = [  # the others take the ways of these
    pytest.param(state, fault, marks=[] if state == "hold" or fault == "lost GPU" else pytest.mark.slow)
    for fault in FAULTS
    for state in ("wait", "detect", "baseline", "search", "hold", "interrupted")
]


@pytest.mark.parametrize(("state", "fault"), CASES)
def test_the_gpu_comes_back_from_every_state_and_fault(
    lab: Callable[..., Lab], state: str, fault: str
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    if state == "interrupted":
        here.until(tuner, "hold")
        here.idle(tuner, 15.0)
        assert isinstance(tuner.phase, Interrupted)
    else:
        here.until(tuner, state)
    FAULTS[fault](here.machine)
    here.train(tuner, 30)  # which never hears of it
    result = tuner.end()
    here.machine.state.clear_faults()
    here.machine.lose(0, 0)
    if (
        not here.as_found
    ):  # the driver did not let it be put back: that is said, and whoever holds it next does it
        assert result.not_restored
        with lease.applied(here.device, Setting(power_limit_w=here.device.limits.default_power_limit_w)):
            pass
    assert here.as_found
    if fault == "lost GPU":
        assert tuner.state == "refused"
        assert "lost" in tuner.refused
    assert tuner not in running()
    assert tuner.end() is not None  # once more does nothing


@pytest.mark.parametrize("state", ["wait", "detect", "baseline", "search", "hold"])
def test_a_cell_that_ends_leaves_nothing_behind(lab: Callable[..., Lab], state: str) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, state)
    result = tuner.end()
    assert result.state == state
    assert here.as_found
    assert tuner.advance() == "done"
    assert (result.settled_s is None) == (state in ("wait", "detect"))
    if state in ("wait", "detect"):
        assert result.text.startswith("not tuned: ")


def test_an_interrupt_leaves_nothing_behind(lab: Callable[..., Lab]) -> None:
    here = lab()

    def stop(number: int) -> None:
        if number == 60:
            raise KeyboardInterrupt

    tuning = workbench.tune(model=False)

    def cell() -> None:
        with tuning:
            for batch in TrainingJob("imagenet", 256, machine=here.machine, iterations=200, evaluate=False):
                workbench.step()
                stop(batch.iteration)

    with pytest.raises(KeyboardInterrupt):
        cell()
    assert here.as_found
    assert tuning.result.trials >= 1


def test_an_energy_counter_that_does_not_move_is_reported(lab: Callable[..., Lab]) -> None:
    here = lab()
    here.machine.state.set_card(0, "counter_update_s", 1e6)
    tuner = here.tuner()
    here.train(tuner, 120)
    assert tuner.state == "refused"
    assert "energy could not" in tuner.refused
    assert here.as_found


# refusals


def test_without_rights_the_job_runs_untuned_and_a_remedy_is_given(lab: Callable[..., Lab]) -> None:
    here = lab(privileged=False)
    tuner = here.tuner()
    here.train(tuner, 40)
    assert tuner.state == "refused"
    assert "root" in tuner.refused
    assert here.as_found
    assert tuner.end().text.startswith("not tuned: ")


def test_a_card_without_settable_clocks_suggests_the_power_limit(lab: Callable[..., Lab]) -> None:
    here = lab("P100")
    tuner = here.tuner(over="clocks")
    here.train(tuner, 60, batch_size=64)
    assert tuner.state == "refused"
    assert "choose power" in tuner.refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_slowdown": -0.1}, "share from 0 to 1"),
        ({"max_slowdown": 5}, r"did you mean 0\.05"),
        ({"max_slowdown": 150}, "share from 0 to 1"),
        ({"max_slowdown": math.nan}, "share from 0 to 1"),
        ({"objective": "joy"}, "energy, edp, ed2p"),
        ({"over": "fans"}, "power, clocks, both"),
        ({"search": "guess"}, "choose model-guided"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    lab: Callable[..., Lab], options: dict[str, object], text: str
) -> None:
    here = lab()
    with pytest.raises(UsageError, match=text):
        here.tuner(**options)


def test_a_process_without_gpus_runs_untuned_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.current().close()
    monkeypatch.setattr(sessions, "devices", list)
    with pytest.warns(RuntimeWarning, match="not tuned"), workbench.tune() as tuning:
        pass
    assert tuning.result.state == "refused"


def test_a_model_that_cannot_be_read_is_one_sentence(lab: Callable[..., Lab], tmp_path) -> None:  # type: ignore[no-untyped-def]
    broken = tmp_path / "broken.clocks.json.gz"
    broken.write_bytes(b"no model")
    here = lab()
    tuner = here.tuner(model=broken, search="gpoeo")
    here.until(tuner, "search")
    assert any("without a model" in text for _, text in tuner.log.events), tuner.log.events
    tuner.end()


# a person at the controls


def test_a_person_can_pause_step_and_hold(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    with pytest.raises(UsageError, match="nothing to hold"):
        tuner.hold_here()
    here.until(tuner, "search")
    tuner.pause()
    here.train(tuner, 20)
    assert tuner.view().paused
    assert "paused" in tuner.text
    before = tuner.view().trials.height
    tuner.step_once()
    here.train(tuner, 60)
    assert tuner.view().trials.height > before
    assert tuner.view().paused
    tuner.hold_here()
    here.train(tuner, 60)
    assert tuner.state == "hold"
    assert tuner.view().trials.height == before + 1
    tuner.resume()
    here.train(tuner, 60)
    assert tuner.view().trials.height > before + 1
    tuner.stop()
    assert tuner.state == "done"
    assert here.as_found
    with pytest.raises(UsageError, match="has ended"):
        tuner.pause()


def test_hold_here_holds_the_best_measured_setting_within_the_bound(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks", max_slowdown=0.1)
    here.until(tuner, "search")
    good = pl.col("energy_ratio") < 0.95, pl.col("time_ratio") < 1.09
    here.train(tuner, 400, until=lambda t: bool(t.view().trials.filter(*good).height))
    tuner.hold_here()
    here.train(tuner, 20)
    view = tuner.view()
    tried = view.trials.filter(pl.col("sm_clock_mhz") == view.current.sm_clock_mhz, pl.col("time_ratio") < 1.11)
    assert tried.height
    assert tried["energy_ratio"][-1] < 0.95
    tuner.end()


@pytest.mark.slow
def test_another_slowdown_limit_keeps_the_measurements(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks", max_slowdown=0.02)
    here.until(tuner, "hold")
    tight, trials = tuner.view().choice, tuner.view().trials
    tuner.change(max_slowdown=0.15)
    here.train(tuner, 300)
    wide = tuner.view().choice
    assert tight is not None
    assert wide is not None
    assert wide.energy_ratio < tight.energy_ratio - 0.02
    assert tuner.view().trials.head(trials.height).equals(trials)
    tuner.change(objective="ed2p", max_slowdown=None)
    assert job_of(tuner).method.objective == EnergyDelay(2)
    assert tuner.view().objective == "ed2p"
    assert tuner.view().max_slowdown is None
    tuner.end()


def test_a_view_can_be_had_in_every_state(lab: Callable[..., Lab]) -> None:
    here, seen = lab(), {}
    tuner = here.tuner(label="train")

    def look(_number: int) -> None:
        seen[tuner.state] = tuner.view()

    look(0)
    here.train(tuner, 120, each=look)
    assert {"wait", "detect", "search", "hold"} <= set(seen)
    states = ("wait", "detect", "baseline", "search", "hold", "done", "refused")
    assert set(seen) <= set(states)
    assert all(view.text and view.label == "train" for view in seen.values())
    view = seen["search"]
    assert view.belief is not None
    assert {"time_ratio", "energy_ratio", "p_allowed"} <= set(view.belief.columns)
    assert view.saved is not None
    assert view.settled_s is not None
    assert tuner.view().trials.head(view.trials.height).equals(view.trials)
    assert latest() is tuner
    tuner.end()


@pytest.mark.parametrize("stop", [SystemExit("like Ctrl-C"), ValueError("no such thing")])
def test_the_gpu_is_restored_before_the_results_are_stored(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    here, found = lab(), []

    def keep(*_: object) -> None:
        found.append(here.as_found)
        raise stop

    monkeypatch.setattr("workbench.tuning.state_machine.keep", keep)
    tuner = here.tuner(label="train")
    here.until(tuner, "hold")
    assert not here.as_found
    if isinstance(stop, Exception):
        tuner.end()
    else:
        with pytest.raises(SystemExit):
            tuner.end()
    assert found == [True]
    assert tuner not in running()


def test_a_script_tunes_its_loop(lab: Callable[..., Lab]) -> None:
    here = lab()
    with workbench.tune(0.05, model=False, label="loop") as tuning:
        for _ in TrainingJob("imagenet", 256, machine=here.machine, iterations=250, evaluate=False):
            workbench.step()
    assert tuning.result.settled_s is not None
    assert tuning.result.saved is not None
    assert tuning.result.saved.share > 0
    assert str(tuning.result) == tuning.result.text
    assert str(tuning.result.saved).startswith("Saved: energy ")
    assert ", uncertainty" not in str(tuning.result.saved)
    assert here.as_found
    with pytest.raises(UsageError, match="has not begun"):
        _ = workbench.tune().result
    with pytest.raises(UsageError, match="share from 0 to 1"):
        workbench.tune(5.0)


def test_a_tuner_thread_ends_its_tuner(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    before = len(here.machine.clock.on_step)
    driver = TunerThread(tuner)
    assert len(here.machine.clock.on_step) == before + 1
    driver.end()
    driver.end()
    assert len(here.machine.clock.on_step) == before
    assert tuner.ended


# results


def test_a_bound_is_a_share() -> None:
    assert check_slowdown(None) is None
    assert check_slowdown(0) == 0.0
    assert check_slowdown(1) == 1.0


def test_a_result_reports_no_saving_within_its_error() -> None:
    saved = Saved(5.0, 40.0, 0.001, 0.008, 0.01, 0.008, 100.0)
    text = TuningResult("hold", Setting(sm_clock_mhz=1200), saved, 12.0, 30, "marks").text
    assert text.startswith("no measurable saving")
    assert re.search("12 s .* 1200 MHz", text)
    assert TuningResult("detect", reason="unmarked").text == "not tuned: unmarked"


# what may go wrong beside it


def test_nothing_is_kept_for_a_tuner_that_has_ended(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "hold")
    tuner.end()
    assert latest() is tuner  # a panel may still look at it
    assert tuner.log.ledger.oldest_s == math.inf
    assert tuner.result.saved is not None


def test_a_pause_in_the_search_is_no_tuning(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    tuner.pause()
    here.train(tuner, 5)
    before, begun_s = tuner.view(), here.machine.clock()
    here.train(tuner, 150)
    paused_s = here.machine.clock() - begun_s
    tuner.resume()
    here.train(tuner, 10)
    after = tuner.view()
    assert after.iterations > before.iterations + 130  # what it took is known all the same
    assert after.spent_s < before.spent_s + 0.5 * paused_s
    assert after.saved is not None
    assert after.saved.time_s > 0.8 * paused_s
    tuner.end()


def test_a_driver_that_is_busy_for_a_moment_costs_a_moment(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    here.machine.inject("nvmlDeviceSetGpuLockedClocks", 10, times=3)
    here.train(tuner, 150)
    assert not tuner.refused
    assert work_of(tuner).gpus.current == Setting() or not here.as_found
    assert tuner.result.trials > 2
    assert tuner.result.retuned == 0
    tuner.end()
    assert here.as_found


def test_a_driver_that_is_busy_at_the_start_is_asked_again(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.machine.inject("nvmlDeviceSetGpuLockedClocks", 10, times=2)
    here.train(tuner, 60)
    assert not tuner.refused, tuner.refused
    assert tuner.state in ("baseline", "search", "hold")
    tuner.end()
    assert here.as_found


def test_a_baseline_is_of_the_job_alone(lab: Callable[..., Lab]) -> None:
    """Others that were there while its iterations were looked for."""
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "detect")
    real = type(here.device).processes
    here.device.processes = lambda graphics=False: (workbench.records.Process(1, "init"),)
    here.train(tuner, 60)
    assert "other processes" in tuner.text
    here.device.processes = lambda graphics=False: real(here.device, graphics=graphics)
    alone_s: list[float] = []

    def beside(_: object) -> None:
        if not alone_s and not isinstance(tuner.phase, Interrupted):
            alone_s.append(here.machine.clock())

    here.machine.clock.on_step.append(beside)
    here.train(tuner, 100)
    here.machine.clock.on_step.remove(beside)
    trials = tuner.view().trials
    assert trials["kind"][0] == "baseline"
    assert trials["at_s"][0] >= alone_s[0] - tuner.log.begun_s - 0.2
    tuner.end()


def test_a_failing_progress_counter_is_reported(lab: Callable[..., Lab]) -> None:
    here = lab()
    count = [0]

    def progress() -> float:
        if count[0] > 60:
            raise RuntimeError("gone")
        return float(count[0])

    def each(_number: int) -> None:
        count[0] += 1

    tuner = here.tuner(progress=progress)
    here.train(tuner, 120, marked=False, each=each)
    assert any("RuntimeError: gone" in text for _, text in tuner.log.events), tuner.log.events
    tuner.end()


def test_the_held_setting_is_the_reported_one(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    tuner.hold_here()  # before any probe: the default setting is the best that was measured
    here.train(tuner, 40)
    choice = tuner.view().choice
    assert choice is not None
    assert work_of(tuner).gpus.own(choice.setting) == work_of(tuner).gpus.current == Setting()
    held = work_of(tuner).gpus.current
    result = tuner.end()
    assert result.setting is not None
    assert work_of(tuner).gpus.own(result.setting) == held


def test_a_lost_gpu_of_others_is_no_reason(lab: Callable[..., Lab]) -> None:
    here = lab("A100,A100")
    tuner = here.tuner()
    here.machine.lose(1)
    here.train(tuner, 60)
    assert not tuner.refused
    tuner.end()


def test_zeus_cost_with_another_eta_is_not_described_as_half_and_half() -> None:
    assert objective_text(ZeusCost(0.9, 300.0)) != OBJECTIVES["zeus"]


def test_a_setting_that_was_refused_is_not_tried_again_for_another_bound(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    real = work_of(tuner).gpus.put
    refused: list[Setting] = []

    def put(setting: Setting) -> None:
        if setting not in ({Setting()} | {work_of(tuner).gpus.current}) and not refused:
            refused.append(setting)
        if setting in refused:
            refused.append(setting)
            raise workbench.errors.NotSupported("said by a test")
        real(setting)

    monkeypatch.setattr(work_of(tuner).gpus, "put", put)
    here.train(tuner, 100)
    tuner.change(max_slowdown=0.06)
    here.train(tuner, 100)
    assert len(refused) == 2
    assert not tuner.refused
    tuner.end()


def test_a_result_ends_with_its_notes() -> None:
    saved = Saved(1200.0, 300.0, 0.12, 0.03, 0.021, 0.004, 240.0)
    result = TuningResult("hold", None, saved, 12.0, 30, "marks", notes=("another card",))
    assert result.text.endswith("; another card")


def test_a_model_of_the_wrong_type_is_refused_before_anything_runs(lab: Callable[..., Lab]) -> None:
    here = lab()
    with pytest.raises(UsageError, match="no model"):
        here.tuner(model=7)


def test_a_job_that_begins_on_one_gpu_after_the_other_is_tuned_on_both(lab: Callable[..., Lab]) -> None:
    here = lab("A100,A100")
    tuner = here.tuner()
    begun_s = here.machine.clock()
    works = {0: 0.0, 1: 1.5}

    def busy(
        recorder: object, devices: list[workbench.device.protocol.Device], now_s: float
    ) -> tuple[object, ...]:
        return tuple(each for each in devices if now_s - begun_s > 2.0 + works[each.index])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.tuning.phases.busy_gpus", busy)
        for _ in range(120):
            here.machine.step(0.1)
            tuner.advance()
    assert len(work_of(tuner).gpus.devices) == 2
    tuner.end()


def test_a_gpu_is_tuned_by_one_at_a_time(lab: Callable[..., Lab]) -> None:
    """A cell that is tuned may run a script that tunes: two would take each other's settings for their
    own.
    """
    here = lab()
    first, second = here.tuner(label="the cell"), here.tuner()
    here.until(first, "search")
    second.advance()
    assert second.state == "refused"
    assert "(the cell)" in second.refused
    here.until(first, "hold")
    assert first.end().settled_s is not None
    assert here.as_found


@pytest.mark.parametrize(
    "options", [{"over": "fans"}, {"search": "guess"}, {"progress": 5}, {"model": 7}]
)
def test_bad_options_of_a_script_are_refused_immediately(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        workbench.tune(**options)


def test_a_bound_may_be_any_number() -> None:
    assert check_slowdown(np.float32(0.25)) == 0.25  # type: ignore[arg-type]


def test_a_job_that_uses_more_energy_is_reported_so() -> None:
    saved = Saved(-1200.0, 300.0, -0.12, 0.03, 0.021, 0.004, 240.0)
    text = TuningResult("hold", None, saved, 12.0, 30, "marks").text
    assert text.startswith("spent 12.0 ± 3.0 %")


def test_a_long_stretch_takes_little_memory() -> None:
    time_s = np.arange(0.0, 600.0, 0.02)
    power_w = (
        300.0
        + 50.0 * np.sign(np.sin(2 * np.pi * time_s / 0.5))
        + np.random.default_rng(0).normal(0, 5, len(time_s))
    )
    tracemalloc.start()
    found = harmonic_fit.timed(time_s, power_w, 0.52, low=0.7, high=1.5, sd=0.06)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.seconds == pytest.approx(0.5, rel=0.002)
    assert most < 150e6


def test_a_share_of_only_a_part_of_the_job_is_marked() -> None:
    saved = Saved(1200.0, 300.0, 0.12, 0.03, 0.021, 0.004, 240.0, time_s=40.0)
    most, whole = (
        TuningResult("hold", None, saved, 12.0, 30, "marks", elapsed_s=elapsed_s).text for elapsed_s in (100.0, 45.0)
    )
    assert re.search("counted .*100 s", most)
    assert "counted" not in whole


def test_the_best_setting_of_another_job_is_not_held(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "hold")
    here.train(tuner, 100, workload="imagenet", batch_size=512, until=lambda t: t.result.retuned == 1)
    assert here.as_found
    with pytest.raises(UsageError, match="nothing to hold"):
        tuner.hold_here()
    tuner.end()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["a tuned run", "a sweep"])
def test_the_next_run_of_a_job_tries_the_best_setting_of_the_earlier_one_first(
    lab: Callable[..., Lab], source: str
) -> None:
    here = lab("V100")
    tuner = here.tuner(over="power", label="my training", warm_start=True)
    here.train(tuner, 200)
    assert not any("of this job" in text for _, text in tuner.log.events)
    tried = set(tuner.view().trials["power_limit_w"])
    tuner.end()
    if source == "a sweep":  # the same points, as a sweep keeps them
        rows = Store().observations()
        shutil.rmtree(Store().directory / "observations")
        Store().observe("a sweep", "my training", rows.with_columns(
            pl.lit("sample").alias("unit"), pl.lit(256).cast(rows["batch_size"].dtype).alias("batch_size"),
            pl.lit(None).cast(rows["run"].dtype).alias("run"),
        ).select(list(OBSERVATIONS)))
    here = lab("V100")
    tuner = here.tuner(over="power", label="my training", warm_start=True)
    here.until(tuner, "search")
    assert any(f"from {source}" in text for _, text in tuner.log.events), tuner.log.events
    assert "earlier run" in tuner.text
    assert work_of(tuner).gpus.current.power_limit_w in tried - {250.0}
    tuner.end()


@pytest.mark.slow
def test_another_batch_size_of_a_job_is_no_earlier_run_of_it(lab: Callable[..., Lab]) -> None:
    for size in (256, 128):
        here = lab("V100")
        tuner = here.tuner(over="power", label="my training", warm_start=True)
        here.train(tuner, 200, batch_size=size)
        assert not any("of this job" in text for _, text in tuner.log.events)
        tuner.end()


@pytest.mark.slow
def test_a_tuner_uses_earlier_runs_only_when_asked_to(lab: Callable[..., Lab]) -> None:
    for number in range(2):
        here = lab("V100")
        tuner = here.tuner(over="power", label="my training")
        here.train(tuner, 20 if number else 120)
        assert not any("of this job" in text for _, text in tuner.log.events)
        tuner.end()
