"""Declarations that the operators gelu, relu and silu share: hyperparameters, inputs and the least work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..contract import Hyperparameter, Inputs, Integer, Problem, Space, Work
from ..contract.hyperparameter import DTYPE, MODE

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
FLOPS = {"gelu": (16, 20), "relu": (1, 1), "silu": (6, 9)}  # of an element: forward, backward


def hyperparameters(*own: Hyperparameter) -> tuple[Hyperparameter, ...]:
    """The hyperparameters of a pointwise operator in canonical order; `own` are those of it alone."""
    elements = Integer(name="elements", aliases=("numel",), maximum=2**36, help="elements of x (N)")
    return (elements, *own, DTYPE, MODE)


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x [N] of normal distribution with standard deviation 2, so that its tails count as well."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(problem["elements"], generator=generator, device=device).mul_(2)
    return Inputs((x.to(getattr(torch, problem["dtype"])),), {})


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Counts of a pointwise implementation: whole tensors, and bits, that each pass touches or keeps."""

    forward: float = 2  # x read, y written
    backward: float = 3  # dy and what was kept read, dx written
    bits: int = 0  # per element, written forwards and read backwards
    kept: float = 1  # tensors held until backward, y included and x not

    def work(self, problem: Problem) -> Work:
        """The count for a problem."""
        elements, training = problem["elements"], problem["mode"] == "training"
        whole, packed = elements * ELEMENT_BYTES[problem["dtype"]], self.bits * -(-elements // 8)
        forward, backward = FLOPS[problem.operator]
        return Work(
            flops=elements * (forward + backward * training),
            moved_bytes=whole * (self.forward + self.backward * training) + 2 * packed * training,
            saved_bytes=(whole * self.kept + packed) * training,
            launches=1 + training,
            steps=1 + training,
        )


work = Pass().work

# for tests and examples, and what random problems are drawn from
EXAMPLES: tuple[dict[str, Any], ...] = (
    {"elements": 1},
    {"elements": 33},
    {"elements": 4096},
    {"elements": 100003},
)

SPACES = {
    "cpu": Space(
        sizes={"elements": (2**10, 2**22)},
        values={"mode": ("training", "inference")},
        max_flops=1e9,
    ),
    "cuda": Space(
        sizes={"elements": (2**16, 2**29)},
        values={
            "dtype": ("float32", "float16", "bfloat16"),
            "mode": ("training", "inference"),
        },
        max_flops=1e12,
    ),
}
