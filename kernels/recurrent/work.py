"""Counts of what a time loop made of torch operations does, for the cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..contract import Problem, Work
from . import operator


@dataclass(frozen=True, kw_only=True)
class Loop:
    """An implementation's counts, read off its source; pairs are (forward, backward).

    `launches` and `chain` are operations in one time step, all of them and those that wait for each
    other; `once` is launches outside the loop; `states` is how many [B, H] tensors a step reads and
    writes; `held` how many of them it keeps for backward, and `held_wide` those kept in float32 at
    least; `products` is the multiple of the least number of matrix-product operations in training.
    """

    launches: tuple[int, int]
    chain: tuple[int, int]
    once: tuple[int, int] = (1, 0)
    states: tuple[int, int]
    held: int
    held_wide: int = 0
    products: float = 1.0

    def work(self, problem: Problem) -> Work:
        """The counts of a problem. The step's weights are read again at each step."""
        least = operator.work(problem)
        training = problem["mode"] == "training"
        cells = problem["layers"] * operator.directions(problem)
        element = operator.ELEMENT_BYTES[problem["dtype"]]
        states = problem["seq"] * cells * problem["batch"] * problem["hidden"]
        weight_bytes = problem["seq"] * cells * operator.recurrent_weights(problem) * element

        def total(pair: tuple[int, int]) -> int:
            return sum(pair) if training else pair[0]

        # the layers' inputs are states too where two directions are joined
        held = self.held + (1 if problem["bidirectional"] else 0)
        return replace(
            least,
            flops=least.flops * (self.products if training else 1),
            moved_bytes=least.moved_bytes
            + states * element * total(self.states)
            + weight_bytes * (2 if training else 1),
            saved_bytes=states * (held * element + self.held_wide * max(element, 4)) if training else 0,
            launches=problem["seq"] * cells * total(self.launches) + cells * total(self.once),
            steps=problem["seq"] * problem["layers"] * total(self.chain),
        )
