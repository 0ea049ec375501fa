"""Writes the CUDA kernel of a product of few rows for tensor cores, from one task mapping.

The tasks are the elements (n, k) of the weight, each of which is read once, from memory by
the thread that multiplies it:

    spatial("blocks", 1)         # thread blocks along n
    * repeat(1, "chunks")        # steps along k
    * spatial(warps_n, warps_k)  # warps of a block
    * repeat(tiles, 1)           # tiles of 16 n, for which a warp reads x once
    * repeat(1, pieces)          # two, so that lanes read whole lines of 128 bytes
    * repeat(2, 1)               # the halves of a tile
    * spatial(8, 4)              # lanes: eight n, four of them next to each other along k
    * repeat(1, 8)               # 16 bytes a thread

The weight's tile is the left matrix of `mma.m16n8k16`, and eight rows of x are the right one. Which k an
instruction calls its first does not matter where both matrices agree: a thread's eight neighbours along k
are what two instructions want of it. What it copies only it reads, so that nobody waits for anybody before
the sums.
"""

from __future__ import annotations

from functools import cache
from string import Template
from typing import NamedTuple

from ..mapping import Loops, TaskMapping, loops, repeat, spatial
from .skinny_source import ELEMENTS, LANES, PRELUDE, ending

TILE = 16  # n of an instruction
GROUP = 8  # rows of x
TOGETHER = 32  # elements along k that four lanes read at once
PIECES = 2
VECTOR_BYTES = 16
KERNEL = Template("""\
struct alignas(16) Vector { unsigned e[4]; };

// 16 bytes, or zeros, on their way to shared memory: for registers compilers wait one after the other
__device__ inline void copy(Vector* to, const Element* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0));
}
__device__ inline void finish_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void await_copies() {  // of the oldest step
    asm volatile("cp.async.wait_group %0;" :: "n"($stages - 1) : "memory");
}

__device__ inline void multiply(float (&c)[4], const Vector (&a)[2], const Vector& b, int half) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.$short.$short.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0].e[2 * half]), "r"(a[1].e[2 * half]), "r"(a[0].e[2 * half + 1]),
          "r"(a[1].e[2 * half + 1]), "r"(b.e[2 * half]), "r"(b.e[2 * half + 1]));
}

struct Stage {  // what each thread has of one step: it waits for its own copies alone
    Vector w[$tiles][$pieces][2][$threads], x[$groups][$pieces][$threads];
};

// elements (n, k) of w: $mapping
__device__ inline void fetch(const Arguments& g, Stage& to, int worker, int $chunk) {
    const int lane = worker % 32;
    #pragma unroll
    for (int piece = 0; piece < $pieces && $chunk < g.chunks; ++piece) {
        const int k = $k;
        const bool inside = k < g.K;
        #pragma unroll
        for (int tile = 0; tile < $tiles; ++tile) {
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int n = min($n, g.N - 1);  // what is computed twice beyond the last one is not stored
                const Element* from = g.w + (inside ? n * g.w_row + k : 0);
                copy(&to.w[tile][piece][half][threadIdx.x], from, inside);
            }
        }
        #pragma unroll
        for (int group = 0; group < $groups; ++group) {
            const int m = min(group * 8 + lane / 4, $rows - 1);
            copy(&to.x[group][piece][threadIdx.x], g.x + (inside ? m * g.x_row + k : 0), inside);
        }
    }
    finish_copies();
}

extern "C" __global__ void __launch_bounds__($threads) skinny(const Arguments g) {
    const int worker = blockIdx.x * $threads + threadIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    extern __shared__ float shared[];
    Stage* stages = reinterpret_cast<Stage*>(shared);
    float sum[$tiles][$groups][4] = {};
    for (int step = 0; step < $stages; ++step) fetch(g, stages[step], worker, step);
    for (int step = 0; step < g.chunks; ++step) {
        Stage& stage = stages[step % $stages];
        await_copies();
        #pragma unroll
        for (int piece = 0; piece < $pieces; ++piece) {
            Vector x[$groups];
            #pragma unroll
            for (int group = 0; group < $groups; ++group) x[group] = stage.x[group][piece][threadIdx.x];
            #pragma unroll
            for (int tile = 0; tile < $tiles; ++tile) {
                Vector (&all)[2][$threads] = stage.w[tile][piece];
                const Vector w[2] = {all[0][threadIdx.x], all[1][threadIdx.x]};
                #pragma unroll
                for (int group = 0; group < $groups; ++group) {
                    multiply(sum[tile][group], w, x[group], 0);
                    multiply(sum[tile][group], w, x[group], 1);
                }
            }
        }
        fetch(g, stage, worker, step + $stages);
    }
    __syncthreads();  // no copy is on its way any more: shared memory is the sums' from here on
    float (*parts)[$tile][$padded] = reinterpret_cast<float (*)[$tile][$padded]>(shared);
    #pragma unroll
    for (int tile = 0; tile < $tiles; ++tile) {
        #pragma unroll
        for (int group = 0; group < $groups; ++group) {
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = warp / $warps_k * (16 * $tiles) + tile * 16 + i / 2 * 8 + lane / 4;
                parts[warp % $warps_k][column][group * 8 + lane % 4 * 2 + i % 2] = sum[tile][group][i];
            }
        }
    }
$ending}
""")


class CoresPlan(NamedTuple):
    """The sizes of the mapping: tiles a warp, warps along n and k; groups of rows, and steps on the way."""

    groups: int
    tiles: int
    warps_n: int
    warps_k: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.warps_n * self.warps_k

    @property
    def tile(self) -> int:
        """Columns of a block."""
        return TILE * self.tiles * self.warps_n

    @property
    def depth(self) -> int:
        """Elements along k that a block reads in one step."""
        return self.warps_k * PIECES * TOGETHER

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the steps on the way, later the sums of its warps."""
        vectors = (2 * self.tiles + self.groups) * PIECES * self.threads
        sums = self.warps_k * self.tile * self.groups * GROUP * 4
        return max(self.stages * vectors * VECTOR_BYTES, sums)

    @property
    def mapping(self) -> TaskMapping:
        """Elements (n, k) of the weight to threads, those of all blocks counted on."""
        grid = spatial("blocks", 1) * repeat(1, "chunks")
        block = spatial(self.warps_n, self.warps_k) * repeat(self.tiles, 1) * repeat(1, PIECES)
        return grid * block * repeat(2, 1) * spatial(8, 4) * repeat(1, 8)

    def __str__(self) -> str:
        warps = f"{self.warps_n} x {self.warps_k} warps"
        return f"tiles of {TILE * self.tiles}, {warps}, {self.stages} steps at once"


@cache
def skinny_cores_source(plan: CoresPlan, rows: int, dtype: str, steps: tuple[str, ...]) -> str:
    """The text of `skinny`: y [rows, N] = steps(x [rows, K] w [N, K]^T), of a dtype of 16 bits."""
    element, widen, narrow = ELEMENTS[dtype]
    code = _named(plan)
    return PRELUDE.substitute(type=element, widen=widen, narrow=narrow) + KERNEL.substitute(
        short={"bfloat16": "bf16", "float16": "f16"}[dtype],
        rows=rows,
        groups=plan.groups,
        padded=plan.groups * GROUP,
        tiles=plan.tiles,
        pieces=PIECES,
        stages=plan.stages,
        warps_k=plan.warps_k,
        threads=plan.threads,
        tile=plan.tile,
        mapping=plan.mapping,
        chunk=code.loops[0][0],
        n=code.coordinates[0],
        k=code.coordinates[1],
        ending=ending(rows, steps, tile=plan.tile, threads=plan.threads, warps_k=plan.warps_k),
    )


def _named(plan: CoresPlan) -> Loops:
    """The mapping's loops with the names that the kernel has for them; the innermost is inside an access."""
    code = loops(plan.mapping, "worker", divide="/")
    words = {"tile": plan.tiles, "piece": PIECES, "half": 2, "0": 8}
    names = [word for word, extent in words.items() if extent > 1]
    n, k = code.coordinates
    for (name, _), word in zip(code.loops[1:], names, strict=True):
        n, k = n.replace(name, word), k.replace(name, word)
    return Loops(code.loops[:1], (n, k.removesuffix(" + 0")))
