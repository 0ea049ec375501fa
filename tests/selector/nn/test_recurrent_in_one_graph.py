"""Drop-in recurrent modules under torch.compile with fullgraph: the choice is made while a call is traced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from kernel_selector.kernels.recurrent.torch_layers import TorchLSTM
from selector import nn as drop_in

# of torch.compile, where it traces an autograd.Function
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def compiled(module: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


def results(call: Any, module: nn.Module, x: Tensor, hx: Any) -> list[Tensor]:
    """Outputs, and the gradients of x and the parameters."""
    leaf = x.clone().requires_grad_()
    y, last = call(leaf, hx)
    outputs = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((one.square().sum() for one in outputs), torch.zeros(()))
    return [*outputs, *torch.autograd.grad(loss, [leaf, *module.parameters()])]


@pytest.mark.parametrize(
    ("kind", "implementation", "options"),
    [
        (drop_in.LSTM, "hoisted", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (drop_in.LSTM, None, {"bias": False}),
        (drop_in.GRU, "unfused", {}),
        (drop_in.RNN, "torch_rnn", {"nonlinearity": "relu", "num_layers": 2}),
    ],
)
def test_one_graph_computes_what_a_call_outside_does(kind: Any, implementation: Any, options: Any) -> None:
    torch.manual_seed(0)
    ours = kind(6, 8, implementation=implementation, **options)
    call, plain = compiled(ours, dynamic=True), copy.deepcopy(ours)
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    for batch in (4, 7):
        x = torch.randn((batch, 5, 6) if options.get("batch_first") else (5, batch, 6))
        states = [torch.randn(layers, batch, 8) for _ in range(2)]
        hx = tuple(states) if kind is drop_in.LSTM else states[0]
        for given in (None, hx) if batch == 4 else (hx,):
            found, expected = results(call, ours, x, given), results(plain, plain, x, given)
            torch.testing.assert_close(found, expected)
    if implementation is not None:
        assert {choice.implementation for choice in ours.choices} == {implementation}


@pytest.mark.parametrize("in_order", [True, False])
def test_a_packed_sequence(in_order: bool) -> None:
    ours = drop_in.GRU(6, 8, implementation="hoisted")
    lengths = (5, 3, 1) if in_order else (1, 5, 3)
    packed = pack_sequence([torch.randn(length, 6) for length in lengths], enforce_sorted=in_order)
    (y, last), (theirs, their_last) = compiled(ours)(packed), copy.deepcopy(ours)(packed)
    torch.testing.assert_close((*y[:2], last), (*theirs[:2], their_last))
    (choice,) = ours.choices
    assert (choice.problem["batch"], choice.problem["seq"], choice.problem["packed"]) == (
        2 if in_order else 3, 5, True,
    )  # fmt: skip  # nine steps in five are two sequences and less


def test_freezing_and_other_attributes_are_seen() -> None:
    ours = drop_in.LSTM(6, 8, implementation="hoisted")
    call, x = compiled(ours), torch.randn(5, 4, 6)
    torch.testing.assert_close(call(x), ours(x))
    ours.freeze("torch_lstm")
    torch.testing.assert_close(call(x), ours(x))
    assert [type(one) for one in ours._selections[""].recorded.values()] == [TorchLSTM]
    ours.unfreeze()
    ours.batch_first = True
    with torch.no_grad():
        ours.weight_ih_l0.mul_(2)
        torch.testing.assert_close(call(x), ours.eval()(x))
    (built,) = ours._selections[""].recorded.values()
    assert {one.device.type for one in built.parameters()} == {"meta"}  # no graph keeps a weight
    assert {one.device.type for one in built._flat_weights} == {"meta"}
