"""Additive attention module for recurrent translation models, with a selected implementation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from kernel_selector.kernels import registry

from .hyperparameters import Values, computed_dtype
from .selected import Selected, as_torchs_where_looked_into
from .selection import Built


class AdditiveAttention(Selected):
    """Additive attention (Bahdanau) of decoder states over an encoder memory; Luong's attention with
    score="general" or "dot".

    Equations and parameters (`query`, `key`, `score`, `norm`) are those of the operator additive_attention:
    scores are v . tanh(query W_q^T + b + memory W_k^T), weights their softmax, the context the weighted
    sum of the memory. `heads` are equal cuts of the features, `layer_norm` puts one inside the tanh. With
    batch_first query is [B, T, H], else [T, B, H]. See `Selected` for the other arguments; `sizes` are batch,
    source and target.
    """

    OPERATORS = {"": "additive_attention"}
    SIZES = ("batch", "source", "target")
    TORCHS_OWN = False

    def __init__(
        self,
        hidden: int,
        *,
        heads: int = 1,
        score: str = "additive",
        layer_norm: bool = False,
        batch_first: bool = True,
        device: Any = None,
        dtype: Any = None,
        **selected: Any,
    ) -> None:
        sizes = selected.pop("sizes", None)
        super().__init__(**selected)
        self._form: Values = {"hidden": hidden, "heads": heads, "score": score, "layer_norm": layer_norm}
        self.batch_first = batch_first
        operator = registry.operator("additive_attention")
        problem = operator.problem(self._form, batch=1, source=1)
        plain = registry.implementation(operator.name, operator.default).build(problem)
        for name, part in plain.named_children():
            self.add_module(name, part)
        self.to(device=device, dtype=dtype)
        if sizes is not None:
            self._choose_for(sizes)

    @as_torchs_where_looked_into
    def forward(
        self, query: Tensor, memory: Tensor, lengths: Tensor | None = None, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Context vectors and attention weights of decoder states over a memory.

        Parameters
        ----------
        query : Tensor [B, T, H], or [T, B, H] without batch_first
        memory : Tensor [B, S, H], or [S, B, H] without batch_first
        lengths : int64 Tensor [B], optional
            Valid positions of each memory.
        keys : Tensor shaped as memory, optional
            Precomputed `self.key(memory)`, for decoders that run one step a call.

        Returns
        -------
        context : Tensor shaped as query
        weights : Tensor [B, T, S], or [B, heads, T, S] with several heads

        Raises
        ------
        ValueError
            For shapes that do not fit.
        TypeError
            For lengths that are no whole numbers.
        """
        chosen: Any = self._chosen("", "_chosen_for_call", query, memory, lengths) or self._torchs
        outputs: tuple[Tensor, Tensor] = chosen(query, memory, lengths, keys)
        return outputs

    def _chosen_for_call(
        self, query: Tensor, memory: Tensor, lengths: Tensor | None = None
    ) -> nn.Module | None:
        if query.dim() != 3 or memory.dim() != 3:
            raise ValueError(
                f"query has shape {list(query.shape)} and memory {list(memory.shape)}: expected three "
                "dimensions, those of sequences, steps and features."
            )
        key = (query.shape, memory.shape, self.batch_first, lengths is not None)
        return self._implementation(
            query, computed_dtype(query), key, lambda: self.values_of(query, memory, lengths)
        )

    def values_of(self, query: Tensor, memory: Tensor, lengths: Tensor | None) -> Values:
        """Hyperparameters of a call, without dtype and mode."""
        axis = 0 if self.batch_first else 1
        return self._form | {
            "batch": query.size(axis),
            "target": query.size(1 - axis),
            "source": memory.size(1 - axis),
            "lengths": lengths is not None,
            "layout": "batch_first" if self.batch_first else "time_major",
        }

    def _torchs(self, *args: Any, **kwargs: Any) -> Any:
        operator = registry.operator("additive_attention")
        layout = "batch_first" if self.batch_first else "time_major"
        problem = operator.problem(self._form, batch=1, source=1, layout=layout)
        return Built(problem, operator.default).lent(self._lent(""), self.training)(*args, **kwargs)

    def _lent(self, _name: str) -> dict[str, Tensor | None]:
        return {
            f"{path}.{name}": getattr(part, name)
            for path, part in self.named_children()
            for name in ("weight", "bias")
        }

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        import torch

        weight = next(iter(self.parameters()), torch.empty(1))
        one, hidden = weight.detach().new_empty(1), int(str(self._form["hidden"]))
        shapes = [(sizes["batch"], sizes[name]) for name in ("target", "source")]
        if not self.batch_first:
            shapes = [shape[::-1] for shape in shapes]
        return tuple(one.expand(*shape, hidden) for shape in shapes)
