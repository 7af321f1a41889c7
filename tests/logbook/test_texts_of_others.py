"""Labels and names of others on terminals, in reports and in spreadsheets."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from pathlib import Path

import polars as pl
import pytest

import workbench
from workbench import cli
from workbench.errors import UsageError, listed, printable
from workbench.logbook import report
from workbench.logbook.store import FORMULA, Store, for_spreadsheets
from workbench.records import GpuMeasurement, Measurement

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
HOSTILE = ("\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "a\rb", "a\x08", "\u202egnp.exe", "x\x00y", "two\nlines", "\u2028", "\x7f")
MARKUP = "<img src=x onerror=alert(1)>|`a`*b*[c](d)\\input{/etc/passwd}"
FORMULAS = ("=1+1", "+1", "-1+1", "@SUM(1)", "\t=1+1", "\r=1+1", "\n=1+1", " =1+1", "\uff1d1+1", '"=1+1"', "\u200b=1+1")


def keep(*labels: str) -> None:
    for number, label in enumerate(labels):
        gpu = GpuMeasurement(label, f"GPU-{number}", 100.0, 1.0, "counter", False, mean_power_w=100.0, notes=(label,))
        Store().save(Measurement(f"{number}abc", label, 1.7e9 + number, 1.0, (gpu,), notes=(label,)))


def test_terminals_get_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    keep(*HOSTILE)
    for command in (["log"], ["report"], ["waste"], ["log", "--compare", *HOSTILE[:2]], ["log", "--label", "\x1b[2J?"]):
        cli.main(command)
        out, err = capsys.readouterr()
        assert not CONTROL.findall(out + err), command
    assert "two lines" in str(workbench.report())
    with pytest.raises(SystemExit):
        cli.main(["log", "\x1b[2J"])
    assert not CONTROL.findall(capsys.readouterr().err)
    for each in Store().log().iter_rows(named=True):
        measured = Store().find(each["id"])
        assert not CONTROL.findall(str(measured) + repr(report.Report(measured, remarks=[each["label"]])))
        assert not CONTROL.findall(report.page(measured))


def test_errors_and_lists_have_no_control_characters() -> None:
    assert str(UsageError("no \x1b[2J\nhere")) == "no \ufffd[2J\nhere"
    assert listed(["a\x1b", "b\tc"]) == "a\ufffd, b c"
    assert printable("é ± 漢 \U0001f600") == "é ± 漢 \U0001f600"


def test_reports_escape_markup() -> None:
    keep(MARKUP)
    found = workbench.report(location=MARKUP)
    for text in (found.markdown(), found.latex(), found.html()):
        assert "<img" not in text
    assert "\\input{" not in found.latex().partition("% workbench")[0]
    assert r"\[c\](d)" in found.markdown()
    assert r"\textless{}img" in found.latex()


def test_a_written_report_is_still_verified(tmp_path: Path) -> None:
    keep("a<b>|c", "train_1")
    for ending in (".md", ".tex", ".html"):
        assert workbench.verify(workbench.report().write(tmp_path / f"energy{ending}")) == []


@pytest.mark.parametrize("text", FORMULAS)
def test_spreadsheets_run_no_text(text: str, tmp_path: Path) -> None:
    frame = for_spreadsheets(pl.DataFrame({"label": [text, "a = b", "3-4"]}))
    assert frame["label"].to_list() == [f"'{text}", "a = b", "3-4"]
    assert frame["label"].str.replace(f"^'({FORMULA})", "$1").to_list()[0] == text
    keep(text)
    assert cli.main(["log", "--export", str(tmp_path / "log.csv")]) == 0
    rows = [*csv.reader(io.StringIO((tmp_path / "log.csv").read_text(encoding="utf-8"), newline=""))]
    assert rows[1][0].startswith(("'", "\ufffd"))


@pytest.mark.parametrize("command", [["log"], ["report"], ["waste"], ["gpus"], ["doctor", "--no-load"], ["--help"]])
def test_a_terminal_of_ascii_prints_everything(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    keep("größe ± →")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    with contextlib.suppress(SystemExit):  # of --help
        cli.main(command)
    out.flush()
    text = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert text
    if command == ["log"]:
        assert r"gr\xf6\xdfe +- ->" in text
        assert "100.0 +- 1.0 J" in text
