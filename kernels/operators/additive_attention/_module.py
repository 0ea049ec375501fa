"""The module of every implementation: parameters, what is checked of a call, and the order of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...contract import Problem


class Parameters(NamedTuple):
    """Parameters of a module as tensors; None where it has no such parameter."""

    w_query: Tensor | None  # [H, H]
    b_query: Tensor | None  # [H]
    w_key: Tensor | None  # [H, H]
    v: Tensor | None  # [N, D]
    gain: Tensor | None  # [D]
    shift: Tensor | None  # [D]


class Call(NamedTuple):
    """The arguments of a call beside its query and memory, in the layout that they came in."""

    keys: Tensor | None  # as memory
    lengths: Tensor | None  # int64 [B]
    heads: int
    time_major: bool


# (query, memory, parameters, call) to the context, as query, and the weights [B, N, T, S]
Compute = Callable[[Tensor, Tensor, Parameters, Call], tuple[Tensor, Tensor]]


class Attention(nn.Module):
    """Attention of a query on a memory; see the operator for equations, shapes and parameters.

    `compute` does the work. Errors: ValueError for shapes that do not fit and, where lengths are on the CPU,
    for one that is negative or beyond the memory; on a GPU, where looking would wait for it, and in graphs
    of torch.compile, such a length counts as 0 or S. TypeError for lengths that are no whole numbers.
    """

    def __init__(self, problem: Problem, compute: Compute) -> None:
        super().__init__()
        self.hidden, self.heads = int(problem["hidden"]), int(problem["heads"])
        self.time_major = problem["layout"] == "time_major"
        self._compute = compute
        additive = problem["score"] == "additive"
        as_asked = {"dtype": getattr(torch, problem["dtype"])}
        self.query = self.key = self.score = self.norm = None
        if problem["score"] != "dot":
            self.query = nn.Linear(self.hidden, self.hidden, bias=additive, **as_asked)
        if additive:
            self.key = nn.Linear(self.hidden, self.hidden, bias=False, **as_asked)
            self.score = nn.Linear(self.hidden // self.heads, self.heads, bias=False, **as_asked)
        if problem["layer_norm"]:
            self.norm = nn.LayerNorm(self.hidden // self.heads, **as_asked)
        self.train(problem["mode"] == "training")

    def forward(
        self, query: Tensor, memory: Tensor, lengths: Tensor | None = None, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """query [B, T, H] and memory [B, S, H] (time-major [T, B, H] and [S, B, H]), lengths int64 [B].

        `keys`, shaped as memory, stand for `self.key(memory)`. Returns the context, shaped as query, and
        the weights, [B, T, S] or with several heads [B, N, T, S].
        """
        self._check(query, memory, keys)
        if lengths is not None:
            lengths = self._lengths(lengths, query, memory)
        call = Call(keys, lengths, self.heads, self.time_major)
        context, weights = self._compute(query, memory, self._parameters_now(), call)
        return context, weights.squeeze(1) if self.heads == 1 else weights

    def extra_repr(self) -> str:
        """The sizes, as torch's modules show them."""
        return f"{self.hidden}, heads={self.heads}, time_major={self.time_major}"

    def _parameters_now(self) -> Parameters:
        query, key, score, norm = self.query, self.key, self.score, self.norm
        return Parameters(
            None if query is None else query.weight,
            None if query is None else query.bias,
            None if key is None else key.weight,
            None if score is None else score.weight,
            None if norm is None else norm.weight,
            None if norm is None else norm.bias,
        )

    def _check(self, query: Tensor, memory: Tensor, keys: Tensor | None) -> None:
        axes = ("T, B" if self.time_major else "B, T"), ("S, B" if self.time_major else "B, S")
        for name, tensor, order in (("query", query, axes[0]), ("memory", memory, axes[1])):
            if tensor.dim() != 3 or tensor.size(2) != self.hidden:
                raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{order}, {self.hidden}]")
        batch_axis = 1 if self.time_major else 0
        if query.size(batch_axis) != memory.size(batch_axis):
            raise ValueError(
                f"query has {query.size(batch_axis)} sequences and memory {memory.size(batch_axis)}: "
                f"expected [{axes[0]}, {self.hidden}] and [{axes[1]}, {self.hidden}] of one B"
            )
        if keys is not None and self.key is None:
            raise ValueError("keys are the memory itself for this score: leave them out")
        if keys is not None and keys.shape != memory.shape:
            raise ValueError(
                f"keys have shape {list(keys.shape)}, expected that of memory: {list(memory.shape)}"
            )

    def _lengths(self, lengths: Tensor, query: Tensor, memory: Tensor) -> Tensor:
        batch, source = query.size(1 if self.time_major else 0), memory.size(0 if self.time_major else 1)
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise TypeError(f"lengths have dtype {lengths.dtype}, expected int64")
        if lengths.shape != (batch,):
            raise ValueError(
                f"lengths have shape {list(lengths.shape)}, expected [{batch}]: one for each sequence"
            )
        # a look at values that a GPU has yet to compute would wait for it
        if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and batch:
            least, most = (int(value) for value in lengths.aminmax())
            if least < 0 or most > source:
                raise ValueError(
                    f"lengths from {least} to {most}: expected 0 to {source}, the memory's positions"
                )
        return lengths.to(query.device, torch.int64)
