"""Layers of which both passes are functions of ours: an autograd.Function when called, operators in a graph.

A layer's call is a NamedTuple of tensors, lists of tensors and plain values. From its forward and backward
pass, functions of such calls, this makes the two ways to reach them: one autograd.Function for calls outside
of torch.compile, and inside two operators of torch.library, of which the compiler sees no launches. Both run
the same functions, and so give the same bits.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from itertools import compress, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .autograd import first_order
from .torch_operators import NAMESPACE

Gradients = tuple[Tensor | None, ...]
OPTIONALS = typing.Sequence[typing.Optional[Tensor]]  # noqa: UP045  as schemas of torch spell it


class Made(NamedTuple):
    """Tensors that a forward pass makes."""

    outputs: tuple[Tensor, ...]
    kept: tuple[Tensor | None, ...] = ()  # for backward, beside the arguments and outputs that are saved


class Saved(NamedTuple):
    """A call as backward has it, with None for what was not saved, and the outputs that it looks at."""

    call: Any
    outputs: tuple[Any, ...]  # tensors
    kept: tuple[Any, ...]  # as the forward pass made them


class Passes(NamedTuple):
    """Forward and backward pass of a layer.

    `needs` has the fields of the call: whether a tensor wants a gradient, for lists one a tensor. Where none
    does, nothing need be kept. A pass changes no argument. Its results may be views of each other.
    """

    forward: Callable[[Any, Any], Made]  # (call, needs)
    memory: Callable[[Any, Any], Made]  # the same without values, strides included, for a tracer
    # (saved, the gradient of each output or None, needs) to gradients by field
    backward: Callable[[Saved, Gradients, Any], Mapping[str, Any]]
    saved: tuple[str, ...]  # fields of the call that backward looks at
    saves_outputs: int = 0  # how many outputs, the first ones, backward looks at
    outputs: Callable[[Any], int] = lambda _call: 1  # how many a call has


class TwoPassLayer:
    """Outputs of a layer's call, by an autograd.Function or, in a graph of torch.compile, by an operator.

    Parameters
    ----------
    name : str
        The operators are `kernel_selector::name` and `kernel_selector::name_backward`.
    call : NamedTuple class
        Arguments: Tensor, Tensor | None, list[Tensor], and plain values that a schema has a type for. What
        is drawn at random comes from a seed, a tensor.
    passes : Passes
    """

    def __init__(self, name: str, call: type[Any], passes: Passes) -> None:
        kinds = typing.get_type_hints(call)
        self.name, self.call, self.passes, self.kinds = name, call, passes, kinds
        self.lists = [field for field, kind in kinds.items() if kind == list[Tensor]]
        self.tensors = [
            field for field, kind in kinds.items() if kind in (Tensor, Tensor | None, list[Tensor])
        ]
        self.plain = [field for field in kinds if field not in self.tensors]
        self._all, self._saved = self._places(self.tensors), self._places(passes.saved)
        _layers[name] = self

    def __call__(self, call: Any) -> tuple[Tensor, ...]:
        """Outputs of a call."""
        graded, flat = torch.is_grad_enabled(), self.flat(call)
        wanted = [graded and one is not None and one.requires_grad for one in flat]
        if torch.compiler.is_compiling():
            _register(self.name)
            operator = getattr(torch.ops.kernel_selector, self.name)
            return tuple(operator(*call, wanted)[: self.passes.outputs(call)])
        if True not in wanted:
            return self.passes.forward(call, self.like(call, wanted)).outputs
        found: tuple[Tensor, ...] = _Function.apply(self, call, *flat)  # type: ignore[no-untyped-call]
        return found

    def flat(self, call: Any) -> list[Any]:
        """Tensors that the call has in its fields, in order."""
        return _flat(call, self._all)

    def like(self, call: Any, values: Iterable[Any]) -> Any:
        """The call with these values in its fields of tensors, the inverse of `flat`."""
        return self._with(call, values, self._all)

    def without(self, call: Any) -> Any:
        """The call without its tensors; lists keep their length."""
        return self._with(call, repeat(None), self._all)

    def saved(self, call: Any) -> list[Any]:
        """Tensors of the fields that backward looks at, in order."""
        return _flat(call, self._saved)

    def restored(self, plain: Any, saved: Iterable[Any]) -> Any:
        """The call of which `saved` was this, and all else as in `plain`."""
        return self._with(plain, saved, self._saved)

    def _places(self, fields: Iterable[str]) -> list[tuple[int, bool]]:
        """Places of fields in a call, in order, and whether each is a list."""
        return [(place, field in self.lists) for place, field in enumerate(self.kinds) if field in fields]

    def _with(self, call: Any, values: Iterable[Any], places: list[tuple[int, bool]]) -> Any:
        rest, found = iter(values), list(call)
        for place, many in places:
            found[place] = [next(rest) for _ in found[place]] if many else next(rest)
        return self.call(*found)

    def in_order(self, plain: Any, found: Mapping[str, Any]) -> list[Any]:
        """Gradients by field, in the order of `flat`; `plain` is a call without its tensors."""
        return self.flat(plain._replace(**found))


_layers: dict[str, TwoPassLayer] = {}
_registered: set[str] = set()


def _flat(call: Any, places: list[tuple[int, bool]]) -> list[Any]:
    found: list[Any] = []
    for place, many in places:
        if many:
            found += call[place]
        else:
            found.append(call[place])
    return found


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: TwoPassLayer, call: Any, *_tensors: Any) -> tuple[Tensor, ...]:
        passes = layer.passes
        made = passes.forward(call, layer.like(call, ctx.needs_input_grad[2:]))
        saved, outputs = layer.saved(call), made.outputs[: passes.saves_outputs]
        ctx.set_materialize_grads(False)
        ctx.layer, ctx.plain, ctx.counts = layer, layer.without(call), (len(saved), len(outputs))
        ctx.save_for_backward(*saved, *outputs, *made.kept)
        return made.outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        layer, plain, (own, outputs), saved = ctx.layer, ctx.plain, ctx.counts, ctx.saved_tensors
        kept = Saved(layer.restored(plain, saved[:own]), saved[own : own + outputs], saved[own + outputs :])
        needs = layer.like(plain, ctx.needs_input_grad[2:])
        found = layer.passes.backward(kept, upstream, needs)
        return None, None, *layer.in_order(plain, found)


def _register(name: str) -> None:
    """Register the operators of a layer, when it is first traced."""
    if name not in _registered:
        _registered.add(name)
        _register_forward(_layers[name], _register_backward(_layers[name]))


_register._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result


def _register_forward(layer: TwoPassLayer, backward: Callable[..., list[Tensor]]) -> None:
    """Register the operator of a layer's forward pass, whose derivative is that of the backward pass."""
    passes = layer.passes

    def made_by(function: Callable[[Any, Any], Made], arguments: Sequence[Any]) -> list[Tensor]:
        call = layer.call(*arguments[:-1])
        made = function(call, layer.like(call, arguments[-1]))
        return [*made.outputs, *(one for one in made.kept if one is not None)]

    def compute(*arguments: Any) -> list[Tensor]:
        found = made_by(passes.forward, arguments)
        return _apart(found, layer.flat(layer.call(*arguments[:-1])))

    operator = _custom_op(layer.name, compute, {**layer.kinds, "needs": list[bool]})
    operator.register_fake(lambda *arguments: made_by(passes.memory, arguments))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        call, needs = layer.call(*inputs[:-1]), list(inputs[-1])
        count = passes.outputs(call)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[count:])
        saved, own, kept = layer.saved(call), output[: passes.saves_outputs], iter(output[count:])
        ctx.counts = len(saved), len(own), count
        pattern = passes.memory(call, layer.like(call, needs)).kept
        ctx.save_for_backward(*saved, *own, *(None if one is None else next(kept) for one in pattern))
        wanted = [one for one, want in zip(layer.flat(call), needs, strict=True) if want]
        ctx.plain, ctx.needs, ctx.shapes = layer.without(call), needs, [one.shape for one in wanted]
        ctx.dtypes = " ".join(str(one.dtype).removeprefix("torch.") for one in wanted)

    def gradients(ctx: Any, upstream: Sequence[Tensor | None]) -> tuple[Any, ...]:
        saved, (own, outputs, count) = list(ctx.saved_tensors), ctx.counts
        given = _Upstream(
            saved[:own], saved[own : own + outputs], saved[own + outputs :],
            list(upstream[:count]), ctx.needs,
            [len(getattr(ctx.plain, field)) for field in layer.lists],
            [len(shape) for shape in ctx.shapes], [size for shape in ctx.shapes for size in shape],
            ctx.dtypes,
        )  # fmt: skip
        found = iter(backward(*given, *(getattr(ctx.plain, field) for field in layer.plain)))
        placed = layer.like(ctx.plain, (next(found) if want else None for want in ctx.needs))
        return (*(getattr(placed, field) if field in layer.tensors else None for field in layer.kinds), None)

    operator.register_autograd(gradients, setup_context=keep)


class _Upstream(NamedTuple):
    """Arguments of a backward operator, before the plain values of the call."""

    saved: OPTIONALS
    outputs: OPTIONALS
    kept: OPTIONALS
    upstream: OPTIONALS
    needs: list[bool]
    lengths: list[int]  # of the lists among the fields
    dims: list[int]  # of each gradient that is wanted
    sizes: list[int]  # of all of them, one after the other
    dtypes: str

    def memory(self) -> list[Tensor]:
        """Memory for the gradients that are wanted."""
        like = next(one for one in (*self.upstream, *self.saved, *self.kept) if one is not None)
        sizes = iter(self.sizes)
        return [
            like.new_empty([next(sizes) for _ in range(dims)], dtype=getattr(torch, dtype))
            for dims, dtype in zip(self.dims, self.dtypes.split(), strict=True)
        ]


def _register_backward(layer: TwoPassLayer) -> Callable[..., list[Tensor]]:
    """Operator of a layer's backward pass, to the gradients that are wanted, each contiguous."""
    count = len(_Upstream._fields)

    def compute(*arguments: Any) -> list[Tensor]:
        given = _Upstream(*arguments[:count])
        plain = dict(zip(layer.plain, arguments[count:], strict=True))
        lists = {field: [None] * own for field, own in zip(layer.lists, given.lengths, strict=True)}
        empty = layer.call(**{**dict.fromkeys(layer.tensors), **lists, **plain})
        saved = Saved(layer.restored(empty, given.saved), tuple(given.outputs), tuple(given.kept))
        found = layer.passes.backward(saved, tuple(given.upstream), layer.like(empty, given.needs))
        wanted = compress(layer.in_order(empty, found), given.needs)
        dtypes = (getattr(torch, dtype) for dtype in given.dtypes.split())
        own = [one.to(dtype).contiguous() for one, dtype in zip(wanted, dtypes, strict=True)]
        return _apart(own, (*given.saved, *given.upstream))

    kinds = {**typing.get_type_hints(_Upstream), **{field: layer.kinds[field] for field in layer.plain}}
    operator = _custom_op(f"{layer.name}_backward", compute, kinds)
    operator.register_fake(lambda *arguments: _Upstream(*arguments[:count]).memory())
    return operator  # type: ignore[no-any-return]


def _custom_op(name: str, compute: Any, arguments: Mapping[str, Any]) -> Any:
    """Opaque operator `kernel_selector::name` of named and typed arguments, to a list of tensors."""
    taken = [
        Parameter(field, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for field, kind in arguments.items()
    ]
    compute.__signature__ = Signature(taken, return_annotation=list[Tensor])
    return torch.library.custom_op(f"{NAMESPACE}::{name}", compute, mutates_args=())


def _apart(found: Iterable[Tensor], given: Iterable[Tensor | None]) -> list[Tensor]:
    """The tensors, as copies where they share memory with another or with an argument, which operators may
    not, or start within theirs, where the compiler does not look for them.
    """
    seen = {one.untyped_storage()._cdata for one in given if one is not None}
    own = []
    for one in reversed(list(found)):  # what is kept whole before outputs that are parts of it
        place = one.untyped_storage()._cdata
        own.append(one.clone() if place in seen or one.storage_offset() else one)
        seen.add(place)
    return own[::-1]
