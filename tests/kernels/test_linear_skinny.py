"""The CUDA kernel of few rows without a GPU: its mapping, its text run thread by thread, its compilation."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import partial

import pytest
import torch
from torch.nn.functional import gelu, linear, silu

from kernel_selector.kernels.matmul import skinny
from kernel_selector.kernels.matmul.skinny_source import PRELUDE, SkinnyPlan, skinny_source
from kernel_selector.kernels.recurrent.persistent import nvrtc

PLANS = [SkinnyPlan(4, 1, 4, 4), SkinnyPlan(2, 2, 2, 2), SkinnyPlan(1, 4, 1, 1), SkinnyPlan(4, 2, 1, 4)]
# CUDA's words in C++: a block's threads are threads, warps exchange through memory between two barriers
HOST = """
#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>
using std::min;
struct Index { int x; };
static thread_local Index blockIdx, threadIdx;
static constexpr int THREADS = %d;
static std::barrier<>* everyone;
static float exchanged[THREADS];
#define __device__
#define __global__ static
#define __launch_bounds__(n)
#define __shared__ static
static void __syncthreads() { everyone->arrive_and_wait(); }
static float __shfl_xor_sync(unsigned, float value, int apart) {
    exchanged[threadIdx.x] = value;
    __syncthreads();
    const float other = exchanged[threadIdx.x ^ apart];
    __syncthreads();
    return other;
}
%s
extern "C" void run(const Arguments* g, int blocks) {
    for (int block = 0; block < blocks; ++block) {
        std::barrier<> all(THREADS);
        everyone = &all;
        std::vector<std::thread> threads;
        for (int thread = 0; thread < THREADS; ++thread) {
            threads.emplace_back([=] { blockIdx.x = block; threadIdx.x = thread; skinny(*g); });
        }
        for (auto& thread : threads) thread.join();
    }
}
"""


def on_host(folder, plan, rows, steps):
    """The kernel's text as a function of this machine's processor, in float32."""
    text = skinny_source(plan, rows, "float32", steps).replace('extern "C" __global__', "__global__")
    text = text.replace("extern __shared__ float shared[];", "static float shared[1 << 16];")
    (folder / "skinny.cpp").write_text(HOST % (plan.threads, text))
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "skinny.cpp", "-o", "skinny.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return ctypes.CDLL(str(folder / "skinny.so")).run


ACTIVATIONS = {"gelu": gelu, "silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to run the kernel on a processor")
@pytest.mark.parametrize(
    ("plan", "rows", "size", "activation"),
    [
        (PLANS[0], 3, (9, 1100), "gelu"),
        (PLANS[1], 8, (5, 258), "silu"),
        (PLANS[2], 1, (3, 7), "gelu_tanh"),
    ],
)
def test_every_thread_does_its_part(tmp_path, plan, rows, size, activation):
    (columns, depth), steps = size, ("bias", "keep", activation, "residual")
    run = on_host(tmp_path, plan, rows, steps)
    x, weight = torch.randn(rows, depth), torch.randn(columns, depth)
    bias, residual = torch.randn(columns), torch.randn(rows, columns)
    y, kept = (torch.full((rows, columns), float("nan")) for _ in range(2))
    addresses = [tensor.data_ptr() for tensor in (x, weight, y, bias, residual, kept)]
    blocks, chunks = -(-columns // plan.tile), -(-depth // plan.depth)
    run(skinny.ARGUMENTS.pack(*addresses, depth, depth, columns, depth, chunks), blocks)
    z = linear(x, weight, bias)
    torch.testing.assert_close(kept, z, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(y, ACTIVATIONS[activation](z) + residual, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (7, 40), (64, 512)])
def test_the_mapping_has_every_element_of_the_weight_once(plan, size):
    columns, depth = size
    blocks, chunks = -(-columns // plan.tile), -(-depth // plan.depth)
    mapping = plan.mapping.bind(blocks=blocks, chunks=chunks)
    assert mapping.workers == blocks * plan.threads
    mine = [task for worker in range(mapping.workers) for task in mapping(worker)]
    inside = [(n, k) for n, k in mine if n < columns and k < depth]
    assert sorted(inside) == [(n, k) for n in range(columns) for k in range(depth)]


def test_threads_of_a_warp_read_next_to_each_other():
    mapping = SkinnyPlan(4, 1, 4, 8).mapping.bind(blocks=1, chunks=1)
    first = [mapping(lane)[:8] for lane in range(32)]
    assert [task for tasks in first for task in tasks] == [(0, k) for k in range(256)]


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("columns", [1, 100, 4096, 200_000])
@pytest.mark.parametrize("depth", [1, 64, 1024, 50_000])
def test_plans_are_within_limits_and_wide_where_they_can_be(rows, columns, depth):
    plan = skinny.plan(rows, columns, depth, 8, 132)
    assert plan.threads <= 256
    assert plan.columns * rows <= 32
    assert plan.warps_k == 1 or plan.depth <= depth + 256 * plan.warps_k
    if columns >= 16 * 132 * 4:
        assert plan.warps_k == 1


def test_accesses_are_as_wide_as_addresses_and_strides_allow():
    x, weight = torch.zeros(2, 24, dtype=torch.bfloat16), torch.zeros(5, 24, dtype=torch.bfloat16)
    assert skinny._vector(x, weight) == 8
    assert skinny._vector(x[:, 4:], weight[:, 4:]) == 4
    assert skinny._vector(x[:, 1:], weight[:, 1:]) == 1
    assert skinny._vector(torch.zeros(2, 6), torch.zeros(5, 6)) == 2


@pytest.mark.parametrize(
    ("dtype", "rows", "vector"), [("float32", 2, 4), ("bfloat16", 8, 8), ("float16", 1, 1)]
)
def test_compiles_for_gpus_that_are_not_here(dtype, rows, vector, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    monkeypatch.setenv("KERNEL_SELECTOR_CACHE", str(tmp_path))
    nvrtc.compiled.cache_clear()
    steps = ("bias", "keep", "gelu_tanh", "residual") if vector == 1 else ("bias", "silu")
    file = skinny.source_file(skinny_source(SkinnyPlan(4, 1, 4, vector), rows, dtype, steps))
    for capability in ("80", "90"):
        assert b"skinny" in nvrtc.compiled(file, capability, ())
    nvrtc.compiled.cache_clear()


def test_the_source_is_readable_on_its_own():
    text = skinny_source(SkinnyPlan(4, 1, 4, 8), 2, "bfloat16", ("bias",))
    assert "spatial('blocks', 1) * repeat(1, 'chunks') * spatial(1, 4)" in text
    assert "$" not in text
    assert PRELUDE.substitute(type="T", widen="A", narrow="B").count("Element") == 3
