"""What a module of a known class computes when it is called: operators with their hyperparameters.

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

Values = dict[str, object]
IGNORED = -100  # the label that stands for none


class Part(NamedTuple):
    """One operator of a module's call.

    `at` is the path, below the module, of what holds the parameters, or "" for the module itself; `covers`
    are the paths below it of modules whose work is part of this. `values` lack dtype and mode.
    """

    operator: str
    values: Values
    dtype: torch.dtype
    at: str = ""
    covers: tuple[str, ...] = ()


def computed_dtype(x: Tensor) -> torch.dtype:
    """The dtype that matrix products of x are computed in: autocast's, where it is on."""
    device = x.device.type
    known = torch.amp.is_autocast_available(device)  # not for the meta device
    if known and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def rows_of(x: Tensor) -> int:
    """Elements of all dimensions but the last."""
    return x.numel() // max(1, x.size(-1)) if x.dim() else 0


def recurrent_values(module: nn.RNNBase, given: Tensor | PackedSequence) -> Values:
    """Of an LSTM, a GRU or an RNN and its input: [T, B, I], [B, T, I], unbatched [T, I] or packed."""
    if isinstance(given, PackedSequence):
        batch, seq = int(given.batch_sizes[0]), len(given.batch_sizes)
    elif given.dim() == 3:
        batch, seq = given.shape[:2] if module.batch_first else given.shape[1::-1]
    else:
        batch, seq = 1, given.size(0)
    values: Values = {
        "hidden": module.hidden_size,
        "input": module.input_size,
        "batch": batch,
        "seq": seq,
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "bias": bool(module.bias),
        "dropout": float(module.dropout) if module.num_layers > 1 else 0.0,
        "batch_first": module.batch_first,
        "packed": isinstance(given, PackedSequence),
    }
    if module.mode == "LSTM":
        values["projection"] = module.proj_size
    if module.mode.startswith("RNN"):
        values["nonlinearity"] = module.mode.removeprefix("RNN_").lower()
    return values


def norm_values(module: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Values:
    """Of a norm over the last axis of x [..., H]."""
    values: Values = {"rows": rows_of(x), "hidden": x.size(-1), "affine": module.weight is not None}
    if isinstance(module, nn.LayerNorm):
        values["bias"] = module.bias is not None or module.weight is None
    eps = module.eps
    return {**values, "eps": torch.finfo(torch.float32).eps if eps is None else eps}


def activation_values(module: nn.Module, x: Tensor) -> Values | None:
    """Of an activation of x of any shape, or None for one that is no operator."""
    word = activation_word(module)
    if word is None:
        return None
    form: Values = (
        {"approximate": "tanh" if word == "gelu_tanh" else "none"} if word.startswith("gelu") else {}
    )
    return {"elements": x.numel(), **form}


def loss_values(linear: nn.Linear, rows: int, labels: Tensor, label_smoothing: float) -> Values:
    """Of a linear layer with the cross-entropy of its outputs, with labels [rows] of which -100 are none."""
    return {
        "rows": rows,
        "hidden": linear.in_features,
        "vocabulary": linear.out_features,
        "bias": linear.bias is not None,
        "labelled": labelled(labels),
        "label_smoothing": label_smoothing,
    }


def labelled(labels: Tensor) -> float:
    """The share of rows with a label, in hundredths, so that batches of one kind are one problem."""
    if labels.is_meta:
        return 1.0
    return max(0.01, round(float((labels != IGNORED).double().mean()), 2))


def linear_values(module: nn.Module, x: Tensor) -> Values:
    """Of a fully-connected layer of x [..., K] with a weight [N, K]."""
    assert isinstance(module, nn.Linear)
    return {
        "rows": rows_of(x),
        "in_features": module.in_features,
        "out_features": module.out_features,
        "bias": module.bias is not None,
    }


def attention_values(
    q: Tensor, k: Tensor, mask: Tensor | None, *, causal: bool, dropout: float, return_weights: bool = False
) -> Values:
    """Of q [B, H, S, D], k [B, G, K, D] and a mask that broadcasts to [B, H, S, K], or none."""
    return {
        "batch": q.size(0),
        "heads": q.size(1),
        "kv_heads": k.size(1),
        "seq": q.size(2),
        "kv_seq": k.size(2),
        "head_dim": q.size(3),
        "causal": causal,
        "mask": "none" if mask is None else "padding" if mask.size(-2) == 1 < q.size(2) else "boolean",
        "dropout": float(dropout),
        "return_weights": return_weights,
    }


def feed_forward_values(x: Tensor, inner: int, activation: str, dropout: float, bias: bool) -> Values:
    """Of two linear layers and what is between them, of x [..., H]."""
    values: Values = {"rows": rows_of(x), "hidden": x.size(-1), "inner": inner, "activation": activation}
    return {**values, "dropout": float(dropout), "bias": bias}


def added_norm_values(norm: nn.LayerNorm, x: Tensor, dropout: float, prenorm: bool = False) -> Values:
    """Of a residual connection with dropout before it and a layer norm behind it, of x [..., H]."""
    return {**norm_values(norm, x), "dropout": float(dropout), "norm": "layer", "prenorm": prenorm}


def activation_word(activation: object) -> str | None:
    """An activation by the word that feed-forward layers have for it, or None for one they do not have."""
    if isinstance(activation, nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    if isinstance(activation, nn.Module):
        return _ACTIVATION_MODULES.get(type(activation).__name__)
    functional = torch.nn.functional
    known: dict[object, str] = {functional.relu: "relu", functional.gelu: "gelu", functional.silu: "silu"}
    return known.get(activation)


_ACTIVATION_MODULES = {
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
}


def parts_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Part]:
    """The operators of a call, nothing for a module of no known class."""
    for kind in type(module).__mro__:
        recognise = _RECOGNISED.get(f"{kind.__module__}.{kind.__qualname__}")
        if recognise is not None:
            given = dict(signature(kind.forward).bind(module, *args, **kwargs).arguments)
            del given["self"]
            yield from recognise(module, given)
            return


Given = Mapping[str, Any]  # a call's arguments by the names that `forward` has for them


def _first(given: Given) -> Any:
    value = next(iter(given.values()))
    return value[0] if isinstance(value, tuple) and not isinstance(value, PackedSequence) else value


def _recurrent(module: Any, given: Given) -> Iterator[Part]:
    x = _first(given)
    operator = module.mode.partition("_")[0].lower()
    data = x.data if isinstance(x, PackedSequence) else x
    yield Part(operator, recurrent_values(module, x), computed_dtype(data))


def _norm(module: Any, given: Given) -> Iterator[Part]:
    x = _first(given)
    if len(module.normalized_shape) == 1:
        operator = "layer_norm" if isinstance(module, nn.LayerNorm) else "rms_norm"
        yield Part(operator, norm_values(module, x), x.dtype)


def _activation(module: Any, given: Given) -> Iterator[Part]:
    x = _first(given)
    values = activation_values(module, x)
    if values is not None:
        operator = str(activation_word(module)).partition("_")[0]
        yield Part(operator, values, x.dtype)


def _linear(module: Any, given: Given) -> Iterator[Part]:
    x = _first(given)
    yield Part("linear", linear_values(module, x), computed_dtype(x))


def _transposed_linear(module: Any, given: Given) -> Iterator[Part]:
    x, (inner, columns) = _first(given), module.weight.shape
    values: Values = {"rows": rows_of(x), "in_features": inner, "out_features": columns}
    yield Part("linear", values, computed_dtype(x))


def _multihead(module: Any, given: Given) -> Iterator[Part]:
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
    yield Part(
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


def _transformer_layer(module: Any, given: Given) -> Iterator[Part]:
    """nn.TransformerEncoderLayer and nn.TransformerDecoderLayer; attention is a module of its own there."""
    x, decoder = _first(given), hasattr(module, "norm3")
    word = activation_word(module.activation)
    if word is not None:
        covers = (
            "linear1",
            "linear2",
            "dropout",
            *(["activation"] if hasattr(module.activation, "forward") else []),
        )
        inner, dropout = module.linear1.out_features, module.dropout.p
        values = feed_forward_values(x, inner, word, dropout, module.linear1.bias is not None)
        yield Part("feed_forward", values, computed_dtype(x), "", covers)
    if not module.norm_first:
        for number in (1, 2, 3)[: 3 if decoder else 2]:
            norm, share = getattr(module, f"norm{number}"), getattr(module, f"dropout{number}").p
            covers = (f"norm{number}", f"dropout{number}")
            yield Part("dropout_add_norm", added_norm_values(norm, x, share), x.dtype, covers[0], covers)


def _post_norm_output(module: Any, given: Given) -> Iterator[Part]:
    """Hugging Face's BertSelfOutput and its copies: a linear layer, dropout, the residual and a norm."""
    x = given["input_tensor"]
    values = added_norm_values(module.LayerNorm, x, module.dropout.p)
    yield Part("dropout_add_norm", values, x.dtype, "LayerNorm", ("LayerNorm", "dropout"))


def _post_norm_layer(module: Any, given: Given) -> Iterator[Part]:
    """Hugging Face's BertLayer and its copies: the feed-forward half; the other is modules of its own."""
    x, dense = _first(given), module.intermediate.dense
    word = activation_word(module.intermediate.intermediate_act_fn)
    if word is not None:
        values = feed_forward_values(x, dense.out_features, word, 0.0, dense.bias is not None)
        covers = ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense")
        yield Part("feed_forward", values, computed_dtype(x), "", covers)


def _transposed_feed_forward(module: Any, given: Given) -> Iterator[Part]:
    """Hugging Face's GPT2MLP, whose weights are [in, out]."""
    x, word = _first(given), activation_word(module.act)
    if word is not None:
        values = feed_forward_values(x, module.c_fc.nf, word, 0.0, True)
        yield Part("feed_forward", values, computed_dtype(x), "", ("c_fc", "act", "c_proj"))


_TORCH, _TRANSFORMERS = "torch.nn.modules", "transformers.models"
_RECOGNISED: Mapping[str, Callable[[Any, Given], Iterator[Part]]] = {
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
    f"{_TORCH}.transformer.TransformerEncoderLayer": _transformer_layer,
    f"{_TORCH}.transformer.TransformerDecoderLayer": _transformer_layer,
    "transformers.pytorch_utils.Conv1D": _transposed_linear,
    **{f"transformers.activations.{name}": _activation for name in _ACTIVATION_MODULES},
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
}
