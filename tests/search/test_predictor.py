"""Clocks predicted from features: the error on workloads that were not trained, and files.

The cards here follow the physics in `answer`: two numbers of a workload decide everything, so that a
prediction can be compared with the truth.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from workbench.errors import UsageError
from workbench.records import Setting
from workbench.search.space import SettingSpace, space_of
from workbench.search.surrogates.predictor import ClockModel, Prediction
from workbench.tuning.models import SUFFIX

SM, MEM = (1500, 1300, 1100, 900, 700), (5000, 2500)
LIMIT_W = 300.0
GPU = "NVIDIA Test Card"


def answer(memory: float, draw: float, x: float, mu: float = 1.0, gap: float = 0.0) -> tuple[float, float]:
    """Time (1 at the highest clocks) and watts of a workload, from its memory-bound share, its part of 300 W,
    and its share of gaps.
    """
    busy = (1 - memory) / x + memory / mu
    time = gap + (1 - gap) * busy
    volts = 0.7 + 0.3 * max(0.0, (x - 0.6) / 0.4)
    rate = memory / busy
    watts = LIMIT_W * (0.2 + (draw - 0.3) * x * volts**2 + 0.1 * rate)
    return time, watts


def features(memory: float, draw: float, gap: float = 0.0) -> dict[str, float]:
    return {
        "dram_active": 0.9 * memory * (1 - gap),
        "fp32_active": 0.8 * (1 - memory) * (1 - gap),
        "sm_active": 0.95 * (1 - gap),
        "gpu_utilisation": 1 - gap,
        "power_share": answer(memory, draw, 1.0)[1] / LIMIT_W,
    }


def workloads(rng: np.random.Generator, count: int = 48) -> list[tuple[float, float]]:
    return [(float(rng.uniform(0, 1)), float(rng.uniform(0.45, 0.95))) for _ in range(count)]


def training(
    *,
    memories: tuple[int, ...] = MEM,
    noise: float = 0.003,
    seed: int = 3,
    scale: float = 1.0,
    limits: bool = False,
    count: int = 48,
) -> pl.DataFrame:
    """A training set; `scale` makes another card of it: other clocks, other watts, the same physics."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, (memory, draw) in enumerate(workloads(rng, count)):
        about = {"workload": f"w{number}", "group": f"g{number % 6}", "gpu": GPU, **features(memory, draw)}
        for mem in memories:
            for sm in SM:
                time, watts = answer(memory, draw, sm / SM[0], mem / MEM[0])
                knobs = {
                    "sm_clock_mhz": round(sm * scale),
                    "mem_clock_mhz": round(mem * scale),
                    "power_limit_w": None,
                }
                rows.append({**about, **knobs, "iteration_s": time, "power_w": watts * scale})
        if limits:
            for limit_w in (250.0, 200.0, 150.0, 100.0):
                x = clock_under(memory, draw, limit_w)
                time, watts = answer(memory, draw, x)
                rows.append(
                    {
                        **about,
                        "sm_clock_mhz": None,
                        "mem_clock_mhz": None,
                        "power_limit_w": limit_w,
                        "iteration_s": time,
                        "power_w": watts,
                    }
                )
    frame = pl.DataFrame(rows, infer_schema_length=None)
    at_top = (pl.col("sm_clock_mhz") == SM[0] * scale) & (pl.col("mem_clock_mhz") == MEM[0] * scale)
    frame = frame.with_columns(reference=at_top.fill_null(False))
    factor = np.exp(noise * rng.standard_normal((2, frame.height)))
    return frame.with_columns(pl.col("iteration_s") * factor[0], pl.col("power_w") * factor[1])


def clock_under(memory: float, draw: float, limit_w: float) -> float:
    grid = np.linspace(0.2, 1, 801)
    fits = [x for x in grid if answer(memory, draw, float(x))[1] <= limit_w]
    return float(max(fits, default=0.2))


def space(memories: tuple[int, ...] = MEM, scale: float = 1.0) -> SettingSpace:
    return space_of(
        [
            Setting(sm_clock_mhz=round(sm * scale), mem_clock_mhz=round(mem * scale))
            for mem in memories
            for sm in SM
        ]
    )


@pytest.fixture(scope="module")
def model() -> ClockModel:
    return ClockModel.train(training(), gpu=GPU)


def truth(memory: float, draw: float, where: SettingSpace) -> tuple[np.ndarray, np.ndarray]:
    """ln relative time and energy at every setting."""
    pairs = np.array([answer(memory, draw, x, mu) for x, mu in zip(where.x, where.mu, strict=True)])
    top = np.array(answer(memory, draw, 1.0))
    time, power = np.log(pairs / top).T
    return time, time + power


def predicted(model: ClockModel, memory: float, draw: float, where: SettingSpace) -> Prediction:
    return model.predict(features(memory, draw), where, power_w=answer(memory, draw, 1.0)[1])


UNSEEN = [(0.1, 0.9), (0.35, 0.5), (0.55, 0.75), (0.8, 0.6), (0.95, 0.85)]


@pytest.mark.parametrize(
    ("memory", "draw"), [UNSEEN[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in UNSEEN[1:])]
)
def test_time_and_energy_of_a_new_workload_are_predicted_within_a_few_percent(
    model: ClockModel, memory: float, draw: float
) -> None:
    frame = predicted(model, memory, draw, space()).frame
    time, energy = truth(memory, draw, space())
    assert np.mean(np.abs(frame["log_time"].to_numpy() - time)) < 0.04
    assert np.mean(np.abs(frame["log_energy"].to_numpy() - energy)) < 0.04
    assert frame["log_time"][0] == pytest.approx(0, abs=1e-9)  # the reference is 1 by definition


def test_between_trained_clocks_time_falls_and_power_rises_with_the_clock(model: ClockModel) -> None:
    fine = space_of([Setting(sm_clock_mhz=sm, mem_clock_mhz=MEM[0]) for sm in range(700, 1501, 10)])
    for memory, draw in UNSEEN:
        frame = predicted(model, memory, draw, fine).frame.sort("sm_clock_mhz")
        time, power = frame["log_time"].to_numpy(), (frame["log_energy"] - frame["log_time"]).to_numpy()
        assert (np.diff(time) <= 1e-9).all()
        assert (np.diff(power) >= -1e-9).all()


@pytest.mark.slow
def test_predictions_agree_for_the_same_physics_at_other_clocks_and_watts() -> None:
    here = ClockModel.train(training(), gpu=GPU)
    there = ClockModel.train(training(scale=1.4), gpu=GPU)
    a = predicted(here, 0.4, 0.7, space()).frame
    b = there.predict(features(0.4, 0.7), space(scale=1.4), power_w=1.4 * answer(0.4, 0.7, 1.0)[1]).frame
    assert b["log_time"].to_numpy() == pytest.approx(a["log_time"].to_numpy(), abs=5e-3)
    assert b["log_energy"].to_numpy() == pytest.approx(a["log_energy"].to_numpy(), abs=5e-3)


def test_a_missing_feature_stays_missing_and_the_prediction_goes_on(model: ClockModel) -> None:
    power_w = answer(0.5, 0.7, 1.0)[1]
    whole = features(0.5, 0.7)
    absent = {name: value for name, value in whole.items() if name != "dram_active"}
    a = model.predict(absent, space(), power_w=power_w).frame
    b = model.predict({**whole, "dram_active": float("nan")}, space(), power_w=power_w).frame
    zero = model.predict({**whole, "dram_active": 0.0}, space(), power_w=power_w).frame
    assert a.equals(b)
    assert not a.equals(zero)
    assert a["log_time"].is_not_null().all()


def test_power_alone_is_enough(model: ClockModel) -> None:
    assert model.predict({}, space(), power_w=180.0).frame["log_time"].is_not_null().all()


@pytest.mark.slow
def test_an_untrained_memory_clock_gives_null_and_not_a_guess() -> None:
    one = ClockModel.train(training(memories=MEM[:1]), gpu=GPU)
    frame = predicted(one, 0.5, 0.7, space()).frame
    told = frame.filter(pl.col("mem_clock_mhz") == MEM[0])
    untold = frame.filter(pl.col("mem_clock_mhz") == MEM[1])
    assert told["log_time"].is_not_null().all()
    for name in ("log_time", "log_energy"):
        assert untold[name].is_null().all()


def test_settings_that_the_model_does_not_know_are_null(model: ClockModel) -> None:
    other = space_of([Setting(sm_clock_mhz=4000), Setting(sm_clock_mhz=3500)])
    prediction = predicted(model, 0.5, 0.7, other)
    assert prediction.frame["log_time"].is_null().all()


def test_a_space_without_the_highest_clocks_is_relative_to_its_own_reference(model: ClockModel) -> None:
    lower = space_of([Setting(sm_clock_mhz=sm, mem_clock_mhz=MEM[0]) for sm in SM[1:]])
    whole, part = predicted(model, 0.3, 0.7, space()).frame, predicted(model, 0.3, 0.7, lower).frame
    assert part["log_time"].to_numpy() == pytest.approx(
        (whole["log_time"][1:5] - whole["log_time"][1]).to_numpy(), abs=1e-9
    )


def test_a_limit_acts_like_the_clock_at_which_power_meets_it(model: ClockModel) -> None:
    memory, draw = 0.3, 0.9
    where = space_of(
        [Setting(power_limit_w=each) for each in (300.0, 260.0, 200.0, 170.0)], max_power_limit_w=300.0
    )
    frame = predicted(model, memory, draw, where).frame
    assert frame["log_time"][1] == pytest.approx(
        0.0, abs=0.02
    )  # it draws 249 W: a limit of 260 W does not bite
    for row, limit_w in ((2, 200.0), (3, 170.0)):
        assert frame["log_time"][row] == pytest.approx(
            np.log(answer(memory, draw, clock_under(memory, draw, limit_w))[0]), abs=0.06
        )
        power = frame["log_energy"][row] - frame["log_time"][row]
        assert power == pytest.approx(np.log(limit_w / answer(memory, draw, 1.0)[1]), abs=0.06)


@pytest.mark.slow
def test_a_training_set_of_limits_teaches_limits() -> None:
    frame = training(limits=True).filter(
        pl.col("power_limit_w").is_not_null()
        | (pl.col("sm_clock_mhz") == SM[0]) & (pl.col("mem_clock_mhz") == MEM[0])
    )
    frame = frame.with_columns(
        reference=pl.col("power_limit_w").is_null(), sm_clock_mhz=None, mem_clock_mhz=None
    )
    only = ClockModel.train(frame, gpu=GPU, feature_set="nvml")
    where = space_of([Setting(power_limit_w=each) for each in (300.0, 200.0, 160.0)], max_power_limit_w=300.0)
    told = predicted(only, 0.2, 0.9, where).frame
    for row, limit_w in ((1, 200.0), (2, 160.0)):
        assert told["log_time"][row] == pytest.approx(
            np.log(answer(0.2, 0.9, clock_under(0.2, 0.9, limit_w))[0]), abs=0.08
        )


def test_each_set_of_features_reads_its_own_memory_activity(model: ClockModel) -> None:
    frame = training().rename({"dram_active": "memory_utilisation"})
    nvml = ClockModel.train(frame, gpu=GPU, feature_set="nvml")
    activity = features(0.5, 0.7)["dram_active"]
    a = predicted(model, 0.5, 0.7, space()).frame
    b = nvml.predict(
        {"memory_utilisation": activity, "dram_active": 0.9, "gpu_utilisation": 1.0}, space(),
        power_w=answer(0.5, 0.7, 1.0)[1],
    ).frame
    assert a.equals(b)


def test_a_model_has_its_error_on_groups_that_were_held_out(model: ClockModel) -> None:
    time, power = model.error
    assert 0 < time < 0.06
    assert 0 < power < 0.06
    # A group that follows another law is not predicted by the rest.
    odd = training().with_columns(
        iteration_s=pl.when((pl.col("group") == "g0") & (pl.col("sm_clock_mhz") < SM[0]))
        .then(3 * pl.col("iteration_s")).otherwise("iteration_s")
    )
    assert ClockModel.train(odd, gpu=GPU).error[0] > time + 0.05


def test_a_training_set_of_one_group_has_an_error_too() -> None:
    frame = training(count=12).with_columns(group=pl.lit("one"))
    assert 0 < ClockModel.train(frame, gpu=GPU).error[0] < 0.1


def test_a_model_comes_back_from_its_file_as_it_was(model: ClockModel, tmp_path: Path) -> None:
    path = model.save(tmp_path / "deep" / f"card.gpm{SUFFIX}")
    again = ClockModel.load(path)
    assert again == model
    assert (again.gpu, again.feature_set, again.workloads) == (GPU, "gpm", 48)
    assert predicted(again, 0.5, 0.7, space()).frame.equals(predicted(model, 0.5, 0.7, space()).frame)
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # no half-written file stays


def test_a_file_that_is_no_model_is_refused_with_the_remedy(model: ClockModel, tmp_path: Path) -> None:
    path = model.save(tmp_path / f"card{SUFFIX}")
    whole = path.read_bytes()
    def refused(content: bytes, text: str) -> None:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=text) as caught:
            ClockModel.load(path)
        assert "profile-gpu" in str(caught.value)
        assert "\n" not in str(caught.value)

    refused(whole[: len(whole) // 2], "damaged")
    refused(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:], "damaged")
    refused(b"", "damaged")
    refused(b"not a model", "damaged")
    refused(gzip.compress(b"1"), "damaged")
    refused(gzip.compress(b'{"format": "something else"}'), "not version")
    model_ = json.loads(gzip.decompress(whole))
    name, version = model_["format"]
    refused(gzip.compress(json.dumps({**model_, "format": [name, version - 1]}).encode()), f"not version {version}")
    refused(gzip.compress(json.dumps({**model_, "curves": 1}).encode()), "damaged")
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        ClockModel.load(path)
    (tmp_path / "no-folder").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        model.save(tmp_path / "no-folder" / f"card{SUFFIX}")


def test_bad_training_sets_are_refused_with_the_reason() -> None:
    frame = training(count=10)
    for change, words in (
        (frame.drop("iteration_s"), "100 of 100 rows have no iteration_s"),
        (frame.drop("sm_clock_mhz", "mem_clock_mhz", "power_limit_w"), "one setting only"),
        (
            frame.with_columns(
                iteration_s=pl.when(pl.col("workload") == "w3").then(-1.0).otherwise("iteration_s")
            ),
            "w3, -1.0 s",
        ),
        (frame.filter(pl.col("workload").is_in(["w1", "w2"])), "needs 8 workloads"),
        (
            frame.filter((pl.col("sm_clock_mhz") == SM[0]) & (pl.col("mem_clock_mhz") == MEM[0])),
            "one setting only",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            ClockModel.train(change, gpu=GPU)
    with pytest.raises(UsageError, match="nvml, gpm"):
        ClockModel.train(frame, gpu=GPU, feature_set="cupti")


def test_a_workload_without_its_reference_is_left_out() -> None:
    frame = training().filter((pl.col("workload") != "w5") | (pl.col("sm_clock_mhz") < SM[0]))
    assert ClockModel.train(frame, gpu=GPU).workloads == 47


def test_a_limit_as_high_as_the_highest_has_no_effect() -> None:
    frame = training(count=12)
    limited = frame.with_columns(power_limit_w=pl.lit(300.0))
    assert ClockModel.train(limited, gpu=GPU) == ClockModel.train(frame, gpu=GPU)


def test_a_reference_measured_twice_counts_by_its_mean() -> None:
    frame = training(count=12, noise=0.0)
    top, time = frame.filter("reference"), pl.col("iteration_s")
    twice = [top.with_columns(time * 1.1), frame.filter(~pl.col("reference")), top.with_columns(time * 0.9)]
    whole, halves = (ClockModel.train(each, gpu=GPU) for each in (frame, pl.concat(twice)))
    assert halves.error == pytest.approx(whole.error, abs=1e-6)
    expected, found = (predicted(each, 0.5, 0.7, space()).frame["log_time"] for each in (whole, halves))
    assert found.to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-6)


@pytest.mark.slow
def test_holes_in_a_training_set_are_no_zeros() -> None:
    frame = training()
    holes = frame.filter(~((pl.col("workload").is_in(["w1", "w2", "w7"])) & (pl.col("sm_clock_mhz") == 900)))
    trained = ClockModel.train(holes, gpu=GPU)
    time, power = trained.error
    assert time < 0.03
    assert power < 0.03


def test_features_and_power_that_cannot_be_are_refused(model: ClockModel) -> None:
    with pytest.raises(UsageError, match=r"dram_active=-1"):
        model.predict({"dram_active": -1.0}, space(), power_w=200.0)
    with pytest.raises(UsageError, match="power_w=0 "):
        model.predict({}, space(), power_w=0.0)
