"""Completion of a command line in bash, zsh and fish, written from its argparse parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple


class _Option(NamedTuple):
    """One way to write an option: its help, the values it takes (none: any), and whether it takes one."""

    word: str
    words: str
    values: tuple[str, ...]
    valued: bool


def _commands(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Sub-commands by name: what each is for, and its parser."""
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return {each.dest: (each.help or "", action.choices[each.dest]) for each in action._choices_actions}


def _options(parser: argparse.ArgumentParser) -> Iterator[_Option]:
    for action in parser._actions:
        words = (action.help or "").replace("%%", "%") if "%(" not in (action.help or "") else ""
        values = tuple(map(str, action.choices or ()))
        for word in action.option_strings:
            yield _Option(word, words.split(";")[0], values, action.nargs is None)


def _words(parser: argparse.ArgumentParser) -> str:
    """What may be typed next: its options, and the choices of its positional arguments."""
    free = [action.choices or () for action in parser._actions if not action.option_strings]
    return " ".join([*map(str, chain(*free)), *(each.word for each in _options(parser))])


def bash(parser: argparse.ArgumentParser) -> str:
    """A completion function for bash; where it has nothing to offer, bash offers files."""
    commands = _commands(parser)
    lines = [f"    {name}) words={_words(made)!r} ;;" for name, (_, made) in commands.items()]
    values = [
        f"    '{name} {each.word}') words={' '.join(each.values)!r} ;;"
        for name, (_, made) in commands.items() for each in _options(made) if each.values
    ]
    return "\n".join([
        f"_{parser.prog}() {{",
        "  local words current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "  case ${COMP_WORDS[1]} in", *lines, "  esac",
        f"  [ $COMP_CWORD -gt 1 ] || words={' '.join(commands)!r}",
        '  case "${COMP_WORDS[1]} $before" in', *values, "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))', "}",
        f"complete -o default -F _{parser.prog} {parser.prog}",
    ])


def zsh(parser: argparse.ArgumentParser) -> str:
    """A completion function for zsh, where `compinit` has run."""
    commands = _commands(parser)
    named = " ".join(shlex.quote(f"{name}:{words}") for name, (words, _) in commands.items())
    lines = []
    for name, (_, made) in commands.items():
        values = " ".join(f"{each.word}) compadd -- {' '.join(each.values)}; return ;;"
                          for each in _options(made) if each.values)
        before = f"case $words[CURRENT-1] in {values} esac; " if values else ""
        lines.append(f"    {name}) {before}compadd -- {_words(made)} ;;")
    return "\n".join([
        f"#compdef {parser.prog}", f"_{parser.prog}() {{", f"  local -a commands=({named})",
        "  if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "  case $words[2] in", *lines, "  esac", "  _files", "}", f"compdef _{parser.prog} {parser.prog}",
    ])


def fish(parser: argparse.ArgumentParser) -> str:
    """`complete` lines for fish."""
    lines = []
    for name, (words, made) in _commands(parser).items():
        to = f"complete -c {parser.prog} -n"
        lines.append(f"{to} __fish_use_subcommand -f -a {name} -d {shlex.quote(words)}")
        of = f"{to} '__fish_seen_subcommand_from {name}'"
        for each in _options(made):
            word = f"-l {each.word[2:]}" if each.word.startswith("--") else f"-s {each.word[1:]}"
            takes = f" -x -a {' '.join(each.values)!r}" if each.values else " -r" if each.valued else ""
            lines.append(f"{of} {word}{takes} -d {shlex.quote(each.words)}")
        free = [action for action in made._actions if not action.option_strings and action.choices]
        lines += [f"{of} -f -a {' '.join(map(str, action.choices or ()))!r}" for action in free]
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[argparse.ArgumentParser], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
