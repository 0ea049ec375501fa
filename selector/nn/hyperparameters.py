"""Hyperparameters of a call, from a module and its input tensors; without dtype and mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kernel_selector.kernels.contract import Problem

Values = dict[str, object]
IGNORED = -100  # the label that stands for none


def computed_dtype(x: Tensor) -> torch.dtype:
    """Dtype of matrix products of x: autocast's where it is enabled, else that of x."""
    device = x.device.type
    known = torch.amp.is_autocast_available(device)  # not for the meta device
    if known and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def rows_of(x: Tensor) -> int:
    """Product of all dimensions of x but the last."""
    return x.numel() // max(1, x.size(-1)) if x.dim() else 0


def recurrent_values(module: nn.RNNBase, given: Tensor | PackedSequence) -> Values:
    """Hyperparameters of an LSTM, GRU or RNN on [T, B, I], [B, T, I], unbatched [T, I] or packed input."""
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
    """Hyperparameters of a norm over the last dimension of x [..., H]."""
    values: Values = {"rows": rows_of(x), "hidden": x.size(-1), "affine": module.weight is not None}
    if isinstance(module, nn.LayerNorm):
        values["bias"] = module.bias is not None or module.weight is None
    eps = module.eps
    return {**values, "eps": torch.finfo(torch.float32).eps if eps is None else eps}


def written_norm_values(module: Any, x: Tensor) -> Values:
    """Hyperparameters of an RMS norm of Hugging Face's decoders over the last dimension of x [..., H]."""
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return {"rows": rows_of(x), "hidden": x.size(-1), "affine": True, "eps": eps}


def activation_values(module: nn.Module, x: Tensor) -> Values | None:
    """Hyperparameters of an activation on x of any shape; None for an activation without an operator."""
    word = activation_word(module)
    if word is None:
        return None
    form: Values = (
        {"approximate": "tanh" if word == "gelu_tanh" else "none"} if word.startswith("gelu") else {}
    )
    return {"elements": x.numel(), **form}


def loss_values(
    linear: nn.Linear, rows: int, labels: Tensor, label_smoothing: float, before: Problem | None = None
) -> Values:
    """Hyperparameters of a linear layer with cross-entropy, for labels [rows]; -100 marks ignored rows.

    Where labels have no values, as in a graph of torch.compile, the share of labelled rows is that of the
    problem `before`, or all.
    """
    return {
        "rows": rows,
        "hidden": linear.in_features,
        "vocabulary": linear.out_features,
        "bias": linear.bias is not None,
        "labelled": before["labelled"] if before is not None and labels.is_meta else labelled(labels),
        "label_smoothing": label_smoothing,
    }


def labelled(labels: Tensor) -> float:
    """Share of labelled rows, rounded to hundredths so that similar batches are one problem."""
    if labels.is_meta:
        return 1.0
    return max(0.01, round(float((labels != IGNORED).double().mean()), 2))


def linear_values(module: nn.Module, x: Tensor) -> Values:
    """Hyperparameters of a linear layer with weight [N, K] on x [..., K]."""
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
    """Hyperparameters of attention on q [B, H, S, D], k [B, G, K, D] and a mask that broadcasts to [B, H,
    S, K], or none.
    """
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
    """Hyperparameters of a feed-forward block (linear, activation, linear) on x [..., H]."""
    values: Values = {"rows": rows_of(x), "hidden": x.size(-1), "inner": inner, "activation": activation}
    return {**values, "dropout": float(dropout), "bias": bias}


def added_norm_values(norm: nn.LayerNorm, x: Tensor, dropout: float, prenorm: bool = False) -> Values:
    """Hyperparameters of dropout, residual addition and layer norm on x [..., H]."""
    return {**norm_values(norm, x), "dropout": float(dropout), "norm": "layer", "prenorm": prenorm}


def activation_word(activation: object) -> str | None:
    """Feed-forward operator's name of an activation; None for one that it lacks."""
    if isinstance(activation, nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    if isinstance(activation, nn.Module):
        return ACTIVATION_MODULES.get(type(activation).__name__)
    functional = torch.nn.functional
    known: dict[object, str] = {functional.relu: "relu", functional.gelu: "gelu", functional.silu: "silu"}
    return known.get(activation)


ACTIVATION_MODULES = {
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
}
# RMS norms of Hugging Face's decoders by family of models: float32 inside, then times the weight
RMS_NORMS = {
    **{
        family: f"{family.title()}RMSNorm"
        for family in (
            *("llama", "mistral", "mixtral", "ministral", "ministral3", "granite", "glm", "glm4", "qwen2"),
            *("qwen3", "phi3", "olmo2", "olmo3", "exaone4", "arcee", "helium"),
        )
    },
    "qwen2_moe": "Qwen2MoeRMSNorm",
    "qwen3_moe": "Qwen3MoeRMSNorm",
    "deepseek_v3": "DeepseekV3RMSNorm",
    "seed_oss": "SeedOssRMSNorm",
    "smollm3": "SmolLM3RMSNorm",
    "t5": "T5LayerNorm",
}
# activations and norms in several operations, each of which keeps a tensor, where torch has one for all
WRITTEN_OUT = frozenset({"NewGELUActivation", "FastGELUActivation", *RMS_NORMS.values()})


# where the forwards are of which it is known what they compute: torch's, Hugging Face's and ours
_FORWARDS = frozenset(
    {
        *(f"torch.nn.modules.{file}" for file in ("activation", "dropout", "linear", "normalization")),
        *(f"transformers.{file}" for file in ("activations", "pytorch_utils")),
        *(f"selector.nn.{file}" for file in ("norms", "selected")),
    }
)


def as_made(part: object, kind: type[nn.Module] = nn.Module) -> bool:
    """Whether a module computes the function of its class: it is no wrapper, and no subclass overrides
    forward.
    """
    forward = getattr(type(part), "forward", None)
    return isinstance(part, kind) and getattr(forward, "__module__", None) in _FORWARDS


def part_word(activation: object) -> str | None:
    """Name of an activation inside a group, as of `activation_word`; None where it may compute another
    function.
    """
    known = not isinstance(activation, nn.Module) or as_made(activation)
    return activation_word(activation) if known else None


def written_out(part: object) -> bool:
    """Whether an activation or a norm runs as several torch operations in place of torch's own."""
    return type(part).__name__ in WRITTEN_OUT
