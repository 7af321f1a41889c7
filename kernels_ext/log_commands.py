"""The sub-commands of `workbench` on the log: `log`, `report`, `import`, `waste`, `verify`."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError, printable

from . import cells
from .commands import Commands, json_option, write_json

if TYPE_CHECKING:
    import polars as pl

    from workbench.logbook.store import Store
    from workbench.records import Measurement



def add_log_commands(commands: Commands) -> None:
    """`log`, `report`, `import`, `waste` and `verify`."""
    log = commands.add(
        "log", _log, "show stored measurements",
        "workbench log --last 10                # the newest ten",
        "workbench log --label night --json     # all of one label, as JSON",
        "workbench log --export runs.csv        # for a spreadsheet; also .parquet and .json",
        "workbench log --compare before after   # two labels: ratio of energies with its 95 % interval",
    )
    cells.add_log(log)
    json_option(log)
    report = commands.add(
        "report", _report, "a table and an energy statement for a paper, from the log",
        "workbench report night --pue 1.2            # one label, with the data centre's overhead",
        "workbench report --since 2026-11-01 -o energy.tex  # a table for LaTeX",
        "workbench report night --json               # with its provenance, for a script",
    )
    report.add_argument("names", nargs="*", metavar="LABEL", help="labels or ids (default: all of the log)")
    report.add_argument("--label", help="another way to give a label")
    report.add_argument("--last", type=int, metavar="N", help="the newest of them only")
    report.add_argument("--since", metavar="DAY", help="from this day on, local time: 2026-11-22")
    kinds = report.add_mutually_exclusive_group()
    for kind in ("latex", "json"):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind)
    report.add_argument("-o", dest="output", metavar="FILE", help="write a .md, .tex, .html or .json file")
    report.add_argument("--pue", type=float, help="power usage effectiveness of the data centre")
    report.add_argument("--location", default="", help="where it ran")
    report.add_argument("--g-co2-per-kwh", type=float, metavar="G", help="intensity of the grid there")
    report.add_argument("--intensity-source", default="", metavar="TEXT", help="where that number is from")
    logs = commands.add(
        "import", _import, "put logs of other tools into the log of measurements",
        "workbench import emissions.csv              # of codecarbon",
        "workbench import power.csv --label before --every 1  # rows a second apart that have no times",
    )
    logs.add_argument("files", nargs="+", metavar="FILE",
                      help="of nvidia-smi, DCGM, Prometheus, nvitop, W&B, MLflow, TensorBoard, codecarbon, "
                           "Zeus, Slurm")
    logs.add_argument("--label", default="", help="name in the log; the files' own names by default")
    logs.add_argument("--every", type=float, metavar="S", help="seconds between rows that have no times")
    json_option(logs, named=True)
    wasted = commands.add(
        "waste", _waste, "what GPUs drew while they did nothing, and what to do about it",
        "workbench waste --since 2026-11-01 --price 0.3   # of all runs of the log since then",
        "workbench waste --label night --json -           # of one label, for a script",
        "workbench waste power.csv                        # of a trace of another tool",
    )
    wasted.add_argument("files", nargs="*", metavar="FILE",
                        help="power traces of other tools; the log where none is given")
    wasted.add_argument("--label", help="runs with this label only")
    wasted.add_argument("--last", type=int, metavar="N", help="the newest of them only")
    wasted.add_argument("--since", metavar="DAY", help="from this day on, local time: 2026-11-22")
    wasted.add_argument("--price", type=float, metavar="P", help="of a kWh")
    wasted.add_argument("--currency", help="of the price (default: EUR)")
    json_option(wasted, named=True)
    verify = commands.add(
        "verify", _verify, "compare each number of a report with the log",
        "workbench verify energy.tex         # 1 where a number is not that of the log",
        "workbench verify energy.md --json   # for a script",
    )
    verify.add_argument("file", metavar="FILE")
    json_option(verify)


def _import(arguments: Namespace) -> int:
    from workbench.logbook import report
    from workbench.logbook.log_readers import import_log
    from workbench.logbook.store import Store

    every_s = arguments.every
    if every_s is not None and not 0 < every_s < math.inf:
        raise UsageError(f"--every {every_s:g}: give seconds above 0")
    found, known = [], dict(Store().log().select("id", "energy_j").iter_rows())
    for path in arguments.files:
        for measurement in import_log(path, arguments.label, every_s=every_s):
            before_j = known.get(measurement.id)
            text = report.line(measurement)
            if before_j is not None:
                text += " (in place of an earlier import)"
            if before_j == measurement.energy_j:
                text = f"{printable(measurement.label)}: already imported"
            print(text)
            known[measurement.id] = measurement.energy_j
            found.append(report.as_dict(measurement))
    write_json(arguments, {"measurements": found})
    return 0


def _waste(arguments: Namespace) -> int:
    from workbench.logbook.log_readers import read_log
    from workbench.logbook.waste import Waste, waste
    from workbench.tariff import Tariff

    if arguments.currency and arguments.price is None:
        raise UsageError(f"--currency {arguments.currency} needs --price. Add it, or remove --currency")
    tariff = Tariff(arguments.price, arguments.currency or "EUR")
    if arguments.files:
        chosen = [name for name in ("label", "last", "since") if getattr(arguments, name) is not None]
        if chosen:
            raise UsageError(f"--{chosen[0]} chooses runs of the log; leave it out, or the files")
        read = [(Path(path).name, waste(read_log(path), tariff=tariff)) for path in arguments.files]
        found = [Waste([replace(one, label=name) for one in each.findings],
                       [f"{name}: {note}" for note in each.notes], tariff, each.examined)
                 for name, each in read]
    else:
        found = [waste(label=arguments.label, last=arguments.last, since=arguments.since, tariff=tariff)]
    print(*found, sep="\n")
    write_json(arguments, {
        "findings": [row for each in found for row in each.frame.to_dicts()],
        "notes": [note for each in found for note in each.notes],
        "examined": sum(each.examined for each in found),
    })
    return int(not all(each.examined for each in found))


def _report(arguments: Namespace) -> int:
    from workbench.logbook.statement import report

    given = {name: getattr(arguments, name) for name in (
        "last", "label", "since", "pue", "location", "g_co2_per_kwh", "intensity_source")}
    if arguments.output and arguments.kind:
        raise UsageError(f"-o {arguments.output} has the format of its ending; remove --{arguments.kind}")
    found = report(*arguments.names, **given)
    if arguments.output:
        print(f"written to {found.write(arguments.output)}")
    else:
        print(getattr(found, arguments.kind or "markdown")(), end="")
    return 0


def _verify(arguments: Namespace) -> int:
    from workbench.logbook.statement import verify

    wrong = verify(arguments.file)
    print("\n".join(wrong) or f"{arguments.file}: all numbers match the log")
    write_json(arguments, {"file": arguments.file, "differences": wrong})
    return 1 if wrong else 0


def select_log(store: Store, arguments: Namespace) -> tuple[pl.DataFrame | None, str]:
    """The measurements that options of `cells.add_log` ask for (None for two compared), and what was done.

    Raises:
        StoreError, UsageError: no such measurement, or a file that cannot be written.
    """
    import polars as pl

    from workbench.logbook.equal_work import describe_comparison
    from workbench.logbook.store import export, unknown

    if arguments.compare:
        for name in ("label", "last", "export"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"--compare compares two labels or ids, and --{name} lists runs; remove one")
        return None, describe_comparison(*(store.find(name) for name in arguments.compare))
    log = store.log()
    if arguments.label is not None:
        labels = log["label"]
        log = log.filter(pl.col("label") == arguments.label)
        if log.is_empty() and len(labels):
            raise unknown(arguments.label, labels)
    if arguments.last is not None:
        if arguments.last < 1:
            raise UsageError(f"--last {arguments.last}: give 1 or more")
        log = log.tail(arguments.last)
    if not arguments.export:
        return log, ""
    return log, f"{log.height} measurements written to {export(log, arguments.export)}"


def _log(arguments: Namespace) -> int:
    from workbench.logbook.report import as_dict
    from workbench.logbook.run_table import SHOWN, as_text, rows
    from workbench.logbook.store import Store, from_row

    store = Store()
    log, done = select_log(store, arguments)
    for message in store.messages():
        print(f"workbench: {printable(message)}", file=sys.stderr)
    if log is None and arguments.json:
        write_json(arguments, _compared(*(store.find(name) for name in arguments.compare)))
    if log is not None and arguments.json:
        write_json(arguments, {"measurements": [as_dict(from_row(row)) for row in log.iter_rows(named=True)]})
    if log is not None and not done:
        shown = log.tail(log.height if arguments.last is not None else SHOWN)
        done = as_text(rows(shown, store.tags()))
    print(done)
    return 0


def _compared(first: Measurement, second: Measurement) -> dict[str, Any]:
    """Two measurements, and by what share the second took more energy; nulls where that is not known."""
    from workbench.logbook.equal_work import comparison_basis, relative_change
    from workbench.logbook.report import as_dict

    basis = comparison_basis((first, second))
    change, half_width = relative_change(*basis.costs) if basis.costs else (None, None)
    return {"measurements": [as_dict(first), as_dict(second)], "energy_change": change,
            "energy_change_half_width": half_width, "per": basis.unit, "not_compared": basis.problem}
