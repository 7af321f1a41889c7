"""`make test-environments`: `make test` in a fresh clone without npm, Chromium or PostgreSQL, and with them.

    python -m tools.environments ["without PostgreSQL" ...]        all four, or those that are named

The four runs share one clone and one virtual environment: no Python package depends on these programs.
Between two runs every other file that git does not track is deleted. To hide a program, each folder of PATH
that has it is replaced by a folder of links to its other programs. Prints seconds, passed and skipped tests
per run. Exits with 1 if a run fails or a program is not installed here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = {
    "npm": ("node", "nodejs", "npm", "npx"),
    "Chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "PostgreSQL": ("initdb", "pg_ctl", "postgres", "psql"),
}
# Where tests look for a program outside of PATH.
PLACES = {"Chromium": "PLAYWRIGHT_BROWSERS_PATH", "PostgreSQL": "WORKBENCH_POSTGRES_TOOLS"}


def path_without(programs: tuple[str, ...], links: Path, path: str) -> str:
    """PATH without some programs: their folders are replaced by folders of links to all others in them."""
    folders = []
    for number, folder in enumerate(map(Path, path.split(os.pathsep))):
        if not any((folder / name).exists() for name in programs):
            folders.append(str(folder))
            continue
        copy = links / str(number)
        copy.mkdir(parents=True)
        for program in folder.iterdir():
            if program.name not in programs:
                (copy / program.name).symlink_to(program)
        folders.append(str(copy))
    return os.pathsep.join(folders)


def environment(missing: str | None, links: Path) -> dict[str, str]:
    """The variables of a run without one program, and without what this process knows about the workbench."""
    variables = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("WORKBENCH_", "PYTEST_", "PYTHONPATH", "VIRTUAL_ENV", "MAKE", "MFLAGS"))
    }
    if missing:
        variables["PATH"] = path_without(HIDDEN[missing], links, variables["PATH"])
        if missing in PLACES:
            variables[PLACES[missing]] = str(links)
    return variables


def installed(name: str) -> bool:
    """Whether the machine has a program that is to be hidden."""
    debian = name == "PostgreSQL" and any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian or any(map(shutil.which, HIDDEN[name]))


def make(target: str, clone: Path, variables: dict[str, str], log: Path) -> tuple[float, int]:
    """Run make in the clone with its output in a file; returns the seconds and the exit status."""
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    started_s = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(["make", target, f"PYTHON={python}"], cwd=clone, env=variables,
                              stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    return time.monotonic() - started_s, done.returncode


def main(names: list[str]) -> int:
    """Run `make test` in the four environments, or in those named; returns the exit status."""
    if absent := [name for name in HIDDEN if not installed(name)]:
        print(f"{', '.join(absent)} not found: install it. One run needs npm, Chromium and PostgreSQL.")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="test-environments-"))
    clone, failures = folder / "clone", 0
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    print(f"{'environment':<20} {'seconds':>7} {'passed':>7} {'skipped':>7}", flush=True)
    log = folder / "installation.log"
    seconds, status = make(".venv/.installed-test", clone, environment(None, folder), log)
    print(f"{'installation':<20} {seconds:>7.0f}", flush=True)
    for missing in (*HIDDEN, None) if not status else ():
        name = f"without {missing}" if missing else "with all"
        if names and name not in names:
            continue
        log = folder / f"{name.replace(' ', '-')}.log"
        subprocess.run(["git", "clean", "-ffdxq", "-e", "/.venv"], cwd=clone, check=True)
        seconds, failed = make("test", clone, environment(missing, folder / f"links-{missing}"), log)
        last = re.findall(r".*\d+ passed.* in .*", log.read_text(errors="replace"))[-1:]
        count = {word: number for number, word in re.findall(r"(\d+) (\w+)", "".join(last))}
        print(f"{name:<20} {seconds:>7.0f} {count.get('passed', 0):>7} {count.get('skipped', 0):>7}"
              f"{'  FAILED' if failed else ''}", flush=True)
        failures += failed != 0
    if failures or status:
        print(f"The output is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
