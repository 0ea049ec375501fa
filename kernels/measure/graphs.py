"""The same runs as CUDA graphs: captured once, replayed without the host's launches."""

from __future__ import annotations

import torch

from ..runtime.graph_capture import graph_capture
from .workload import Mark, Run

WARM_UP_RUNS = 3  # on the side stream, as torch asks for: libraries choose and allocate in the first ones


def capture(run: Run) -> Run:
    """A run that replays `run` on its first input set. Raises whatever forbids the capture.

    Memory that the captured run allocated belongs to the graph and is free again when the result is.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            run(0, _nothing)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with graph_capture(graph, stream=stream):
        run(0, _nothing)

    def replay(_index: int, _mark: Mark) -> None:
        graph.replay()

    return replay


def _nothing() -> None:
    return
