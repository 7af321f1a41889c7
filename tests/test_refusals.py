"""Wrong values of every option and argument are refused before anything runs. The message has the value, the allowed
ones and the remedy. No option is ignored, replaced or widened in silence.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench
from kernels_ext.magics import EnergyMagics
from workbench import Setting, cli
from workbench.errors import DeviceError, NotPermitted
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.records import GpuMeasurement, IterationSummary, Measurement
from workbench.simulation.machine import Machine
from workbench.tariff import Tariff

GPU = GpuMeasurement("A100", "GPU-1", 100.0, 1.0, "counter", True)
ITERATIONS = IterationSummary(10, 0.1, 0.001, 10.0, 0.1, "marks")


def stored(number: str, label: str, **more: Any) -> None:
    run = Measurement(number, label, 1.7e9 + len(number), 1.0, (GPU,), **{"iterations": ITERATIONS, **more})
    Store().save(run)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with two labels, and a label whose newest run has failed."""
    monkeypatch.chdir(tmp_path)
    stored("a1", "base")
    stored("a22", "other")
    stored("a333", "mine", outcome="ok")
    stored("a4444", "mine", outcome="error")
    stored("b1", "failed", outcome="error")
    Path("folder").mkdir()
    rows = "".join(f"2026/11/20 10:00:{second:02d}.000, 100 W\n" for second in range(30))
    Path("smi.csv").write_text("timestamp, power.draw [W]\n" + rows)


@pytest.fixture
def shell(machine: Machine, log: None) -> Iterator[Callable[[str], str]]:
    """Run a cell; returns its error and printed text."""
    made = InteractiveShell()
    made.run_cell("%load_ext kernels_ext\nimport math", silent=True)
    made.user_ns["clock"] = sessions.current().meter.clock
    made.run_cell("def small(): clock.sleep(1.0)\ndef second(): clock.sleep(1.0)\nran, five = 0, 5", silent=True)

    def run(cell: str) -> str:
        result = made.run_cell(cell)
        return str(result.error_in_exec or result.error_before_exec or "accepted")

    yield run
    made.run_cell("%unload_ext kernels_ext", silent=True)


# the cell or statement is not run


CELLS = (
    "--gpus 5", "--gpus 0,5", "--gpus=5", "--gpus 0 --gpus 9", "--gpus ''", "--gpus ,", "--gpus cpu", "--gpus GPU-zz",
    "--gpus GPU-", "--gpus sim:A100", "--repeat 0", "--repeat 1.5", "--repeat x", "-o 3x", "-o ''", "--live --quiet",
    "--objective '' --tune", "--objective fast --tune", "--over all --tune", "--max-slowdown nan --tune", "--over power",
    "--max-slowdown 5", "--warm-start", "--tuen", '"open',
)


def test_a_cell_and_a_statement_with_a_wrong_option_do_not_run(shell: Callable[[str], str]) -> None:
    for line in CELLS:
        assert "The cell was not run." in (cell := shell(f"%%energy {line}\nran += 1")), line
        assert "accepted" not in shell(f"%energy {line}  globals().update(ran=1)"), line
        value = line.split()[1] if " " in line else line.rpartition("=")[2].strip('"')
        assert value.strip("'") in cell or line.split()[0] in cell
        assert "?." not in cell
    assert shell("assert ran == 0") == "accepted"


def test_the_gpus_that_are_there_are_named(shell: Callable[[str], str]) -> None:
    assert shell("%%energy --gpus 5\nran += 1") == "--gpus 5: GPU 5 not found; available: 0. The cell was not run."
    assert "0: Tesla V100" in shell("%%energy --gpus cpu\nran += 1")


def test_a_driver_that_cannot_answer_now_keeps_no_cell_from_running(
    machine: Machine, shell: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise DeviceError("the driver is busy")

    monkeypatch.setattr(sessions.Session, "uuids", busy)
    assert shell("%%energy --gpus 0\nran += 1") == "accepted"
    assert shell("assert ran == 1") == "accepted"


def test_half_a_character_is_named(shell: Callable[[str], str]) -> None:
    for statement in ("'\ud800'", "\ud800", "--gpus 0 '\udfff'"):
        assert r"\ud" in (answer := shell(f"%energy {statement}"))
        assert "remove it" in answer


COMPARED = [
    ("small large", "small is a function, large is not defined. Define large as a function, or compare two labels of "
     "the log with --labels"),
    ("large small", "large is not defined, small is a function. Define large"),
    ("base small", "base is not defined, small is a function"), ("small five", "five is no function"),
    ("small() second()", "small() calls a function; omit the parentheses: small"), ("base small()", "omit the parent"),
    ("--labels base nope", "labelled 'nope'"), ("--labels small second", "labelled 'small'"),
    ("nope base", "labelled 'nope'"), ("base base", "compared with itself"), ("base", "NAME"),
    ("base other --gpus 0", "--gpus are for work that runs now"), ("base other --paired 3", "was measured as 'base'"),
    ("--labels base other --paired 3", "--paired and --gpus"), ("small second --gpus 5", "GPU 5 not found"),
    ("small second --paired 0", "at least 2 pairs"), ("small second --paired x", "--paired x: give a whole number"),
    ("base other --tuen", "--tuen is unknown"), ("base failed", "no run labelled 'failed' is complete"),
]


def test_two_names_that_cannot_be_compared_are_described(shell: Callable[[str], str]) -> None:
    found = {line: shell(f"%energy_compare {line}") for line, _ in COMPARED}
    assert [(line, found[line]) for line, answer in COMPARED if answer not in found[line]] == []


def test_a_comparison_of_labels_is_marked_as_one_from_the_log(
    shell: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(EnergyMagics, "say", lambda _, text: told.append(text))
    for cell in ("%energy_compare base other", "base = None", "%energy_compare --labels base other"):
        assert shell(cell) == "accepted"
    assert told == 2 * ["compared from the log: 2 logged runs"]


LOGGED = (
    ("--last 0", "1 or more"), ("--last x", "--last x: give a whole number"), ("--label nope", "labelled 'nope'"),
    ("--label ''", "--label: an empty value"), ("--export ''", "--export: an empty value"), ("--export folder", "ends in none of"),
    ("--compare base nope", "labelled 'nope'"), ("--compare base other --label base", "--label lists runs"),
    ("--compare base other --last 1", "--last lists runs"), ("--compare base other --export a.csv", "--export lists"),
    ("extra", "extra is unknown"),
)


def test_options_of_the_log_are_refused_in_a_notebook(shell: Callable[[str], str]) -> None:
    found = {line: shell(f"%energy_log {line}") for line, _ in LOGGED}
    assert [(line, found[line]) for line, answer in LOGGED if answer not in found[line]] == []


def test_an_export_does_not_show_the_table_too(shell: Callable[[str], str]) -> None:
    assert shell("shown = get_ipython().run_line_magic('energy_log', '--export all.csv')\nassert shown is None") == "accepted"
    assert Path("all.csv").is_file()


def test_a_wrong_line_of_gpu_names_what_there_is(shell: Callable[[str], str]) -> None:
    for line in ("fast", "simulate", "restore 0", "advise now", "simulate T4"):
        assert "%gpu simulate CARD" in (answer := shell(f"%gpu {line}")) or "there are V100" in answer


# the command line


COMMANDS = [
    ("run --gpus 5 -- true", "GPU 5 not found; available: 0"), ("run --gpus  -- true", "--gpus: an empty value"),
    ("run --simulate  -- true", "an empty value follows"), ("run --simulate= -- true", "an empty value follows"),
    ("run --label  -- true", "--label: an empty value"), ("run --json folder -- true", "is a directory"),
    ("run --json none/a -- true", "no directory none"), ("run --job-id 4 -- true", "--job-id 4 needs --job-dir"),
    ("run --max-slowdown 5 -- true", "--max-slowdown needs --tune. Add --tune, or remove --max-slowdown"),
    ("run --tune --over all -- true", "choose power, clocks, both"), ("run nosuch", "no program 'nosuch'"),
    ("job none", "none is no directory, and no measurement is labelled 'none'"), ("job ", "an empty value follows"),
    ("job base --job-id 4", "'base' is no directory"), ("job folder", "no readable log"),
    ("log --last x", "--last x: give a whole number"), ("log --last 0", "1 or more"), ("log --label nope", "'nope'"),
    ("log --label ", "--label: an empty value"), ("log --export ", "--export: an empty value"), ("log --export a.txt", ".parquet"),
    ("log --compare base nope", "'nope'"), ("log --compare base other --last 3", "--last lists runs"),
    ("log --compare base other --export a.csv", "--export lists runs"), ("log --json folder", "is a directory"),
    ("report nope", "'nope'"), ("report ", "an empty value follows"), ("report --label ", "--label: an empty value"),
    ("report --last 0", "1 or more"), ("report --since today", "2026-11-22"), ("report --since 2999-01-01", "no meas"),
    ("report --pue 0.5", "1 or more"), ("report --pue inf", "1 or more"), ("report --g-co2-per-kwh nan", "0 or more"),
    ("report --intensity-source grid", "g_co2_per_kwh"), ("report --latex -o a.md", "remove --latex"),
    ("report -o ", "-o: an empty value"), ("report -o folder", "is a directory"), ("report -o none/a.md", "no directory none"),
    ("report -o a.docx", ".md, .tex"), ("import smi.csv --every 0", "--every 0"), ("import smi.csv --every nan", "nan"),
    ("import folder", "folder"), ("import none.csv", "No such file"), ("waste --label nope", "'nope'"),
    ("waste --last 0", "1 or more"), ("waste --since x", "2026-11-22"), ("waste --price -1", "0 or more"),
    ("waste --price nan", "0 or more"), ("waste --currency USD", "--currency USD needs --price"),
    ("waste smi.csv --last 3", "--last chooses runs"), ("verify smi.csv", "is no report"), ("verify folder", "folder"),
    ("profile-gpu --gpus 5", "GPU 5 not found"), ("profile-gpu --seconds -1", "0.2 to 600"),
    ("profile-gpu --list --output folder", "is a directory"), ("profile-gpu --list --output none/a", "no directory"),
    ("share --gpus 5 true true", "GPU 5 not found"), ("share --rounds 0 true true", "rounds=0"),
    ("share --stage-s x true true", "--stage-s x: give a number"), ("share true  --rounds 2", "an empty value follows"),
    ("serve-metrics --gpus 5", "GPU 5 not found"), ("serve-metrics --every nan", "0.1 to 3600"),
    ("serve-metrics --port -1", "0 to 65535"), ("serve-metrics --port 70000", "0 to 65535"),
    ("doctor --gpus 5", "GPU 5 not found; available: 0"), ("doctor --seconds -1", "--seconds -1: give seconds above 0"),
    ("doctor --seconds nan", "--seconds nan"), ("doctor --record folder", "is a directory"),
    ("doctor --record a.jsonl --seconds -1", "--seconds -1"), ("doctor --record a --report b", "give one of them"),
    ("notebooks ", "an empty value follows"), ("completion tcsh", "bash, zsh, fish"), ("gpus --gpus 5", "not an option of gpus"),
]


def test_a_wrong_value_of_the_command_line_is_refused_with_status_2(
    machine: Machine, log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for line, answer in COMMANDS:
        try:
            status: Any = cli.main(line.split(" "))
        except SystemExit as error:
            status = error.code
        printed = capsys.readouterr()
        if status != 2 or answer not in printed.err or printed.out:
            wrong.append((line, answer, status, printed.err[-200:], printed.out[-100:]))
    assert wrong == []


def test_an_empty_argument_of_the_measured_command_is_its_own(machine: Machine, log: None) -> None:
    assert cli.main(["run", "--", "test", ""]) == 1
    assert cli.main(["run", "echo", "--x=", ""]) == 0


# functions


def work() -> None:
    sessions.current().meter.clock.sleep(1.0)


def two(value: int) -> None:
    raise AssertionError


LOW, HIGH = Setting(power_limit_w=150.0), Setting(power_limit_w=200.0)
FUNCTIONS: list[tuple[str, Callable[[], object], str]] = [
    ("measure gpus", lambda: workbench.measure("a", gpus=5).__enter__(), "available: 0"),
    ("track gpus", lambda: workbench.track([], gpus=5), "available: 0"),
    ("settings gpus", lambda: workbench.gpu_settings(power_limit_w=200.0, gpus=5).__enter__(), "available: 0"),
    ("settings none", lambda: workbench.gpu_settings(power_limit_w=200.0, gpus=[]).__enter__(), "names no GPU"),
    ("device", lambda: workbench.open_device(""), "available: 0"),
    ("device prefix", lambda: workbench.open_device("GPU-"), "available: 0"),
    ("control gpus", lambda: workbench.gpu_control(5), "available: 0"),
    ("sweep gpus", lambda: workbench.sweep(two, {"batch_size": [1]}, gpus=5), "available: 0"),
    ("tune gpus", lambda: workbench.tune(gpus=5).begin(), "available: 0"),
    ("compare gpus", lambda: workbench.compare(work, work, gpus=5), "available: 0"),
    ("job gpus", lambda: workbench.RecurringJob("a", [32], gpus=5), "available: 0"),
    ("share gpus", lambda: workbench.share("true", "true", gpus=5), "available: 0"),
    ("sink gpus", lambda: workbench.log_to("a.csv", gpus=5), "available: 0"),
    ("sink none", lambda: workbench.log_to("a.csv", gpus=[]), "names no GPU"),
    ("panel store", lambda: workbench.panels.log(5), "expected a store of runs, got int"),  # type: ignore[arg-type]
    ("panel gpus", lambda: workbench.panels.apply(HIGH, gpus=5), "available: 0"),
    ("trace", lambda: workbench.trace_of(""), "is empty"), ("iterations", lambda: workbench.iterations_of(""), "is empty"),
    ("show", lambda: workbench.show(""), "names nothing"), ("job", lambda: workbench.read_job(""), "no directory"),
    ("job id", lambda: workbench.read_job("base", "4"), "no directory with several jobs"),
    ("id", lambda: workbench.trace_of("a"), "begins the ids a1, a22"),
    ("report", lambda: workbench.report(""), "is empty"), ("report label", lambda: workbench.report(label=""), "is empty"),
    ("report source", lambda: workbench.report(intensity_source="x"), "g_co2_per_kwh"),
    ("waste label", lambda: workbench.waste("base", label="other"), "label='other'"),
    ("waste last", lambda: workbench.waste("base", last=0), "last=0"),
    ("waste frame", lambda: workbench.waste(pl.DataFrame({"a": [1]}), since="x"), "since='x'"),
    ("waste other", lambda: workbench.waste({"0": 5}), "no measurement, label, log or trace"),
    ("waste tariff", lambda: workbench.waste("base", tariff=5), "0 or more"),  # type: ignore[arg-type]
    ("waste price", lambda: workbench.waste("base", tariff=Tariff(-1.0)), "-1 per kWh: give 0 or more"),
    ("compare labels", lambda: workbench.compare("base", "other", labels=["x", "y"]), "labels="),
    ("compare work", lambda: workbench.compare("base", "other", work=work), "work="),
    ("compare log gpus", lambda: workbench.compare("base", "other", gpus=0), "gpus=0"),
    ("compare calls", lambda: workbench.compare(work(), work()), "parentheses"),  # type: ignore[func-returns-value]
    ("compare arguments", lambda: workbench.compare(two, two), "two is called without arguments"),
    ("compare range", lambda: workbench.compare(HIGH, Setting(power_limit_w=900.0), work=lambda: two(1)), "100..250 W"),
    ("compare none", lambda: workbench.compare(work, work, gpus=[]), "gpus=[]"),
    ("sweep axis", lambda: workbench.sweep(two, {"power_limit": [200.0]}), "its axes are batch_size, power_limit_w"),
    ("sweep range", lambda: workbench.sweep(two, {"power_limit_w": [900.0, 999.0]}), "100..250 W"),
    ("sweep label", lambda: workbench.sweep(two, {"batch_size": [1]}, label=""), "names no sweep"),
    ("sweep executor", lambda: workbench.sweep(two, {"batch_size": [1]}, executor=5), "submit"),  # type: ignore[arg-type]
    ("sweep warm", lambda: workbench.sweep(two, {"batch_size": [1]}, warm_start=True), "label="),
    ("tune model", lambda: workbench.tune(model="none.json.gz"), "no such file"),
    ("simulate every", lambda: workbench.simulate("V100", every_s=1.0), "every_s="),
    ("simulate two", lambda: workbench.simulate("V100", recording="smi.csv"), "two machines"),
    ("simulate speed", lambda: workbench.simulate("V100", stepped=True, scale=5.0), "scale=5"),
    ("sink every", lambda: workbench.log_to("a.csv", every_s=math.inf), "every_s=inf"),
    ("job label", lambda: workbench.RecurringJob(" ", [32]), "names no job"),
    ("job meter", lambda: workbench.RecurringJob("a", [32], gpus=0, meter=sessions.current().meter), "gpus=0"),
    ("job limit", lambda: workbench.RecurringJob("a", [32]).choose(None, 200.0), "power_limit_w=200"),
    ("job unblock", lambda: workbench.RecurringJob("a", [32]).unblock(5), "batch size 5 is not one of"),
    ("cluster", lambda: workbench.panels.cluster(values=[1.0]), "need sweep="),
]


def test_a_wrong_argument_is_refused(machine: Machine, log: None) -> None:
    wrong: list[object] = []
    for name, act, answer in FUNCTIONS:
        try:
            wrong.append((name, act()))
        except workbench.WorkbenchError as error:
            wrong += [(name, str(error))] * (answer not in str(error))
        except Exception as error:
            wrong.append((name, error))
    assert wrong == []
    assert machine.state.control(0, "limit_w") == 250.0


# a label is its newest complete run


def test_a_label_is_its_newest_complete_run(log: None) -> None:
    assert Store().find("mine").id == "a333"
    assert Store().find("a4444").outcome == "error"
    with pytest.warns(UserWarning, match="no run labelled 'failed' is complete"):
        assert Store().find("failed").id == "b1"


def test_the_command_line_warns_of_a_label_without_a_complete_run(
    log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", "--compare", "mine", "base"]) == 0
    assert "not compared" not in (told := capsys.readouterr()).out + told.err
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["log", "--compare", "failed", "base"]) == 0
    told = capsys.readouterr()
    assert "workbench: no run labelled 'failed' is complete" in told.err
    assert "ended with an error" in told.out


# rights


@pytest.fixture
def poor(simulated: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A V100 that this process may not change."""
    monkeypatch.setattr(sessions, "_current", None)
    made = simulated("V100", stepped=True, privileged=False)
    _ = sessions.current().meter
    made.step(3.0)
    yield made
    sessions.current().close()


def test_rights_answer_the_setting_that_is_asked_for(poor: Machine) -> None:
    control = workbench.gpu_control(0)
    with pytest.raises(NotPermitted):
        control.apply(Setting(sm_clock_mhz=997))
    asked = control.rights(Setting(power_limit_w=200.0))
    assert (asked.who, asked.text.partition(":")[0]) == ("", "power limit 250 W (default) → 200 W")
    assert asked.command.endswith("-pl 200")
    assert "CAP_SYS_ADMIN" in asked.text
    assert "997" in control.rights(Setting(sm_clock_mhz=997)).text
    impossible = control.rights(Setting(power_limit_w=900.0))
    assert (impossible.command, "100..250 W" in impossible.text) == ("", True)


def test_without_rights_no_work_is_run(poor: Machine) -> None:
    ran: list[object] = []
    for act in (
        lambda: workbench.compare(LOW, HIGH, work=lambda: ran.append(1)),
        lambda: workbench.sweep(ran.append, {"power_limit_w": [None, 150.0]}, order="grid", progress=False),
    ):
        with pytest.raises(NotPermitted, match="CAP_SYS_ADMIN"):
            act()
    assert ran == []
    with pytest.warns(RuntimeWarning, match="not tuned: root") as told, workbench.tune() as tuning:
        assert tuning.result.state == "refused"
    assert len(told) == 1


def test_a_recurring_job_without_rights_warns_once(poor: Machine) -> None:
    with pytest.warns(RuntimeWarning, match=r"power limits of Tesla V100.* are not changed: root.*power_limits_w=\(\)") as told:
        job = workbench.RecurringJob("nightly", [32, 64], target=0.5)
    assert len(told) == 1
    assert job.space.power_limits_w == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with job.recurrence() as run:
            poor.step(1.0)
            run.finish(reached=True)
        workbench.RecurringJob("other", [32], power_limits_w=())
    assert any("only the batch size is chosen" in note for note in run.notes)


# waste


def test_no_waste_is_claimed_only_of_readings_that_were_examined(log: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["waste", "smi.csv"]) == 1
    told = capsys.readouterr().out
    assert "nothing could be examined" in told
    assert "smi.csv: 0: no utilisation; waste needs power and utilisation, at least 20 readings" in told
    assert cli.main(["waste", "smi.csv", "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["examined"] == 0
    busy = pl.DataFrame({"time_s": [0.1 * n for n in range(100)], "power_w": [300.0] * 100, "utilisation": [1.0] * 100})
    assert str(workbench.waste(busy)).startswith("no waste found in 100 readings")
    assert "19 readings of power and utilisation are too few" in str(workbench.waste(busy.head(19)))
    rest = busy.with_columns(utilisation=pl.Series([0.0] * 70 + [1.0] * 30), power_w=pl.Series([50.0] * 70 + [300.0] * 30))
    assert "at most 0.001 EUR" in str(workbench.waste(rest, tariff=Tariff(0.3)))


