"""The parts of `find_periods`, each compared with results that can be calculated on paper."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from workbench.errors import WorkbenchError
from workbench.periods.estimators import ranker
from workbench.periods.estimators.candidates import LevelBank, propose, refine, signal_views
from workbench.periods.estimators.correlation import key_maxima, parabola, pyramids
from workbench.periods.estimators.features import NAMES, describe
from workbench.periods.estimators.precise import precise
from workbench.periods.estimators.shapes import SHAPE_NAMES, shape_table
from workbench.periods.estimators.signals import on_grid, pauses, refresh_s


def sine(
    period_s: float = 2.0, seconds: float = 60.0, step_s: float = 0.1
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    time_s = np.arange(0, seconds, step_s)
    return time_s, {"power_w": 200 + 50 * np.sin(2 * np.pi * time_s / period_s)}


def test_the_nsdf_of_a_sine_is_a_cosine() -> None:
    time_s, columns = sine()
    signal = on_grid(time_s, columns).signals[0]
    level = pyramids(signal.values[None], signal.weights, 0.1, [10.0])[0][0]
    lags_s = np.arange(len(level.values)) * level.step_s
    assert np.abs(level.values - np.cos(np.pi * lags_s)).max() < 0.05
    assert level.near(2.0, 0.03) == pytest.approx((2.0, 1.0), abs=0.01)


def test_each_level_of_the_pyramid_has_half_the_window() -> None:
    time_s, columns = sine()
    signal = on_grid(time_s, columns).signals[0]
    windows = [level.window_s for level in pyramids(signal.values[None], signal.weights, 0.1, [6.0])[0]]
    assert windows == pytest.approx([60.0, 30.0, 15.0, 7.5], rel=0.02)


def test_gaps_take_no_part_in_a_correlation() -> None:
    time_s, columns = sine()
    kept = (time_s < 20) | (time_s > 33.3)
    grid = on_grid(time_s[kept], {"power_w": columns["power_w"][kept]})
    signal = grid.signals[0]
    assert signal.weights.min() == 0
    level = pyramids(signal.values[None], signal.weights, grid.step_s, [10.0])[0][0]
    assert level.near(2.0, 0.03)[1] == pytest.approx(1.0, abs=0.03)


def test_the_vertex_of_a_parabola_is_between_its_points() -> None:
    values = -((np.arange(7) - 3.3) ** 2)
    assert parabola(values, 3) == pytest.approx((3.3, 0.0), abs=1e-12)
    assert parabola(values, 0) == (0.0, values[0])


def test_a_reading_that_changes_every_fifth_poll_refreshes_every_fifth_poll() -> None:
    time_s = np.arange(0, 20, 0.02)
    assert refresh_s(time_s, np.floor(time_s / 0.1 + 1e-9)) == pytest.approx(0.1)
    signal = on_grid(time_s, {"power_w": np.sin(np.floor(time_s / 0.1 + 1e-9))}).signals[0]
    assert signal.shortest_s == pytest.approx(0.22)


def test_a_sine_is_proposed_and_refined_to_a_thousandth() -> None:
    grid = on_grid(*sine(2.013))
    (view,) = signal_views(grid.signals, grid.step_s)
    proposed = [one.period_s for one in propose(grid, [view])]
    nearest = min(proposed, key=lambda period_s: abs(period_s - 2.013))
    assert nearest == pytest.approx(2.013, rel=0.03)
    assert refine(view, nearest) == pytest.approx(2.013, rel=0.001)


def test_pauses_are_the_long_low_runs_not_the_short_ones() -> None:
    time_s = np.arange(0, 120, 0.1)
    inside = time_s % 30.0
    # 0.4 s of waiting in each 2 s; 4 s of checkpoint in 30
    power_w = np.where(inside > 26, 60.0, np.where(inside % 2.0 < 0.4, 100.0, 300.0))
    found = pauses(on_grid(time_s, {"power_w": power_w}).signals[0], 0.1)
    assert found is not None
    assert found.pause_s == pytest.approx(4.0, abs=0.5)
    assert found.piece_s == pytest.approx(26.0, abs=0.5)
    assert len(found.pieces) == 4


def test_key_maxima_are_the_first_highest_points_of_hills() -> None:
    """As one looks for them by hand, in rows of any lengths."""
    rng = np.random.default_rng(5)
    rows = [np.round(rng.normal(0, 1, size), 1) for size in (40, 17, 90)]
    rows += [np.ones(12), -np.ones(12), 1.5 + np.sin(np.arange(30.0)), np.array([1.0, 0.5, 0.2, 0.6, 0.6, 0.1])]
    last = np.array([len(row) - 3 for row in rows])
    found = [(n, k) for n, row in enumerate(rows) for k in key_maxima(row, 2, int(last[n])).tolist()]
    expected = []
    for number, row in enumerate(rows):
        values = row[: last[number] + 2].tolist()
        peaks = [k for k in range(1, len(values) - 1) if values[k - 1] <= values[k] > values[k + 1]]
        if min(values) <= 0:
            edges = [k for k in range(1, len(values)) if values[k - 1] <= 0 < values[k]]
            hills = [[k for k in range(edge, len(values)) if min(values[edge : k + 1]) > 0] for edge in edges]
            peaks = [max(hill, key=lambda k: (values[k], -k)) for hill in hills]
        expected += [(number, k) for k in peaks if 2 <= k <= last[number]]
    assert found == expected


def test_many_lags_are_looked_up_as_one_alone() -> None:
    rng = np.random.default_rng(5)
    time_s = np.arange(0, 90, 0.1)
    grid = on_grid(time_s, {name: rng.normal(0, 1, len(time_s)) for name in ("power_w", "utilisation")})
    views = signal_views(grid.signals, grid.step_s)
    bank = LevelBank(views)
    view, periods_s = np.array([0, 1, 1, 0]), np.array([0.7, 3.1, 12.0, 30.0])
    for wanted in (9, 14):
        number = bank.level_for(view, periods_s, wanted)
        values, highest = bank.at(number, periods_s[:, None]), bank.highest(number, periods_s[:, None])
        for k, (one, period_s) in enumerate(zip(view.tolist(), periods_s.tolist(), strict=True)):
            level = views[one].levels[views[one].level_for(period_s, wanted)]
            assert values[k, 0] == pytest.approx(level.at(period_s), nan_ok=True)
            low, high = level.near(period_s, 0.03)[1], level.values.max()
            assert np.isnan(low) if np.isnan(highest[k, 0]) else low - 0.2 < highest[k, 0] <= high


def test_shapes_of_many_periods_are_those_of_each() -> None:
    """Chunk by chunk, and bin by bin, of readings with a hole and bins that nothing falls into."""
    rng = np.random.default_rng(5)
    time_s = np.arange(0, 120, 0.1)
    time_s = time_s[(time_s < 50) | (time_s > 57)]
    noise = rng.normal(0, 0.01, (2, len(time_s)))
    grid = on_grid(time_s, {"power_w": np.sin(time_s) + noise[0], "utilisation": (time_s % 3 > 1) + noise[1]})
    assert grid.signals[0].weights.min() == 0
    periods_s = np.array([0.4, 3.0, 7.77, 40.0])
    together = shape_table(grid.signals, grid.step_s, periods_s)
    for k, period_s in enumerate(periods_s):
        alone = shape_table(grid.signals[1:], grid.step_s, np.array([period_s]))
        assert np.allclose(together[1, k], alone[0, 0], rtol=1e-9, atol=1e-9, equal_nan=True)
    explained, least = together[1, 1, :2]  # three seconds, which thirty of them repeat
    assert explained == pytest.approx(1.0, abs=0.05)
    assert least > 0.8
    low_share = together[1, 1, SHAPE_NAMES.index("low_share")]
    assert low_share == pytest.approx(1 / 3, abs=0.05)
    assert together[1, 1, SHAPE_NAMES.index("bumps")] == 1.0


def test_a_reading_that_stands_still_for_a_while_explains_nothing() -> None:
    """Rounding left some of its variance, or none, by chance."""
    time_s = np.arange(0, 120, 0.1)
    moving = np.where(time_s > 80, np.random.default_rng(5).normal(0, 0.1, len(time_s)), 0.0)
    for level in (0.1, 0.3, 0.7, 1.0):
        columns = {"power_w": np.sin(time_s), "utilisation": level + moving}
        table = shape_table(on_grid(time_s, columns).signals, 0.1, np.array([2.0, 5.0]))
        assert (table[1, :, SHAPE_NAMES.index("ev")] < 0.3).all()


def test_folding_gives_the_share_that_a_period_explains() -> None:
    grid = on_grid(*sine(2.0))
    assert precise(grid.signals[0], grid.step_s, 2.0).explained == pytest.approx(1.0, abs=0.02)
    assert precise(grid.signals[0], grid.step_s, 2.9).explained < 0.5


def test_a_period_that_is_a_little_off_is_put_right() -> None:
    grid = on_grid(*sine(2.0, 120.0))
    found = precise(grid.signals[0], grid.step_s, 2.02)
    assert found.period_s == pytest.approx(2.0, rel=5e-4)


def test_every_feature_has_a_name_and_none_knows_seconds() -> None:
    time_s, columns = sine(2.0, 80.0)
    slow_s, slow = describe(on_grid(time_s * 32, columns))
    fast_s, fast = describe(on_grid(time_s * 8, columns))
    assert fast.shape[1] == len(NAMES) == len(set(NAMES))
    assert slow_s == pytest.approx(4 * fast_s, rel=1e-6)  # a power of two: not a bit of rounding differs
    assert np.allclose(slow, fast, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_scores_are_shares_and_one_trace_gives_the_same_twice() -> None:
    periods_s, features = describe(on_grid(*sine()))
    roles = ranker.shipped()(periods_s, features)
    assert all(((shares >= 0) & (shares <= 1)).all() for shares in roles)
    assert (roles.any_role >= np.maximum(roles.iteration, roles.cycle)).all()  # what has a role is there
    again = ranker.shipped()(periods_s, features)
    assert (again.iteration == roles.iteration).all()


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"not a gzip file", "cannot be read"),
        (gzip.compress(b"{"), "cannot be read"),
        (gzip.compress(json.dumps({"features": ["other"]}).encode()), "for other features"),
    ],
    ids=["no gzip file", "no JSON", "other features"],
)
def test_a_damaged_or_foreign_model_file_is_refused_with_the_way_out(
    tmp_path, monkeypatch, content: bytes, shown: str
) -> None:
    (tmp_path / ranker.FILE).write_bytes(content)
    monkeypatch.setattr(ranker.resources, "files", lambda package: tmp_path)
    ranker.shipped.cache_clear()
    try:
        with pytest.raises(WorkbenchError, match=f"{shown}.*fit_period_ranker"):
            ranker.shipped()
    finally:
        ranker.shipped.cache_clear()


def test_a_model_file_predicts_the_same_with_and_without_the_record_of_its_making(tmp_path, monkeypatch) -> None:
    source = Path(ranker.__file__).with_name(ranker.FILE)
    stored = json.loads(gzip.decompress(source.read_bytes()))
    assert stored.pop("about")["command"].count("tools.fit_period_ranker")
    case = describe(on_grid(*sine()))
    expected = ranker.shipped()(*case)
    (tmp_path / ranker.FILE).write_bytes(gzip.compress(json.dumps(stored).encode()))
    monkeypatch.setattr(ranker.resources, "files", lambda package: tmp_path)
    ranker.shipped.cache_clear()
    try:
        assert np.array_equal(ranker.shipped()(*case), expected)
    finally:
        ranker.shipped.cache_clear()
