"""Bytes that autograd keeps between forward and backward, counted in the graph itself."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_selector.kernels.measure.workload import tensors


class Kept(NamedTuple):
    """Bytes: of the tensors in the graph; by the allocator's counter; at the peak. None on CPUs."""

    in_graph: int
    allocated: int | None
    peak: int | None


def kept(call: Callable[[Tensor], Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> Kept:
    """One forward pass of the first leaf [B, S, H], and a backward pass of its output's gradient [B, S, H].

    The other leaves are parameters. Left out are the leaves and the output: the input is the output of the
    layer before, and the next layer keeps this one's anyway. Tensors that share memory count once, with
    all of it.
    """
    x = leaves[0]
    if x.device.type == "cpu":
        out = call(x)
        return Kept(_in_graph(out, [out, *leaves]), None, None)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call(x)
    allocated = torch.cuda.memory_allocated() - before - out.untyped_storage().nbytes()
    in_graph = _in_graph(out, [out, *leaves])
    torch.autograd.grad(out, leaves, gradient)
    torch.cuda.synchronize()
    return Kept(in_graph, allocated, torch.cuda.max_memory_allocated() - before)


def _in_graph(out: Tensor, without: Iterable[Tensor]) -> int:
    """Bytes of the storages of all tensors that the graph of `out` keeps."""
    known = {tensor.untyped_storage().data_ptr() for tensor in without}
    found: dict[int, int] = {}
    for node in _nodes(out.grad_fn):
        for tensor in _saved(node):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def _nodes(root: Any) -> Iterator[Any]:
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _saved(node: Any) -> Iterator[Tensor]:
    """Tensors of a node: torch's own names them `_saved_...`; those of Python keep attributes as well."""
    own = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
    yield from tensors([*own, *getattr(node, "saved_tensors", ()), *getattr(node, "__dict__", {}).values()])
