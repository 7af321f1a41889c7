"""Bad inputs at every entry point: refused with a short message, accepted, or another exception.

10,000 inputs come from a random seed: damaged files, damaged options, and arguments of wrong types and
values. They go to readers, stores, journals, models, studies, magics, the command line and the functions of
the API (`benchmarks.fixtures.doors`). Each is tried in a worker process with its own home and simulated GPUs,
within 10 s and 500 MB in addition to the worker's own memory.

`refused`: an error of ours (`WorkbenchError`, a magic's own, status 2 of the command line) of at most 1,000
letters. `accepted`: the input, or the intact part of a damaged file, was used. `raw`: any other exception, or
the worker died. `hangs`, `memory`: beyond the limits; the worker was killed.

    python -m benchmarks.bad_inputs [--data DIR] [--json FILE] [--quick]

`WORKBENCH_BAD_INPUTS_SEED=1` gives other inputs; the default is 0.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import arguments, finish, table

INPUTS, QUICK_INPUTS = 10_000, 1_000
WORKERS = 2
LIMIT_S, LIMIT_BYTES = 10.0, 500 << 20
LONGEST = 1_000  # letters of a sentence
RENEWED = 500  # inputs, after which a worker is replaced: what one leaves behind must not weigh on many
START = "from benchmarks.bad_inputs import work; work({seed})"
KINDS = ("refused", "accepted", "raw", "hangs", "memory")


@dataclass(frozen=True)
class Outcome:
    """What came of one input: its number, door, one of `KINDS`, how it went in words, seconds and bytes."""

    number: int
    door: str
    kind: str
    words: str = ""
    given: str = ""
    seconds: float = 0.0
    bytes: int = 0


# in the worker


def classified(act: Callable[[], object]) -> tuple[str, str]:
    """How one call ended: one of `KINDS`, and the sentence or the place of the error."""
    from IPython.core.error import UsageError as MagicUsageError

    from kernels_ext.cells import BadOptions
    from workbench.errors import WorkbenchError
    from workbench.simulation.lane import OutOfMemory  # as PyTorch's, a RuntimeError

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = act()
    except (WorkbenchError, MagicUsageError, BadOptions, OutOfMemory) as error:
        return _sentence(str(error))
    except SystemExit as error:
        if error.code in (0, 1, None):
            return "accepted", f"status {error.code}"
        return _sentence(err.getvalue().strip().splitlines()[-1] if err.getvalue().strip() else "")
    except BaseException as error:  # a panic of Polars is no Exception
        return "raw", _place(error)
    if "Traceback (most recent call last)" in err.getvalue():
        return "raw", err.getvalue().strip().splitlines()[-1]
    if isinstance(status, int) and status == 2 and err.getvalue().startswith("workbench: "):
        return _sentence(err.getvalue().strip())
    return "accepted", ""


def _sentence(words: str) -> tuple[str, str]:
    if not words.strip():
        return "raw", "an error of ours without a word"
    if len(words) > LONGEST:
        return "raw", f"an error of ours of {len(words)} letters: {words[:200]}"
    return "refused", words


def _place(error: BaseException) -> str:
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "/workbench/" in each.filename or "/kernels_ext/" in each.filename
    ]
    places = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in frames[-3:]]
    words = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {words} <- {' <- '.join(reversed(places)) or 'outside'}"


def _resident(pid: int | str, field: str) -> int:
    """Bytes of `VmRSS` or `VmHWM` of a process; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


def work(seed: int) -> None:
    """A worker: numbers come in as lines, outcomes go out as lines of JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_RDWR)
    numbers = os.fdopen(os.dup(0), encoding="ascii")
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    from benchmarks.fixtures import doors

    house = doors.House(Path(os.environ["WORKBENCH_HOME"]))
    print("ready", file=answers, flush=True)
    for line in numbers:
        number = int(line)
        door, given, act = house.draw(seed, number)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins again
        before, began_s = _resident("self", "VmRSS"), time.monotonic()
        kind, words = classified(act)
        grown = max(_resident("self", "VmHWM") - before, 0)
        if grown > LIMIT_BYTES:
            kind = "memory"
        found = Outcome(number, door, kind, words, given, time.monotonic() - began_s, grown)
        print(json.dumps(asdict(found)), file=answers, flush=True)
        house.tidy()


# around the workers


class Worker:
    """A worker process, and another one in its place whenever it was killed or has served long enough."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._process: subprocess.Popen[bytes] | None = None
        self._home = Path()
        self._served = 0
        self._rest = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, number: int) -> Outcome:
        """Have one input tried."""
        from benchmarks.fixtures import doors

        if self._process is None or self._served >= RENEWED:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._served += 1
        door = doors.name_of(self.seed, number)
        before, began_s = _resident(self._process.pid, "VmRSS"), time.monotonic()
        try:
            self._process.stdin.write(f"{number}\n".encode())
            self._process.stdin.flush()
        except OSError:
            pass  # it is gone, which the next lines find out
        while True:
            line = self._line(0.02)
            took_s = time.monotonic() - began_s
            if line:
                found = Outcome(**json.loads(line))
                return found if took_s <= LIMIT_S else self._lost(number, door, "hangs", f"{took_s:.1f} s")
            grown = _resident(self._process.pid, "VmRSS") - before
            if line is None:
                status = self._process.wait()
                return self._lost(number, door, "raw", f"the worker died with status {status}")
            if grown > LIMIT_BYTES:
                return self._lost(number, door, "memory", f"{grown >> 20} MB")
            if took_s > LIMIT_S:
                return self._lost(number, door, "hangs", f"{took_s:.1f} s")

    def _lost(self, number: int, door: str, kind: str, words: str) -> Outcome:
        self._end()
        return Outcome(number, door, kind, words)

    def _line(self, timeout_s: float) -> bytes | None:
        """A line of the worker; empty where none came in time, None where it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        if b"\n" not in self._rest and select.select([self._process.stdout], [], [], timeout_s)[0]:
            read = os.read(self._process.stdout.fileno(), 1 << 20)
            if not read:
                return None
            self._rest += read
        line, end, rest = self._rest.partition(b"\n")
        if not end:
            return b""
        self._rest = rest
        return line

    def _start(self) -> None:
        self._end()
        self._home = Path(tempfile.mkdtemp(prefix="bad-inputs-"))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")},
            "WORKBENCH_HOME": str(self._home / "home"), "TMPDIR": str(self._home), "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "2", "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", START.replace("{seed}", str(self.seed))], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=self._home,
            start_new_session=True,
        )
        self._served, self._rest = 0, b""
        deadline_s = time.monotonic() + 120.0
        while self._line(1.0) != b"ready":
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"a worker did not start (status {self._process.poll()})")

    def _end(self) -> None:
        """Kill the worker and all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        for left in Path("/dev/shm").glob(f"workbench-*-{process.pid}-*"):
            with contextlib.suppress(OSError):
                left.unlink()
        shutil.rmtree(self._home, ignore_errors=True)


def run(numbers: Iterable[int], seed: int, *, workers: int = WORKERS) -> list[Outcome]:
    """Try these inputs; the outcomes by number."""
    todo = list(numbers)
    done: list[Outcome] = []

    def serve(mine: list[int]) -> None:
        with Worker(seed) as worker:
            for number in mine:
                done.append(worker.ask(number))
                if len(done) % 50 == 0:
                    print(f"\r{len(done)}/{len(todo)}: {_line(summary(done))}  ", end="", flush=True)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(serve, todo[first::workers]) for first in range(workers)]:
            future.result()
    print()
    return sorted(done, key=lambda each: each.number)


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many inputs, and how many of each of `KINDS`."""
    counts = Counter(each.kind for each in list(outcomes))
    return {"inputs": counts.total(), **{kind: counts[kind] for kind in KINDS}}


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)


def main() -> None:
    options = arguments(__doc__ or "")
    seed = int(os.environ.get("WORKBENCH_BAD_INPUTS_SEED", "0"))
    outcomes = run(range(QUICK_INPUTS if options.quick else INPUTS), seed)
    by_door: dict[str, list[Outcome]] = {}
    for each in outcomes:
        by_door.setdefault(each.door, []).append(each)
    rows = {door: summary(by_door[door]) for door in sorted(by_door)}
    print(table(("door", "inputs", *KINDS), [(door, *row.values()) for door, row in rows.items()]))
    failures = [asdict(each) for each in outcomes if each.kind not in ("refused", "accepted")]
    for each in failures[:40]:
        print(f"{each['kind']}: {each['door']} #{each['number']} {each['given'][:100]}: {each['words']}")
    result = summary(outcomes)
    longest = max(outcomes, key=lambda each: each.seconds)
    largest = max(outcomes, key=lambda each: each.bytes)
    print(
        f"\n{result['inputs']} bad inputs: {_line(result)}; the longest took {longest.seconds:.1f} s "
        f"({longest.door}), the largest {largest.bytes >> 20} MB ({largest.door})"
    )
    told = {"summary": {**result, "seed": seed, "longest_s": longest.seconds, "most_bytes": largest.bytes}}
    finish({**told, "doors": rows, "failures": failures}, options.json)


if __name__ == "__main__":
    main()
