"""Second derivatives of every implementation: right, or refused in words, whichever inputs are frozen."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from made_devices import CPU
from torch import Tensor, nn

from kernel_selector.kernels import registry

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


def problem_of(operator: str) -> Any:
    found = registry.operator(operator)
    example = found.problem({**found.examples[-1], "dtype": "float64", "mode": "training"}).as_dict
    smaller = {"dropout": 0.0, "seq": 3}
    return found.problem({**example, **{name: one for name, one in smaller.items() if name in example}})


def pairs() -> list[tuple[str, str]]:
    found = []
    for operator in registry.operators():
        for name in registry.implementations(operator):
            if registry.implementation(operator, name).unsupported(problem_of(operator), CPU) is None:
                found.append((operator, name))
    return found


def tensors(given: Any) -> list[Tensor]:
    """Floating tensors among inputs or outputs, of tuples and packed sequences too."""
    if isinstance(given, Tensor):
        return [given] if given.is_floating_point() else []
    if isinstance(given, (tuple, list)):
        return [tensor for one in given for tensor in tensors(one)]
    return []


def penalty(module: nn.Module, inputs: Any, chosen: list[Tensor]) -> list[Tensor]:
    """Gradients of the outputs' mean square and of the squares of its gradients."""
    loss = sum((one.square().mean() for one in tensors(module(*inputs))), torch.zeros(()))
    first = torch.autograd.grad(loss, chosen, create_graph=True, allow_unused=True)
    squares = [one.square().sum() for one in first if one is not None]
    second = torch.autograd.grad(loss + sum(squares), chosen, allow_unused=True)
    return [
        torch.zeros_like(one) if found is None else found for one, found in zip(chosen, second, strict=True)
    ]


@pytest.mark.parametrize(("operator", "name"), pairs())
def test_a_penalty_on_gradients_counts_or_is_refused(operator: str, name: str) -> None:
    problem = problem_of(operator)
    ours = registry.implementation(operator, name).build(problem)
    theirs = registry.implementation(operator, registry.operator(operator).default).build(problem)
    theirs.load_state_dict(ours.state_dict())
    inputs = registry.operator(operator).make_inputs(problem, "cpu", 0).args
    leaves = [one.requires_grad_() for one in tensors(inputs)]
    names = list(dict(ours.named_parameters()))
    groups: list[list[Any]] = [["inputs"], ["parameters"], ["inputs", "parameters"]]
    groups += [[one] for one in names[:2]] + [[place] for place in range(min(2, len(leaves)))]
    for group in groups:
        results = []
        for module in (theirs, ours):
            own = dict(module.named_parameters())
            wanted = list(
                itertools.chain.from_iterable(
                    leaves if one == "inputs" else own.values() if one == "parameters"
                    else [leaves[one]] if isinstance(one, int) else [own[one]] for one in group
                )
            )  # fmt: skip
            if not wanted:
                break
            for tensor in (*leaves, *own.values()):
                tensor.requires_grad_(any(tensor is one for one in wanted))
            try:
                results.append(penalty(module, inputs, wanted))
            except RuntimeError as error:
                results.append(str(error))
        if len(results) < 2 or isinstance(results[0], str):
            continue
        expected, found = results
        if isinstance(found, str):
            assert "no second derivative" in found, (group, found)
        else:
            torch.testing.assert_close(found, expected, msg=f"{group}")
