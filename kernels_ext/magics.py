"""The magics: `%%energy`, `%energy`, `%energy_compare`, `%energy_log`, `%gpu`."""

from __future__ import annotations

import ast
import os
import re
import signal
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from traitlets import Bool, Float, Unicode

from .cells import (
    BadOptions,
    check_gpus,
    compare_parser,
    log_parser,
    parse,
    parser,
    problem,
    runner,
    sentence,
)
from .running import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

    from workbench.device.gpu import OpenGpu
    from workbench.experiments.comparison import EnergyComparison
    from workbench.measurement.session import Session
    from workbench.records import Measurement
    from workbench.tariff import Tariff


@magics_class
class EnergyMagics(Magics):
    """Measure the time and the GPU energy of cells; `%config EnergyMagics.live = False` configures."""

    live = Bool(True, help="Plot power while a measured cell runs.").tag(config=True)
    quiet = Bool(False, help="Measure and store, show nothing.").tag(config=True)
    sync = Bool(True, help="Wait for queued work of torch, JAX and CuPy at both edges.").tag(config=True)
    period = Bool(True, help="Find iterations from 3 s on, or with workbench.step().").tag(config=True)
    price_per_kwh = Float(None, allow_none=True, help="Price of a kWh; shown when set.").tag(config=True)
    currency = Unicode("EUR", help="Currency of the price.").tag(config=True)
    g_co2_per_kwh = Float(None, allow_none=True, help="Grams of CO2 a kWh; shown when set.").tag(config=True)

    def __init__(self, shell: Any, **options: Any) -> None:
        super().__init__(shell, **options)
        self.cells: dict[str, str] = {}  # measured in this kernel, by label
        self.begun: list[Running] = []  # and not ended
        # the last complete run of each label, and the code of its cell
        self.last_runs: dict[str, tuple[Measurement, str | None]] = {}
        if os.environ.get("WORKBENCH_SIMULATED_GPUS"):
            origin = "the GPUs of this kernel are simulated (chosen by name before it started)"
            self.say(f"{origin}; %gpu lists them")

    # %%energy and %energy

    @no_var_expand
    @cell_magic("energy")
    def energy_cell(self, line: str, cell: str) -> None:
        """Measure the time and GPU energy of the cell; see `%%energy?`."""
        # Reached with a wrong option, or without the input transformer, as in `run_cell_magic`.
        if wrong := problem(line):
            raise UsageError(f"{sentence(wrong)} The cell was not run.")
        self.shell.run_cell(f"%%energy {line}\n{cell}")

    @no_var_expand
    @line_magic
    def energy(self, line: str) -> Any:
        """Measure the time and GPU energy of a statement: `%energy [options] train()`."""
        options, statement = _split(line)
        if not statement.strip():
            example = "for example `%energy train()`; %%energy measures a whole cell"
            raise UsageError(f"%energy takes a statement, {example}")
        try:
            chosen = parse(options)
            check_gpus(chosen.gpus)
            tree = ast.parse(self.shell.transform_cell(statement))
        except BadOptions as error:
            raise UsageError(str(error)) from error
        except UnicodeEncodeError as error:
            character = ascii(error.object[error.start])
            raise UsageError(f"the statement contains {character}, half of a character; remove it") from error
        value: Any = None
        failed: BaseException | None = None

        def run() -> bool:
            nonlocal value, failed
            try:
                value = self._run(tree)
            except BaseException as error:  # shown after what it cost
                failed = error
            return failed is None

        from workbench._processes import interrupts_later, interrupts_to

        running: Running | None = None
        try:
            with interrupts_later():
                running = Running(self, chosen, chosen.label or statement.strip()[:60], cell=False)
                running.open()
            handler = signal.getsignal(signal.SIGINT)
            with running.noting_interrupts():
                try:
                    with interrupts_to(handler):
                        run()
                except KeyboardInterrupt as error:  # it came when the statement had ended
                    failed = error
                how = "interrupted" if isinstance(failed, KeyboardInterrupt) else "error" if failed else "ok"
                running.close(how, lambda: run)
        finally:
            if running is not None:
                running.end()
        if failed is not None:
            raise failed
        return value

    def _run(self, tree: ast.Module) -> Any:
        """Execute a parsed statement in the user's namespace; the value of a last expression."""
        namespace = self.shell.user_ns
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = tree.body[-1].value
            exec(compile(ast.Module(tree.body[:-1], []), "<energy>", "exec"), namespace)
            return eval(compile(ast.Expression(last), "<energy>", "eval"), namespace)
        exec(compile(tree, "<energy>", "exec"), namespace)
        return None

    # %energy_log

    @line_magic
    def energy_log(self, line: str) -> pl.DataFrame | None:
        """All runs of this user, also of earlier kernels: a table of the newest, and a Polars frame in `_`.

        %energy_log                          all runs, newest first
        %energy_log --last 10                the latest ten
        %energy_log --label train            those with this label
        %energy_log --export FILE            also write it to a .parquet, .csv or .json file
        %energy_log --compare A B            two measurements by label or id: ratio with its 95 % interval
        """
        from workbench.errors import WorkbenchError
        from workbench.logbook.run_table import RunLog
        from workbench.logbook.store import Store

        from .log_commands import select_log

        store = Store()
        try:
            log, done = select_log(store, log_parser().parse_line(line))
        except (WorkbenchError, BadOptions) as error:
            raise UsageError(str(error)) from error
        for text in (*filter(None, [done]), *store.messages()):
            self.say(text)
        return None if log is None or done else RunLog.of(log, store.tags())

    # %energy_compare

    @line_magic
    def energy_compare(self, line: str) -> EnergyComparison:
        """Which of two takes less energy for the same work, and how sure that is.

        %energy_compare old new              two functions of this notebook, in turns until it is clear
        %energy_compare A B --paired 10      two cells by their labels: run again, in 10 pairs at most
        %energy_compare A B --labels         the logged runs of two labels; also without --labels where this
                                             notebook has neither name
        %energy_compare old new --gpus 0     count these GPUs only
        """
        from workbench.errors import WorkbenchError
        from workbench.experiments.comparison import compare

        try:
            found = compare_parser().parse_line(line)
            names, again = found.names, found.paired is not None
            if found.labels or not (again or any(map(self._is_ours, names))):
                if again or found.gpus:
                    raise BadOptions("--paired and --gpus are for work that runs now, and logged runs are "
                                     "compared as they are; leave them out, or define two functions")
                logged = compare(*names)
                self.say(f"compared from the log: {logged.ended}")
                return logged
            ways = [self._way(name, names, again=again) for name in names]
            pairs = {"max_pairs": found.paired} if again else {}
            return compare(*ways, labels=names, gpus=found.gpus, **pairs)
        except (WorkbenchError, BadOptions) as error:
            raise UsageError(str(error)) from error

    def _is_ours(self, name: str) -> bool:
        """Whether this kernel has a name. Raises BadOptions for a call."""
        if call := re.fullmatch(r"([\w.]+)\(.*\)", name):
            raise BadOptions(f"{name} calls a function; omit the parentheses: {call[1]}")
        return name in self.shell.user_ns

    def _way(self, name: str, names: Sequence[str], *, again: bool) -> Callable[[], object]:
        """The function of a name, or the measured cell where it is to run again."""
        namespace = self.shell.user_ns
        function = namespace.get(name)
        if callable(function):
            return function  # type: ignore[no-any-return]
        if not again:
            kinds = (f"{each} is " + ("a function" if callable(namespace.get(each)) else
                     "no function" if each in namespace else "not defined") for each in names)
            raise BadOptions(f"{', '.join(kinds)}. Define {name} as a function, or compare two labels of the "
                             "log with --labels")
        if name not in self.cells:
            known = ", ".join(list(self.cells)[-6:]) or "none yet"
            raise BadOptions(f"--paired: no cell of this kernel was measured as {name!r}; there are: {known}")
        run = runner(self.shell, self.cells[name])
        if run is None:
            raise BadOptions(f"--paired: the cell {name!r} has a top-level await and cannot be run again")

        def cell() -> None:
            if not run():
                raise UsageError(f"the cell {name!r} failed; the log keeps the measurements before it")

        return cell

    # %gpu

    @line_magic
    def gpu(self, line: str) -> None:
        """What GPUs are here and what they can do; or choose simulated ones.

        %gpu                          list GPUs with their limits, clocks and settable values
        %gpu simulate A100[,V100]     simulated GPUs instead, for this kernel
        %gpu restore                  restore changed power limits and clocks
        %gpu advise                   suggest an SM clock to lock for the running job
        """
        from workbench.errors import WorkbenchError, shortened
        from workbench.measurement import session

        parts = line.split()
        try:
            if not parts:
                self._list_gpus()
            elif parts[0] == "simulate" and len(parts) >= 2:
                session.simulate(",".join(parts[1:]).replace(",,", ","))
                self.say("this kernel now measures simulated GPUs: their energy is not real")
                self._list_gpus()
            elif parts == ["restore"]:
                left = self.session.restore_all()
                self.say("; ".join(left) if left else "all settings are as they were found")
            elif parts == ["advise"]:
                from workbench.tuning import advise

                self._devices()
                print(*advise(self.session.meter), sep="\n")
            else:
                raise UsageError(f"%gpu {shortened(line, 80)} is unknown. Use %gpu, %gpu simulate CARD, %gpu "
                                 "restore or %gpu advise; workbench.gpu_settings sets a limit")
        except WorkbenchError as error:
            raise UsageError(str(error)) from error

    def _list_gpus(self) -> None:
        from workbench.measurement.gpu_table import lines

        for text in lines(self._devices(), self.session.recorder):
            print(text)

    def _devices(self) -> Sequence[OpenGpu]:
        """The GPUs of this process; a message where there is none."""
        if not self.session.devices:
            self.say(f"{self.session.why_no_gpu()}. To try a simulated one: %gpu simulate A100")
        return self.session.devices

    # what the hooks and the magics share

    @property
    def session(self) -> Session:
        """The session of this process."""
        from workbench.measurement import session

        return session.current()

    @property
    def has_front_end(self) -> bool:
        """Whether this shell belongs to a kernel that can show widgets."""
        return getattr(self.shell, "kernel", None) is not None

    @property
    def tariff(self) -> Tariff:
        from workbench.tariff import Tariff

        return Tariff(self.price_per_kwh, self.currency, self.g_co2_per_kwh)

    def say(self, sentence: str) -> None:
        """One sentence to the person, in the output of the running cell."""
        print(sentence)

    def chosen(self, gpus: str | None) -> tuple[str, ...] | None:
        """UUIDs of the GPUs that `--gpus` names; None without it. Raises WorkbenchError."""
        return self.session.uuids(gpus)

    def started_view(self, make: Callable[[], Any]) -> Any:
        """A view that is displayed and publishes; None where it cannot be made, with a message."""
        view = None
        try:
            view = make()
            view.show()
            view.start()
        except BaseException as error:
            if view is not None:
                view.end()
            if not isinstance(error, Exception):
                raise
            self.say(f"no live view: {error}")
            return None
        return view

    def complete(self, _shell: Any, event: Any) -> list[str]:
        """Options of the magic on the line that is being typed."""
        name = event.line.split()[0] if event.line.split() else ""
        if name == "%gpu":
            from workbench.simulation.catalogue import CARDS

            return list(CARDS) if "simulate" in event.line else ["simulate", "restore"]
        parsers = {"%energy_log": log_parser, "%energy_compare": compare_parser}
        options = parsers.get(name, parser)()
        return [word for action in options._actions for word in action.option_strings]


EnergyMagics.energy_cell.__doc__ = f"""Measure the time and GPU energy of the cell.

The cell runs as it would without this line. Afterwards one line shows joules with their 95 % interval,
seconds and watts. `%energy_log` lists the stored measurements.

{parser().format_help()}"""


def _split(line: str) -> tuple[str, str]:
    """Options at the start of a `%energy` line, and the statement behind them."""
    valued = [word for action in parser()._actions if action.nargs is None for word in action.option_strings]
    parts = re.findall(r"\S+\s*", line)
    taken = 0
    while taken < len(parts) and parts[taken].startswith("-"):
        taken += 2 if any(word.startswith(parts[taken].strip()) for word in valued) else 1
    return "".join(parts[:taken]), "".join(parts[taken:])

