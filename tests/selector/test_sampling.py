"""Active sampling: the clear losers are left out, and few measurements give as good choices."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import pytest

from kernel_selector.kernels import registry
from selector.sampling import Sampler

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
    for problem in PROBLEMS[::10]:
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
        "from selector.sampling import Coordinates\n"
        f"print(len(Coordinates.of([Problem('attention', each) for each in {values!r}]).place))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "2\n", found.stderr
