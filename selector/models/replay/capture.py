"""Capture of a stack of blocks as CUDA graphs, from the calls of an example run.

Graphs are captured in the order in which they are replayed: forwards block by block, then backwards. All
share one pool of memory, in which a backward that has been captured leaves room for the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kernel_selector.kernels.runtime.graph_capture import graph_capture

from ...nn.replay_block import Argument, Block, Graph, form_of, leaves
from ..example import same_values
from ..rewriting.equivalence import difference

CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


class CannotReplay(Exception):
    """Error with the reason why a stack cannot be captured."""


@dataclass(frozen=True)
class Call:
    """Recorded call of a block: arguments and outputs."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    changed: bool = False  # in place, by who took it

    @property
    def trains(self) -> bool:
        """Whether any argument or output requires a gradient."""
        tensors = (one for one in leaves(self.args, self.kwargs) if isinstance(one, Tensor))
        return any(one.requires_grad for one in (*tensors, *self.module.parameters()))


def without_activations(calls: Sequence[Call]) -> list[Call]:
    """Recorded calls of a stack, without memory for the activations passed between blocks.

    Graphs compute them again: while they are captured, they would be in memory twice. Blocks at the beginning
    that have nothing to train keep theirs, which are arguments from outside of the graphs.
    """
    shells: dict[int, Tensor] = {}

    def light(value: Any) -> Any:
        return tuple(map(light, value)) if type(value) is tuple else shells.get(id(value), value)

    found: list[Call] = []
    for call in calls:
        args, kwargs = light(call.args), {name: light(one) for name, one in call.kwargs.items()}
        if shells or call.trains:
            given = leaves((call.result,), {})
            shells |= {id(one): _shell(one) for one in given if isinstance(one, Tensor)}
        found.append(replace(call, args=args, kwargs=kwargs, result=light(call.result)))
    return found


def _shell(tensor: Tensor) -> Tensor:
    """Tensor of the same shape, strides and dtype without memory."""
    found = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).requires_grad_(tensor.requires_grad)
    found.untyped_storage().resize_(0)
    return found


class Recorder(Protocol):
    """Protocol of a graph capture."""

    def __call__(self, run: Callable[[], Any]) -> tuple[Graph, Any]:
        """Graph that replays the run, and the run's result."""


def captured(calls: Sequence[Call], record: Recorder) -> list[Block]:
    """Captured blocks of the calls, in their order. Raises CannotReplay, and the errors of a block."""
    sources = _producers(calls)
    fresh: dict[int, Tensor] = {}  # tensors from outside, by the example's
    blocks: list[Block] = []
    graphed: list[tuple[list[Tensor], list[Any]]] = []  # what gets gradients, and outputs
    for place, call in enumerate(calls):
        arguments, tensors = [], []
        for leaf in leaves(call.args, call.kwargs):
            if not isinstance(leaf, Tensor):
                arguments.append(_constant(leaf, call.module))
                continue
            source = sources[place].get(id(leaf))
            static = fresh.get(id(leaf)) if source is None else blocks[source[0]].outputs[source[1]]
            if static is None:
                static = fresh[id(leaf)] = torch.empty_like(leaf.detach()).copy_(leaf.detach())
            tensors.append(static.detach().requires_grad_(leaf.requires_grad))
            arguments.append(Argument(static, source, leaf.requires_grad))
        own = [one for one in call.module.parameters() if one.requires_grad]
        with parameter_aliases(call.module) as weights:
            wanted = [*(one for one in tensors if one.requires_grad), *weights]
            avoided = [one for one in own if all(one is not other for other in weights)]
            graph, outputs = _forward(call, tensors, (wanted, avoided), record)
        blocks.append(
            Block(
                module=call.module,
                place=place,
                last=place == len(calls) - 1,
                form=form_of(call.args, call.kwargs),
                arguments=tuple(arguments),
                outputs=tuple(None if one is None else one.detach() for one in outputs),
                alone=isinstance(call.result, Tensor),
                forward=graph,
            )
        )
        graphed.append((wanted, outputs))
    for block in reversed(blocks):
        _backward(block, blocks, *graphed.pop(), record)
    return blocks


def _producers(calls: Sequence[Call]) -> list[dict[int, tuple[int, int]]]:
    """Producer of each call's input tensors: for each call, block and output number by tensor id."""
    found: list[dict[int, tuple[int, int]]] = []
    known: dict[int, tuple[int, int]] = {}
    for place, call in enumerate(calls):
        found.append(dict(known))
        for index, one in enumerate(_outputs(call.result, call.module)):
            if one is not None:
                known[id(one)] = place, index
    return found


def _outputs(result: Any, module: nn.Module) -> tuple[Tensor | None, ...]:
    found = (result,) if isinstance(result, Tensor) else result
    if type(found) is not tuple or not all(one is None or isinstance(one, Tensor) for one in found):
        raise CannotReplay(
            f"{type(module).__name__} gives a {type(result).__name__}: expected a tensor or a tuple of them"
        )
    return found


def _constant(leaf: Any, module: nn.Module) -> Any:
    if not isinstance(leaf, CONSTANTS):
        cache = "; with use_cache=False models of Hugging Face's take none" * ("Cache" in type(leaf).__name__)
        raise CannotReplay(
            f"{type(module).__name__} takes a {type(leaf).__name__}: graphs know tensors and constants alone"
            + cache
        )
    return leaf


@contextmanager
def parameter_aliases(module: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Context in which the module's parameters are replaced by aliases of the same memory; yields those
    with gradients.

    Where a graph of an earlier pass is still held, its node of a parameter's gradient belongs to the stream
    of that pass, for which a capture on another cannot wait.
    """
    own = {id(one): one for one in module.parameters()}
    alike = {key: nn.Parameter(one.detach(), one.requires_grad) for key, one in own.items()}
    held = [(part._parameters, dict(part._parameters)) for part in module.modules()]
    try:
        for parameters, before in held:
            parameters.update({name: alike[id(one)] for name, one in before.items() if one is not None})
        yield [one for one in alike.values() if one.requires_grad]
    finally:
        for parameters, before in held:
            parameters.update(before)


def _forward(
    call: Call, tensors: Sequence[Tensor], leafs: tuple[list[Any], list[Any]], record: Recorder
) -> tuple[Graph, list[Any]]:
    """Graph of a block's forward and its outputs, checked against an ordinary run. `leafs` are the tensors
    to differentiate by, and the parameters themselves, which the graph must not reach.
    """
    args, kwargs = _with(tensors, call)
    forward = type(call.module).forward

    def run() -> tuple[Tensor | None, ...]:
        return _outputs(forward(call.module, *args, **kwargs), call.module)

    with same_values(call.module):
        run()  # the first run may prepare what the next ones use
    with same_values(call.module):
        before = _traces(call.module, tensors)
        expected = run()
        if _traces(call.module, tensors) != before:
            raise CannotReplay(
                f"{type(call.module).__name__} does more than to compute what it gives: it changes its "
                "arguments, keeps tensors, or draws random numbers on the host"
            )
        _differentiate(expected, *leafs, call.module)
    graph, outputs = record(run)
    with same_values(call.module):  # the same random numbers and buffers as for what was expected
        graph.replay()
        fault = difference(_named(outputs), _named(expected))
    if fault is not None:
        raise CannotReplay(f"{type(call.module).__name__} computes something else when replayed: {fault}")
    return graph, list(outputs)


def _traces(module: nn.Module, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """State that a forward pass can change and a graph replay would not."""
    kept = [
        (name, id(value))
        for part in module.modules()
        for members in (part.__dict__, part._buffers)
        for name, value in members.items()
        if isinstance(value, Tensor)
    ]
    drawn = torch.get_rng_state().numpy().tobytes(), random.getstate()
    return kept, [one._version for one in tensors], drawn


def _differentiate(
    outputs: Sequence[Tensor | None], wanted: list[Any], avoided: list[Any], module: nn.Module
) -> None:
    """Warm-up backward on this stream, in which libraries choose algorithms and allocate."""
    reached = [one for one in outputs if one is not None and one.requires_grad]
    seeds = [torch.ones_like(one) for one in reached]
    found = torch.autograd.grad(reached, [*wanted, *avoided], seeds, allow_unused=True)
    if any(one is not None for one in found[len(wanted) :]):
        raise CannotReplay(f"{type(module).__name__} holds weights elsewhere than as its parameters")


def _backward(
    block: Block, blocks: Sequence[Block], wanted: list[Tensor], outputs: list[Any], record: Recorder
) -> None:
    """Capture of a block's backward, which reads its output gradients from the next block's static memory."""
    left = {
        one.source: gradient
        for later in blocks[block.place + 1 :]
        for one, gradient in zip((it for it in later.tensors if it.wants), later.gradients, strict=False)
    }
    given: list[Tensor | None] = []
    for index, one in enumerate(outputs):
        if one is None or not one.requires_grad:
            given.append(None)
            continue
        into = left.get((block.place, index))
        alike = into is not None and (into.shape, into.stride()) == (one.shape, one.stride())
        given.append(into if alike else torch.zeros_like(one.detach()))
    reached = [one for one in outputs if one is not None and one.requires_grad]
    upstream = [one for one in given if one is not None]

    def run() -> tuple[Tensor | None, ...]:
        return _copied(torch.autograd.grad(reached, wanted, upstream, allow_unused=True), upstream)

    block.backward, gradients = record(run)
    block.given = tuple(given)
    block.gradients = tuple(None if one is None else one.detach() for one in gradients)


def _with(tensors: Sequence[Tensor], call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call with other tensors in place of its own."""
    rest = iter(tensors)

    def swapped(value: Any) -> Any:
        return next(rest) if isinstance(value, Tensor) else value

    def each(value: Any) -> Any:
        return tuple(map(swapped, value)) if type(value) is tuple else swapped(value)

    return tuple(map(each, call.args)), {name: each(value) for name, value in call.kwargs.items()}


def _copied(gradients: Sequence[Tensor | None], upstream: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients without shared memory: those that alias an upstream gradient are copied."""
    known = {one.untyped_storage().data_ptr() for one in upstream}
    found: list[Tensor | None] = []
    for one in gradients:
        shared = one is not None and one.untyped_storage().data_ptr() in known
        found.append(one.clone() if one is not None and shared else one)
        if one is not None:
            known.add(one.untyped_storage().data_ptr())
    return tuple(found)


def _named(outputs: Sequence[Tensor | None]) -> dict[str, Tensor]:
    return {
        f"output[{place}]": one.detach()
        for place, one in enumerate(outputs)
        if one is not None and one.is_floating_point()
    }


def record_on_gpu(device: torch.device) -> Recorder:
    """Recorder that captures CUDA graphs of a device in one memory pool."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.current_stream(device)

    def record(run: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        with graph_capture(graph, pool=pool, stream=stream):
            found = run()
        return graph, found

    return record
