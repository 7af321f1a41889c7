"""A training that is tuned until a lower limit was measured or it is refused, or until the process is killed."""

from __future__ import annotations

import json
import sys
import time

from door import door

import workbench
from workbench.measurement import session

LONGEST_S = float(sys.argv[1])
machine = door()
before, lowest_w = machine.active(0), float("inf")
with workbench.tune(over="power", recheck=False) as tuning:
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s and tuning.view().state != "refused" and tuning.result.trials < 2:
        machine.kernel(0, 0.2)
        workbench.step()
        if (limit_w := machine.active(0)["limit_w"]) < lowest_w:
            lowest_w = limit_w
            print("limit", limit_w, flush=True)
    state = tuning.view().state
found = {"state": state, "before": before, "lowest_w": lowest_w, "after": machine.active(0), "text": tuning.result.text}
session.current().close()
print(json.dumps(found))
