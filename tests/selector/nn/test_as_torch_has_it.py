"""Signatures, arguments by keyword, and masks: as torch's modules have them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from selector import InvalidRequest
from selector import nn as drop_in

pytestmark = pytest.mark.usefixtures("stand_ins")

PADDED = torch.tensor([[False, False, True], [False, False, False]])


@pytest.mark.parametrize("name", ["Linear", "LayerNorm", "RMSNorm", "GELU", "MultiheadAttention"])
def test_constructors_are_seen_to_take_torchs_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(one, name)) for one in (drop_in, nn))
    own = list(ours.parameters.values())
    assert own[: len(theirs.parameters)] == list(theirs.parameters.values())
    rest = {one.name: one.kind for one in own[len(theirs.parameters) :]}
    assert set(rest) == {"implementation", "objective", "memory", "database", "sizes"}
    assert set(rest.values()) == {inspect.Parameter.KEYWORD_ONLY}


def test_initialization_can_be_skipped() -> None:
    skipped = nn.utils.skip_init(drop_in.Linear, 4, 3)
    skipped.load_state_dict(nn.Linear(4, 3).state_dict())
    assert skipped(torch.randn(2, 4)).shape == (2, 3)


def test_constructors_of_ones_own() -> None:
    class Mine(drop_in.LSTM):
        def __init__(self, size: int) -> None:
            super().__init__(size, size)

    assert list(inspect.signature(Mine).parameters) == ["size"]
    assert list(inspect.signature(drop_in.AdditiveAttention).parameters)[:3] == ["hidden", "heads", "score"]
    label_smoothing = inspect.signature(drop_in.LinearCrossEntropy).parameters["label_smoothing"]
    assert label_smoothing.default == 0.0
    # a module itself takes what its forward takes, as any of torch's
    assert inspect.signature(Mine(3)) == inspect.signature(nn.LSTM(3, 3))


def test_rms_norm_takes_its_argument_by_torchs_name() -> None:
    x = torch.randn(2, 8)
    torch.testing.assert_close(drop_in.RMSNorm(8)(x=x), nn.RMSNorm(8)(x=x))


@pytest.mark.parametrize(
    ("shapes", "call"),
    [
        (((2, 4, 5, 8), (2, 2, 6, 8)), {"enable_gqa": True}),
        (((2, 4, 5, 8), (2, 4, 6, 8)), {"enable_gqa": False, "scale": 0.5}),
        (((5, 8), (6, 8)), {}),
        (((4, 5, 8), (4, 6, 8)), {}),
    ],
)
def test_scaled_dot_product_attention_takes_what_torchs_does(shapes: Any, call: dict[str, Any]) -> None:
    q, k, v = (torch.randn(shapes[number]) for number in (0, 1, 1))
    ours = drop_in.ScaledDotProductAttention(implementation="recompute")
    torch.testing.assert_close(ours(q, k, v, **call), scaled_dot_product_attention(q, k, v, **call))


@pytest.mark.parametrize(
    "call",
    [
        {"is_causal": True},
        {"is_causal": True, "key_padding_mask": PADDED},
        {"key_padding_mask": PADDED[:1]},
        {"key_padding_mask": PADDED[0]},
        {"key_padding_mask": PADDED[:, :2]},
        {"attn_mask": torch.zeros(1, 3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(4, 1, dtype=torch.bool)},
        {"attn_mask": torch.zeros(2, 4, 3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(3, 4, 3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(3, dtype=torch.bool)},
        {"attn_mask": torch.zeros(2, 2, 4, 3, dtype=torch.bool)},
    ],
    ids=lambda call: " ".join(f"{name}{list(getattr(one, 'shape', ()))}" for name, one in call.items()),
)
def test_masks_that_torch_refuses_are_refused_in_its_words(call: dict[str, Any]) -> None:
    given = torch.randn(2, 4, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises((AssertionError, RuntimeError)) as expected:
        theirs(*given, **call)
    ours = drop_in.MultiheadAttention(8, 2, batch_first=True, implementation="recompute")
    with pytest.raises(expected.type) as found:
        ours(*given, **call)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"rows": -1}, {"rows": "a"}, {"rows": 2.5}, [3]])
def test_sizes_are_whole_numbers_by_name(sizes: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"expected (a whole number from 1|rows)"):
        drop_in.Linear(4, 4, sizes=sizes)


def test_an_implementation_is_a_name() -> None:
    with pytest.raises(InvalidRequest, match="implementation=3 for Linear: expected a name"):
        drop_in.Linear(4, 4, implementation=3)


def test_what_torch_has_no_module_for_gives_shapes_on_the_meta_device() -> None:
    query, memory = (torch.empty(2, steps, 8, device="meta") for steps in (3, 5))
    attention = drop_in.AdditiveAttention(8, device="meta")
    for _ in range(2):
        context, weights = attention(query, memory)
        assert (context.shape, weights.shape) == ((2, 3, 8), (2, 3, 5))
    head = drop_in.LinearCrossEntropy(8, 11, device="meta", implementation="chunked")
    assert head(query, torch.zeros(2, 3, dtype=torch.long, device="meta")).shape == ()
