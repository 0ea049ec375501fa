"""Bytes that one run of a candidate takes beyond its parameters and inputs.

Counted are the allocations that go through torch's allocators: outputs, what autograd keeps, gradients
of arguments and parameters, temporaries. On a GPU sizes are as the caching allocator rounds them, and
libraries that take workspace from it (cuDNN, cuBLAS after its first call) are included. Not counted is
memory that a library takes from the system by itself (on CPUs oneDNN's scratch buffers), and what was
allocated before the run: parameters, inputs, the gradients that flow back from the outputs. What a module
keeps for itself between calls, such as the memory of its CUDA graphs, it gives as `static_bytes`, and it
counts at all times.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from ..contract import Memory
from .workload import Run

MARK = "kernel_selector: between forward and backward"


def measure_memory(
    run: Run, torch_device: str, static_bytes: int = 0, *, forgotten: Run | None = None
) -> Memory:
    """Run once and count. `held_bytes` is taken after forward; in inference mode that is the outputs.

    `forgotten` is a forward pass whose caller gives its arguments up: what it holds beyond `run` is the
    arguments that backward needs.
    """
    gc.collect()
    count = _cpu if torch_device == "cpu" else _cuda
    counted = count(run)
    kept = None if forgotten is None else max(count(forgotten).held_bytes - counted.held_bytes, 0)
    return replace(
        counted,
        peak_bytes=counted.peak_bytes + static_bytes,
        held_bytes=counted.held_bytes + static_bytes,
        kept_argument_bytes=kept,
    )


def _cpu(run: Run) -> Memory:
    """From the profiler's allocation events: signed bytes, in order of time."""

    def mark() -> None:
        with record_function(MARK):
            pass

    with profile(use_cpu=True, profile_memory=True) as profiler:
        run(0, mark)
    results: Any = profiler.kineto_results
    events = sorted(results.events(), key=lambda event: event.start_ns())
    middle = next(event.start_ns() for event in events if event.name() == MARK)
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    forward = [size for start, size in changes if start <= middle]
    peak = max(accumulate(size for _, size in changes), default=0)
    return _memory(max(accumulate(forward), default=0), sum(forward), peak)


def _cuda(run: Run) -> Memory:
    """From the caching allocator's counters, which the host keeps: nothing to wait for."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seen: list[int] = []

    def mark() -> None:
        seen.extend((torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before))

    run(0, mark)
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.synchronize()
    forward_peak, held = seen
    return _memory(forward_peak, held, peak)


def _memory(forward_peak: int, held: int, peak: int) -> Memory:
    return Memory(
        peak_bytes=max(forward_peak, peak, 0),
        held_bytes=max(held, 0),
        workspace_bytes=max(forward_peak - held, 0),
    )
