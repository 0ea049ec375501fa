"""Normalisation with Triton's kernels: what is kept between forward and backward is the one difference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..runtime.autograd import first_order
from .launch import Form, Gradients, Kept, Outputs, _least, backward, forward
from .module import output_dtype, statistics_for, wants_gradients


class FusedNorm:
    """A NormFunction that keeps x, and with `statistics` the mean and deviation of each row."""

    def __init__(self, *, rms: bool, statistics: bool = True) -> None:
        self.rms = rms
        self.statistics = statistics

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """x [..., H], weight and bias [H] or None, to y [..., H]."""
        form = Form(self.rms, eps)
        if torch.compiler.is_compiling():
            return self._traced(x, weight, bias, form)
        if wants_gradients(x, weight, bias):
            y: Tensor = _Norm.apply(x, weight, bias, form, self)  # type: ignore[no-untyped-call]
            return y
        y = torch.empty_like(x, dtype=output_dtype(x, rms=self.rms), memory_format=torch.contiguous_format)
        forward(form, x.contiguous(), None, (weight, bias), Outputs(y))
        return y

    def keeps_output(self, _weight: Tensor | None, _bias: Tensor | None, _dtype: torch.dtype) -> bool:
        """Whether a call keeps y in place of x."""
        return False

    def _traced(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form) -> Tensor:
        """The same as a node of the graph that torch.compile records."""
        from .traced import Call, norm

        dtype, kept = output_dtype(x, rms=self.rms), wants_gradients(x, weight, bias)
        from_output = kept and self.keeps_output(weight, bias, dtype)
        statistics = kept and self.statistics
        return norm(
            Call(
                x, None, weight, bias, None, *form, 0.0, dtype,
                with_mean=statistics and not (form.rms or from_output), with_rstd=statistics,
                from_output=from_output,
            )
        ).y  # fmt: skip


class FromOutput(FusedNorm):
    """A NormFunction that keeps y in place of x where y determines x; see `layer_norm.from_output`."""

    def __init__(self, *, rms: bool) -> None:
        super().__init__(rms=rms)
        self._known: tuple[Any, bool] | None = None

    def keeps_output(self, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> bool:
        """True where no weight is so small that the rounding of y would grow more than threefold.

        Waits for the device once for each version of the parameters. While a CUDA graph is captured, and
        while torch.compile traces, nothing can be waited for, and later calls may find other weights: False.
        """
        if weight is None:
            return True
        if torch.compiler.is_compiling():
            return False
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        given = [one for one in (weight, bias) if one is not None]
        if any(one.is_inference() for one in given):
            return False  # these do not count their versions
        circumstances = (dtype, *((one.data_ptr(), one._version) for one in given))
        known = self._known  # another thread may put another here
        if known is None and weight.is_cuda:
            _load_kernels_that_keep_x(self.rms, weight, bias, dtype)
        if known is None or known[0] != circumstances:
            known = self._known = circumstances, _determined(weight.detach(), bias, dtype)
        return known[1]


def _load_kernels_that_keep_x(rms: bool, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
    """Train on one row: while a later call is captured, kernels can be launched, but perhaps not loaded."""
    weight = weight.detach().requires_grad_()
    bias = None if bias is None else bias.detach().requires_grad_()
    with torch.enable_grad():
        row = torch.ones(1, weight.numel(), dtype=dtype, device=weight.device, requires_grad=True)
        y = FusedNorm(rms=rms)(row, weight, bias, 1.0)
        torch.autograd.grad(y, [row, weight] if bias is None else [row, weight, bias], torch.ones_like(y))


def _determined(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether x-hat = (y - bias) / weight is about as exact as y, of this dtype, in every column."""
    size = weight.abs().float()
    good = size >= _least(dtype)
    if bias is not None:
        good &= bias.detach().abs() <= 2 * size
    return bool(good.all())


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, form: Form, function: FusedNorm
    ) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x, dtype=output_dtype(x, rms=form.rms))
        from_output = function.keeps_output(weight, bias, y.dtype)
        mean, rstd = statistics_for(x, form.rms or from_output) if function.statistics else (None, None)
        forward(form, x, None, (weight, bias), Outputs(y, None, mean, rstd))
        kept_bias = bias if from_output else None
        ctx.save_for_backward(y if from_output else x, weight, kept_bias, mean, rstd)
        ctx.form, ctx.from_output, ctx.x_dtype = form, from_output, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        kept = Kept(*ctx.saved_tensors)._replace(from_output=ctx.from_output)
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        dy = dy.contiguous()
        dx = torch.empty_like(dy, dtype=ctx.x_dtype) if for_x else None
        d_weight, d_bias = parameter_gradients(kept.weight, for_weight, for_bias, ctx.bias_dtype)
        backward(ctx.form, dy, None, kept, Gradients(dx, None, d_weight, d_bias))
        return dx, d_weight, d_bias, None, None


def parameter_gradients(
    weight: Tensor | None, for_weight: bool, for_bias: bool, bias_dtype: torch.dtype | None
) -> tuple[Tensor | None, Tensor | None]:
    """Memory for the gradients of weight and bias [H]; a bias alone is summed beside its weight."""
    if weight is None or not (for_weight or for_bias):
        return None, None
    bias = torch.empty_like(weight, dtype=bias_dtype) if for_bias else None
    return torch.empty_like(weight), bias
