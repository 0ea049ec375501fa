"""Operators of torch.library, which torch.compile records where other calls launch kernels themselves.

An operator has memory for its results apart from what fills it, because a tracer needs the memory alone.
Arguments and results are the fields of NamedTuples. Files that register operators are imported when a call is
traced: they need Triton and parts of the compiler, which nothing else of a module does.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .triton_launch import traced_launches

NAMESPACE = "kernel_selector"


class Backward(NamedTuple):
    """Backward pass of an operator, in other operators: none has a second derivative."""

    # (ctx, arguments, results): keeps for backward what it needs
    keep: Callable[[Any, Any, Any], None]
    # (ctx, the gradient of each result or None) to gradients by the names of arguments
    gradients: Callable[..., Mapping[str, Tensor | None]]


class Contents(NamedTuple):
    """Results of an operator for its arguments: their memory, and with values."""

    memory: Callable[[Any], Any]  # arguments to results; a result that a call has not is `absent`
    compute: Callable[[Any], Any]  # the same with their values; changes no argument, and gives none of them


def torch_operator(
    name: str,
    arguments: type[Any],
    results: type[Any],
    contents: Contents,
    *,
    backward: Backward | None = None,
    kernels: tuple[Any, ...] = (),
) -> Callable[..., Any]:
    """Registration of an operator `kernel_selector::name`.

    Parameters
    ----------
    name : str
        Its name in the namespace.
    arguments, results : NamedTuple classes
        Names and types of both; results are tensors. An operator of one result gives that tensor.
    contents : Contents
        What it computes. A tracer asks for the memory alone.
    backward : Backward, optional
        Without it the operator has no derivative.
    kernels : tuple of Triton kernels, optional
        All that are launched, where the compiler shall see the launches, which halves their cost for the
        host. It knows no limit of registers (`maxnreg`). Without them it sees the operator alone.

    Returns
    -------
    callable
        The operator, which takes the arguments by place.
    """

    def given(found: Any) -> Any:
        return found[0] if len(found) == 1 else tuple(found)

    seen = bool(kernels) and all(map(_is_compiled, kernels))

    def compute(*call: Any) -> Any:
        with traced_launches() if seen else nullcontext():
            return given(contents.compute(arguments(*call)))

    count = len(results._fields)
    kinds: Any = Tensor if count == 1 else tuple[(Tensor,) * count]  # type: ignore[misc]
    sign(compute, typing.get_type_hints(arguments), kinds)
    full = f"{NAMESPACE}::{name}"
    if seen:
        made: Any = torch.library.triton_op(full, compute, mutates_args=())
        # their text is part of the keys of torch's cache of graphs, which looks no deeper than `compute`
        torch._library.triton.triton_ops_to_kernels[full] = list(kernels)
    else:
        made = torch.library.custom_op(full, compute, mutates_args=())
    made.register_fake(lambda *call: given(contents.memory(arguments(*call))))
    if backward is not None:
        _register(made, arguments, results, backward)
    operator: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
    return operator


def filled(memory: Callable[[Any], Any], fill: Callable[[Any, Any], None]) -> Contents:
    """Contents of an operator whose results are filled, by a function of (arguments, results)."""

    def compute(call: Any) -> Any:
        found = memory(call)
        fill(call, found)
        return found

    return Contents(memory, compute)


def absent(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Result that a call has not, on the device of a tensor: operators give tensors alone."""
    return like.new_empty(0, dtype=dtype)


def sign(compute: Any, arguments: Mapping[str, Any], results: Any) -> None:
    """Give a function the signature from which torch infers an operator's schema."""
    taken = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in arguments.items()
    ]
    compute.__signature__ = Signature(taken, return_annotation=results)


def _is_compiled(kernel: Any) -> bool:
    """Whether a kernel is one that Triton compiles; those of its interpreter the compiler cannot see."""
    import triton  # type: ignore[import-untyped]

    return isinstance(kernel, triton.JITFunction)


def _register(made: Any, arguments: type[Any], results: type[Any], backward: Backward) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        backward.keep(ctx, arguments(*inputs), results(*(output if isinstance(output, tuple) else (output,))))

    def gradients(ctx: Any, *upstream: Tensor | None) -> Any:
        found = backward.gradients(ctx, *upstream)
        return tuple(found.get(name) for name in arguments._fields)

    made.register_autograd(gradients, setup_context=keep)
