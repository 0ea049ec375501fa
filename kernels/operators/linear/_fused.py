"""The layer whose product is fused with all that follows it, and whose backward pass is written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.launch import DTYPES
from ...runtime.autograd import first_order
from ...runtime.dropout import draw_seed
from . import ELEMENT_BYTES, saved_bytes
from . import work as plain_work
from ._module import Linear
from ._passes import Engine, Options, forward_pass, parameter_and_input_gradients

LEAST_CAPABILITY = (8, 0)


def refused(problem: Problem, device: Device) -> str | None:
    """Reason why kernels of Triton refuse a problem on a device, or None."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16 and asynchronous copies"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    return None


def fused_work(problem: Problem, *, launches: int = 1) -> Work:
    """The operator's counts with one launch (or so many) forwards, and no mask."""
    plain, training = plain_work(problem), problem["mode"] == "training"
    pointwise = problem["activation"] != "none" or problem["dropout"] > 0
    element = ELEMENT_BYTES[problem["dtype"]]
    z = problem["rows"] * problem["out_features"] * element if pointwise else 0
    return replace(
        plain,
        moved_bytes=plain.moved_bytes + (3 * z if training else 0),
        saved_bytes=saved_bytes(problem, mask=False) if training else 0,
        launches=launches + (2 + pointwise + problem["bias"] if training else 0),
        steps=launches + (1 + pointwise if training else 0),
    )


def build_fused(problem: Problem, engine: Engine) -> nn.Module:
    """The layer for a problem with its products computed by an engine."""
    return FusedLinear(problem, engine)


class FusedLinear(Linear):
    """nn.Linear and what follows it as one kernel; it takes other shapes than the problem's."""

    def __init__(self, problem: Problem, engine: Engine) -> None:
        super().__init__(problem)
        self._engine, self._engine_names = engine, engine.names

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear.forward`."""
        x = input
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if not self._takes(x, residual):
            return self._torchs(x, residual)
        dtype = weight.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        p = self.dropout if self.training else 0.0
        follows = residual is not None or p > 0
        needs_z = self.activation != "none" and (self.activation != "relu" or follows)
        wide = dtype if residual is None else torch.promote_types(dtype, residual.dtype)
        options = Options(self._engine, self.activation, p, needs_z, wide)
        flat = x.dim() == 2  # as most calls are, which spares them two views
        given = (
            x if flat else x.reshape(-1, self.in_features), weight, bias,
            None if residual is None else residual.reshape(-1, self.out_features).contiguous(),
        )  # fmt: skip
        keep = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given)
        if torch.compiler.is_compiling():
            from ._traced import layer

            y = layer(self._engine_names, options, given, keep=keep)
        elif keep:
            y = _Layer.apply(options, *given)  # type: ignore[no-untyped-call]
        else:
            y, _ = forward_pass(options, given, draw_seed(x.device) if p else None, keep=False)
        return y if flat else y.view(*x.shape[:-1], self.out_features)

    def _takes(self, x: Any, residual: Any) -> bool:
        """Whether the kernel computes this call."""
        if not isinstance(x, Tensor) or not x.dim() or x.size(-1) != self.in_features:
            return False
        if not x.numel() or not self.out_features or x.device != self.weight.device:
            return False
        cast = torch.is_autocast_enabled(x.device.type)
        if x.dtype not in DTYPES or not (cast or x.dtype == self.weight.dtype):
            return False
        if not 0 <= self.dropout <= 1 or (residual is None) == self.residual:
            return False
        if residual is None:
            return True
        fits = isinstance(residual, Tensor) and residual.dtype in DTYPES and residual.device == x.device
        return fits and residual.shape == (*x.shape[:-1], self.out_features)

    def _torchs(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """What torch does with a call that the kernel does not compute: it raises, or nothing is to do."""
        y = super().forward(x, residual)
        if not x.numel() or not y.numel():
            return y
        raise RuntimeError(
            f"{type(self).__name__}: torch takes x of {x.dtype} {list(x.shape)} with such a residual and "
            f"parameters of {self.weight.dtype}, this implementation does not: build `torch_linear` instead."
        )


class _Layer(torch.autograd.Function):
    """x [M, K], W [N, K], b [N] and the residual [M, N] to y [M, N]."""

    @staticmethod
    def forward(ctx: Any, options: Options, *given: Tensor | None) -> Tensor:
        """See `forward_pass`."""
        seed = draw_seed(given[0].device) if options.p else None  # type: ignore[union-attr]
        y, kept = forward_pass(options, given, seed, keep=True)
        ctx.save_for_backward(given[0], given[1], kept, seed)
        ctx.options, ctx.residual_dtype = options, None if given[3] is None else given[3].dtype
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """See `parameter_and_input_gradients`."""
        _, *wanted, for_residual = ctx.needs_input_grad
        found: tuple[Tensor | None, ...] = (None, None, None)
        if any(wanted):
            found = parameter_and_input_gradients(ctx.options, dy, ctx.saved_tensors, tuple(wanted))
        return None, *found, dy.to(ctx.residual_dtype) if for_residual else None
