"""GPUs that wait for the slowest GPU of their job get lower clocks, and the job is not slower."""

from __future__ import annotations

import numpy as np
import pytest

import workbench
from notebooks.data_parallel import DataParallelJob
from workbench.jobs.records import GpuWait, JobWaiting
from workbench.measurement import session as sessions
from workbench.simulation import machine as machines
from workbench.tuning import balance
from workbench.tuning.balance import reduced_clocks
from workbench.tuning.state_machine import Tuner

CLOCKS = tuple(range(1410, 210, -15))


def seen(*waits_s: float | None, iteration_s: float = 0.3, error_s: float = 0.0, known: bool = True) -> JobWaiting:
    gpus = tuple(GpuWait(f"GPU-{n}", n, wait_s=each, wait_uncertainty_s=error_s, sm_clock_mhz=1410.0)
                 for n, each in enumerate(waits_s))
    return JobWaiting(iteration_s, 0.0, 100, gpus, known=known)


def test_a_gpu_that_waits_runs_as_slowly_as_it_can_without_being_the_last() -> None:
    clocks = reduced_clocks(seen(0.03, 0.0), CLOCKS, {})
    assert clocks == {"GPU-0": 1275}
    assert 1410 / 1275 * 0.27 <= 0.3


def test_only_the_sure_part_of_a_wait_is_used_and_an_unknown_one_is_not() -> None:
    assert reduced_clocks(seen(0.03, 0.0, error_s=0.015), CLOCKS, {}) == {"GPU-0": 1350}
    assert reduced_clocks(seen(0.03, 0.0, error_s=0.04), CLOCKS, {}) == {}
    assert reduced_clocks(seen(None, None, known=False), CLOCKS, {}) == {}
    assert reduced_clocks(seen(0.03, 0.0), (), {}) == {}


def test_a_clock_that_was_reduced_is_reduced_further() -> None:
    assert reduced_clocks(seen(0.0, 0.03), CLOCKS, {"GPU-1": 1200}) == {"GPU-1": 1080}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_a_tuned_job_with_a_straggler(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    """With the true waits in place of those from power. The limit also holds where they are wrong."""
    machine = machines.simulate("4xA100", stepped=True, seed=3)
    session = sessions.current()
    session.close()
    job = DataParallelJob(
        "imagenet", 256, gpu=range(4), straggler=(2, 1.25), cause="data", iterations=750,
        evaluate=False, machine=machine,
    )
    looks = []

    def true_waits(traces, ends_s, **_):  # type: ignore[no-untyped-def]
        done = [each for each in job.exchanges if each.end_s and ends_s[0] < each.end_s < ends_s[-1]]
        waits_s = np.mean([each.wait_s for each in done], axis=0)
        clocks = [trace["sm_clock_mhz"].mean() for trace in traces.values()]
        looks.append(waits_s)
        if wrong:
            waits_s = waits_s + np.array([0.0, 0.0, 0.1, 0.0])  # it is the last, and would be slowed down
        each = [GpuWait(uuid, n, wait_s=float(waits_s[n] - waits_s.min()), wait_uncertainty_s=0.002,
                        sm_clock_mhz=clocks[n]) for n, uuid in enumerate(traces)]
        lengths = np.diff(ends_s)
        return JobWaiting(float(lengths.mean()), 1.96 * lengths.std() / len(lengths) ** 0.5, len(lengths),
                          tuple(each), known=True)

    monkeypatch.setattr(balance, "waiting", true_waits)
    tuner = Tuner(session.meter, model=False, over="clocks", max_slowdown=0.05)
    before = [device.setting() for device in session.meter.devices]
    clocks_mhz: list[tuple[int | None, ...]] = []
    with workbench.measure("job"):
        for _ in job:
            workbench.step()
            tuner.advance()
            clocks_mhz.append(tuple(device.setting().sm_clock_mhz for device in session.meter.devices))
    result = tuner.end()
    assert looks
    texts = [text for _, text in result.events]
    assert any("lower clocks for GPUs that wait" in text for text in texts), texts
    assert [device.setting() for device in session.meter.devices] == before
    if not wrong:  # GPU 2 is the last one
        assert any(max(clocks[n] or 1410 for n in (0, 1, 3)) < (clocks[2] or 1410) for clocks in clocks_mhz)
    assert result.saved is not None
    assert result.saved.slowdown < 0.05
