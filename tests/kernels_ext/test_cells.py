"""Reading a `%%energy` line: its place, its options, and its errors."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from kernels_ext.cells import BadOptions, Options, energy_line, parse, parser, strip


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%energy\nx", ""),
        ("%%energy train --live\nx", "train --live"),
        ("\n\n  %%energy a\nx", "a"),
        ("%%time\n%%energy a\nx", "a"),
        ("%%capture out\n%%time\n%%energy\nx", ""),
        ("%%energy", ""),
        ("%%prun -s cumulative\n%%energy a\nx", "a"),
        ("  %%time\n  %%energy a\n  x", "a"),
        ("%%writefile x.py\n%%energy\nx", None),
        ("%%time\n\n%%energy\nx", None),
        ("x\n%%energy", None),
        ("%%time\nx\n%%energy", None),
        ("%%energy?", None),
        ("%%energy_log\nx", None),
        ("%energy x", None),
        ("print('%%energy')", None),
        ("", None),
    ],
)
def test_the_line_is_found_among_the_magics_at_the_top_and_nowhere_else(cell: str, line: str | None) -> None:
    assert energy_line(cell) == line


@pytest.mark.parametrize(
    ("cell", "stripped"),
    [
        ("%%energy train\nx = 1\ny", "x = 1\ny"),
        ("%%time\n%%energy\nx", "%%time\nx"),
        ("x = '''\n%%energy\n'''", "x = '''\n%%energy\n'''"),
        ("%%time\nx\n%%energy\n", "%%time\nx\n%%energy\n"),
        ("%%energy?\n", "%%energy?\n"),
        ("%%energy", ""),
        ("%%energy a\n%%energy b\nx", "x"),
        ("%%energy\n%%writefile x.py\n%%energy\nx", "%%writefile x.py\n%%energy\nx"),
        ("%%time\n\n%%energy\nx", "%%time\n\n%%energy\nx"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_only_that_line_is_taken_out(cell: str, stripped: str) -> None:
    assert "".join(strip(cell.splitlines(keepends=True))) == stripped


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", Options()),
        ("warm up", Options(label="warm up")),
        ("'a label' --no-live", Options(label="a label", live=False)),
        ("--repeat 3 -q", Options(repeat=3, quiet=True)),
        ("-r 2 -o cost --no-sync --no-settle", Options(repeat=2, output="cost", sync=False, settle=False)),
        ("--period", Options(period=True)),
        ("--no-period train", Options(label="train", period=False)),
        ("--gpu 0,GPU-12 train", Options(label="train", gpus="0,GPU-12")),
    ],
)
def test_options_are_understood(line: str, options: Options) -> None:
    assert parse(line) == options


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--bogus", "%%energy?"),
        ("--repeat many", "many: give a whole number"),
        ("--repeat 0", "--repeat 0"),
        ("-o 1st", "-o 1st"),
        ("-o for", "-o for"),
        ("--gpu", "expected one argument"),
        ("'open", "No closing quotation"),
    ],
)
def test_a_bad_line_is_refused_with_the_option_named(line: str, part: str) -> None:
    with pytest.raises(BadOptions) as caught:
        parse(line)
    assert part in str(caught.value)


def test_every_option_is_explained() -> None:
    given: list[Any] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(argparse.HelpFormatter, "add_arguments", lambda formatter, actions: given.extend(actions))
    parser().format_help()
    patch.undo()
    assert given
    assert all(action.help for action in given)
