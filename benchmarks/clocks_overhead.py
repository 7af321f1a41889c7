"""Cost of the online tuner to the user's cell: processor time of the tuner's thread, and the slowdown of the
cell.

    python -m benchmarks.clocks_overhead [--json FILE] [--quick]

A simulated training runs in its own process, in real time; this process is the kernel. Its main thread works
through pieces of a cell. The cell never releases the interpreter (pure Python), or releases it immediately
(numpy). Meanwhile a tuner searches, tries, holds and monitors on its thread, as in `%%energy --tune`. The
thread is enabled and disabled in turns of five seconds, so that other load on this machine affects both
equally. There are two figures: the thread's processor time over its enabled time, and the relative growth of
the pieces' time. The latter is the median over pairs of turns, with the quartiles that show the noise.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, table

TRAINING = (
    "from workbench.simulation.training import TrainingJob; TrainingJob('imagenet', 64, iterations=10**9, "
    "evaluate=False).run()"
)
PIECE_S, TURN_S = 0.02, 5.0


def overhead(*, quick: bool = False) -> dict[str, Any]:
    """Shares of the cell's time, for each kind of cell; `cpu_share` is the largest of them."""
    cells = {kind: _of(make, 40.0 if quick else 240.0) for kind, make in CELLS.items()}
    return {"cells": cells, "cpu_share": max(cell["cpu_share"] for cell in cells.values())}


def _python() -> Callable[[], object]:
    count = 1000
    while True:
        start_s = time.perf_counter()
        sum(i * i for i in range(count))
        if time.perf_counter() - start_s > PIECE_S / 2:
            break
        count *= 2
    return lambda: sum(i * i for i in range(count))


def _numpy() -> Callable[[], object]:
    matrix = np.random.default_rng(0).normal(size=(300, 300))
    start_s = time.perf_counter()
    for _ in range(8):
        matrix @ matrix
    count = max(1, int(PIECE_S / ((time.perf_counter() - start_s) / 8)))

    def piece() -> object:
        for _ in range(count):
            matrix @ matrix
        return None

    return piece


CELLS = {"pure Python": _python, "numpy": _numpy}


def _of(make: Callable[[], Callable[[], object]], seconds: float) -> dict[str, Any]:
    from workbench.measurement.session import current, simulate

    piece = make()
    session = simulate("A100")
    training = subprocess.Popen([sys.executable, "-c", TRAINING])
    turns: list[float] = []
    try:
        session.meter  # with or without a tuner there is the sampling process  # noqa: B018
        time.sleep(2.0)
        thread = _Thread(session)
        for number in range(2 * max(1, round(seconds / 2 / TURN_S))):
            thread.works = number % 2 == 1
            turns.append(_pace(piece))
        thread.end()
    finally:
        training.terminate()
        training.wait()
        current().close()
    ratios = [on / off - 1.0 for off, on in zip(turns[::2], turns[1::2], strict=True)]
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    worked_s = TURN_S * len(ratios)
    return {
        "seconds": seconds, "cpu_share": thread.cpu_s / worked_s, "cpu_s_by_state": thread.by_state,
        "slower": quarters[1], "slower_quartiles": [quarters[0], quarters[2]], "states": thread.states,
    }


def _pace(piece: Callable[[], object]) -> float:
    """Mean time of a piece of the cell over one turn, without the longest twentieth."""
    times = []
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < TURN_S:
        before_s = time.perf_counter()
        piece()
        times.append(time.perf_counter() - before_s)
    times.sort()
    return statistics.mean(times[: max(1, int(0.95 * len(times)))])


class _Thread:
    """A tuner on its thread, which can be kept from working; its processor time is counted."""

    def __init__(self, session: Any) -> None:
        from workbench.tuning import Tuner, TunerThread

        self.works = False
        self.cpu_s = 0.0
        self.by_state: dict[str, float] = {}
        self.states: list[str] = []
        self._tuner = Tuner(session.meter, warm_start=False)
        self._advance, self._tuner.advance = self._tuner.advance, self._counted
        self._driver = TunerThread(self._tuner)

    def _counted(self) -> str:
        if not self.works:
            return str(self._tuner.state)
        start_s = time.thread_time()
        state = str(self._advance())
        spent_s = time.thread_time() - start_s
        self.cpu_s += spent_s
        self.by_state[state] = self.by_state.get(state, 0.0) + spent_s
        if not self.states or self.states[-1] != state:
            self.states.append(state)
        return state

    def end(self) -> None:
        self._driver.end()


def main() -> None:
    options = arguments((__doc__ or "").splitlines()[0])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    result = overhead(quick=options.quick)
    rows = [
        [kind, cell["cpu_share"], cell["slower"], *cell["slower_quartiles"]]
        for kind, cell in result["cells"].items()
    ]
    print(table(["cell", "processor time of the thread", "cell slower by", "quartile", "quartile"], rows))
    finish(result, options.json)


if __name__ == "__main__":
    main()
