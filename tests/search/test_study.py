"""A history that is shared, survives kills and is scored again. A foreign one is refused with a clear
message.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from sqlalchemy import Engine, event

from workbench.errors import MeasurementError, StoreError, UsageError
from workbench.experiments.history.attempts import Attempt, Bars, current_owner, is_abandoned, without
from workbench.experiments.history.csv import read_csv, write_csv
from workbench.experiments.history.optuna_bridge import KEY, AttemptLedger, propose
from workbench.experiments.history.replay import Recorded
from workbench.experiments.history.study import JobStudy
from workbench.search.batch_size.history import Space
from workbench.search.batch_size.policy import Progress
from workbench.search.objective import Energy, Objective, Time, ZeusCost

ETA = ZeusCost(0.5, 250.0)
SPACE = Space((32, 64, 128, 256), 128, (150.0, 200.0, 250.0), 50)
EPOCHS = {32: 12.0, 64: 10.0, 128: 14.0, 256: 20.0}


@pytest.fixture(autouse=True)
def quick_files() -> Iterator[None]:
    """SQLite does not wait for the disk at each commit; only a loss of power would show the difference."""

    def quick(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", quick)
    yield
    event.remove(Engine, "connect", quick)


@pytest.fixture
def make() -> Iterator[Callable[..., JobStudy]]:
    """Makes studies that share a storage in memory, but where another one is given."""
    made: list[JobStudy] = []
    memory = optuna.storages.InMemoryStorage()

    def opened(
        name: str = "nightly", space: Space = SPACE, objective: Objective = ETA, **options: object
    ) -> JobStudy:
        storage = options.pop("storage", memory)
        made.append(JobStudy(name, space, objective, storage=storage, **{"seed": 1, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield opened
    for study in made:
        study.close()


def profile(batch_size: int) -> tuple[tuple[float, float, float], ...]:
    """An epoch of 1,000 s at 250 W and 128 samples; half as hungry and a fifth longer at 150 W."""
    slower = {150.0: 1.2, 200.0: 1.05, 250.0: 1.0}
    return tuple(
        (limit, 1000.0 * (1 + 8 / batch_size) * slower[limit], 0.9 * limit) for limit in SPACE.power_limits_w
    )


def finish(
    study: JobStudy, attempt: Attempt, state: str = "reached", epochs: float | None = None, **more: object
) -> Attempt:
    """End an attempt at its cost in these tests."""
    if attempt.purpose == "slice":
        return study.end(
            attempt,
            state="stopped",
            profile_time_s=3.0,
            profile_energy_j=500.0,
            profile=profile(attempt.batch_size),
        )
    epochs = EPOCHS[attempt.batch_size] if epochs is None else epochs
    known = attempt.power_limit_w or 150.0
    _, each_s, power_w = next(row for row in profile(attempt.batch_size) if row[0] == known)
    return study.end(
        attempt,
        state=state,
        epochs=epochs,
        time_s=epochs * each_s,
        energy_j=epochs * each_s * power_w,
        power_limit_w=known,
        profile=profile(attempt.batch_size) if attempt.power_limit_w is None else (),
        **more,
    )


def recur(study: JobStudy, times: int) -> list[Attempt]:
    done: list[Attempt] = []
    while len([a for a in done if a.state == "reached"]) < times:
        done.append(finish(study, study.ask()))
    return done


# asking and telling


def test_the_first_run_is_at_the_default_and_asks_for_a_profile(make: Callable[..., JobStudy]) -> None:
    attempt = make().ask(slices=False)
    assert (
        attempt.number,
        attempt.recurrence,
        attempt.batch_size,
        attempt.purpose,
        attempt.power_limit_w,
    ) == (0, 0, 128, "run", None)


def test_it_converges_and_reads_its_own_history(make: Callable[..., JobStudy]) -> None:
    study = make()
    done = recur(study, 15)
    last = done[-1]
    assert (last.batch_size, last.power_limit_w) == (64, 200.0)
    again = make()
    assert again.attempts == study.attempts
    assert again.evidence().count.tolist() == study.evidence().count.tolist()
    # The best, or a try of its neighbour.
    assert again.ask().batch_size in (32, 64)
    assert again.history()["state"].to_list().count("reached") == 15


def test_evidence_of_the_ledger_is_that_of_the_frame(make: Callable[..., JobStudy]) -> None:
    study = make()
    recur(study, 8)
    kept, counted = study.evidence(), Recorded(study.history(), SPACE).ledger.evidence()
    assert [run.epochs for run in kept.runs] == [run.epochs for run in counted.runs]
    np.testing.assert_allclose(kept.epoch_time_s, counted.epoch_time_s)
    np.testing.assert_allclose(kept.power_w, counted.power_w)
    np.testing.assert_allclose(kept.count, counted.count)


def test_a_retry_is_for_the_same_recurrence_and_a_success_ends_it(make: Callable[..., JobStudy]) -> None:
    study = make()
    finish(study, study.ask(slices=False), "stopped", 3.0)
    second = study.ask(slices=False)
    finish(study, second)
    assert [a.recurrence for a in (*study.attempts, study.ask())] == [0, 0, 2]


def test_profiling_is_booked_apart_and_counted_in_the_total(make: Callable[..., JobStudy]) -> None:
    study = make()
    finish(study, study.ask(slices=False), profile_time_s=10.0, profile_energy_j=2000.0)
    run = study.history().row(0, named=True)
    assert (run["time_s"], run["profile_time_s"]) == (pytest.approx(14 * 1000 * 1.0625 * 1.2), 10.0)
    evidence = study.evidence()
    assert evidence.spent_time_s == pytest.approx(run["time_s"] + 10.0)
    assert evidence.spent_energy_j == pytest.approx(run["energy_j"] + 2000.0)
    trial = study.study.trials[0]
    assert trial.value == pytest.approx(ETA.cost(evidence.spent_time_s, evidence.spent_energy_j))


def test_another_objective_rescores_the_history_without_a_run(make: Callable[..., JobStudy]) -> None:
    study = make()
    recur(study, 6)
    for objective, limit in ((Time(), 250.0), (Energy(), 150.0)):
        study.objective = objective
        attempt = study.ask()
        if attempt.purpose == "run":
            assert attempt.power_limit_w == limit
        study.end(attempt, state="interrupted")


def test_a_stopped_run_is_watched_by_the_policy(make: Callable[..., JobStudy]) -> None:
    study = make(policy="zeus", objective=Energy())
    first = finish(study, study.ask())
    second = study.ask()
    assert not study.watch(second, Progress(1.0, first.energy_j * 0.1))
    assert study.watch(second, Progress(1.0, first.energy_j * 1.9))
    assert "50" in study.watch(second, Progress(50.0, 1.0))


# what goes wrong


def test_running_out_of_memory_bars_all_that_is_not_smaller(make: Callable[..., JobStudy]) -> None:
    study = make()
    finish(study, study.ask())
    study.end(study.claim(256), state="crashed", oom=True)
    assert study.barred().keys() == {256}
    assert 256 not in {a.batch_size for a in recur(study, 12)}
    study.unblock(256)
    assert study.barred() == {}


def test_a_default_that_does_not_fit_gives_way_to_the_next_smaller_one(make: Callable[..., JobStudy]) -> None:
    study = make()
    study.end(study.ask(), state="crashed", oom=True)
    second = study.ask()
    assert (second.batch_size, second.recurrence) == (64, 0)


def test_crashes_bar_a_batch_size_only_where_others_end_well() -> None:
    crash, well = Attempt(0, 64, state="crashed"), Attempt(1, 128, state="reached", epochs=3.0)
    bars = Bars(SPACE)
    for each in (crash, crash, crash):
        bars.see(each)
    assert bars.out == {}  # a bug of the training, as far as one can tell
    bars.see(well)
    assert list(bars.out) == [64]
    bars.see(replace(crash, state="stopped"))
    assert bars.out == {}


def test_nothing_left_to_try_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="too large"):
        without(SPACE, dict.fromkeys(SPACE.batch_sizes, "too large"))


def test_a_target_that_cannot_be_reached_is_a_sentence_and_the_history_stays(
    make: Callable[..., JobStudy],
) -> None:
    study = make(space=replace(SPACE, batch_sizes=(64, 128), target=0.99))
    with pytest.raises(UsageError, match=r"0\.99"):
        _fail(study)
    assert len(study.attempts) >= 3
    assert len(study.study.trials) == len(study.attempts)


def _fail(study: JobStudy) -> None:
    for _ in range(20):
        finish(study, study.ask(), "failed", 50.0, metric=0.7)


@pytest.mark.parametrize(
    ("name", "value"), [("time_s", math.nan), ("time_s", -1.0), ("energy_j", math.inf), ("energy_j", -5.0)]
)
def test_numbers_that_cannot_be_are_refused_and_the_attempt_is_closed(
    make: Callable[..., JobStudy], name: str, value: float
) -> None:
    study = make()
    with pytest.raises(MeasurementError, match="was not recorded"):
        study.end(study.ask(), state="reached", epochs=3.0, **{"time_s": 1.0, "energy_j": 1.0, name: value})
    (kept,) = study.attempts
    assert (kept.state, kept.time_s, kept.energy_j) == ("crashed", 0.0, 0.0)


def test_other_batch_sizes_are_refused_and_accepted_when_asked_to(make: Callable[..., JobStudy]) -> None:
    recur(make(), 2)
    other = replace(SPACE, batch_sizes=(64, 128, 512))
    with pytest.raises(UsageError, match=r"\[64, 128, 512\]"):
        make(space=other)
    before = len(make().attempts)
    study = make(space=other, accept_changes=True)
    assert len(study.attempts) == before
    assert study.ask().batch_size in (64, 128, 512)


def test_a_damaged_file_is_refused_and_left_alone(make: Callable[..., JobStudy], tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"runs\.db"):
        make(storage=path)
    assert path.read_bytes() == b"this is no database" * 100


@pytest.mark.parametrize("damage", ["page", "trial", "study"])
def test_a_history_with_a_torn_page_or_damaged_text_is_refused(
    make: Callable[..., JobStudy], tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "runs.db"
    study = make(storage=path)
    finish(study, study.ask(slices=False))
    study.close()
    if damage == "page":
        pages = bytearray(path.read_bytes())
        pages[4096 * 3 : 4096 * 8] = os.urandom(4096 * 5)
        path.write_bytes(pages)
    else:
        with contextlib.closing(sqlite3.connect(path)) as database:
            spoiled = b"\xff\xfe" if damage == "trial" else b'{"batch_sizes": '
            database.execute(f"UPDATE {damage}_user_attributes SET value_json = CAST(? AS TEXT)", (spoiled,))
            database.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"runs\.db"):
        make(storage=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": "many"}, {"state": 3}, {"state": "flying"}, {"profile": [[1.0]]}, {"profile": 7},
        {"profile": [["a", 1.0, 2.0]]}, {"epochs": None}, {"recurrence": "x"},
        {"owner": ["me"]}, {"time_s": {}}, {"oom": 2}, {"target": []}, [], 3,
    ],
)  # fmt: skip
def test_a_record_of_wrong_types_costs_that_attempt_only(changes: Any) -> None:
    trials = [_trial(number, Attempt(number, 64, number, state="reached", epochs=10.0)) for number in (0, 1)]
    kept = {**trials[0].user_attrs[KEY], **changes} if isinstance(changes, dict) else changes
    trials[0].set_user_attr(KEY, kept)
    ledger = AttemptLedger(SPACE)
    ledger.read(trials)
    assert list(ledger.damaged) == [0]
    assert [each.number for each in ledger.attempts] == [1]


@pytest.mark.parametrize("kept", [1, [], {"format": 1}])
def test_a_study_without_its_description_is_refused(make: Callable[..., JobStudy], kept: object) -> None:
    make().study.set_user_attr(KEY, kept)
    with pytest.raises(StoreError, match="nightly"):
        make()


def test_recurrences_at_the_same_time_leave_no_rows_but_their_own(make: Callable[..., JobStudy]) -> None:
    studies = [make() for _ in range(4)]
    for _ in range(4):  # all ask before any of them ends, in turn
        begun = [(study, study.ask(slices=False)) for study in studies]
        for study, attempt in begun:
            finish(study, attempt)
    attempts = make().attempts
    assert len(attempts) == 16
    assert {each.state for each in attempts} == {"reached"}
    assert len({each.recurrence for each in attempts}) == 16


def test_another_programs_database_and_study_are_refused_and_left_alone(
    make: Callable[..., JobStudy], tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(StoreError, match="invoices"):
        make(storage=tmp_path / "runs.db")
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    foreign = optuna.create_study(storage=url, study_name="nightly")
    foreign.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=2)
    with pytest.raises(StoreError, match="lr"):
        make(storage=url)
    assert len(foreign.trials) == 2
    assert foreign.user_attrs == {}
    assert make("mine", storage=url).ask().number == 0  # in the same storage, under a name of its own


def test_a_storage_that_is_not_there_is_a_sentence(make: Callable[..., JobStudy], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no"):
        make(storage=tmp_path / "no" / "runs.db")
    with pytest.raises(StoreError, match="postgresql"):
        make(storage="postgresql+psycopg://nobody@127.0.0.1:9/none?connect_timeout=1")


# several processes


def run_python(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )  # type: ignore[call-overload, no-any-return]


COMMON = """
import sys
from workbench.search.batch_size.history import Space
from workbench.search.objective import ZeusCost
from workbench.experiments.history.study import JobStudy
study = JobStudy("nightly", Space((32, 64, 128, 256), 128, (150.0, 200.0, 250.0), 50), ZeusCost(0.5, 250.0), storage=sys.argv[1])
"""


def test_a_killed_process_leaves_an_attempt_that_is_found_and_closed(
    make: Callable[..., JobStudy], tmp_path: Path
) -> None:
    code = (
        COMMON
        + "a = study.ask(); study.update(a, epochs=2.0, time_s=50.0, energy_j=9000.0); print(a.number, "
          "flush=True); sys.stdin.read()"
    )
    child = run_python(code, tmp_path / "runs.db", stdin=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == "0\n"
    study = make(storage=tmp_path / "runs.db")
    assert study.attempts[0].state == "running"  # it still is
    assert study.close_stale() == []
    assert study.evidence().in_flight.sum() == 1
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert study.close_stale() == [0]
    (killed,) = study.attempts
    assert (killed.state, killed.epochs, killed.energy_j) == ("killed", 2.0, 9000.0)
    evidence = study.evidence()
    assert (evidence.in_flight.sum(), len(evidence.runs), evidence.spent_energy_j) == (0, 0, 9000.0)
    assert study.ask().recurrence == 0  # it is retried


def test_an_attempt_of_another_machine_is_waited_for_a_day() -> None:
    mine, elsewhere = (
        current_owner(),
        {**current_owner(), "host": f"not-{socket.gethostname()}"},
    )
    assert is_abandoned(mine, 0.0) == ""
    assert "is gone" in is_abandoned(
        {**mine, "started": "1"}, time.time()
    )  # another process has its number now
    assert is_abandoned(elsewhere, time.time() - 3600.0) == ""
    assert "25 hours" in is_abandoned(elsewhere, time.time() - 25 * 3600.0)
    assert "restarted" in is_abandoned({**mine, "boot": "another"}, time.time())


def test_a_late_result_counts_in_place_of_what_was_given_up(make: Callable[..., JobStudy]) -> None:
    study = make()
    attempt = study.ask(slices=False)
    elsewhere = study.update(
        attempt, owner={"host": "other", "pid": 1, "started": "1", "boot": ""}, heartbeat_unix_s=0.0, energy_j=7.0
    )
    other = make()  # which gives it up
    assert other.attempts[0].state == "killed"
    assert other.evidence().spent_energy_j == 7.0
    late = finish(study, elsewhere)
    assert (late.number, late.late_for) == (1, 0)
    assert other.evidence().spent_energy_j == pytest.approx(late.energy_j)
    assert [run.epochs for run in make().evidence().runs] == [14.0]
    assert make().evidence().spent_energy_j == pytest.approx(late.energy_j)


def test_one_that_asks_while_another_runs_does_not_explore(make: Callable[..., JobStudy]) -> None:
    first = make()
    recur(first, 2)
    running = first.ask()
    second = make(seed=2)
    for _ in range(3):
        attempt = second.ask()
        assert attempt.purpose == "run"
        assert any(run.arm == SPACE.batch_sizes.index(attempt.batch_size) for run in second.evidence().runs)
    assert running.number not in {a.number for a in second.attempts if a.ended}


@pytest.mark.slow
def test_two_processes_share_a_study_without_lost_or_doubled_trials(
    make: Callable[..., JobStudy], tmp_path: Path
) -> None:
    code = COMMON + textwrap.dedent("""
    for i in range(15):
        a = study.ask(slices=False)
        e = {32: 12.0, 64: 10.0, 128: 11.0, 256: 16.0}[a.batch_size]
        study.end(a, state="reached", epochs=e, time_s=e, energy_j=e * 100, metric=float(sys.argv[2]) + i, power_limit_w=200.0,
                  profile=((150.0, 1.0, 100.0), (200.0, 1.0, 120.0), (250.0, 1.0, 130.0)))
        print(a.number, flush=True)
    """)
    children = [run_python(code, tmp_path / "runs.db", start) for start in (0, 100)]
    told = [sorted(map(int, child.communicate(timeout=240)[0].split())) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    study = make(storage=tmp_path / "runs.db")
    attempts = [a for a in study.attempts if a.state != "withdrawn"]
    assert sorted(told[0] + told[1]) == [a.number for a in attempts]
    assert sorted(a.metric or 0.0 for a in attempts) == [*map(float, range(15)), *map(float, range(100, 115))]
    assert len(study.evidence().runs) == 30
    assert [t.number for t in study.study.trials] == list(range(len(study.study.trials)))
    assert sum(a.recurrence == b.recurrence for a in attempts for b in attempts if a.number < b.number) == 0


# Optuna


@pytest.mark.parametrize(
    "inner", [optuna.samplers.TPESampler(seed=1, n_startup_trials=3), optuna.samplers.RandomSampler(seed=1)]
)
def test_optunas_own_samplers_run_a_job(
    make: Callable[..., JobStudy], inner: optuna.samplers.BaseSampler
) -> None:
    study = make(policy=inner)
    done = recur(study, 8)
    assert {a.batch_size for a in done} <= set(SPACE.batch_sizes)
    assert len({a.batch_size for a in done}) > 1
    assert any(a.power_limit_w == 200.0 for a in done)  # the best limit, where it is known
    study.objective = Time()
    assert study.ask().batch_size in SPACE.batch_sizes


# as CSV


def test_a_history_is_read_as_it_was_written(make: Callable[..., JobStudy], tmp_path: Path) -> None:
    study = make()
    recur(study, 5)
    file = tmp_path / "history.csv"
    assert write_csv(study.attempts, file) == len(study.attempts)
    rows = read_csv(file)
    assert [replace(r, owner={}, stop_after_epochs=0.0, stop_after_cost=0.0) for r in rows] == [
        replace(a, owner={}, stop_after_epochs=0.0, stop_after_cost=0.0) for a in study.attempts
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("64,flying,1,1,1,", "flying"),
        ("0,reached,1,1,1,", "batch size 0"),
        ("64,reached,1,nan,1,", "nan s"),
        ("64,reached,1,1,-3,", "-3 J"),
        ("x,reached,1,1,1,", "'x'"),
        ('64,reached,1,1,1,"[[150.0, 2.0]]"', "expected 3, got 2"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "history.csv"
    head = "batch_size,state,epochs,time_s,energy_j,profile"
    file.write_text(f"{head}\n64,reached,1,1,1,\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"line 3 .*{sentence}"):
        read_csv(file)
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="batch_size, state"):
        read_csv(file)


# how much it costs


def test_only_new_attempts_are_read_again(make: Callable[..., JobStudy]) -> None:
    """A thousand attempts are counted once; a decision after that sees one."""
    ledger, rng = AttemptLedger(SPACE), np.random.default_rng(0)
    trials = [
        _trial(
            number,
            Attempt(
                number,
                64,
                number,
                state="reached",
                epochs=10.0,
                time_s=1e4,
                energy_j=1e6,
                profile=profile(64),
            ),
        )
        for number in range(1000)
    ]
    ledger.read(trials)
    ledger.evidence()
    counted: list[int] = []
    ledger.read(
        [
            *trials,
            _trial(
                1000, Attempt(1000, 64, 1000, state="reached", epochs=10.0, time_s=1e4, energy_j=1e6)
            ),
        ]
    )
    evidence = ledger.evidence()
    original = evidence.add
    evidence.add = lambda run, **more: (counted.append(run.arm), original(run, **more))[1]  # type: ignore[method-assign]
    ledger.evidence()
    assert counted == []
    assert len(evidence.runs) == 1001
    assert propose(ledger, make().policy, ETA, rng).batch_size in SPACE.batch_sizes


def _trial(number: int, attempt: Attempt) -> optuna.trial.FrozenTrial:
    trial = optuna.trial.create_trial(value=1.0, user_attrs={KEY: json.loads(json.dumps(attempt.as_json()))})
    trial.number = number
    return trial


# PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server: the one that WORKBENCH_POSTGRES names, or one of our own."""
    if named := os.environ.get("WORKBENCH_POSTGRES"):
        yield named
        return
    pytest.importorskip("psycopg", reason="psycopg is not installed, PostgreSQL's driver")
    # Debian keeps its tools out of the path.
    found = sorted(Path(os.environ.get("WORKBENCH_POSTGRES_TOOLS", "/usr/lib/postgresql")).glob("*/bin"))
    if not found and (tool := shutil.which("initdb")):
        found = [Path(tool).resolve().parent]
    if not found:
        assert os.environ.get("WORKBENCH_REQUIRE_POSTGRES") != "1", (
            "WORKBENCH_REQUIRE_POSTGRES=1 asks for PostgreSQL and there is none"
        )
        pytest.skip("there is no PostgreSQL here; .ci/run installs one")
    as_user: list[str] = []
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # PostgreSQL refuses to run as root
        if (
            shutil.which("runuser") is None
            or subprocess.run(["id", "postgres"], capture_output=True).returncode
        ):
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run it as")
        as_user = ["runuser", "-u", "postgres", "--"]
    # A socket's path has at most 107 characters. A free port might be taken before the server has it.
    home = Path(tempfile.mkdtemp(prefix="workbench-postgres-", dir="/tmp"))
    if as_user:
        shutil.chown(home, "postgres")
    tools, data = found[-1], home / "data"

    def call(*command: object) -> None:
        done = subprocess.run([*as_user, *map(str, command)], capture_output=True, text=True, cwd=home)
        assert done.returncode == 0, done.stderr

    try:
        call(tools / "initdb", "-D", data, "-U", "workbench", "-A", "trust", "--no-sync")
        call(
            tools / "pg_ctl",
            "-D",
            data,
            "-w",
            "-l",
            home / "log",
            "-o",
            f"-k {home} -c listen_addresses='' -c fsync=off",
            "start",
        )
        call(tools / "createdb", "-h", home, "-U", "workbench", "runs")
        yield f"postgresql+psycopg://workbench@/runs?host={home}"
        call(tools / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_postgresql_serves_many_machines(make: Callable[..., JobStudy], postgres: str) -> None:
    study = make(storage=postgres)
    recur(study, 3)
    code = (
        COMMON
        + "a = study.ask(slices=False); study.end(a, state='reached', epochs=10.0, time_s=1.0, "
          "energy_j=1.0); print(a.number)"
    )
    children = [run_python(code, postgres) for _ in range(2)]
    numbers = [int(child.communicate(timeout=240)[0]) for child in children]
    again = make(storage=postgres)
    ended = [a.number for a in again.attempts if a.state == "reached"]
    assert set(numbers) <= set(ended)
    assert len(set(numbers)) == 2
    assert again.history().height == study.history().height
