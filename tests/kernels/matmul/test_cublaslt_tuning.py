"""Which of cuBLASLt's algorithms is taken, on a twin of the library with a clock of its own."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.nn.functional import gelu

from kernel_selector.kernels.matmul import cublaslt
from kernel_selector.kernels.matmul.cublaslt import CALLS, ROUNDS, WORKSPACE_BYTES, Then, aux_of, multiply

SLOPES = [Then.RELU_SLOPE | Then.AUX, Then.GELU_TANH_SLOPE | Then.AUX]
OTHERS = [
    *(Then.NOTHING, Then.BIAS, Then.RELU, Then.GELU_TANH),
    *(Then.RELU | Then.BIAS | Then.AUX, Then.GELU_TANH | Then.BIAS | Then.AUX),
]
TRIED = 1 + ROUNDS * CALLS  # times, once to load it


@pytest.fixture
def timed(lt):
    """The twin with eight algorithms."""
    lt.algorithms = [(0, 0)] * 8
    return lt


def pair(m=4, k=8, n=8):
    return torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()


def given_to(then, m=4):
    """What `multiply` takes for an epilogue."""
    a, b = pair(m)
    aux = aux_of(m, 8, a, bits=bool(then & (Then.RELU | Then.RELU_SLOPE))) if then & Then.AUX else None
    if then & (Then.RELU_SLOPE | Then.GELU_TANH_SLOPE):
        aux.fill_(1)
    bias = torch.randn(8).bfloat16() if then & Then.BIAS else None
    return {"a": a, "b": b, "then": then, "bias": bias, "aux": aux}


def slope(m=4):
    return given_to(SLOPES[1], m)


def taken_by(twin, given):
    """The algorithm of a call, after whatever is tried for it."""
    multiply(**given)
    assert twin.complaints == []
    return twin.taken[-1]


@pytest.mark.parametrize("then", OTHERS, ids=repr)
def test_plain_products_and_activations_take_the_first_untimed(timed, then):
    timed.milliseconds = {0: 9.0}
    given = given_to(then)
    for _ in range(2):
        multiply(**given)
    assert timed.taken == [0, 0]
    assert [one["rows"] for one in timed.asked] == [4]
    assert timed.complaints == []


@pytest.mark.parametrize("then", SLOPES, ids=repr)
def test_of_slopes_the_fastest_is_taken_and_kept(timed, then):
    timed.milliseconds = {0: 1.0, 3: 0.9, 5: 0.8}
    given = given_to(then)
    assert taken_by(timed, given) == 5
    timed.milliseconds, timed.taken[:] = {}, []
    assert taken_by(timed, given) == 5
    assert timed.taken == [5]


@pytest.mark.parametrize(("milliseconds", "place"), [(0.99, 0), (0.945, 0), (0.935, 4), (0.5, 4)])
def test_an_algorithm_that_is_hardly_faster_is_not_taken(timed, milliseconds, place):
    timed.milliseconds[4] = milliseconds
    assert taken_by(timed, slope()) == place


@pytest.mark.parametrize(("m", "rows"), [(4, [4, 2, 1]), (5, [5, 3, 2]), (1, [1, 1, 1])])
@pytest.mark.parametrize("stored", ["in rows", "in columns"])
def test_slopes_ask_for_all_half_and_a_quarter_of_the_rows(timed, stored, m, rows):
    given = slope(m)
    if stored == "in columns":
        given["a"] = given["a"].t().contiguous().t()
    multiply(**given)
    assert [one["rows"] for one in timed.asked] == rows
    assert timed.complaints == []


@pytest.mark.parametrize("rows", [2, 1])
def test_the_fastest_may_be_one_that_is_named_for_fewer_rows_alone(timed, rows):
    timed.named = {4: [0], 2: [1], 1: [2], rows: [6]}
    timed.milliseconds = {6: 0.5}
    given = slope()
    assert taken_by(timed, given) == 6
    x = given["aux"].double().requires_grad_()
    (of_gelu,) = torch.autograd.grad(gelu(x, approximate="tanh").sum(), x)
    z = given["a"].double() @ given["b"].double()
    assert torch.equal(multiply(**given), (z * of_gelu).bfloat16())


def test_the_first_is_the_one_that_is_named_first_for_all_rows(timed):
    timed.named = {4: [3, 2], 2: [0], 1: [1]}
    assert taken_by(timed, slope()) == 3


def test_algorithms_for_fewer_rows_do_where_none_is_named_for_all(timed):
    timed.named = {4: [], 2: [5], 1: []}
    assert taken_by(timed, slope()) == 5


def test_one_that_several_queries_name_is_timed_once(timed):
    timed.named = {4: [0, 3], 2: [3, 0, 4], 1: [4, 3]}
    assert taken_by(timed, slope()) == 0
    assert Counter(timed.taken[:-1]) == {0: TRIED, 3: TRIED, 4: TRIED}


def test_one_that_is_no_good_for_the_whole_product_is_not_run(timed):
    timed.named = {4: [0, 1], 2: [6], 1: [7]}
    timed.milliseconds, timed.refused = {1: 0.8, 6: 0.5}, {6}
    assert taken_by(timed, slope()) == 1
    assert set(timed.taken) == {0, 1, 7}


def test_one_that_needs_too_much_for_the_whole_product_is_not_run(timed):
    timed.named = {4: [0, 1], 2: [6], 1: [7]}
    timed.milliseconds = {1: 0.8, 6: 0.5, 7: 0.6}
    timed.needed = {6: WORKSPACE_BYTES + 1, 7: WORKSPACE_BYTES}
    assert taken_by(timed, slope()) == 7
    assert set(timed.taken) == {0, 1, 7}


def test_the_workspace_is_what_the_whole_product_needs(timed):
    timed.algorithms = [(64, 0)] * 8
    timed.needed = {place: 1024 * place for place in range(8)}
    timed.milliseconds = {3: 0.5}
    assert taken_by(timed, slope()) == 3


@pytest.mark.parametrize("then", [*OTHERS, *SLOPES], ids=repr)
def test_a_first_one_that_is_no_good_is_passed_over(timed, then):
    timed.refused, timed.needed = {0}, {1: WORKSPACE_BYTES + 1}
    assert taken_by(timed, given_to(then)) == 2
    assert not {0, 1} & set(timed.taken)


@pytest.mark.parametrize("then", [Then.NOTHING, SLOPES[0]], ids=repr)
def test_without_a_good_one_the_error_names_the_product(timed, then):
    timed.refused = set(range(8))
    with pytest.raises(RuntimeError, match=r"no algorithm for \[4, 8\] by \[8, 8\] in torch\.bfloat16"):
        multiply(**given_to(then))
    assert timed.taken == []


def test_an_only_algorithm_is_not_timed(timed):
    timed.algorithms = [(0, 0)]
    given = slope()
    for _ in range(2):
        multiply(**given)
    assert timed.taken == [0, 0]
    assert len(timed.asked) == 3


def test_no_more_than_the_candidates_of_a_query_are_tried(timed):
    timed.algorithms = [(0, 0)] * (cublaslt.CANDIDATES + 5)
    multiply(**slope())
    assert set(timed.taken) == set(range(cublaslt.CANDIDATES))


def test_under_capture_the_first_is_taken_and_the_next_call_outside_tunes(timed):
    timed.milliseconds = {5: 0.5}
    given = slope()
    timed.capturing = True
    for _ in range(2):
        multiply(**given)
    assert timed.taken == [0, 0]
    timed.capturing = False
    assert taken_by(timed, given) == 5
    timed.capturing = True
    assert taken_by(timed, given) == 5


def test_under_capture_plain_products_and_only_algorithms_are_asked_for_once(timed):
    timed.capturing = True
    plain, only = given_to(Then.NOTHING), slope()
    for _ in range(2):
        multiply(**plain)
    assert len(timed.asked) == 1
    timed.algorithms = [(0, 0)]
    for _ in range(2):
        multiply(**only)
    assert len(timed.asked) == 1 + 3


def test_plans_are_found_again_by_equal_sizes(timed, monkeypatch):
    monkeypatch.setattr(cublaslt, "ALIGNED", 16)  # of which the CPU's memory is, unlike a GPU's, no more
    a, b = pair()
    multiply(a, b)
    for _ in range(3):
        multiply(torch.randn_like(a), torch.randn_like(b))
    assert len(cublaslt._plans) == len(timed.asked) == 1


def test_plans_are_others_for_what_the_algorithm_depends_on(timed):
    room = torch.randn(8, 64).bfloat16()
    a, b, bias = room[:4, :8], room[:, 16:24], torch.randn(8).bfloat16()
    cases = [
        {"a": a},
        {"a": room[:3, :8]},
        {"a": room[:4, 1:9]},  # at another alignment
        {"a": room.view(4, 128)[:, :8]},  # of other strides
        {"a": a.half(), "b": b.half()},
        {"a": a, "then": Then.RELU},
        {"a": a, "then": Then.BIAS, "bias": bias},
    ]
    for count, case in enumerate(cases, 1):
        for _ in range(2):
            multiply(**{"b": b, **case})
        assert len(cublaslt._plans) == len(timed.asked) == count
