"""The parts of a model: torch's own, or implementations of ours as a plan or a command line chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnsupportedProblem

Choices = Mapping[str, Mapping[str, int]]  # part to implementation to number of layers


class WrittenOut(nn.Module):
    """Attention as its equation says, with all scores in memory: what models had before it was fused."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.causal, self.dropout = bool(problem["causal"]), float(problem["dropout"])

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, N, S, D] each, to the context [B, N, S, D]."""
        scores = q @ k.transpose(2, 3) * q.size(3) ** -0.5
        if self.causal:
            hidden = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = functional.dropout(scores.softmax(3), self.dropout, self.training)
        return weights @ v


@dataclass
class Parts:
    """Makes parts by name. Of each the chosen implementations are given out in order, to so many layers;
    without a choice, or beyond its counts, the framework's own.

    `written_out` writes attention out. `used` collects what was made, for the result, and `versions` the
    versions of these, by operator and name. Raises
    UnsupportedProblem for a choice that refuses its problem.
    """

    dtype: str
    device: Device
    choices: Choices = field(default_factory=dict)
    written_out: bool = False
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._queues = {
            part: chain.from_iterable(repeat(name, count) for name, count in counts.items())
            for part, counts in self.choices.items()
        }

    def make(self, part: str, operator: str, **sizes: Any) -> nn.Module:
        """The next module of a part."""
        problem = registry.operator(operator).problem({**sizes, "dtype": self.dtype, "mode": "training"})
        name = next(self._queues.get(part, iter(())), registry.operator(operator).default)
        if operator == "attention" and self.written_out:
            name = "written out"
        counts = self.used.setdefault(part, {})
        counts[name] = counts.get(name, 0) + 1
        if name == "written out":
            return WrittenOut(problem)
        found = registry.implementation(operator, name)
        reason = found.unsupported(problem, self.device)
        if reason is not None:
            raise UnsupportedProblem(
                f"{name} cannot compute {part} ({problem}) on {self.device.name}: {reason}. Choose another."
            )
        self.versions[f"{operator}.{name}"] = found.version
        return found.build(problem)
