"""The linear cross-entropy on a GPU: what cannot be seen without one."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from twins import GPU

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.linear_cross_entropy import _column_chunks, _logits

pytestmark = GPU
OPERATOR = registry.operator("linear_cross_entropy")
NAMES = ["aligned", "chunked", "chunked_vocabulary", "gathered", "gathered_aligned"]
SIZES = {"rows": 1500, "hidden": 264, "vocabulary": 9001, "labelled": 0.6, "dtype": "bfloat16"}


def made(name, **hyperparameters):
    """The problem's module on the GPU with its inputs' parameters, x as a leaf, and labels."""
    problem = OPERATOR.problem({**SIZES, **hyperparameters})
    given = OPERATOR.make_inputs(problem, "cuda", 0)
    module = registry.implementation(OPERATOR.name, name).build(problem).to("cuda")
    module.load_state_dict(dict(given.state_dict))
    x, labels = given.args
    return module, x.requires_grad_(), labels


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("more", [{}, {"bias": True, "label_smoothing": 0.1}], ids=["plain", "smoothed"])
def test_all_pass_the_gate_over_several_chunks(dtype, more, monkeypatch):
    monkeypatch.setattr(_column_chunks, "chunk_columns", lambda _: 4096)
    gate = Gate(OPERATOR.problem({**SIZES, "dtype": dtype, **more}), "cuda")
    results = {name: gate.check(made(name, dtype=dtype, **more)[0]) for name in NAMES}
    if dtype == "float16":  # of a mean over 1,500 rows gradients fall below its normal numbers, torch's too
        torchs = gate.check(made(OPERATOR.default, dtype=dtype, **more)[0])
        assert not torchs.passed
        allowed = math.inf if torchs.worst_error_ratio is None else torchs.worst_error_ratio
        worse = {
            name: one
            for name, one in results.items()
            if one.worst_error_ratio is None or one.worst_error_ratio >= allowed
        }
        assert not worse, (worse, torchs)
        return
    assert {name: result.detail for name, result in results.items() if not result.passed} == {}


def peak_bytes(name):
    module, x, labels = made(name, rows=8192, hidden=1024, vocabulary=30522, labelled=1.0)
    for _ in range(2):  # the first call's workspace is not its own
        x.grad = module.weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        module(x, labels).backward()
    return torch.cuda.max_memory_allocated() - before


def test_memory_is_a_small_part_of_torchs():
    whole = peak_bytes("torch_linear_cross_entropy")
    assert peak_bytes("chunked") < whole / 4
    assert peak_bytes("chunked_vocabulary") < whole / 6


@pytest.mark.parametrize("name", NAMES)
def test_a_label_out_of_range_is_an_error_and_the_process_lives(name):
    module, x, labels = made(name)
    labels[5] = 9001
    with pytest.raises(IndexError, match="Target 9001 is out of bounds"):
        module(x, labels)
    labels[5] = 3
    assert module(x, labels).isfinite()


@pytest.mark.parametrize("name", ["aligned", "chunked", "chunked_vocabulary"])
def test_a_captured_graph_follows_its_inputs(name):
    module, x, labels = made(name)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(module(x, labels), [x, module.weight])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = module(x, labels)
        found = torch.autograd.grad(loss, [x, module.weight])
    loss = loss.detach()  # torch warns of graphs of autograd that live on from another stream
    for seed in (1, 2):
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad():
            x.normal_(generator=generator)
            labels.random_(0, 9001, generator=generator)
        graph.replay()
        expected = module(x, labels)
        wanted = torch.autograd.grad(expected, [x, module.weight])
        torch.testing.assert_close([loss, *found], [expected, *wanted])
    labels[7] = -1  # which nobody can raise an error for
    graph.replay()
    torch.cuda.synchronize()
    assert loss.isnan()


@pytest.mark.parametrize("name", NAMES)
def test_another_stream_gives_the_same(name):
    module, x, labels = made(name, bias=True)
    expected = torch.autograd.grad(module(x, labels), [x, *module.parameters()])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = torch.autograd.grad(module(x, labels), [x, *module.parameters()])
    stream.synchronize()
    torch.testing.assert_close(found, expected)


def test_more_logits_than_32_bits_can_count():
    rows, columns = 8208, 262_200
    assert rows * columns > 2**31
    logits = _logits.buffer(torch.empty(0, dtype=torch.bfloat16, device="cuda"), rows, columns)
    logits.zero_()
    labels = torch.full((rows,), 5, device="cuda")
    labels[0] = -100
    last = torch.randn(columns, device="cuda").bfloat16()
    logits[-1] = last
    losses = torch.empty(rows, device="cuda")
    _logits.cross_entropy_(logits, labels, losses, 0.0, gradient=True)
    expected = cross_entropy(last.float().unsqueeze(0), labels[-1:], reduction="none")
    torch.testing.assert_close(losses[-1:], expected)
    probabilities = last.float().softmax(0)
    probabilities[5] -= 1
    torch.testing.assert_close(logits[-1].float(), probabilities, rtol=1e-2, atol=1e-6)
    assert losses[0] == 0
    assert not logits[0].any()
