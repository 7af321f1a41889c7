"""Fit the simulator's catalogue to measured traces and print the numbers to paste into it.

    python -m tools.fit_catalogue --data DIR

Reads what it finds of: Zeus NSDI'23 power-limit traces (`zeus/summary_power_*.csv`), Perseus SOSP'24 pipeline
stages on A100 (`clocks/perseus_a100_sxm_*.csv`), kernels over both clocks of an RTX 3080 Ti
(`clocks/rtx3080ti_kernels.csv`).
"""

from __future__ import annotations

import argparse
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path

import numpy as np

from tools import physics_fits
from tools.physics_fits import data_folder
from workbench.simulation.catalogue import CARDS, WORKLOADS, Law
from workbench.simulation.physics import Card


def main() -> None:
    """Print cards and laws as the lines of `workbench/simulation/catalogue.py`, with their errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder with zeus/ and clocks/")
    data = data_folder(parser.parse_args().data)

    for path in sorted((data / "zeus").glob("summary_power_*.csv")):
        print(source(path))
        sweeps = physics_fits.read_sweeps(path)
        calibration = [each for each in sweeps if each.workload in physics_fits.CALIBRATION]
        print_card(path.stem, physics_fits.fit_card(calibration))
        if card := physics_fits.card_of(path):
            for workload in WORKLOADS:
                if mine := physics_fits.traced(workload, sweeps):
                    law = physics_fits.fit_law(card, mine)
                    print(law_line(card, workload, law), comment(*law_errors(card, law, mine)))

    if stages := physics_fits.read_pipeline_stages(data / "clocks"):
        card, residuals = physics_fits.fit_voltage_curve(CARDS["A100"], stages)
        for path in physics_fits.pipeline_stage_files(data / "clocks"):
            print(source(path))
        print_card(f"A100, {len(stages)} pipeline stages", card)
        print(comment(*100 * np.abs(np.expm1(residuals)).mean(axis=1)))

    if (path := data / "clocks" / "rtx3080ti_kernels.csv").exists():
        known = CARDS["RTX3080TI"]
        print(source(path))
        kernels = physics_fits.read_kernels(path, known.power_limit_w[1])
        card, residuals = physics_fits.fit_two_clocks(known, kernels)
        print_card("RTX 3080 Ti", card)
        print(f"  overlap={card.overlap:.2f} clocked_share={card.clocked_share:.3f}", end=" ")
        print(f"mem_dynamic_w={card.mem_dynamic_w:.1f}", end=" ")
        print(f"mem_static_w={tuple(round(watts, 1) for watts in card.mem_static_w)}")
        print(comment(*100 * np.abs(np.expm1(residuals)).mean(axis=1)))


def source(path: Path) -> str:
    """A file that a fit read, with its hash, as a comment for the catalogue."""
    return f"# {path.name}: sha256 {sha256(path.read_bytes()).hexdigest()}"


def law_errors(card: Card, law: Law, sweeps: list[physics_fits.Sweep]) -> tuple[float, float]:
    """Mean percent error of time and of power of a law over sweeps."""
    pairs = [(physics_fits.predict_law(card, law, sweep), sweep) for sweep in sweeps]
    time = [physics_fits.percent_errors(predicted[0], sweep.time_s) for predicted, sweep in pairs]
    power = [physics_fits.percent_errors(predicted[1], sweep.power_w) for predicted, sweep in pairs]
    return float(np.concatenate(time).mean()), float(np.concatenate(power).mean())


def law_line(card: Card, workload: str, law: Law) -> str:
    """The catalogue's line for a law; a number too small to matter is written 0.0."""
    numbers = ", ".join("0.0" if abs(value) < 1e-9 else repr(float(f"{value:.4g}")) for value in astuple(law))
    return f'    ("{card.key}", "{workload}"): Law({numbers}),'


def comment(time: float, power: float) -> str:
    """Errors as a trailing comment."""
    return f"# {time:.1f} % of time, {power:.1f} % of power"


def print_card(title: str, card: Card) -> None:
    """The fitted numbers of a card."""
    numbers = (
        f"static_w={card.static_w:.1f} gap_w={card.gap_w:.1f} knee={card.knee:.3f} v_knee={card.v_knee:.3f}"
    )
    print(f"{title}: {numbers} x_min={card.x_min:.3f}")


if __name__ == "__main__":
    main()
