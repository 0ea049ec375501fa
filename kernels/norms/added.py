"""The module of dropout_add_norm: y = norm(residual + dropout(x)), with what computes it given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..contract import Problem
from ..runtime.autograd import anchor, first_order
from ..runtime.dropout import draw_seed
from .fused import FromOutput, parameter_gradients
from .launch import KEEP_ALL, Dropout, Form, Gradients, Kept, Outputs, backward, forward
from .module import (
    epsilon,
    layer_norm_arguments,
    output_dtype,
    rms_norm_arguments,
    statistics_for,
    wants_gradients,
)


class Call(NamedTuple):
    """Options of one call of the module, beside its tensors."""

    form: Form
    p: float  # 0 in eval mode
    prenorm: bool


# (x, residual [..., H], weight [H] or None, bias [H] or None, call) to y and z [..., H]; z may be None
# where it is not asked for
AddedFunction = Callable[[Tensor, Tensor, Tensor | None, Tensor | None, Call], tuple[Tensor, Tensor | None]]


class DropoutAddLayerNorm(nn.LayerNorm):
    """nn.LayerNorm of a residual and what dropout leaves of x; `dropout` is the share that it drops."""

    def __init__(self, problem: Problem, function: AddedFunction) -> None:
        super().__init__(**layer_norm_arguments(problem))
        _prepare(self, problem, function)

    def forward(self, x: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        """x and residual [..., H] to y, or with `prenorm` to (y, z), all [..., H].

        Raises torch's errors: ValueError for a share outside [0, 1], RuntimeError for shapes that do not fit.
        """
        return _call(self, x, residual, super().forward)


class DropoutAddRMSNorm(nn.RMSNorm):
    """nn.RMSNorm of a residual and what dropout leaves of x; `dropout` is the share that it drops."""

    def __init__(self, problem: Problem, function: AddedFunction) -> None:
        super().__init__(**rms_norm_arguments(problem))
        _prepare(self, problem, function)

    def forward(self, x: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        """x and residual [..., H] to y, or with `prenorm` to (y, z), all [..., H]."""
        return _call(self, x, residual, super().forward)


def _prepare(module: Any, problem: Problem, function: AddedFunction) -> None:
    """What both norms have beside torch's attributes."""
    module.dropout = problem["dropout"]
    module.prenorm = problem["prenorm"]
    module.function = function
    module.train(problem["mode"] == "training")


def _call(module: Any, x: Tensor, residual: Tensor, torchs_own: Callable[[Tensor], Tensor]) -> Any:
    if not 0 <= module.dropout <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {module.dropout}")
    if x.shape != residual.shape:
        x, residual = torch.broadcast_tensors(x, residual)  # type: ignore[no-untyped-call]
    if x.dtype != residual.dtype:
        residual = residual.to(torch.promote_types(x.dtype, residual.dtype))
    if x.shape[-1:] != module.normalized_shape:
        torchs_own(x)  # raises its error
    form = Form(isinstance(module, nn.RMSNorm), epsilon(module))
    call = Call(form, module.dropout if module.training else 0.0, module.prenorm)
    y, z = module.function(x, residual, module.weight, getattr(module, "bias", None), call)
    return (y, z) if module.prenorm else y


def added_module(problem: Problem, function: AddedFunction) -> nn.Module:
    """The module of a problem of dropout_add_norm."""
    return (DropoutAddRMSNorm if problem["norm"] == "rms" else DropoutAddLayerNorm)(problem, function)


def plainly(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    """An AddedFunction of torch's own operations."""
    z = residual + nn.functional.dropout(x, call.p)
    shape, eps = x.shape[-1:], call.form.eps
    if call.form.rms:
        return nn.functional.rms_norm(z, shape, weight, eps), z
    return nn.functional.layer_norm(z, shape, weight, bias, eps), z


class Keeping(NamedTuple):
    """Choice of what a call keeps for backward, in place of a seed and of z."""

    bit_mask: bool = False  # one bit an element in place of the seed
    output: FromOutput | None = None  # y in place of z, where it says that y determines z

    def keeps_output(
        self, call: Call, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> bool:
        """Whether a call keeps y, of this dtype, in place of z."""
        return self.output is not None and not call.prenorm and self.output.keeps_output(weight, bias, dtype)


def fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor | None]:
    """An AddedFunction of Triton's kernels; backward replays dropout from its seed."""
    return _fused(x, residual, weight, bias, call, Keeping())


def fused_bit_mask(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor | None]:
    """The AddedFunction `fused`, with a bit of a mask kept for each element in place of a seed."""
    return _fused(x, residual, weight, bias, call, Keeping(bit_mask=True))


class FusedFromOutput:
    """An AddedFunction as `fused`, which keeps y in place of z where it can; see `FromOutput`."""

    def __init__(self, *, rms: bool) -> None:
        self._keeping = Keeping(output=FromOutput(rms=rms))

    def __call__(
        self, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
    ) -> tuple[Tensor, Tensor | None]:
        """x, residual [..., H] to y and, with prenorm, z."""
        return _fused(x, residual, weight, bias, call, self._keeping)


def _fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call, keeping: Keeping
) -> tuple[Tensor, Tensor | None]:
    if torch.compiler.is_compiling():
        return _traced(x, residual, weight, bias, call, keeping)
    if wants_gradients(x, residual, weight, bias):
        y, z, _ = _DropoutAddNorm.apply(x, residual, weight, bias, call, keeping)  # type: ignore[no-untyped-call]
        return y, z
    x, residual = x.contiguous(), residual.contiguous()
    y = torch.empty_like(residual, dtype=output_dtype(residual, rms=call.form.rms))
    z = torch.empty_like(residual) if call.prenorm else None
    dropout = Dropout(call.p, draw_seed(x.device)) if call.p else KEEP_ALL
    forward(call.form, x, residual, (weight, bias), Outputs(y, z), dropout)
    return y, z


def _traced(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call, keeping: Keeping
) -> tuple[Tensor, Tensor | None]:
    """The same as nodes of the graph that torch.compile records, the drawing of the seed among them."""
    from . import traced

    dtype = output_dtype(residual, rms=call.form.rms)
    kept = wants_gradients(x, residual, weight, bias)
    from_output = kept and keeping.keeps_output(call, weight, bias, dtype)
    found = traced.norm(
        traced.Call(
            x, residual, weight, bias, draw_seed(x.device) if call.p else None, *call.form, call.p, dtype,
            with_z=call.prenorm or (kept and not from_output),
            with_mean=kept and not (call.form.rms or from_output),
            with_rstd=kept,
            with_mask=kept and keeping.bit_mask and call.p > 0,
            from_output=from_output,
        )
    )  # fmt: skip
    return found.y, found.z if call.prenorm else None


class _DropoutAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call,
        keeping: Keeping,
    ) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(residual, dtype=output_dtype(residual, rms=call.form.rms))
        ctx.from_output = keeping.keeps_output(call, weight, bias, y.dtype)
        z = None if ctx.from_output else torch.empty_like(residual)
        mean, rstd = statistics_for(x, call.form.rms or ctx.from_output)
        seed = draw_seed(x.device) if call.p else None
        mask = None
        if keeping.bit_mask and call.p:
            rows, octets = x.numel() // x.size(-1), -(-x.size(-1) // 8)
            mask = torch.empty(rows, octets, dtype=torch.uint8, device=x.device)
        forward(
            call.form, x, residual, (weight, bias), Outputs(y, z, mean, rstd), Dropout(call.p, seed, mask)
        )
        kept = (y, weight, bias) if ctx.from_output else (z, weight, None)
        hold = anchor(x)
        ctx.save_for_backward(*kept, mean, rstd, None if keeping.bit_mask else seed, mask, hold)
        ctx.call, ctx.dtypes = call, (x.dtype, residual.dtype, None if bias is None else bias.dtype)
        return y, z if call.prenorm else None, hold

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dy: Tensor | None, dz: Tensor | None, _anchor: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        source, weight, bias, mean, rstd, seed, mask, _ = ctx.saved_tensors
        x_dtype, dtype, bias_dtype = ctx.dtypes
        for_x, for_residual, for_weight, for_bias = ctx.needs_input_grad[:4]
        dy = torch.zeros_like(source) if dy is None else dy.contiguous()
        dz = None if dz is None else dz.contiguous()
        drops = seed is not None or mask is not None
        # without dropout x and the residual have one gradient, which autograd copies where it has to
        first = torch.empty_like(source, dtype=dtype) if for_residual or (for_x and not drops) else None
        dropped = torch.empty_like(source, dtype=x_dtype) if for_x and drops else None
        d_weight, d_bias = parameter_gradients(weight, for_weight, for_bias, bias_dtype)
        kept = Kept(source, weight, bias, mean, rstd, ctx.from_output)
        out = Gradients(first, dropped, d_weight, d_bias)
        backward(ctx.call.form, dy, dz, kept, out, Dropout(ctx.call.p, seed, mask))
        dx = first.to(x_dtype) if for_x and first is not None and not drops else dropped
        return dx, (first if for_residual else None), d_weight, d_bias, None, None
