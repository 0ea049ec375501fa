"""Scaled dot product attention, as `torch.nn.functional.scaled_dot_product_attention`.

Dimensions: B batch, H heads, G kv_heads (query head h reads key head h G // H), S seq, K kv_seq, D head_dim.

    s = q k^T / sqrt(D) + bias                             # [B, H, S, K]
    allowed[i, j] = mask[i, j] and (j <= i if causal)      # both aligned at the top left, as in torch
    P = softmax of s over the allowed keys j; 0 in a row that may see no key
    W = P, of which training drops a share of `dropout`, and divides the rest by 1 - dropout
    out = W v                                              # [B, H, S, D]

A module has no parameters. It takes q [B, H, S, D], k and v [B, G, K, D]; then, where the problem says so,
`mask`, True where a query may see a key: [B, 1, S, K] (`boolean`) or [B, 1, 1, K] (`padding`), which gets no
gradient; then `bias` [H, S, K], which does. It returns out, or (out, W) with `return_weights`, W being
what was multiplied with v, as `nn.MultiheadAttention` returns it.

Inputs with a mask have rows whose logits are all about -128, where a kernel that adds up exponentials
without subtracting their maximum has nothing left; torch 2.11 with cuDNN 9.19 gives NaN for the gradient
of q there when seq is an odd multiple of 64. A `boolean` mask has a row that may see no key at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...contract import Boolean, Integer, Number, Operator
from ...contract.hyperparameter import DTYPE, MODE, OneOf
from ._operator import EXAMPLES, SPACES, make_inputs
from ._work import LEAST

HYPERPARAMETERS = (
    Integer(name="batch", aliases=("batch_size",), maximum=2**20, help="sequences at once (B)"),
    Integer(name="heads", aliases=("num_heads",), maximum=65536, help="heads of the queries (H)"),
    Integer(
        name="kv_heads",
        aliases=("num_kv_heads", "num_key_value_heads"),
        default="=heads",
        maximum=65536,
        help="heads of keys and values (G), each for heads / kv_heads heads of the queries",
    ),
    Integer(name="seq", aliases=("seq_len", "sequence_length"), maximum=2**24, help="queries (S)"),
    Integer(name="kv_seq", aliases=("kv_seq_len",), default="=seq", maximum=2**24, help="keys (K)"),
    Integer(
        name="head_dim", aliases=("head_size",), default=64, maximum=65536, help="features of a head (D)"
    ),
    Boolean(
        name="causal", aliases=("is_causal",), default=False, help="query i sees the keys 0 to i, and no more"
    ),
    OneOf(
        name="mask",
        aliases=("attn_mask",),
        default="none",
        choices=("none", "boolean", "padding"),
        help="which keys a query may see: all, a boolean tensor [B, 1, S, K], or those before a length",
    ),
    Boolean(name="bias", default=False, help="with an additive bias [H, S, K] that gets a gradient"),
    Number(
        name="dropout",
        aliases=("dropout_p",),
        default=0.0,
        implied=True,
        help="share of the weights that training drops at random",
    ),
    Boolean(
        name="return_weights",
        aliases=("need_weights",),
        default=False,
        implied=True,
        help="return the weights [B, H, S, K] beside the outputs",
    ),
    DTYPE,
    MODE,
)


def conflict(values: Mapping[str, Any]) -> str | None:
    """Heads that cannot be shared out, in words, or None."""
    heads, groups = values["heads"], values["kv_heads"]
    if heads % groups:
        return f"kv_heads={groups} does not divide heads={heads}: each serves as many query heads."
    return None


OPERATOR = Operator(
    name="attention",
    title="scaled dot product attention",
    hyperparameters=HYPERPARAMETERS,
    default="torch_sdpa",
    make_inputs=make_inputs,
    work=LEAST.work,
    examples=EXAMPLES,
    spaces=SPACES,
    conflict=conflict,
)
