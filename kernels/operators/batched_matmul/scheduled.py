"""A Triton kernel generated from the schedule that suits the sizes, with the batch as a grid axis of its own.

The schedule comes from measurements where there are some nearby, else from a model of the hardware: see
`kernels/matmul`. Matrices are read as they lie, transposed ones too, forwards and for both gradients.
"""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import ALIGN, DTYPES, MOST_BATCH, chosen, matmul
from ...matmul.limits import limits_of
from ...matmul.ranking import Size, estimate_us
from . import ELEMENT_BYTES, sizes
from . import work as plain_work
from ._module import BatchedMatmul
from ._passes import Call, layer_of

LEAST_CAPABILITY = (8, 0)


def work(problem: Problem) -> Work:
    """The operator's counts."""
    return plain_work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, float64 and batches beyond a grid's axis."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16 and asynchronous copies"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    if problem["batch"] > MOST_BATCH:
        return f"has a batch of {problem['batch']} in a grid's axis, which takes {MOST_BATCH} at most"
    return None


def build(problem: Problem) -> nn.Module:
    """The product for a problem."""
    return BatchedMatmul(problem, scheduled)


def describe(problem: Problem, device: Device) -> str:
    """The layout and the schedule of a problem on a device, and why this one."""
    batch, rows, inner, columns = sizes(problem)
    limits = limits_of(device)
    element = ELEMENT_BYTES[problem["dtype"]]
    together = (gcd(inner, ALIGN), gcd(inner if problem["transposed"] else columns, ALIGN))
    size = Size(rows, columns, inner, element, batch, False, together)
    schedule = chosen(size, limits, device_name=device.name)
    lies = "b by columns" if problem["transposed"] else "b in rows"
    return f"a in rows, {lies}; {schedule}; about {estimate_us(schedule, size, limits):.1f} us."


def scheduled(a: Tensor, b: Tensor) -> Tensor:
    """a [S, M, K] and b [S, K, N] to [S, M, N]."""
    fits = a.dim() == b.dim() == 3 and len(a) == len(b) and a.size(2) == b.size(1)
    cast = torch.is_autocast_enabled(a.device.type)
    if (
        not fits
        or not a.numel()
        or not b.numel()
        or a.device != b.device
        or (a.dtype != b.dtype and not cast)
    ):
        return torch.bmm(a, b)  # raises, or has nothing to compute
    if a.dtype not in DTYPES or b.dtype not in DTYPES:
        raise RuntimeError(
            f"scheduled: computes in float32 inside, not in {a.dtype}: build `torch_bmm` instead."
        )
    if cast:
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = a.to(dtype), b.to(dtype)
    return LAYER(Call(a, b))[0]


LAYER = layer_of("batched_matmul_scheduled", matmul)
