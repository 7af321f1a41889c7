"""The known detectors of the period benchmark find true periods, and no others."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.signal import lombscargle

from benchmarks import period_peers


def wave(period_s: float, seconds: float = 60.0, seed: int = 1, noise_w: float = 3.0) -> pl.DataFrame:
    """A pulse of 30 % of each period, sampled about every 0.05 s."""
    rng = np.random.default_rng(seed)
    time_s = np.cumsum(rng.uniform(0.045, 0.055, int(seconds / 0.05)))
    busy = (time_s / period_s) % 1 < 0.3
    power_w = 100 + 100 * busy + rng.normal(0, noise_w, len(time_s))
    return pl.DataFrame(
        {"time_s": time_s, "power_w": power_w, "utilisation": busy * 1.0, "memory_utilisation": busy * 0.5}
    )


@pytest.mark.parametrize("name", ["fft", "acf", "nsdf", "yin", "lomb_scargle", "autoperiod", "odpp"])
@pytest.mark.parametrize("period_s", [0.9, 3.7])
def test_a_peer_finds_a_clear_period(name: str, period_s: float) -> None:
    found = period_peers.detectors()[name](wave(period_s))
    assert found.sure
    assert found.iteration is not None
    assert found.iteration.period_s == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize("name", ["fft", "acf", "nsdf", "yin", "lomb_scargle", "autoperiod", "odpp"])
def test_a_peer_has_no_answer_to_a_constant_or_a_few_samples(name: str) -> None:
    detect = period_peers.detectors()[name]
    flat = wave(1.0).with_columns(pl.lit(70.0).alias("power_w"))
    assert not detect(flat).sure
    assert not detect(wave(1.0).head(10)).sure


@pytest.mark.parametrize("name", ["acf", "nsdf", "yin", "lomb_scargle", "autoperiod"])
def test_a_peer_with_a_test_refuses_white_noise(name: str) -> None:
    noise = wave(1.0).with_columns(pl.Series("power_w", 100 + np.random.default_rng(3).normal(0, 5, 1200)))
    assert not period_peers.detectors()[name](noise).sure


def test_the_fast_periodogram_is_scipys() -> None:
    rng = np.random.default_rng(5)
    time_s = np.sort(rng.uniform(0, 40, 500))
    time_s -= time_s[0]
    y = np.sin(2 * np.pi * time_s / 1.7) + rng.normal(0, 0.5, 500)
    y -= y.mean()
    frequencies, power = period_peers.fast_lomb_scargle(time_s, y, highest_hz=5.0)
    exact = lombscargle(time_s, y, 2 * np.pi * frequencies, normalize=True)
    assert np.abs(power - exact).max() < 0.003
    assert 1 / frequencies[np.argmax(power)] == pytest.approx(1.7, rel=0.01)
