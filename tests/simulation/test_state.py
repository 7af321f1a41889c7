"""The simulated machine's memory: the true values, the rights to change them, and its sensors' readings."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.fixtures.bulk import replace_ring, total_segments
from workbench._processes import runs
from workbench.errors import SimulationError
from workbench.simulation import sensors
from workbench.simulation.machine import Machine
from workbench.simulation.state import (
    CARD,
    CONTROL,
    GUARD_S,
    HEADER,
    PROCESS_SLOTS,
    PROCESSES_AT,
    RING,
    SEGMENT,
    SEQUENCE_AT,
    SM_CLOCKS_AT,
    MachineState,
)

IDLE_W = 26.0  # of a V100
HOUR_J = 3600 * IDLE_W  # a machine has idled for an hour when its time 0 comes
BUSY = (1500, 877, 1.0, 0.5, 0)
REST = (IDLE_W, 135, 877, 0.0, 0.0, 1)


def child(program: str, state: MachineState, *arguments: object) -> subprocess.Popen[str]:
    """Another process with the same memory: `state` is open in it, `arguments` are in `args`."""
    lines = (
        "import sys, os, time\nfrom workbench.simulation.state import MachineState\nstate = "
        f"MachineState({str(state.path)!r})\n"
    )
    return subprocess.Popen([sys.executable, "-c", f"{lines}args = {arguments!r}\n{program}"], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def hear(process: subprocess.Popen[str], answer: str) -> None:
    """Wait for a message from another process."""
    assert process.stdout
    assert process.stdout.readline() == f"{answer}\n"


# the file


@pytest.mark.parametrize("table", [HEADER, CARD, CONTROL], ids=["header", "card", "control"])
def test_no_two_fields_of_the_layout_overlap_and_all_are_aligned(table: dict[str, tuple[int, str]]) -> None:
    end = 0
    for name, (offset, form) in sorted(table.items(), key=lambda item: item[1][0]):
        assert offset >= end, name
        assert offset % (8 if form[-1] in "dQ" else 4) == 0 or form.endswith("s"), name
        end = offset + struct.calcsize("<" + form)
    assert end <= {"H": 1024, "C": SM_CLOCKS_AT}["H" if table is HEADER else "C"]


def test_the_parts_of_a_gpus_block_do_not_overlap() -> None:
    rows = [*CARD.values(), *CONTROL.values(), (PROCESSES_AT, f"{PROCESS_SLOTS * 16}s")]
    parts = sorted((offset, offset + struct.calcsize("<" + form)) for offset, form in rows)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(parts))
    assert parts[-1][1] <= SM_CLOCKS_AT
    assert SM_CLOCKS_AT + 256 * 4 <= SEQUENCE_AT


def test_a_file_that_is_no_machine_is_refused(tmp_path: Path) -> None:
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"WBSIMGPU")
    other.write_bytes(bytes(8192))
    with pytest.raises(SimulationError, match="8 bytes"):
        MachineState(short)
    with pytest.raises(SimulationError, match="of this version"):
        MachineState(other)


# energy


def test_energy_is_the_exact_sum_of_its_pieces(stepped: Machine) -> None:
    state = stepped.state
    state.publish(0, 0.0, [(2.0, 100.0, *BUSY), (0.5, 300.0, *BUSY), (1.5, 40.0, *BUSY)], REST)
    at = {0.0: 0, 1.0: 100, 2.0: 200, 2.25: 275, 2.5: 350, 4.0: 410, 5.0: 436}
    assert {t: state.true_energy_j(0, t) - HOUR_J for t in at} == at
    assert state.true_mean_power_w(0, 1.0, 2.5) == pytest.approx((100 + 150) / 1.5)
    assert state.segment_at(0, 2.0).power_w == 300.0  # a segment begins at its start
    assert state.segment_at(0, 1.999).power_w == 100.0


def test_utilisation_is_weighted_by_time(stepped: Machine) -> None:
    plan = [(1.0, 100.0, 1500, 877, 1.0, 0.5, 0), (3.0, 40.0, 1500, 877, 0.2, 0.1, 0)]
    stepped.state.publish(0, 0.0, plan, REST)
    assert stepped.state.mean_utilisation(0, 0.0, 4.0) == pytest.approx(((1 + 0.6) / 4, (0.5 + 0.3) / 4))
    assert stepped.state.mean_utilisation(0, 3.0, 5.0) == pytest.approx((0.1, 0.05))


def test_a_new_plan_replaces_the_future_and_never_the_past(stepped: Machine) -> None:
    state = stepped.state
    state.publish(0, 0.0, [(10.0, 100.0, *BUSY)], REST)
    stepped.step(4.0)
    past = [state.true_energy_j(0, t / 8) for t in range(33)]
    state.publish(
        0, 1.0, [(1.0, 900.0, *BUSY), (4.0, 200.0, *BUSY)], REST
    )  # begins in the past: what lies there is cut
    assert [state.true_energy_j(0, t / 8) for t in range(33)] == past
    assert state.true_energy_j(0, 6.0) - HOUR_J == 4 * 100 + 2 * 200
    assert state.true_energy_j(0, 7.0) - HOUR_J == 4 * 100 + 2 * 200 + IDLE_W
    state.publish(0, 8.0, [(1.0, 500.0, *BUSY)], REST)  # later work is appended
    assert state.true_energy_j(0, 9.0) - HOUR_J == 800 + 2 * IDLE_W + 500


def test_a_plan_that_ends_before_now_changes_nothing_but_what_follows(stepped: Machine) -> None:
    stepped.step(5.0)
    stepped.state.publish(0, 1.0, [(1.0, 400.0, *BUSY)], (50.0, 135, 877, 0.0, 0.0, 1))
    assert stepped.state.true_energy_j(0, 5.0) == HOUR_J + 5 * IDLE_W
    assert stepped.state.true_energy_j(0, 6.0) == HOUR_J + 5 * IDLE_W + 50


def test_the_ring_forgets_the_oldest_and_keeps_energy_exact(stepped: Machine) -> None:
    state, number = stepped.state, RING + 1000
    state.publish(0, 0.0, [(0.5, 100.0 + k % 2 * 100, *BUSY) for k in range(number)], REST)
    end_s = number / 2
    assert total_segments(state, 0) == number + 2  # the hour before, the plan, the rest after
    assert state.true_energy_j(0, end_s) - HOUR_J == end_s * 150
    assert state.true_energy_j(0, end_s - 1.0) - HOUR_J == (end_s - 1) * 150
    oldest_s = (number + 1 - RING) / 2
    assert state.segment_at(0, oldest_s).start_s == oldest_s
    assert state.segment_at(0, 3.0).start_s == oldest_s  # forgotten: the oldest that is known


def test_a_bulk_write_across_the_rings_end_reads_back(stepped: Machine) -> None:
    state, total = stepped.state, RING + 500
    rows = [SEGMENT.pack(k, 100.0, 100.0 * k, *BUSY) for k in range(total - 1000, total)]
    replace_ring(state, 0, b"".join(rows), total)
    assert total_segments(state, 0) == total
    assert [state.segment_at(0, t + 0.5).start_s for t in (total - 1000, RING - 1, RING, total - 1)] == [
        total - 1000, RING - 1, RING, total - 1]
    assert state.true_energy_j(0, total - 0.5) == 100.0 * (total - 0.5)


def test_energy_never_goes_back_while_other_processes_rewrite_the_plan(
    simulated: Callable[..., Machine],
) -> None:
    state = simulated("V100").state
    program = (
        "import random\nrng = random.Random(args[0])\nprint('ready', flush=True)\n"
        "while time.monotonic() < args[1]:\n"
        "    now = state.now_s()\n"
        "    plan = [(rng.uniform(0.0001, 0.01), rng.uniform(20, 400), 1500, 877, 1.0, 0.5, 0) for _ in "
        "range(30)]\n"
        "    state.publish(0, now - 0.01 + rng.uniform(0, 0.05), plan, (26.0, 135, 877, 0.0, 0.0, 1))\n"
    )
    end_s = state.header("origin_s") + state.now_s() + 1.2
    writers = [child(program, state, seed, end_s) for seed in range(2)]
    for writer in writers:
        hear(writer, "ready")
    before, looked, readings = (0.0, 0.0), [], 0
    while any(writer.poll() is None for writer in writers):
        now_s = state.now_s()
        energy_j = state.true_energy_j(0, now_s)
        assert energy_j >= before[1]
        assert energy_j - before[1] <= 400 * (now_s - before[0]) + 1e-6 or not readings
        before, readings = (now_s, energy_j), readings + 1
        if readings % 50 == 0:
            looked.append(before)
    assert readings > 500
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    # What was read is still what is told: nobody has rewritten the past since.
    assert [state.true_energy_j(0, t) for t, _ in looked] == [j for _, j in looked]


def test_a_killed_writer_delays_no_reader(stepped: Machine) -> None:
    state = stepped.state
    state.publish(0, 0.0, [(100.0, 300.0, *BUSY)], REST)
    stepped.step(2.0)
    program = (
        "from workbench.simulation.state import SEQUENCE_AT\nimport struct\n"
        "def plan():\n"
        "    yield (1.0, 400.0, 1500, 877, 1.0, 0.5, 0)\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "state.publish(0, 3.0, plan(), (26.0, 135, 877, 0.0, 0.0, 1))\n"
    )
    writer = child(program, state)
    with writer:
        hear(writer, "writing")
        os.kill(writer.pid, signal.SIGKILL)
    assert state.true_energy_j(0, 2.0) == HOUR_J + 600
    assert state.true_energy_j(0, 3.0) == HOUR_J + 600 + IDLE_W  # nobody works on it any more


# locks


def test_two_processes_never_write_simultaneously(simulated: Callable[..., Machine]) -> None:
    state = simulated("V100").state
    program = (
        "for _ in range(400):\n"
        "    with state.writing():\n"
        "        seen = state.control(0, 'memory_used')\n"
        "        time.sleep(0)\n"
        "        state.set_control(0, 'memory_used', seen + 1)\n"
    )
    writers = [child(program, state) for _ in range(2)]
    for writer in writers:
        writer.communicate()
    assert state.control(0, "memory_used") == 800


def test_a_reader_is_not_kept_waiting_by_the_lock(stepped: Machine) -> None:
    holder = child(
        "with state.writing():\n    print('held', flush=True)\n    sys.stdin.read()", stepped.state
    )
    hear(holder, "held")
    assert stepped.state.true_energy_j(0, 0.0) == HOUR_J
    assert holder.poll() is None
    holder.communicate()


def test_a_process_that_writes_within_its_own_writing_does_not_wait_for_itself(stepped: Machine) -> None:
    with stepped.state.writing():
        stepped.state.publish(0, 0.0, [(1.0, 100.0, *BUSY)], REST)
    assert stepped.state.true_energy_j(0, 1.0) == HOUR_J + 100


# settings


def test_a_setting_takes_effect_after_the_governors_delay(stepped: Machine) -> None:
    state = stepped.state
    stepped.step(1.0)
    state.change_setting(0, limit_w=150.0)
    assert state.control(0, "limit_w") == 150.0  # shown at once
    assert [state.effective(0, t)[0] for t in (1.0, 1.0999, 1.1, 5.0)] == [250.0, 250.0, 150.0, 150.0]
    stepped.step(0.05)
    state.change_setting(0, limit_w=200.0)  # a second one before the first was obeyed
    assert [state.effective(0, t)[0] for t in (1.1, 1.1499, 1.1501)] == [250.0, 250.0, 200.0]
    stepped.step(1.0)
    state.change_setting(0, lock_sm_min=900, lock_sm_max=900)
    assert state.effective(0, 2.06) == (200.0, 0, 0, 0, 0)
    assert state.effective(0, 2.16) == (200.0, 900, 900, 0, 0)


def test_a_limit_enforced_from_outside_wins_where_it_is_lower(stepped: Machine) -> None:
    stepped.state.set_control(0, "enforced_w", 180.0)
    assert stepped.state.effective(0, 0.0)[0] == 180.0
    stepped.state.set_control(0, "enforced_w", 300.0)
    assert stepped.state.effective(0, 0.0)[0] == 250.0


def test_the_shortest_delay_still_leaves_the_past_alone(stepped: Machine) -> None:
    stepped.state.set_card(0, "governor_delay_s", 0.0)
    stepped.state.change_setting(0, limit_w=150.0)
    assert stepped.state.effective(0, GUARD_S)[0] == 250.0
    assert stepped.state.effective(0, 2 * GUARD_S)[0] == 150.0


# processes and faults


def test_a_gpu_takes_eight_processes(stepped: Machine) -> None:
    parents = [os.getpid()]
    sleepers = [child("sys.stdin.read()", stepped.state) for _ in range(8)]
    for sleeper in sleepers[:7]:
        stepped.state.set_process(0, sleeper.pid, 1)
    stepped.state.set_process(0, parents[0], 2)
    stepped.state.set_process(0, parents[0], 3)  # the same one again only changes its memory
    assert stepped.state.processes(0)[-1] == (parents[0], 3)
    with pytest.raises(SimulationError, match="8 processes"):
        stepped.state.set_process(0, sleepers[7].pid, 1)
    for sleeper in sleepers:
        sleeper.communicate()
    assert stepped.state.processes(0) == [(parents[0], 3)]
    stepped.state.set_process(0, parents[0], None)
    assert stepped.state.processes(0) == []


def test_alive_knows_the_dead_and_the_undead() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert zombie.stdout
    zombie.stdout.read()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended and nobody has asked how
    assert (runs(os.getpid()), runs(1), runs(zombie.pid)) == (True, True, False)
    zombie.communicate()
    assert not runs(zombie.pid)


def test_faults_strike_after_so_many_calls_so_many_times_on_their_gpu(
    simulated: Callable[..., Machine],
) -> None:
    state = simulated("V100,V100", stepped=True).state
    state.inject("nvmlDeviceGetName", 15, times=2, after=1, gpu=1)
    assert [state.fault("nvmlDeviceGetName", gpu) for gpu in (0, 1, 1, 0, 1, 1)] == [0, 0, 15, 0, 15, 0]
    assert state.fault("nvmlDeviceGetUUID", 1) == 0
    for number in range(16):  # the used-up one makes room
        state.inject(f"nvmlDevice{number}", 3)
    with pytest.raises(SimulationError, match="16 faults"):
        state.inject("nvmlDeviceMore", 3)
    state.clear_faults()
    assert state.fault("nvmlDevice3", 0) == 0


# sensors


def test_a_reading_is_gain_times_the_mean_over_its_window_plus_offset(stepped: Machine) -> None:
    state = stepped.state
    state.set_card(0, "gain", 0.9)
    state.set_card(0, "offset_w", 3.0)
    state.publish(0, 1.005, [(0.5, 200.0, *BUSY)], REST)
    # Ticks every 20 ms, each the mean of the 10 ms before: the one at 1.02 has seen 200 W alone.
    assert sensors.power_w(state, 0, 1.0199) == pytest.approx(0.9 * IDLE_W + 3)
    assert sensors.power_w(state, 0, 1.0201) == pytest.approx(0.9 * 200 + 3)
    assert sensors.power_w(state, 0, 1.0399) == pytest.approx(0.9 * 200 + 3)
    state.set_card(0, "power_window_s", 0.020)  # the one at 1.02 sees 5 ms of idling and 15 ms of work
    assert sensors.power_w(state, 0, 1.0201) == pytest.approx(0.9 * (IDLE_W + 3 * 200) / 4 + 3)


def test_changes_between_two_windows_are_not_reported(stepped: Machine) -> None:
    """A sensor that looks 10 of every 20 ms misses a load that runs in the other ten (arXiv 2312.02741)."""
    state = stepped.state
    state.publish(0, 1.0, [(0.010, power_w, *BUSY) for _ in range(25) for power_w in (300.0, 50.0)], REST)
    assert sensors.power_w(state, 0, 1.4001) == pytest.approx(50.0)
    assert state.true_mean_power_w(0, 1.0, 1.4) == pytest.approx(175.0)
    assert (
        sensors.energy_mj(state, 0, 1.4001) - sensors.energy_mj(state, 0, 1.0001)
    ) / 1000 == pytest.approx(70.0)


def test_the_energy_counter_moves_in_steps_of_its_period(stepped: Machine) -> None:
    state = stepped.state
    state.publish(0, 0.0, [(10.0, 100.0, *BUSY)], REST)
    readings = [
        sensors.energy_mj(state, 0, t) - round(1000 * HOUR_J) for t in (0.001, 0.0199, 0.0201, 0.0399, 0.0401)
    ]
    assert readings == [0, 0, 2000, 2000, 4000]  # 20 ms of 100 W are 2 J
    state.set_card(0, "gain", 0.5)
    assert sensors.energy_mj(state, 0, 1.0001) == round(500 * (HOUR_J + 100))


def test_a_counter_that_was_reset_starts_from_nothing(stepped: Machine) -> None:
    state = stepped.state
    stepped.step(1.01)
    state.set_control(0, "counter_reset_j", state.true_energy_j(0, 1.01))
    assert (
        sensors.energy_mj(state, 0, 1.01) == 0
    )  # its last tick lies before the reset; it does not run below zero
    assert sensors.energy_mj(state, 0, 2.0001) == pytest.approx(1000 * 0.99 * IDLE_W, abs=1)


def test_noise_is_small_the_same_for_everybody_and_new_at_each_tick(stepped: Machine) -> None:
    state = stepped.state
    state.set_card(0, "noise", 0.01)
    readings = [sensors.power_w(state, 0, 1.0001 + 0.02 * tick) for tick in range(2000)]
    errors = [reading / IDLE_W - 1 for reading in readings]
    assert len(set(readings)) == 2000
    assert sum(errors) / 2000 == pytest.approx(0.0, abs=0.001)
    assert (sum(error**2 for error in errors) / 2000) ** 0.5 == pytest.approx(0.01, rel=0.05)
    asked = child("from workbench.simulation import sensors\nprint(sensors.power_w(state, 0, 1.0001))", state)
    assert float(asked.communicate()[0]) == readings[0]
    assert sensors.power_w(state, 0, 1.0150) == readings[0]  # until the next tick


def test_temperature_is_idles_plus_the_power_of_the_last_time_constant(stepped: Machine) -> None:
    state = stepped.state
    assert sensors.temperature_c(state, 0, 0.0) == 33
    state.publish(0, 0.0, [(100.0, 226.0, *BUSY)], REST)
    assert sensors.temperature_c(state, 0, 100.0) == 33 + round(0.16 * 200)  # 0.16 K/W over idle


def test_utilisation_is_whole_percent_of_its_last_window(stepped: Machine) -> None:
    state = stepped.state
    state.publish(
        0, 0.0, [(1 / 24, 100.0, 1500, 877, 1.0, 0.5, 0), (1.0, 40.0, 1500, 877, 0.0, 0.0, 0)], REST
    )
    assert sensors.utilisation(state, 0, 0.17) == (
        25,
        12,
    )  # a quarter of a sixth of a second; 12.5 rounds to even
    assert sensors.utilisation(state, 0, 0.34) == (0, 0)
