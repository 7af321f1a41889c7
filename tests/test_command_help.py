"""For scripts: help with examples that work, completion, and one JSON object wherever something is reported."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from kernels_ext.commands import SCHEMA
from workbench.cli import main
from workbench.measurement import session as sessions
from workbench.simulation.machine import Machine, attached
from workbench.simulation.state import ENVIRONMENT_VARIABLE


def help_of(*command: str) -> str:
    """The help of the program, or of one of its commands."""
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return page.getvalue()


COMMANDS = {name: help_of(name) for name in re.findall(r"^    ([a-z][a-z-]+)(?= |$)", help_of(), flags=re.MULTILINE)}
SILENT = {"lab", "serve-metrics", "completion"}  # two run until they are ended, the last prints a script
JOB = [sys.executable, "-c", "pass"]


@pytest.fixture(autouse=True)
def no_session(simulated: Callable[..., Machine]) -> Iterator[None]:
    sessions.current().close()
    yield
    sessions.current().close()
    if os.environ.get(ENVIRONMENT_VARIABLE) and (made := attached()) is not None:
        made.close()


def examples(page: str) -> list[str]:
    lines = page.partition("\nExamples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in lines.splitlines() if line.strip()]


def arguments_of(example: str) -> list[str]:
    """The arguments of `workbench` in a line of a shell."""
    line = example.removeprefix('eval "$(').replace(')"', "").partition(" | ")[0]
    return shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_that_are_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = examples(COMMANDS[name])
    assert lines
    assert all(len(line) < 108 for line in COMMANDS[name].splitlines())
    parsed, parse = [], argparse.ArgumentParser.parse_known_args

    def only_parsed(parser: argparse.ArgumentParser, given: list[str] | None = None, namespace: Any = None) -> Any:
        found = parse(parser, given, namespace)
        if namespace is None:  # the program's own, and all its commands have parsed
            parsed.append(found)
            raise SystemExit
        return found

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", only_parsed)
    for line in lines:
        assert arguments_of(line)[0] == name
        assert line.partition("#")[2].strip(), f"{line}: what is it for?"
        with pytest.raises(SystemExit):
            main(arguments_of(line))
        found, others = parsed.pop()
        assert not others or name == "lab", others
        assert found.name == name


def test_the_first_help_names_all_commands_examples_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    reported = help_of()
    assert set(COMMANDS) >= SILENT | {"run", "log", "report", "gpus"}
    assert examples(reported)
    assert "Exit status" in reported
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"workbench {workbench.__version__}\n"


# completion


def completions(line: str, directory: Path) -> list[str]:
    """The completions that a shell offers for the end of a line."""
    found = directory / "completions"
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(found), "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line, "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, "-m", "workbench.cli"], env=environment, check=True)
    return [each.split("\013")[0].strip() for each in found.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [("workbench re", ["report", "restore"]), ("workbench run --over c", ["clocks"]), ("workbench completion z", ["zsh"])],
)
def test_a_shell_is_offered_commands_options_and_choices(line: str, offered: list[str], tmp_path: Path) -> None:
    assert completions(line, tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


# --json


def answer(capfd: pytest.CaptureFixture[str], *text: str, status: int = 0) -> dict[str, object]:
    """The standard output of a command: one JSON object, with messages elsewhere."""
    capfd.readouterr()
    assert main(list(text)) == status
    found = json.loads(capfd.readouterr().out)
    assert found["command"] == text[0]
    assert found["schema"] == SCHEMA
    return found


def test_every_command_that_reports_can_report_json() -> None:
    for name in set(COMMANDS) - SILENT:
        assert "--json" in COMMANDS[name], name


def test_a_measurement_is_the_same_object_in_run_log_import_and_compare(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ran = answer(capfd, "run", "--simulate", "V100", "--label", "a", "--json", "-", "--", *JOB)
    main(["run", "--label", "b", "--", *JOB])
    logged = answer(capfd, "log", "--json")["measurements"]
    assert [each["label"] for each in logged] == ["a", "b"]
    assert set(logged[0]) | {"schema", "command"} == set(ran)
    for name in ("id", "energy_j", "energy_uncertainty_j", "time_s", "simulated"):
        assert logged[0][name] == ran[name]
    assert answer(capfd, "log", "--last", "1", "--json")["measurements"] == logged[1:]
    compared = answer(capfd, "log", "--compare", "a", "b", "--json")
    assert compared["measurements"] == logged
    assert compared["energy_change"] is None
    assert compared["not_compared"]  # nothing is known of the work of either
    power = tmp_path / "power.csv"
    power.write_text("timestamp, power.draw [W]\n" + "".join(
        f"2026/11/22 10:00:{second:02d}.000, 250.00 W\n" for second in range(20)))
    (brought,) = answer(capfd, "import", str(power), "--json", "-")["measurements"]
    assert set(brought) == set(logged[0])


def test_gpus_doctor_and_restore_answer(capfd: pytest.CaptureFixture[str], simulated: Callable[..., Machine]) -> None:
    simulated("V100", scale=4.0)
    (gpu,) = answer(capfd, "gpus", "--json")["gpus"]
    assert (gpu["index"], gpu["simulated"], gpu["limits"]["max_power_limit_w"]) == (0, True, 250.0)
    assert gpu["setting"]["power_limit_w"] == 250.0
    assert {"name", "present", "reason"} == set(gpu["capabilities"][0])
    assert answer(capfd, "restore", "--dry-run", "--json") == {
        "schema": 1, "command": "restore", "done": True, "dry_run": True, "messages": []}
    found = answer(capfd, "doctor", "--no-load", "--seconds", "1", "--json")
    assert {"fail", "warn", "gpus"} <= set(found)


def test_a_report_is_verified_and_notebooks_are_copied(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["run", "--simulate", "V100", "--label", "a", "--", *JOB])
    page = tmp_path / "a.md"
    main(["report", "a", "-o", str(page)])
    assert answer(capfd, "verify", str(page), "--json")["differences"] == []
    page.write_text(page.read_text().replace(" J", "1 J"))
    assert answer(capfd, "verify", str(page), "--json", status=1)["differences"]
    assert json.loads(printed(capfd, "report", "a", "--json"))["mark"]
    copied = answer(capfd, "notebooks", str(tmp_path / "books"), "--json")
    assert len(copied["copied"]) > 5
    assert answer(capfd, "notebooks", str(tmp_path / "books"), "--json")["kept"] == copied["copied"]


def printed(capfd: pytest.CaptureFixture[str], *text: str) -> str:
    capfd.readouterr()
    assert main(list(text)) == 0
    return capfd.readouterr().out


def test_a_profile_is_planned(capfd: pytest.CaptureFixture[str]) -> None:
    found = answer(capfd, "profile-gpu", "--simulate", "A100", "--list", "--json")
    assert found["left"] == found["measurements"] > 0
    assert found["models"] == []
    assert found["workloads"]


def test_errors_stay_off_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "/nowhere.md", "--json"]) == 2
    reported = capfd.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("workbench: ")
