"""Operators of torch.library, which torch.compile records where other calls launch kernels themselves.

An operator has memory for its results apart from what fills it, because a tracer needs the memory alone.
Arguments and results are the fields of NamedTuples. Files that register operators are imported when a call is
traced: they need Triton and parts of the compiler, which nothing else of a module does. The compiler sees no
launch in an operator; of the norms' backward it never may: it would leave out the limit of registers
(`maxnreg`), on which the number of programs relies.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
) -> Callable[..., Any]:
    """Registration of an operator `kernel_selector::name`, of which the compiler sees no launches.

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

    Returns
    -------
    callable
        The operator, which takes the arguments by place.
    """

    def given(found: Any) -> Any:
        return found[0] if len(found) == 1 else tuple(found)

    def compute(*call: Any) -> Any:
        return given(contents.compute(arguments(*call)))

    _sign(compute, arguments, results)
    full = f"{NAMESPACE}::{name}"
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


def _sign(compute: Any, arguments: type[Any], results: type[Any]) -> None:
    """Give a function the signature from which torch infers the operator's schema."""
    taken = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in typing.get_type_hints(arguments).items()
    ]
    count = len(results._fields)
    given: Any = Tensor if count == 1 else tuple[(Tensor,) * count]  # type: ignore[misc]
    compute.__signature__ = Signature(taken, return_annotation=given)


def _register(made: Any, arguments: type[Any], results: type[Any], backward: Backward) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        backward.keep(ctx, arguments(*inputs), results(*(output if isinstance(output, tuple) else (output,))))

    def gradients(ctx: Any, *upstream: Tensor | None) -> Any:
        found = backward.gradients(ctx, *upstream)
        return tuple(found.get(name) for name in arguments._fields)

    made.register_autograd(gradients, setup_context=keep)
