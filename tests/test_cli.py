"""The command line: its output and its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest

from workbench._processes import runs as alive
from workbench.cli import main
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.simulation.machine import Machine, attached
from workbench.simulation.state import ENVIRONMENT_VARIABLE

Simulated = Callable[..., Machine]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def no_session(simulated: Simulated) -> Iterator[None]:
    sessions.current().close()
    yield
    sessions.current().close()
    if os.environ.get(ENVIRONMENT_VARIABLE) and (made := attached()) is not None:
        made.close()


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "devices", list)
    monkeypatch.setattr(sessions, "why_no_gpu", lambda: "no driver")


def outcome(label: str) -> str:
    """How the newest run with a label ended, for runs that did not end well."""
    with pytest.warns(UserWarning, match="is complete; this is the newest"):
        return Store().find(label).outcome



# run


def test_a_command_is_measured_and_its_status_is_ours(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "m.json"
    code = (
        "import os, sys, time; time.sleep(0.3); print(os.environ['WORKBENCH_SIMULATED_GPUS'] != ''); "
        "sys.exit(3)"
    )
    options = ["--simulate", "V100,A100", "--label", "nightly", "--json", str(target)]
    status = main(["run", *options, "--", PYTHON, "-c", code])
    reported = capfd.readouterr()
    assert status == 3
    assert reported.out == "True\n"  # the command has its output to itself, and sees the same GPUs
    assert reported.err.startswith("nightly: ")
    assert " ± " in reported.err
    assert all(part in reported.err for part in ("2 GPUs", "error", "simulated"))
    values = json.loads(target.read_text())
    assert (values["label"], values["outcome"], values["simulated"]) == ("nightly", "error", True)
    assert values["time_s"] >= 0.3
    idle_w = 26.0 + 40.0
    assert 0.5 * idle_w < values["mean_power_w"] < 2 * idle_w
    stored = Store()
    assert outcome("nightly") == "error"
    trace = stored.trace(values["id"])
    assert trace is not None
    assert trace["uuid"].n_unique() == 2


def test_one_gpu_of_several_is_counted_when_asked_for(
    simulated: Simulated, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated("V100,A100", scale=4.0)
    assert main(["run", "--gpu", "1", "--", PYTHON, "-c", "pass"]) == 0
    assert [gpu.name.split()[0] for gpu in Store().find(Path(PYTHON).name).gpus] == ["NVIDIA"]


def test_the_period_is_detected_from_three_seconds_on_or_when_asked_for(
    simulated: Simulated, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    simulated("V100", scale=0.25)  # an interpreter starts in far less than twelve seconds
    found = []
    for options in ([], ["--period"], ["--no-period"]):
        target = tmp_path / "m.json"
        assert main(["run", "--json", str(target), *options, "--", PYTHON, "-c", "pass"]) == 0
        found.append(json.loads(target.read_text())["iterations"])
    assert found[0] is None
    assert (found[1]["count"], found[1]["source"]) == (0, "none")
    assert found[2] is None
    assert "; no iterations found (" in capfd.readouterr().err


def test_without_a_gpu_the_command_runs_and_the_reason_is_printed(
    no_gpu: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", PYTHON, "-c", "pass"]) == 0
    reported = capfd.readouterr().err
    assert "no energy: " in reported
    assert "no driver" in reported
    assert "J," not in reported


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_gives_the_status_that_a_shell_would(no_gpu: None, number: signal.Signals) -> None:
    status = main(["run", "--", PYTHON, "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert status == 128 + number


def run_in_the_foreground(label: str, code: str, number: signal.Signals) -> subprocess.Popen[str]:
    """Start `workbench run` with the default action of a signal, which `nohup` may have taken from us."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        run = [PYTHON, "-m", "workbench.cli", "run", "--simulate", "V100", "--label", label]
        return subprocess.Popen(
            [*run, "--", PYTHON, "-c", code],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
    finally:
        signal.signal(number, before)


def test_an_interrupted_command_is_measured_all_the_same() -> None:
    code = "import time\nprint('started', flush=True)\ntime.sleep(200)"
    process = run_in_the_foreground("stopped", code, signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, reported = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "stopped: " in reported
    assert "interrupted, simulated" in reported
    assert outcome("stopped") == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_to_the_command_and_what_it_cost_is_kept(number: signal.Signals) -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(200)"
    process = run_in_the_foreground("ended", code, number)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(number)
    _, reported = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert not alive(child)
    assert "interrupted, simulated" in reported
    assert outcome("ended") == "interrupted"


def test_the_command_can_be_interrupted_and_what_was_ignored_stays_so(
    no_gpu: None, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = (
            "import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in (signal.SIGHUP, "
            "signal.SIGINT)])"
        )
        assert main(["run", "--", PYTHON, "-c", code]) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGINT, interrupt)
    assert capfd.readouterr().out == "[True, False]\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "no command"),
        (["run", "--"], "no command"),
        (["run", "--", "no-such-program"], "no-such-program"),
        (["run", "--simulate", "Z9000", "--", PYTHON], "Z9000"),
        (["run", "--simulate", "V100", "--gpu", "7", "--", PYTHON], "7"),
        (["run", "--json", "absent/m.json", "--", PYTHON], "directory absent"),
        (["log", "--export", "energy.xlsx"], ".parquet, .csv, .json"),
        (["notebooks", "/dev/null"], "/dev/null"),
        (["notebooks", "x" * 300], "too long"),
        (["log", "--export", "/dev/null/e.csv"], "directory /dev/null"),
    ],
)
def test_an_impossible_command_prints_one_line(
    capfd: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert main(arguments) == 2
    reported = capfd.readouterr()
    assert reported.err.startswith("workbench: ")
    assert part in reported.err
    assert reported.err.count("\n") == 1
    assert reported.out == ""


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["log", "--last", "many"]])
def test_what_argparse_does_not_understand_ends_with_two(
    capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: workbench" in capfd.readouterr().err


def test_a_full_disk_costs_the_log_and_not_the_answer(
    no_gpu: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["run", "--", PYTHON, "-c", "import sys; sys.exit(4)"]) == 4
    assert "not stored" in capfd.readouterr().err


# log, gpus, notebooks


def test_the_log_shows_and_exports_measurements(
    no_gpu: None, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for label in ("first", "second", "third"):
        main(["run", "--label", label, "--", PYTHON, "-c", "pass"])
    capfd.readouterr()
    assert main(["log", "--last", "2"]) == 0
    shown = capfd.readouterr().out
    assert "third" in shown
    assert "first" not in shown
    assert main(["log", "--export", str(tmp_path / "e.csv")]) == 0
    assert "3 measurements" in capfd.readouterr().out
    assert pl.read_csv(tmp_path / "e.csv")["label"].to_list() == ["first", "second", "third"]


def test_an_empty_log_is_shown_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["log"]) == 0
    assert "Nothing is measured" in capfd.readouterr().out


def test_a_damaged_file_in_the_log_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    directory = Store().directory / "measurements"
    directory.mkdir(parents=True)
    (directory / "m-bad.parquet").write_text("no")
    assert main(["log"]) == 0
    assert "m-bad.parquet" in capfd.readouterr().err


def test_the_gpus_are_listed_with_their_abilities(
    simulated: Simulated, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated("V100,P100,A100", stepped=True)
    assert main(["gpus"]) == 0
    reported = capfd.readouterr().out
    assert reported.count("GPU ") >= 3
    for part in ("100..250 W", "no energy counter", "every 20 ms", "every 101 ms", "without: lock_mem_clock"):
        assert part in reported


def test_without_gpus_the_list_names_the_simulated_ones(
    no_gpu: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpus"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("no driver")
    assert "workbench run --simulate A100 -- python" in shown


def test_the_notebooks_are_copied_and_never_overwritten(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "new" / "notebooks"
    assert main(["notebooks", str(target)]) == 0
    copied = sorted(path.name for path in target.iterdir())
    assert copied
    assert copied[0].startswith("00")
    (target / copied[0]).write_text("mine")
    capfd.readouterr()
    assert main(["notebooks", str(target)]) == 0
    assert str(target / copied[0]) in capfd.readouterr().out
    assert (target / copied[0]).read_text() == "mine"


# run --tune

JOB = """
from workbench.simulation.training import TrainingJob
TrainingJob("imagenet", 512, iterations=2, evaluate=False).run()
"""


def test_a_command_is_tuned_and_the_gpu_is_restored(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "train.json"
    options = ["--simulate", "A100", "--tune", "--max-slowdown", "3", "--json", str(written)]
    status = main(["run", *options, "--", PYTHON, "-c", JOB])
    reported = capfd.readouterr().err
    assert status == 0
    assert "workbench: not tuned: " in reported  # two iterations are no time to find anything
    assert sessions.current().devices[0].setting().power_limit_w == 400.0
    tuning = json.loads(written.read_text(encoding="utf-8"))["tuning"]
    assert tuning["settled_s"] is None
    assert tuning["reason"] in reported


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--tune", "--max-slowdown", "130"], "130 is outside 0 to 100"),
        (["--tune", "--objective", "joy"], "choose energy, edp"),
        (["--objective", "edp"], "--objective needs --tune"),
    ],
)
def test_a_bad_tuning_option_is_reported_before_anything_runs(
    capfd: pytest.CaptureFixture[str], no_gpu: None, options: list[str], part: str
) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["run", *options, "--", PYTHON, "-c", "print('ran')"]) == 2
    reported = capfd.readouterr()
    assert part in reported.err
    assert reported.out == ""


# what comes after the command never takes its status


def test_a_program_whose_name_is_no_utf_8_is_measured_and_kept(
    simulated: Simulated, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated("V100", scale=4.0)
    program = tmp_path / os.fsdecode(b"tr\xe9n.sh")
    try:
        program.write_text("#!/bin/sh\nexit 7\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    program.chmod(0o755)
    for label in ([], ["--label", os.fsdecode(b"n\xe9t")]):
        assert main(["run", *label, "--", str(program)]) == 7
    assert [outcome(name) for name in ("tr?n.sh", os.fsdecode(b"n\xe9t"))] == ["error", "error"]


class Panic(BaseException):
    """As Polars' panics, no Exception."""


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), OSError("broken"), Panic("broken"), SystemExit(99)]
)
@pytest.mark.parametrize(
    "where",
    [
        "workbench.measurement.meter.Meter.close",
        "workbench.measurement.meter.Meter.measure",
        "workbench.measurement.session.keep",
    ],
)
def test_a_measurement_that_fails_leaves_the_commands_status(
    no_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    where: str,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, fails)
    assert main(["run", "--", PYTHON, "-c", "import sys; sys.exit(5)"]) == 5
    assert f"measurement was lost: {type(error).__name__}" in capfd.readouterr().err


def test_a_session_that_cannot_be_made_leaves_the_command_to_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise FileNotFoundError(2, "nothing usable")

    monkeypatch.setattr(sessions, "devices", fails)
    assert main(["run", "--", PYTHON, "-c", "import sys; sys.exit(5)"]) == 5
    assert "nothing usable. To try a simulated one: --simulate A100" in capfd.readouterr().err


class Ended:
    """A command that has ended well."""

    commands: ClassVar[list[list[str]]] = []

    def __init__(self, command: list[str]) -> None:
        self.commands.append(list(command))

    def wait(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("command", "label"),
    [
        (["/usr/bin/python3", "-u", "train.py", "--lr", "1"], "train.py"), (["python", "-m", "train.main"], "train.main"),
        (["python", "-c", "pass"], "python"), (["python3.11", "-W", "ignore", "runs/b.py"], "b.py"), (["/opt/bench"], "bench"),
    ],
)
def test_a_run_is_called_by_its_script(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, command: list[str], label: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setattr(shutil, "which", lambda program: program)
    assert main(["run", "--", *command]) == 0
    assert Store().log()["label"].to_list() == [label]


def test_the_lab_passes_unknown_options_to_jupyter_lab_and_opens_the_first_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_gpu: None
) -> None:
    (tmp_path / "01_first.ipynb").write_text("{}")
    Ended.commands.clear()
    monkeypatch.setattr(subprocess, "Popen", Ended)
    assert main(["lab", "--directory", str(tmp_path), "--ip", "0.0.0.0", "--no-browser", "--port", "1"]) == 0
    assert Ended.commands[0][-5:] == ["--ip", "0.0.0.0", "--no-browser", "--port", "1"]
    assert "--LabApp.default_url=/lab/tree/01_first.ipynb" in Ended.commands[0]
    assert main(["lab", "--directory", str(tmp_path), "--", "--no-browser"]) == 0
    assert Ended.commands[1][-1] == "--no-browser"
    assert main(["lab", "--directory", str(tmp_path / "new")]) == 0
    assert sorted(tmp_path.glob("new/*.ipynb"))[0].name in " ".join(Ended.commands[2])
