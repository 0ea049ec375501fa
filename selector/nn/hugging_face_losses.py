"""Hugging Face language models with a fused linear cross-entropy loss, which stores no logits.

Called with labels they give the loss and no logits; without, what they gave before. Dimensions: B batch,
S seq, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from importlib import import_module
from inspect import Parameter, signature
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, pad

from .hyperparameters import IGNORED, computed_dtype, loss_values
from .selected import Selected, as_torchs_where_looked_into, constant_in_graphs, stands_for, watched


class FusedLoss(Selected):
    """Mixin of a language model: linear cross-entropy in place of its last linear layer and loss."""

    OPERATORS = {"loss": "linear_cross_entropy"}
    DECODER: ClassVar[str]  # the path of the linear layer
    OUTPUT: ClassVar[str]  # the class of what is given, in transformers.modeling_outputs
    # what it has beside the loss, as the model below the head gives it
    KEPT: ClassVar[tuple[str, ...]] = ("hidden_states", "attentions")
    # arguments that the model below the head does not take or that change the loss -> what changes nothing
    NEUTRAL: ClassVar[Mapping[str, int | None]] = {}
    NAMES: ClassVar[tuple[str, ...]] = ()  # of their forward's positional arguments

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Signature of the original forward on each subclass, for callers that inspect it, as Hugging
        Face's Trainer does.
        """
        super().__init_subclass__(**kwargs)
        theirs: Any = next((kind for kind in cls.__bases__ if not issubclass(kind, Selected)), None)
        if theirs is not None:
            named = signature(theirs.forward).parameters.values()
            cls.NAMES = tuple(one.name for one in named if one.kind is Parameter.POSITIONAL_OR_KEYWORD)[1:]
            cls.forward = _like(theirs.forward)  # type: ignore[method-assign]

    @property
    def decoder(self) -> nn.Linear:
        """Last linear layer, H to V."""
        found = self.get_submodule(self.DECODER)
        assert isinstance(found, nn.Linear)
        return found

    def call_with_labels(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keyword arguments of a call that the fused loss supports; None for the original forward: calls
        without labels, with arguments that change the loss, or with a custom loss or head.
        """
        given = {**dict(zip(self.NAMES, args, strict=False)), **kwargs}
        if given.get("labels") is None or len(given) < len(args) + len(kwargs):
            return None  # an argument too many, or given twice, is their error
        changed = any(_changes(given.get(name), neutral) for name, neutral in self.NEUTRAL.items())
        return None if changed or "_loss_function" in self.__dict__ or not self._whole_head() else given

    def _whole_head(self) -> bool:
        """Whether the head's modules are unmodified."""
        *above, last = accumulate(self.DECODER.split("."), "{}.{}".format)
        within = any(watched(self.get_submodule(path)) for path in above)
        return not within and stands_for(self.get_submodule(last), kind=nn.Linear)

    def targets(self, labels: Tensor) -> Tensor:
        """Target of each row, int64 [B * S], from labels [B, S]."""
        return labels.reshape(-1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the original forward; with labels they have the loss and no logits."""
        given = self.call_with_labels(args, kwargs)
        if given is None:
            return super().forward(*args, **kwargs)
        own: Any = self
        labels, wanted = given.pop("labels"), given.pop("return_dict", None)
        below = {name: value for name, value in given.items() if name not in self.NEUTRAL}
        if "use_cache" in self.NAMES and below.get("past_key_values") is None:
            below["use_cache"] = below.get("use_cache") or False  # of one's own where none was asked for
        outputs = own.base_model(**below, return_dict=True)
        hidden = self._features(outputs[0])
        loss = self._loss(hidden.reshape(-1, hidden.size(-1)), self.targets(labels).to(hidden.device))
        kept = {name: outputs.get(name) for name in self.KEPT}
        found = _output_class(self.OUTPUT)(loss=self._averaged(loss, labels, given), **kept)
        return found if (own.config.return_dict if wanted is None else wanted) else found.to_tuple()

    def _features(self, hidden: Tensor) -> Tensor:
        """Input of the linear layer, from the last hidden states [B, S, H]."""
        return hidden

    def _averaged(self, loss: Tensor, _labels: Tensor, _given: Mapping[str, Any]) -> Tensor:
        """Mean loss over the labelled rows."""
        return loss

    @as_torchs_where_looked_into
    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, a scalar, of features x [B * S, H] and labels [B * S]."""
        chosen = self._chosen("loss", "_fused_loss", x, labels)
        with self._precision(x):
            loss: Tensor = cross_entropy(self.decoder(x), labels) if chosen is None else chosen(x, labels)
        return loss

    def _fused_loss(self, x: Tensor, labels: Tensor) -> nn.Module | None:
        """Implementation of the loss for a call."""
        before = self._selections["loss"].latest if "loss" in self._selections else None
        values = partial(loss_values, self.decoder, x.size(0), labels, 0.0, before)
        return self._implementation(x, computed_dtype(x), (x.size(0),), values, "loss")

    def _torchs(self, x: Tensor, labels: Tensor) -> Tensor:
        with self._precision(x):
            return cross_entropy(self.decoder(x), labels)

    def _precision(self, _x: Tensor) -> AbstractContextManager[Any]:
        """Context of the loss computation; the linear layer keeps its dtype."""
        return nullcontext()

    def _written_out(self) -> bool:
        return True  # logits are an output as well

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        return {"weight": self.decoder.weight, "bias": self.decoder.bias}


class MaskedBert(FusedLoss):
    """BERT with a masked language modeling head and a fused loss."""

    DECODER = "cls.predictions.decoder"
    OUTPUT = "MaskedLMOutput"

    def _features(self, hidden: Tensor) -> Tensor:
        own: Any = self
        found: Tensor = own.cls.predictions.transform(hidden)
        return found


class MaskedRoberta(FusedLoss):
    """RoBERTa with a masked language modeling head and a fused loss."""

    DECODER = "lm_head.decoder"
    OUTPUT = "MaskedLMOutput"

    def _features(self, hidden: Tensor) -> Tensor:
        own: Any = self
        head = own.lm_head
        found: Tensor = head.layer_norm(gelu(head.dense(hidden)))
        return found


class CausalDecoder(FusedLoss):
    """Decoder of Llama's form with a language modeling head and a fused loss: labels are shifted, the loss
    of 16-bit logits is float32, and a call with labels fills no cache unless it is asked to.
    """

    DECODER = "lm_head"
    OUTPUT = "CausalLMOutputWithPast"
    KEPT: ClassVar[tuple[str, ...]] = ("past_key_values", "hidden_states", "attentions")
    NEUTRAL = {"logits_to_keep": 0, "shift_labels": None, "ignore_index": IGNORED}

    def targets(self, labels: Tensor) -> Tensor:
        """Target of each row, int64 [B * S]: the next label of labels [B, S], and none for the last row."""
        return pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)

    def _precision(self, x: Tensor) -> AbstractContextManager[Any]:
        device = x.device.type
        if x.dtype not in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device, x.dtype)  # in which cross-entropy is float32

    def _averaged(self, loss: Tensor, labels: Tensor, given: Mapping[str, Any]) -> Tensor:
        count = given.get("num_items_in_batch")  # of all batches whose gradients are added up
        if count is None:
            return loss
        rows = (self.targets(labels) != IGNORED).sum().to(loss.device)
        count = count.to(loss.device) if isinstance(count, Tensor) else count
        return torch.where(rows > 0, loss, 0.0) * rows / count


class CausalGPT2(CausalDecoder):
    """GPT-2 with a language modeling head and a fused loss, as `CausalDecoder`."""

    OUTPUT = "CausalLMOutputWithCrossAttentions"
    KEPT = (*CausalDecoder.KEPT, "cross_attentions")


@constant_in_graphs
def _output_class(name: str) -> Any:
    """Class of Hugging Face's outputs by its name."""
    return getattr(import_module("transformers.modeling_outputs"), name)


def _like(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Forward function of ours with the name and signature of the original."""

    @wraps(theirs)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FusedLoss):  # put back since a wrapper kept this function
            return theirs(self, *args, **kwargs)
        return FusedLoss.forward(self, *args, **kwargs)

    unwrapped: Any = forward
    unwrapped.__signature__ = signature(theirs)
    del unwrapped.__wrapped__  # which Accelerate takes for the function that it wrapped itself
    return forward


def _changes(value: Any, neutral: int | None) -> bool:
    return value is not None and not (type(value) is int and value == neutral)
