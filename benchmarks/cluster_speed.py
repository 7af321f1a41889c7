"""Jobs a CPU second, and peak memory, each in a process of its own. `python -m benchmarks.cluster_speed
POLICY JOBS GPUS [LOG]` prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workbench.cluster import Cluster, Simulator, generate
from workbench.cluster.policies import POLICIES

from .cluster_logs import drawn, job_logs, usable


def measured(
    policy: str, *, log: Path | None = None, name: str = "", jobs: int = 0, gpus: int = 512
) -> dict[str, Any]:
    """Run it in a fresh process."""
    command = [
        sys.executable, "-m", "benchmarks.cluster_speed", policy, str(jobs), str(gpus),
        *([str(log), name] if log else []),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[1]
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(argv: list[str]) -> None:
    policy, jobs, gpus = argv[0], int(argv[1]), int(argv[2])
    from_log = len(argv) > 3
    frame = (
        drawn(usable(job_logs(Path(argv[3]))[argv[4]]), 0)
        if from_log
        else generate(jobs, gpus=gpus, seed=1, load=0.7)
    )
    frame = frame.rechunk()
    before = time.process_time()
    result = Simulator(frame, Cluster.of(gpus // 8), POLICIES[policy](), timeline_s=3600.0).run()
    cpu_s = time.process_time() - before
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {
        "policy": policy, "jobs": frame.height, "gpus": gpus, "cpu_s": cpu_s,
        "jobs_per_cpu_s": frame.height / cpu_s, "peak_mb": peak_mb,
    }
    print(json.dumps({**row, "energy_kwh": result.energy_j / 3.6e6, "events": result.events}))


if __name__ == "__main__":
    main(sys.argv[1:])
