"""Bounds a `%%energy` cell between IPython's own events: it runs as if the magic were not there."""

from __future__ import annotations

import functools
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

from workbench._processes import interrupts_to

from .cells import energy_line, parse, problem, runner, strip
from .running import Running

if TYPE_CHECKING:
    from workbench.records import Measurement

    from .magics import EnergyMagics

_COMPLETED = ("%%energy", "%energy", "%energy_compare", "%energy_log", "%gpu")


class Hooks:
    """The transformer and event hooks of one shell; of cells in cells (`%%capture`) the outer is measured."""

    def __init__(self, shell: Any, magics: EnergyMagics) -> None:
        self._shell, self._magics = shell, magics
        self._running: Running | None = None
        self._info: Any = None  # of the cell that is being measured; None again while it is closed
        # others, if the first is interrupted immediately
        self._afters = self.after, functools.partial(self.after), self._end_left

    def install(self) -> None:
        self._shell.input_transformers_cleanup.append(strip)
        self._shell.events.register("pre_run_cell", self.before)
        for each in self._afters:
            self._shell.events.register("post_run_cell", each)
        for key in _COMPLETED:
            self._shell.set_hook("complete_command", self._magics.complete, str_key=key)
        formatter = self._shell.display_formatter.mimebundle_formatter
        formatter.for_type_by_name("workbench.records", "Measurement", self._bundle)

    def remove(self) -> None:
        self._shell.input_transformers_cleanup.remove(strip)
        self._shell.events.unregister("pre_run_cell", self.before)
        for each in self._afters:
            self._shell.events.unregister("post_run_cell", each)

    def _bundle(self, measurement: Measurement, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """How a measurement in a variable shows itself."""
        from workbench.logbook.report import Report

        return Report(measurement, self._magics.tariff)._repr_mimebundle_()

    def before(self, info: Any) -> None:
        """Open the window of a cell that asks for one; no error in here keeps the cell from running.

        An interrupt waits until the cell begins: IPython would show this hook's traceback, and run the cell.
        """
        came: list[int] = []
        try:
            with interrupts_to(lambda number, _: came.append(number)):
                self._before(info)
        except KeyboardInterrupt:  # it came before the handler was installed
            came.append(signal.SIGINT)
        if came:
            self._shell.ast_transformers.append(self)

    def visit(self, tree: Any) -> Any:
        """Transform a cell's syntax tree: interrupt the cell before it runs."""
        self._shell.ast_transformers.remove(self)
        signal.raise_signal(signal.SIGINT)
        return tree

    def _before(self, info: Any) -> None:
        line = energy_line(info.raw_cell or "")
        self._end_left()
        if line is None or problem(line):
            return
        if self._running is not None:
            if threading.get_ident() != self._running.thread:  # a subshell's
                self._magics.say("this cell is not measured: another one is being measured")
            return
        options, body = parse(line), _body(info)
        try:
            running = Running(self._magics, options, options.label, cell=True)
            running.open()
        except Exception as error:
            self._magics.say(f"this cell is not measured: {error}")
        else:
            self._running, self._info = running, info
            if options.label:
                self._magics.cells[options.label] = body

    def _end_left(self, _: Any = None) -> None:
        """Between cells of this thread, end what interrupts have kept from its end."""
        if _within_cell():
            return
        for running in [each for each in self._magics.begun if each.thread == threading.get_ident()]:
            running.end()
            if running is self._running:
                self._running = None

    def after(self, result: Any) -> None:
        """Close the window and show its cost; also after an error or an interrupt."""
        running = self._running
        if running is None or not self._ends(result):
            return
        with running.noting_interrupts():
            try:
                info, self._info = self._info, None  # cells that a repeat runs are inside this one
                running.close(_outcome(result), lambda: runner(self._shell, _body(info)))
            finally:
                running.end()
                self._running = None

    def _ends(self, result: Any) -> bool:
        """Whether the measured cell ends here, and not one inside it or in a subshell."""
        info = self._info
        here = self._running is not None and threading.get_ident() == self._running.thread
        if info is None or result is None:  # a cancelled cell has no result
            return info is not None and here
        # A cell that was interrupted outside of its own code is given another info, of the same text.
        return result.info is info or (here and result.info.raw_cell is info.raw_cell)


def _within_cell() -> bool:
    """Whether the code of a cell is being run, which may run cells itself."""
    return any(frame.f_code.co_name == "run_code" for frame, _ in traceback.walk_stack(None))


def _body(info: Any) -> str:
    """The text of a cell without its `%%energy` line."""
    return "".join(strip((info.raw_cell or "").splitlines(keepends=True)))


def _outcome(result: Any) -> str:
    if result is None:
        return "interrupted"
    if result.success:
        return "ok"
    error = result.error_in_exec or result.error_before_exec
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "error"

