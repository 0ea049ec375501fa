"""The least time that the hardware leaves a recurrent layer: an estimate to measure distances to.

One time step: blocks that share a batch group wait for each other, read the group's state, and multiply
it with the weights that each keeps on chip. Around the loop: the products over all steps at once, or the
tensors that have to be read and written once, whichever takes longer. Nothing overlaps but those two.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem

# measured on an H200, medians of 9: blocks that wait for each other (up to 16 in a cluster), microseconds
SYNC_US = ((1, 0.0), (16, 0.20), (32, 0.86), (64, 0.87), (132, 0.92))
# the same: every multiprocessor reads this many KB of the L2 cache, microseconds
READ_US = ((0, 0.0), (16, 0.36), (32, 0.50), (64, 0.75), (128, 1.36), (256, 2.50))
L2_BYTES_PER_US = 10e6  # by all multiprocessors together
ON_CHIP_BYTES = 400_000  # shared memory and registers of a multiprocessor that can hold weights
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


class Limit(NamedTuple):
    """Microseconds per time step, and where they go."""

    barrier: float
    exchange: float
    product: float
    outside: float

    @property
    def total(self) -> float:
        """Microseconds per time step."""
        return sum(self)


def limit(problem: Problem, device: Device) -> Limit | None:
    """The estimate for a GPU whose rates are known, else None."""
    rate = device.matmul_flops_per_s.get(problem["dtype"])
    if device.kind != "cuda" or not (rate and device.copy_bytes_per_s and device.multiprocessors):
        return None
    cells = problem["layers"] * (2 if problem["bidirectional"] else 1)
    blocks = max(1, device.multiprocessors // cells)
    per_block = rate / device.multiprocessors / 1e6  # operations per microsecond
    passes = ("forward", "backward") if problem["mode"] == "training" else ("forward",)
    chain = 1 + (problem["layers"] - 1) / problem["seq"]  # layers follow each other by one step
    sums = [0.0, 0.0, 0.0]
    for part in passes:
        best = min(
            (_step(problem, group, blocks, per_block, part) for group in range(1, blocks + 1)), key=sum
        )
        sums = [total + chain * one for total, one in zip(sums, best, strict=True)]
    work = registry.operator(problem.operator).work(problem)
    recurrent = len(passes) * cells * _step_flops(problem) * problem["seq"]
    outside_s = max((work.flops - recurrent) / rate, work.moved_bytes / device.copy_bytes_per_s)
    return Limit(*sums, outside_s * 1e6 / problem["seq"])


def _step(
    problem: Problem, group: int, blocks: int, flops_per_us: float, part: str
) -> tuple[float, float, float]:
    """Barrier, exchange and product of a step in groups of `group` blocks, each with all weights."""
    hidden, gates = problem["hidden"], GATES[problem.operator]
    element = ELEMENT_BYTES[problem["dtype"]]
    batch = -(-problem["batch"] // (blocks // group))
    states = hidden * (gates if part == "backward" else 1)
    streamed = max(0, gates * hidden**2 * element - group * ON_CHIP_BYTES) * (blocks // group)
    barrier = next((us for most, us in SYNC_US if group <= most), SYNC_US[-1][1])
    exchange = _read_us(batch * states * element) if group > 1 else 0.0
    product = 2 * batch * gates * hidden**2 / group / flops_per_us
    return barrier, exchange, max(product, streamed / L2_BYTES_PER_US)


def _step_flops(problem: Problem) -> float:
    return float(2 * problem["batch"] * GATES[problem.operator] * problem["hidden"] ** 2)


def _read_us(size_bytes: float) -> float:
    """Linear between what was measured, and at the last pair's rate beyond."""
    kilobytes = size_bytes / 1024
    pairs = list(pairwise(READ_US))
    (left, low), (right, high) = next((pair for pair in pairs if kilobytes <= pair[1][0]), pairs[-1])
    return low + (high - low) * (kilobytes - left) / (right - left)
