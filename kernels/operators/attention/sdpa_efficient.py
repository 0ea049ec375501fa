"""torch's memory-efficient backend: CUTLASS kernels from xFormers, for float32 and with masks and biases.

Keys and values of grouped heads are copied for each query head first, as models do for it. A bias gets its
gradient for each sequence, [B, H, S, K], and autograd adds these up.
"""

from __future__ import annotations

from torch import nn
from torch.nn.attention import SDPBackend

from ...contract import Device, Problem, Work
from ._sdpa import refused_by_kernels, sdpa_module
from ._work import ELEMENT_BYTES, Counts, key_elements, pairs, row_sums

ALIGNED_BYTES = 16  # of a head, which the kernels load at once


def kept(problem: Problem) -> int:
    """Row sums, keys and values that were copied, and a bias that was joined with a mask."""
    element, group = ELEMENT_BYTES[problem["dtype"]], problem["heads"] // problem["kv_heads"]
    copies = 2 * group * key_elements(problem) if group > 1 else 0
    if problem["bias"] and problem["mask"] != "none":
        copies += pairs(problem)
    return row_sums(problem) + copies * element


def work(problem: Problem) -> Work:
    """A fused kernel's counts, and passes over the bias and its gradient, one for each sequence."""
    passes = (2, 3) if problem["bias"] else (0, 0)
    launches = (3, 5) if problem["bias"] else (1, 3)
    return Counts(products=(2, 5), launches=launches, passes=passes, kept=kept).work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, and heads that are no multiple of 16 bytes."""
    if reason := refused_by_kernels(problem, device):
        return reason
    if problem["head_dim"] * ELEMENT_BYTES[problem["dtype"]] % ALIGNED_BYTES:
        return f"loads {ALIGNED_BYTES} bytes of a head at once, of which these are no multiple"
    if device.compute_capability is not None and device.compute_capability < (8, 0):
        return "is not measured on GPUs before compute capability 8.0"
    return None


def build(problem: Problem) -> nn.Module:
    """torch's attention, with this backend alone."""
    return sdpa_module(problem, SDPBackend.EFFICIENT_ATTENTION, repeat=True)
