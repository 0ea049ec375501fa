"""Additive attention on a CPU: other ways to write it, calls that the gate does not make, and bad inputs."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, InvalidHyperparameter
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.additive_attention import recompute
from kernel_selector.kernels.runtime import torch_compile as compiling

OPERATOR = registry.operator("additive_attention")
HERE = ["eager", "recompute"]


def built(name, **given):
    problem = OPERATOR.problem(
        {"hidden": 12, "batch": 3, "source": 7, "target": 4, "dtype": "float64", **given}
    )
    module = registry.implementation("additive_attention", name).build(problem)
    inputs = OPERATOR.make_inputs(problem, "cpu", 0)
    module.load_state_dict(dict(inputs.state_dict))
    return module, inputs.args


def test_the_reference_is_bahdanaus_attention():
    module, (query, memory) = built("eager")
    reference = registry.reference(OPERATOR.problem(hidden=12, batch=3, source=7, target=4)).double()
    reference.load_state_dict(module.state_dict())
    joint = nn.Linear(24, 12).double()  # [W_q W_k] [q; k] + b, as the paper has it
    with torch.no_grad():
        joint.weight.copy_(torch.cat((module.query.weight, module.key.weight), 1))
        joint.bias.copy_(module.query.bias)
        pairs = torch.cat((query[:, :, None].expand(-1, -1, 7, -1), memory[:, None].expand(-1, 4, -1, -1)), 3)
        weights = module.score(torch.tanh(joint(pairs))).squeeze(3).softmax(2)
    expected = torch.bmm(weights, memory), weights
    for own in (reference(query, memory), module(query, memory)):
        torch.testing.assert_close(own, expected)


def test_the_reference_is_luongs_attention():
    for score in ("general", "dot"):
        module, (query, memory) = built("eager", score=score)
        reference = registry.reference(OPERATOR.problem(hidden=12, batch=3, source=7, score=score)).double()
        reference.load_state_dict(module.state_dict())
        matrix = module.query.weight if score == "general" else torch.eye(12).double()
        weights = torch.einsum("bth,kh,bsk->bts", query, matrix, memory).softmax(2)
        for own in (reference(query, memory), module(query, memory)):
            torch.testing.assert_close(own, (torch.bmm(weights, memory), weights))


def test_heads_are_attentions_of_their_own():
    module, (query, memory) = built("eager", heads=3, layer_norm=True)
    context, weights = module(query, memory)
    q, k = module.query(query), module.key(memory)
    for n in range(3):
        cut = slice(4 * n, 4 * n + 4)
        e = torch.tanh(module.norm(q[:, :, None, cut] + k[:, None, :, cut])) @ module.score.weight[n]
        torch.testing.assert_close(weights[:, n], e.softmax(2))
        torch.testing.assert_close(context[..., cut], e.softmax(2) @ memory[..., cut])


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("layout", ["batch_first", "time_major"])
def test_all_steps_at_once_are_one_after_the_other(name, layout):
    module, (query, memory, lengths) = built(name, layout=layout, lengths=True)
    axis = 1 if layout == "batch_first" else 0
    context, weights = module(query, memory, lengths)
    assert context.shape == query.shape
    assert weights.shape == (3, 4, 7)
    keys = module.key(memory)
    for t in range(4):
        one, share = module(query.narrow(axis, t, 1), memory, lengths, keys=keys)
        torch.testing.assert_close(one, context.narrow(axis, t, 1))
        torch.testing.assert_close(share, weights[:, t : t + 1])


@pytest.mark.parametrize("name", HERE)
def test_a_length_of_zero_gives_zeros(name):
    module, (query, memory, _) = built(name, lengths=True)
    query.requires_grad_()
    context, weights = module(query, memory, torch.tensor([7, 0, 2]))
    assert not context[1].any()
    assert not weights[1].any()
    assert not weights[2, :, 2:].any()
    torch.testing.assert_close(weights[[0, 2]].sum(2), torch.ones(2, 4).double())
    (gradient,) = torch.autograd.grad(context.square().sum(), query)
    assert gradient.isfinite().all()
    assert not gradient[1].any()
    module(query, memory, torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize("name", HERE)
def test_no_sequences_and_no_steps(name):
    module, _ = built(name)
    for batch, target in ((0, 4), (3, 0)):
        query = torch.zeros(batch, target, 12).double().requires_grad_()
        context, weights = module(query, torch.zeros(batch, 7, 12).double())
        assert context.shape == query.shape
        assert weights.shape == (batch, target, 7)
        torch.autograd.grad(context.sum(), [query, module.score.weight])


@pytest.mark.parametrize("name", HERE)
def test_bad_calls_name_what_is_wrong(name):
    module, (query, memory) = built(name)
    for message, *call in (
        (r"query has shape \[3, 4, 11\], expected \[B, T, 12\]", query[..., :11], memory),
        (r"memory has shape \[7, 12\], expected \[B, S, 12\]", query, memory[0]),
        ("query has 2 sequences and memory 3", query[:2], memory),
        (r"keys have shape \[3, 6, 12\]", query, memory, None, memory[:, :6]),
        (r"lengths have shape \[2\], expected \[3\]", query, memory, torch.tensor([1, 2])),
        ("lengths from 1 to 8: expected 0 to 7", query, memory, torch.tensor([1, 8, 2])),
        ("lengths from -1 to 2: expected 0 to 7", query, memory, torch.tensor([1, -1, 2])),
    ):
        with pytest.raises(ValueError, match=message):
            module(*call)
    with pytest.raises(TypeError, match="float64, expected int64"):
        module(query, memory, torch.ones(3).double())
    with pytest.raises(ValueError, match="leave them out"):
        built("eager", score="dot")[0](query, memory, keys=memory)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 5}, "heads=5: expected a divisor of hidden=12"),
        ({"score": "dot", "layer_norm": True}, "score=dot has none"),
        ({"target": 0}, "target=0: expected a whole number from 1"),
        ({"score": "cosine"}, "one of additive, general, dot"),
    ],
)
def test_hyperparameters_that_do_not_fit(given, message):
    with pytest.raises(InvalidHyperparameter, match=message):
        OPERATOR.problem({"hidden": 12, "batch": 3, **given})


@pytest.mark.parametrize("name", HERE)
def test_nan_stays_in_its_sequence(name):
    module, (query, memory) = built(name)
    query[1, 2, 3] = float("nan")
    context, _ = module(query, memory)
    assert context[1, 2].isnan().all()
    assert not context[[0, 2]].isnan().any()
    assert not context[1, [0, 1, 3]].isnan().any()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_recompute_in_blocks_is_differentiable_to_the_last_digit(layer_norm, monkeypatch):
    monkeypatch.setattr(recompute, "BLOCK", 3 * 7 * 12 * 3)  # three steps, then one
    module, (query, memory) = built("recompute", layer_norm=layer_norm, heads=2)
    parameters = [one.detach().requires_grad_() for one in module.parameters()]
    names = list(dict(module.named_parameters()))

    def function(query, memory, *given):
        return torch.func.functional_call(module, dict(zip(names, given, strict=True)), (query, memory))

    torch.autograd.gradcheck(function, [query.requires_grad_(), memory.requires_grad_(), *parameters])


def test_recompute_keeps_nothing_inside_and_has_no_second_derivative():
    module, (query, memory) = built("recompute", target=5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        context, _ = module(query.requires_grad_(), memory)
    assert max(kept) < 3 * 5 * 7 * 12
    (gradient,) = torch.autograd.grad(context.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", HERE)
def test_checkpoint_and_autocast(name):
    module, (query, memory) = built(name, dtype="float32")
    results = []
    for run in (module, lambda *given: checkpoint(module, *given, use_reentrant=False)):
        query = query.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            context, weights = run(query, memory)
        assert context.dtype == torch.bfloat16
        assert weights.dtype == torch.bfloat16  # a softmax on a GPU would give float32
        results.append(torch.autograd.grad(context.float().square().sum(), [query, *module.parameters()]))
        assert {one.dtype for one in results[-1]} == {torch.float32}
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("name", HERE)
def test_inside_of_torch_compile(name):
    module, (query, memory, lengths) = built(name, lengths=True)
    compiled = torch.compile(module, backend="eager")
    results = []
    for run in (compiled, module):
        query = query.detach().requires_grad_()
        context, weights = run(query, memory, lengths)
        results.append([context, weights, *torch.autograd.grad(context.square().sum(), query)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["torch_compile", "torch_compile_sum"])
def test_compiled_equations_are_one_graph_for_each_circumstance(name, monkeypatch):
    seen = []

    def compile_eagerly(function, **options):
        assert options == {"dynamic": False, "fullgraph": True}
        seen.append(function)
        return function

    compiling._copy.cache_clear()
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    for lengths in (False, True):
        problem = OPERATOR.problem(
            hidden=12,
            batch=3,
            source=7,
            target=4,
            heads=3,
            layer_norm=True,
            lengths=lengths,
            dtype="bfloat16",
        )
        module = registry.implementation("additive_attention", name).build(problem)
        result = Gate(problem, "cpu").check(module)
        assert result.passed, result.detail
    assert len(seen) == 4  # with and without lengths, with and without strides of their own
    compiling._copy.cache_clear()
    unsupported = registry.implementation("additive_attention", name).unsupported
    assert "C++ compiler" in unsupported(problem, CPU)
    assert "7.0" in unsupported(problem, Device(name="K80", kind="cuda", compute_capability=(3, 7)))
    assert unsupported(problem, H200) is None
    dot = OPERATOR.problem(hidden=12, batch=3, score="dot")
    assert (unsupported(dot, H200) is None) == (name == "torch_compile")


@pytest.mark.parametrize("fault", ["lengths", "keys"])
def test_the_gate_finds_planted_faults(fault):
    problem = OPERATOR.problem(hidden=12, batch=3, source=7, target=4, lengths=True)
    module = registry.implementation("additive_attention", "eager").build(problem)
    inner = module._compute

    def faulty(query, memory, parameters, call):
        if fault == "lengths":
            return inner(query, memory, parameters, call._replace(lengths=None))
        return inner(query, memory, parameters._replace(w_key=parameters.w_key.detach()), call)

    assert Gate(problem, "cpu").check(module).passed
    module._compute = faulty
    assert not Gate(problem, "cpu").check(module).passed
