"""Replaceable loss heads: those of models of which only the loss is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ...nn import Linear, LinearCrossEntropy
from ...nn.hugging_face_losses import FusedLoss
from ...nn.replay_state import hooked
from ..as_model import without_loss
from ..layers import Layer
from ..saved_tensors import HEAD
from .outputs import Outputs
from .places import CHOOSES, REPLACEMENTS, Place, full_name, kind_of, place_in

KNOWN = (
    "Hugging Face's BertForMaskedLM, RobertaForMaskedLM, GPT2LMHeadModel and decoders of Llama's form "
    "(docs/supported.md)"
)
NAME = "loss"  # of the choice among those of the model


def place_with(model: nn.Module, layer: Layer, outputs: Outputs | None) -> Place | str:
    """Place where a layer is replaced, or the reason why not, given the used outputs (None: all)."""
    if _chooses(model, layer):
        return CHOOSES
    if layer.problem.operator != HEAD or outputs is None:
        return place_in(model, layer)
    kind: Any = kind_of(model)
    if isinstance(kind, str):
        known = any(full_name(one) in REPLACEMENTS for one in type(model).__mro__)
        return kind if known else f"a head is replaced in {KNOWN}, of which {type(model).__name__} is none"
    if not issubclass(kind, FusedLoss) or layer.path != kind.DECODER:
        return f"a head is replaced in {KNOWN}, where it is the last linear layer"
    return _refusal(model, layer) or Place(model, layer.path, kind, NAME)


def _chooses(model: nn.Module, layer: Layer) -> bool:
    """Whether a layer is a fused loss head of this package, which returns no logits."""
    return layer.problem.operator == HEAD and (
        isinstance(model, FusedLoss) or isinstance(model.get_submodule(layer.path), LinearCrossEntropy)
    )


def stays(model: nn.Module, layer: Layer, outputs: Outputs | None) -> bool:
    """Whether a layer is a loss head whose logits remain an output."""
    if layer.problem.operator != HEAD or _chooses(model, layer):
        return False
    return isinstance(place_with(model, layer, outputs), str)


def linear_part(layer: Layer) -> Layer:
    """Linear layer of a loss head; any other layer unchanged."""
    return replace(layer, problem=without_loss(layer.problem))


def with_linear_heads(model: nn.Module, layers: Sequence[Layer], outputs: Outputs | None) -> list[Layer]:
    """Layers, with an extra linear layer behind each loss head whose logits remain an output."""
    found: list[Layer] = []
    for layer in layers:
        found.append(layer)
        if stays(model, layer, outputs):
            found.append(linear_part(layer))
    return found


def _refusal(model: nn.Module, layer: Layer) -> str | None:
    """Reason why a loss head's modules are modified, or None."""
    if "forward" in model.__dict__:
        return "the model's forward was replaced"
    if "_loss_function" in model.__dict__:
        return "the model's loss_function was replaced"
    names = layer.path.split(".")
    parts = [model.get_submodule(".".join(names[: count + 1])) for count in range(len(names))]
    for part in parts:
        word = type(part).__name__
        if hooked(part):
            return f"{word} in the head has hooks, which would not be called"
        if "forward" in part.__dict__:
            return f"the forward of {word} in the head was replaced"
        as_made = type(part) in (nn.Linear, Linear) if part is parts[-1] else _of_one_file(model, part)
        if not as_made:
            return f"{word} in the head is none of its class's own, and may compute something else"
    if any(not tensor.is_floating_point() for tensor in parts[-1].parameters()):
        return "its weights are quantised"
    return None


def _of_one_file(model: nn.Module, part: nn.Module) -> bool:
    return type(part).__module__ == type(model).__module__
