"""The kernels of additive attention in Triton's interpreter, cut small: calls that the gate does not make.

Run as a program, because the interpreter is chosen when kernels are imported; see `interpreted`.
"""

from __future__ import annotations

import json
import warnings

import interpreted  # noqa: F401 - chooses the interpreter
import pytest
import torch

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.additive_attention import fused
from kernel_selector.kernels.operators.additive_attention._triton import launch, tiles

OPERATOR = registry.operator("additive_attention")
SIZES = {"hidden": 18, "batch": 2, "source": 9, "target": 3}


def cut_small(programs: int) -> None:
    """Several tiles, chunks and parts of the work even of a small problem."""
    tiles.FORWARD_TILES, tiles.BACKWARD_TILES = ((2, 8),), ((4, 8),)
    tiles.BACKWARD_PROGRAMS, tiles.LEAST_STEPS, launch.SOFTMAX_BLOCK = programs, 2, 4
    tiles.forward_cut.cache_clear()
    tiles.backward_cut.cache_clear()


def every_cut_passes_the_gate() -> None:
    for programs, given in (
        (1, {}),
        (1, {"layer_norm": True, "lengths": True, "batch": 3}),
        (64, {"lengths": True, "batch": 3, "layout": "time_major"}),
        (64, {"layer_norm": True, "heads": 2}),
    ):
        cut_small(programs)
        problem = OPERATOR.problem({**SIZES, **given})
        cut = tiles.backward_cut(problem["batch"] * problem["heads"], 3, 9, 18 // problem["heads"])
        assert (cut.t_splits > 1) == (cut.s_splits > 1) == (programs > 1)
        assert cut.s_tiles == 3
        assert cut.chunks > 1
        result = Gate(problem, "cpu").check(fused.build(problem))
        assert result.passed, result.detail


def planted_faults_are_found() -> None:
    problem = OPERATOR.problem({**SIZES, "layer_norm": True})
    gate = Gate(problem, "cpu")
    original = launch._through_norm
    launch._through_norm = lambda q, k, first, *_: (first[0].view(q.shape), first[1].view(k.shape))
    assert not gate.check(fused.build(problem)).passed
    launch._through_norm = original
    assert gate.check(fused.build(problem)).passed


def equal_calls_have_equal_bits() -> None:
    module, (query, memory) = built()
    loss = module(query.requires_grad_(), memory)[0].square().sum()
    leaves = [query, *module.parameters()]
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, leaves)))


def odd_calls_are_as_torchs() -> None:
    module, (query, memory) = built()
    plain = registry.implementation("additive_attention", "eager").build(OPERATOR.problem(SIZES))
    plain.load_state_dict(module.state_dict())
    wide = torch.randn(2, 3, 36).requires_grad_()
    for call in (
        (query[:0], memory[:0]),
        (query[:, :0], memory),
        (wide[..., ::2], memory, torch.tensor([0, 0])),
        (query, memory.expand(2, 9, 18), torch.tensor([3, 9], dtype=torch.int32), plain.key(memory)),
        (torch.where(torch.arange(3)[:, None] == 2, torch.nan, query), memory),
    ):
        results = []
        for candidate in (module, plain):
            context, weights = candidate(*call)
            total = context.nan_to_num().square().sum() + weights.nan_to_num().square().sum()
            gradients = torch.autograd.grad(total, candidate.query.weight)
            results.append([context, weights, *gradients])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5, equal_nan=True)


def a_second_derivative_raises() -> None:
    module, (query, memory) = built()
    (gradient,) = torch.autograd.grad(
        module(query.requires_grad_(), memory)[0].sum(), query, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def built():
    problem = OPERATOR.problem(SIZES)
    inputs = OPERATOR.make_inputs(problem, "cpu", 0)
    module = fused.build(problem)
    module.load_state_dict(dict(inputs.state_dict))
    return module, inputs.args


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)  # numpy's, of a maximum of NaN
    warnings.filterwarnings("ignore", "overflow", RuntimeWarning)  # and of an infinite exponential
    for check in (
        every_cut_passes_the_gate,
        planted_faults_are_found,
        equal_calls_have_equal_bits,
        odd_calls_are_as_torchs,
        a_second_derivative_raises,
    ):
        check()
        print(json.dumps(check.__name__), flush=True)
