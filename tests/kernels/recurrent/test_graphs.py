"""torch's modules under CUDA graphs, with a stand-in for graphs on a CPU: it runs again what was captured."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from made_devices import CPU, H200

from kernel_selector.kernels import registry
from kernel_selector.kernels.recurrent.cuda_graphs import capture as graph_captures
from kernel_selector.kernels.recurrent.cuda_graphs import copies as graph_copies
from kernel_selector.kernels.recurrent.cuda_graphs import modules as graphs
from kernel_selector.kernels.recurrent.hoisted.layer import hoisted_layer
from kernel_selector.kernels.recurrent.module import cell_of

NAMES = {"lstm": "torch_lstm_graph", "gru": "torch_gru_graph", "rnn": "torch_rnn_graph"}


class Graph:
    """Runs a function again and puts what it gives where the first results are."""

    count = replays = 0

    def __init__(self, run, forward=None):
        self.run, self.forward = run, forward
        Graph.count += 1
        self.latest = run()
        self.results, self.packs = self.latest, graph_copies.packed(self.latest)

    def pool(self):
        return self  # a backward graph finds the forward one by its pool

    def replay(self):
        Graph.replays += 1
        real = torch.autograd.grad
        if self.forward is not None:  # through what the last forward replay left, as in memory of a graph
            torch.autograd.grad = lambda _outputs, *rest, **more: real(self.forward.latest, *rest, **more)
        try:
            self.latest = self.run()
        finally:
            torch.autograd.grad = real
        with torch.no_grad():
            again = (*self.latest, *graph_copies.packed(self.latest))
            for mine, new in zip((*self.results, *self.packs), again, strict=True):
                if mine is not None:
                    mine.detach().copy_(new.detach())


def record(run, _stream, pool=None):
    graph = Graph(run, pool)
    return graph_captures.Recording(graph.results, graph.packs, graph)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(graph_captures, "warm_up", lambda run: run())
    monkeypatch.setattr(graph_captures, "record", record)
    monkeypatch.setattr(graphs, "_has_graphs", lambda _x: True)
    monkeypatch.setattr(graphs, "_is_capturing", lambda: False)
    torch.manual_seed(0)
    Graph.count = Graph.replays = 0


def twins(operator="lstm", *, ours=False, **hyperparameters):
    """A module under graphs and torch's own, with the same parameters.

    With `ours` the graphs hold layers of ours, in place of kernels those that torch's operations make up.
    """
    given = {"hidden": 6, "input": 4, "batch": 3, "seq": 5, **hyperparameters}
    problem = registry.operator(operator).problem(given)
    if ours:
        module = graphs.graphed_layers(problem, hoisted_layer(cell_of(problem)))
    else:
        module = registry.implementation(operator, NAMES[operator]).build(problem)
    plain = registry.implementation(operator, f"torch_{operator}").build(problem)
    module.load_state_dict(plain.state_dict())
    return module, plain


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [leaf for one in value for leaf in leaves(one)]


def assert_same(actual, expected):
    for ours, torchs in zip(leaves(actual), leaves(expected), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)


def gradients(module, x, outputs, *, used=slice(None)):
    loss = sum(output.square().sum() for output in leaves(outputs)[used])
    return torch.autograd.grad(loss, [x, *module.parameters()])


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("operator", NAMES)
def test_results_and_gradients_are_torchs_at_every_replay(operator, states, ours):
    module, plain = twins(operator, layers=2, bidirectional=True, ours=ours)
    for _ in range(3):
        x = torch.randn(5, 3, 4, requires_grad=True)
        hx = None
        if states:
            hx = tuple(torch.randn(4, 3, 6) for _ in range(2))
            hx = hx if operator == "lstm" else hx[0]
        ours, torchs = module(x, hx), plain(x, hx)
        assert_same(ours, torchs)
        assert_same(gradients(module, x, ours), gradients(plain, x, torchs))
    assert Graph.count == 2


@pytest.mark.parametrize("ours", [False, True])
def test_an_unused_output_has_no_gradient(ours):
    module, plain = twins(ours=ours)
    x = torch.randn(5, 3, 4, requires_grad=True)
    ours, torchs = module(x), plain(x)
    used = slice(1, 2)
    assert_same(gradients(module, x, ours, used=used), gradients(plain, x, torchs, used=used))


@pytest.mark.parametrize("ours", [False, True])
def test_several_calls_before_a_backward_pass(ours):
    module, plain = twins(ours=ours)
    xs = [torch.randn(5, 3, 4, requires_grad=True) for _ in range(3)]
    ours, torchs = [module(x) for x in xs], [plain(x) for x in xs]
    assert_same(ours, torchs)  # also those of earlier calls
    for row in (1, 2, 0):
        assert_same(gradients(module, xs[row], ours[row]), gradients(plain, xs[row], torchs[row]))
    assert Graph.count == 6
    module(xs[0])
    assert Graph.count == 6


def test_a_forgotten_call_gives_its_memory_back():
    module, _ = twins()
    x = torch.randn(5, 3, 4)
    for _ in range(3):
        module(x)
    gc.collect()
    assert Graph.count == 2
    kept = module(x)
    module(x)
    assert Graph.count == 4
    del kept


@pytest.mark.parametrize("ours", [False, True])
def test_parameters_are_read_at_each_replay(ours):
    module, plain = twins(ours=ours)
    x = torch.randn(5, 3, 4)
    module(x)
    with torch.no_grad():
        for ours, torchs in zip(module.parameters(), plain.parameters(), strict=True):
            ours.mul_(1.5)
            torchs.mul_(1.5)
    with torch.no_grad():
        assert_same(module(x), plain(x))


@pytest.mark.parametrize("ours", [False, True])
def test_what_a_replay_would_get_wrong_raises(ours):
    module, _ = twins(ours=ours)
    y, _ = module(torch.randn(5, 3, 4))
    with torch.no_grad():
        module.weight_ih_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y, _ = module(torch.randn(5, 3, 4))
    y.sum().backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.sum().backward()
    x = torch.randn(5, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("ours", [False, True])
def test_a_graph_that_autograd_retains_runs_backwards_again(ours):
    module, plain = twins(ours=ours)
    x = torch.randn(5, 3, 4, requires_grad=True)
    y, expected = module(x)[0].square().sum(), plain(x)[0].square().sum()
    parameters, torchs = [x, *module.parameters()], [x, *plain.parameters()]
    first = torch.autograd.grad(y, parameters, retain_graph=True)
    other = module(x * 2)[0]
    second = torch.autograd.grad(y, parameters)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert_same(second, torch.autograd.grad(expected, torchs))
    del other
    count = Graph.count
    module(x)
    assert Graph.count == count == 4


@pytest.mark.parametrize("ours", [False, True])
def test_without_gradients_one_graph_serves_all_calls(ours):
    module, plain = twins(ours=ours)
    plain.eval(), module.eval()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            calls = [torch.randn(5, 3, 4) for _ in range(3)]
            results = [module(x) for x in calls]
            assert_same(results, [plain(x) for x in calls])
    assert Graph.count == 1


@pytest.mark.parametrize("ours", [False, True])
def test_each_shape_has_its_own_and_the_oldest_go(ours):
    module, plain = twins(ours=ours)
    with torch.no_grad():
        for seq in range(1, graphs.MOST_SHAPES + 3):
            x = torch.randn(seq, 2, 4)
            assert_same(module(x), plain(x))
        assert len(module._captures) == graphs.MOST_SHAPES
        unbatched = torch.randn(5, 4)
        assert_same(module(unbatched), plain(unbatched))


@pytest.mark.parametrize("ours", [False, True])
def test_what_graphs_cannot_hold_takes_torchs_module(ours):
    module, plain = twins(ours=ours)
    x = torch.randn(5, 3, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
    assert_same(module(packed)[0].data, plain(packed)[0].data)
    assert Graph.count == 0
    with pytest.raises(RuntimeError) as expected:
        plain(torch.randn(5, 3, 7))
    with pytest.raises(RuntimeError) as actual:
        module(torch.randn(5, 3, 7))
    assert str(actual.value) == str(expected.value)


def test_inside_a_callers_capture_none_is_nested(monkeypatch):
    module, plain = twins()
    monkeypatch.setattr(graphs, "_is_capturing", lambda: True)
    x = torch.randn(5, 3, 4)
    assert_same(module(x), plain(x))
    assert Graph.count == 0


def test_on_a_cpu_it_says_that_it_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(graphs, "_has_graphs", lambda x: x.is_cuda)
    with pytest.raises(RuntimeError, match="need a GPU"):
        twins()[0](torch.randn(5, 3, 4))


@pytest.mark.parametrize("ours", [False, True])
def test_copies_and_pickles_have_no_graphs(ours):
    module, plain = twins(ours=ours)
    x = torch.randn(5, 3, 4)
    module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert len(twin._captures) == 0
        assert_same(twin(x), plain(x))
    assert len(module.double()._captures) == 0


@pytest.mark.parametrize(
    ("hyperparameters", "device", "reason"),
    [
        ({}, CPU, "only GPUs"),
        ({"packed": True}, H200, "packed sequences"),
        ({"dropout": 0.5, "layers": 2}, H200, "dropout"),
        ({"seq": 65536}, H200, "65535"),
    ],
)
@pytest.mark.parametrize("operator", NAMES)
def test_refusals_say_why(operator, hyperparameters, device, reason):
    given = {"hidden": 6, "batch": 3, **hyperparameters}
    problem = registry.operator(operator).problem(given)
    assert reason in registry.implementation(operator, NAMES[operator]).unsupported(problem, device)


@pytest.mark.parametrize("ours", [False, True])
def test_captures_leave_the_parameters_own_leaves_alone(ours):
    module, plain = twins(ours=ours)
    own, seen = list(module.parameters()), []
    grad = torch.autograd.grad

    def watched(outputs, leaves, *rest, **more):
        seen.extend(leaves)
        return grad(outputs, leaves, *rest, **more)

    x = torch.randn(5, 3, 4, requires_grad=True)
    torch.autograd.grad = watched
    try:
        outputs = module(x)
    finally:
        torch.autograd.grad = grad
    assert seen
    assert not {id(one) for one in seen} & {id(one) for one in own}
    assert [id(one) for one in module.parameters()] == [id(one) for one in own]
    assert_same(gradients(module, x, outputs), gradients(plain, x, plain(x)))
