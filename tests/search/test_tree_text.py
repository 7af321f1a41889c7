"""Models from elsewhere: what LightGBM's C++ reader is given is checked before."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from workbench.errors import UsageError
from workbench.search.surrogates.prediction import files
from workbench.search.surrogates.prediction.tree_text import checked

MODEL = "benchmarks/fixtures/home/models/tesla-v100-pcie-32gb-simulated.nvml.clocks.json.gz"


@pytest.fixture(scope="module")
def booster() -> lightgbm.Booster:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 5))
    data = lightgbm.Dataset(rows, rows[:, 0] * rows[:, 1] + rows[:, 2], params={"verbosity": -1})
    return lightgbm.train({"verbosity": -1, "num_leaves": 9, "num_threads": 1}, data, 30)


def test_what_is_sound_foretells_the_same(booster: lightgbm.Booster) -> None:
    rows = np.random.default_rng(2).normal(size=(200, 5))
    again = lightgbm.Booster(model_str=checked(booster.model_to_string(), 5))
    np.testing.assert_array_equal(again.predict(rows), booster.predict(rows))
    np.testing.assert_array_equal(again.feature_importance("gain"), booster.feature_importance("gain"))


def test_a_model_of_an_older_version_is_sound() -> None:
    _, card = files.read(Path(__file__).parents[2] / MODEL)
    assert card.names


@pytest.mark.parametrize(
    ("pattern", "put", "words"),
    [
        (r"left_child=\S+", "left_child=0", "no way leads to|circle"),
        (r"right_child=\S+", "right_child=99999", "no way leads to"),
        (r"split_feature=\S+", "split_feature=1000000", "input that is not there"),
        (r"num_leaves=\d+", "num_leaves=2000000000", "leaves"),
        (r"num_leaves=\d+", "num_leaves=-1", "leaves"),
        (r"num_cat=0", "num_cat=3", "categories"),
        (r"threshold=\S+ ", "threshold=", "numbers where"),
        (r"leaf_value=\S+", "leaf_value=nan", "not finite"),
        (r"max_feature_idx=\d+", "max_feature_idx=1000000", "is what fits"),
        (r"num_class=1", "num_class=999999", "is what fits"),
        (r"Tree=", "Three=", "trees"),
    ],
)
def test_what_is_not_is_refused_before_lightgbm_reads_it(
    booster: lightgbm.Booster, pattern: str, put: str, words: str
) -> None:
    text = booster.model_to_string()
    damaged = re.sub(pattern, put, text) if pattern == "Tree=" else re.sub(pattern, put, text, count=1)
    assert damaged != text
    with pytest.raises(ValueError, match=words):
        checked(damaged, 5)


def test_a_changed_number_anywhere_is_refused_or_read_and_never_ends_the_process() -> None:
    """In this process: a crash of the C++ reader would end the tests."""
    whole = json.loads(gzip.decompress((Path(__file__).parents[2] / MODEL).read_bytes()))
    text = whole["card"]["trees"][0]["booster"]
    inputs = len(whole["card"]["trees"][0]["inputs"]) + 3
    rng, refused = random.Random(3), 0
    numbers = list(re.finditer(r"-?\d+", text))
    for _ in range(200):
        place = rng.choice(numbers)
        put = str(rng.choice([-1, -(2**31), 2**31 - 1, 10**9, 0, 7, 255]))
        try:
            sound = checked(text[: place.start()] + put + text[place.end() :], inputs)
        except ValueError:
            refused += 1
        else:
            lightgbm.Booster(model_str=sound).predict(np.zeros((3, inputs)))
    assert 0 < refused < 200


def test_a_file_that_unpacks_to_more_than_a_model_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.clocks.json.gz"
    bomb.write_bytes(gzip.compress(bytes(200 << 20), 1))
    with pytest.raises(UsageError, match="unpacks to more than 64 MB"):
        files.read(bomb)
    bomb.write_bytes(bomb.read_bytes()[:1000])
    with pytest.raises(UsageError, match="damaged"):
        files.read(bomb)
