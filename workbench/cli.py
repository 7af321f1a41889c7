"""The command line: `workbench run [--tune] -- python train.py`, `workbench job`, `profile-gpu`, `share`,
`log`, `report`, `verify`, `waste`, `serve-metrics`, `gpus`, `notebooks`, `lab`.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_ext import cells
from kernels_ext.commands import STDOUT, Commands, Parser, examples, json_option, write_json
from kernels_ext.log_commands import add_log_commands

from .errors import (
    NoDriver,
    UsageError,
    WorkbenchError,
    checked_value,
    describe_error,
    near,
    pip_line,
    printable,
)

# SIGHUP: not on Windows
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

# Characters of our texts, and their replacement on a terminal without them
SPELLED = dict(zip("±×−–·→…°µ⚠", ["+-", "x", "-", "-", "-", "->", "...", "deg ", "u", "!"], strict=True))

if TYPE_CHECKING:
    from .records import Measurement


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (that of the measured command for `run`)."""
    codecs.register_error("spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="spelled")
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments, others = parser.parse_known_args(argv)
    if others and arguments.act is not _lab:
        hint = near(others[0], arguments.known)
        parser.error(f"{others[0]} is not an option of {arguments.name}{hint}")
    arguments.others = [each for each in others if each != "--"]
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if "" not in others:  # which go to jupyter lab
            cells.without_empty(given[: len(given) - len(getattr(arguments, "command", ()))])
        _check_files(arguments)
        arguments.stdout = sys.stdout
        alone = getattr(arguments, "json", None) == STDOUT
        printed = contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext()
        with printed, warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _note(str(message))
            if getattr(arguments, "simulate", None) and arguments.act is not _profile_gpu:  # it steps its own
                from .measurement.session import simulate

                simulate(arguments.simulate)
            return int(arguments.act(arguments))
    except (WorkbenchError, cells.BadOptions) as error:
        _note(str(error).replace("workbench.simulate('A100')", "--simulate A100"))
        return 2
    except ModuleNotFoundError as error:
        _note(pip_line(error))
        return 2
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        return 0
    except OSError as error:  # a directory or file that was named and cannot be written
        where = f": {error.filename}" if error.filename else ""
        _note(f"{error.strerror or error}{where}")
        return 2


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Replace a character that a terminal lacks: by a similar one, or by its number."""
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    number = character.encode("ascii", "backslashreplace").decode()
    return SPELLED.get(character, number), error.start + 1


def _check_files(arguments: Namespace) -> None:
    """Raises UsageError for files that cannot be written: before hours of training, not after."""
    for name in ("json", "record", "output", "export"):
        file = Path(getattr(arguments, name, None) or STDOUT)
        if not file.absolute().parent.is_dir():
            raise UsageError(f"there is no directory {file.parent} for {file.name}")
        if file.is_dir():
            raise UsageError(f"--{name} {file} is a directory; name a file in it")


def _parser() -> argparse.ArgumentParser:
    from .tuning.gpu_profile import command as profile_gpu

    parser = Parser(
        prog="workbench", description="Measure the GPU energy of a training run, and reduce it.",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=examples(
            "workbench run -- python train.py             # measure a training",
            "workbench run --simulate A100 -- ./train.sh  # try it without a GPU",
            "workbench log                                # list measurements",
            "workbench COMMAND --help                     # options and examples of a command",
            more="Exit status: that of the command for run; else 0, 1 (failed, or a check did not pass), "
                 "2 (usage\nerror), 130 (interrupted). Everything is kept in WORKBENCH_HOME, by default a "
                 "directory of the user."),
    )
    version = sys.modules[str(__package__)].__version__
    parser.add_argument("--version", action="version", version=f"workbench {version}")
    commands = Commands(parser)
    run = commands.add(
        "run", _run, "run a command and measure the energy of its GPUs",
        "workbench run -- python train.py                        # in the log as train.py",
        "workbench run --label night --gpus 0,1 -- ./train.sh    # two GPUs, under a name",
        "workbench run --tune --max-slowdown 5 -- ./train.sh     # the cheapest setting within 5 %",
        "workbench run --simulate A100 --json m.json -- ./job    # simulated, for a script",
        "workbench run --job-dir /shared/a -- torchrun train.py  # on each node; then workbench job",
    )
    run.add_argument("--label", default="", help="name of the measurement in the log")
    run.add_argument("--simulate", metavar="CARDS",
                     help="simulated GPUs, by name, for the command too: A100,V100 or 8xA100")
    run.add_argument("--job-dir", type=Path, metavar="DIR",
                     help="write a log of this node to a directory that all nodes of the job share")
    run.add_argument("--job-id", default="", metavar="ID",
                     help="name of the job there (default: that of torchrun, Slurm or MPI)")
    json_option(run, named=True)
    cells.add_measuring(run)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    job = commands.add(
        "job", _job, "show a job of several GPUs or nodes, with its ranks",
        "workbench job /shared/a                 # merge the logs of its nodes",
        "workbench job /shared/a --job-id 4711   # one of several jobs in the directory",
        "workbench job train.py                  # a label of the log",
    )
    job.add_argument("where", metavar="DIR|LABEL", help="directory of --job-dir, or a label or id of the log")
    job.add_argument("--job-id", default="", metavar="ID", help="the job (default: all in the directory)")
    json_option(job)
    add_log_commands(commands)
    profile = commands.add(
        "profile-gpu", _profile_gpu, "measure a GPU's response to clocks and power limits (half an hour)",
        "workbench profile-gpu --list            # list the measurements and their duration",
        "workbench profile-gpu --gpu 1           # the second GPU; interrupted, it goes on where it was",
        "workbench profile-gpu --simulate A100   # simulated",
    )
    profile_gpu.add_arguments(profile)
    json_option(profile)
    _share_arguments(commands)
    metrics = commands.add(
        "serve-metrics", _serve_metrics, "power and joules of each GPU for Prometheus, on this machine only",
        "workbench serve-metrics                   # at http://127.0.0.1:9400/metrics",
        "workbench serve-metrics --gpus 0 --port 0 # one GPU, on a free port",
    )
    metrics.add_argument("--port", type=int, default=9400, help="0 takes a free one (default: %(default)s)")
    metrics.add_argument("--every", type=float, default=5.0, metavar="S", help="seconds between two values")
    metrics.add_argument("--gpus", metavar="GPUS", help="these (index, UUID, PCI id; default: all)")
    metrics.add_argument("--simulate", metavar="CARDS", help="simulated GPUs, by name: A100,V100")
    gpus = commands.add(
        "gpus", _gpus, "list GPUs, their limits and settable values",
        "workbench gpus          # limits, clocks, and what can be measured and set",
        "workbench gpus --json   # the same for a script",
    )
    json_option(gpus)
    doctor = commands.add(
        "doctor", _doctor, "check driver and sensors, and their effect on measured joules",
        "workbench doctor                        # all GPUs, about a minute each",
        "workbench doctor --gpus 0 --no-load     # one GPU, without running anything on it",
        "workbench doctor --report finding.json  # a file for a bug report, without names",
        "workbench doctor --record gpu.jsonl.gz  # a minute of the driver's answers, to be replayed",
    )
    doctor.add_argument("--gpus", metavar="GPUS", help="these (index, UUID, PCI id; default: all)")
    doctor.add_argument("--seconds", type=float, metavar="S",
                        help="how long each GPU is watched, at rest and under load (default: 20), or "
                             "recorded (default: 60)")
    doctor.add_argument("--record", type=Path, metavar="FILE",
                        help="record the driver's answers, without identifiers, for "
                             "workbench.simulate(recording=FILE). A name that ends in .gz is compressed. "
                             "Nothing is run")
    doctor.add_argument("--no-load", action="store_true", help="run nothing on the GPUs")
    doctor.add_argument("--simulate", metavar="CARDS", help="simulated GPUs, by name: A100,part-time")
    doctor.add_argument("--json", "--report", metavar="FILE", dest="json", nargs="?", const=STDOUT,
                        help="write findings, versions and the last readings to a file to attach to a bug "
                             "report: without names of users, hosts or paths")
    restore = commands.add(
        "restore", _restore, "restore GPU settings left by exited processes",
        "workbench restore --dry-run       # list the changes only",
        "workbench restore --other-users   # as root in an epilog: journals of other users too",
        "workbench restore --all           # reset every GPU to its defaults",
    )
    restore.add_argument("--all", action="store_true",
                         help="reset every GPU that no process holds to the driver's defaults")
    restore.add_argument("--other-users", action="store_true",
                         help="also restore from journals of other users")
    restore.add_argument("--dry-run", action="store_true", help="list the changes without making them")
    json_option(restore)
    notebooks = commands.add(
        "notebooks", _notebooks, "copy the notebooks that come with the workbench",
        "workbench notebooks notebooks   # into this directory; existing files are kept",
    )
    notebooks.add_argument("directory", type=Path)
    json_option(notebooks)
    lab = commands.add(
        "lab", _lab, "open JupyterLab on the first notebook; simulated GPUs where there are none",
        "workbench lab                              # with the notebooks in ./notebooks",
        "workbench lab --cards A100,A100            # another simulated machine where there is no GPU",
        "workbench lab --no-browser --ip 127.0.0.1  # any other option is one of jupyter lab",
        allow_abbrev=False,
    )
    lab.add_argument("--cards", default="V100",
                     help="GPUs to simulate if there are none (default: %(default)s)")
    lab.add_argument("--directory", type=Path, default=Path("notebooks"))
    completion = commands.add(
        "completion", _completion, "print the completion script for a shell",
        'eval "$(workbench completion bash)"   # in ~/.bashrc',
        'eval "$(workbench completion zsh)"    # in ~/.zshrc, after compinit',
        "workbench completion fish | source    # in ~/.config/fish/config.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _completion(arguments: Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["workbench"], shell=arguments.shell))
    return 0


def _serve_metrics(arguments: Namespace) -> int:
    """Serve until an interrupt."""
    import time

    from .measurement.sinks import MetricsServer

    if not 0.1 <= arguments.every <= 3600:
        raise UsageError(f"--every {arguments.every:g}: give 0.1 to 3600 seconds")
    server = MetricsServer(arguments.port, arguments.gpus)
    print(f"http://127.0.0.1:{server.sink.port}/metrics, until it is interrupted", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(arguments.every)
            server.update()
    server.close()
    return 0


def _share_arguments(commands: Commands) -> None:
    share = commands.add(
        "share", _share,
        "run two to four trainings on one GPU; measure the saving and each slowdown",
        "workbench share 'python a.py' 'python b.py'  # on the first GPU; b.py is the newcomer",
        "workbench share --until verdict './a' './b'  # measure only, then stop both",
    )
    share.add_argument("jobs", nargs="+", metavar="'COMMAND ...'",
                       help="one quoted command per job; the last one is the newcomer")
    share.add_argument("--gpus", default="0", metavar="GPU",
                       help="which one (index, UUID, PCI id; default: %(default)s)")
    share.add_argument("--max-slowdown", type=cells.percent, default=20.0, metavar="PERCENT",
                       help="how much longer an iteration of each may take (default: %(default)g)")
    share.add_argument("--stage-s", type=float, default=10.0, metavar="S",
                       help="how long each stage is measured (default: %(default)g)")
    share.add_argument("--rounds", type=int, default=2, metavar="N",
                       help="how often each is measured alone (default: %(default)s)")
    share.add_argument(
        "--until", choices=("end", "verdict"), default="end",
        help="run the jobs to their end, or stop them after the verdict (default: %(default)s)",
    )
    share.add_argument(
        "--on-break", choices=("stop", "pause"), default="stop",
        help="if the limit is exceeded, stop the newcomer or pause it until the others have ended",
    )
    share.add_argument("--simulate", metavar="CARD", help="a simulated GPU, by name, for the jobs too: V100")
    json_option(share, named=True)


def _share(arguments: Namespace) -> int:
    """Share a GPU; 0 if every job ended well or we stopped it, 1 if not, 130 after an interrupt."""
    from . import sharing

    sharing.last, interrupted = None, False
    try:
        sharing.share(
            *arguments.jobs, gpus=arguments.gpus, max_slowdown=arguments.max_slowdown / 100,
            stage_s=arguments.stage_s, rounds=arguments.rounds, until=arguments.until,
            on_break=arguments.on_break,
            say=_note,
        )
    except KeyboardInterrupt:
        interrupted = True
    shared = sharing.last
    if shared is not None:
        print(shared)
        write_json(arguments, shared.as_dict())
    if interrupted:
        return 130
    return int(shared is None or any(job.outcome not in ("ok", "stopped") for job in shared.jobs))


def _run(arguments: Namespace) -> int:
    from .jobs import combine
    from .jobs.node_log import NodeLog
    from .jobs.report import details
    from .logbook import report
    from .logbook.store import Store
    from .measurement import session
    from .measurement.meter import encodable
    from .measurement.repeats import with_iterations

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command was given; for example: workbench run -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r} to run")
    if arguments.job_id and arguments.job_dir is None:
        raise UsageError(f"--job-id {arguments.job_id} needs --job-dir DIR. Add it, or remove --job-id")
    options = cells.tuning_options(arguments)
    mine = session.Session(arguments.gpus, sync=False) if arguments.gpus else session.current()
    meter = mine.meter if arguments.gpus else mine.meter_or_clock()
    _note(*mine.messages)
    with _Forwarded() as signals, contextlib.ExitStack() as restored:  # until the measurement is stored
        label = encodable(arguments.label or _label(command))
        tuning = None
        if options is not None:
            from .tuning import Tuner, TunerThread

            uuids = [device.uuid for device in meter.devices] if arguments.gpus else None
            tuning = TunerThread(Tuner(meter, uuids=uuids, label=label, **options))
            restored.callback(tuning.end)
            if tuning.tuner.ended:
                _note(tuning.tuner.text)
        window = meter.open(label)
        node_log = None
        if arguments.job_dir is not None:
            node_log = NodeLog(arguments.job_dir, meter, window, arguments.job_id, say=_note)
        status = signals.run(command)
        try:
            if node_log is not None:
                node_log.end()
            window = meter.close(window)
            restored.close()
            measurement = meter.measure(window, outcome=_outcome(status))
            found = meter.count(window, measurement, detect_periods=arguments.period)
            job = combine.job_of(meter, window, with_iterations(measurement, found), found)
            if node_log is not None:
                node_log.write(job, window, found, measurement.outcome)
            measurement = job.measurement
            notes = [] if tuning is None else [tuning.tuner.end().text]
            with contextlib.suppress(Exception):  # a note less, and no measurement lost
                notes += meter.waste(window, measurement)
            _note(*notes)
            measurement = replace(measurement, notes=(*measurement.notes, *notes))
            _tell(measurement, meter.why, status)
            for row in details(job):
                print(f"    {row}", file=sys.stderr)
            kind = "command" if tuning is None else "tuned command"
            _note(*session.keep(measurement, window, meter, Store(), found, kind=kind))
            combine.keep_job(Store(), job)
            more = {} if tuning is None else {"tuning": tuning.tuner.end().as_dict()}
            more |= {"job": combine.as_dict(job)} if job.ranks else {}
            write_json(arguments, {**report.as_dict(measurement), **more})
        # whoever waits for the command needs its status, whatever became of the measurement
        except BaseException as error:
            with contextlib.suppress(OSError):
                _note(f"the measurement was lost: {describe_error(error)}")
    return 128 - status if status < 0 else status


def _job(arguments: Namespace) -> int:
    """Show jobs; 1 where one did not end well, or energy is missing."""
    from .jobs.combine import as_dict
    from .jobs.reading import read_job, read_jobs
    from .logbook import report

    if arguments.job_id or not Path(arguments.where).is_dir():
        jobs = {arguments.job_id: read_job(arguments.where, arguments.job_id)}
    else:
        jobs = read_jobs(arguments.where)
    print(*jobs.values(), sep="\n\n")
    write_json(arguments, {"jobs": [
        {"job": name, **report.as_dict(job.measurement), **as_dict(job)} for name, job in jobs.items()]})
    return int(any(job.measurement.outcome != "ok" or job.measurement.energy_j is None
                   for job in jobs.values()))


def _note(*messages: str) -> None:
    for message in messages:
        print(f"workbench: {printable(message)}", file=sys.stderr, flush=True)


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


def _tell(measurement: Measurement, why: str, status: int) -> None:
    from .logbook import report

    print(report.line(measurement), file=sys.stderr)
    if status > 0:
        _note(f"the command exited with status {status}")
    if not measurement.gpus:
        _note(f"{why}. To try a simulated one: --simulate A100")
    for gpu in measurement.gpus:
        for note in gpu.notes:
            print(printable(f"    {gpu.name}: {note}"), file=sys.stderr)


def _profile_gpu(arguments: Namespace) -> int:
    from .tuning.gpu_profile.command import run

    status, found = run(arguments)
    write_json(arguments, found)
    return status


def _gpus(arguments: Namespace) -> int:
    from .measurement import session
    from .measurement.gpu_table import as_dicts, lines

    mine = session.current()
    for text in lines(mine.devices, mine.recorder):
        print(text)
    if not mine.devices:
        simulated = "workbench run --simulate A100 -- python train.py"
        print(f"{mine.why_no_gpu()}. To try a simulated one: {simulated}")
    why = "" if mine.devices else mine.why_no_gpu()
    write_json(arguments, {"gpus": as_dicts(mine.devices), "why_none": why})
    return 0


def _doctor(arguments: Namespace) -> int:
    """Look at the machine and its GPUs; 1 where something fails."""
    from .device.discovery import devices, why_no_gpu
    from .experiments.workloads import any_training
    from .measurement import doctor

    if arguments.seconds is not None and not arguments.seconds > 0:
        raise UsageError(f"--seconds {arguments.seconds:g}: give seconds above 0")
    if arguments.record is not None:
        return _record(arguments)
    here, machine = devices(arguments.gpus), doctor.machine_findings()
    print(*machine, sep="\n")
    gpus, seconds = {}, 20.0 if arguments.seconds is None else arguments.seconds
    for device in here:
        marked = ", simulated" if device.simulated else ""
        print(f"\nGPU {device.index}: {device.name}{marked}", flush=True)
        load = None if arguments.no_load else any_training(device)
        gpus[device] = doctor.gpu_findings(device, load, seconds=seconds)
        print(*gpus[device], sep="\n")
    if not gpus:
        print(f"\nno GPU: {why_no_gpu()}")
    found = doctor.report(machine, gpus)  # type: ignore[arg-type]
    print(f"\n{found['fail']} FAIL, {found['warn']} WARN")
    write_json(arguments, found)
    return int(found["fail"] > 0 or not gpus)


def _record(arguments: Namespace) -> int:
    """Show what a recording holds, then write it."""
    from .device import driver
    from .device.discovery import devices
    from .measurement.sampler import FOLLOW_S, LOCK_SHARE, STATUS_EVERY_S

    if arguments.json:
        raise UsageError(f"--record writes answers of the driver, and --report {arguments.json} findings; "
                         "give one of them")
    seconds = 60.0 if arguments.seconds is None else arguments.seconds
    record = getattr(driver.current(), "recorder", None)
    if record is None:
        raise UsageError("this driver cannot be recorded")
    answers = record()(devices(arguments.gpus), seconds, every_s=FOLLOW_S, share=LOCK_SHARE,
                     status_s=STATUS_EVERY_S)
    print(answers, flush=True)
    answers.write(arguments.record)
    print(f"written to {arguments.record}")
    return 0


def _restore(arguments: Namespace) -> int:
    """Put GPUs back; 1 where one could not be."""
    from .device import restore
    from .device.discovery import devices

    outcome_lines = restore.recover(others=arguments.other_users, dry_run=arguments.dry_run)
    done = True
    if arguments.all:
        outcomes = [restore.to_default(device, dry_run=arguments.dry_run) for device in devices()]
        outcome_lines += [outcome.sentence for outcome in outcomes]
        done = all(outcome.settled for outcome in outcomes)
    done = done and (arguments.dry_run or not restore.recover(dry_run=True))
    print(*outcome_lines or ["No settings of exited processes are left to restore."], sep="\n")
    messages = [each for each in outcome_lines if each]
    write_json(arguments, {"done": done, "dry_run": arguments.dry_run, "messages": messages})
    return int(not done)


def _notebooks(arguments: Namespace) -> int:
    here = Path(__file__).parent
    source = here / "_notebooks" if (here / "_notebooks").is_dir() else here.parent / "notebooks"
    if not source.is_dir():
        raise UsageError("this installation includes no notebooks")
    checked_value("directory", arguments.directory, ("Path",))
    arguments.directory.mkdir(parents=True, exist_ok=True)
    copied: list[str] = []
    kept: list[str] = []
    for path in sorted([*source.glob("*.ipynb"), *source.glob("*.py"), *source.glob("data/*")]):
        target = arguments.directory / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            print(f"{target} exists and was not changed")
            kept.append(str(target))
        else:
            print(shutil.copy(path, target))
            copied.append(str(target))
    if arguments.act is _notebooks:
        write_json(arguments, {"copied": copied, "kept": kept})
    return 0


def _lab(arguments: Namespace) -> int:
    """JupyterLab, with simulated GPUs for all its kernels where there is no real one; prints which."""
    from .device import driver
    from .simulation import machine
    from .simulation.state import ENVIRONMENT_VARIABLE

    if importlib.util.find_spec("jupyterlab") is None:
        raise ModuleNotFoundError(name="jupyterlab")
    if not [*arguments.directory.glob("*.ipynb")]:
        _notebooks(arguments)
    notebooks = sorted(arguments.directory.glob("*.ipynb"))
    made = None
    try:
        found = driver.current().identities() if ENVIRONMENT_VARIABLE not in os.environ else []
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
        print(f"There is no GPU to measure here. The notebooks use a SIMULATED {', '.join(made.cards)}; no "
              "joule of it is real.", flush=True)
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
