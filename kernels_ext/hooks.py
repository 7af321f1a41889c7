"""Bounds a `%%energy` cell between IPython's own events, so that the cell runs as if the magic were not there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .cells import BadOptions, Options, energy_line, parse, strip

if TYPE_CHECKING:
    from workbench.records import Measurement, Window

    from .magics import EnergyMagics

_COMPLETED = ("%%energy", "%energy", "%energy_log", "%gpu")
_RECORD = ("workbench.records", "Measurement")


class Hooks:
    """The transformer and the two event hooks of one shell.

    Cells can run inside cells (`%%capture` does that): only the outermost one is measured, and its report is shown outside.
    """

    def __init__(self, shell: Any, magics: EnergyMagics) -> None:
        self._shell, self._magics = shell, magics
        self._depth = 0
        self._running: _Running | None = None

    def install(self) -> None:
        self._shell.input_transformers_cleanup.append(strip)
        self._shell.events.register("pre_run_cell", self.before)
        self._shell.events.register("post_run_cell", self.after)
        for key in _COMPLETED:
            self._shell.set_hook("complete_command", self._magics.complete, str_key=key)
        self._shell.display_formatter.mimebundle_formatter.for_type_by_name(*_RECORD, self._bundle)

    def remove(self) -> None:
        if strip in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.remove(strip)
        for event, hook in (("pre_run_cell", self.before), ("post_run_cell", self.after)):
            with contextlib.suppress(ValueError):
                self._shell.events.unregister(event, hook)
        table = self._shell.strdispatchers.get("complete_command")
        for key in _COMPLETED:
            if table is not None:
                table.strs.pop(key, None)
        formatter = self._shell.display_formatter.mimebundle_formatter
        formatter.deferred_printers.pop(_RECORD, None)
        for known in [kind for kind in formatter.type_printers if (kind.__module__, kind.__name__) == _RECORD]:
            formatter.type_printers.pop(known)

    def _bundle(self, measurement: Measurement, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """How a measurement in a variable shows itself."""
        from workbench.report import mimebundle

        return mimebundle(measurement, self._magics.tariff)

    def before(self, info: Any) -> None:
        """Open the window of a cell that asks for one. Nothing that goes wrong here keeps the cell from running."""
        self._depth += 1
        line = energy_line(info.raw_cell or "") if self._depth == 1 else None
        if line is None:
            return
        try:
            options = parse(line)
        except BadOptions as error:
            self._magics.say(f"{error}. The cell runs and is measured without options.")
            options = Options()
        try:
            body = "".join(strip((info.raw_cell or "").splitlines(keepends=True)))
            self._running = _Running(self._magics, options, body)
            self._running.open()
        except KeyboardInterrupt:
            self._running = None
            raise
        except Exception as error:
            self._running = None
            self._magics.say(f"this cell is not measured: {error}")

    def after(self, result: Any) -> None:
        """Close the window and show what it cost; also after an error or an interrupt."""
        self._depth = max(0, self._depth - 1)
        if self._depth or self._running is None:
            return
        running, self._running = self._running, None
        self._depth = 1  # cells that a repeat runs are inside this one
        try:
            running.close(result)
        except Exception as error:
            self._magics.say(f"the measurement of this cell was lost: {error}")
        finally:
            self._depth = 0


class _Running:
    """The cell that is being measured."""

    def __init__(self, magics: EnergyMagics, options: Options, body: str) -> None:
        self._magics, self._options, self._body = magics, options, body
        self._view: Any = None
        self._window: Window | None = None
        self._meter = magics.state.session.meter

    def open(self) -> None:
        magics, options = self._magics, self._options
        for message in magics.state.session.messages:
            magics.say(message)
        magics.state.session.messages.clear()
        self._uuids = magics.chosen(options.gpu)
        quiet = magics.quiet if options.quiet is None else options.quiet
        live = magics.live if options.live is None else options.live
        if self._meter.recorder is not None and live and not quiet and magics.has_front_end:
            self._view = magics.live_view(options.label, self._uuids)
        sync = magics.sync if options.sync is None else options.sync
        self._window = self._meter.open(options.label, sync=sync)

    def close(self, result: Any) -> None:
        assert self._window is not None
        options = self._options
        sync = self._magics.sync if options.sync is None else options.sync
        window = self._meter.close(self._window, sync=sync)
        remarks = self._magics.state.session.restore()
        measured = [self._measure(window, _outcome(result))]
        if options.repeat > 1:
            measured += self._repeat(options.repeat - 1, remarks) if result.success else []
        from workbench.meter import repeated

        whole = repeated(measured)
        assert window.end_s is not None
        remarks += self._magics.state.keep(whole, window.start_s, window.end_s)
        if options.output:
            self._magics.shell.user_ns[options.output] = whole
        quiet = self._magics.quiet if options.quiet is None else options.quiet
        self._magics.show(whole, self._view, window.end_s, [] if quiet and not remarks else remarks, quiet=bool(quiet))

    def _measure(self, window: Window, outcome: str) -> Measurement:
        settle = self._options.settle and outcome != "interrupted"
        try:
            measurement = self._meter.measure(window, settle=settle, outcome=outcome)
        except KeyboardInterrupt:
            measurement = self._meter.measure(window, settle=False, outcome=outcome)
        return self._magics.only(measurement, self._uuids)

    def _repeat(self, times: int, remarks: list[str]) -> list[Measurement]:
        """Run the body again; what it prints is shown, its value is not."""
        shell = self._magics.shell
        if shell.should_run_async(self._body, transformed_cell=shell.transform_cell(self._body)):
            remarks.append("--repeat does not work with top-level await; the cell was measured once")
            return []
        measured = []
        for number in range(times):
            window = self._meter.open(self._options.label)
            result = shell.run_cell(self._body, store_history=False, silent=True)
            window = self._meter.close(window)
            if not result.success:
                remarks.append(f"run {number + 2} of {times + 1} ended with an error and is left out")
                break
            measured.append(self._measure(window, "ok"))
        return measured


def _outcome(result: Any) -> str:
    if result.success:
        return "ok"
    error = result.error_in_exec or result.error_before_exec
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "error"

