"""Which of cuBLASLt's algorithms is taken, on a twin of the library with a clock of its own."""

from __future__ import annotations

import pytest
import torch

from kernel_selector.kernels.matmul import cublaslt
from kernel_selector.kernels.matmul.cublaslt import CALLS, FINALISTS, ROUNDS, Then, multiply


@pytest.fixture
def timed(lt, monkeypatch):
    """The twin with eight algorithms, and no product too small to be timed."""
    monkeypatch.setattr(cublaslt, "LEAST_OPERATIONS", 0.0)
    lt.algorithms = [(0, 0)] * 8
    return lt


def pair(m=4, k=8, n=8):
    return torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()


def taken_by(twin, *args, **kwargs):
    """The algorithm of a call, after whatever is tried for it."""
    multiply(*args, **kwargs)
    return twin.taken[-1]


def test_the_fastest_is_taken_and_kept(timed):
    timed.milliseconds = {0: 1.0, 3: 0.9, 5: 0.8}
    given = pair()
    assert taken_by(timed, *given) == 5
    timed.milliseconds, timed.taken[:] = {}, []
    assert taken_by(timed, *given) == 5
    assert timed.taken == [5]


@pytest.mark.parametrize(("milliseconds", "place"), [(0.99, 0), (0.981, 0), (0.979, 4), (0.5, 4)])
def test_an_algorithm_that_is_hardly_faster_is_not_taken(timed, milliseconds, place):
    timed.milliseconds[4] = milliseconds
    assert taken_by(timed, *pair()) == place


def test_the_first_is_among_the_finalists_however_slow_it_seems(timed):
    timed.milliseconds = {0: 9.0}
    multiply(*pair())
    assert timed.taken.count(0) == 2 + ROUNDS * CALLS


def test_only_the_fastest_of_a_first_look_run_in_rounds(timed):
    timed.algorithms = [(0, 0)] * 20
    timed.milliseconds = {place: 2.0 - place / 100 for place in range(20)}
    assert taken_by(timed, *pair()) == 19
    counts = {place: timed.taken.count(place) for place in range(20)}
    finalists = [place for place, count in counts.items() if count > 2]
    assert finalists == [0, *range(20 - FINALISTS + 1, 20)]
    assert {counts[place] for place in finalists[:-1]} == {2 + ROUNDS * CALLS}
    assert len(timed.taken) == 2 * 20 + FINALISTS * ROUNDS * CALLS + 1


def test_an_only_algorithm_wins(timed):
    timed.algorithms = [(0, 0)]
    assert taken_by(timed, *pair()) == 0


def test_no_more_than_the_candidates_are_tried(timed):
    timed.algorithms = [(0, 0)] * (cublaslt.CANDIDATES + 5)
    multiply(*pair())
    assert set(timed.taken) == set(range(cublaslt.CANDIDATES))


def test_small_products_take_the_first_untimed(lt):
    lt.milliseconds = {0: 9.0}
    given = pair()
    for _ in range(2):
        multiply(*given)
    assert lt.taken == [0, 0]
    assert len(lt.asked) == 1


def test_products_of_the_least_operations_are_timed(lt, monkeypatch):
    monkeypatch.setattr(cublaslt, "LEAST_OPERATIONS", 2.0 * 4 * 8 * 8)
    lt.milliseconds = {0: 9.0}
    assert taken_by(lt, *pair(m=3)) == 0
    assert taken_by(lt, *pair(m=4)) == 1


def test_under_capture_the_first_is_taken_and_the_next_call_outside_tunes(timed):
    timed.milliseconds = {5: 0.5}
    given = pair()
    timed.capturing = True
    for _ in range(2):
        multiply(*given)
    assert timed.taken == [0, 0]
    timed.capturing = False
    assert taken_by(timed, *given) == 5
    timed.capturing = True
    assert taken_by(timed, *given) == 5


def test_results_are_right_after_trials_with_auxiliary_memory(timed):
    timed.algorithms = [(64 * place, 0) for place in range(8)]
    timed.milliseconds[3] = 0.5
    a, b = pair(m=5)
    aux = cublaslt.aux_of(5, 8, a, bits=False)
    y = multiply(a, b, Then.GELU_TANH | Then.AUX, aux=aux)
    z = a.double() @ b.double()
    assert torch.equal(aux, z.bfloat16())
    assert torch.equal(y, torch.nn.functional.gelu(z, approximate="tanh").bfloat16())
    assert timed.taken[-1] == 3


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
