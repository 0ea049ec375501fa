"""Places in a model where a layer can be replaced, with the replacing class."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ...nn import ScaledDotProductAttention, hugging_face
from ...nn.hyperparameters import written_out
from ...nn.replay_state import hooked
from ...nn.selected import Selected
from ..layers import Layer
from ..saved_tensors import HEAD
from . import attention_interface

_OURS, _TORCH = "selector.nn", "torch.nn.modules"
CHOOSES = "it chooses by itself already"
# full name of a class -> the module of ours that has one of the same name for it
REPLACEMENTS: Mapping[str, str] = {
    **{
        f"{_TORCH}.{name}": _OURS
        for name in (
            "rnn.LSTM",
            "rnn.GRU",
            "rnn.RNN",
            "normalization.LayerNorm",
            "normalization.RMSNorm",
            "activation.GELU",
            "activation.ReLU",
            "activation.SiLU",
            "activation.MultiheadAttention",
            "linear.Linear",
            "transformer.TransformerEncoderLayer",
            "transformer.TransformerDecoderLayer",
        )
    },
    **{f"{home}.{name}": hugging_face.__name__ for name, (home, _) in hugging_face.STANDS_FOR.items()},
}


@dataclass(frozen=True)
class Place:
    """Replaceable module, its new class, and the layer's name among the class's operators."""

    module: nn.Module
    path: str
    kind: type[Selected]
    name: str


def place_of(model: nn.Module, layer: Layer) -> Place | str:
    """Place of a layer, or the reason why it cannot be replaced."""
    path, name = layer.path, ""
    if layer.problem.operator == "feed_forward":
        name = "feed_forward"
    elif layer.problem.operator == "dropout_add_norm":
        path, _, name = layer.path.rpartition(".")
    elif layer.problem.operator == HEAD:
        return (
            "its logits are an output of the model, which would be missing: with outputs=('loss',) the loss "
            "alone is used. A model of one's own can be built with selector.nn.LinearCrossEntropy"
        )
    module = model.get_submodule(path)
    kind = kind_of(module)
    if isinstance(kind, str):
        return kind
    return _refusal(model, module, layer) or Place(module, path, kind, name)


def place_in(model: nn.Module, layer: Layer) -> Place | str:
    """Place of a layer, attention functions included, or the reason why it cannot be replaced."""
    module = model.get_submodule(layer.path)
    if layer.problem.operator != "attention" or isinstance(module, nn.MultiheadAttention):
        return place_of(model, layer)
    if attention_interface.CHILD in module._modules:
        return CHOOSES
    name = attention_interface.name_at(model, layer.path)
    if name in attention_interface.NAMES:
        return Place(module, layer.path, ScaledDotProductAttention, attention_interface.CHILD)
    if name is None:
        return f"{type(module).__name__} calls torch's function in its own code"
    return (
        f"the model's attention is {name!r}, and what can be replaced is "
        f"{', '.join(attention_interface.NAMES)}: call model.set_attn_implementation('sdpa') first"
    )


def is_written_out(model: nn.Module, layer: Layer) -> bool:
    """Whether a model computes a layer in more operations than the framework's own, or returns more, as
    logits.
    """
    return layer.problem.operator == HEAD or any(
        written_out(model.get_submodule(path)) for path in layer.covers
    )


def kind_of(module: nn.Module) -> type[Selected] | str:
    """Replacing class of a module, or the reason why there is none."""
    own = type(module)
    if isinstance(module, Selected):
        return CHOOSES
    home = REPLACEMENTS.get(full_name(own))
    if home is None:
        known = next((kind for kind in own.__mro__ if full_name(kind) in REPLACEMENTS), None)
        if known is None:
            return f"{own.__name__} computes it in its own code"
        return f"{own.__name__} is a subclass of {known.__name__}, and may compute something else"
    forward = own.forward
    if forward.__module__ != own.__module__ or forward.__qualname__ != f"{own.__name__}.forward":
        return f"{own.__name__}.forward was replaced by {forward.__qualname__}"
    kind: type[Selected] = getattr(importlib.import_module(home), own.__name__)
    return kind


def full_name(kind: type) -> str:
    """Name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _refusal(model: nn.Module, module: nn.Module, layer: Layer) -> str | None:
    """Reason why a module of a known class is modified, or None."""
    if "forward" in module.__dict__:
        return "its forward was replaced on this module"
    if getattr(module, "inplace", False):
        return "it works in place"
    inner = [part for part in module.modules() if part is not module]
    covered = {model.get_submodule(path) for path in layer.covers}
    for part in (module, *inner):
        # what is not computed by calling a part any more neither shows it to its hooks
        between = part is not module and any(part is one or one in set(part.modules()) for one in covered)
        if between and hooked(part):
            return f"{type(part).__name__} inside it has hooks, which would not be called"
        if between and "forward" in part.__dict__:
            return f"the forward of {type(part).__name__} inside it was replaced"
    tensors = list(module.parameters())
    if any(tensor.is_meta for tensor in tensors):
        return "its weights are on the meta device"
    if any(not tensor.is_floating_point() for tensor in tensors):
        return "its weights are quantised"
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    return None
