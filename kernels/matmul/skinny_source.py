"""Writes the CUDA kernel of a product of few rows, thread by thread, from one task mapping.

The tasks are the elements (n, k) of the weight, each of which is read once and multiplied by all rows' x:

    spatial("blocks", 1)         # thread blocks along n
    * repeat(1, "chunks")        # steps along k
    * spatial(warps_n, warps_k)  # warps of a block
    * repeat(columns, 1)         # several n a thread, for which it reads x once
    * spatial(1, 32)             # lanes next to each other along k: a warp reads whole lines
    * repeat(1, vector)          # 16 bytes a thread

Sums over lanes and warps are taken in a fixed order. `print(skinny_source(plan, rows, "bfloat16", ()))`.
"""

from __future__ import annotations

from functools import cache
from string import Template
from typing import NamedTuple

from ..mapping import Loops, TaskMapping, loops, repeat, spatial

LANES = 32
ELEMENTS = {
    "float32": (
        "float",
        "return e;",
        "return f;",
    ),
    "bfloat16": (
        "unsigned short",
        "return __uint_as_float((unsigned)e << 16);",
        'Element e; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(e) : "f"(f)); return e;',
    ),
    "float16": (
        "unsigned short",
        'float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(e)); return f;',
        'Element e; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(e) : "f"(f)); return e;',
    ),
}
SIGMOID = "1.0f / (1.0f + expf(-({})))"
STEPS = {  # of `epilogue`, by name: the same functions in CUDA
    "bias": "acc += wide(g.bias[n]);",
    "keep": "g.kept[place] = narrow(acc);",
    "relu": "acc = acc < 0.0f ? 0.0f : acc;",
    "gelu": "acc = 0.5f * acc * (1.0f + erff(acc * 0.7071067811865476f));",
    "gelu_tanh": "acc *= "
    + SIGMOID.format("1.5957691216057308f * (acc + 0.044715f * acc * acc * acc)")
    + ";",
    "silu": "acc *= " + SIGMOID.format("acc") + ";",
    "residual": "acc += wide(g.residual[place]);",
}
PRELUDE = Template("""\
typedef $type Element;
__device__ inline float wide(Element e) { $widen }
__device__ inline Element narrow(float f) { $narrow }
struct Arguments {
    const Element *x, *w;              // [rows, K], [N, K]
    Element* y;                        // [rows, N]
    const Element *bias, *residual;    // [N], [rows, N]
    Element* kept;                     // [rows, N]
    long long x_row, w_row;            // elements from a row to the next
    int N, K, chunks;
};
""")
ENDING = Template("""\
    __syncthreads();
    for (int element = threadIdx.x; element < $rows * $tile; element += $threads) {
        const int m = element / $tile, column = element % $tile, n = blockIdx.x * $tile + column;
        if (n >= g.N) continue;
        const long long place = (long long)m * g.N + n;
        float acc = 0.0f;
        for (int part = 0; part < $warps_k; ++part) acc += parts[part][column][m];
$steps
        g.y[place] = narrow(acc);
    }
""")  # adds up the parts [warps_k][tile][..] of a block's warps, and does what follows
KERNEL = Template("""\
struct alignas($bytes) Vector { Element e[$vector]; };

// elements (n, k) of w: $mapping
extern "C" __global__ void __launch_bounds__($threads) skinny(const Arguments g) {
    const int worker = blockIdx.x * $threads + threadIdx.x;
    float sum[$rows][$columns] = {};
    #pragma unroll 2
    for (int $chunk = 0; $chunk < g.chunks; ++$chunk) {
        const int k = $k;
        const bool inside = k < g.K;  // loads are predicated, so that all are on the way at once
        Vector x[$rows], w[$columns];
        #pragma unroll
        for (int column = 0; column < $columns; ++column) {
            const int n = min($n, g.N - 1);  // what is computed twice beyond the last one is not stored
            w[column] = inside ? *reinterpret_cast<const Vector*>(g.w + n * g.w_row + k) : Vector{};
        }
        #pragma unroll
        for (int m = 0; m < $rows; ++m) {
            x[m] = inside ? *reinterpret_cast<const Vector*>(g.x + m * g.x_row + k) : Vector{};
        }
        #pragma unroll
        for (int i = 0; i < $vector; ++i) {
            #pragma unroll
            for (int column = 0; column < $columns; ++column) {
                #pragma unroll
                for (int m = 0; m < $rows; ++m) sum[m][column] += wide(x[m].e[i]) * wide(w[column].e[i]);
            }
        }
    }
    extern __shared__ float shared[];
    float (*parts)[$tile][$rows] = reinterpret_cast<float (*)[$tile][$rows]>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    #pragma unroll
    for (int column = 0; column < $columns; ++column) {
        #pragma unroll
        for (int m = 0; m < $rows; ++m) {
            for (int apart = 16; apart; apart /= 2) {
                sum[m][column] += __shfl_xor_sync(~0u, sum[m][column], apart);
            }
            if (lane == 0) parts[warp % $warps_k][warp / $warps_k * $columns + column][m] = sum[m][column];
        }
    }
$ending}
""")


class SkinnyPlan(NamedTuple):
    """The sizes of the mapping: columns a thread, warps along n and along k, elements of one access."""

    columns: int
    warps_n: int
    warps_k: int
    vector: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.warps_n * self.warps_k

    @property
    def tile(self) -> int:
        """Columns of a block."""
        return self.columns * self.warps_n

    @property
    def depth(self) -> int:
        """Elements along k that a block reads in one step."""
        return self.warps_k * LANES * self.vector

    @property
    def mapping(self) -> TaskMapping:
        """Elements (n, k) of the weight to threads, those of all blocks counted on."""
        grid = spatial("blocks", 1) * repeat(1, "chunks")
        block = spatial(self.warps_n, self.warps_k) * repeat(self.columns, 1)
        return grid * block * spatial(1, LANES) * repeat(1, self.vector)

    def __str__(self) -> str:
        return (
            f"{self.columns} columns a thread, {self.warps_n} x {self.warps_k} warps, {self.vector} at once"
        )


@cache
def skinny_source(plan: SkinnyPlan, rows: int, dtype: str, steps: tuple[str, ...]) -> str:
    """The text of `skinny`: y [rows, N] = steps(x [rows, K] w [N, K]^T)."""
    element, widen, narrow = ELEMENTS[dtype]
    code = _named(plan)
    return PRELUDE.substitute(type=element, widen=widen, narrow=narrow) + KERNEL.substitute(
        bytes=plan.vector * (4 if dtype == "float32" else 2),
        vector=plan.vector,
        rows=rows,
        columns=plan.columns,
        warps_k=plan.warps_k,
        threads=plan.threads,
        tile=plan.tile,
        mapping=plan.mapping,
        chunk=code.loops[0][0],
        n=code.coordinates[0],
        k=code.coordinates[1],
        ending=ending(rows, steps, tile=plan.tile, threads=plan.threads, warps_k=plan.warps_k),
    )


def ending(rows: int, steps: tuple[str, ...], *, tile: int, threads: int, warps_k: int) -> str:
    """Last lines of both kernels of few rows: the sum over a block's warps, the steps and the store."""
    lines = "\n".join(f"        {STEPS[name]}" for name in steps)
    return ENDING.substitute(rows=rows, tile=tile, threads=threads, warps_k=warps_k, steps=lines)


def _named(plan: SkinnyPlan) -> Loops:
    """The mapping's loops with the names that the kernel has for them; the innermost is inside an access."""
    code = loops(plan.mapping, "worker", divide="/")
    names = iter(name for name, _ in code.loops[1:])
    renamed = {
        next(names): word for word, extent in (("column", plan.columns), ("0", plan.vector)) if extent > 1
    }
    coordinates = []
    for axis in code.coordinates:
        for name, word in renamed.items():
            axis = axis.replace(name, word)
        coordinates.append(axis.removesuffix(" + 0"))
    return Loops(code.loops[:1], tuple(coordinates))
