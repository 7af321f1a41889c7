"""The GPUs that forms of CUDA_VISIBLE_DEVICES leave: a list of UUIDs for each, or the error."""

from __future__ import annotations

import json
import os
import sys

import workbench
from workbench.errors import WorkbenchError

answers = []
for entries in json.loads(sys.argv[1]):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if entries is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = entries
    try:
        answers.append([each.uuid for each in workbench.devices()])
    except WorkbenchError as error:
        answers.append(f"{type(error).__name__}: {error}")
with workbench.measure("cell") as result:  # with the last form; the cell never fails
    pass
str(result)
print(json.dumps(answers))
