"""Recurrent modules that torch.compile takes as one graph, a layer as one operator, without a GPU."""

from __future__ import annotations

import time

import pytest
import torch
from programs import run
from recurrent_whole import Counted, compiled, given, module_of, results
from torch import nn
from torch.library import opcheck
from torch.nn.utils.rnn import pack_sequence
from twins import OPERATORS, OURS, assert_same, leaves

from kernel_selector.kernels.recurrent.hoisted import layer as hoisted
from kernel_selector.kernels.runtime.passes import _register
from tests.grids import thinned

# of torch.compile, where it traces an autograd.Function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

EVERY = [*OURS, *((operator, f"torch_{operator}") for operator in OPERATORS)]
OPTIONS = (
    {"layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
    {"projection": 5, "peepholes": True},
)
CASES = [
    (operator, name, more)
    for operator, name in EVERY
    for more in OPTIONS
    if "projection" not in more or (operator == "lstm" and name in ("hoisted", "recompute", "unfused"))
]


def shown(operator, name, more, dynamic):
    """One case for a way through an operator, one for a cell, one for an option."""
    if dynamic:
        yield "any size", name in ("hoisted", "unfused")
    else:
        yield name.removesuffix(f"_{operator}"), "projection" in more
        yield operator


GRID = [(*case, dynamic) for dynamic in (False, True) for case in CASES]


@pytest.mark.parametrize(("operator", "name", "more", "dynamic"), thinned(GRID, shown))
def test_one_graph_gives_what_a_call_outside_gives(operator, name, more, dynamic):
    module = module_of(operator, name, **more)
    call, plain = compiled(module, dynamic=dynamic)
    for batch in (4, 6) if dynamic else (4,):
        x, hx = given(batch, count=0, batch_first=more.get("batch_first", False))
        assert_same(results(call, module, x, hx), results(plain, module, x, hx))


@pytest.mark.parametrize("operator", ["lstm", pytest.param("gru", marks=pytest.mark.full)])
def test_initial_states_and_their_gradients_and_none_wanted(operator):
    module = module_of(operator, "hoisted")
    call, plain = compiled(module)
    x, hx = given(4, count=1 + (operator == "lstm"))
    assert_same(results(call, module, x, hx), results(plain, module, x, hx))
    with torch.no_grad():
        assert_same(leaves(call(x, hx)), leaves(plain(x, hx)))


@pytest.mark.parametrize(
    ("name", "with_states", "in_order"),
    [("hoisted", True, True), ("unfused", False, False), ("torch_gru", False, True)],
)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.full)])
def test_packed_sequences(name, with_states, in_order, dynamic):
    module = module_of("gru", name, packed=True, bidirectional=True)
    call, plain = compiled(module, dynamic=dynamic)
    for lengths in ((5, 3, 3), (4, 2, 1, 1)) if dynamic else ((5, 3, 3),):
        torch.manual_seed(0)
        rows = [torch.randn(length, 16) for length in (lengths if in_order else lengths[::-1])]
        data, *rest = pack_sequence(rows, enforce_sorted=in_order)
        packed = nn.utils.rnn.PackedSequence(data.requires_grad_(), *rest)
        hx = torch.randn(2, len(lengths), 16, requires_grad=True) if with_states else None
        (y, last), (theirs, their_last) = call(packed, hx), plain(packed, hx)
        assert_same([*y[:2], last], [*theirs[:2], their_last])
        assert_same(results(call, module, packed, hx), results(plain, module, packed, hx))


def test_states_for_another_batch_than_the_packed_one():
    call, _ = compiled(module_of("gru", "hoisted", packed=True))
    packed = pack_sequence([torch.randn(3, 16), torch.randn(2, 16)])
    with pytest.raises(RuntimeError, match="packed sequence for another batch size"):
        call(packed, torch.zeros(1, 3, 16))


def test_dropout_between_layers_and_autocast():
    module = module_of("lstm", "hoisted", layers=2, dropout=0.5)
    call, plain = compiled(module)
    x, hx = given(4, rows=2)
    first, other = results(call, module, x, hx), results(plain, module, x, hx)
    assert_same(first, other)
    assert not torch.equal(call(x, hx)[0], first[0])
    with torch.autocast("cpu", torch.bfloat16):
        outputs, expected = leaves(call(x, None)), leaves(plain(x, None))
        assert [one.dtype for one in outputs] == [one.dtype for one in expected]


@pytest.mark.parametrize(
    ("operator", "name", "more"),
    [
        ("lstm", "hoisted", {"layers": 2, "bidirectional": True}),
        ("gru", "unfused", {"layers": 2}),
        pytest.param("rnn", "torch_rnn", {}, marks=pytest.mark.full),
    ],
)
def test_a_layer_is_one_operator_however_long_the_sequence_is(operator, name, more):
    seen = {}
    for seq in (3, 20):
        module, counted = module_of(operator, name, **more), Counted()
        call, _ = compiled(module, counted.backend)
        results(call, module, *given(4, seq=seq, count=0))
        seen[seq] = counted
    assert seen[3].nodes == seen[20].nodes
    forward, backward = seen[20].ours
    layers = more.get("layers", 1) * (2 if more.get("bidirectional") and name == "hoisted" else 1)
    kind = {"unfused": "steps", "torch_rnn": "torch"}.get(name, name)
    assert forward == [f"recurrent_{kind}"] * layers
    assert backward == [f"recurrent_{kind}_backward"] * layers


@pytest.mark.parametrize(
    ("name", "packed", "waits"),
    [("torch_gru", True, True), ("torch_gru", False, False), ("hoisted", True, False)],
)
def test_torchs_own_layer_of_packed_sequences_says_that_the_host_waits(name, packed, waits):
    """No CUDA graph is captured of it, and of all others one is."""
    module, counted = module_of("gru", name, packed=packed), Counted()
    call, _ = compiled(module, counted.backend)
    x = pack_sequence([torch.randn(3, 16), torch.randn(2, 16)]) if packed else given(4, count=0)[0]
    results(call, module, x, None)
    operators = [getattr(torch.ops.kernel_selector, one).default for each in counted.ours for one in each]
    assert operators
    assert {torch.Tag.cudagraph_unsafe in one.tags for one in operators} == {waits}


def compile_time(module, x):
    """Seconds of the processor for compiling forwards and backwards."""
    torch._dynamo.reset()
    call = torch.compile(module, fullgraph=True, backend="aot_eager")
    start = time.process_time()
    found = call(x)
    (found if isinstance(found, torch.Tensor) else found[0]).sum().backward()
    return time.process_time() - start


@pytest.mark.full
def test_six_layers_take_as_long_to_compile_as_three_of_a_transformer():
    class Network(nn.Module):
        def __init__(self, recurrent):
            super().__init__()
            self.recurrent = recurrent
            self.rest = nn.Sequential(
                *(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(6))
            )

        def forward(self, x):
            return self.rest(x if self.recurrent is None else self.recurrent(x)[0])

    module = module_of("lstm", "hoisted", layers=6, batch_first=True)
    x, _ = given(4, seq=3, batch_first=True)  # what is computed counts for nothing
    compile_time(nn.Sequential(nn.Linear(16, 16)), x)  # imports
    compile_time(module_of("lstm", "hoisted", batch_first=True), x)
    factors = (compile_time(Network(module), x) / compile_time(Network(None), x) for _ in range(4))
    # 1.3 alone on a processor; Inductor takes longer for the rest. A busy machine adds to one or the other
    assert any(factor <= 1.5 for factor in factors)


def shapes(cell, directions=0, projection=16):
    """x, weights of a direction, h and c, which want gradients; one of the directions' states without any."""
    gates = {"lstm": 4, "gru": 3}.get(cell, 1)
    front = (directions,) if directions else ()
    sizes = [(5, 3, 16), (gates * 16, 16), (gates * 16, projection), (gates * 16,), (gates * 16,)]
    x, *weights = ((torch.randn(size) / 4).requires_grad_() for size in sizes)
    h = torch.randn(*front, 3, projection, requires_grad=True)
    c = torch.randn(*front, 3, 16, requires_grad=True) if cell == "lstm" else None
    return x, weights, h, c


@pytest.mark.parametrize(
    ("cell", "minor", "recompute"),
    [("lstm", False, False), ("gru", True, False), ("rnn_relu", False, False), ("lstm", False, True)],
)
def test_hoisted_operators_are_what_they_say(cell, minor, recompute):
    """opcheck: schema, autograd, shapes of what holds no values, and tracing with sizes that are symbols."""
    x, weights, h, c = shapes(cell)
    call = hoisted.Call(x, *weights, None, None, h, c, None, cell, minor, recompute, reverse=True)
    _register("recurrent_hoisted")
    wanted = [one is not None for one in call[: hoisted.TENSORS]]
    opcheck(torch.ops.kernel_selector.recurrent_hoisted.default, (*call, wanted))


@pytest.mark.parametrize("name", ["recurrent_steps", "recurrent_torch", "recurrent_torch_packed"])
def test_recomputing_operators_are_what_they_say(name):
    x, weights, h, c = shapes("lstm", directions=1)
    steps = "kernel_selector.kernels.operators.lstm.unfused:gates_apart"
    lengths = None if name == "recurrent_torch" else torch.tensor([5, 4, 2], dtype=torch.int32)
    _register(name)
    function = steps if name == "recurrent_steps" else "lstm"
    present = [True] * 4 + [False] * 2
    operator = getattr(torch.ops.kernel_selector, name).default
    opcheck(operator, (x, weights, h, c, lengths, present, function, [True] * 7 + [False]))


def test_in_the_interpreter():
    """Triton's layers, and the way by which Dynamo, not yet imported, comes to look into a module."""
    for call in ("as_outside", "operators_are_what_they_say"):
        assert run("interpreted_recurrent_whole.py", call) == []
