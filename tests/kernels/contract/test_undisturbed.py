"""The time that choices go by: of the fastest runs, where all of them are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.kernels.contract import CorruptRecord, Timing
from kernel_selector.kernels.contract.timing import undisturbed
from kernel_selector.kernels.measure.timing import timing

TIMING = Timing(p20_ms=1.0, p50_ms=1.5, p80_ms=2.0, samples=3, raw_ms=(1.0, 1.5, 2.0))


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=60))
def test_the_undisturbed_time_is_at_most_the_20th_percentile(samples):
    found = timing(samples)
    assert min(found.raw_ms) <= found.undisturbed_ms * (1 + 1e-9)
    assert found.undisturbed_ms <= found.p20_ms * (1 + 1e-9)


def test_the_undisturbed_time_is_the_mean_of_the_fastest_fifth():
    assert undisturbed([9.0, 1.0, 8.0, 2.0, 7.0, 6.0, 5.0, 4.0, 3.0, 10.0]) == 1.5
    assert undisturbed([3.0, 2.0]) == 2.0
    for kept in ((), (0.5, 1.0)):  # of three
        assert replace(TIMING, raw_ms=kept).undisturbed_ms == TIMING.p20_ms


@pytest.mark.parametrize("raw_ms", [(0.0, 1.0), (-1.0,), (math.inf,), (math.nan, 1.0), (1.0, math.nan)])
def test_samples_that_cannot_be_are_refused(raw_ms):
    with pytest.raises(CorruptRecord, match="raw_ms"):
        replace(TIMING, raw_ms=raw_ms)
