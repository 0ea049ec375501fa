"""Drop-in modules for scaled dot product attention and nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from .hyperparameters import Values, attention_values, computed_dtype
from .selected import PLAIN, Selected, as_torchs_where_looked_into


class _Attending(Selected):
    """Mixin that selects an attention implementation for q [B, H, S, D], k and v [B, G, K, D]."""

    OPERATORS = {"": "attention"}

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        causal: bool,
        dropout: float,
        return_weights: bool = False,
    ) -> nn.Module | None:
        """Implementation for a call, with attention dropout where `dropout` is more than 0."""

        def values() -> Values:
            return attention_values(q, k, mask, causal=causal, dropout=dropout, return_weights=return_weights)

        kind = None if mask is None else mask.shape
        key = (q.shape, k.shape, kind, causal, dropout, return_weights)
        return self._implementation(q, computed_dtype(q), key, values)


class ScaledDotProductAttention(_Attending):
    """Module form of `torch.nn.functional.scaled_dot_product_attention`. See `Selected` for its arguments.

    Masks that are no booleans, heads of several sizes and inputs of other than four dimensions are torch's.
    """

    def _torchs(self, *args: Any, **kwargs: Any) -> Tensor:
        return scaled_dot_product_attention(*args, **kwargs)

    @as_torchs_where_looked_into
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **named: Any,
    ) -> Tensor:
        """Attention output [B, H, S, D] of query [B, H, S, D], key and value [B, G, K, D]; G divides H.

        Parameters
        ----------
        attn_mask : bool Tensor, broadcast to [B, H, S, K], optional
            True where a query may see a key.
        dropout_p : float
            Dropout probability of the attention weights.
        is_causal : bool
            Whether each query sees the keys up to its own position.
        scale : float, by keyword
        enable_gqa : bool, by keyword
            Grouped-query attention; it must be True where H and G differ.
        """
        scale, grouped = _Scaling(**named)
        chosen = None
        if _is_ours(query, key, value, attn_mask):
            attn_mask = _four(attn_mask)
            chosen = self._chosen("", "_dropping", query, key, attn_mask, is_causal, dropout_p)
        if chosen is None:
            return scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=grouped or query.shape[-3:-2] != key.shape[-3:-2],
            )
        if scale is not None and scale != query.size(3) ** -0.5:
            query = query * (scale * query.size(3) ** 0.5)
        out: Tensor = chosen(query, key, value, *(() if attn_mask is None else (attn_mask,)))
        return out

    def _dropping(
        self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, dropout: float
    ) -> nn.Module | None:
        """Implementation for a call, which drops whatever the mode is."""
        chosen = self._attention(q, k, mask, causal, dropout)
        return None if chosen is None else chosen.train(dropout > 0)


class MultiheadAttention(_Attending, nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with a selected implementation. See `Selected` for the further
    arguments.

    Masks that are no booleans (and no causal hint), `bias_k`, `add_zero_attn`, and unbatched inputs are
    torch's. `sizes` are batch, seq and kv_seq.
    """

    SIZES = ("batch", "seq", "kv_seq")

    @as_torchs_where_looked_into
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention output in the query's layout ([S, B, E], or [B, S, E] with batch_first) and the
        weights or None.
        """
        call = _Call(*rest, **named)
        causal = call.is_causal and call.key_padding_mask is None
        if self._fits(query, key, value, call):
            q, k, v = self._projected(query, key, value)
            looked_at = None if causal else call.attn_mask
            mask = _allowed(call.key_padding_mask, looked_at, heads=self.num_heads)
            weighted = call.need_weights
            chosen = self._chosen("", "_attention", q, k, mask, causal, self._share, weighted)
            if chosen is not None:
                found = chosen(q, k, v, *(() if mask is None else (mask,)))
                out, weights = found if weighted else (found, None)
                if weights is not None and call.average_attn_weights:
                    weights = weights.mean(1)
                return self._joined(out), weights
        outputs: tuple[Tensor, Tensor | None] = super().forward(query, key, value, **call._asdict())
        return outputs

    @property
    def _share(self) -> float:
        """Dropout probability of the attention weights in the current mode."""
        return self.dropout if self.training else 0.0

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        return {}  # attention itself has no parameters

    def _fits(self, query: Tensor, key: Tensor, value: Tensor, call: _Call) -> bool:
        """Whether implementations support the call; torch handles or rejects all other calls."""
        if self._selections[""].is_torchs_own or self.bias_k is not None or self.add_zero_attn:
            return False
        if type(query) not in PLAIN or query.is_nested or not query.dim() == key.dim() == value.dim() == 3:
            return False
        axis = 0 if self.batch_first else 1
        if key.shape[:2] != value.shape[:2] or query.size(axis) != key.size(axis):
            return False
        sizes = (query.size(2), key.size(2), value.size(2)) == (self.embed_dim, self.kdim, self.vdim)
        lengths = query.size(1 - axis), key.size(1 - axis)
        return sizes and call.is_ours(query.size(axis), self.num_heads, *lengths)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value after the input projections: [B, H, S or K, D]."""
        if self._qkv_same_embed_dim and query is key is value:
            every = linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self._qkv_same_embed_dim:
                weights = self.in_proj_weight.chunk(3)
            biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            given = (query, key, value)
            every = tuple(linear(x, w, b) for x, w, b in zip(given, weights, biases, strict=True))
        q, k, v = (
            (one if self.batch_first else one.transpose(0, 1))
            .unflatten(-1, (self.num_heads, self.head_dim))  # type: ignore[no-untyped-call]
            .transpose(1, 2)
            for one in every
        )
        return q, k, v

    def _joined(self, out: Tensor) -> Tensor:
        """Output projection of the heads [B, H, S, D], in the layout of the query."""
        joined = out.transpose(1, 2).flatten(2)
        if not self.batch_first:
            joined = joined.transpose(0, 1)
        return linear(joined, self.out_proj.weight, self.out_proj.bias)

    def _chosen_for_call(self, q: Tensor, k: Tensor) -> nn.Module | None:
        return self._attention(q, k, None, False, self._share, True)

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        one = self.out_proj.weight.detach().new_empty(1)
        shape = (sizes["batch"], self.num_heads)
        return tuple(one.expand(*shape, sizes[name], self.head_dim) for name in ("seq", "kv_seq"))


class _Call(NamedTuple):
    """Further arguments of `nn.MultiheadAttention.forward`, in torch's order."""

    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False

    def is_ours(self, batch: int, heads: int, seq: int, kv_seq: int) -> bool:
        """Whether the masks are boolean and have shapes that torch accepts."""
        padding, mask = self.key_padding_mask, self.attn_mask
        if padding is not None and (padding.dtype != torch.bool or padding.shape != (batch, kv_seq)):
            return False
        if mask is None:
            return not self.is_causal  # torch wants the mask with its hint
        hinted = self.is_causal and padding is None
        shapes = (seq, kv_seq), (batch * heads, seq, kv_seq)
        return mask.shape in shapes and (hinted or mask.dtype == torch.bool)


class _Scaling(NamedTuple):
    """Keyword arguments of scaled dot product attention."""

    scale: float | None = None
    enable_gqa: bool = False


def _is_ours(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape != value.shape:
        return False
    if query.size(0) != key.size(0) or query.size(3) != key.size(3):
        return False
    return mask is None or (
        mask.dtype == torch.bool and 2 <= mask.dim() <= 4 and mask.size(-1) == key.size(2)
    )


def _four(mask: Tensor | None) -> Tensor | None:
    """Mask expanded to four dimensions."""
    return None if mask is None else mask[(None,) * (4 - mask.dim())]


def _allowed(padding: Tensor | None, mask: Tensor | None, *, heads: int) -> Tensor | None:
    """Boolean mask [B or 1, H or 1, S or 1, K] of visible keys, from masks [B, K] and [S, K] or [B*H, S,
    K].

    Torch's masks are True where a key must not be seen.
    """
    allowed = None
    if mask is not None:
        allowed = ~(mask[None, None] if mask.dim() == 2 else mask.unflatten(0, (-1, heads)))  # type: ignore[no-untyped-call]
    if padding is not None:
        seen = ~padding[:, None, None]
        allowed = seen if allowed is None else allowed & seen
    return allowed
