"""Planning model: groups of equal layers, parameters, and other memory of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest

LARGEST_BATCH = 2**17

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Group of equal layers of a model at one batch size.

    `per_block` of them are in each block that can be recomputed as a whole; 0: in none. `output_bytes` is
    the size of one layer's output. `output_kept` says that another layer keeps that output for backward
    anyway (the input of a linear layer, for example); else it is gone after it was used. `input_kept` says
    the same of its arguments: where nobody else keeps them, what an implementation needs of them counts.
    `head` marks the loss, where backward begins. What is not `replaceable` stays the framework's own.
    """

    name: str
    problem: Problem
    count: int
    output_bytes: int
    per_block: int = 0
    output_kept: bool = True
    input_kept: bool = True
    head: bool = False
    replaceable: bool = True


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Training step at one batch size, without implementations.

    Bytes beside the parts: `kept_bytes` from forward to backward (embeddings, inputs), and `block_bytes`,
    the input of a block, which stays where the block is recomputed. `loss_bytes` are what a loss that is no
    part takes: what it keeps, which goes with it, and its gradients. `other_flops` and `other_bytes` are
    operations and traffic of what is no part. `head_gradient_bytes` are the first gradients of backward.
    """

    parts: tuple[Part, ...]
    kept_bytes: int
    block_bytes: int = 0
    head_gradient_bytes: int = 0
    loss_bytes: int = 0
    other_flops: float = 0.0
    other_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """Named model: number of parameters, dtype, and its training step by batch size."""

    name: str
    parameters: int
    dtype: str
    blocks: int
    workload: Callable[[int], Workload]

    @property
    def element_bytes(self) -> int:
        """Bytes of one parameter."""
        return ELEMENT_BYTES[self.dtype]


def problem_of(operator: str, dtype: str, sizes: Mapping[str, object]) -> Problem:
    """Problem of a layer in training.

    Raises the errors of hyperparameters.
    """
    return registry.operator(operator).problem({**sizes, "dtype": dtype, "mode": "training"})


def parse_batch(batch: object) -> int | None:
    """Batch size, or None for "auto".

    Raises InvalidRequest for anything else.
    """
    if batch == "auto":
        return None
    if type(batch) is not int or not 1 <= batch <= LARGEST_BATCH:
        raise InvalidRequest(
            f'batch={shorten(batch)}: expected "auto" or a whole number from 1 to {LARGEST_BATCH}.'
        )
    return batch
