"""Captured graphs keep to their own memory: torch may free the workspaces of its libraries at any time."""

import torch
from twins import GPU

from kernel_selector.kernels.runtime.graph_capture import graph_capture

pytestmark = GPU

WORKSPACE = 2**25  # bytes that torch gives cuBLAS for a stream of a Hopper GPU


def test_a_replay_writes_into_no_workspace_that_torch_has_freed():
    x, weight = (torch.randn(64, 2**16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = x @ weight.T  # split over its long inner size: partial sums lie in the workspace
    torch.cuda.synchronize()
    with graph_capture(graph, stream=stream):
        found = x @ weight.T
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's reduce-overhead does
    with torch.cuda.stream(stream):  # whose freed memory these take
        others = [torch.full((WORKSPACE,), 7, dtype=torch.uint8, device="cuda") for _ in range(4)]
        graph.replay()
    torch.cuda.synchronize()
    assert all(bool((one == 7).all()) for one in others)
    assert torch.equal(found, expected)
