"""A running job is tuned on a simulated GPU: found, tried, held, watched. The GPU is restored from every
state and every fault.
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
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import workbench
from workbench.device import lease
from workbench.errors import UsageError
from workbench.experiments import harmonic_fit
from workbench.experiments.iteration_sources import Counter, guessed, in_rows
from workbench.experiments.probe import Reading
from workbench.logbook.store import OBSERVATIONS, Store
from workbench.measurement import session as sessions
from workbench.records import Setting
from workbench.search.objective import EnergyDelay, ZeusCost
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob
from workbench.tuning import accounts
from workbench.tuning.accounts import SavingsAccounts, SavingsLedger, Stretch
from workbench.tuning.advice import advice
from workbench.tuning.change_detection import ModelWatch
from workbench.tuning.driver import TunerThread
from workbench.tuning.options import check_slowdown, objective_text
from workbench.tuning.phases import Checking, Interrupted, Retuning
from workbench.tuning.record import TuningRecord
from workbench.tuning.results import OBJECTIVES, Saved, TuningResult
from workbench.tuning.state_machine import Tuner, latest, running
from workbench.tuning.tuned_job import TunedJob, Workplace

Simulated = Callable[..., Machine]
ANY: Any = None  # where a belief is not used
ORDER = ["wait", "detect", "baseline", "search", "hold", "watch"]


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
        **options: object,
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
        )  # type: ignore[arg-type]
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
        """Train until the tuner is in a state."""
        if tuner.state != state:
            self.train(tuner, 2000, until=lambda t: t.state == state, **options)  # type: ignore[arg-type]
        assert tuner.state == state, tuner.log.events

    @property
    def as_found(self) -> bool:
        setting = self.device.setting()
        return setting == Setting(power_limit_w=self.device.limits.default_power_limit_w)


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


def change_job(tuner: Tuner) -> None:
    """Make a tuner take the job for another one."""
    tuner.phase = Retuning(job_of(tuner), tuner.clock(), "said by a test")


# what it is for


def test_a_training_is_tuned_and_the_reported_saving_is_true(lab: Callable[..., Lab]) -> None:
    plain_s, plain_j = costs(lab(), 500, None)
    here = lab()
    tuner = here.tuner()
    tuned_s, tuned_j = costs(here, 500, tuner)
    result = tuner.end()
    assert here.states[: len(ORDER)] == ORDER
    saved = result.saved
    assert saved is not None
    truth, slower = 1 - tuned_j / plain_j, tuned_s / plain_s - 1
    assert truth > 0.05
    assert slower < 0.05
    assert saved.share == pytest.approx(truth, abs=saved.share_uncertainty + 0.005)
    assert saved.slowdown == pytest.approx(slower, abs=saved.slowdown_uncertainty + 0.005)
    assert saved.energy_j == pytest.approx(plain_j - tuned_j, rel=0.15)
    assert result.settled_iterations is not None
    assert result.settled_iterations <= 80
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


def test_a_job_without_iterations_is_tuned_by_a_rate_that_errs_on_the_safe_side(
    lab: Callable[..., Lab],
) -> None:
    plain_s, plain_j = costs(lab(), 700, None, batch_size=128, marked=False, variation=0.9, seed=3)
    here = lab()
    tuner = here.tuner(over="clocks")
    tuned_s, tuned_j = costs(here, 700, tuner, batch_size=128, marked=False, variation=0.9, seed=3)
    result = tuner.end()
    assert result.source == "rate"
    assert result.saved is not None
    assert tuned_s / plain_s - 1 < result.saved.slowdown + 0.01
    assert tuned_j < plain_j
    assert "by a rate" in result.text


def test_iterations_too_short_for_the_sensor_are_not_used(lab: Callable[..., Lab]) -> None:
    """0.08 s behind a sensor of 0.1 s looks like 0.39 s; the energy counter gives it away, or a change of the
    clock.
    """
    here = lab()
    tuner = here.tuner(over="clocks")
    here.train(
        tuner,
        900,
        workload="cifar100",
        batch_size=1024,
        marked=False,
        until=lambda t: t.state in ("hold", "watch"),
    )
    told = [text for _, text in tuner.log.events]
    assert any("beat of" in text or "aliasing suspected" in text for text in told)
    assert tuner.result.source == "rate"
    tuner.end()
    assert here.as_found


def test_gpoeos_search_runs_in_the_same_loop(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(search="gpoeo", over="clocks")
    here.train(tuner, 700, until=lambda t: t.state == "watch")
    assert tuner.state == "watch", tuner.log.events
    assert tuner.result.trials >= 3
    tuner.end()
    assert here.as_found


# the bound


def test_a_trial_beyond_the_slowdown_limit_is_ended_immediately(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    belief = job_of(tuner).belief
    slow = min(belief.space.settings, key=lambda each: each.sm_clock_mhz or 0)
    from workbench.search.clocks.make import Trial

    real, asked = belief.search.next, [True]

    def next_() -> object:
        return Trial(slow, 40, 20.0, "a setting that is far too slow") if asked and asked.pop() else real()

    belief.search.next = next_  # type: ignore[method-assign, assignment]
    begun_s = here.machine.clock()
    here.train(
        tuner,
        30,
        until=lambda t: any(text == "SM 210 MHz is too slow: ended early" for _, text in t.log.events),
    )
    assert work_of(tuner).gpus.current != slow
    assert here.machine.clock() - begun_s < 8.0  # of the 20 s and 40 iterations that it was to take
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


def test_limits_above_the_one_that_was_found_are_never_set(lab: Callable[..., Lab]) -> None:
    here = lab()
    here.device.write(Setting(power_limit_w=300.0))
    tuner = here.tuner(over="power")
    here.train(tuner, 300)
    assert max(each.power_limit_w or 0 for each in job_of(tuner).belief.space.settings) == 300.0
    tuner.end()
    assert here.device.setting().power_limit_w == 300.0


# what happens while a setting is held


@pytest.mark.slow
def test_the_default_setting_is_measured_again_now_and_then(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.train(tuner, 1500)
    probes = tuner.view().trials
    checks = probes.filter(probes["kind"] == "re-check")
    assert checks.height >= 2
    assert checks["time_ratio"].to_numpy() == pytest.approx(1.0, abs=0.03)
    span_s = here.machine.clock() - tuner.log.begun_s
    assert (
        float(checks["cost_s"].sum()) < 0.05 * span_s
    )  # at a tenth of the power: well below one per cent of the energy
    assert np.all(np.diff(np.diff(checks["at_s"].to_numpy())) > 0)  # ever more rarely
    tuner.end()


def test_another_job_is_noticed_and_tuned_and_the_first_is_known_when_it_comes_back(
    lab: Callable[..., Lab],
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "watch")
    here.train(tuner, 30, seed=2)
    first = job_of(tuner).choice
    probes = tuner.result.trials
    here.train(tuner, 300, workload="squad", batch_size=32)
    assert any("job has changed" in text for _, text in tuner.log.events)
    assert tuner.state == "watch", tuner.log.events
    assert len(tuner.log.accounts.accounts) == 2
    assert tuner.result.retuned == 1
    assert tuner.result.trials > probes
    probes = tuner.result.trials
    here.train(tuner, 120, seed=5)
    assert any("earlier job again" in text for _, text in tuner.log.events), tuner.log.events
    assert len(tuner.log.accounts.accounts) == 2
    assert tuner.result.trials <= probes + 3
    assert job_of(tuner).choice.setting.sm_clock_mhz == pytest.approx(first.setting.sm_clock_mhz, abs=60)
    tuner.end()
    assert here.as_found


def test_another_job_without_marks_is_noticed_by_its_power(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "watch", batch_size=512, marked=False)
    here.train(tuner, 15, batch_size=512, marked=False, seed=2)
    assert tuner.result.retuned == 0
    from_s = here.machine.clock() - tuner.log.begun_s
    here.train(tuner, 30, workload="librispeech", batch_size=192, marked=False)
    noticed = [at_s for at_s, text in tuner.log.events if "the job has changed" in text]
    assert noticed, tuner.log.events
    assert noticed[0] - from_s < 40.0
    tuner.end()
    assert here.as_found


def test_a_rate_leaves_the_memory_clock_alone(lab: Callable[..., Lab]) -> None:
    """It would not see what a slower memory costs."""
    here = lab("RTX3080TI")
    tuner = here.tuner()
    here.train(tuner, 4000, batch_size=8, marked=False, grain_s=0.1, until=lambda t: t.state == "watch")
    assert tuner.result.source == "rate"
    assert {each.mem_clock_mhz for each in job_of(tuner).belief.space.settings} <= {None, 9501}
    tuner.end()


def test_an_evaluation_is_no_other_job(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "watch")
    here.train(tuner, 200, checkpoint_every=60, checkpoint_s=4.0)
    assert tuner.result.retuned == 0
    assert tuner.state == "watch"
    tuner.end()


@pytest.mark.slow
def test_a_check_that_checkpoints_draw_out_is_a_sight_of_the_job(lab: Callable[..., Lab]) -> None:
    """It asks for whole iterations in a row, of which a checkpoint lets through few: it lasts, but the job
    is there.
    """
    here = lab("A40")
    tuner = here.tuner(max_slowdown=0.05)
    here.train(tuner, 1700, workload="squad", batch_size=4, checkpoint_every=100)
    assert tuner.result.retuned == 0, tuner.log.events
    assert tuner.view().trials["kind"].is_in(["re-check"]).any()
    tuner.end()


def test_a_checkpoint_does_not_restart_the_first_measurements_of_reported_steps(
    lab: Callable[..., Lab],
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "baseline")
    here.machine.clock.on_step.append(beside := lambda _: tuner.advance())
    here.machine.step(6.0)  # the GPU writes a checkpoint
    here.machine.clock.on_step.remove(beside)
    here.until(tuner, "search")
    assert "detect" not in here.states[here.states.index("baseline") :]
    assert any(text.endswith("works again") for _, text in tuner.log.events)
    tuner.end()


def test_an_idle_gpu_is_left_as_it_is_and_reported(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "watch")
    here.train(tuner, 60)
    here.machine.clock.on_step.append(beside := lambda _: tuner.advance())
    here.machine.step(2.0)
    held = work_of(tuner).gpus.current
    for _ in range(100):
        here.machine.step(0.1)
    here.machine.clock.on_step.remove(beside)
    assert "is idle" in tuner.text
    assert work_of(tuner).gpus.current == held
    before = tuner.log.accounts.saved()
    here.train(tuner, 60)
    assert tuner.state in ("hold", "watch")
    assert tuner.result.retuned == 0
    assert before is not None
    assert tuner.log.accounts.saved() is not None
    tuner.end()


def test_other_processes_on_the_gpu_are_named_and_waited_for(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "watch")
    real = type(here.device).processes
    stranger = workbench.records.Process(1, "init")
    here.device.processes = lambda graphics=False: () if graphics else (stranger,)
    here.train(tuner, 60)
    assert "init (1)" in tuner.text
    assert here.as_found  # the neighbour is not slowed down
    here.device.processes = lambda graphics=False: real(here.device, graphics=graphics)
    here.train(tuner, 150)
    assert tuner.state in ("hold", "watch")
    assert any("alone again" in text for _, text in tuner.log.events)
    tuner.end()


def test_a_limit_that_another_program_sets_is_left_alone(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="power")
    here.until(tuner, "watch")
    here.device.write(Setting(power_limit_w=222.0))
    here.train(tuner, 60)
    assert tuner.state == "refused"
    assert "another program" in tuner.refused
    assert here.device.setting().power_limit_w == 222.0


def test_a_driver_that_accepts_no_setting_ends_the_search_early(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="power")
    here.until(tuner, "search")
    here.machine.inject("nvmlDeviceSetPowerManagementLimit", 2)  # invalid argument
    here.train(tuner, 10)
    assert tuner.state == "refused"
    assert "no setting takes effect" in tuner.refused
    assert sum("cannot be set" in text for _, text in tuner.log.events) == 5
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
    pytest.param(state, fault, marks=[] if state == "watch" or fault == "lost GPU" else pytest.mark.slow)
    for fault in FAULTS
    for state in ("wait", "detect", "baseline", "search", "watch", "re-tune")
]


@pytest.mark.parametrize(("state", "fault"), CASES)
def test_the_gpu_comes_back_from_every_state_and_fault(
    lab: Callable[..., Lab], state: str, fault: str
) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    if state == "re-tune":
        here.until(tuner, "watch")
        change_job(tuner)
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


@pytest.mark.parametrize("state", ["wait", "detect", "baseline", "search", "watch"])
def test_a_cell_that_ends_leaves_nothing_behind(lab: Callable[..., Lab], state: str) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, state)
    result = tuner.end()
    assert result.state == state
    assert here.as_found
    assert tuner.advance() == "done"
    assert (result.settled_s is None) == (state != "watch")
    if state != "watch":
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
    tuner = here.tuner(model=broken)
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
    here.train(tuner, 25)
    assert tuner.view().trials.height > before
    assert tuner.view().paused
    tuner.hold_here()
    here.train(tuner, 20)
    assert tuner.state == "watch"
    tuner.resume()
    here.train(tuner, 60)
    assert tuner.state in ("search", "hold", "watch")
    tuner.stop()
    assert tuner.state == "done"
    assert here.as_found
    with pytest.raises(UsageError, match="has ended"):
        tuner.pause()


def test_hold_here_holds_the_best_measured_setting_within_the_bound(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks", max_slowdown=0.1)
    here.until(tuner, "search")
    for _ in range(60):
        here.train(tuner, 10)
        if tuner.state != "search" or tuner.view().trials.filter(pl.col("energy_ratio") < 0.95).height:
            break
    tuner.hold_here()
    here.train(tuner, 20)
    tuning = tuner.view()
    within = tuning.trials.filter(pl.col("time_ratio") <= 1.1, pl.col("outcome") == "kept")
    best = within.row(within["energy_ratio"].arg_min(), named=True)  # type: ignore[arg-type]
    assert best["energy_ratio"] < 0.95
    assert tuning.current.sm_clock_mhz == best["sm_clock_mhz"]
    tuner.end()


def test_another_slowdown_limit_keeps_the_measurements(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks", max_slowdown=0.02)
    here.until(tuner, "watch")
    tight, told = job_of(tuner).choice, job_of(tuner).belief.search.measured_rows
    tuner.change(max_slowdown=0.15)
    assert job_of(tuner).belief.search.measured_rows == told
    here.train(tuner, 200)
    assert tuner.state == "watch"
    assert job_of(tuner).choice.energy_ratio < tight.energy_ratio - 0.02
    tuner.change(objective="ed2p", max_slowdown=None)
    assert job_of(tuner).belief.objective == EnergyDelay(2)
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
    assert {"wait", "detect", "search", "watch"} <= set(seen)
    states = ("wait", "detect", "baseline", "search", "hold", "watch", "re-tune", "done", "refused")
    assert set(seen) <= set(states)
    assert all(view.text and view.label == "train" for view in seen.values())
    view = seen["watch"]
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
    here.until(tuner, "watch")
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


# arithmetic


def reading(iterations: int, iteration_s: float, iteration_j: float, *, sd: float = 0.01) -> Reading:
    return Reading(
        Setting(),
        iterations,
        iterations * iteration_s,
        iterations * iteration_j,
        0.0,
        sd * iteration_s,
        0.0,
        1.0,
    )


def test_a_book_adds_up() -> None:
    book = SavingsAccounts()
    assert book.saved() is None
    book.open(ANY)
    book.read(reading(10, 1.0, 100.0))
    book.add(Stretch("baseline", Setting(), 10, 10.0, 1000.0))
    book.add(Stretch("probe", Setting(sm_clock_mhz=900), 10, 12.0, 900.0))
    book.add(Stretch("held", Setting(sm_clock_mhz=1000), 80, 82.0, 6800.0))
    saved = book.saved()
    assert saved is not None
    assert saved.energy_j == pytest.approx(100 * 100.0 - 8700.0)
    assert saved.share == pytest.approx(0.13)
    assert saved.slowdown == pytest.approx(0.04)
    assert (book.spent_s, book.spent_j) == (22.0, 1900.0)
    book.read(reading(10, 1.0, 100.0))
    again = book.saved()
    assert again is not None
    assert again.uncertainty_j < saved.uncertainty_j
    book.read(reading(10, 1.0, 150.0))  # they do not agree: the error grows
    assert (book.saved() or saved).uncertainty_j > again.uncertainty_j


def test_rows_of_iterations_leave_out_gaps() -> None:
    moments = np.array([0.0, 1.0, 2.0, 3.0, 20.0, 21.0, 22.0])
    rows = in_rows(moments, np.ones(6), 1.0, [])
    assert [(row.iterations, row.start_s, row.end_s) for row in rows] == [(3, 0.0, 3.0), (2, 20.0, 22.0)]


def feed(watch: ModelWatch, iteration_s: float, power_w: float = 200.0, scatter: float = 0.03) -> str:
    """A stretch of nine iterations."""
    return watch.feed(iteration_s, scatter / 3.0, power_w, 9, scatter)


def test_a_change_of_a_tenth_is_noticed_above_the_noise() -> None:
    rng = np.random.default_rng(1)
    watch = ModelWatch()
    for length, power in np.exp(0.01 * rng.standard_normal((300, 2))).tolist():
        assert feed(watch, length, 200.0 * power) == ""
    told = [feed(watch, 1.10) for _ in range(6)]
    assert any("1.1 s" in text for text in told)


def test_heavy_tailed_stretches_are_no_other_job() -> None:
    rng = np.random.default_rng(3)
    late = rng.random(400) < 0.05
    times = np.exp(0.02 * rng.standard_normal(400)) * np.where(late, 1.0 + rng.pareto(1.5, 400), 1.0)
    watch = ModelWatch()
    assert [why for each in times.tolist() if (why := feed(watch, each, scatter=0.06))] == []
    assert any(feed(watch, 1.5, scatter=0.06) for _ in range(5))  # a change that lasts is one


def test_iterations_that_begin_to_differ_are_those_of_another_job() -> None:
    rng = np.random.default_rng(4)
    watch = ModelWatch()
    scatters = 0.03 * np.sqrt(rng.chisquare(8, 400) / 8)
    assert [why for each in scatters.tolist() if (why := feed(watch, 1.0, scatter=each))] == []
    assert any("iterations differ" in feed(watch, 1.0, scatter=0.2) for _ in range(6))


def test_a_job_that_grows_is_no_other_job() -> None:
    watch = ModelWatch()
    assert all(feed(watch, 1.0 + 0.011 * t) == "" for t in range(30))


def test_a_checkpoint_between_two_steps_is_no_iteration() -> None:
    assert in_rows(np.array([0.0, 2.4]), np.ones(1), 0.6, []) == []


def test_held_time_whose_iterations_were_not_observed_has_saved_energy_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        accounts, "energy", lambda _, start_s, end_s: SimpleNamespace(
            energy_j=80.0 * (end_s - start_s), uncertainty_j=1.0
        )
    )
    source: Any = SimpleNamespace(name="power", runs=lambda *_: [])
    ledger, log = SavingsLedger(), TuningRecord(lambda: 0.0)
    log.ledger = ledger
    ledger.begin(0.0)
    ledger.cut(60.0, "held", source, Setting(sm_clock_mhz=1000), guessed(1.0, 0.02))
    log.accounts.open(ANY)
    assert log.count(ANY, source, 100.0) == []  # nothing shows that it is still the same job
    held = log.accounts.accounts[-1].held[Setting(sm_clock_mhz=1000)]
    assert (held.time_s, held.energy_j, held.iterations) == pytest.approx((60.0, 4800.0, 60.0))


def test_a_warm_card_is_no_other_job() -> None:
    watch = ModelWatch()
    assert all(feed(watch, 1.0, 200.0 * (1 + 0.0005 * t)) == "" for t in range(120))


def test_a_bound_is_a_share() -> None:
    assert check_slowdown(None) is None
    assert check_slowdown(0) == 0.0
    assert check_slowdown(1) == 1.0


def test_a_result_reports_no_saving_within_its_error() -> None:
    saved = Saved(5.0, 40.0, 0.001, 0.008, 0.01, 0.008, 100.0)
    text = TuningResult("watch", Setting(sm_clock_mhz=1200), saved, 12.0, 30, "marks").text
    assert text.startswith("no measurable saving")
    assert re.search("12 s .* 1200 MHz", text)
    assert TuningResult("detect", reason="unmarked").text == "not tuned: unmarked"


# what may go wrong beside it


def test_nothing_is_kept_for_a_tuner_that_has_ended(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner()
    here.until(tuner, "watch")
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
    spent_s = tuner.log.accounts.spent_s
    counted = tuner.log.accounts.iterations
    job = here.train(tuner, 150)
    paused_s = (
        job.iterations_s if hasattr(job, "iterations_s") else 150 * tuner.log.accounts.accounts[-1].baseline()[0]
    )
    tuner.resume()
    here.train(tuner, 10)
    assert tuner.log.accounts.iterations > counted + 130  # what it took is known all the same
    assert tuner.log.accounts.spent_s < spent_s + 0.5 * paused_s
    tuner.end()


def test_a_driver_that_is_busy_for_a_moment_costs_a_moment(lab: Callable[..., Lab]) -> None:
    """At the end of a re-check: the setting that was held is held again."""
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "watch")
    held = work_of(tuner).gpus.current
    assert held != Setting()
    here.train(tuner, 2000, until=lambda t: isinstance(t.phase, Checking))
    assert work_of(tuner).gpus.current == Setting()
    here.machine.inject("nvmlDeviceSetGpuLockedClocks", 10, times=1)
    here.train(tuner, 80)
    assert tuner.state == "watch"
    assert work_of(tuner).gpus.current != Setting()
    assert tuner.result.retuned == 0
    tuner.end()


def test_a_driver_that_is_busy_at_the_start_is_asked_again(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.machine.inject("nvmlDeviceSetGpuLockedClocks", 10, times=2)
    here.train(tuner, 60)
    assert not tuner.refused, tuner.refused
    assert tuner.state in ("baseline", "search", "hold", "watch")
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
    assert tuner.log.accounts.accounts
    assert tuner.log.accounts.accounts[0].baselines[0].start_s >= alone_s[0] - 0.2
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
    assert work_of(tuner).gpus.own(choice.setting) == work_of(tuner).gpus.current
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


def test_settings_that_were_refused_are_not_tried_again_for_another_bound(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "search")
    belief = job_of(tuner).belief
    setting = next(each for each in belief.space.settings if each != belief.space.reference)
    belief.cannot(setting, "said by a test")
    other = belief.again(belief.objective, 0.2)
    assert setting in other.search.unreachable  # type: ignore[attr-defined]
    tuner.end()


def test_a_result_ends_with_its_notes() -> None:
    saved = Saved(1200.0, 300.0, 0.12, 0.03, 0.021, 0.004, 240.0)
    result = TuningResult("watch", None, saved, 12.0, 30, "marks", notes=("another card",))
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
    here.until(first, "watch")
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
    text = TuningResult("watch", None, saved, 12.0, 30, "marks").text
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
        TuningResult("watch", None, saved, 12.0, 30, "marks", elapsed_s=elapsed_s).text for elapsed_s in (100.0, 45.0)
    )
    assert re.search("counted .*100 s", most)
    assert "counted" not in whole


def test_the_best_setting_of_another_job_is_not_held(lab: Callable[..., Lab]) -> None:
    here = lab()
    tuner = here.tuner(over="clocks")
    here.until(tuner, "watch")
    change_job(tuner)
    with pytest.raises(UsageError, match="nothing to hold"):
        tuner.hold_here()
    here.train(tuner, 60)
    assert tuner.state in ("baseline", "search", "hold", "watch")
    tuner.end()


def test_a_power_limit_is_suggested_for_a_running_job_at_the_default_limit_only(lab: Callable[..., Lab]) -> None:
    here = lab("V100")
    meter = sessions.current().meter
    assert re.match("GPU 0: .* idle", "".join(advice(meter)))
    said: list[str] = []

    def ask(iteration: int) -> None:
        if iteration == 30:
            said.extend(advice(meter))
            sessions.current().set_power_limit(here.device.uuid, 150.0)
            said.extend(advice(meter))

    here.train(None, 40, each=ask)
    found = re.search(r"draws (\d+) W .* Try (\d+) W first", said[0])
    assert found is not None
    assert abs(float(found[2]) - 0.875 * (float(found[1]) * 250.0) ** 0.5) < 2.5
    assert "150 W" in said[1]
    assert "no suggestion" in said[1]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["a tuned run", "a sweep"])
def test_the_next_run_of_a_job_starts_from_earlier_measurements(
    lab: Callable[..., Lab], source: str
) -> None:
    made = []
    for _ in range(2):
        here = lab("V100")
        tuner = here.tuner(over="power", label="my training", warm_start=True)
        here.until(tuner, "watch")
        made.append((tuner.log.probes.made, [text for _, text in tuner.log.events]))
        account, = tuner.log.accounts.accounts
        baseline, measured = account.baseline()[::2], account.belief.measured()
        tuner.end()
        if source == "a sweep":  # the same points, as a sweep keeps them
            shutil.rmtree(Store().directory / "observations")
            Store().observe("a sweep", "my training", pl.DataFrame([
                dict.fromkeys(OBSERVATIONS) | {
                    "power_limit_w": setting.power_limit_w or 250.0, "time_s": cost[0] / 256,
                    "energy_j": cost[1] / 256, "gpu": here.device.name, "simulated": True, "ended_unix_s": 1.79e9,
                    "batch_size": 256, "unit": "sample",
                } for setting, cost in ({Setting(): baseline} | measured).items()
            ], schema=OBSERVATIONS))
    (first, before), (second, after) = made
    assert not any("of this job" in text for text in before)
    assert any(f"from {source}" in text for text in after)
    # The setting that is tried first may be one that the search would not have tried.
    assert second <= first + 2


def test_a_tuner_uses_earlier_runs_only_when_asked_to(lab: Callable[..., Lab]) -> None:
    for number in range(2):
        here = lab("V100")
        tuner = here.tuner(over="power", label="my training")
        here.until(tuner, "search" if number else "watch")
        assert not any("of this job" in text for _, text in tuner.log.events)
        tuner.end()
