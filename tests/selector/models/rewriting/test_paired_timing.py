"""Which of two is faster is decided beyond noise, soon where it is clear, and within the time allowed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from selector.models.rewriting.paired_timing import Limits, Outcome, chained, outcome, time_pairs


class Machine:
    """A clock, and steps that move it: noisy, now and then three times as long, slower and slower."""

    def __init__(self, seed: int, *, noise: float, drift: float = 0.0, between_s: float = 0.0) -> None:
        self.draw, self.noise, self.drift, self.between_s = random.Random(seed), noise, drift, between_s
        self.now_s, self.steps = 0.0, 0

    def turn(self, ms: float) -> Callable[[int], Sequence[float]]:
        return lambda count: [self._step(ms) for _ in range(count)]

    def _step(self, ms: float) -> float:
        took = ms * math.exp(self.draw.gauss(0, self.noise)) * (1 + self.drift * self.steps)
        took *= 3 if self.noise and self.draw.random() < 0.03 else 1
        self.now_s += took / 1e3 + self.between_s
        self.steps += 1
        return took

    def time_pairs(self, before_ms: float, after_ms: float, **limits: float) -> Outcome:
        return time_pairs(
            self.turn(before_ms),
            self.turn(after_ms),
            Limits(**limits),  # type: ignore[arg-type]
            clock=lambda: self.now_s,
        )


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("step_ms", [1.0, 50.0, 800.0])
def test_equals_are_hardly_ever_taken_for_faster(step_ms: float, noise: float) -> None:
    kept = sum(Machine(seed, noise=noise).time_pairs(step_ms, step_ms).faster for seed in range(100))
    assert kept <= 4


@pytest.mark.parametrize("after", [1.03, 1.2, 2.0])
def test_what_is_slower_is_never_taken_for_faster(after: float) -> None:
    for seed in range(50):
        assert not Machine(seed, noise=0.05).time_pairs(20.0, 20.0 * after).faster


@pytest.mark.parametrize("step_ms", [1.0, 20.0, 100.0])
@pytest.mark.parametrize(("after", "noise"), [(0.5, 0.05), (0.8, 0.03), (0.95, 0.01)])
def test_what_is_faster_is_found_soon(step_ms: float, after: float, noise: float) -> None:
    machines = [Machine(seed, noise=noise) for seed in range(40)]
    found = [one.time_pairs(step_ms, after * step_ms) for one in machines]
    assert sum(one.faster for one in found) >= 39
    assert sum(one.low <= after <= one.high for one in found) >= 37
    assert sorted(one.now_s for one in machines)[20] < max(1.0, 30 * step_ms / 1e3)


def test_a_machine_that_slows_down_slows_both() -> None:
    assert not Machine(0, noise=0.001, drift=0.002).time_pairs(5.0, 5.0).faster
    assert not Machine(0, noise=0.001, drift=0.002).time_pairs(5.0, 5.0).slower


def test_the_least_and_the_most_that_is_timed() -> None:
    machine = Machine(0, noise=0.0)
    assert machine.time_pairs(100.0, 50.0).pairs == 10  # ten steps of each, however clear it is
    assert Machine(0, noise=0.0).time_pairs(1.0, 0.5).pairs == 3  # of ten steps
    noisy = Machine(1, noise=0.3)
    noisy.time_pairs(5.0, 5.0, seconds=4.0)
    assert 4.0 < noisy.now_s < 6.0
    long = Machine(0, noise=0.0)
    assert long.time_pairs(20_000.0, 10_000.0).pairs == 3
    assert long.now_s < 150.0
    within = Machine(0, noise=0.3)
    within.time_pairs(1_000.0, 1_000.0)
    assert within.steps >= 2 * 10


def test_a_first_step_that_compiles_does_not_count() -> None:
    machine, calls = Machine(0, noise=0.01), []

    def compiled(count: int) -> Sequence[float]:
        took = machine.turn(5.0)(count)
        calls.append(count)
        return [2_500.0, *took[1:]] if len(calls) == 1 else took

    found = time_pairs(machine.turn(10.0), compiled, Limits(), clock=lambda: machine.now_s)
    assert found.faster
    assert found.after_ms == pytest.approx(5.0, rel=0.05)


def test_intervals_are_those_of_the_sign_test_and_of_students_distribution() -> None:
    ten = outcome([(1.0, 1 + number / 100) for number in range(10)])
    assert (ten.low, ten.high) == (pytest.approx(1.0), pytest.approx(1.09))  # of ten none is left out
    eleven = outcome([(1.0, 1 + number / 100) for number in range(11)])
    assert (eleven.low, eleven.high) == (pytest.approx(1.01), pytest.approx(1.09))
    three = outcome([(1.0, math.exp(log)) for log in (-0.1, 0.0, 0.1)])
    assert math.log(three.high) == pytest.approx(6.965 * 0.1 / math.sqrt(3))
    assert three.ratio == pytest.approx(1.0)


def test_two_comparisons_in_a_row_are_one_with_an_interval_for_both() -> None:
    first, second = (
        Outcome(before_ms=10.0, after_ms=8.0, ratio=0.8, low=0.7, high=0.9, pairs=9),
        Outcome(before_ms=7.0, after_ms=3.5, ratio=0.5, low=0.4, high=0.6, pairs=7),
    )
    found = chained(first, second)
    assert (found.before_ms, found.after_ms, found.pairs) == (10.0, 3.5, 7)
    assert (found.ratio, found.low, found.high) == pytest.approx((0.4, 0.28, 0.54))


def test_what_a_turn_raises_is_raised() -> None:
    def broken(_count: int) -> Sequence[float]:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        time_pairs(Machine(0, noise=0).turn(1.0), broken, Limits())
