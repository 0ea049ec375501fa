"""Export, tracing, scripting, quantisation and torch.func: as with torch's module, or refused in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import selector
import selector.nn as snn

pytestmark = [
    pytest.mark.filterwarnings("ignore:`?torch.(jit|ao)"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights"),  # of torch's nn.RNNBase
]
MODULES: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[torch.Tensor, ...]]] = {
    "Linear": ((5, 4), {"implementation": "column_major"}, (torch.randn(3, 5),)),
    "GRU": ((5, 4), {"implementation": "hoisted"}, (torch.randn(3, 2, 5),)),
    "LSTM": ((5, 4), {"implementation": "hoisted"}, (torch.randn(3, 2, 5),)),
    "MultiheadAttention": ((8, 2), {"implementation": "recompute"}, (torch.randn(3, 2, 8),) * 3),
    "TransformerEncoderLayer": ((8, 2, 16), {}, (torch.randn(3, 2, 8),)),
    "LinearCrossEntropy": ((5, 4), {"implementation": "chunked"}, (torch.randn(2, 5), torch.tensor([1, 3]))),
    "AdditiveAttention": ((8,), {}, (torch.randn(3, 2, 8), torch.randn(3, 4, 8))),
}  # fmt: skip
WITHOUT_TORCHS = {"LinearCrossEntropy", "AdditiveAttention"}


def both(name: str) -> tuple[Any, Any, tuple[torch.Tensor, ...]]:
    """Ours after a call, torch's or None, and the inputs."""
    arguments, named, inputs = MODULES[name]
    ours = getattr(snn, name)(*arguments, **named).eval()
    ours(*inputs)
    theirs = None
    if name not in WITHOUT_TORCHS:
        theirs = getattr(nn, name)(*arguments).eval()
        theirs.load_state_dict(ours.state_dict())
    return ours, theirs, inputs


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_torch_export(name: str) -> None:
    ours, _, inputs = both(name)
    same(torch.export.export(ours, inputs).module()(*inputs), ours(*inputs))
    if name not in WITHOUT_TORCHS:
        same(torch.export.export(ours, inputs, strict=True).module()(*inputs), ours(*inputs))


def test_torch_export_of_any_batch() -> None:
    ours, _, inputs = both("Linear")
    exported = torch.export.export(
        nn.Sequential(ours), inputs, dynamic_shapes=({0: torch.export.Dim("rows")},)
    )
    x = torch.randn(11, 5)
    same(exported.module()(x), ours(x))
    layer = snn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    y = torch.randn(3, 4, 8)
    layer(y)
    layer.freeze()
    exported = torch.export.export(layer, (y,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    same(exported.module()(y[:2]), layer(y[:2]))


def test_torch_export_of_attention() -> None:
    q = torch.randn(2, 3, 4, 8)
    attention = snn.ScaledDotProductAttention(implementation="recompute")
    same(torch.export.export(attention, (q, q, q)).module()(q, q, q), attention(q, q, q))


@pytest.mark.parametrize("name", ["Linear", "GRU", "LSTM", "MultiheadAttention"])
def test_what_is_no_tensor_is_refused_as_by_torch(name: str) -> None:
    ours, theirs, inputs = both(name)
    for given in (None, [1.0, 2.0]):
        raised = []
        for module in (theirs, ours):
            with pytest.raises((TypeError, AttributeError)) as refusal:
                module(*(given for _ in inputs))
            raised.append(refusal.type)
        assert raised[0] is raised[1]


@pytest.mark.parametrize("name", ["Linear", "LinearCrossEntropy", "GRU", "LSTM", "AdditiveAttention"])
def test_torch_jit_trace(name: str) -> None:
    ours, _, inputs = both(name)
    traced = torch.jit.trace(ours, inputs, check_trace=False)
    same(traced(*inputs), ours(*inputs))


@pytest.mark.parametrize("name", ["Linear", "GRU", "LSTM", "MultiheadAttention", "TransformerEncoderLayer"])
def test_torch_jit_script(name: str) -> None:
    ours, theirs, inputs = both(name)
    if name == "MultiheadAttention":
        scripted = torch.jit.script(ours)
    else:
        scripted = torch.jit.script(nn.Sequential(ours).eval())
    same(scripted(*inputs), theirs(*inputs))
    assert {one.data_ptr() for one in scripted.parameters()} == {one.data_ptr() for one in ours.parameters()}
    torch.jit.freeze(scripted)


def test_torch_jit_script_of_what_torch_has_not() -> None:
    for name in WITHOUT_TORCHS:
        ours, _, _ = both(name)
        with pytest.raises(selector.InvalidRequest, match=r"torch\.export"):
            torch.jit.script(ours)


def test_torch_fx() -> None:
    ours, theirs, inputs = both("Linear")
    for module in (ours, theirs):
        same(torch.fx.symbolic_trace(nn.Sequential(module))(*inputs), theirs(*inputs))


def test_quantisation_by_class_is_refused() -> None:
    model = nn.Sequential(snn.Linear(5, 4), nn.Linear(4, 3))
    with pytest.raises(selector.InvalidRequest, match=r"selector\.restore"):
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    assert not hasattr(model[0], "qconfig")


def test_torch_func_and_copies() -> None:
    ours, theirs, (x,) = both("Linear")
    other = {name: one.detach() * 2 for name, one in ours.named_parameters()}
    same(torch.func.functional_call(ours, other, (x,)), torch.func.functional_call(theirs, other, (x,)))
    models = [copy.deepcopy(ours) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    found = torch.vmap(lambda p, b: torch.func.functional_call(ours, (p, b), (x,)))(parameters, buffers)
    same(found, torch.stack([theirs(x)] * 3))
    assert ours.share_memory() is ours
    same(ours(x), theirs(x))
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_tensors_that_hold_no_values() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        layer = snn.Linear(5, 4, implementation="column_major")
        assert layer(torch.randn(7, 5)).shape == (7, 4)
        assert snn.GRU(5, 4, implementation="hoisted")(torch.randn(7, 2, 5))[0].shape == (7, 2, 4)
