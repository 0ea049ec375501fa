"""Layers of which both passes are functions of ours: an autograd.Function when called, operators in a graph.

A layer's call is a NamedTuple of tensors, lists of tensors and plain values. From its forward and backward
pass, functions of such calls, this makes the two ways to reach them: one autograd.Function for calls outside
of torch.compile, and inside two operators of torch.library, of which the compiler sees no launches. Both run
the same functions, and so give the same bits.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .autograd import anchor, first_order
from .torch_operators import NAMESPACE, sign

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
    # the same without values, strides included, for a tracer: forward itself, if of torch's operations alone
    memory: Callable[[Any, Any], Made]
    # (saved, the gradient of each output or None, needs) to gradients by field; what is left out is None or 0
    backward: Callable[[Saved, Gradients, Any], Mapping[str, Any]]
    saved: tuple[str, ...]  # fields of the call that backward looks at
    saves_outputs: int = 0  # how many outputs, the first ones, backward looks at
    outputs: Callable[[Any], int] = lambda _call: 1  # how many a call has
    contiguous: bool = False  # whether gradients are, in place of laid out as the arguments
    waits: bool = False  # whether the host waits for the device: no CUDA graph is captured then


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
        self.name, self.call, self.passes = name, call, passes
        self.kinds = typing.get_type_hints(call)
        kinds = list(enumerate(self.kinds.values()))
        self.lists = [place for place, kind in kinds if kind == list[Tensor]]
        self.tensors = [
            place for place, kind in kinds if kind in (Tensor, Tensor | None) or place in self.lists
        ]
        self.plain = [field for place, field in enumerate(self.kinds) if place not in self.tensors]
        self.differentiable = [(place, call._fields[place]) for place in self.tensors]
        self._saved = {place for place, field in enumerate(self.kinds) if field in passes.saved}
        self.anchored = not (self._saved or passes.saves_outputs)
        _layers[name] = self

    def __call__(self, call: Any) -> tuple[Tensor, ...]:
        """Outputs of a call."""
        given, graded = self.flat(call), torch.is_grad_enabled()
        wanted = [graded and one is not None and one.requires_grad for one in given]
        if torch.compiler.is_compiling():
            _register(self.name)
            operator = getattr(torch.ops.kernel_selector, self.name)
            return tuple(operator(*call, wanted)[: self.passes.outputs(call)])
        if True not in wanted:
            return self.passes.forward(call, self.like(call, wanted)).outputs
        found: tuple[Tensor, ...] = _Function.apply(self, call, *given)  # type: ignore[no-untyped-call]
        return found[:-1] if self.anchored else found

    def flat(self, call: Any, *, saved: bool = False) -> list[Any]:
        """Values of the call's fields of tensors, in order; with `saved` None for those that are not."""
        if not self.lists:  # most layers: quickly
            kept = self._saved if saved else self.tensors
            return [call[place] if place in kept else None for place in self.tensors]
        found: list[Any] = []
        for place in self.tensors:
            value, gone = call[place], saved and place not in self._saved
            if place in self.lists:
                found.extend([None] * len(value) if gone else value)
            else:
                found.append(None if gone else value)
        return found

    def like(self, call: Any, values: Iterable[Any]) -> Any:
        """The call with these values in its fields of tensors, the inverse of `flat`."""
        fields, rest = list(call), iter(values)
        if not self.lists:
            for place, value in zip(self.tensors, rest, strict=True):
                fields[place] = value
            return self.call._make(fields)
        for place in self.tensors:
            fields[place] = [next(rest) for _ in call[place]] if place in self.lists else next(rest)
        return self.call._make(fields)

    def in_order(self, needs: Any, found: Mapping[str, Any]) -> list[Tensor | None]:
        """Gradients by field, in the order of `flat`."""
        if not self.lists:
            return [found.get(field) for _, field in self.differentiable]
        order: list[Tensor | None] = []
        for place, field in self.differentiable:
            one = found.get(field)
            if place in self.lists:
                order.extend([None] * len(needs[place]) if one is None else one)
            else:
                order.append(one)
        return order


_layers: dict[str, TwoPassLayer] = {}
_registered: set[str] = set()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: TwoPassLayer, call: Any, *_given: Any) -> tuple[Tensor, ...]:
        passes = layer.passes
        needs = layer.like(call, ctx.needs_input_grad[2:])
        outputs, kept = passes.forward(call, needs)
        saved = layer.flat(call, saved=True)
        ctx.set_materialize_grads(False)
        ctx.layer, ctx.needs, ctx.ends = layer, needs, (len(saved), len(outputs))
        if layer.anchored:
            hold = anchor(outputs[0])
            ctx.save_for_backward(*kept, hold)
            return (*outputs, hold)
        ctx.save_for_backward(*saved, *outputs[: passes.saves_outputs], *kept)
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        layer, needs, tensors = ctx.layer, ctx.needs, ctx.saved_tensors
        own, count = ctx.ends
        if layer.anchored:
            saved = Saved(layer.like(needs, (None,) * own), (), tensors[:-1])
        else:
            last = own + layer.passes.saves_outputs
            saved = Saved(layer.like(needs, tensors[:own]), tensors[own:last], tensors[last:])
        found = layer.passes.backward(saved, upstream[:count], needs)
        return None, None, *layer.in_order(needs, found)


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
        outputs, kept = function(call, layer.like(call, arguments[-1]))
        return _apart([*outputs, *(one for one in kept if one is not None)], layer.flat(call))

    def compute(*arguments: Any) -> list[Tensor]:
        return made_by(passes.forward, arguments)

    operator = _custom_op(layer.name, compute, {**layer.kinds, "needs": list[bool]}, waits=passes.waits)
    operator.register_fake(lambda *arguments: made_by(passes.memory, arguments))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        call, needs = layer.call(*inputs[:-1]), list(inputs[-1])
        count = passes.outputs(call)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[count:])
        kept, saved = iter(output[count:]), layer.flat(call, saved=True)
        own = output[: passes.saves_outputs]
        ctx.ends = len(saved), len(saved) + len(own), count
        pattern = passes.memory(call, layer.like(call, needs)).kept
        ctx.save_for_backward(*saved, *own, *(None if one is None else next(kept) for one in pattern))
        ctx.needs = layer.like(call, needs)
        layout = torch.contiguous_format if passes.contiguous else torch.preserve_format
        wanted = (one for one, want in zip(layer.flat(call), needs, strict=True) if want)
        ctx.wanted = _Wanted.of([torch.empty_like(one, memory_format=layout) for one in wanted])

    def gradients(ctx: Any, upstream: Sequence[Tensor | None]) -> tuple[Any, ...]:
        tensors, (own, last, count) = list(ctx.saved_tensors), ctx.ends
        needs, lengths = layer.flat(ctx.needs), [len(ctx.needs[place]) for place in layer.lists]
        given = _Upstream(
            tensors[:own], tensors[own:last], tensors[last:], list(upstream[:count]), needs, lengths
        )
        plain = (getattr(ctx.needs, field) for field in layer.plain)
        found = iter(backward(*given, *ctx.wanted, *plain))
        placed = layer.like(ctx.needs, (next(found) if want else None for want in needs))
        return (*(one if place in layer.tensors else None for place, one in enumerate(placed)), None)

    operator.register_autograd(gradients, setup_context=keep)


class _Upstream(NamedTuple):
    """First arguments of a backward operator; behind them are those of `_Wanted`, and the plain values."""

    saved: OPTIONALS
    outputs: OPTIONALS
    kept: OPTIONALS
    upstream: OPTIONALS
    needs: list[bool]
    lengths: list[int]  # of the lists among the fields


class _Wanted(NamedTuple):
    """The gradients that a backward operator gives."""

    dims: list[int]  # of each
    sizes: list[int]  # of all of them, one after the other
    strides: list[int]
    dtypes: str

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> _Wanted:
        """Gradients laid out as some tensors."""
        return cls(
            [one.dim() for one in tensors],
            [size for one in tensors for size in one.shape],
            [step for one in tensors for step in one.stride()],
            " ".join(str(one.dtype).removeprefix("torch.") for one in tensors),
        )

    def forms(self) -> Iterator[tuple[list[int], list[int], torch.dtype]]:
        """Size, strides and dtype of each."""
        sizes, strides = iter(self.sizes), iter(self.strides)
        for dims, dtype in zip(self.dims, self.dtypes.split(), strict=True):
            yield (
                [next(sizes) for _ in range(dims)],
                [next(strides) for _ in range(dims)],
                getattr(torch, dtype),
            )


def _register_backward(layer: TwoPassLayer) -> Callable[..., list[Tensor]]:
    """Operator of a layer's backward pass, to the gradients that are wanted."""
    first, last = len(_Upstream._fields), len(_Upstream._fields) + len(_Wanted._fields)

    def memory(*arguments: Any) -> list[Tensor]:
        given, wanted = _Upstream(*arguments[:first]), _Wanted(*arguments[first:last])
        return [_empty(given, form) for form in wanted.forms()]

    def compute(*arguments: Any) -> list[Tensor]:
        given, wanted = _Upstream(*arguments[:first]), _Wanted(*arguments[first:last])
        fields = dict.fromkeys(layer.kinds)
        fields.update(zip(layer.plain, arguments[last:], strict=True))
        for place, length in zip(layer.lists, given.lengths, strict=True):
            fields[layer.call._fields[place]] = [None] * length
        empty = layer.call(**fields)
        saved = Saved(layer.like(empty, given.saved), tuple(given.outputs), tuple(given.kept))
        found = layer.passes.backward(saved, tuple(given.upstream), layer.like(empty, given.needs))
        every = zip(layer.in_order(empty, found), given.needs, strict=True)
        own = zip((one for one, want in every if want), wanted.forms(), strict=True)
        return _apart([_formed(one, given, form) for one, form in own], (*given.saved, *given.upstream))

    kinds = {**typing.get_type_hints(_Upstream), **typing.get_type_hints(_Wanted)}
    kinds |= {field: layer.kinds[field] for field in layer.plain}
    operator = _custom_op(f"{layer.name}_backward", compute, kinds, waits=layer.passes.waits)
    operator.register_fake(memory)
    return operator  # type: ignore[no-any-return]


def _formed(found: Tensor | None, given: _Upstream, form: tuple[list[int], list[int], torch.dtype]) -> Tensor:
    """A gradient in the form that a tracer was told; zeros where a pass has none."""
    if found is None:
        return _empty(given, form).zero_()
    _, strides, dtype = form
    return (
        found if (list(found.stride()), found.dtype) == (strides, dtype) else _empty(given, form).copy_(found)
    )


def _empty(given: _Upstream, form: tuple[list[int], list[int], torch.dtype]) -> Tensor:
    size, strides, dtype = form
    like = next(one for one in (*given.upstream, *given.saved, *given.kept) if one is not None)
    return like.new_empty_strided(size, strides, dtype=dtype)


def _custom_op(name: str, compute: Any, arguments: Mapping[str, Any], *, waits: bool) -> Any:
    """Opaque operator `kernel_selector::name` of named and typed arguments, to a list of tensors."""
    sign(compute, arguments, list[Tensor])
    tags: dict[str, Any] = {"tags": (torch.Tag.cudagraph_unsafe,)} if waits else {}
    return torch.library.custom_op(f"{NAMESPACE}::{name}", compute, mutates_args=(), **tags)


def _apart(found: Iterable[Tensor], given: Iterable[Tensor | None]) -> list[Tensor]:
    """The tensors, as copies where they share memory with another or with an argument, which operators may
    not, and where they begin within memory, of which a compiler knows nothing.
    """
    seen = {one.untyped_storage()._cdata for one in given if one is not None}
    own = []
    for one in reversed(list(found)):  # what is kept whole before outputs that are parts of it
        place = one.untyped_storage()._cdata
        own.append(one.clone() if place in seen or one.storage_offset() else one)
        seen.add(place)
    return own[::-1]
