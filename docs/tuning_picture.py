"""Draws docs/images/tuning.svg: one tuned training on a simulated A100. python docs/tuning_picture.py [FILE]"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

import workbench
from workbench.panels._core.svg import Pen, Picture
from workbench.panels._core.theme import colour
from workbench.simulation.training import TrainingJob

FILE = Path(__file__).resolve().parent / "images" / "tuning.svg"
LIMIT, HEIGHT = 0.05, 190
NAMES = {"clocks": "safe by the clocks", "default": "default", "trial": "trial", "held": "held"}
INKS = dict(zip(NAMES, (colour(4), colour(0), colour(1), colour(2)), strict=True))


def main(file: Path = FILE) -> None:
    workbench.simulate("A100", stepped=True)
    seen: list[tuple[float, int, str]] = []  # time, SM clock and kind of block
    with workbench.tune(max_slowdown=LIMIT, over="clocks", label="picture") as tuning:
        for _ in TrainingJob("imagenet", 256, iterations=700, seed=1):
            workbench.step()
            tuner = tuning.tuner
            job = tuner.phase.job if tuner is not None else None
            if tuner is not None and job is not None and hasattr(tuner.phase, "_meter") and tuner.phase._meter:
                clock_mhz = job.method.rungs.settings[job.row].sm_clock_mhz or 0
                seen.append((tuner.log.elapsed_s, clock_mhz, tuner.phase._meter.plan.kind))
        assert job is not None
        method = job.method
        mean, most = (100 * np.expm1(each) for each in method.bounded(method.effects()[0]))
        blocks, sentence, held = list(method.blocks), method.sentence(job.row), method.held()
    print(tuning.result, sentence, sep="\n")

    picture = Picture("How one training is tuned (simulated A100, at most 5 % slower)")
    picture.legend([(name, Pen(INKS[kind])) for kind, name in NAMES.items()])
    clocks_mhz = np.array([setting.sm_clock_mhz or 0 for setting in method.rungs.settings])
    low, high = float(clocks_mhz[method.visited()].min()) - 40, float(clocks_mhz.max()) + 20
    with picture.row(HEIGHT):
        times_s = [at_s for at_s, _, _ in seen]
        left = picture.frame(HEIGHT, (0.0, times_s[-1]), (low, high), side="left")
        left.axes("SM clock that is set (MHz)", 6)
        left.below("seconds")
        starts = [0, *(n for n in range(1, len(seen)) if seen[n][1:] != seen[n - 1][1:]), len(seen) - 1]
        for begin, end in pairwise(starts):
            _, mhz, kind = seen[begin]
            left.boxes([(times_s[begin], times_s[end], (mhz - 7.0, mhz + 7.0))], INKS[kind], opacity=1.0)
        near = clocks_mhz >= low
        order = np.argsort(clocks_mhz[near])
        xs = clocks_mhz[near][order].astype(float)
        top = 1.15 * 100 * max(float(method.most[near].max()) - 1.0, LIMIT)
        right = picture.frame(HEIGHT, (low, high), (-0.5, min(top, 16.0)), side="right")
        right.axes("slower than the default (%)", 6)
        right.below("SM clock (MHz)")
        right.boxes([(low, high, (-0.5, 100 * LIMIT))], INKS["held"], opacity=0.1)
        bound = 100 * (method.most[near][order] - 1.0)
        shown = np.where(bound < right.y_span[1], bound, np.nan)
        right.line(xs.tolist(), shown.tolist(), Pen(INKS["clocks"], 1.8, (6, 3)))
        right.band(xs, 2 * mean[near][order] - most[near][order], most[near][order], INKS["trial"], opacity=0.15)
        right.line(xs.tolist(), mean[near][order].tolist(), Pen(INKS["trial"], 1.6))
        level = method.effects()[0].level
        for each in blocks:
            row = method.row(each)
            if each.count and row != method.rungs.reference:
                slower = 100 * np.expm1(np.log(each.time_s / each.count) - level)
                if right.holds(float(clocks_mhz[row]), float(slower)):
                    ink = INKS["held" if row == held else "trial"]
                    right.dot(float(clocks_mhz[row]), float(slower), ink, 3)
        right.upright(float(clocks_mhz[held]), Pen(INKS["held"], 2), text="held")
        right.label(high, 100 * LIMIT, "allowed", dx=-4, dy=13, anchor="end")
        middle = int(np.argmin(np.abs(bound - 1.6 * 100 * LIMIT)))
        right.label(float(xs[middle]), float(bound[middle]), "at most, by the clocks", dx=8, dy=-2)
    svg = picture.svg().replace("</title>", '</title><rect width="100%" height="100%" fill="#fff"/>', 1)
    file.write_text(svg.replace("display:block", "display:block;color:#212121", 1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
