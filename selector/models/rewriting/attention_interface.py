"""Selected attention implementations behind Hugging Face's attention interface.

Their attention modules look up a function by the name in the model's config at each call. Registering one of
ours changes no class and no module, and serves every model that uses the interface; replacing modules would
need a class of ours for each of theirs, and a copy of its forward.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from ...nn import ScaledDotProductAttention

CHILD = "selected_attention"  # the name of our module in an attention module; it has no parameters
NAMES = {"sdpa": "selector_sdpa"}  # their name for an attention -> ours for the same with choices


class InterfaceAttention(ScaledDotProductAttention):
    """Attention module for Hugging Face's models; loading it from a file registers our attention function."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _register()


def attention_name(model: nn.Module) -> str | None:
    """Attention function named in a model's config; None for models other than Hugging Face's."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if isinstance(name, str) and hasattr(model, "set_attn_implementation") else None


def name_at(model: nn.Module, path: str) -> str | None:
    """Attention function named in the config of the outermost Hugging Face model around a path."""
    above = ["", *accumulate(path.split("."), "{}.{}".format)]
    found = (attention_name(model.get_submodule(one)) for one in above)
    return next((name for name in found if name is not None), None)


def names(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Hugging Face models among a model's submodules, each with the attention function of its config."""
    found = ((part, attention_name(part)) for part in model.modules())
    return [(part, name) for part, name in found if name is not None]


def rename(model: Any, name: str) -> None:
    """Set the attention function in the config of a Hugging Face model."""
    if model.config._attn_implementation != name:
        model.set_attn_implementation(name)


def turn_on(model: nn.Module) -> None:
    """Switch the attention of a Hugging Face model, or of those inside a model, to ours."""
    _register()
    for part in model.modules():
        ours = any(CHILD in one._modules for one in part.modules())
        if ours and attention_name(part) in NAMES:
            rename(part, NAMES[str(attention_name(part))])


def turn_off(model: nn.Module) -> None:
    """Undo `turn_on`."""
    back = {ours: theirs for theirs, ours in NAMES.items()}
    for part in model.modules():
        if attention_name(part) in back:
            rename(part, back[str(attention_name(part))])


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for theirs, ours in NAMES.items():
        AttentionInterface.register(ours, attend)
        AttentionMaskInterface.register(ours, ALL_MASK_ATTENTION_FUNCTIONS[theirs])


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **call: Any
) -> tuple[Tensor, None]:
    """Attention output [B, S, H, D] of query [B, H, S, D], key and value [B, G, K, D], as the interface's
    function `sdpa`.
    """
    chosen = getattr(module, CHILD, None)
    theirs = sys.modules["transformers.integrations.sdpa_attention"].sdpa_attention_forward
    known = {"dropout", "scaling", "is_causal"}
    if chosen is None or any(value is not None and name not in known for name, value in _tensors(call)):
        out: tuple[Tensor, None] = theirs(module, query, key, value, attention_mask, **call)
        return out
    causal = call.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and attention_mask is None and query.size(2) > 1
    if causal and key.size(2) > query.size(2):
        key, value = key[:, :, : query.size(2)], value[:, :, : query.size(2)]
    seen = chosen(
        query, key, value, attention_mask, call.get("dropout", 0.0), causal, scale=call.get("scaling")
    )
    return seen.transpose(1, 2).contiguous(), None


def _tensors(call: dict[str, Any]) -> list[tuple[str, Any]]:
    """Given arguments that change the result."""
    return [
        (name, call.get(name)) for name in ("position_bias", "cache", "softcap", "sliding_window", "s_aux")
    ]
