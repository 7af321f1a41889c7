"""Sensor readings of a simulated GPU, from its true power.

reading(t) = gain * mean(P over the last `window`) * (1 + noise) + offset, refreshed at ticks of the update
period. The energy counter is the exact integral at the last tick, or the sum of the readings. Update
periods, windows and gains follow Yang et al., "Part-time power measurements" (arXiv 2312.02741) and nvml.h.
Their accuracy: docs/validation/simulation.md.

Standard library only: the sampling process imports this.
"""

from __future__ import annotations

import math

from .state import MachineState

_MASK = (1 << 64) - 1
REMEMBERED = 6000  # refreshes that are summed one by one


def tick_s(state: MachineState, gpu: int, at_s: float, update_s: float, lag_s: float = 0.0) -> float:
    """The last refresh at or before a time: of the power reading, or of a value that lags it.

    Args:
        state: State of the machine.
        gpu: Number of the GPU.
        at_s: The time.
        update_s: Interval of the refreshes.
        lag_s: Lag behind the power reading.
    """
    phase_s = state.card(gpu, "sensor_phase_s") + lag_s
    return float(math.floor((at_s - phase_s) / update_s) * update_s + phase_s)


def power_w(state: MachineState, gpu: int, at_s: float, *, averaged: bool = False) -> float:
    """The board power reading (watts) that a driver call at this time returns.

    `averaged` requests the one-second average of Ampere (except GA100) and newer. On other cards it is the
    instantaneous reading.

    Args:
        state: State of the machine.
        gpu: Number of the GPU.
        at_s: The time.
        averaged: The one-second average.
    """
    update_s = state.card(gpu, "power_update_s")
    window_s = state.card(gpu, "average_window_s") if averaged else 0.0
    window_s = window_s or state.card(gpu, "power_window_s")
    at = tick_s(state, gpu, at_s, update_s)
    mean_w = state.true_mean_power_w(gpu, at - window_s, at)
    error = state.card(gpu, "noise") * _gauss(state.header("seed"), gpu, round(at / update_s * 4))
    gain = state.card(gpu, "gain") * (state.card(gpu, "reading_gain") or 1.0)
    return max(0.0, float(gain * mean_w * (1 + error) + state.card(gpu, "offset_w")))


def energy_mj(state: MachineState, gpu: int, at_s: float) -> int:
    """The total-energy counter in millijoules, as refreshed at its last tick."""
    at = tick_s(state, gpu, at_s, state.card(gpu, "counter_update_s"), state.card(gpu, "counter_lag_s"))
    part_time = state.card(gpu, "counter_part_time")
    whole_j = _summed_readings_j(state, gpu, at_s) if part_time else state.true_energy_j(gpu, max(at, 0.0))
    energy_j = whole_j - state.control(gpu, "counter_reset_j")
    return max(0, int(state.card(gpu, "gain") * energy_j * 1000))


def _summed_readings_j(state: MachineState, gpu: int, at_s: float) -> float:
    """The energy (J) of a counter that applies each power reading to the time since the previous one.

    The sum is kept in the machine's memory, and every call continues it. Time before the last `REMEMBERED`
    refreshes counts with its true energy.
    """
    update_s, window_s = state.card(gpu, "power_update_s"), state.card(gpu, "power_window_s")
    phase_s = state.card(gpu, "sensor_phase_s")
    wanted = math.floor((at_s - phase_s) / update_s)

    def reading_j(number: int) -> float:
        at = number * update_s + phase_s
        return float(update_s * state.true_mean_power_w(gpu, at - window_s, at))

    with state.writing():
        known, energy_j = int(state.control(gpu, "readings_summed")), float(state.control(gpu, "summed_j"))
        for number in range(wanted + 1, known + 1):  # a call about the past
            energy_j -= reading_j(number)
        first = max(known, wanted - REMEMBERED)
        if first > known:
            energy_j += state.true_energy_j(gpu, first * update_s)
            energy_j -= state.true_energy_j(gpu, known * update_s)
        for number in range(first + 1, wanted + 1):
            energy_j += reading_j(number)
        if wanted > known:
            state.set_control(gpu, "readings_summed", wanted)
            state.set_control(gpu, "summed_j", energy_j)
    return energy_j


def utilisation(state: MachineState, gpu: int, at_s: float) -> tuple[int, int]:
    """(SM, memory) utilisation in whole percent over the last utilisation window."""
    window_s = state.card(gpu, "utilisation_window_s")
    at = math.floor(at_s / window_s) * window_s
    busy, mem_busy = state.mean_utilisation(gpu, at - window_s, at)
    return round(100 * busy), round(100 * mem_busy)


def temperature_c(state: MachineState, gpu: int, at_s: float) -> int:
    """Degrees Celsius: idle temperature plus the power of the last thermal time constant."""
    span_s = min(state.card(gpu, "thermal_s"), max(at_s, 1e-3))
    mean_w = state.true_mean_power_w(gpu, at_s - span_s, at_s)
    above_w = max(0.0, mean_w - state.card(gpu, "idle_w"))
    return round(float(state.card(gpu, "idle_c") + state.card(gpu, "c_per_w") * above_w))


def _gauss(seed: int, gpu: int, tick: int) -> float:
    """Noise that is equal for every process: a sum of four uniforms, scaled to unit variance."""
    x = (seed ^ (gpu * 0x9E3779B97F4A7C15) ^ (tick & _MASK) * 0xD1342543DE82EF95) & _MASK
    total = 0.0
    for _ in range(4):
        x = (x + 0x9E3779B97F4A7C15) & _MASK
        z = x
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        total += ((z ^ (z >> 31)) >> 11) / (1 << 53)
    return (total - 2.0) * math.sqrt(3.0)
