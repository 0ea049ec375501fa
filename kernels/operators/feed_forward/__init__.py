"""Feed-forward layers of transformers: two linear layers with an activation and dropout between them.

Dimensions: N rows (tokens), H hidden, F inner.

    h = x W1^T + b1                                    # [N, F]
    a = dropout(activation(h))                         # [N, F]
    y = a W2^T + b2                                    # [N, H]

A module takes x [..., H] and returns y [..., H]; parameters have the names that they have in
`nn.TransformerEncoderLayer`. Activations are those of the operators gelu (either form), relu and silu.

Backward needs a for the gradient of W2 and the activation's slope at h. What implementations keep for them,
in bytes for each element of h in 16 bits:

    torch_feed_forward       4, with dropout 7     h and a; with dropout activation(h), a and a mask of bytes
    torch_compile            4, with dropout 5     h and a; a mask
    fused                    4                     h and a; dropout is replayed from a seed here and below
    from_output              2.125                 a and a bit
    torch_compile_recompute  2, with dropout 3     h; a mask
    recompute_activation     2                     h
    int8_activation          1.03                  h in 8 bits
    recompute_first_linear   0                     x alone, for one more product

relu needs h for nothing but a: there torch and `fused` keep 2 less.
"""

from __future__ import annotations

from ...contract import Operator
from ._operator import EXAMPLES, HYPERPARAMETERS, SPACES, make_inputs
from ._work import work

OPERATOR = Operator(
    name="feed_forward",
    title="feed-forward layers of transformers",
    hyperparameters=HYPERPARAMETERS,
    default="torch_feed_forward",
    make_inputs=make_inputs,
    work=work,
    examples=EXAMPLES,
    spaces=SPACES,
)
