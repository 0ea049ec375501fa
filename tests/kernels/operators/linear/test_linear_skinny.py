"""The CUDA kernel of few rows without a GPU: its mapping, its text run thread by thread, its compilation."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import partial
from itertools import product

import pytest
import torch
from torch.nn.functional import gelu, linear, silu

from kernel_selector.kernels.matmul import skinny
from kernel_selector.kernels.matmul.limits import Limits
from kernel_selector.kernels.matmul.skinny_cores_source import CoresPlan, skinny_cores_source
from kernel_selector.kernels.matmul.skinny_source import ELEMENTS, PRELUDE, SkinnyPlan, skinny_source
from kernel_selector.kernels.runtime import nvrtc

PLANS = [SkinnyPlan(4, 1, 4, 4), SkinnyPlan(2, 2, 2, 2), SkinnyPlan(1, 4, 1, 1), SkinnyPlan(4, 2, 1, 4)]
# CUDA's words in C++: a block's threads are threads, warps exchange through memory between two barriers
HOST = """
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
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


# of tensor cores and copies on their way: products take what all lanes of a warp have brought
CORES = """
static unsigned left[THREADS][4], right[THREADS][2];
static float half_of(unsigned bits, int which) { return wide((Element)(bits >> 16 * which)); }
static void copy(Vector* to, const Element* from, bool inside) {
    if (inside) std::memcpy(to, from, 16); else *to = Vector{};
}
static void finish_copies() {}
static void await_copies() {}
static void multiply(float (&c)[4], const Vector (&a)[2], const Vector& b, int half) {
    const int here = threadIdx.x, first = here / 32 * 32, lane = here % 32;
    for (int i = 0; i < 4; ++i) left[here][i] = a[i % 2].e[2 * half + i / 2];
    for (int i = 0; i < 2; ++i) right[here][i] = b.e[2 * half + i];
    __syncthreads();
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            c[i] += half_of(left[first + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2)
                * half_of(right[first + column * 4 + k % 8 / 2][k / 8], k % 2);
        }
    }
    __syncthreads();
}

"""
BFLOAT16 = (
    "float f; unsigned u = (unsigned)e << 16; std::memcpy(&f, &u, 4); return f;",
    "unsigned u; std::memcpy(&u, &f, 4); return (Element)((u + 0x7fff + (u >> 16 & 1)) >> 16);",
)


def cores_text(plan, rows, steps):
    """The text for tensor cores with what C++ has no words for put in another way."""
    text = skinny_cores_source(plan, rows, "bfloat16", steps)
    for written, meant in zip(ELEMENTS["bfloat16"][1:], BFLOAT16, strict=True):
        text = text.replace(written, meant)
    before, _, rest = text.partition("// 16 bytes, or zeros")
    return before + CORES + rest[rest.index("struct Stage") :]


def on_host(folder, plan, rows, steps):
    """The kernel's text as a function of this machine's processor: in float32, or for tensor cores."""
    cores = isinstance(plan, CoresPlan)
    text = cores_text(plan, rows, steps) if cores else skinny_source(plan, rows, "float32", steps)
    text = text.replace('extern "C" __global__', "__global__")
    text = text.replace("extern __shared__ float shared[];", "alignas(16) static float shared[1 << 16];")
    (folder / "skinny.cpp").write_text(HOST % (plan.threads, text))
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "skinny.cpp", "-o", "skinny.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
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


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to run the kernel on a processor")
@pytest.mark.parametrize(
    ("plan", "rows", "size"),
    [
        (CoresPlan(1, 1, 1, 4, 3), 5, (19, 328)),
        (CoresPlan(3, 2, 1, 2, 1), 20, (40, 264)),
        (CoresPlan(1, 1, 2, 2, 4), 1, (33, 8)),
    ],
)
def test_every_lane_brings_its_part(tmp_path, plan, rows, size):
    (columns, depth), steps = size, ("bias", "keep", "relu", "residual")
    run = on_host(tmp_path, plan, rows, steps)
    x, weight, bias, residual = (
        torch.randint(-2, 3, shape).bfloat16()  # whole numbers, whose sums are exact
        for shape in ((rows, depth), (columns, depth), (columns,), (rows, columns))
    )
    y, kept = (torch.full((rows, columns), float("nan"), dtype=torch.bfloat16) for _ in range(2))
    addresses = [tensor.data_ptr() for tensor in (x, weight, y, bias, residual, kept)]
    blocks, chunks = -(-columns // plan.tile), -(-depth // plan.depth)
    run(skinny.ARGUMENTS.pack(*addresses, depth, depth, columns, depth, chunks), blocks)
    z = linear(x.double(), weight.double(), bias.double())
    assert torch.equal(kept, z.bfloat16())
    assert torch.equal(y, (z.relu() + residual).bfloat16())


@pytest.mark.parametrize("plan", [*PLANS, CoresPlan(1, 2, 1, 4, 2), CoresPlan(2, 1, 2, 2, 3)], ids=str)
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


@pytest.mark.parametrize("rows", [1, 9, 33, 64])
@pytest.mark.parametrize("columns", [1, 1024, 4096, 50_000])
@pytest.mark.parametrize("depth", [8, 1024, 50_000])
@pytest.mark.parametrize("limits", [Limits(), Limits(84, 101_376, (8, 6))], ids=["h200", "a40"])
def test_plans_of_tensor_cores_are_within_limits(rows, columns, depth, limits):
    plan = skinny.plan_of_cores(rows, columns, depth, limits)
    assert plan.groups * 8 >= rows
    assert plan.shared_bytes <= limits.shared_bytes
    assert 128 <= plan.threads <= 512
    assert plan.warps_k == 1 or plan.depth < 2 * depth


def test_accesses_are_as_wide_as_addresses_and_strides_allow():
    x, weight = torch.zeros(2, 24, dtype=torch.bfloat16), torch.zeros(5, 24, dtype=torch.bfloat16)
    assert skinny._vector(x, weight) == 8
    assert skinny._vector(x[:, 4:], weight[:, 4:]) == 4
    assert skinny._vector(x[:, 1:], weight[:, 1:]) == 1
    assert skinny._vector(torch.zeros(2, 6), torch.zeros(5, 6)) == 2


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize(
    ("dtype", "rows", "vector"), [("float32", 2, 4), ("bfloat16", 8, 8), ("float16", 1, 1)]
)
def test_compiles_for_gpus_that_are_not_here(dtype, rows, vector):
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    steps = ("bias", "keep", "gelu_tanh", "residual") if vector == 1 else ("bias", "silu")
    file = skinny.source_file(skinny_source(SkinnyPlan(4, 1, 4, vector), rows, dtype, steps))
    files = [file]
    if dtype != "float32":
        how = skinny.plan_of_cores(rows, 4096, 1024, Limits())
        files.append(skinny.source_file(skinny_cores_source(how, rows, dtype, steps)))
    for capability, one in product(("80", "90"), files):
        assert b"skinny" in nvrtc.compiled(one, capability, ())


def test_the_source_is_readable_on_its_own():
    text = skinny_source(SkinnyPlan(4, 1, 4, 8), 2, "bfloat16", ("bias",))
    assert "spatial('blocks', 1) * repeat(1, 'chunks') * spatial(1, 4)" in text
    assert "$" not in text
    assert PRELUDE.substitute(type="T", widen="A", narrow="B").count("Element") == 7
    text = skinny_cores_source(CoresPlan(1, 1, 1, 8, 4), 2, "bfloat16", ("bias",))
    assert "spatial(1, 8) * repeat(1, 1) * repeat(1, 2) * repeat(2, 1) * spatial(8, 4)" in text
    assert "$" not in text
