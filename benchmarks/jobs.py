"""Jobs on several GPUs: totals, stragglers, tuning as one, and pipelines.

    python -m benchmarks.jobs [--data DIR] [--json FILE] [--quick]

The parts run alone too: `benchmarks.jobs_totals`, `jobs_waiting`, `jobs_tuning` and `jobs_pipelines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import jobs_pipelines, jobs_totals, jobs_tuning, jobs_waiting
from benchmarks.common import arguments, finish, table

REQUIRED = {
    "covered_min": ">= 0.92", "straggler_right": ">= 0.95", "straggler_false": "<= 0.05",
    "bound_kept": ">= 0.98", "share_of_oracle": ">= 0.75", "frontier_over_lowtime": "<= 1.01",
}


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(str(__doc__).split("\n", maxsplit=1)[0], argv)
    parts: dict[str, Any] = {
        "totals": jobs_totals.run(options.quick), "waiting": jobs_waiting.run(options.quick),
        "tuning": jobs_tuning.run(options.quick),
        "pipelines": jobs_pipelines.run(options.quick, options.data),
    }
    found = {
        "covered_min": min(each["job"] for each in parts["totals"]["covered"].values()),
        "straggler_right": parts["waiting"]["straggler_right"],
        "straggler_false": parts["waiting"]["straggler_false"],
        "bound_kept": parts["tuning"]["bound_kept"], "share_of_oracle": parts["tuning"]["share_of_oracle"],
        "frontier_over_lowtime": parts["pipelines"].get("frontier_over_lowtime"),
    }
    rows = [(name, found[name], limit) for name, limit in REQUIRED.items()]
    print(table(("figure", "value", "required"), rows))
    finish({"summary": found, **parts}, options.json)


if __name__ == "__main__":
    main()
