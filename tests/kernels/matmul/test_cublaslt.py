"""cuBLASLt's products on a twin of the library: layouts, epilogues, what is asked of it, and errors."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.nn.functional import gelu

from kernel_selector.kernels.matmul import cublaslt, cublaslt_library
from kernel_selector.kernels.matmul.cublaslt import Then, aux_of, multiply

DTYPES = [torch.bfloat16, torch.float16]
M, K, N = 5, 24, 17
ACTIVATIONS = {
    Then.NOTHING: lambda z: z,
    Then.RELU: torch.relu,
    Then.GELU_TANH: lambda z: gelu(z, approximate="tanh"),
}


def rows(one):
    return one


def columns(one):
    return one.t().contiguous().t()


def slice_of_rows(one):
    room = one.new_full((len(one), one.size(1) + 7), float("nan"))
    room[:, 3:-4] = one
    return room[:, 3:-4]


def slice_of_columns(one):
    return slice_of_rows(one.t()).t()


def scattered(one):
    room = one.new_full((len(one), one.size(1), 2), float("nan"))
    room[..., 0] = one
    return room[..., 0]


LAYOUTS = [rows, columns, slice_of_rows, slice_of_columns, scattered]


def pair(m=M, k=K, n=N, dtype=torch.bfloat16):
    torch.manual_seed(m + k + n)
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_matrices_of_any_strides_are_multiplied(lt, of_a, of_b, dtype):
    a, b = pair(dtype=dtype)
    actual = multiply(of_a(a), of_b(b))
    assert actual.is_contiguous()
    assert torch.equal(actual, (a.double() @ b.double()).to(dtype))
    assert lt.complaints == []


@pytest.mark.parametrize("sizes", [(1, 24, 17), (5, 1, 17), (5, 24, 1), (1, 1, 17), (1, 24, 1), (1, 1, 1)])
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_single_rows_and_columns_are_multiplied(lt, of_a, of_b, sizes):
    a, b = pair(*sizes)
    assert torch.equal(multiply(of_a(a), of_b(b)), (a.double() @ b.double()).to(a.dtype))
    assert lt.complaints == []


def test_matrices_that_overlap_or_repeat_are_copied(lt):
    a, b = pair(1, 30, N)
    for one in (a[0].unfold(0, 20, 2), a[:, :1].expand(6, 20), a[:, :20].expand(6, 20)):
        expected = (one.double() @ b[:20].double()).to(a.dtype)
        assert torch.equal(multiply(one, b[:20]), expected)
    assert lt.complaints == []


def test_memory_is_not_copied_where_it_can_be_read_as_it_lies(lt, monkeypatch):
    a, b = pair()
    given = [layout(a) for layout in LAYOUTS[:4]], [layout(b) for layout in LAYOUTS[:4]]
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    for one in given[0]:
        for other in given[1]:
            multiply(one, other)
    assert len(lt.taken) == 16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("then", "kept"),
    [(then, kept) for then in ACTIVATIONS for kept in (False, True) if then or not kept],
)
def test_activations_and_biases_are_applied_before_rounding(lt, then, kept, biased, dtype):
    a, b = pair(n=136, dtype=dtype)
    bias = torch.randn(136).to(dtype) if biased else None
    z = a.double() @ b.double() + (bias.double() if biased else 0)
    whole = then | (Then.BIAS if biased else 0) | (Then.AUX if kept else 0)
    aux = aux_of(M, 136, a, bits=then == Then.RELU) if kept else None
    actual = multiply(a, b, whole, bias=bias, aux=aux)
    assert torch.equal(actual, (ACTIVATIONS[then](z)).to(dtype))
    if kept and then == Then.GELU_TANH:
        assert torch.equal(aux, (z).to(dtype))
    elif kept:
        on = (aux[..., None] >> torch.arange(8) & 1).flatten(1)[:, :136].bool()
        assert torch.equal(on, z > 0)
    assert lt.complaints == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("then", [Then.RELU, Then.GELU_TANH])
@pytest.mark.parametrize("n", [8, 17, 136])
def test_slopes_are_of_what_the_activation_kept(lt, then, n, dtype):
    a, b = pair(n=n, dtype=dtype)
    aux = aux_of(M, n, a, bits=then == Then.RELU)
    multiply(a, b, then | Then.AUX, aux=aux)
    argument = (a.double() @ b.double()).to(dtype).double().requires_grad_()
    (slope,) = torch.autograd.grad(ACTIVATIONS[then](argument).sum(), argument)
    c, d = pair(n=n, k=8, dtype=dtype)
    actual = multiply(c, d, Then(then * (2 if then == Then.GELU_TANH else 4)) | Then.AUX, aux=aux)
    torch.testing.assert_close(actual, (c.double() @ d.double() * slope).to(dtype))
    assert lt.complaints == []


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_slopes_are_of_matrices_of_any_strides(lt, of_a, of_b, m):
    """Whose layouts are those of fewer rows as well, and the second algorithm's workspace is for all."""
    a, b = pair(m=m)
    lt.milliseconds = {1: 0.5}
    aux = aux_of(m, N, a, bits=True).fill_(0b0101_0101)
    actual = multiply(of_a(a), of_b(b), Then.RELU_SLOPE | Then.AUX, aux=aux)
    on = torch.arange(N) % 2 == 0
    assert torch.equal(actual, (a.double() @ b.double() * on).to(a.dtype))
    assert lt.taken[-1] == 1
    assert lt.complaints == []


@pytest.mark.parametrize("like", ["column of a matrix", "repeated"])
def test_biases_of_any_stride_are_added(lt, like):
    a, b = pair()
    room = torch.randn(N, 3).bfloat16()
    bias = room[:, 0] if like == "column of a matrix" else room[0, :1].expand(N)
    actual = multiply(a, b, Then.BIAS, bias=bias)
    assert torch.equal(actual, (a.double() @ b.double() + bias.double()).to(a.dtype))
    assert lt.complaints == []


def test_the_library_is_told_of_alignments_and_of_the_most_workspace(lt):
    room = torch.randn(2**12).bfloat16()
    start = -(room.data_ptr() // 2) % 128
    a, b = room[start + 4 :][: M * K].view(M, K), room[start + 1025 :][: K * N].view(K, N)
    multiply(a, b)
    # the library's A is our b
    asked = {"most": cublaslt.CANDIDATES, "rows": M, 1: cublaslt.WORKSPACE_BYTES, 5: 2, 6: 8}
    assert lt.asked == [asked]


def test_algorithms_that_need_a_workspace_get_one(lt):
    lt.algorithms = [(4096, 0)]
    a, b = pair()
    assert torch.equal(multiply(a, b), (a.double() @ b.double()).to(a.dtype))


def test_a_context_is_made_on_the_gpu_of_the_tensors(lt):
    lt.current = 3
    for _ in range(2):
        multiply(*pair())
    assert lt.contexts == [-1]
    assert lt.current == 3


def test_nothing_that_was_created_stays_when_plans_go(lt):
    a, b = pair()
    for one in (a, a[:2], a[:, :8]):
        multiply(one, b[: one.size(1)])
    aux = aux_of(M, N, a, bits=False)
    multiply(a, b, Then.GELU_TANH | Then.AUX, aux=aux)
    multiply(a, b, Then.GELU_TANH_SLOPE | Then.AUX, aux=aux)
    # a product and three layouts, of a slope also those of half and of a quarter of the rows
    assert lt.created - lt.destroyed == 4 * 4 + (1 + 3 * 3)
    cublaslt._plans.clear()
    gc.collect()
    assert lt.created == lt.destroyed > 0
    assert lt.complaints == []


@pytest.mark.parametrize("failing", ["MatmulDescSetAttribute", "MatrixLayoutCreate"])
def test_nothing_stays_of_a_plan_that_could_not_be_made(lt, failing):
    lt.failing["cublasLt" + failing] = 3
    with pytest.raises(RuntimeError, match=failing):
        multiply(*pair())
    gc.collect()
    assert lt.created == lt.destroyed > 0


def test_only_so_many_plans_are_kept(lt, monkeypatch):
    monkeypatch.setattr(cublaslt, "MOST_PLANS", 3)
    a, b = pair()
    for count in range(1, 6):
        multiply(a[:count], b)
    gc.collect()
    assert len(cublaslt._plans) == 2
    assert lt.created - lt.destroyed == 2 * 4


@pytest.mark.parametrize(
    ("function", "status", "name"),
    [
        ("Create", 1, "NOT_INITIALIZED"),
        ("MatmulDescCreate", 3, "ALLOC_FAILED"),
        ("MatmulDescSetAttribute", 7, "INVALID_VALUE"),
        ("MatrixLayoutCreate", 3, "ALLOC_FAILED"),
        ("MatmulPreferenceCreate", 3, "ALLOC_FAILED"),
        ("MatmulPreferenceSetAttribute", 8, "ARCH_MISMATCH"),
        ("MatmulAlgoGetHeuristic", 14, "INTERNAL_ERROR"),
        ("Matmul", 13, "EXECUTION_FAILED"),
        ("Matmul", 99, "unknown"),
    ],
)
def test_failures_name_the_function_and_the_status(lt, function, status, name):
    lt.failing["cublasLt" + function] = status
    message = rf"cublasLt{function}(\(TRANSPOSED_A\))? failed with status {status} \({name}\)"
    with pytest.raises(RuntimeError, match=message):
        multiply(*pair())
    lt.failing.clear()
    a, b = pair()
    assert torch.equal(multiply(a, b), (a.double() @ b.double()).to(a.dtype))


@pytest.mark.parametrize("algorithms", [[], [(0, 15)], [(2**30, 0)]], ids=["none", "refused", "too large"])
def test_without_an_algorithm_the_error_names_the_product(lt, algorithms):
    lt.algorithms = algorithms
    with pytest.raises(RuntimeError, match=r"no algorithm for \[5, 24\] by \[24, 17\] in torch.bfloat16"):
        multiply(*pair())
    assert lt.taken == []


def test_algorithms_that_the_heuristic_refuses_are_left_out(lt):
    lt.algorithms = [(0, 7), (0, 0)]
    multiply(*pair())
    assert lt.taken == [1]


def test_other_dtypes_and_several_are_refused(lt):
    a, b = pair()
    for given in ((a.float(), b.float(), None), (a, b.half(), None), (a, b, b[0].float())):
        with pytest.raises(RuntimeError, match=r"of float16 or of bfloat16 here, not of torch\..*autocast"):
            multiply(given[0], given[1], Then.BIAS if given[2] is not None else Then.NOTHING, bias=given[2])
    assert lt.created == 0


def test_tensors_of_several_devices_are_refused(lt):
    a, b = pair()
    with pytest.raises(RuntimeError, match="of one NVIDIA GPU, not of cpu, meta"):
        multiply(a, b.to("meta"))
    with pytest.raises(RuntimeError, match="of one NVIDIA GPU, not of meta, meta"):
        cublaslt.check(a.to("meta"), b.to("meta"), None)
    assert lt.created == 0


def test_tensors_of_the_cpu_are_refused():
    with pytest.raises(RuntimeError, match="of one NVIDIA GPU, not of cpu, cpu"):
        multiply(*pair())


def test_torch_without_cuda_has_no_library(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    cublaslt_library.load.cache_clear()
    with pytest.raises(RuntimeError, match="built without it: build another implementation"):
        cublaslt_library.load()


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "0.7")
    cublaslt_library.load.cache_clear()
    with pytest.raises(RuntimeError, match=r"libcublasLt\.so\.0, which torch for CUDA 0\.7 brings, cannot"):
        cublaslt_library.load()
