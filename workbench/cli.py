"""The command line: `workbench run [--tune] -- python train.py`, `workbench profile-gpu`, `share`, `log`,
`report`, `verify`, `gpus`, `notebooks`, `lab`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kernels_ext import cells

from .errors import UsageError, WorkbenchError, checked_value, describe_error, shortened

SHOWN = 20  # measurements that `log` shows where it is not told how many
# SIGHUP: not on Windows
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

if TYPE_CHECKING:
    import polars as pl

    from .measurement.store import Store
    from .records import Measurement


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (that of the measured command for `run`)."""
    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    if others and arguments.act is not _lab:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = [each for each in others if each != "--"]
    try:
        file = Path(getattr(arguments, "json", None) or ".")
        if not file.absolute().parent.is_dir():  # said before hours of training, not after
            raise UsageError(f"there is no directory {file.parent} for {file.name}")
        return int(arguments.act(arguments))
    except (WorkbenchError, cells.BadOptions) as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        return 0
    except OSError as error:  # a directory or file that was named and cannot be written
        where = f": {error.filename}" if error.filename else ""
        print(f"workbench: {error.strerror or error}{where}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in a sentence, however long the words are that were given."""

    def error(self, message: str) -> NoReturn:
        super().error(shortened(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="workbench", description="What a training costs in joules.")
    from .tuning.gpu_profile import command as profile_gpu

    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a command and measure the energy of its GPUs")
    run.add_argument("--label", default="", help="name of the measurement in the log")
    run.add_argument("--simulate", metavar="CARDS",
                     help="simulated GPUs, by name, for the command too: A100,V100")
    run.add_argument("--json", metavar="FILE", help="write the measurement to a file")
    cells.add_measuring(run)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    run.set_defaults(act=_run)
    log = commands.add_parser("log", help="show stored measurements")
    cells.add_log(log)
    log.set_defaults(act=_log)
    _report_arguments(commands)
    profile_gpu.add_arguments(commands)
    _share_arguments(commands)
    gpus = commands.add_parser("gpus", help="what GPUs are here and what they can do")
    gpus.set_defaults(act=_gpus)
    doctor = commands.add_parser(
        "doctor", help="what driver and sensors of this machine's GPUs do, and what it means for joules"
    )
    doctor.add_argument("--gpus", metavar="GPUS", help="these (index, UUID, PCI id; default: all)")
    doctor.add_argument("--seconds", type=float, default=20.0, metavar="S",
                        help="how long each GPU is watched, at rest and under load (default: %(default)g)")
    doctor.add_argument("--no-load", action="store_true", help="run nothing on the GPUs")
    doctor.add_argument("--simulate", metavar="CARDS", help="simulated GPUs, by name: A100,part-time")
    doctor.add_argument("--json", "--report", metavar="FILE", dest="json",
                        help="write findings, versions and the last readings to a file to attach to a bug "
                             "report: without names of users, hosts or paths")
    doctor.set_defaults(act=_doctor)
    restore = commands.add_parser(
        "restore", help="put back what processes that are gone left changed, as an epilog or preStop hook"
    )
    restore.add_argument("--all", action="store_true",
                         help="every GPU that nobody holds to the driver's defaults, whoever has changed it")
    restore.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    restore.set_defaults(act=_restore)
    notebooks = commands.add_parser("notebooks", help="copy the notebooks that come with the workbench")
    notebooks.add_argument("directory", type=Path)
    notebooks.set_defaults(act=_notebooks)
    lab = commands.add_parser(
        "lab", help="open JupyterLab on the first notebook; simulated GPUs where there are none",
        epilog="Any other option is one of jupyter lab: --no-browser, --ip, --port.", allow_abbrev=False,
    )
    lab.add_argument("--cards", default="V100",
                     help="which GPUs to simulate where there are none (default: %(default)s)")
    lab.add_argument("--directory", type=Path, default=Path("notebooks"))
    lab.set_defaults(act=_lab)
    return parser


def _report_arguments(commands: Any) -> None:
    report = commands.add_parser("report", help="a table and an energy statement for a paper, from the log")
    report.add_argument("names", nargs="*", metavar="LABEL", help="labels or ids (default: all of the log)")
    report.add_argument("--label", help="another way to give a label")
    report.add_argument("--last", type=int, metavar="N", help="the newest of them only")
    report.add_argument("--since", metavar="DAY", help="from this day on: 2026-11-22")
    kinds = report.add_mutually_exclusive_group()
    for name, kind in (("md", "markdown"), ("latex", "latex"), ("html", "html"), ("json", "json")):
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=kind, default="markdown")
    report.add_argument("-o", dest="output", metavar="FILE", help="write a .md, .tex, .html or .json file")
    report.add_argument("--pue", type=float, help="power usage effectiveness of the data centre")
    report.add_argument("--location", default="", help="where it ran")
    report.add_argument("--g-co2-per-kwh", type=float, metavar="G", help="intensity of the grid there")
    report.add_argument("--intensity-source", default="", metavar="TEXT", help="where that number is from")
    report.add_argument("--order", default="", help="how the runs were ordered")
    report.add_argument("--driver", default="", help="version of the GPU's driver")
    report.set_defaults(act=_report)
    logs = commands.add_parser("import", help="put logs of other tools into the log of measurements")
    logs.add_argument("files", nargs="+", metavar="FILE",
                      help="of nvidia-smi, DCGM, Prometheus, nvitop, W&B, MLflow, TensorBoard, codecarbon, "
                           "Zeus, Slurm")
    logs.add_argument("--label", default="", help="name in the log; the files' own names by default")
    logs.add_argument("--every", type=float, metavar="S", help="seconds between rows that have no times")
    logs.set_defaults(act=_import)
    verify = commands.add_parser("verify", help="compare each number of a report with the log")
    verify.add_argument("file", metavar="FILE")
    verify.set_defaults(act=_verify)


def _import(arguments: argparse.Namespace) -> int:
    from .measurement import report
    from .measurement.log_readers import import_log

    for path in arguments.files:
        for measurement in import_log(path, arguments.label, every_s=arguments.every):
            print(report.line(measurement))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from .measurement.statement import report

    given = {name: getattr(arguments, name) for name in (
        "last", "label", "since", "pue", "location", "g_co2_per_kwh", "intensity_source", "order", "driver")}
    found = report(*arguments.names, **given)
    if arguments.output:
        print(f"written to {found.write(arguments.output)}")
    else:
        print(getattr(found, arguments.kind)(), end="")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from .measurement.statement import verify

    wrong = verify(arguments.file)
    print("\n".join(wrong) or f"{arguments.file}: every number is that of the log")
    return 1 if wrong else 0


def _share_arguments(commands: Any) -> None:
    share = commands.add_parser(
        "share", help="run two to four trainings on one GPU: what it saves, what it costs each, whether to"
    )
    share.add_argument("jobs", nargs="+", metavar="'COMMAND ...'",
                       help="one quoted command per job; the last one is the newcomer")
    share.add_argument("--gpus", "--gpu", default="0", metavar="GPU",
                       help="which one (index, UUID, PCI id; default: %(default)s)")
    share.add_argument("--max-slowdown", type=float, default=20.0, metavar="PERCENT",
                       help="how much longer an iteration of each may take (default: %(default)g)")
    share.add_argument("--seconds", type=float, default=10.0, metavar="S",
                       help="how long each stage is measured (default: %(default)g)")
    share.add_argument("--rounds", type=int, default=2, metavar="N",
                       help="how often each is measured alone (default: %(default)s)")
    share.add_argument(
        "--until", choices=("end", "verdict"), default="end",
        help="see the jobs to their end, or stop them when the verdict is known (default: %(default)s)",
    )
    share.add_argument(
        "--on-break", choices=("stop", "pause"), default="stop",
        help="if the bound is broken the newcomer is stopped, or paused until the others have ended",
    )
    share.add_argument("--watch", action=argparse.BooleanOptionalAction, default=True,
                       help="watch the first epoch together")
    share.add_argument("--simulate", metavar="CARD", help="a simulated GPU, by name, for the jobs too: V100")
    share.add_argument("--json", metavar="FILE", help="write the result to a file")
    share.set_defaults(act=_share)


def _share(arguments: argparse.Namespace) -> int:
    """Share a GPU; 0 if every job ended well or we stopped it, 1 if not, 130 after an interrupt."""
    from . import sharing
    from .measurement.session import simulate

    if arguments.simulate:
        simulate(arguments.simulate)
    sharing.last, interrupted = None, False
    try:
        sharing.share(
            *arguments.jobs, gpus=arguments.gpus, max_slowdown=arguments.max_slowdown / 100,
            seconds=arguments.seconds, rounds=arguments.rounds, until=arguments.until, watch=arguments.watch,
            on_break=arguments.on_break,
            say=lambda words: print(f"workbench: {words}", file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        interrupted = True
    shared = sharing.last
    if shared is not None:
        print(shared)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(shared.as_dict(), indent=2), encoding="utf-8")
    if interrupted:
        return 130
    return int(shared is None or any(job.outcome not in ("ok", "stopped") for job in shared.jobs))


def _run(arguments: argparse.Namespace) -> int:
    from .measurement import report, session
    from .measurement.meter import encodable
    from .measurement.repeats import with_iterations
    from .measurement.store import Store

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command was given; for example: workbench run -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r} to run")
    options = cells.tuning_options(arguments)
    if arguments.simulate:
        session.simulate(arguments.simulate)
    mine = session.Session(arguments.gpus, sync=False) if arguments.gpus else session.current()
    meter = mine.meter if arguments.gpus else mine.meter_or_clock()
    for message in mine.messages:
        print(f"workbench: {message}", file=sys.stderr)
    with _Forwarded() as signals:  # until the measurement is stored
        # the trace of a run of many hours
        hold = meter.recorder.hold(meter.clock()) if meter.recorder is not None else None
        label = encodable(arguments.label or _label(command))
        tuning = None
        if options is not None:
            from .tuning.driver import TunerThread
            from .tuning.state_machine import Tuner

            uuids = [device.uuid for device in meter.devices] if arguments.gpus else None
            tuning = TunerThread(Tuner(meter, uuids=uuids, label=label, **options))
        try:
            window = meter.open(label)
            status = signals.run(command)
        except BaseException:
            if tuning is not None:
                tuning.end()
            raise
        try:
            try:
                window = meter.close(window)
            finally:
                if tuning is not None:
                    tuning.end()
            measurement = meter.measure(window, outcome=_outcome(status))
            if tuning is not None:
                words = tuning.tuner.end().words
                print(f"workbench: {words}", file=sys.stderr)
                measurement = replace(measurement, notes=(*measurement.notes, words))
            found = meter.count(window, measurement, look=arguments.period)
            measurement = with_iterations(measurement, found)
            _tell(measurement, meter.why)
            frame = found.frame if found is not None and found.summary.count else None
            for message in session.keep(measurement, window, meter, Store(), frame, kind="command"):
                print(f"workbench: {message}", file=sys.stderr)
            if arguments.json:
                whole = report.as_dict(measurement)
                if tuning is not None:
                    whole["tuning"] = tuning.tuner.end().as_dict()
                Path(arguments.json).write_text(json.dumps(whole, indent=2), encoding="utf-8")
        # whoever waits for the command needs its status, whatever became of the measurement
        except BaseException as error:
            with contextlib.suppress(OSError):
                print(f"workbench: the measurement was lost: {describe_error(error)}", file=sys.stderr)
        del hold
    return 128 - status if status < 0 else status


def _label(command: Sequence[str]) -> str:
    """What a command is called in the log: its script or module where a Python runs one, else its program.

    >>> _label(["/usr/bin/python3", "-u", "train.py", "--lr", "1"]), _label(["python", "-m", "train.main"])
    ('train.py', 'train.main')
    >>> _label(["python", "-c", "pass"]), _label(["/opt/bench"])
    ('python', 'bench')
    """
    program = Path(command[0]).name
    if program.startswith("python"):
        for option, word in itertools.pairwise(command):
            if option not in ("-W", "-X") and (option == "-m" or not word.startswith("-")):
                return program if option == "-c" else Path(word).name
    return program


class _Forwarded:
    """Signals that would end this process go to the command, which ends it too, with a measurement.

    The interrupt it gets from the terminal itself, unless `interrupts`; what was ignored (`nohup`) stays so.
    """

    def __init__(self, *, interrupts: bool = False) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._interrupted = self._forward if interrupts else lambda *_: None

    def __enter__(self) -> _Forwarded:
        numbers = {**dict.fromkeys(ENDING, self._forward), signal.SIGINT: self._interrupted}
        # A handler, and not SIG_IGN, for the interrupt too: the command would inherit that it is ignored.
        self._before = {number: signal.signal(number, handler) for number, handler in numbers.items()
                        if signal.getsignal(number) != signal.SIG_IGN}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> int:
        """Start the command and wait for it; returns its status."""
        self._child = subprocess.Popen(command)
        for number in self._early:
            self._child.send_signal(number)
        return self._child.wait()

    def _forward(self, number: int, _frame: object) -> None:
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


def _outcome(status: int) -> str:
    """How a command ended that left this status."""
    if any(status in (-number, 128 + number) for number in ENDING):
        return "interrupted"
    return "ok" if status == 0 else "error"


def _tell(measurement: Measurement, why: str) -> None:
    from .measurement import report

    print(report.line(measurement), file=sys.stderr)
    if not measurement.gpus:
        print(f"workbench: {why}; --simulate A100 runs on a simulated GPU", file=sys.stderr)
    for gpu in measurement.gpus:
        for note in gpu.notes:
            print(f"    {gpu.name}: {note}", file=sys.stderr)


def select_log(store: Store, arguments: argparse.Namespace) -> tuple[pl.DataFrame | None, str]:
    """The measurements that options of `cells.add_log` ask for (None for two compared), and what was done.

    Raises:
        StoreError, UsageError: no such measurement, or a file that cannot be written.
    """
    import polars as pl

    from .measurement.report import describe_comparison
    from .measurement.store import export

    if arguments.compare:
        return None, describe_comparison(*(store.find(name) for name in arguments.compare))
    log = store.log()
    if arguments.label is not None:
        log = log.filter(pl.col("label") == arguments.label)
    if arguments.last is not None:
        log = log.tail(arguments.last)
    if not arguments.export:
        return log, ""
    return log, f"{log.height} measurements written to {export(log, arguments.export)}"


def _log(arguments: argparse.Namespace) -> int:
    from .measurement.store import Store

    store = Store()
    log, done = select_log(store, arguments)
    for message in store.messages():
        print(f"workbench: {message}", file=sys.stderr)
    if log is None or done:
        print(done)
        return 0
    from .measurement.run_table import as_text, rows

    shown = log.tail(log.height if arguments.last is not None else SHOWN)
    print(as_text(rows(shown, store.tags())))
    return 0


def _gpus(_arguments: argparse.Namespace) -> int:
    from .measurement import session
    from .measurement.gpu_table import lines

    mine = session.current()
    for text in lines(mine.devices, mine.recorder):
        print(text)
    if not mine.devices:
        print(
            f"{mine.why_no_gpu()}; simulated ones can be had by name: %gpu simulate A100, workbench run "
            "--simulate A100"
        )
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    """Look at the machine and its GPUs; 1 where something fails."""
    from .device.discovery import devices, why_no_gpu
    from .experiments.workloads import any_training
    from .measurement import doctor
    from .measurement.session import simulate

    if arguments.simulate:
        simulate(arguments.simulate)
    machine = doctor.machine_findings()
    print(*machine, sep="\n")
    gpus = {}
    for device in devices(arguments.gpus):
        said = ", simulated" if device.simulated else ""
        print(f"\nGPU {device.index}: {device.name}{said}", flush=True)
        load = None if arguments.no_load else any_training(device)
        gpus[device] = doctor.gpu_findings(device, load, seconds=arguments.seconds)
        print(*gpus[device], sep="\n")
    if not gpus:
        print(f"\nno GPU: {why_no_gpu()}")
    found = doctor.report(machine, gpus)  # type: ignore[arg-type]
    print(f"\n{found['fail']} FAIL, {found['warn']} WARN")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2), encoding="utf-8")
    return int(found["fail"] > 0 or not gpus)


def _restore(arguments: argparse.Namespace) -> int:
    """Put GPUs back; 1 where one could not be."""
    from .device import restore
    from .device.discovery import devices

    told = restore.owed() if arguments.dry_run else restore.recover()
    done = True
    if arguments.all:
        outcomes = [restore.to_default(device, dry_run=arguments.dry_run) for device in devices()]
        told += [outcome.sentence for outcome in outcomes]
        done = all(outcome.settled for outcome in outcomes)
    done = done and (arguments.dry_run or not restore.owed())
    print(*told or ["nothing is left changed by a process that is gone"], sep="\n")
    return int(not done)


def _notebooks(arguments: argparse.Namespace) -> int:
    here = Path(__file__).parent
    source = here / "_notebooks" if (here / "_notebooks").is_dir() else here.parent / "notebooks"
    if not source.is_dir():
        raise UsageError("this installation has no notebooks with it")
    checked_value("directory", arguments.directory, ("Path",))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for path in sorted([*source.glob("*.ipynb"), *source.glob("data/*")]):
        target = arguments.directory / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            print(f"{target} is there already and was left alone")
        else:
            print(shutil.copy(path, target))
    return 0


def _lab(arguments: argparse.Namespace) -> int:
    """JupyterLab, with simulated GPUs for all its kernels where there is no real one; prints which."""
    from .device import nvml
    from .errors import NoDriver
    from .simulation import machine
    from .simulation.state import ENVIRONMENT_VARIABLE

    notebooks = sorted(arguments.directory.glob("01*.ipynb"))
    if not notebooks:
        raise UsageError(f"there is no notebook 01 in {arguments.directory}; `workbench notebooks "
                         f"{arguments.directory}` copies it")
    made = None
    try:
        found = nvml.identities() if ENVIRONMENT_VARIABLE not in os.environ else []
    except NoDriver:
        found = []
    if ENVIRONMENT_VARIABLE in os.environ:
        print("The GPUs of these notebooks are SIMULATED (chosen before).", flush=True)
    elif found:
        print(
            f"The notebooks measure the GPUs of this machine: {', '.join(name for _, _, name in found)}.",
            flush=True,
        )
    else:
        made = machine.simulate(arguments.cards)
        print(f"There is no NVIDIA GPU here. The notebooks use a SIMULATED {', '.join(made.cards)}; no joule "
              "of it is real.", flush=True)
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # as in a container
    first = notebooks[0].absolute()
    where = [f"--ServerApp.root_dir={first.parent}", f"--LabApp.default_url=/lab/tree/{first.name}"]
    command = [sys.executable, "-m", "jupyterlab", *where, *as_root, *arguments.others]
    try:
        with _Forwarded(interrupts=True) as signals:
            return signals.run(command)
    finally:
        if made is not None:
            made.close()


if __name__ == "__main__":
    sys.exit(main())
