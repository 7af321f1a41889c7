"""Properties of real drivers and sensors that simulated cards lack by default, by name: `sim:A100,part-time`.

Each name is a set of values in the machine's memory (`state`).
"""

from __future__ import annotations

from typing import Any

# name -> (values of the machine's header, values of each card)
ROUGH: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    # The counter only sums power readings, on A100 25 ms of each 100 (arXiv 2312.02741 reports it of
    # readings).
    "part-time": ({}, {"counter_part_time": 1}),
    # The counter changes at every sample instead of in steps.
    "moving": ({}, {"counter_update_s": 0.0005}),
    # A call takes 5 ms behind the driver's lock (MangoHud issue 2104).
    "slow": ({"latency_s": 0.005}, {}),
    # Calls take 0.05 to 20 ms, depending on other users of the driver's lock.
    "jitter": ({"latency_s": 0.001, "latency_spread": 1.2}, {}),
    # Power readings show 0.57 of the counter's value (zeus issue 181).
    "gains": ({}, {"reading_gain": 0.57}),
    # NVML does not outlive a fork (NVIDIA/cuCascade issue 138).
    "fork": ({"dies_in_fork": 1}, {}),
    # A container has lost its GPUs (nvidia-docker issue 1730).
    "lost": ({"driver_fault": 999}, {}),
    # Limits and clocks take effect late (arXiv 2502.20075: up to several hundred ms; limits even later).
    "late": ({}, {"governor_delay_s": 2.5, "arrival_s": (2.5, 0.1, 0.3, 0.5, 1.0, 1.6, 2.5, 0.0)}),
    # A management controller enforces less than requested (ansible-slurm-appliance issue 975).
    "capped": ({}, {"cap_share": 0.8}),
    # In a container the driver identifies processes by ids of the host (nvidia-docker issue 1483).
    "host-pids": ({}, {"host_pids": 1}),
}
ROUGH["rough"] = (
    {**ROUGH["slow"][0]},
    {**ROUGH["part-time"][1], **ROUGH["late"][1], **ROUGH["capped"][1], **ROUGH["host-pids"][1]},
)


def split(names: list[str]) -> tuple[list[str], dict[str, float], dict[str, Any]]:
    """Cards among the names, and the changes that the other names make to the machine and to each card.

    >>> split(["A100", "part-time"])
    (['A100'], {}, {'counter_part_time': 1})
    """
    cards: list[str] = []
    header: dict[str, float] = {}
    card: dict[str, Any] = {}
    for name in names:
        found = ROUGH.get(name.strip().lower())
        if found is None:
            cards.append(name)
        else:
            header |= found[0]
            card |= found[1]
    return cards, header, card
