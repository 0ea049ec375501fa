"""Attention of recurrent translation models: additive, general and dot.

After Bahdanau et al. 2015 (additive, also called MLP or O-shape) and Luong et al. 2015 (general and dot).

Dimensions: B batch, T target (decoder steps, all of them at once, or one), S source, H hidden, N heads,
D = H / N. Heads are N equal cuts of the features; each formula holds for one sequence and one head.

    q = query W_q^T + b,   k = memory W_k^T                # [T, D], [S, D]; values are the memory itself
    e[t, s] = q[t] + k[s]                                  # [D]; with layer_norm: LayerNorm(e[t, s]) over D
    scores[t, s] = v . tanh(e[t, s])                       # score=additive
    scores[t, s] = q[t] . memory[s],  q = query W_q^T      # score=general; score=dot: q = query
    weights = softmax(scores) over s < length              # zeros where length is 0
    context[t] = sum_s weights[t, s] memory[s]

A module takes query [B, T, H], memory [B, S, H] and, with `lengths`, int64 lengths [B]; with
layout=time_major query [T, B, H] and memory [S, B, H]. It returns the context, shaped as the query, and the
weights [B, T, S] in either layout, or [B, N, T, S] with several heads. Decoders that call once a step pass
`keys=`, what `module.key(memory)` gave.

Parameters: `query.weight` [H, H]; for score=additive also `query.bias` [H], `key.weight` [H, H],
`score.weight` [N, D] (v of each head) and with layer_norm `norm.weight`, `norm.bias` [D], which heads share.
score=dot has none.
"""

from __future__ import annotations

from ...contract import Boolean, Integer, OneOf, Operator, Space
from ...contract.hyperparameter import DTYPE, MODE
from ._operator import conflict, make_inputs, work

OPERATOR = Operator(
    name="additive_attention",
    title="attention of recurrent translation models",
    hyperparameters=(
        Integer(
            name="hidden",
            aliases=("hidden_size", "embed_dim"),
            maximum=65536,
            help="features of query and memory (H)",
        ),
        Integer(name="batch", aliases=("batch_size",), maximum=1048576, help="sequences at once (B)"),
        Integer(
            name="source",
            aliases=("source_len", "src_len"),
            default=50,
            maximum=2**24,
            help="positions of the memory (S)",
        ),
        Integer(
            name="target",
            aliases=("target_len", "tgt_len"),
            default="=source",
            maximum=2**24,
            help="decoder steps at once (T); 1: one step at a time",
        ),
        OneOf(
            name="score",
            default="additive",
            choices=("additive", "general", "dot"),
            synonyms={"bahdanau": "additive", "mlp": "additive", "concat": "additive", "luong": "general"},
            help="how a query meets a key",
        ),
        Integer(
            name="heads",
            aliases=("num_heads",),
            default=1,
            implied=True,
            maximum=1024,
            help="equal cuts of the features that attend on their own (N)",
        ),
        Boolean(name="layer_norm", default=False, implied=True, help="a layer norm inside the tanh"),
        Boolean(
            name="lengths",
            aliases=("variable_length",),
            default=False,
            implied=True,
            help="with a length of each source, beyond which nothing is attended to",
        ),
        OneOf(
            name="layout",
            default="batch_first",
            implied=True,
            choices=("batch_first", "time_major"),
            help="order of axes: [B, T, H], or [T, B, H]",
        ),
        DTYPE,
        MODE,
    ),
    default="eager",
    make_inputs=make_inputs,
    work=work,
    conflict=conflict,
    examples=(
        {"hidden": 1, "batch": 1, "source": 1, "target": 1},
        {"hidden": 33, "batch": 3, "source": 5, "target": 1},
        {"hidden": 40, "batch": 3, "source": 9, "target": 7, "lengths": True, "layout": "time_major"},
        {"hidden": 17, "batch": 5, "source": 6, "target": 4, "layer_norm": True},
        {"hidden": 24, "batch": 3, "source": 7, "target": 5, "heads": 3, "layer_norm": True, "lengths": True},
        {"hidden": 12, "batch": 4, "source": 6, "target": 3, "score": "general", "lengths": True, "heads": 2},
        {"hidden": 9, "batch": 2, "source": 8, "target": 4, "score": "dot", "layout": "time_major"},
        {"hidden": 64, "batch": 4, "source": 33, "target": 20},
    ),
    spaces={
        "cpu": Space(
            sizes={"hidden": (8, 256), "batch": (1, 32), "source": (1, 64), "target": (1, 64)},
            values={"lengths": ("false", "true"), "mode": ("training", "inference")},
            max_flops=2e9,
        ),
        # the float64 reference keeps 8 bytes for each of B * T * S * H: the cap holds that below 10 GB
        "cuda": Space(
            sizes={"hidden": (64, 1024), "batch": (1, 128), "source": (4, 256), "target": (1, 128)},
            values={
                "lengths": ("false", "true"),
                "dtype": ("float32", "float16", "bfloat16"),
                "mode": ("training", "inference"),
            },
            max_flops=1e11,
        ),
    },
)
