"""Launches from memory start what Triton would have started, on whatever they are given; and cost less."""

import time
from functools import partial
from statistics import median

import pytest
import torch
from twins import GPU

pytestmark = GPU


@pytest.fixture(scope="module")
def kernel():
    from kernel_selector.kernels.activations.triton_pointwise import pointwise_forward_kernel

    return pointwise_forward_kernel


def relu(kernel, x, y, by_triton=False):
    from kernel_selector.kernels.runtime.triton_launch import launch

    grid, constants = (-(-x.numel() // 1024),), {"KIND": "relu", "BLOCK": 1024, "num_warps": 4}
    if by_triton:
        kernel[grid](x, y, None, x.numel(), **constants)
    else:
        launch(kernel, grid, x, y, None, x.numel(), **constants)


def test_sizes_alignments_and_dtypes_each_find_their_kernel(kernel):
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        for size in (1, 16, 17, 4096, 1, 5000):
            for first in (0, 1, 0):
                memory = torch.randn(size + first, device="cuda", dtype=dtype)
                x, y = memory[first:], torch.full((size,), torch.nan, device="cuda", dtype=dtype)
                relu(kernel, x, y)
                assert torch.equal(y, x.relu()), (dtype, size, first)


def test_the_current_stream_is_used_and_can_be_captured(kernel):
    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    relu(kernel, x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        relu(kernel, x, y)
    x.copy_(torch.randn(4096, device="cuda"))
    graph.replay()
    assert torch.equal(y, x.relu())


def test_a_tensor_of_another_device_reaches_triton_which_refuses_it(kernel):
    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    relu(kernel, x, y)
    with pytest.raises(ValueError, match="cannot be accessed"):
        relu(kernel, x, torch.zeros(4096))
    torch.cuda.synchronize()


def test_the_hooks_of_profilers_are_called(kernel):
    import triton

    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    relu(kernel, x, y)
    seen = []

    def hook(metadata):
        seen.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        relu(kernel, x, y)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    relu(kernel, x, y)
    assert len(seen) == 1


def test_a_launch_costs_the_host_less_than_tritons(kernel):
    x, y = torch.randn(64, device="cuda"), torch.zeros(64, device="cuda")
    ours, tritons = (_microseconds(partial(relu, kernel, x, y, by)) for by in (False, True))
    print(f"a launch: {ours:.1f} us of the host, {tritons:.1f} by Triton itself")
    assert ours < 0.85 * tritons


def _microseconds(call):
    for _ in range(20):
        call()
    samples = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            call()
        samples.append((time.perf_counter() - start) / 50 * 1e6)
    return median(samples)
