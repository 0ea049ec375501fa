"""The norms as operators that torch.compile records: the launches of `fused` and `added`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.torch_operators import Backward, absent, filled, torch_operator
from .launch import Dropout, Form, Gradients, Kept, Outputs, backward, forward
from .triton_kernels import norm_forward_kernel


class Call(NamedTuple):
    """Arguments of the operator `norm`, with or without dropout and a residual before it."""

    x: Tensor  # [..., H]
    residual: Tensor | None  # [..., H], of the dtype that z gets
    weight: Tensor | None  # [H]
    bias: Tensor | None  # [H]
    seed: Tensor | None  # int64 [1] where elements are dropped
    rms: bool
    eps: float
    p: float
    dtype: torch.dtype  # of y
    with_z: bool = False
    with_mean: bool = False
    with_rstd: bool = False
    with_mask: bool = False  # in place of the seed
    from_output: bool = False  # backward has y, in place of what was normalised


class Results(NamedTuple):
    """Results of the operator `norm`."""

    y: Tensor
    z: Tensor
    mean: Tensor  # float32 [rows]
    rstd: Tensor  # float32 [rows]
    mask: Tensor  # uint8 [rows, ceil(H / 8)]


class _Upstream(NamedTuple):
    """Arguments of the operator `norm_backward`."""

    dy: Tensor
    dz: Tensor | None
    source: Tensor  # what was normalised, or y
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    rstd: Tensor | None
    seed: Tensor | None
    mask: Tensor | None
    rms: bool
    eps: float
    p: float
    from_output: bool
    first: torch.dtype | None  # of the gradient of what was normalised, where it is wanted
    dropped: torch.dtype | None  # of the same through dropout
    for_weight: bool
    for_bias: torch.dtype | None


class _Gradients(NamedTuple):
    first: Tensor
    dropped: Tensor
    weight: Tensor
    bias: Tensor


def _memory(call: Call) -> Results:
    x = call.x
    hidden = x.size(-1)
    rows = x.numel() // hidden
    like = x if call.residual is None else call.residual
    plain = torch.contiguous_format
    y = torch.empty_like(x, dtype=call.dtype, memory_format=plain)
    z = torch.empty_like(like, memory_format=plain) if call.with_z else absent(x)
    mean, rstd = (
        x.new_empty(rows if wanted else 0, dtype=torch.float32) for wanted in (call.with_mean, call.with_rstd)
    )
    mask = x.new_empty(rows if call.with_mask else 0, -(-hidden // 8), dtype=torch.uint8)
    return Results(y, z, mean, rstd, mask)


def _fill(call: Call, found: Results) -> None:
    form = Form(call.rms, call.eps)
    residual = None if call.residual is None else call.residual.contiguous()
    out = Outputs(
        found.y,
        found.z if call.with_z else None,
        found.mean if call.with_mean else None,
        found.rstd if call.with_rstd else None,
    )
    dropout = Dropout(call.p, call.seed, found.mask if call.with_mask else None)
    forward(form, call.x.contiguous(), residual, (call.weight, call.bias), out, dropout)


def _gradient_memory(call: _Upstream) -> _Gradients:
    def like(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        if dtype is None:
            return absent(tensor)
        return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)

    scales = call.dy if call.weight is None else call.weight
    return _Gradients(
        like(call.source, call.first),
        like(call.source, call.dropped),
        like(scales, scales.dtype if call.for_weight or call.for_bias is not None else None),
        like(scales, call.for_bias),
    )


def _fill_gradients(call: _Upstream, found: _Gradients) -> None:
    parameters = call.for_weight or call.for_bias is not None  # a bias alone is summed beside its weight
    out = Gradients(
        found.first if call.first is not None else None,
        found.dropped if call.dropped is not None else None,
        found.weight if parameters else None,
        found.bias if call.for_bias is not None else None,
    )
    kept = Kept(call.source.contiguous(), call.weight, call.bias, call.mean, call.rstd, call.from_output)
    dz = None if call.dz is None else call.dz.contiguous()
    dropout = Dropout(call.p, call.seed, call.mask)
    backward(Form(call.rms, call.eps), call.dy.contiguous(), dz, kept, out, dropout)


# opaque to the compiler: it would leave out the limit of registers, on which the number of programs relies
norm_backward = torch_operator(
    "norm_backward", _Upstream, _Gradients, filled(_gradient_memory, _fill_gradients)
)


def _keep(ctx: Any, call: Call, found: Results) -> None:
    source = call.x if call.residual is None else found.z
    constants = found.mean, found.rstd, found.mask
    ctx.mark_non_differentiable(*constants, *(() if call.with_z else (found.z,)))
    ctx.save_for_backward(
        found.y if call.from_output else source,
        call.weight,
        call.bias if call.from_output else None,
        found.mean if call.with_mean else None,
        found.rstd if call.with_rstd else None,
        None if call.with_mask else call.seed,
        found.mask if call.with_mask else None,
    )
    residual, bias = (None if one is None else one.dtype for one in (call.residual, call.bias))
    ctx.dtypes = call.x.dtype, residual, bias
    ctx.form, ctx.from_output = (call.rms, call.eps, call.p), call.from_output


def _gradients(ctx: Any, dy: Tensor | None, dz: Tensor | None, *_: Any) -> Mapping[str, Tensor | None]:
    source, weight, bias, mean, rstd, seed, mask = ctx.saved_tensors
    x_dtype, residual_dtype, bias_dtype = ctx.dtypes
    for_x, for_residual, for_weight, for_bias = ctx.needs_input_grad[:4]
    if dy is None:
        dy = torch.zeros_like(source)
    drops = seed is not None or mask is not None
    wanted = for_residual or (for_x and not drops)
    first, dropped, d_weight, d_bias = norm_backward(
        dy, dz, source, weight, bias, mean, rstd, seed, mask, *ctx.form, ctx.from_output,
        (residual_dtype or x_dtype) if wanted else None, x_dtype if for_x and drops else None,
        for_weight, bias_dtype if for_bias else None,
    )  # fmt: skip
    return {
        "x": (dropped if drops else first.to(x_dtype)) if for_x else None,
        "residual": first if for_residual else None,
        "weight": d_weight if for_weight else None,
        "bias": d_bias if for_bias else None,
    }


operator = torch_operator(
    "norm", Call, Results, filled(_memory, _fill),
    backward=Backward(_keep, _gradients), kernels=(norm_forward_kernel,),
)  # fmt: skip


def norm(call: Call) -> Results:
    """Results of a call, as one node of a graph; what it does not ask for is empty."""
    return Results(*operator(*call))
