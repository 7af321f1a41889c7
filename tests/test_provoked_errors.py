"""Forty mistakes of users: each answer names the value, the limit and the remedy, in the user's terms."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench
from workbench import cli
from workbench.measurement import session
from workbench.measurement.doctor import clash
from workbench.simulation.machine import Machine

POINTS = pl.DataFrame({"time_s": [1.0, 2.0], "energy_j": [2.0, 1.0]})
# What a user of the package does not know, and what a program shows of itself.
INTERNAL = re.compile(
    r"AssertionError|Errno|\(NVML \d+\)|object at 0x|\beta=|\bone is called|\brhythm|\bprobe|\bpurse|\bslice|\btold\b"
    r"|\bworld\b|\bput back|\bmarks them|open_device\("
)


class PandasFrame:
    """A stand-in of a pandas DataFrame, which the tests do not install."""


PandasFrame.__module__, PandasFrame.__name__ = "pandas.core.frame", "DataFrame"


class Place(NamedTuple):
    """The place of a mistake: an empty directory, the printed text, and a shell with the magics."""

    path: Path
    capfd: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    caplog: pytest.LogCaptureFixture

    def shell(self, *cells: str) -> str:
        """The output of the last of these cells."""
        shell = InteractiveShell()
        shell.run_cell("%load_ext kernels_ext", silent=True)
        try:
            for cell in cells:
                self.capfd.readouterr()
                result = shell.run_cell(cell)
            shown = self.capfd.readouterr()
            return f"{result.error_in_exec or ''} {shown.out} {shown.err} {self.caplog.text}"
        finally:
            shell.run_cell("%unload_ext kernels_ext", silent=True)

    def command(self, *arguments: str) -> str:
        """What `workbench` prints."""
        self.capfd.readouterr()
        with contextlib.suppress(SystemExit):
            cli.main(arguments)
        shown = self.capfd.readouterr()
        return shown.out + shown.err


def measured(label: str = "train", **options: Any) -> workbench.BlockResult:
    with workbench.measure(label, **options) as result:
        pass
    _ = result.measurement
    return result


def applied(*setting: Any, **knobs: Any) -> None:
    with workbench.gpu_settings(*setting, **knobs):
        pass


def job(**options: Any) -> workbench.RecurringJob:
    return workbench.RecurringJob("nightly", [32, 64], 32, **options)


def without_block() -> None:
    next(iter(job().attempts())).report(0.5)


def too_short() -> str:
    with workbench.tune() as tuning:
        pass
    return tuning.result.text


def warned(act: Callable[[], object]) -> str:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return " ".join(str(each.message) for each in found)


def in_measurement(act: Callable[[], object]) -> None:
    with workbench.measure("train"):
        act()


def phase(kind: str) -> None:
    with workbench.phase(kind):
        pass


def lab(place: Place) -> str:
    place.monkeypatch.setattr(cli._Forwarded, "run", lambda _, command: print(command[-1]) or 0)
    place.monkeypatch.chdir(place.path)
    return place.command("lab")


def without_rights(_: Place) -> str:
    session.current().devices[0]
    return failing(lambda: applied(power_limit_w=200.0))


def failing(act: Callable[[], object]) -> str:
    """The text of the error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act()
    return str(caught.value)


def labelled(place: Place, *arguments: str) -> str:
    measured("base")
    session.keeping.writer().flush(5.0)
    return place.command(*arguments)


def with_wandb_missing(place: Place) -> str:
    place.monkeypatch.setitem(sys.modules, "wandb", None)
    return failing(lambda: workbench.log_to("wandb"))


F = failing
# Number of the mistake, GPUs of the machine, the mistake, and fragments of its answer.
MISTAKES: list[tuple[str, str, Callable[[Place], Any], tuple[str, ...]]] = [
    ("1", "V100", lambda _: F(without_block), ("run.report()", "with run:")),
    ("2", "V100", lambda _: F(lambda: applied(200)), ("200 is not a Setting", "power_limit_w=200")),
    ("3", "", lambda _: F(lambda: workbench.best_configuration(PandasFrame())),  # type: ignore[arg-type]
     ("Polars DataFrame", "pandas DataFrame", "from_pandas")),
    ("4 frontier", "", lambda _: F(lambda: workbench.frontier(PandasFrame())), ("Polars", "from_pandas")),
    ("4 periods", "", lambda _: F(lambda: workbench.find_periods(PandasFrame())),  # type: ignore[arg-type]
     ("Polars", "from_pandas")),
    ("4 show", "", lambda _: F(lambda: workbench.show(PandasFrame())), ("Polars", "from_pandas")),
    ("5 index", "V100", lambda _: F(lambda: measured(gpus=4)), ("GPU 4 not found", "available: 0")),
    ("5 name", "V100", lambda _: F(lambda: measured(gpus="cuda:0")), ("'cuda:0' not found", "0: Tesla V100")),
    ("5 negative", "V100", lambda _: F(lambda: measured(gpus=-1)), ("GPU -1 not found", "available: 0")),
    ("6", "", lambda _: warned(measured), ("only the time is measured", "no NVIDIA driver")),
    ("7", "V100", lambda p: labelled(p, "log", "--label", "nope"), ("labelled 'nope'", "base")),
    ("8", "V100", lambda p: labelled(p, "log", "--last", "-5"), ("--last -5", "1 or more")),
    ("9", "V100", lambda p: p.shell("def tr(): pass", "%energy_compare tr nope"), ("nope is not defined", "--labels")),
    ("10", "V100", lambda p: p.command("run", "--tune", "--max-slowdown", "0.05", "--", "true"),
     ("0.05 %", "did you mean 5?")),
    ("10 magic", "V100", lambda p: p.shell("%%energy --tune --max-slowdown 0.05\nprint('has' 'run')"),
     ("did you mean 5?", "was not run")),
    ("11", "", lambda _: F(lambda: workbench.best_configuration(POINTS, max_slowdown=5)), ("500 %", "0 to 1", "0.05 (5 %)")),
    ("12", "V100", lambda p: p.shell("%%energy train --tuen\nprint('has' 'run')"),
     ("--tuen", "did you mean --tune?", "was not run")),
    ("13 name", "V100", lambda p: p.shell("%%energy -o 3x\nprint('has' 'run')"), ("-o 3x", "was not run")),
    ("13 number", "V100", lambda p: p.shell("%%energy --repeat 0\nprint('has' 'run')"),
     ("--repeat 0", "1 or more", "was not run")),
    ("13 nothing", "V100", lambda p: p.shell("%%energy --repeat\nprint('has' 'run')"), ("--repeat", "was not run")),
    ("14", "V100", lambda _: too_short(), ("too short", "s)", "10 s and 20 iterations")),
    ("15", "", lab, ("00_your_own_training.ipynb", "SIMULATED")),
    ("16 profile", "", lambda p: p.command("profile-gpu"), ("no NVIDIA driver", "--simulate A100")),
    ("16 share", "", lambda p: p.command("share", "true", "true"), ("no NVIDIA driver", "--simulate A100")),
    ("16 run", "", lambda p: p.command("run", "--gpus", "0", "--", "true"), ("--simulate A100",)),
    ("17", "", lambda p: p.command("gpus"), ("libnvidia-ml.so.1 was not found",)),
    ("18", "V100", lambda p: p.command("run", "--gpus", "3", "--", "true"), ("GPU 3 not found", "available: 0")),
    ("18 list", "V100", lambda _: F(lambda: measured(gpus="0,1")), ("GPU 1 not found", "available: 0")),
    ("19", "V100 without rights", without_rights, ("200 W", "CAP_SYS_ADMIN", "sudo nvidia-smi -i", "-pl 200")),
    ("20", "V100", lambda p: p.command("run", "--", "false"), ("the command exited with status 1",)),
    ("21", "V100", lambda _: str(unsure()), ("no iterations found", "flat")),
    ("22", "V100", lambda _: F(lambda: workbench.share("true")), ("2 to 4 jobs, got 1",)),
    ("23", "", lambda p: p.command("verify", str(p.path / "README.md")), ("README.md", "No such file")),
    ("24", "", lambda p: imported(p), ("nvidia-smi --query-gpu=timestamp",)),
    ("25", "V100", lambda _: F(lambda: job(objective="speed")), ("objective='speed'", "energy, edp", "0 to 1")),
    ("26", "V100", lambda _: F(lambda: workbench.tune(objective=1.5)), ("1.5", "0 to 1")),
    ("27 tune", "", lambda _: F(lambda: workbench.tune(slowdown=0.05)),  # type: ignore[call-arg]
     ("tune() takes no slowdown=", "max_slowdown?")),
    ("27 applied", "V100", lambda _: F(lambda: applied(power_limit=200)), ("did you mean power_limit_w?",)),
    ("27 measure", "V100", lambda _: F(lambda: measured(gpu=0)), ("did you mean gpus?",)),
    ("27 Setting", "", lambda _: F(lambda: workbench.Setting(power_limit=200)),  # type: ignore[call-arg]
     ("Setting() takes no power_limit=", "power_limit_w?")),
    ("28", "", lambda _: F(lambda: workbench.measur), ("did you mean measure?",)),
    ("28 other", "", lambda _: F(lambda: workbench.EnergyMonitor), ("'EnergyMonitor'", "dir(workbench)")),
    ("29", "V100", lambda _: F(lambda: measured().energy), ("did you mean energy_j?",)),  # type: ignore[attr-defined]
    ("30", "V100", lambda _: str(measured("fit").measurement), ("fit: ", " J (sensor")),
    ("31 control", "V100", lambda _: str(workbench.gpu_control()), ("GPU 0", "250 W")),
    ("31 run", "V100", lambda _: str(next(iter(job().attempts()))), ("nightly", "batch size 32")),
    ("32", "V100", lambda _: warned(lambda: in_measurement(lambda: workbench.work(tokens="many"))),  # type: ignore[arg-type]
     ("tokens='many'", "not counted", "0 or more")),
    ("33", "V100", lambda _: warned(lambda: in_measurement(lambda: phase("eval"))),
     ("'eval'", "'evaluation'", "checkpoint")),
    ("34", "", lambda _: F(lambda: workbench.show(3)), ("3 (int)", "\n* a measurement", "\n* a sweep")),
    ("35", "", lambda _: F(lambda: workbench.tune(max_slowdown=5)), ("did you mean 0.05 (5 %)?",)),
    ("36", "V100", lambda _: F(lambda: applied(sm_clock_mhz=1000)), ("1000 MHz", "135..1380", "997")),
    ("37", "", lambda _: F(lambda: workbench.sweep(print, {"power_limit": [200.0]})),
     ("'power_limit'", "batch_size, power_limit_w")),
    ("38 simulate", "", lambda _: F(lambda: workbench.simulate("T4")), ("'T4'", "V100, P100")),
    ("38 option", "", lambda p: p.command("run", "--simulate", "B200", "--", "true"), ("'B200'", "V100, P100")),
    ("38 objective", "", lambda _: F(lambda: workbench.tune(objective="speed")), ("'speed'", "energy, edp")),
    ("38 policy", "V100", lambda _: F(lambda: job(policy="ucb")), ("'ucb'", "knowledge-gradient")),
    ("39", "V100", with_wandb_missing, ("pip install 'gpu-energy-workbench[sinks]'",)),
    ("40", "", lambda p: p.shell("%config EnergyMagics.prize_per_kwh = 0.3"), ("price_per_kwh",)),
    ("command", "", lambda p: p.command("lgo"), ("'lgo'", "did you mean log?")),
    ("option", "", lambda p: p.command("log", "--lable", "x"), ("--lable", "did you mean --label?")),
]


def unsure() -> object:
    """A result without iterations; the reason appears once."""
    found = workbench.records.IterationSummary(0, reason="flat: the power hardly changes")
    text = str(replace(measured().measurement, iterations=found))
    assert text.count("no iteration") == text.count("flat") == 1
    return text


def imported(place: Place) -> str:
    (place.path / "README.md").write_text("# A title\n\nsome text, and more\n")
    return place.command("import", str(place.path / "README.md"))


@pytest.fixture
def place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Place]:
    monkeypatch.setattr(session, "_current", None)
    yield Place(tmp_path, capfd, monkeypatch, caplog)
    session.current().close()


@pytest.mark.filterwarnings("ignore:only the time is measured:RuntimeWarning", "ignore:not tuned:RuntimeWarning")
@pytest.mark.parametrize(("gpus", "provoke", "fragments"), [
    pytest.param(*rest, id=f"{number}") for number, *rest in MISTAKES])
def test_a_mistake_is_answered_with_the_value_the_limit_and_the_remedy(
    simulated: Callable[..., Machine], place: Place, gpus: str, provoke: Callable[[Place], Any],
    fragments: tuple[str, ...],
) -> None:
    if gpus:
        simulated(gpus.split()[0], privileged="without" not in gpus)
    text = str(provoke(place))
    assert [each for each in fragments if each not in text] == [], text
    assert INTERNAL.findall(text) == [], text
    assert "hasrun" not in text


def test_every_mistake_of_the_table_is_provoked() -> None:
    numbers = {int(number.split()[0]) for number, *_ in MISTAKES if number[0].isdigit()}
    assert numbers == set(range(1, 41))


def test_a_package_of_the_same_import_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "workbench-0.8.dist-info").mkdir()
    (tmp_path / "workbench-0.8.dist-info" / "METADATA").write_text("Name: workbench\nVersion: 0.8\n")
    code = "from workbench.measurement.doctor import clash; print(clash())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": f"{Path(workbench.__file__).parents[1]}:{tmp_path}"})
    assert "pip uninstall workbench" in done.stdout
    assert clash() == []
