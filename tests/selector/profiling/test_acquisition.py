"""Active sampling: the clear losers are left out, and few measurements give as good choices."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from kernel_selector.kernels import registry
from selector.profiling.acquisition.failures import FailureProbability
from selector.profiling.acquisition.gaussian_process import GaussianProcess, Inputs
from selector.profiling.acquisition.knowledge_gradient import by_failures, by_times
from selector.profiling.acquisition.sampler import Sampler

OPERATOR = registry.operator("gelu")
SIZES = [round(2 ** (10 + index / 4)) for index in range(60)]
PROBLEMS = [
    OPERATOR.problem(elements=size, mode=mode)
    for size, mode in itertools.product(SIZES, ("training", "inference"))
]
NAMES = ("flat", "steep", "middling", "hopeless")


def time_ms(problem, name: str) -> float:
    """Two that cross at 2^17 elements, one near both, one that is slow everywhere."""
    size = problem["elements"] / 2**17
    times = {"flat": 0.9 + 0.1 * size, "steep": 0.3 + 0.7 * size, "middling": 1.05 + 0.2 * size}
    return times.get(name, 5 + 5 * size)


def slowdown(sampler: Sampler) -> float:
    """Geometric mean over all problems."""
    chosen = sampler.choices()
    lost = [math.log(time_ms(one, chosen[one]) / min(time_ms(one, n) for n in NAMES)) for one in PROBLEMS]
    return math.exp(sum(lost) / len(lost))


def sampler(**options) -> Sampler:
    return Sampler(dict.fromkeys(PROBLEMS, NAMES), **options)


def active(one: Sampler, measurements: int) -> int:
    """Measure as it proposes, and say how many it took."""
    count = 0
    while count < measurements and (found := one.next(PROBLEMS)) is not None:
        problem, names = found
        for name in names:
            one.add(problem, name, time_ms(problem, name))
        count += len(names)
    return count


def test_a_quarter_of_random_samplings_measurements_gives_choices_as_good() -> None:
    at_random = sampler()
    for problem in random.Random(1).sample(PROBLEMS, 40):
        for name in NAMES:
            at_random.add(problem, name, time_ms(problem, name))
    chosen = sampler(seed=1)
    assert active(chosen, 40) <= 44
    assert slowdown(chosen) <= slowdown(at_random) + 0.002
    assert slowdown(chosen) < 1.01


def test_a_clear_loser_is_measured_on_few_problems_and_the_end_comes_by_itself() -> None:
    one = sampler()
    assert active(one, 10**6) < len(PROBLEMS) * len(NAMES)
    runs = [found for found in one.measured.values() if "hopeless" in found]
    assert len(runs) < len(PROBLEMS) / 4


def test_nothing_is_proposed_twice() -> None:
    one = sampler()
    seen: set[tuple[str, str]] = set()
    for _ in range(30):
        problem, names = one.next(PROBLEMS)
        assert not seen & {(problem.key, name) for name in names}
        seen |= {(problem.key, name) for name in names}


def test_the_same_seed_proposes_the_same() -> None:
    first, second = sampler(seed=3), sampler(seed=3)
    for _ in range(6):
        found = first.next(PROBLEMS)
        assert found == second.next(PROBLEMS)
        for one in (first, second):
            for name in found[1]:
                one.add(found[0], name, time_ms(found[0], name))


def test_who_failed_nearby_is_not_chosen() -> None:
    one = sampler()
    for problem in PROBLEMS[::9]:  # training and inference in turn
        for name in NAMES:
            failed = name == "steep" and problem["elements"] < 2**14
            one.add(problem, name, None if failed else time_ms(problem, name))
    chosen = one.choices()
    assert all(chosen[problem] != "steep" for problem in PROBLEMS if problem["elements"] < 2**13)


def test_who_cannot_run_is_neither_proposed_nor_chosen() -> None:
    one = Sampler({problem: NAMES if problem["mode"] == "training" else NAMES[1:3] for problem in PROBLEMS})
    for _ in range(20):
        problem, names = one.next(PROBLEMS)
        assert set(names) <= set(one.problems[problem])
        for name in names:
            one.add(problem, name, time_ms(problem, name))
    assert {one.choices()[problem] for problem in PROBLEMS if problem["mode"] == "inference"} <= {*NAMES[1:3]}


@pytest.mark.parametrize("measured", [0, 1])
def test_it_starts_from_nothing(measured: int) -> None:
    one = sampler()
    for name in NAMES[:measured]:
        one.add(PROBLEMS[0], name, 1.0)
    problem, names = one.next(PROBLEMS)
    assert problem in PROBLEMS
    assert names


def test_problems_may_be_read_before_their_operator_was_asked_for():
    """A hyperparameter that came later is missing at its default, which the operator alone knows."""
    attention = registry.operator("attention")
    given = {"batch": 2, "heads": 2, "seq": 8, "head_dim": 16, "dtype": "float32", "mode": "training"}
    values = [attention.problem({**given, "dropout": dropout}).values for dropout in (0.0, 0.1)]
    assert "dropout" not in dict(values[0])
    code = (
        "from kernel_selector.kernels.contract import Problem\n"
        "from selector.profiling.acquisition.gaussian_process import Inputs\n"
        f"problems = [Problem('attention', each) for each in {values!r}]\n"
        "print(len(Inputs.of(dict.fromkeys(problems, ['fused']), ['fused']).words))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "2\n", found.stderr


COORDINATES = Inputs.of(dict.fromkeys(PROBLEMS, NAMES), NAMES)


def pair(row: int, name: str) -> int:
    return row * len(NAMES) + NAMES.index(name)


def test_a_measurement_of_one_implementation_narrows_anothers_and_its_own_more() -> None:
    times = GaussianProcess(COORDINATES)
    before = times.variance.copy()
    times.learn([pair(3, "flat")], [1.0])
    left = times.variance / before
    assert left[pair(3, "steep")] < 0.5
    assert left[pair(3, "flat")] < left[pair(3, "steep")]
    assert left[pair(3, "flat")] < left[pair(50, "flat")]
    assert times.mean[pair(3, "steep")] > 0.5


def test_learning_one_after_the_other_is_learning_together() -> None:
    pairs, log_times = [pair(row, name) for row in (0, 40, 90) for name in NAMES], np.linspace(-1, 2, 12)
    together, apart = GaussianProcess(COORDINATES), GaussianProcess(COORDINATES)
    together.learn(pairs, log_times)
    for one, log_time in zip(pairs, log_times, strict=True):
        apart.learn([one], [log_time])
    np.testing.assert_allclose(apart.mean, together.mean, atol=1e-6)
    np.testing.assert_allclose(apart.variance, together.variance, atol=1e-6)
    np.testing.assert_allclose(together.mean[pairs], log_times, atol=0.3)


def test_what_a_measurement_moves_adds_up_to_what_it_narrows() -> None:
    times = GaussianProcess(COORDINATES)
    times.learn([pair(9, name) for name in NAMES], [1.0, 2.0, 3.0, 4.0])
    group, ones, others = (
        [pair(3, "flat"), pair(3, "steep")],
        np.array([pair(5, "flat")]),
        np.array([pair(5, "steep")]),
    )
    both = np.concatenate((ones, others))

    def spread() -> float:
        (first, between), (_, second) = times.covariance(both, both)
        return first + second - 2 * between

    moved, before = times.reductions([[pair(70, "flat")], group], ones, others), spread()
    for row, candidate in enumerate(group, start=1):
        times.learn([candidate], [0.0])
        np.testing.assert_allclose(moved[row, 0] ** 2, before - spread(), rtol=1e-6)


def test_rivals_of_a_problem_are_proposed_together() -> None:
    one = sampler()
    active(one, 12)
    counts = []
    for _ in range(6):
        problem, names = one.next(PROBLEMS)
        counts.append(len(names))
        for name in names:
            one.add(problem, name, time_ms(problem, name))
    assert max(counts) > 1


def test_where_all_failed_there_is_nothing_to_gain() -> None:
    one = sampler()
    for problem in PROBLEMS[:8]:
        for name in NAMES:
            one.add(problem, name, None)
    for problem in PROBLEMS[8::20]:
        for name in NAMES:
            one.add(problem, name, time_ms(problem, name))
    problem, names = one.next(PROBLEMS)
    assert problem not in PROBLEMS[:8]
    assert names


def test_the_gain_by_times_is_that_of_drawn_outcomes() -> None:
    behind, moved = np.array([0.2, 0.0, 3.0]), np.array([[0.3, 0.1, 0.2], [0.0, 0.4, 0.1]])
    drawn = np.random.default_rng(0).standard_normal(200_000)
    gained = np.maximum(drawn[:, None, None] * moved - behind, 0.0).mean(axis=0)
    np.testing.assert_allclose(by_times(behind, moved), gained, atol=2e-3)


def test_a_risk_is_worth_a_look_where_it_would_change_the_choice() -> None:
    costs = np.array([[1.0, 1.5], [1.0, 9.0], [3.0, 1.0]])  # the first column's candidate fails once in ten
    gains = by_failures(costs, np.array([0]), np.array([0.1]), np.full((1, 3), 1.8), np.full((1, 3), -0.2))
    np.testing.assert_allclose(gains, [[0.1 * (2.8 - 1.5), 0.0, 0.0]], atol=1e-12)


def test_failures_spread_to_problems_alike_in_words() -> None:
    failing = FailureProbability(COORDINATES)
    good = np.zeros((len(PROBLEMS), len(NAMES)), dtype=bool)
    bad = good.copy()
    bad[0, 0] = good[1, 0] = True  # training and inference of one size
    failing.learn(good, bad)
    far = len(PROBLEMS) // 4 * 2  # in training
    assert failing.chance[far, 0] > 3 * failing.chance[far + 1, 0]
    assert failing.chance[far, 0] > 3 * failing.chance[far, 1]
    if_bad, if_good = failing.after(np.array([far]), np.array([0]))
    expected = failing.chance[far, 0] * if_bad + (1 - failing.chance[far, 0]) * if_good
    assert abs(expected[0, far]) < 1e-12


def test_it_does_not_end_while_choices_may_gain() -> None:
    one = sampler()
    active(one, 10**6)
    assert slowdown(one) < 1.003
    assert {"flat", "steep", "middling"} <= {name for each in one.measured.values() for name in each}


def test_less_is_lost_on_the_way_than_with_random_problems() -> None:
    lost = {}
    for kind in ("random", "active"):
        lost[kind] = 0.0
        for seed in range(3):
            one = sampler(seed=seed)
            order = iter(random.Random(seed).sample(PROBLEMS, len(PROBLEMS)))
            for _ in range(8):
                if kind == "active":
                    active(one, 8)
                else:
                    for problem in itertools.islice(order, 2):
                        for name in NAMES:
                            one.add(problem, name, time_ms(problem, name))
                lost[kind] += math.log(slowdown(one))
    assert lost["active"] < 0.7 * lost["random"]
