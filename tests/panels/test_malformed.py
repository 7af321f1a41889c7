"""Malformed messages of a page: every panel answers with a sentence, and none with the text of a Python error."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import workbench
from tests.panels.listening import Browser
from tests.panels.made_jobs import made_job
from tests.panels.test_recurring import many, panel_of
from tests.panels.test_workbench import POINTS, Sweep
from workbench.cluster import generate
from workbench.device import watchdog
from workbench.logbook.store import Store
from workbench.measurement import session as sessions
from workbench.panels import apply, clocks, cluster, frontier, job, log, period
from workbench.panels._core.live import LivePanel
from workbench.panels._views.power.panel import PowerView
from workbench.panels.tab_sheets import SweepPanel
from workbench.records import Measurement, Setting

PYTHON = re.compile(r"\b[A-Z]\w*(Error|Exception|Warning)\b|Traceback|NoneType|object at 0x|<class")
MESSAGES = {  # of each panel, with their fields
    "apply": {"apply": "", "undo": "", "default": "", "gpu": "uuid",
              "choose": "power_limit_w sm_clock_mhz mem_clock_mhz batch_size"},
    "clocks": {"step": "", "pause": "", "hold": "", "stop": "", "objective": "name", "slowdown": "percent asked"},
    "cluster": {"set": "settings", "cancel": "", "each change": "on", "open": "path", "job": "policy name",
                "node": "policy name", "distribution": "name"},
    "frontier": {"choose": "version row rule eta slowdown asked", "apply": "version row rule eta slowdown", "undo": "",
                 "gpu": "uuid", "select": "gpu job batch_size predicted", "axes": "relative whole", "export": "what"},
    "job": {"apply": "", "undo": ""},
    "log": {"sparks": "ids", "choose": "ids", "tag": "ids text"},
    "period": {"follow": "gpu", "level": "name", "seconds": "seconds"},
    "power": {"stop": "", "follow": "gpu", "level": "name", "limit": "uuids watts"},
    "recurring": {"eta": "eta asked", "run": "count", "stop": ""},
    "sweep": {"cancel": ""},
}
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 0.5, 2**70, math.nan, math.inf, -math.inf, "", "energy", "NaN", "\ud800", "\x1b[2J", "x" * 5000,
    [], [None], ["a0"], [["a0"]], {}, {"nodes": "many"}, {"policies": [1]}, {"values": "never"}, {None: 1}, b"\xff",
)


@pytest.fixture
def panels(simulated: Callable[..., Any], own_session: None) -> Iterator[dict[str, LivePanel]]:
    simulated("V100", stepped=True)
    here = sessions.current()
    here.meter.clock.sleep(1.0)
    store = Store()
    store.save(Measurement("a0", "first", 1.7e9, 20.0, ()))
    assert here.recorder is not None
    made: dict[str, LivePanel] = {
        "apply": apply(Setting(200.0)), "clocks": clocks(), "cluster": cluster(generate(10, gpus=8, seed=0), nodes=2),
        "frontier": frontier(POINTS), "job": job(made_job()), "log": log(store),
        "period": period(trace()),
        "power": PowerView(here.recorder, here.devices, set_power_limit=here.set_power_limit, stop=lambda: None),
        "recurring": panel_of(many(4)), "sweep": SweepPanel(Sweep()),  # type: ignore[arg-type]
    }
    yield made
    for panel in made.values():
        panel.end()
        panel.close()
    here.close()
    watchdog.stop()
    workbench.chosen.choose(None)


def trace() -> Any:
    import numpy as np
    import polars as pl

    times = np.arange(0.0, 10.0, 0.02)
    return pl.DataFrame({"time_s": times, "power_w": np.where(times % 1.0 < 0.5, 250.0, 100.0)})


def test_no_malformed_message_shows_a_python_error(panels: dict[str, LivePanel]) -> None:
    draw = random.Random(int(os.environ.get("SEED", 20261128)))
    wrong = []
    for name, panel in panels.items():
        browser = Browser(panel)
        for turn in range(150):
            kinds = MESSAGES[name]
            kind = draw.choice([*kinds, *kinds, "nosuch"])
            fields = kinds.get(kind, "name").split()
            content: Any = {each: draw.choice(VALUES) for each in fields if draw.random() < 0.9}
            content |= {"kind": kind, "n": draw.choice(VALUES)}
            if name == "frontier" and draw.random() < 0.7:
                content["version"] = panel._frontier.version  # type: ignore[attr-defined]
            if draw.random() < 0.1:
                content = draw.choice([*VALUES, {**content, "kind": draw.choice(VALUES)}])
            browser.messages.clear()
            panel.receive(content)
            panel.receive({"kind": "ping"})
            wrong += [(name, turn, repr(content)[:100], message["text"][:160]) for message in browser.messages
                      if message.get("kind") == "problem" and PYTHON.search(message["text"])]
        panel.receive({"kind": "hello", "view": "another", "bokeh": False})
        assert browser.messages[-1]["kind"] == "greeting"
    assert not wrong, f"{len(wrong)}: " + "\n".join(map(str, wrong[:40]))
