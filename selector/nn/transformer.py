"""Drop-in modules for nn.TransformerEncoderLayer and nn.TransformerDecoderLayer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from .attention import MultiheadAttention
from .hyperparameters import activation_word, added_norm_values, computed_dtype, feed_forward_values
from .selected import Selected, adopt, as_torchs_where_looked_into, stands_for


class _TransformerLayer(Selected):
    """Base class of both layers: the feed-forward block, and norms with their dropout and residual
    addition.
    """

    ATTENTION: ClassVar[tuple[str, ...]] = ("self_attn",)
    norm_first: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        policy = replace(self._selections["feed_forward"].policy, implementation=None)
        for name in self.ATTENTION:
            adopt(getattr(self, name), MultiheadAttention, {"": policy})

    def _ff(self, x: Tensor) -> nn.Module | None:
        """Feed-forward implementation for x [..., E]."""
        own: Any = self
        if "feed_forward" not in self._selections or not self._whole_ff():
            return None
        word = activation_word(own.activation)
        biases = [own.linear1.bias is None, own.linear2.bias is None]
        if word is None or biases[0] != biases[1]:
            return None
        dropout, inner = own.dropout.p, own.linear1.out_features
        return self._implementation(
            x,
            computed_dtype(x),
            (x.shape, inner, word, dropout),
            lambda: feed_forward_values(x, inner, word, dropout, not biases[0]),
            "feed_forward",
        )

    def _chosen_parts(self, x: Tensor, norms: int) -> list[Any]:
        """Implementations for x [..., E] of the feed-forward block and of the norms, in order."""
        ff = self._chosen("feed_forward", "_ff", x)
        return [ff, *(self._chosen(f"norm{one}", "_norm", one, x) for one in range(1, norms + 1))]

    def _settings(self, name: str) -> tuple[Any, ...]:
        own: Any = self
        if name == "feed_forward":
            return (getattr(own.dropout, "p", None),)
        dropout, norm = getattr(self, name.replace("norm", "dropout")), getattr(self, name)
        return getattr(dropout, "p", None), getattr(norm, "eps", None)

    def _whole_ff(self) -> bool:
        """Whether the modules of the feed-forward block are unmodified."""
        own: Any = self
        called = (own.activation,) if isinstance(own.activation, nn.Module) else ()
        linears = stands_for(own.linear1, own.linear2, kind=nn.Linear)
        return linears and stands_for(own.dropout, kind=nn.Dropout) and stands_for(*called)

    def _norm(self, number: int, x: Tensor) -> nn.Module | None:
        """Implementation of a norm with its dropout and residual addition, for x [..., E]; None where
        modules were modified.
        """
        if self.norm_first or f"norm{number}" not in self._selections:
            return None
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if not (stands_for(norm, kind=nn.LayerNorm) and stands_for(dropout, kind=nn.Dropout)):
            return None
        share = dropout.p
        return self._implementation(
            x,
            x.dtype,
            (x.shape, share, norm.eps),
            lambda: added_norm_values(norm, x, share),
            f"norm{number}",
        )

    def _half(self, number: int, chosen: nn.Module | None, y: Tensor, x: Tensor) -> Tensor:
        """Sum of x and dropout of y, with the norm behind it where there is one."""
        if chosen is not None:
            normed: Tensor = chosen(y, x)
            return normed
        joined: Tensor = x + getattr(self, f"dropout{number}")(y)
        return joined if self.norm_first else getattr(self, f"norm{number}")(joined)

    def _before(self, number: int, x: Tensor) -> Tensor:
        """Input of a sublayer: x, normalized with norm_first."""
        return getattr(self, f"norm{number}")(x) if self.norm_first else x

    def _fed(self, chosen: nn.Module | None, x: Tensor) -> Tensor:
        compute: Any = self._plainly_fed if chosen is None else chosen
        y: Tensor = compute(x)
        return y

    def _plainly_fed(self, x: Tensor) -> Tensor:
        own: Any = self
        y: Tensor = own.linear2(own.dropout(own.activation(own.linear1(x))))
        return y

    def _lent(self, name: str) -> dict[str, Tensor | None]:
        own: Any = self
        if name == "feed_forward":
            parts = {"linear1": own.linear1, "linear2": own.linear2}
            return {
                f"{path}.{leaf}": getattr(part, leaf)
                for path, part in parts.items()
                for leaf in ("weight", "bias")
            }
        norm = getattr(self, name)
        return {"weight": norm.weight, "bias": norm.bias}


class TransformerEncoderLayer(_TransformerLayer, nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` with selected implementations. See `Selected` for the further
    arguments.

    Its attention is a `MultiheadAttention` of this package, with choices of its own. `implementation` is a
    mapping, such as `{"feed_forward": "from_output", "norm1": "fused"}`.
    """

    OPERATORS = {"feed_forward": "feed_forward", "norm1": "dropout_add_norm", "norm2": "dropout_add_norm"}

    @as_torchs_where_looked_into
    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Output in the shape of src: [S, B, E], or [B, S, E] with batch_first."""
        ff, norm1, norm2 = (None, None, None) if src.is_nested else self._chosen_parts(src, 2)
        if ff is None and norm1 is None and norm2 is None:  # torch's own, with its fast path
            y: Tensor = super().forward(src, src_mask, src_key_padding_mask, is_causal)
            return y
        query = self._before(1, src)
        seen, _ = self.self_attn(
            query,
            query,
            query,
            attn_mask=src_mask,
            key_padding_mask=src_key_padding_mask,
            need_weights=False,
            is_causal=is_causal,
        )
        x = self._half(1, norm1, seen, src)
        return self._half(2, norm2, self._fed(ff, self._before(2, x)), x)


class TransformerDecoderLayer(_TransformerLayer, nn.TransformerDecoderLayer):
    """`torch.nn.TransformerDecoderLayer` with selected implementations, as `TransformerEncoderLayer`."""

    OPERATORS = {**TransformerEncoderLayer.OPERATORS, "norm3": "dropout_add_norm"}
    ATTENTION = ("self_attn", "multihead_attn")

    @as_torchs_where_looked_into
    def forward(self, tgt: Tensor, memory: Tensor, *rest: Any, **named: Any) -> Tensor:
        """Output in the shape of tgt, for tgt [T, B, E] and memory [S, B, E], or batch first."""
        ff, *norms = self._chosen_parts(tgt, 3)
        if ff is None and not any(norms):
            y: Tensor = super().forward(tgt, memory, *rest, **named)
            return y
        masks = _DecoderMasks(*rest, **named)
        query = self._before(1, tgt)
        seen, _ = self.self_attn(
            query,
            query,
            query,
            attn_mask=masks.tgt_mask,
            key_padding_mask=masks.tgt_key_padding_mask,
            is_causal=masks.tgt_is_causal,
            need_weights=False,
        )
        x = self._half(1, norms[0], seen, tgt)
        seen, _ = self.multihead_attn(
            self._before(2, x),
            memory,
            memory,
            attn_mask=masks.memory_mask,
            key_padding_mask=masks.memory_key_padding_mask,
            is_causal=masks.memory_is_causal,
            need_weights=False,
        )
        x = self._half(2, norms[1], seen, x)
        return self._half(3, norms[2], self._fed(ff, self._before(3, x)), x)


class _DecoderMasks(NamedTuple):
    """Further arguments of `nn.TransformerDecoderLayer.forward`, in torch's order."""

    tgt_mask: Tensor | None = None
    memory_mask: Tensor | None = None
    tgt_key_padding_mask: Tensor | None = None
    memory_key_padding_mask: Tensor | None = None
    tgt_is_causal: bool = False
    memory_is_causal: bool = False
