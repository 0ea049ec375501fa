"""A call captured as CUDA graphs, and who may replay them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

WARM_UP_RUNS = 3  # on the capturing stream, as torch asks for: libraries choose and allocate in these

Results = tuple[Tensor | None, ...]


class Recording(NamedTuple):
    """What a captured run leaves, in memory of its graph."""

    results: Results
    graph: Any  # with replay() and pool()


def warm_up(run: Callable[[], object]) -> Any:
    """Run on a stream of its own, which is returned to capture on."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    return stream


def record(run: Callable[[], Results], stream: Any, pool: Any = None) -> Recording:
    """Capture a run."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        results = run()
    return Recording(results, graph)


class Capture:
    """A call as one graph, or two: forward, and backward to inputs and parameters that need gradients."""

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        parameters: tuple[Tensor, ...] | None,
    ) -> None:
        training = parameters is not None
        self._inputs = [_copy(one).requires_grad_(training and one.requires_grad) for one in inputs]
        leaves = [*self._inputs, *(parameters or ())]
        self._wanted = [training and leaf.requires_grad for leaf in leaves]
        wanted = [leaf for leaf, needed in zip(leaves, self._wanted, strict=True) if needed]

        def forward() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(training):
                return run(*self._inputs)

        def backward(outputs: Sequence[Tensor], gradients: list[Tensor]) -> Results:
            return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

        def both() -> None:
            outputs = forward()
            if training:
                backward(outputs, [torch.zeros_like(one) for one in outputs])

        stream = warm_up(both)
        self._forward = record(forward, stream)
        outputs = [one for one in self._forward.results if one is not None]
        if training:
            self._d_outputs = [torch.zeros_like(one) for one in outputs]
            pool = self._forward.graph.pool()
            self._backward = record(lambda: backward(outputs, self._d_outputs), stream, pool)
        self._outputs = [one.detach() for one in outputs]

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs, in memory of their own."""
        with torch.no_grad():
            for mine, given in zip(self._inputs, inputs, strict=True):
                mine.copy_(given)
            self._forward.graph.replay()
            return tuple(one.clone() for one in self._outputs)

    def backward(self, upstream: Results) -> Results:
        """The gradients of inputs and parameters, in memory of their own; None where none is needed."""
        for mine, given in zip(self._d_outputs, upstream, strict=True):
            if given is None:
                mine.zero_()
            else:
                mine.copy_(given)
        self._backward.graph.replay()
        found = iter(self._backward.results)
        gradients = [next(found) if needed else None for needed in self._wanted]
        return tuple(None if one is None else one.clone() for one in gradients)


class Lease:
    """A call's hold on a capture; ends with its backward pass, or with the last that remembers the call."""

    def __init__(self, capture: Capture, free: list[Capture], parameters: tuple[Tensor, ...]) -> None:
        self.capture = capture
        self._parameters = parameters
        self._versions = [one._version for one in parameters]
        self._end = weakref.finalize(self, free.append, capture)
        self._end.atexit = False

    def give_back(self) -> None:
        """The capture is free for another call."""
        self._end()

    def check(self) -> None:
        """Raise RuntimeError where a replay of the backward pass would be wrong."""
        if not self._end.alive:
            raise RuntimeError(
                "the backward pass of a layer under a CUDA graph runs once: its memory is for other calls now"
            )
        if [one._version for one in self._parameters] != self._versions:
            raise RuntimeError(
                "a parameter needed for the backward pass of a layer under a CUDA graph was modified by an "
                "inplace operation after the forward pass"
            )


class Replay(torch.autograd.Function):
    """(lease, number of inputs, inputs, parameters) to the outputs of a capture's graphs."""

    @staticmethod
    def forward(ctx: Any, lease: Lease, count: int, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.lease = lease
        ctx.set_materialize_grads(False)
        return lease.capture.forward(leaves[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.lease.check()
        gradients = ctx.lease.capture.backward(upstream)
        ctx.lease.give_back()
        return None, None, *gradients


def _copy(given: Tensor) -> Tensor:
    return torch.empty(given.shape, dtype=given.dtype, device=given.device).copy_(given.detach())
