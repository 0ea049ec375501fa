"""Plain data: hyperparameters are validated, and equal problems have one key."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    AmbiguousHyperparameter,
    CorruptRecord,
    InvalidHyperparameter,
    Problem,
    SelectorError,
    UnknownHyperparameter,
)
from kernel_selector.kernels.contract.errors import shorten

LSTM = registry.operator("lstm")
ALIASES = {alias: spec.name for spec in LSTM.hyperparameters for alias in spec.aliases}

values = st.fixed_dictionaries(
    {"hidden": st.integers(1, 65536), "batch": st.integers(1, 2**20)},
    optional={
        "input": st.integers(1, 65536),
        "seq": st.integers(1, 2**24),
        "layers": st.integers(1, 64),
        "bidirectional": st.booleans(),
        "bias": st.booleans(),
        "dropout": st.floats(0, 1),
        "packed": st.booleans(),
        "peepholes": st.booleans(),
        "dtype": st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
        "mode": st.sampled_from(["training", "inference"]),
    },
)


@given(values, st.randoms())
def test_order_and_aliases_do_not_matter(chosen, random):
    names = list(chosen)
    random.shuffle(names)
    renamed = {}
    for name in names:
        long = [alias for alias, short in ALIASES.items() if short == name]
        renamed[random.choice([name, *long])] = chosen[name]
    one, other = LSTM.problem(chosen), LSTM.problem(**renamed)
    assert one == other
    assert one.key == other.key
    assert hash(one) == hash(other)


@given(values)
def test_text_and_explicit_defaults_give_the_same_problem(chosen):
    problem = LSTM.problem(chosen)
    text = {name: str(value) for name, value in problem.as_dict.items()}
    again = LSTM.problem_from_text(text)
    assert again == problem == LSTM.problem(problem.as_dict)
    assert again.assumed == ()
    assert set(problem.assumed) == set(problem.as_dict) - set(chosen)
    assert list(problem.as_dict) == [
        spec.name for spec in LSTM.hyperparameters if not spec.implied or problem[spec.name] != spec.default
    ]
    assert LSTM.makes(problem)
    assert str(problem) == problem.key


@given(values, values)
def test_keys_are_equal_only_for_equal_problems(one, other):
    one, other = LSTM.problem(one), LSTM.problem(other)
    assert (one.key == other.key) == (one == other)


@pytest.mark.parametrize("value", [0, -1, 1.5, "512", True, 10**12, None, [1], math.nan, b"1"])
@pytest.mark.parametrize("name", ["hidden", "hidden_size"])
def test_a_wrong_whole_number_is_refused_by_name(name, value):
    with pytest.raises(InvalidHyperparameter) as error:
        LSTM.problem({name: value, "batch": 1})
    message = str(error.value)
    assert f"hidden={value!r}" in message
    assert "a whole number from 1 to 65536" in message


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "True", "1000000000000"])
def test_a_wrong_whole_number_is_refused_as_text(text):
    with pytest.raises(InvalidHyperparameter, match="hidden="):
        LSTM.problem_from_text({"hidden": text, "batch": "1"})


@pytest.mark.parametrize("value", [0, 1, "true", None, 1.0])
def test_a_wrong_boolean_is_refused(value):
    with pytest.raises(InvalidHyperparameter, match=r"bias=.*expected True or False"):
        LSTM.problem(hidden=1, batch=1, bias=value)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_of_numpy_are_those_of_python(kind):
    given = {"hidden": np.int64(512), "batch": np.uint8(4), "bias": np.bool_(True), "dropout": kind(0.1)}
    problem = LSTM.problem(given)
    assert problem == LSTM.problem(hidden=512, batch=4, bias=True, dropout=0.1)
    assert {type(value).__module__ for _, value in problem.values} == {"builtins"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden", np.float32(512)),
        ("hidden", np.bool_(True)),
        ("bias", np.int64(1)),
        ("bias", np.array([True])),
        ("dropout", np.bool_(True)),
        ("dropout", np.float32("nan")),
        ("dropout", np.str_("0.1")),
        ("dropout", np.complex64(0.1)),
    ],
)
def test_other_kinds_of_numpy_are_refused_as_pythons_are(name, value):
    with pytest.raises(InvalidHyperparameter, match=f"{name}="):
        LSTM.problem({"hidden": 512, "batch": 4, name: value})


def test_a_boolean_as_text():
    assert LSTM.problem_from_text({"hidden": "1", "batch": "1", "bias": "No"})["bias"] is False
    with pytest.raises(InvalidHyperparameter, match="bias='maybe'"):
        LSTM.problem_from_text({"hidden": "1", "batch": "1", "bias": "maybe"})


@pytest.mark.parametrize("value", ["float8", 32, None, True, torch.int64, ""])
def test_an_unknown_dtype_is_refused_with_the_choices(value):
    with pytest.raises(InvalidHyperparameter, match="expected one of float64, float32, float16, bfloat16"):
        LSTM.problem(hidden=1, batch=1, dtype=value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("bf16", "bfloat16"), ("half", "float16"), (torch.float32, "float32"), (torch.bfloat16, "bfloat16")],
)
def test_other_spellings_of_a_dtype(value, expected):
    assert LSTM.problem(hidden=1, batch=1, dtype=value)["dtype"] == expected


def test_an_unknown_hyperparameter_is_never_ignored():
    with pytest.raises(UnknownHyperparameter, match=r"no hyperparameter 'hiden'.*Did you mean 'hidden'"):
        LSTM.problem(hiden=3, batch=1)


def test_an_implied_hyperparameter_is_said_where_it_differs_from_its_default():
    plain = LSTM.problem(hidden=3, batch=1)
    said = LSTM.problem(hidden=3, batch=1, dropout=0, packed=False, proj_size=0)
    assert said == plain
    assert said.key == plain.key
    assert "dropout" not in plain.as_dict
    assert (plain["dropout"], plain.packed, plain["projection"]) == (0.0, False, 0)
    other = LSTM.problem(hidden=3, batch=1, dropout=1, packed=True)
    assert "dropout=1.0 packed=true dtype" in other.key
    assert LSTM.makes(plain)
    assert not LSTM.makes(Problem("lstm", (*plain.values[:-2], ("dropout", 0.0), *plain.values[-2:])))
    with pytest.raises(KeyError):
        plain["nothing"]


def test_problems_are_copied_and_pickled() -> None:
    problem = LSTM.problem(hidden=3, batch=1)
    for twin in (copy.copy(problem), copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert twin == problem
        assert twin.hidden == 3


def test_a_stored_problem_from_before_a_hyperparameter_answers_for_it():
    stored = Problem("lstm", tuple(LSTM.problem(hidden=3, batch=1).values))
    assert stored["peepholes"] is False
    made = LSTM.problem(hidden=3, batch=1, peepholes=False)
    assert stored == made
    assert (stored.row, stored.complete) == (made.row, made.complete)


def test_a_problem_that_was_read_before_its_operator_is_known_is_completed_later():
    code = """
from kernel_selector.kernels.contract import Problem
problem = Problem("lstm", (("hidden", 3),))
assert (problem["hidden"], "peepholes" in problem) == (3, False)
from kernel_selector.kernels import registry
registry.operator("lstm")
assert (problem["hidden"], problem["peepholes"], problem.peepholes) == (3, False, False)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True, None, math.nan, math.inf, [0.5]])
def test_a_wrong_number_is_refused(value):
    with pytest.raises(InvalidHyperparameter, match=r"dropout=.*expected a number from 0 to 1"):
        LSTM.problem(hidden=1, batch=1, dropout=value)


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("1", 1.0), ("1e-1", 0.1)])
def test_a_number_as_text(text, value):
    assert LSTM.problem_from_text({"hidden": "1", "batch": "1", "dropout": text})["dropout"] == value
    with pytest.raises(InvalidHyperparameter, match="dropout='much'"):
        LSTM.problem_from_text({"hidden": "1", "batch": "1", "dropout": "much"})


def test_values_that_do_not_fit_together_are_refused():
    with pytest.raises(InvalidHyperparameter, match="projection=3: expected fewer features than hidden=3"):
        LSTM.problem(hidden=3, batch=1, projection=3)
    stored = LSTM.problem(hidden=4, batch=1, projection=3)
    assert LSTM.makes(stored)
    values = tuple((name, 2 if name == "hidden" else value) for name, value in stored.values)
    assert not LSTM.makes(Problem("lstm", values))


def test_a_missing_hyperparameter_is_named():
    with pytest.raises(InvalidHyperparameter, match="lstm needs batch"):
        LSTM.problem(hidden=3)


def test_contradictory_aliases_are_refused_and_equal_ones_taken():
    with pytest.raises(AmbiguousHyperparameter, match="hidden=3 and hidden_size=4"):
        LSTM.problem(hidden=3, hidden_size=4, batch=1)
    assert LSTM.problem(hidden=3, hidden_size=3, batch=1)["hidden"] == 3


def test_every_refusal_is_one_of_our_errors():
    for error in (InvalidHyperparameter, UnknownHyperparameter, AmbiguousHyperparameter, CorruptRecord):
        assert issubclass(error, SelectorError)


def test_a_default_follows_another_hyperparameter():
    problem = LSTM.problem(hidden=48, batch=1)
    assert problem["input"] == problem.input == 48
    with pytest.raises(AttributeError, match="no hyperparameter 'heads'"):
        _ = problem.heads
    assert json.loads(json.dumps(LSTM.describe()))["default_implementation"] == "torch_lstm"


def test_problems_are_plain_data():
    problem = LSTM.problem(hidden=8, batch=2)
    assert isinstance(problem, Problem)
    assert problem.key.startswith("lstm hidden=8 input=8 batch=2 seq=50")
    assert "bias=true" in problem.key


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"hidden": 10**5000}, "hidden=1000000000"),
        ({"hidden": -(10**5000)}, "(5001 digits)"),
        ({"hidden": [10**5000]}, "hidden=a list"),
        ({"hidden": "9" * 5000}, "(5000 characters)"),
        ({"hidden": 8, "hidden_size": 10**5000}, "(5001 digits)"),
        ({"dtype": 10**5000}, "dtype=1000000000"),
        ({"dtype": [10**5000]}, "dtype=a list"),
        ({"dtype": "x" * 5000}, "(5000 characters)"),
        ({"x" * 5000: "y" * 5000}, "(5000 characters)"),
        ({10**5000: 1}, "(5001 digits)"),
    ],
)
def test_a_long_value_is_refused_without_being_repeated(given, shown):
    with pytest.raises(SelectorError) as error:
        LSTM.problem({"hidden": 8, "batch": 2, **given})
    assert shown in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (512, "512"),
        (True, "True"),
        ("fp33", "'fp33'"),
        (1.5, "1.5"),
        (10**59, "1" + "0" * 59),
        (10**60, "1" + "0" * 29 + "…0 (61 digits)"),
        ("a" * 61, "'" + "a" * 29 + "…' (61 characters)"),
    ],
)
def test_values_are_shown_whole_unless_they_are_long(value, shown):
    assert shorten(value) == shown


def test_a_problem_says_which_hyperparameters_it_has():
    problem = LSTM.problem(hidden=48, batch=1)
    assert "hidden" in problem
    assert all(spec.name in problem for spec in LSTM.hyperparameters)  # implied ones answer, too
    assert "heads" not in problem
    assert 0 not in problem
