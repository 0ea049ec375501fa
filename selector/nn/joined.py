"""Hugging Face self-attention whose query, key and value projections run as one matrix product.

Nothing is kept between calls, and nobody but the attention function sees the three outputs: they are one
node of autograd, which layers that a model calls one by one cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from kernel_selector.kernels.operators.linear._joined import joined

from .selected import watched

COMPUTED = (torch.float32, torch.float16, torch.bfloat16)  # what autocast casts


class JoinedAttention(nn.Module):
    """Mixin for the self-attention of BERT and RoBERTa; each call checks whether its projections can be
    joined.
    """

    MEMBERS = ("query", "key", "value")
    HOME: ClassVar[ModuleType]  # the module that theirs is in

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention output for hidden_states [B, S, H], and the weights or None."""
        own: Any = self
        if not isinstance(self, JoinedAttention):  # put back since a wrapper kept this function
            return type(self).forward(self, hidden_states, attention_mask, past_key_values, **kwargs)
        members = [getattr(own, name) for name in self.MEMBERS]
        # keys and values in a cache outlive the call, and may be differentiated apart
        if past_key_values is not None or not can_be_one(hidden_states, members):
            theirs: tuple[Tensor, Tensor | None] = super().forward(
                hidden_states, attention_mask, past_key_values, **kwargs
            )
            return theirs
        weights, biases = [one.weight for one in members], [one.bias for one in members]
        parts = joined(hidden_states, weights, None if biases[0] is None else biases)
        heads = (-1, own.attention_head_size)
        query, key, value = (one.unflatten(-1, heads).transpose(1, 2) for one in parts)  # type: ignore[no-untyped-call]
        home: Any = self.HOME
        attend = home.ALL_ATTENTION_FUNCTIONS.get_interface(
            own.config._attn_implementation, home.eager_attention_forward
        )
        share = own.dropout.p if self.training else 0.0
        out, seen = attend(
            self, query, key, value, attention_mask, dropout=share, scaling=own.scaling, **kwargs
        )
        return out.reshape(*hidden_states.shape[:-1], -1).contiguous(), seen


def can_be_one(x: Tensor, members: Sequence[nn.Module]) -> bool:
    """Whether one joint product of linear layers on x [..., K] has the same results as one product each.

    They do where gradients follow for all of their parameters, and nothing looks into them: no compiler,
    transform, mode or hook, no class of tensors or layers other than torch's own.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or not torch.is_grad_enabled():
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch._C._len_torch_dispatch_stack() or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    if type(x) is not Tensor or x.is_nested or x.is_meta or x.dim() < 2 or not x.numel():
        return False
    if any(type(one) is not nn.Linear or watched(one) for one in members):
        return False
    weights = [one._parameters.get("weight") for one in members]
    biases = [one._parameters.get("bias") for one in members]
    first = weights[0]
    if first is None or not _castable(x, first.dtype):
        return False
    with_bias = biases[0] is not None
    return all(
        weight is not None
        and _like(weight, first, (weight.size(0), x.size(-1)), x)
        and (bias is not None) == with_bias
        and (bias is None or _like(bias, first, (weight.size(0),), x))
        for weight, bias in zip(weights, biases, strict=True)
    )


def _castable(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the dtype of the product of x and weights of a dtype is known."""
    if torch.is_autocast_enabled(x.device.type):
        return x.dtype in COMPUTED and dtype in COMPUTED
    return x.dtype == dtype and dtype.is_floating_point


def _like(parameter: Tensor, first: Tensor, shape: tuple[int, ...], x: Tensor) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.shape == shape
        and parameter.dtype == first.dtype
        and parameter.device == x.device
        and parameter.layout == torch.strided
    )
