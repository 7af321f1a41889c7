"""The panel of a recurring job, without a browser."""

from __future__ import annotations

import re
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import workbench.panels
from notebooks.learning import Accuracy, shorter
from tests.panels.listening import Browser, ask, bundle, later
from workbench.device.discovery import devices
from workbench.errors import UsageError
from workbench.experiments.history.attempts import Attempt
from workbench.experiments.history.csv import write_csv
from workbench.experiments.history.replay import Recorded
from workbench.experiments.history.study import JobStudy
from workbench.experiments.job import RecurringJob
from workbench.measurement.meter import Meter
from workbench.measurement.recorder import Recorder
from workbench.panels._core.prefixes import prefixed
from workbench.panels._views.recurring.model import amount, unit_of, view
from workbench.panels._views.recurring.panel import RecurringPanel, recurring
from workbench.search.batch_size.history import Space
from workbench.search.objective import Energy, EnergyDelay, EnergyWithin, Time, ZeusCost
from workbench.simulation.machine import Machine
from workbench.simulation.training import TrainingJob

SPACE = Space((32, 64, 128), 128, (150.0, 200.0, 250.0), 50, gpu="Tesla V100 (simulated)")
ETA = ZeusCost(0.5, 250.0)
EPOCHS = {32: 20, 64: 10, 128: 14}
WORKLOAD = shorter("cifar100", 3_200)


def profile(b: int) -> tuple[tuple[float, float, float], ...]:
    slower = {150.0: 1.2, 200.0: 1.05, 250.0: 1.0}
    return tuple((limit, 100.0 * (1 + 8 / b) * slower[limit], 0.9 * limit) for limit in SPACE.power_limits_w)


def ran(number: int, b: int, **more: Any) -> Attempt:
    _, each_s, power_w = profile(b)[0]
    time_s = EPOCHS[b] * each_s
    values = {
        "state": "reached",
        "epochs": float(EPOCHS[b]),
        "time_s": time_s,
        "energy_j": time_s * power_w,
        "power_limit_w": 150.0,
        "profile": profile(b),
        "gpu": SPACE.gpu,
    }
    return Attempt(number, b, number, **{**values, **more})


def many(count: int) -> list[Attempt]:
    return [ran(n, 128 if n < 2 else 32 if n == 3 else 64) for n in range(count)]


def panel_of(attempts: list[Attempt], **options: Any) -> RecurringPanel:
    return recurring(Recorded(attempts, SPACE, options.pop("objective", ETA)), **options)


def drawn_recurrences(message: dict[str, Any]) -> list[int]:
    """The recurrences whose costs a message draws, in their order."""
    layers = message["view"]["figure"][1][0]["layers"]
    return sorted(x for layer in layers if layer["kind"] == "dot" for x in layer["rows"]["x"])


def test_a_lost_recurrence_is_named_with_its_cost_and_marked_in_the_picture() -> None:
    attempts = many(6)
    cost = attempts[5].cost(ETA)
    for recurrence, numbers in ((6, (6, 7, 8)), (8, (10, 11, 12))):
        attempts += [replace(ran(n, 64, state="failed"), recurrence=recurrence) for n in numbers]
    attempts.insert(9, replace(ran(9, 64), recurrence=7))
    panel = panel_of(attempts, live=False)
    (lost,) = [line for line in panel.summary().splitlines() if line.startswith("lost: ")]
    assert all(part in lost for part in ("7, 9", amount(6 * cost, "J")))
    assert [row["lost"] for row in view(panel.outlook).recurrences] == [False] * 6 + [True, False, True]
    assert "no run reached" in panel.svg()
    calm = panel_of(many(6), live=False)
    assert "lost" not in calm.summary()
    assert "no run reached" not in calm.svg()


def finish(study: JobStudy) -> None:
    """Run one recurrence of a study at its cost in these tests."""
    while True:
        attempt = study.ask()
        if attempt.purpose == "slice":
            study.end(
                attempt,
                state="stopped",
                profile_time_s=3.0,
                profile_energy_j=500.0,
                profile=profile(attempt.batch_size),
            )
            continue
        done = ran(attempt.number, attempt.batch_size)
        study.end(
            attempt,
            state="reached",
            epochs=done.epochs,
            time_s=done.time_s,
            energy_j=done.energy_j,
            power_limit_w=150.0,
            profile=profile(attempt.batch_size),
        )
        return


@pytest.fixture
def study(tmp_path: Path) -> JobStudy:
    return JobStudy("nightly", SPACE, ETA, storage=tmp_path / "runs.db", seed=1)


# the summary


def test_before_the_first_run_it_shows_the_first_proposal() -> None:
    title, headline, objective = panel_of([]).summary().splitlines()
    assert title.endswith("(simulated)")
    assert re.match("Next: .*size 128 at 250 W", headline)
    assert all(part in objective for part in ("eta 0.5", "50 % energy", "50 % time"))


def test_it_shows_the_next_proposal_the_spending_and_the_break_even() -> None:
    panel = panel_of(many(20))
    _, headline, paid, saved, even, *_ = panel.summary().splitlines()
    assert headline.startswith("Next: ")
    assert "size 64 at 200 W" in headline
    assert headline.endswith("likely the cheapest")
    assert all(part in paid for part in ("20 recurrences", "5.68 MJ eq."))
    assert re.search("128 at 250 W.* \\(energy −", saved)
    assert even.startswith("paid for itself ")


def test_no_percentage_is_shown_where_its_interval_includes_zero() -> None:
    panel = panel_of([ran(0, 128), ran(1, 64)])
    saved = panel.outlook.recurrences.row(-1, named=True)
    assert saved["saved_low"] < 0 < saved["saved"]
    assert panel.summary().splitlines()[3].startswith("no measurable difference ")
    assert "paid for itself" not in panel.summary()


def test_after_a_change_the_reported_saving_counts_from_the_change_on() -> None:
    # The data has doubled at the 13th recurrence, and only the default has ever run: nothing is saved.
    _, each_s, power_w = profile(128)[-1]
    panel = panel_of([
        ran(n, 128, power_limit_w=250.0, epochs=epochs, time_s=epochs * each_s, energy_j=epochs * each_s * power_w)
        for n, epochs in enumerate([14.0] * 12 + [28.0] * 8)
    ])
    rows = panel.outlook.recurrences
    assert panel.outlook.changes == 1
    assert panel.outlook.since > 12
    counted = rows.filter(rows["saved"].is_not_nan())
    assert counted["recurrence"].to_list() == list(range(panel.outlook.since, 21))
    assert counted["saved"].to_list() == pytest.approx([0.0] * counted.height)
    assert panel.outlook.break_even is None
    assert re.search(f"since recurrence {panel.outlook.since}, .*: no measurable difference", panel.summary())
    assert "nan" not in panel.svg().lower()


def test_the_summary_names_the_running_recurrence_and_failed_batch_sizes(study: JobStudy) -> None:
    finish(study)
    study.end(study.ask(), state="stopped", purpose="run", epochs=1.0, time_s=1.0, energy_j=1.0)
    panel = recurring(study)
    study.update(study.ask(slices=False), epochs=3)
    panel.refresh()
    assert panel.summary().splitlines()[1].startswith("Running: batch size ")
    assert ", 3 epochs done: " in panel.summary().splitlines()[1]
    crashed = panel_of([ran(0, 64), ran(1, 128, state="crashed", oom=True, profile=())])
    assert "out of memory" in crashed.summary()


@pytest.mark.parametrize(
    ("objective", "text", "unit"),
    [
        (Energy(), "energy", "kJ"),
        (Time(), "time", "s"),
        (EnergyDelay(), "energy x time", "MJ·s"),
        (EnergyDelay(2), "energy x time^2", "GJ·s^2"),
        (EnergyWithin(1.05, 100.0), "least energy within 5 % more time", "kJ"),
    ],
)
def test_other_objectives_have_their_names_and_units(objective: Any, text: str, unit: str) -> None:
    panel = panel_of(many(6), objective=objective)
    shown = view(panel.outlook)
    assert (shown.eta, shown.objective, shown.unit) == (None, text, unit)


def test_amounts_have_three_digits_and_a_unit() -> None:
    assert [amount(v, "J") for v in (0.5, 999.0, 52_300.0, 4.98e6)] == [
        "500 mJ",
        "999 J",
        "52.3 kJ",
        "4.98 MJ",
    ]
    assert prefixed(1e5, "s") == (1.0, "s")
    assert amount(12_345.0, "s") == "12345 s"


# scoring anew


def test_another_eta_scores_the_same_runs_and_changes_the_limit() -> None:
    panel = panel_of(many(12))
    found = {}
    for eta in (0.0, 1.0):
        ask(panel, "eta", eta=eta)
        outlook = panel.outlook
        assert outlook.recurrences.height == 12
        assert outlook.proposal is not None
        found[eta] = outlook.proposal.power_limit_w
        time_s, energy_j = outlook.recurrences["time_s"].sum(), outlook.recurrences["energy_j"].sum()
        assert outlook.recurrences["spent"][-1] == pytest.approx(eta * energy_j + (1 - eta) * 250 * time_s)
    assert found == {0.0: 250.0, 1.0: 150.0}


def test_200_recurrences_are_rescored_within_a_tenth_of_a_second() -> None:
    panel = panel_of(many(200))
    clock = time.thread_time  # of this thread: what other processes of the machine do does not count
    taken_s = []
    for eta in np.linspace(0.0, 1.0, 11):
        start_s = clock()
        panel.on_message("eta", {"eta": float(eta), "asked": 1})
        taken_s.append(clock() - start_s)
    assert sorted(taken_s)[5] < 0.1


def test_a_job_runs_by_the_eta_that_was_chosen(study: JobStudy) -> None:
    panel = recurring(study)
    ask(panel, "eta", eta=0.9)
    assert study.objective == ZeusCost(0.9, 250.0)
    study.objective = Energy()
    ask(panel, "eta", eta=0.2)  # the highest limit that may be set stands for the card's
    assert study.objective == ZeusCost(0.2, 250.0)


def test_what_python_changes_reaches_the_browser(study: JobStudy, tmp_path: Path) -> None:
    finish(study)
    panel, other = recurring(study), recurring(study)
    browser, beside = Browser(panel), Browser(other)
    ask(panel, "eta", eta=0.9)
    assert browser.last("news")["view"]["eta"] == 0.9  # at once, to every view of this panel
    assert later(panel) is None
    message = later(other)
    assert message is not None
    assert message[0]["view"]["eta"] == 0.9
    assert not beside.messages
    finish(study)
    assert panel.outlook.recurrences.height == 2  # read from Python, it is still to be shown
    message = later(panel)
    assert message is not None
    assert len(drawn_recurrences(message[0])) == 2


def test_an_eta_out_of_range_is_reported_and_changes_nothing() -> None:
    panel = panel_of(many(6))
    browser = Browser(panel)
    panel.receive({"kind": "eta", "eta": 1.5, "asked": 7})
    assert all(part in browser.last("problem")["text"] for part in ("eta=1.5", "0 to 1"))
    assert (browser.last("news")["asked"], browser.last("news")["view"]["eta"]) == (7, 0.5)
    panel.receive({"kind": "eta", "eta": 1.0, "asked": 8})
    assert browser.last("problem")["text"] == ""


# running


def test_buttons_run_recurrences_of_a_study_and_stop_after_one(study: JobStudy) -> None:
    runs = []

    def run(given: JobStudy) -> None:
        finish(given)
        runs.append(given)
        if len(runs) == 4:
            panel.stop()

    panel = recurring(study, run)
    browser = Browser(panel)
    panel.run(2)
    assert panel.outlook.recurrences.height == 2
    panel.run(5)
    assert len(runs) == 4
    assert browser.last("news")["left"] == 0
    assert drawn_recurrences(browser.last("news")) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_recurrence_of_a_job_is_measured_on_the_simulated_gpu(
    simulated: Callable[..., Machine], tmp_path: Path
) -> None:
    simulated("V100", stepped=True)
    found = devices()
    meter = Meter(found, Recorder(found), zones=())
    job = RecurringJob(
        "nightly",
        [256, 1024],
        1024,
        target=0.6,
        storage=tmp_path / "runs.db",
        max_epochs=60,
        meter=meter,
        seed=1,
    )

    def train(run: Any) -> None:
        accuracy = Accuracy(run.batch_size)
        while not run.should_stop():
            for _ in TrainingJob(WORKLOAD, run.batch_size):
                run.step()
                if run.should_stop():
                    return
            run.report(accuracy.after_epoch())

    panel = workbench.panels.recurring(job, run=train)
    assert panel.source.simulated
    panel.run(2)
    outlook = panel.outlook
    assert outlook.recurrences["reached"].to_list() == [True, True]
    assert outlook.recurrences["energy_j"].sum() == pytest.approx(
        sum(a.energy_j + a.profile_energy_j for a in job.study.attempts)
    )
    assert outlook.profile.height == 7
    assert "(simulated)" in panel.summary()


def test_what_goes_wrong_in_a_training_ends_the_row_and_is_shown_and_raised(study: JobStudy) -> None:
    def run(given: JobStudy) -> None:
        raise RuntimeError("no data")

    panel = recurring(study, run)
    browser = Browser(panel)
    with pytest.raises(RuntimeError, match="no data"):
        panel.run(3)
    assert browser.last("problem")["text"] == "RuntimeError: no data"
    assert browser.last("news")["left"] == 0
    assert panel.svg()


def test_one_row_of_recurrences_at_a_time_and_not_too_many(study: JobStudy) -> None:
    may_end, began = threading.Event(), threading.Event()

    def run(given: JobStudy) -> None:
        began.set()
        may_end.wait(60)
        finish(given)

    panel, before = recurring(study, run), set(threading.enumerate())
    panel.on_message("run", {"count": 1})
    assert began.wait(60)
    with pytest.raises(UsageError, match="already running"):
        panel.on_message("run", {"count": 1})
    ask(panel, "eta", eta=0.8)  # answered meanwhile
    may_end.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    with pytest.raises(UsageError, match="0 recurrences"):
        panel.run(0)


def test_without_a_training_the_error_shows_how_to_pass_one(study: JobStudy) -> None:
    with pytest.raises(UsageError, match="run=one_recurrence"):
        recurring(study).run()
    with pytest.raises(UsageError, match="nothing to run"):
        recurring(many(3), run=finish)
    with pytest.raises(UsageError, match="nothing to run"):
        panel_of(many(5)).run(1)
    with pytest.raises(UsageError, match="int"):
        recurring(3)  # type: ignore[arg-type]


def test_rows_that_others_add_to_the_history_are_shown(study: JobStudy, tmp_path: Path) -> None:
    panel = recurring(study)
    other = JobStudy("nightly", SPACE, ETA, storage=tmp_path / "runs.db", seed=2)
    finish(other)
    assert panel.refresh()
    assert panel.outlook.recurrences.height == 1
    assert not panel.refresh()


def test_a_job_without_energy_and_limits_is_shown_by_its_time_alone() -> None:
    space = Space((32, 64, 128), 128, gpu=None)
    rows = [
        Attempt(n, b, n, state="reached", epochs=10.0, time_s=10.0 * b, profile=((0.0, float(b), 0.0),))
        for n, b in enumerate((128, 64, 64))
    ]
    panel = recurring(Recorded(rows, space, Time()))
    shown = view(panel.outlook)
    assert "(time −" in shown.details[1]
    assert "energy" not in " ".join(shown.details)
    assert (shown.profile, shown.unit) == ([], "s")
    assert "An epoch" not in panel.svg()


def test_an_optuna_sampler_chooses_and_our_model_gives_the_estimates(tmp_path: Path) -> None:
    study = JobStudy(
        "nightly", SPACE, ETA, storage=tmp_path / "runs.db", policy=optuna.samplers.TPESampler(seed=1)
    )
    panel = recurring(study, finish)
    panel.run(2)
    assert panel.summary().splitlines()[1].startswith("Estimated")
    assert "sampler of Optuna's" in panel.summary()


# files


def test_an_exported_history_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    write_csv(many(3), path)
    assert recurring(path, objective=ETA).outlook.recurrences.height == 3


# pictures and views


def test_the_picture_is_an_svg_without_scripts_and_marked_simulated() -> None:
    for panel in (panel_of(many(12)), panel_of([]), panel_of(many(1)), panel_of(many(12), objective=Time())):
        picture = ElementTree.fromstring(panel.svg())
        assert "(simulated)" in "".join(picture.itertext())
        assert "script" not in panel.svg()
        assert "nan" not in panel.svg().lower()
    texts = "".join(ElementTree.fromstring(panel_of(many(12)).svg()).itertext())
    assert all(
        text in texts
        for text in (
            "Estimated cost",
            "best: ",
            "Cumulative saving",
            "cheaper since",
        )
    )


def test_outside_of_a_front_end_it_is_a_picture_and_never_a_widget() -> None:
    assert set(bundle(panel_of(many(4)))) == {"text/html", "text/plain"}


def test_a_new_view_gets_everything() -> None:
    panel = panel_of(many(700), live=True)
    about, buffers = panel.snapshot()
    panel.end()
    assert (about["simulated"], buffers) == (True, [])
    assert about["whyNot"]
    assert about["view"]["figure"][0][1]["title"].startswith("An epoch ")
    assert len(drawn_recurrences(about)) == 600  # of 700: more would not be seen
    assert drawn_recurrences(about)[-1] == 700


def test_a_cost_is_in_joules_only_where_it_is_an_energy() -> None:
    assert unit_of(Energy()) == unit_of(ZeusCost(1.0, 250.0)) == "J"
    assert unit_of(ZeusCost(0.5, 250.0)) == "J eq."
