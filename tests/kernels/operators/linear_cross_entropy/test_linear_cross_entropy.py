"""The linear cross-entropy beside torch's two functions: other calls than the gate's, and what is refused."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from made_devices import H200, T4
from torch.nn.functional import cross_entropy, linear

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.linear_cross_entropy import (
    _aligned_chunks,
    _column_chunks,
    _logits,
    _row_chunks,
    labelled_rows,
)

OPERATOR = registry.operator("linear_cross_entropy")
NAMES = ["aligned", "chunked", "chunked_vocabulary", "gathered", "gathered_aligned"]
CHUNK_ROWS = _aligned_chunks.chunk_rows  # before tests make it smaller
SIZES = {"rows": 20, "hidden": 6, "vocabulary": 11, "labelled": 0.5}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(_row_chunks, "chunk_rows", lambda _: 8)
    monkeypatch.setattr(_column_chunks, "chunk_columns", lambda _: 4)
    monkeypatch.setattr(_aligned_chunks, "chunk_rows", lambda *_: 8)


def build(name, **hyperparameters):
    return registry.implementation(OPERATOR.name, name).build(OPERATOR.problem({**SIZES, **hyperparameters}))


def torchs(module, x, labels):
    logits = linear(x, module.weight, module.bias)
    return cross_entropy(logits, labels, label_smoothing=module.label_smoothing)


def inputs(rows=20, dtype=torch.float32):
    x = torch.randn(rows, 6, dtype=dtype, requires_grad=True)
    labels = torch.randint(11, (rows,))
    labels[::3] = -100
    return x, labels


def gradients(loss, module, x):
    return torch.autograd.grad(loss, [x, *module.parameters()], retain_graph=True)


@pytest.mark.parametrize("name", ["torch_linear_cross_entropy", *NAMES])
def test_losses_and_gradients_are_torchs_in_float64(name):
    module = build(name, dtype="float64", bias=True, label_smoothing=0.2)
    x, labels = inputs(dtype=torch.float64)
    loss, expected = module(x, labels), torchs(module, x, labels)
    torch.testing.assert_close(loss, expected)
    # a factor that flows back, and a second backward pass of the same graph
    for factor in (1.0, -3.0):
        ours, theirs = (gradients(factor * one, module, x) for one in (loss, expected))
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(module, (x, labels))


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_rows_and_what_needs_no_gradient(name):
    module = build(name, bias=True)
    for rows in (1, 3, 8, 21):
        x, labels = inputs(rows)
        torch.testing.assert_close(module(x, labels), torchs(module, x, labels), equal_nan=True)
    module.weight.requires_grad_(False)
    ours, theirs = (
        torch.autograd.grad(function(x, labels), [x, module.bias])
        for function in (module, lambda *given: torchs(module, *given))
    )
    torch.testing.assert_close(ours, theirs)
    module.requires_grad_(False)
    assert not module(x.detach(), labels).requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_without_labels_or_rows_the_loss_is_nan_and_gradients_are_torchs(name):
    module = build(name, bias=True)
    for rows in (0, 5):
        x, labels = inputs(rows)
        labels.fill_(-100)
        loss, expected = module(x, labels), torchs(module, x, labels)
        assert loss.isnan()
        assert expected.isnan()
        ours, theirs = gradients(loss, module, x), gradients(expected, module, x)
        torch.testing.assert_close(ours, theirs)
        assert all(not one.any() for one in ours)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("label", [11, -1, -99, 2**40])
def test_a_label_out_of_range_is_an_error(name, label):
    x, labels = inputs()
    labels[7] = label
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        build(name)(x, labels)


@pytest.mark.parametrize("name", NAMES)
def test_a_label_that_nobody_could_check_makes_the_loss_nan(name, monkeypatch):
    # as while a CUDA graph is captured
    monkeypatch.setattr(
        "kernel_selector.kernels.operators.linear_cross_entropy._module.check_labels", lambda *_: None
    )
    module = build(name)
    for label in (11, -1):
        x, labels = inputs()
        labels[7] = label
        loss = module(x, labels)
        assert loss.isnan()
        assert all(one.isfinite().all() for one in gradients(loss, module, x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("x", "labels", "error"),
    [
        (torch.randn(4, 5), torch.zeros(4, dtype=torch.int64), RuntimeError),
        (torch.randn(4, 6), torch.zeros(3, dtype=torch.int64), ValueError),
        (torch.randn(4, 6), torch.zeros(4, dtype=torch.int32), RuntimeError),
        (torch.randn(4, 6).double(), torch.zeros(4, dtype=torch.int64), RuntimeError),
        (torch.randn(4, 6), torch.zeros(4, 1, dtype=torch.int64), (RuntimeError, ValueError)),
    ],
    ids=["features", "rows", "label dtype", "dtype", "label dimensions"],
)
def test_calls_that_torch_refuses_raise_its_error(name, x, labels, error):
    module = build(name)
    with pytest.raises(error) as theirs:
        torchs(module, x, labels)
    with pytest.raises(error) as ours:
        module(x, labels)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("name", NAMES)
def test_calls_that_only_torch_takes_say_so(name):
    with pytest.raises(RuntimeError, match="this takes x"):
        build(name)(torch.randn(4, 6), torch.rand(4, 11))  # probabilities in the place of labels


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_values_that_are_not_finite_are_handed_on(name, value):
    module = build(name)
    x, labels = inputs()
    with torch.no_grad():
        x[4, 2] = value
        module.weight[5] = value
    for one in (x, x[:4]):
        torch.testing.assert_close(
            module(one, labels[: len(one)]), torchs(module, one, labels[: len(one)]), equal_nan=True
        )


@pytest.mark.parametrize("name", NAMES)
def test_one_class_of_minus_infinity_is_as_if_it_were_not_there(name):
    module = build(name, bias=True)
    x, labels = inputs()
    labels[labels == 3] = 4
    with torch.no_grad():
        module.bias[:4] = -torch.inf  # a whole chunk of classes
    labels[(labels >= 0) & (labels < 4)] = 9
    loss, expected = module(x, labels), torchs(module, x, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, module, x), gradients(expected, module, x))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_computes_in_its_dtype_and_gives_float32(name):
    module = build(name, bias=True)
    x, labels = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        loss, expected = module(x, labels), torchs(module, x, labels)
    assert loss.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    ours, theirs = gradients(loss, module, x), gradients(expected, module, x)
    assert [one.dtype for one in ours] == [torch.float32] * 3
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("name", NAMES)
def test_sums_in_float16_do_not_overflow_where_their_mean_does_not(name):
    module = build(name, dtype="float16", bias=True, rows=70_000, vocabulary=2, labelled=0.99)
    x = torch.full((70_000, 6), 30.0, dtype=torch.float16, requires_grad=True)
    labels = torch.zeros(70_000, dtype=torch.int64)
    labels[0] = -100
    with torch.no_grad():
        module.weight.fill_(0)
        module.bias.fill_(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_row_chunks, "chunk_rows", lambda _: 40_000)
        patch.setattr(_aligned_chunks, "chunk_rows", lambda *_: 40_000)
        loss = module(x, labels)
        _, weight, bias = gradients(loss, module, x)
    torch.testing.assert_close(weight[:, 0].float(), torch.tensor([-15.0, 15.0]), rtol=1e-2, atol=0)
    torch.testing.assert_close(bias.float(), torch.tensor([-0.5, 0.5]), rtol=1e-2, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_derivative_is_an_error(name):
    module = build(name)
    x, labels = inputs()
    (first,) = torch.autograd.grad(module(x, labels), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        torch.autograd.grad(first.square().sum(), x)


# the compiler looks at a result's gradient between two graphs
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", NAMES)
def test_inside_torch_compile_and_copied_it_gives_the_same(name):
    module = build(name)
    x, labels = inputs()
    expected = module(x, labels)
    compiled = torch.compile(lambda *given: copy.deepcopy(module)(*given) * 2, backend="eager")
    torch.testing.assert_close(compiled(x, labels), expected * 2)


@pytest.mark.parametrize("name", NAMES)
def test_in_a_graph_nobody_looks_at_labels(name):
    module = build(name, bias=True)
    torch._dynamo.reset()
    call = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, labels = inputs()
    expected = [module(x, labels), *gradients(module(x, labels), module, x)]
    torch.testing.assert_close([call(x, labels), *gradients(call(x, labels), module, x)], expected)
    labels[7] = 11
    loss = call(x, labels)
    assert loss.isnan()
    assert all(one.isfinite().all() for one in gradients(loss, module, x))
    labels.fill_(-100)
    loss = call(x, labels)
    assert loss.isnan()
    assert not any(one.any() for one in gradients(loss, module, x))


def test_rows_that_are_left_out_are_those_without_a_label():
    problem = OPERATOR.problem(SIZES, rows=1000, labelled=0.15)
    labels = OPERATOR.make_inputs(problem, "cpu", 0).args[1]
    assert labelled_rows(problem) == 150 == int((labels >= 0).sum())
    refusal = registry.implementation(OPERATOR.name, "gathered").unsupported
    assert refusal(problem, H200) is None
    assert "every row has one" in refusal(OPERATOR.problem(rows=8, hidden=2, vocabulary=2), H200)


def test_equal_chunks_of_aligned_rows_stay_within_their_limit():
    assert _aligned_chunks.width(50257) == 50304
    assert _aligned_chunks.width(64) == 64
    for rows in (1, 129, 2457, 16384, 131072):
        step = CHUNK_ROWS(rows, 50257)
        chunks = -(-rows // step)
        assert step % 128 == 0
        assert step * 50304 <= _aligned_chunks.LOGITS + 128 * 50304
        assert chunks * step - rows < 128 * chunks


def test_what_lies_beyond_the_vocabulary_stays_out_of_gradients_where_its_exponential_overflows():
    module = build("aligned", vocabulary=11, bias=True, labelled=1.0)
    x, labels = inputs()
    with torch.no_grad():
        module.bias.fill_(-200.0)  # so that a logit of 0 beside them is e^200 times as likely
    ours, theirs = (gradients(loss(x, labels), module, x) for loss in (module, partial(torchs, module)))
    torch.testing.assert_close(ours, theirs)


def test_refusals_of_old_gpus_say_why():
    for name in NAMES:
        refusal = registry.implementation(OPERATOR.name, name).unsupported
        assert "compute capability 8.0" in refusal(OPERATOR.problem(SIZES), T4)
        assert refusal(OPERATOR.problem(SIZES, dtype="float64"), T4) is None


FAULTS = {
    "a label one too far": ("gradient_", lambda z, labels, total, first, s: (z, labels, total, first + 1, s)),
    "a sum without a chunk": (
        "gradient_",
        lambda z, labels, total, first, s: (z, labels, total * 0.99, first, s),
    ),
    "smoothing forgotten": (
        "gradient_",
        lambda z, labels, total, first, _: (z, labels, total, first, (0, 0)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gate_finds_a_planted_fault(fault, dtype, monkeypatch):
    name, change = FAULTS[fault]
    right = getattr(_logits, name)
    gate = Gate(OPERATOR.problem(SIZES, rows=40, label_smoothing=0.2, dtype=dtype), "cpu")
    module = build("chunked_vocabulary", label_smoothing=0.2, dtype=dtype)
    assert gate.check(module).passed
    monkeypatch.setattr(_column_chunks, name, lambda *given: right(*change(*given)))
    assert not gate.check(module).passed
