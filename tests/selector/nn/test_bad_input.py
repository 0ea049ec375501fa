"""Bad input gets the exception class that torch's module raises, and what torch takes is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import selector
import selector.nn as snn

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of what it converts
KINDS: dict[str, tuple[tuple[Any, ...], Any, tuple[int, ...]]] = {
    "Linear": ((5, 4), "column_major", (3, 5)),
    "LayerNorm": ((5,), None, (3, 5)),
    "RMSNorm": ((5,), None, (3, 5)),
    "GELU": ((), None, (3, 5)),
    "ReLU": ((), None, (3, 5)),
    "SiLU": ((), None, (3, 5)),
    "LSTM": ((5, 4), "hoisted", (6, 3, 5)),
    "GRU": ((5, 4), "hoisted", (6, 3, 5)),
    "RNN": ((5, 4), "hoisted", (6, 3, 5)),
    "TransformerEncoderLayer": ((8, 2, 16), {"feed_forward": "recompute_first_linear"}, (6, 3, 8)),
    "MultiheadAttention": ((8, 2), "recompute", (6, 3, 8)),
}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"objective": "fast"}, "objective='fast': expected one of time, memory"),
        ({"memory": "1XX"}, "memory='1XX'"),
        ({"memory": -1}, "memory=-1"),
    ],
)
def test_what_no_call_can_be_chosen_by_is_refused_when_a_module_is_made(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(selector.InvalidRequest, match=re.escape(words)):
        snn.GELU(**given)


def inputs(shape: tuple[int, ...]) -> dict[str, Any]:
    x = torch.randn(shape)
    kinds = (torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)
    return {
        "one dimension": x.flatten()[: shape[-1]],
        "five dimensions": x.expand(1, 1, *x.shape) if x.dim() == 3 else x.expand(1, 1, 1, *x.shape),
        "another last size": torch.randn(*shape[:-1], shape[-1] + 1),
        "no rows": x[:0],
        "no features": x[..., :0],
        "no values": x.to("meta"),
        "None": None,
        "a list": [1.0, 2.0],
        **{str(kind): x.to(kind) for kind in kinds},
    }


def states(kind: str, x: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    def given(h: torch.Tensor) -> Any:
        return (h, h) if kind == "LSTM" else h

    right, packed = torch.zeros(1, 3, 4), pack_padded_sequence(x, torch.tensor([6, 4, 2]))
    wide = pack_padded_sequence(torch.randn(6, 3, 6), torch.tensor([6, 4, 2]))
    shapes = {"rows": (2, 3, 4), "batch": (1, 2, 4), "dimensions": (3, 4), "size": (1, 3, 5)}
    return {
        "right": (x, given(right)),
        **{f"state {name}": (x, given(torch.zeros(shape))) for name, shape in shapes.items()},
        "state float64": (x, given(right.double())),
        "state int64": (x, given(right.long())),
        "state without values": (x, given(right.to("meta"))),
        "state of another kind": (x, right if kind == "LSTM" else (right, right)),
        "state a list": (x, [1, 2]),
        "packed": (packed,),
        "packed, another size": (wide,),
        "packed, state batch": (packed, given(torch.zeros(1, 2, 4))),
        "no sequences": (x[:, :0],),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_exception_classes_are_torchs(kind: str) -> None:
    arguments, implementation, shape = KINDS[kind]
    theirs = getattr(nn, kind)(*arguments)
    ours = getattr(snn, kind)(*arguments, implementation=implementation)
    ours.load_state_dict(theirs.state_dict())
    count = 3 if kind == "MultiheadAttention" else 1
    calls = {name: (one,) * count for name, one in inputs(shape).items()}
    calls |= {"nothing": (), "too many": (torch.randn(shape),) * 9}
    if kind in ("LSTM", "GRU", "RNN"):
        calls |= states(kind, torch.randn(shape))
    for name, given in calls.items():
        outcomes = []
        for module in (theirs, ours):
            try:
                module(*given)
            except Exception as error:
                outcomes.append(type(error))
            else:
                outcomes.append(type(None))
        assert outcomes[0] is outcomes[1], (name, outcomes)
