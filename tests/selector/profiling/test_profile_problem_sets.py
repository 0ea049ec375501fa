"""Which problems are measured."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from selector import InvalidHyperparameter, UnknownHyperparameter
from selector.workloads.sampling import grid, random_problems, typed

SPACES = registry.operator("lstm").spaces


@pytest.mark.parametrize("kind", SPACES)
def test_random_problems_are_different_repeatable_and_within_their_space(kind: str) -> None:
    problems = random_problems("lstm", kind, count=200, seed=1)
    assert len({problem.key for problem in problems}) == 200
    assert problems == random_problems("lstm", kind, count=200, seed=1)
    assert problems != random_problems("lstm", kind, count=200, seed=2)
    for problem in problems:
        assert registry.operator("lstm").work(problem).flops <= SPACES[kind].max_flops
        for name, (low, high) in SPACES[kind].sizes.items():
            assert low <= problem[name] <= high


@pytest.mark.parametrize("kind", SPACES)
def test_even_a_short_run_covers_modes_layers_and_odd_sizes(kind: str) -> None:
    problems = random_problems("lstm", kind, count=60, seed=1)
    assert problems == random_problems("lstm", kind, count=72, seed=1)[:60]
    for name, values in SPACES[kind].values.items():
        assert {str(problem[name]).lower() for problem in problems[:20]} == set(values)
    assert sum(problem["hidden"] % 2 for problem in problems) >= 10
    assert sum(problem["hidden"] & (problem["hidden"] - 1) == 0 for problem in problems) >= 20
    assert any(problem["input"] != problem["hidden"] for problem in problems)
    training = sum(problem["mode"] == "training" for problem in problems)
    assert 20 <= training <= 40


def test_given_values_stay_fixed_and_excluded_problems_stay_out() -> None:
    problems = random_problems(
        "lstm", "cpu", count=20, seed=1, fixed={"hidden_size": "32,48", "mode": "inference"}
    )
    assert {problem["hidden"] for problem in problems} == {32, 48}
    assert {problem["mode"] for problem in problems} == {"inference"}
    without = frozenset(problem.key for problem in problems[:5])
    others = random_problems("lstm", "cpu", count=20, seed=1, exclude=without)
    assert not without & {problem.key for problem in others}


def test_no_more_problems_than_there_are() -> None:
    words = {"bidirectional": "false", "batch_first": "false", "packed": "false", "dropout": "0"}
    fixed = {"hidden": "8", "batch": "1", "seq": "4", "layers": "1", "input": "8", **words}
    assert len(random_problems("lstm", "cpu", count=50, seed=1, fixed=fixed)) == 2  # the two modes


def test_a_space_without_problems_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidHyperparameter, match=r"65536.*without a count"):
        random_problems("lstm", "cpu", count=2, seed=1, fixed={"hidden": "65536"})


def test_a_grid_is_every_combination_once() -> None:
    problems = grid("lstm", {"hidden": "64,128,64", "batch_size": "8,16"})
    assert [(problem["hidden"], problem["batch"]) for problem in problems] == [
        (64, 8),
        (64, 16),
        (128, 8),
        (128, 16),
    ]


def test_bad_values_of_a_grid_are_named() -> None:
    with pytest.raises(InvalidHyperparameter, match="hidden='x'"):
        grid("lstm", {"hidden": "64,x", "batch": "8"})
    with pytest.raises(UnknownHyperparameter, match="hiden"):
        grid("lstm", {"hiden": "64"})


def test_typed_keeps_what_was_given_and_leaves_the_rest_to_be_assumed() -> None:
    assert typed("lstm", {"hidden_size": "64", "batch": "8", "bias": "false"}) == {
        "hidden": 64,
        "batch": 8,
        "bias": False,
    }
