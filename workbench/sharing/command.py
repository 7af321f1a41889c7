"""`workbench share 'python a.py' 'python b.py'`: may these trainings share a GPU, and what does it save
and cost?
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import UsageError

FAILED, INTERRUPTED = 1, 130


def act(arguments: argparse.Namespace) -> int:
    """Carry it out; returns 0 where every job ended well or was stopped by us, 1 where one did not, 130
    after an interrupt.
    """
    import workbench.sharing as sharing

    if arguments.json and not Path(arguments.json).absolute().parent.is_dir():
        raise UsageError(
            f"there is no directory {Path(arguments.json).parent} for {Path(arguments.json).name}"
        )
    if arguments.simulate:
        from ..measurement.session import simulate

        simulate(arguments.simulate)
    sharing.last = None
    interrupted = False
    try:
        sharing.share(
            *arguments.jobs, gpu=arguments.gpu, bound=1.0 + arguments.max_slowdown / 100,
            seconds=arguments.seconds, rounds=arguments.rounds, until=arguments.until, watch=arguments.watch,
            on_break=arguments.on_break,
            say=lambda words: print(f"workbench: {words}", file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        interrupted = True
    shared = sharing.last
    if shared is not None:
        print(shared)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(shared.as_dict(), indent=2), encoding="utf-8")
    if interrupted:
        return INTERRUPTED
    return FAILED if shared is None or any(job.outcome not in ("ok", "stopped") for job in shared.jobs) else 0
