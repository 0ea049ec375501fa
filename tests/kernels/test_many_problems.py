"""Many problems made at once are each what they are alone."""

from __future__ import annotations

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError

LSTM = registry.operator("lstm")

values = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 99), "hidden": st.integers(2, 99)},
    optional={
        "input": st.integers(1, 99),
        "dropout": st.floats(0, 1),
        "packed": st.booleans(),
        "mode": st.sampled_from(["training", "inference"]),
    },
)


def made_alone(given_values):
    try:
        return LSTM.problem(given_values)
    except SelectorError as error:
        return error


@given(st.lists(values, min_size=1, max_size=6), st.integers(0, 4))
def test_many_problems_are_each_what_they_are_alone(chosen, wrong):
    some = [{**one, "projection": one["hidden"] // 2} for one in chosen] + chosen
    some += [
        {"hidden": 8},  # nothing says how large the batch is
        {"hidden": True, "batch": 1},
        {"hidden": 8, "batch": 1, "hidden_size": 9},
        {"hidden": 8, "batch": 1, "projection": 8},
        {"hidden": 8, "batch": 1, "dtype": "fp16"},
        {"hiden": 8},
    ][: wrong + 2]
    for one, found in zip(some, LSTM.problem_each(some), strict=True):
        alone = made_alone(one)
        if isinstance(alone, SelectorError):
            assert (type(found), str(found)) == (type(alone), str(alone))
            continue
        assert found == alone
        assert hash(found) == hash(alone)
        assert (found.assumed, found.as_dict, found.row) == (alone.assumed, alone.as_dict, alone.row)
        assert [type(value) for value in found.row] == [type(value) for value in alone.row]
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == alone
        assert LSTM.makes(found)


def test_a_problem_from_a_file_has_all_values_that_its_operator_has_now():
    problem = LSTM.problem(hidden=8, batch=2, packed=True)
    stored = Problem("lstm", problem.values)
    assert stored.row == problem.row
    assert stored.complete == problem.complete


def test_zeros_of_both_signs_stay_apart():
    some = [{"hidden": 8, "batch": 1, "dropout": zero} for zero in (0.0, -0.0)]
    rows = [repr(problem.row) for problem in LSTM.problem_each(some)]
    assert rows == [repr(LSTM.problem(one).row) for one in some]
    assert len({*rows}) == 2
