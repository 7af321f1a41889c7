"""What an earlier run of the same job has measured: kept, found again, weighed, and left out where it is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from workbench.records import Limits, Setting
from workbench.search.clocks.base import Probing
from workbench.search.objective import Energy
from workbench.search.space import space_from
from workbench.tuning import evidence
from workbench.tuning.evidence import EarlierSetting, keep, recall
from workbench.tuning.posterior import SettingPosterior
from workbench.tuning.probe import Reading

SPACE = space_from(Limits(100.0, 300.0, 300.0, {}), "power", step_w=20.0)
BASELINE = (0.5, 130.0)
KNOWN = tuple(
    EarlierSetting(Setting(power_limit_w=limit_w), time_ratio, energy_ratio)
    for limit_w, time_ratio, energy_ratio in ((220.0, 1.03, 0.88), (180.0, 1.09, 0.82), (777.0, 1.2, 0.8))
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))


def posterior() -> SettingPosterior:
    return SettingPosterior("model-guided", SPACE, Energy(), 0.05)


def reading(setting: Setting, time_ratio: float, energy_ratio: float) -> Reading:
    time_s, energy_j = 20 * BASELINE[0] * time_ratio, 20 * BASELINE[1] * energy_ratio
    return Reading(setting, 20, time_s, energy_j, 0.005 * energy_j, 0.002 * time_s / 20, 0.0, time_s)


def test_what_a_run_measured_is_there_for_the_next_run_of_that_job_on_that_gpu() -> None:
    belief = posterior()
    belief.read(reading(Setting(), 1.0, 1.0))
    belief.read(reading(Setting(power_limit_w=220.0), 1.03, 0.88))
    keep("train", "A card", [(BASELINE, belief.measured())])
    found = recall("train", "A card", 0.51, 129.0)
    assert [each.setting for each in found] == [Setting(power_limit_w=220.0)]
    assert (found[0].time_ratio, found[0].energy_ratio) == pytest.approx((1.03, 0.88))
    assert recall("train", "A card", 0.9, 240.0) == ()  # another batch size
    assert recall("train", "Another card", *BASELINE) == ()
    assert recall("other", "A card", *BASELINE) == ()
    assert recall("", "A card", *BASELINE) == ()


def test_nothing_is_kept_of_a_job_without_a_label_or_a_probe(tmp_path: Path) -> None:
    keep("", "A card", [(BASELINE, posterior().measured())])
    keep("train", "A card", [(BASELINE, posterior().measured())])
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b'{"version": 2, "jobs": [{}]}', b'{"version": 1, "jobs": [3, {"iteration_s": 0}]}',
    b'{"version": 1, "jobs": [{"iteration_s": 0.5, "iteration_j": 130, "settings": [[1, 2]]}]}',
])
def test_a_file_that_is_damaged_says_nothing(content: bytes) -> None:
    path = evidence._file("train", "A card")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert recall("train", "A card", *BASELINE) == ()


def test_evidence_is_expected_before_any_probe_and_settings_that_are_not_there_are_passed_over() -> None:
    belief = posterior()
    belief.assume(KNOWN, BASELINE)
    assert len(belief.evidence) == 2
    belief.read(reading(Setting(), 1.0, 1.0))
    time_ratio, _, energy_ratio = belief.ratios(Setting(power_limit_w=220.0))
    assert (time_ratio, energy_ratio) == pytest.approx((1.03, 0.88), abs=0.015)
    assert not belief.visited(Setting(power_limit_w=220.0))  # this run has not been there
    assert belief.again(Energy(), 0.1).evidence == belief.evidence


def test_evidence_that_a_probe_contradicts_is_left_out() -> None:
    belief = posterior()
    belief.assume(KNOWN, BASELINE)
    belief.read(reading(Setting(), 1.0, 1.0))
    there = Setting(power_limit_w=220.0)
    assert not belief.contradicts(reading(there, 1.032, 0.882))
    other = reading(there, 1.15, 0.97)
    assert belief.contradicts(other)
    plain = belief.without_evidence()
    assert not plain.evidence
    plain.read(other)
    assert plain.ratios(there)[0] == pytest.approx(1.15, abs=0.03)
    assert plain.measured()[there] == pytest.approx((BASELINE[0] * 1.15, BASELINE[1] * 0.97))


def test_a_search_that_starts_from_evidence_probes_less() -> None:
    def cost(setting: Setting) -> tuple[float, float]:
        x = (setting.power_limit_w or 300.0) / 300.0
        busy = min(max((x - 0.2) / 0.75, 0.2), 1.0) ** 0.5
        time = 0.4 + 0.6 / busy
        return time, time * (60 + 200 * busy**2.2)

    top = cost(SPACE.reference)

    def probes(known: tuple[EarlierSetting, ...]) -> int:
        belief = posterior()
        belief.assume(known, BASELINE)
        belief.read(reading(Setting(), 1.0, 1.0))
        for number in range(20):
            step = belief.search.next()
            if not hasattr(step, "setting"):
                return number
            time, energy = (a / b for a, b in zip(cost(step.setting), top, strict=True))
            belief.read(reading(step.setting, time, energy))
        return 20

    ratios = [(each, *(a / b for a, b in zip(cost(each), top, strict=True))) for each in SPACE.settings[1:]]
    known = tuple(EarlierSetting(*row) for row in ratios if math.isfinite(row[1]))
    assert probes(known) < probes(())


def test_a_run_that_probed_little_adds_to_what_earlier_runs_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(*limits_w: float, time_s: float) -> dict[Setting, tuple[float, float]]:
        return {Setting(power_limit_w=limit_w): (time_s, 120.0) for limit_w in limits_w}

    keep("train", "A card", [(BASELINE, at(100.0, 120.0, 140.0, 160.0, 180.0, time_s=0.55))])
    keep("train", "A card", [((2.0, 500.0), at(200.0, time_s=2.2))])  # another batch size
    keep("train", "A card", [((0.51, 131.0), at(160.0, 220.0, time_s=0.51 * 1.2))])
    found = {each.setting.power_limit_w: each.time_ratio for each in recall("train", "A card", *BASELINE)}
    assert found == pytest.approx({160.0: 1.2, 220.0: 1.2, 100.0: 1.1, 120.0: 1.1, 140.0: 1.1, 180.0: 1.1})
    monkeypatch.setattr(evidence, "MOST_SETTINGS", 3)
    newest = [each.setting.power_limit_w for each in recall("train", "A card", *BASELINE)]
    assert newest[:2] == [160.0, 220.0]
    assert len(newest) == 3


def test_evidence_makes_no_probe_longer() -> None:
    def longest(known: tuple[EarlierSetting, ...]) -> float:
        belief = posterior()
        baseline = 4.0, 1000.0  # of long iterations: evidence counts for one of them
        belief.assume(known, baseline)
        belief.read(Reading(Setting(), 4, 16.0, 4000.0, 5.0, 0.01, 0.0, 16.0))
        assert isinstance(belief.search, Probing)
        return belief.search.trial(1, "").seconds

    assert longest(KNOWN) == longest(())
