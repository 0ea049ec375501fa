"""Backwards through a fused epilogue: dropout replayed, and the activation's derivative."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ..triton_replay import kept
from .functions import d_gelu, d_gelu_tanh, d_relu, d_silu

BLOCK = 2048  # elements of a program: 16 bytes of a 16-bit dtype for each of 256 threads
WARPS = 8


@triton.jit
def upstream_kernel(
    dy_ptr,
    kept_ptr,  # z, or y where the activation is relu and nothing follows; not read without an activation
    seed_ptr,  # not read unless DROPS
    dz_ptr,
    count,
    p,
    dropout_scale,
    ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dz = activation'(z) dropout'(dy), elementwise over `count` elements, in float32 inside."""
    program = tl.program_id(0)
    place = (program.to(tl.int64) if WIDE else program) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    g = tl.load(dy_ptr + place, inside, 0.0).to(tl.float32)
    if DROPS:
        g = tl.where(kept(tl.load(seed_ptr), place, p), g * dropout_scale, 0.0)
    if ACTIVATION != "none":
        z = tl.load(kept_ptr + place, inside, 0.0).to(tl.float32)
        if ACTIVATION == "relu":
            g = g * d_relu(z)
        elif ACTIVATION == "gelu":
            g = g * d_gelu(z)
        elif ACTIVATION == "gelu_tanh":
            g = g * d_gelu_tanh(z)
        else:
            g = g * d_silu(z)
    tl.store(dz_ptr + place, g.to(dz_ptr.dtype.element_ty), inside)
