"""Operators with hyperparameters that a call of a module of a known class runs.

Classes are known by their full names, so that nothing is imported to recognise them; a subclass counts as
the nearest known class that it inherits from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..nn.hyperparameters import (
    ACTIVATION_MODULES,
    RMS_NORMS,
    Values,
    activation_values,
    activation_word,
    added_norm_values,
    as_made,
    computed_dtype,
    feed_forward_values,
    linear_values,
    loss_values,
    norm_values,
    part_word,
    recurrent_values,
    rows_of,
    written_norm_values,
)


class OperatorCall(NamedTuple):
    """One operator of a module's call.

    `at` is the path, below the module, of what holds the parameters, or "" for the module itself; `covers`
    are the paths below it of modules whose work is part of this. `values` lack dtype and mode.
    """

    operator: str
    values: Values
    dtype: torch.dtype
    at: str = ""
    covers: tuple[str, ...] = ()


def parts_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[OperatorCall]:
    """Operators of a call of a module; none for an unknown class or an unusual call."""
    for kind in type(module).__mro__:
        recognise = _RECOGNISED.get(f"{kind.__module__}.{kind.__qualname__}")
        if recognise is not None:
            known: Any = kind
            try:
                given = dict(signature(known.forward).bind(module, *args, **kwargs).arguments)
            except TypeError:  # other arguments, as the forward of a subclass may have
                return
            del given["self"]
            if recognise is _fused_loss or isinstance(_first(given), (Tensor, PackedSequence)):
                yield from recognise(module, given)
            return


Given = Mapping[str, Any]  # a call's arguments by the names that `forward` has for them


def _first(given: Given) -> Any:
    value = next(iter(given.values()))
    return value[0] if isinstance(value, tuple) and not isinstance(value, PackedSequence) else value


def _recurrent(module: Any, given: Given) -> Iterator[OperatorCall]:
    x = _first(given)
    operator = module.mode.partition("_")[0].lower()
    data = x.data if isinstance(x, PackedSequence) else x
    yield OperatorCall(operator, recurrent_values(module, x), computed_dtype(data))


def _norm(module: Any, given: Given) -> Iterator[OperatorCall]:
    x = _first(given)
    if len(module.normalized_shape) == 1:
        operator = "layer_norm" if isinstance(module, nn.LayerNorm) else "rms_norm"
        yield OperatorCall(operator, norm_values(module, x), x.dtype)


def _written_rms_norm(module: Any, given: Given) -> Iterator[OperatorCall]:
    """RMS norm that Hugging Face's decoders compute by operations of their own."""
    x = _first(given)
    yield OperatorCall("rms_norm", written_norm_values(module, x), x.dtype)


def _activation(module: Any, given: Given) -> Iterator[OperatorCall]:
    x = _first(given)
    values = activation_values(module, x)
    if values is not None:
        operator = str(activation_word(module)).partition("_")[0]
        yield OperatorCall(operator, values, x.dtype)


def _linear(module: Any, given: Given) -> Iterator[OperatorCall]:
    x = _first(given)
    yield OperatorCall("linear", linear_values(module, x), computed_dtype(x))


def _transposed_linear(module: Any, given: Given) -> Iterator[OperatorCall]:
    x, (inner, columns) = _first(given), module.weight.shape
    values: Values = {"rows": rows_of(x), "in_features": inner, "out_features": columns}
    yield OperatorCall("linear", values, computed_dtype(x))


def _multihead(module: Any, given: Given) -> Iterator[OperatorCall]:
    query, key = given["query"], given["key"]
    axis = 0 if module.batch_first else 1
    padding, mask = given.get("key_padding_mask"), given.get("attn_mask")
    causal = bool(given.get("is_causal")) and padding is None
    word = (
        "none"
        if causal or (mask is None and padding is None)
        else "boolean"
        if padding is None
        else "padding"
    )
    yield OperatorCall(
        "attention",
        {
            "batch": query.size(axis) if query.dim() == 3 else 1,
            "heads": module.num_heads,
            "seq": query.size(1 - axis) if query.dim() == 3 else query.size(0),
            "kv_seq": key.size(1 - axis) if key.dim() == 3 else key.size(0),
            "head_dim": module.head_dim,
            "causal": causal,
            "mask": "boolean" if word == "padding" and mask is not None else word,
            "dropout": float(module.dropout),
            "return_weights": bool(given.get("need_weights", True)),
        },
        computed_dtype(query),
    )


def _transformer_layer(module: Any, given: Given) -> Iterator[OperatorCall]:
    """Operators of nn.TransformerEncoderLayer and nn.TransformerDecoderLayer except attention, which is a
    submodule.
    """
    x, decoder = _first(given), hasattr(module, "norm3")
    word, dropout = part_word(module.activation), module.dropout
    linears = as_made(module.linear1, nn.Linear) and as_made(module.linear2, nn.Linear)
    if word is not None and linears and as_made(dropout, nn.Dropout):
        covers = (
            "linear1",
            "linear2",
            "dropout",
            *(["activation"] if hasattr(module.activation, "forward") else []),
        )
        inner, bias = module.linear1.out_features, module.linear1.bias is not None
        values = feed_forward_values(x, inner, word, dropout.p, bias)
        yield OperatorCall("feed_forward", values, computed_dtype(x), "", covers)
    if not module.norm_first:
        for number in (1, 2, 3)[: 3 if decoder else 2]:
            norm, dropout = getattr(module, f"norm{number}"), getattr(module, f"dropout{number}")
            if as_made(norm, nn.LayerNorm) and as_made(dropout, nn.Dropout):
                values = added_norm_values(norm, x, dropout.p)
                covers = (f"norm{number}", f"dropout{number}")
                yield OperatorCall("dropout_add_norm", values, x.dtype, covers[0], covers)


def _post_norm_output(module: Any, given: Given) -> Iterator[OperatorCall]:
    """Operators of Hugging Face's BertSelfOutput and its copies: linear, dropout, residual and norm."""
    x, norm, dropout = given["input_tensor"], module.LayerNorm, module.dropout
    if as_made(norm, nn.LayerNorm) and as_made(dropout, nn.Dropout):
        values = added_norm_values(norm, x, dropout.p)
        yield OperatorCall("dropout_add_norm", values, x.dtype, "LayerNorm", ("LayerNorm", "dropout"))


def _post_norm_layer(module: Any, given: Given) -> Iterator[OperatorCall]:
    """Feed-forward operator of Hugging Face's BertLayer and its copies; attention is in submodules."""
    x, dense = _first(given), module.intermediate.dense
    word = part_word(module.intermediate.intermediate_act_fn)
    if word is not None and as_made(dense, nn.Linear) and as_made(module.output.dense, nn.Linear):
        values = feed_forward_values(x, dense.out_features, word, 0.0, dense.bias is not None)
        covers = ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense")
        yield OperatorCall("feed_forward", values, computed_dtype(x), "", covers)


def _transposed_feed_forward(module: Any, given: Given) -> Iterator[OperatorCall]:
    """Feed-forward operator of Hugging Face's GPT2MLP, whose weights are [in, out]."""
    x, word = _first(given), part_word(module.act)
    if word is not None and all(as_made(one) and hasattr(one, "nf") for one in (module.c_fc, module.c_proj)):
        values = feed_forward_values(x, module.c_fc.nf, word, 0.0, True)
        yield OperatorCall("feed_forward", values, computed_dtype(x), "", ("c_fc", "act", "c_proj"))


def _additive_attention(module: Any, given: Given) -> Iterator[OperatorCall]:
    query = given["query"]
    values = module.values_of(query, given["memory"], given.get("lengths"))
    yield OperatorCall(
        "additive_attention", values, computed_dtype(query), "", ("query", "key", "score", "norm")
    )


def _fused_loss(module: Any, given: Given) -> Iterator[OperatorCall]:
    """Loss operator of a language model with fused loss, whose linear layer is not called."""
    call = module.call_with_labels(given.get("args", ()), given.get("kwargs", {}))
    if call is not None:
        labels, decoder = module.targets(call["labels"]), module.decoder
        values, dtype = loss_values(decoder, labels.numel(), labels, 0.0), computed_dtype(decoder.weight)
        yield OperatorCall("linear_cross_entropy", values, dtype, module.DECODER, (module.DECODER,))


_TORCH, _TRANSFORMERS = "torch.nn.modules", "transformers.models"
# times one more than the weight
_GEMMA_NORMS = {family: f"{family.title()}RMSNorm" for family in ("gemma", "gemma2", "gemma3")}
_RECOGNISED: Mapping[str, Callable[[Any, Given], Iterator[OperatorCall]]] = {
    f"{_TORCH}.rnn.LSTM": _recurrent,
    f"{_TORCH}.rnn.GRU": _recurrent,
    f"{_TORCH}.rnn.RNN": _recurrent,
    f"{_TORCH}.normalization.LayerNorm": _norm,
    f"{_TORCH}.normalization.RMSNorm": _norm,
    f"{_TORCH}.activation.GELU": _activation,
    f"{_TORCH}.activation.ReLU": _activation,
    f"{_TORCH}.activation.SiLU": _activation,
    f"{_TORCH}.activation.MultiheadAttention": _multihead,
    f"{_TORCH}.linear.Linear": _linear,
    "selector.nn.additive_attention.AdditiveAttention": _additive_attention,
    "selector.nn.hugging_face_losses.FusedLoss": _fused_loss,
    f"{_TORCH}.transformer.TransformerEncoderLayer": _transformer_layer,
    f"{_TORCH}.transformer.TransformerDecoderLayer": _transformer_layer,
    "transformers.pytorch_utils.Conv1D": _transposed_linear,
    **{f"transformers.activations.{name}": _activation for name in ACTIVATION_MODULES},
    **{
        f"{_TRANSFORMERS}.{family}.modeling_{family}.{name}{part}": recognise
        for family, name in (("bert", "Bert"), ("roberta", "Roberta"))
        for part, recognise in (
            ("SelfOutput", _post_norm_output),
            ("Output", _post_norm_output),
            ("Layer", _post_norm_layer),
        )
    },
    f"{_TRANSFORMERS}.gpt2.modeling_gpt2.GPT2MLP": _transposed_feed_forward,
    **{
        f"{_TRANSFORMERS}.{family}.modeling_{family}.{name}": _written_rms_norm
        for family, name in (RMS_NORMS | _GEMMA_NORMS).items()
    },
}

_OPERATORS: Mapping[Callable[[Any, Given], Iterator[OperatorCall]], tuple[str, ...]] = {
    _recurrent: ("lstm", "gru", "rnn"),
    _norm: ("layer_norm", "rms_norm"),
    _written_rms_norm: ("rms_norm",),
    _activation: ("gelu", "relu", "silu"),
    _multihead: ("attention",),
    _linear: ("linear",),
    _transposed_linear: ("linear",),
    _additive_attention: ("additive_attention",),
    _fused_loss: ("linear_cross_entropy",),
    _transformer_layer: ("feed_forward", "dropout_add_norm"),
    _post_norm_output: ("dropout_add_norm",),
    _post_norm_layer: ("feed_forward",),
    _transposed_feed_forward: ("feed_forward",),
}


def known_classes() -> dict[str, tuple[str, ...]]:
    """Full names of the known classes, with the operators that their kind of module may run."""
    return {name: _OPERATORS[recognise] for name, recognise in _RECOGNISED.items()}
