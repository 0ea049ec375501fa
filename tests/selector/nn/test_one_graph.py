"""Drop-in modules under torch.compile with fullgraph: the choice is made while a call is traced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector import nn as drop_in

pytestmark = [
    pytest.mark.usefixtures("stand_ins"),
    # of torch.compile, where it traces an autograd.Function
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def model(implementation: str | None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        drop_in.Linear(6, 8, implementation=implementation and "column_major"),
        drop_in.LayerNorm(8, implementation=implementation),
        drop_in.GELU(implementation=implementation),
        drop_in.RMSNorm(8, implementation=implementation),
        drop_in.SiLU(implementation=implementation),
        drop_in.ReLU(implementation=implementation),
    )


def compiled(module: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


def results(call: Any, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, and the gradients of x and the parameters."""
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    return [y, *torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def seen(module: nn.Module) -> list[list[tuple[str, object]]]:
    """Implementations that were chosen, with rows or elements."""
    return [
        [
            (one.implementation, one.problem.as_dict.get("rows", one.problem.as_dict.get("elements")))
            for one in each.choices
        ]
        for each in module
    ]


@pytest.mark.parametrize("implementation", [None, "stand_in"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_computes_what_a_call_outside_does(implementation: str | None, dynamic: bool) -> None:
    ours = model(implementation)
    call, plain = compiled(ours, dynamic=dynamic), copy.deepcopy(ours)
    for rows in (4, 7) if dynamic else (4,):
        x = torch.randn(rows, 6)
        same(results(call, ours, x), results(plain, plain, x))
    if implementation is not None:
        assert {name for each in seen(ours) for name, _ in each} == {"column_major", "stand_in"}


def test_a_graph_of_any_size_keeps_the_choice_of_the_call_that_was_traced() -> None:
    ours = drop_in.LayerNorm(8, implementation="stand_in")
    call = compiled(ours, dynamic=True)
    for rows in (4, 5, 300):
        call(torch.randn(rows, 8))
    assert [choice.problem["rows"] for choice in ours.choices] == [4]
    call = compiled(ours)
    for rows in (16, 600):  # torch.compile takes the first as the only one, and the second as any
        call(torch.randn(rows, 8))
    assert [choice.problem["rows"] for choice in ours.choices] == [4, 16, 600]


def test_freezing_another_mode_and_other_parameters_are_seen() -> None:
    ours = drop_in.LayerNorm(8, implementation="stand_in")
    call, x = compiled(ours), torch.randn(4, 8)
    same(results(call, ours, x), results(ours, ours, x))
    ours.weight = nn.Parameter(torch.rand(8))
    same(results(call, ours, x), results(ours, ours, x))
    with torch.no_grad():
        ours.weight.mul_(2)
        same([call(x)], [ours.eval()(x)])
    assert [choice.problem["mode"] for choice in ours.choices] == ["training", "inference"]
    ours.freeze("torch_layer_norm")
    same([call(x)], [ours(x)])
    assert ours._selections[""].recorded == {}
    ours.unfreeze()
    same([call(x)], [ours(x)])
    (built,) = ours._selections[""].recorded.values()
    assert {one.device.type for one in built.parameters()} == {"meta"}  # no graph keeps a weight


def test_frozen_parameters_and_autocast_get_choices_of_their_own() -> None:
    ours = drop_in.Linear(6, 8, implementation="column_major").eval()
    call, x = compiled(ours), torch.randn(4, 6)
    same([call(x)], [ours(x)])
    with torch.autocast("cpu", torch.bfloat16):
        same([call(x)], [ours(x)])
    ours.requires_grad_(False)
    same([call(x)], [ours(x)])
    found = [(one.problem["mode"], one.problem["dtype"]) for one in ours.choices]
    assert found == [("training", "float32"), ("training", "bfloat16"), ("inference", "float32")]
    assert len(ours._selections[""].recorded) == 3


def test_a_computed_weight() -> None:
    ours = nn.utils.parametrizations.weight_norm(drop_in.Linear(6, 8, implementation="column_major"))
    x = torch.randn(4, 6)
    same(results(compiled(ours), ours, x), results(ours, ours, x))


def test_what_refuses_a_problem_says_so() -> None:
    ours = drop_in.GELU(implementation="from_output")
    with pytest.raises(Exception, match="Triton compiles for GPUs, and this device is none"):
        compiled(ours)(torch.randn(4, 6))


def test_a_break_is_found() -> None:
    """Of torch's own class, which stays what it was beside ours."""
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(nn.LSTM(5, 6))(torch.randn(4, 3, 5))
