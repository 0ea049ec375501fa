"""Drop-in modules for parts of Hugging Face's BERT, RoBERTa, GPT-2 and decoders of Llama's form.

Each class has the name of the one that it inherits from and stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from .activations import Activation
from .hugging_face_losses import CausalDecoder, CausalGPT2, MaskedBert, MaskedRoberta
from .hyperparameters import (
    RMS_NORMS,
    activation_word,
    added_norm_values,
    computed_dtype,
    feed_forward_values,
    written_norm_values,
    written_out,
)
from .joined import JoinedAttention
from .selected import OneInput, Selected, as_torchs_where_looked_into, stands_for, watched


class _Output(Selected):
    """Linear layer whose dropout, residual connection and layer norm run as one operator."""

    OPERATORS = {"LayerNorm": "dropout_add_norm"}

    @as_torchs_where_looked_into
    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Normalized sum [..., H] of hidden_states [..., I] after the linear layer and input_tensor [...,
        H].
        """
        own: Any = self
        return self.joined(own.dense(hidden_states), input_tensor)

    def joined(self, y: Tensor, residual: Tensor) -> Tensor:
        """Dropout, residual addition and layer norm of the linear layer's output y and the residual [...,
        H].
        """
        own: Any = self
        chosen = self._chosen("LayerNorm", "_added_norm", residual)
        joined: Tensor = own.LayerNorm(own.dropout(y) + residual) if chosen is None else chosen(y, residual)
        return joined

    def _added_norm(self, residual: Tensor) -> nn.Module | None:
        """Implementation for a residual [..., H]; None where modules were modified."""
        own: Any = self
        norm, dropout = own.LayerNorm, own.dropout
        if not (stands_for(norm, kind=nn.LayerNorm) and stands_for(dropout, kind=nn.Dropout)):
            return None
        share = dropout.p
        return self._implementation(
            residual,
            residual.dtype,
            (residual.shape, share, norm.eps),
            lambda: added_norm_values(norm, residual, share),
            "LayerNorm",
        )

    def _settings(self, _name: str) -> tuple[Any, ...]:
        own: Any = self
        return getattr(own.dropout, "p", None), getattr(own.LayerNorm, "eps", None)

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        own: Any = self
        return {"weight": own.LayerNorm.weight, "bias": own.LayerNorm.bias}


class _Layer(Selected):
    """Transformer layer whose feed-forward block runs as one operator."""

    OPERATORS = {"feed_forward": "feed_forward"}

    def _torchs(self, attention_output: Tensor) -> Tensor:
        theirs: Any = super()
        y: Tensor = theirs.feed_forward_chunk(attention_output)
        return y

    @as_torchs_where_looked_into
    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        """Feed-forward block: [..., H] to [..., H]."""
        own: Any = self
        chosen = self._chosen("feed_forward", "_ff", attention_output)
        if chosen is None:
            return super().feed_forward_chunk(attention_output)  # type: ignore[misc, no-any-return]
        y, output = chosen(attention_output), own.output
        if isinstance(output, _Output):
            return output.joined(y, attention_output)
        normed: Tensor = output.LayerNorm(output.dropout(y) + attention_output)
        return normed

    def _written_out(self) -> bool:
        own: Any = self
        return written_out(own.intermediate.intermediate_act_fn)

    def _ff(self, x: Tensor) -> nn.Module | None:
        own: Any = self
        dense, activation = own.intermediate.dense, own.intermediate.intermediate_act_fn
        unseen = not (watched(own.intermediate) or watched(own.output))
        if not (unseen and stands_for(dense, own.output.dense, kind=nn.Linear) and _known(activation)):
            return None
        return _feed_forward(self, x, activation_word(activation), dense.out_features)

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        own: Any = self
        parts = {"linear1": own.intermediate.dense, "linear2": own.output.dense}
        return {
            f"{path}.{leaf}": getattr(part, leaf)
            for path, part in parts.items()
            for leaf in ("weight", "bias")
        }


def _known(activation: object) -> bool:
    """Whether an activation module computes the function of its config name and has no hooks."""
    return not isinstance(activation, nn.Module) or stands_for(activation)


def _feed_forward(own: Selected, x: Tensor, word: str | None, inner: int) -> nn.Module | None:
    """Feed-forward implementation for x; None for an activation that the operator lacks."""
    if word is None:
        return None
    key = (x.shape, word)
    values = partial(feed_forward_values, x, inner, word, 0.0, True)
    return own._implementation(x, computed_dtype(x), key, values, "feed_forward")


class _TransposedFeedForward(Selected):
    """GPT-2's feed-forward block; implementations get its [in, out] weights transposed."""

    OPERATORS = {"feed_forward": "feed_forward"}

    @as_torchs_where_looked_into
    def forward(self, hidden_states: Tensor) -> Tensor:
        """Feed-forward block: [..., H] to [..., H]."""
        own: Any = self
        chosen = self._chosen("feed_forward", "_ff", hidden_states)
        if chosen is None:
            return super().forward(hidden_states)  # type: ignore[no-any-return]
        y: Tensor = own.dropout(chosen(hidden_states))
        return y

    def _ff(self, x: Tensor) -> nn.Module | None:
        own: Any = self
        linears = own.c_fc, own.c_proj
        if not (_known(own.act) and stands_for(*linears) and all(hasattr(one, "nf") for one in linears)):
            return None
        return _feed_forward(self, x, activation_word(own.act), own.c_fc.nf)

    def _written_out(self) -> bool:
        own: Any = self
        return written_out(own.act)

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        own: Any = self
        return {
            "linear1.weight": own.c_fc.weight.t(),
            "linear1.bias": own.c_fc.bias,
            "linear2.weight": own.c_proj.weight.t(),
            "linear2.bias": own.c_proj.bias,
        }


class _GELU(Activation):
    """GELU activation, exact or with tanh."""

    OPERATORS = {"": "gelu"}

    def _written_out(self) -> bool:
        return written_out(self)


class _SiLU(Activation):
    """SiLU activation."""

    OPERATORS = {"": "silu"}


class _RMSNorm(OneInput):
    """RMS norm, which decoders write out in six operations."""

    OPERATORS = {"": "rms_norm"}

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalized hidden_states [..., H]."""
        y: Tensor = OneInput.forward(self, hidden_states)
        return y

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        own: Any = self
        # theirs computes the same under autocast as without, and torch's gives float32 for 16 bits there
        narrowed = x.dtype != torch.float32 and torch.is_autocast_enabled(x.device.type)
        if x.shape[-1:] != own.weight.shape or narrowed:
            return None
        key = x.shape, own.variance_epsilon
        return self._implementation(x, x.dtype, key, partial(written_norm_values, self, x))

    def _weights(self) -> tuple[str, ...]:
        return ("weight",)

    def _settings(self, _name: str) -> tuple[Any, ...]:
        own: Any = self
        return (own.variance_epsilon,)

    def _written_out(self) -> bool:
        return True


_MODELS = "transformers.models"
# models of Llama's form by family: a decoder, a linear layer behind it, and labels that are shifted
_DECODERS = {
    **{
        family: family.title()
        for family in (
            *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "phi", "phi3", "glm"),
            *("glm4", "olmo", "olmo2", "olmo3", "starcoder2", "exaone4", "arcee", "helium", "apertus"),
        )
    },
    "seed_oss": "SeedOss",
    "smollm3": "SmolLM3",
}
# name of a class, theirs and ours -> the module that has theirs, and what is mixed into it
STANDS_FOR: Mapping[str, tuple[str, type[Selected]]] = {
    "BertSelfOutput": (f"{_MODELS}.bert.modeling_bert", _Output),
    "BertOutput": (f"{_MODELS}.bert.modeling_bert", _Output),
    "BertLayer": (f"{_MODELS}.bert.modeling_bert", _Layer),
    "RobertaSelfOutput": (f"{_MODELS}.roberta.modeling_roberta", _Output),
    "RobertaOutput": (f"{_MODELS}.roberta.modeling_roberta", _Output),
    "RobertaLayer": (f"{_MODELS}.roberta.modeling_roberta", _Layer),
    "BertForMaskedLM": (f"{_MODELS}.bert.modeling_bert", MaskedBert),
    "RobertaForMaskedLM": (f"{_MODELS}.roberta.modeling_roberta", MaskedRoberta),
    "GPT2LMHeadModel": (f"{_MODELS}.gpt2.modeling_gpt2", CausalGPT2),
    "GPT2MLP": (f"{_MODELS}.gpt2.modeling_gpt2", _TransposedFeedForward),
    "GELUActivation": ("transformers.activations", _GELU),
    "GELUTanh": ("transformers.activations", _GELU),
    "NewGELUActivation": ("transformers.activations", _GELU),
    "FastGELUActivation": ("transformers.activations", _GELU),
    "SiLUActivation": ("transformers.activations", _SiLU),
    **{name: (f"{_MODELS}.{family}.modeling_{family}", _RMSNorm) for family, name in RMS_NORMS.items()},
    **{
        f"{name}ForCausalLM": (f"{_MODELS}.{family}.modeling_{family}", CausalDecoder)
        for family, name in _DECODERS.items()
    },
}

# the same of attention whose linear layers may be one product
JOINED: Mapping[str, tuple[str, type[nn.Module]]] = {
    "BertSelfAttention": (f"{_MODELS}.bert.modeling_bert", JoinedAttention),
    "RobertaSelfAttention": (f"{_MODELS}.roberta.modeling_roberta", JoinedAttention),
}


def __getattr__(name: str) -> Any:
    """Class of STANDS_FOR or JOINED by name, created on first access because that imports Hugging Face's
    models.
    """
    found = STANDS_FOR.get(name) or JOINED.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, mixed_in = import_module(found[0]), found[1]
    theirs = getattr(home, name)
    own = {"__module__": __name__, "__doc__": mixed_in.__doc__, "HOME": home}
    ours = type(name, (mixed_in, theirs), own)
    globals()[name] = ours
    return ours
