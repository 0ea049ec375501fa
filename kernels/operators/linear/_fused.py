"""The layer whose product is fused with all that follows it, and whose backward pass is written by hand.

Kept for backward is z alone, in the layer's dtype: dropout is replayed from its seed, and the activation
is not kept beside its argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from ...contract import Device, Problem, Work
from ...matmul.backward import dropout_scale, row_sums, through_epilogue
from ...matmul.epilogue import ACTIVATIONS, BIAS, DROPOUT, KEEP, RESIDUAL, Step
from ...matmul.launch import DTYPES, Epilogue
from ...runtime.autograd import first_order
from ...runtime.dropout import draw_seed
from . import ELEMENT_BYTES, saved_bytes
from . import work as plain_work
from ._module import Linear
from ._streams import side_by_side

LEAST_CAPABILITY = (8, 0)

Product = Callable[[Tensor, Tensor], Tensor]  # a [M, K] and b [K, N] to a b


class Engine(NamedTuple):
    """Functions that compute the products, each of a file, because copies of a module keep them by name."""

    forward: Callable[[Tensor, Tensor, Epilogue, torch.dtype], Tensor]  # x [M, K], W [N, K] to [M, N]
    x_gradient: Product = torch.mm  # dz [M, N] W [N, K]
    weight_gradient: Product = torch.mm  # dz^T [N, M] x [M, K]


class Options(NamedTuple):
    """Options of one call of the layer, beside its tensors."""

    engine: Engine
    activation: str
    p: float
    needs_z: bool  # by the activation's derivative, and not to be had from y
    dtype: torch.dtype  # of y


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
        self._engine = engine

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `Linear.forward`."""
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            y: Tensor = _outside_of_graphs(self, input, residual)
            return y
        return self._forward(input, residual)

    def _forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
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
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given):
            y: Tensor = _Layer.apply(options, *given)  # type: ignore[no-untyped-call]
        else:
            y = _forward(options, given, keep=False)[0]
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


@_disable_dynamo  # as torch.compiler.disable, but imports torch.compile at the first call, not here
def _outside_of_graphs(module: FusedLinear, x: Tensor, residual: Tensor | None) -> Tensor:
    """A graph break: the kernel's launch is no operation that torch.compile knows."""
    return module._forward(x, residual)


def _forward(
    options: Options, given: tuple[Tensor | None, ...], *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y [M, N]; with `keep` also what the activation's derivative needs; and dropout's seed."""
    x, weight, bias, residual = given
    assert x is not None
    assert weight is not None
    steps: list[Step] = []
    values: list[Any] = []
    kept = seed = None
    if bias is not None:
        steps, values = [BIAS], [bias.contiguous()]
    if keep and options.needs_z:
        kept = torch.empty(x.size(0), weight.size(0), dtype=x.dtype, device=x.device)
        steps, values = [*steps, KEEP], [*values, kept]
    if options.activation != "none":
        steps.append(ACTIVATIONS[options.activation])
    if options.p:
        seed = draw_seed(x.device)
        steps, values = [*steps, DROPOUT], [*values, seed, options.p, dropout_scale(options.p)]
    if residual is not None:
        steps, values = [*steps, RESIDUAL], [*values, residual]
    fused = Epilogue(tuple(steps), tuple(values))
    y = options.engine.forward(x, weight, fused, options.dtype)
    return y, y if keep and options.activation == "relu" and not options.needs_z else kept, seed


class _Layer(torch.autograd.Function):
    """x [M, K], W [N, K], b [N] and the residual [M, N] to y [M, N]."""

    @staticmethod
    def forward(ctx: Any, options: Options, *given: Tensor | None) -> Tensor:
        """See `_forward`."""
        y, kept, seed = _forward(options, given, keep=True)
        ctx.save_for_backward(given[0], given[1], kept, seed)
        ctx.options, ctx.residual_dtype = options, None if given[3] is None else given[3].dtype
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """One pointwise pass, a product for x, one for the weight, and a sum for the bias.

        In a graph the product for x and what the parameters need are branches side by side.
        """
        x, weight, kept, seed = ctx.saved_tensors
        options: Options = ctx.options
        engine = options.engine
        _, for_x, for_weight, for_bias, for_residual = ctx.needs_input_grad
        dx = dw = db = None
        if for_x or for_weight or for_bias:
            dz, sums = through_epilogue(
                dy, kept, seed, activation=options.activation, p=options.p, dtype=x.dtype, for_bias=for_bias
            )

            def parameters() -> tuple[Tensor | None, Tensor | None]:
                return (
                    engine.weight_gradient(dz.t(), x) if for_weight else None,
                    None if sums is None else row_sums(sums, dz.dtype),
                )

            if for_x and (for_weight or for_bias):
                flops = 4.0 * weight.numel() * len(x)
                (dw, db), dx = side_by_side(parameters, lambda: engine.x_gradient(dz, weight), dz, flops)
            else:
                dw, db = parameters()
                dx = engine.x_gradient(dz, weight) if for_x else None
        return None, dx, dw, db, dy.to(ctx.residual_dtype) if for_residual else None
