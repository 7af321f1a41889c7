"""Properties of real drivers and sensors that simulated cards lack by default, by name: `sim:A100,part-time`.

Each name is a set of values in the machine's memory (`state`).
"""

from __future__ import annotations

# name -> (of the machine's header, of each card)
ROUGH: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    # The counter only sums power readings, on A100 25 ms of each 100 (arXiv 2312.02741 has it of readings).
    "part-time": ({}, {"counter_part_time": 1}),
    # The counter changes at every sample instead of in steps.
    "moving": ({}, {"counter_update_s": 0.0005}),
    # A call takes 5 ms behind the driver's lock (MangoHud issue 2104).
    "slow": ({"latency_s": 0.005}, {}),
    # Limits and clocks arrive late (arXiv 2502.20075: up to several hundred ms; limits later still).
    "late": ({}, {"governor_delay_s": 2.5}),
}
ROUGH["rough"] = (
    {**ROUGH["slow"][0]}, {**ROUGH["part-time"][1], **ROUGH["late"][1]},
)


def split(names: list[str]) -> tuple[list[str], dict[str, float], dict[str, float]]:
    """Cards among names, and what the others change of the machine and of each card.

    >>> split(["A100", "part-time"])
    (['A100'], {}, {'counter_part_time': 1})
    """
    cards: list[str] = []
    header: dict[str, float] = {}
    card: dict[str, float] = {}
    for name in names:
        found = ROUGH.get(name.strip().lower())
        if found is None:
            cards.append(name)
        else:
            header |= found[0]
            card |= found[1]
    return cards, header, card
