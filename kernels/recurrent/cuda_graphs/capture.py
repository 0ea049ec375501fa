"""A call captured as CUDA graphs, and who may replay them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...runtime.autograd import first_order
from ...runtime.graph_capture import graph_capture
from .copies import Inbox, Outbox, Results, packed

WARM_UP_RUNS = 3  # on the capturing stream, as torch asks for: libraries choose and allocate in these


class Recording(NamedTuple):
    """Results of a captured run, in memory of its graph."""

    results: Results
    packs: tuple[Tensor, ...]  # the small results once more, side by side
    graph: Any  # with replay() and pool()
    pool_bytes: int = 0  # of GPU memory that the capture took


def warm_up(run: Callable[[], object]) -> Any:
    """Run on a stream of its own, which is returned to capture on; kernels are compiled and loaded here."""
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
    torch.cuda.empty_cache()  # as entering a capture does: what is reserved more afterwards is the pool's
    before = torch.cuda.memory_reserved()
    with _no_garbage_collected(), graph_capture(graph, pool=pool, stream=stream):
        results = run()
        packs = packed(results)
    return Recording(results, packs, graph, max(torch.cuda.memory_reserved() - before, 0))


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Graphs of earlier captures that die meanwhile would free memory, which spoils the one in progress."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Capture:
    """A call as one graph, or two: forward, and backward to inputs and parameters that need gradients."""

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        needs: Sequence[bool],
        parameters: tuple[Tensor, ...],
    ) -> None:
        """Of `inputs` a call gives as many as there are `needs`: whether each needs a gradient.

        The others stay as they are. All `parameters` need gradients, and others that `run` reads do not.
        """
        self._own = [_copy(one) for one in inputs]  # read by the graphs, also those that calls do not give
        for one, needed in zip(self._own, needs, strict=False):
            one.requires_grad_(needed)
        leaves = [*(one for one in self._own if one.requires_grad), *parameters]

        def forward() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(bool(leaves)):
                return run(*self._own)

        def backward(outputs: tuple[Tensor, ...], gradients: Sequence[Tensor]) -> Results:
            return torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)

        def both() -> None:
            outputs = forward()
            packed(outputs)
            if leaves:
                packed(backward(outputs, [torch.zeros_like(one) for one in outputs]))

        stream = warm_up(both)
        self._inbox = Inbox(self._own[: len(needs)])
        forwards = record(forward, stream)
        self._forward, self._outputs = forwards.graph, Outbox(forwards.results, forwards.packs)
        self.static_bytes = forwards.pool_bytes + sum(one.nbytes for one in self._own)
        if leaves:
            outputs: Any = forwards.results
            self._upstream = Inbox([torch.zeros_like(one) for one in outputs])
            backwards = record(
                lambda: backward(outputs, self._upstream.tensors), stream, self._forward.pool()
            )
            self._backward, self._gradients = backwards.graph, Outbox(backwards.results, backwards.packs)
            self.static_bytes += backwards.pool_bytes + sum(one.nbytes for one in self._upstream.tensors)

    def forward(self, inputs: tuple[Tensor, ...]) -> Results:
        """The outputs, in memory of their own. Called without gradients."""
        self._inbox.fill(inputs)
        self._forward.replay()
        return self._outputs.copies()

    def backward(self, upstream: Results, *, again: bool) -> Results:
        """The gradients of what needs them, inputs first, in memory of their own.

        `again` says that it ran before for the same call, and used up what forward had left.
        """
        if again:
            self._forward.replay()
        self._upstream.fill_or_zero(upstream)
        self._backward.replay()
        return self._gradients.copies()


class Lease:
    """A call's hold on a capture, until its last backward pass or until nothing remembers the call."""

    def __init__(self, capture: Capture, free: list[Capture], parameters: tuple[Tensor, ...]) -> None:
        self._capture = capture
        self._free: list[Capture] | None = free
        self._parameters = parameters
        self._versions = [one._version for one in parameters]
        self._again = False

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if self._free is not None:
            self._free.append(self._capture)
            self._free = None

    def forward(self, inputs: tuple[Tensor, ...]) -> Results:
        """The outputs of the call."""
        return self._capture.forward(inputs)

    def backward(self, upstream: Results) -> Results:
        """The gradients. Raises RuntimeError where a replay would be wrong."""
        if self._free is None:
            raise RuntimeError(
                "Trying to backward a second time through a layer under a CUDA graph, whose memory is for "
                "other calls now: specify retain_graph=True the first time."
            )
        if [one._version for one in self._parameters] != self._versions:
            raise RuntimeError(
                "a parameter needed for the backward pass of a layer under a CUDA graph was modified by an "
                "inplace operation after the forward pass"
            )
        gradients = self._capture.backward(upstream, again=self._again)
        self._again = True
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            self._give_back()
        return gradients


class Replay(torch.autograd.Function):
    """(lease, inputs, what needs gradients) to the outputs of a capture's graphs."""

    @staticmethod
    def forward(ctx: Any, lease: Lease, inputs: tuple[Tensor, ...], *leaves: Tensor) -> Results:
        ctx.lease, ctx.anchors = lease, leaves
        ctx.set_materialize_grads(False)
        return lease.forward(inputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor | None) -> Results:
        return None, None, *ctx.lease.backward(upstream)


def _copy(given: Tensor) -> Tensor:
    return torch.empty(given.shape, dtype=given.dtype, device=given.device).copy_(given.detach())
