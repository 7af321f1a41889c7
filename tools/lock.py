"""`requirements.lock`: exact versions of everything and the hashes of their files, for CPython 3.11 on Linux.

    python -m tools.lock            the newest versions that fit (needs uv: `make lock` brings it)
    python -m tools.lock --keep     today's versions; adds what pyproject.toml has come to need
    python -m tools.lock --parts build,plain,test    prints these parts, for `pip install --require-hashes -r`

A part begins with a line such as `# plain` or `# cluster peers`, the extras that need what follows; `build`
is what an editable installation is made with.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
BUILD = ("pip", "editables")  # beside what [build-system] requires
FLOOR = "3.11"  # its first release: what needs a later one is not chosen
UNLOCKED = {"sinks"}  # clients of services, whose versions are their users'
HEAD = "# Exact versions and hashes of their files; `make lock` writes it (tools/lock.py).\n"


def parse(text: str) -> dict[str, str]:
    """The entries of a lock by package: `name==version` and its hashes.

    >>> parse("# plain\\na==1 \\\\\\n    --hash=sha256:0\\nb==2 \\\\\\n    --hash=sha256:1\\n")["b"]
    'b==2 \\\\\\n    --hash=sha256:1\\n'
    """
    entries = re.findall(r"^([\w.-]+)(==.*\n(?: .*\n)*)", text, re.MULTILINE)
    return {name: name + rest for name, rest in entries}


def taken(text: str, parts: list[str]) -> str:
    """The entries of a lock that some parts need.

    Raises:
        SystemExit: the lock has no such part.

    >>> taken("# plain\\na==1\\n# cluster peers\\nb==2\\n# test\\nc==3\\n", ["plain", "peers"])
    'a==1\\nb==2\\n'
    """
    found = [(heading.split(), body) for heading, body in
             re.findall(r"^# ([a-z ]+)\n((?:[^#].*\n)*)", text, re.MULTILINE)]
    for part in parts:
        if not any(part in names for names, _ in found):
            sys.exit(f"requirements.lock has no part for {part!r}: make lock KEEP=--keep")
    return "".join(body for names, body in found if set(parts) & set(names))


def compiled(requirements: list[str], pins: list[str]) -> dict[str, str]:
    """The entries of all that requirements need, at the versions of `pins` (`name==version`)."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, known = Path(folder, "wanted.in"), Path(folder, "known.txt")
        wanted.write_text("\n".join(requirements))
        known.write_text("\n".join(pins))
        done = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", str(wanted), "--constraint", str(known),
             "--python-version", FLOOR, "--generate-hashes", "--no-header", "--no-annotate",
             "--quiet", "--allow-unsafe", "--no-emit-index-url", "--no-emit-find-links"],
            check=True, stdout=subprocess.PIPE, text=True,
        )
    return parse(done.stdout)


def main(keep: bool) -> None:
    """Write the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    plain = project["project"]["dependencies"]
    parts = {"plain": plain} | {
        extra: [*plain, *needed] for extra, needed in project["project"]["optional-dependencies"].items()
        if extra not in UNLOCKED
    }
    parts["build"] = [*project["build-system"]["requires"], *BUILD]
    old = re.findall(r"^[\w.-]+==[\w.+!-]+", LOCK.read_text(encoding="utf-8"), re.MULTILINE) if keep else []
    everything = compiled(sorted({each for needed in parts.values() for each in needed}), old)
    pins = [entry.split()[0] for entry in everything.values()]
    users = defaultdict(set)
    for part, needed in parts.items():
        for name in compiled(needed, pins):
            users[name].add(part)
    groups: dict[str, list[str]] = {part: [] for part in parts}
    for name, of in users.items():  # what a plain install has, extras do not bring
        heading = ["plain", *of & {"build"}] if "plain" in of else sorted(of)
        groups.setdefault(" ".join(heading), []).append(name)
    lines = [HEAD]
    for heading in sorted(groups, key=lambda each: (each.split()[0] != "build", "plain" not in each, each)):
        lines += [f"# {heading}\n", *(everything[name] for name in sorted(groups[heading]))]
    LOCK.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--parts"]:
        asked = [each for each in sys.argv[2].split(",") if each]
        print(taken(LOCK.read_text(encoding="utf-8"), asked), end="")
        sys.exit()
    main(keep="--keep" in sys.argv[1:])
