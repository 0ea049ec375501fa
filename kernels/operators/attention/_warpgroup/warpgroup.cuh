// What the attention kernels for Hopper share: arguments, copies, matrix products, words of dropped bits. No header is
// needed, so that NVRTC compiles this on any machine. PTX ISA 8.0, sm_90a.
#pragma once
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define FEATURES 64                  // of a head: a row of a tile is 128 bytes
#define ROWS 64                      // of a tile, and of a warpgroup
#define TILE_BYTES (ROWS * FEATURES * 2)
#define THREADS (128 * WARPGROUPS)
#define INFINITE __int_as_float(0x7f800000)

#define LOG2E 1.44269504f

struct alignas(64) Map { u64 opaque[16]; };  // of the copy engine: a tensor [B, H, S, D] by boxes of ROWS rows

struct Place {  // of a matrix [B, H, S, D], in elements; features lie side by side
  i64 batch, head, row;
  DEVICE i64 of(i64 b, i64 h) const { return b * batch + h * head; }
};

struct Arguments {
  Map map_q, map_k, map_v, map_d_out;
  const u16 *q, *out, *d_out;
  u16 *to_out, *d_q, *d_k, *d_v;
  float *sums, *delta;  // [B, H, S up to a multiple of ROWS]
  const u64* seed;      // one, where something is dropped
  u32* dropped;         // see words_of
  Place at_q, at_out, at_d_out, at_d_q, at_d_k, at_d_v;
  int heads, group, seq, keys;  // group: heads that share keys and values
  float scale, factor;          // of the logits: 1 / sqrt(D); of what is kept
};
static_assert(sizeof(Arguments) == ARGUMENT_BYTES, "the host packs it");

// ---- elements ------------------------------------------------------------------------------------------
#if BF16
#define OPERANDS "bf16.bf16"
#define NARROW2 "cvt.rn.bf16x2.f32"
#define TIMES2 "mul.rn.bf16x2"
DEVICE float low(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high(u32 v) { return __uint_as_float(v & 0xffff0000); }
#else
#define OPERANDS "f16.f16"
#define NARROW2 "cvt.rn.f16x2.f32"
#define TIMES2 "mul.rn.f16x2"
DEVICE float low(u32 v) { float r; asm("{.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.f32.f16 %0, h;}" : "=f"(r) : "r"(v)); return r; }
DEVICE float high(u32 v) { return low(v >> 16); }
#endif
DEVICE u32 narrow2(float x, float y) { u32 r; asm(NARROW2 " %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x)); return r; }
DEVICE float power_of_2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
// 2^(x scale - base) in two instructions: without fmaf the compiler keeps products that are used twice
DEVICE float scaled_power(float x, float scale, float base) { return power_of_2(fmaf(x, scale, -base)); }

// of this thread, so that the compiler sees it equal in a warp: what follows from it is then computed once a warp
DEVICE int warpgroup_number() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

// the sum and the maximum over the four lanes that have a row between them
DEVICE float row_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }
DEVICE float row_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }

// ---- barriers and copies -------------------------------------------------------------------------------
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
DEVICE void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void barrier_expect(u32 bar, u32 bytes) {  // arrives as well
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(bar), "r"(parity) : "memory");
}
// barriers may be used by the copy engine and by all threads
DEVICE void barriers_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads(); }

// A tile: rows from `row` on of a head, zeros beyond the last, with 128-byte swizzle (the 16-byte piece j of row r
// lies at piece j ^ (r % 8)).
DEVICE void copy_tile(u32 to, const Map& map, int row, int head, int batch, u32 bar) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
               ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(head), "r"(batch), "r"(bar) : "memory");
}
DEVICE void copy_words(u32 to, const void* from, u32 bytes, u32 bar) {  // contiguous, by multiples of 16 bytes
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// A ring of stages: `full` when its copies have landed, `empty` when all warps have read it. Round `i` of a loop has
// stage i % STAGES.
template <int STAGES> struct Ring {
  u32 bars;
  DEVICE u32 full(int i) const { return bars + i % STAGES * 16; }
  DEVICE u32 empty(int i) const { return full(i) + 8; }
  DEVICE void init(u32 arrivals) const {
    for (int i = 0; i < STAGES && threadIdx.x == 0; i++) barrier_init(full(i), arrivals), barrier_init(empty(i), THREADS / 32);
  }
  DEVICE void await_full(int i) const { barrier_wait(full(i), i / STAGES & 1); }
  DEVICE void await_empty(int i) const { if (i >= STAGES) barrier_wait(empty(i), (i / STAGES - 1) & 1); }
  DEVICE void release(int i) const { if (threadIdx.x % 32 == 0) barrier_arrive(empty(i)); }
  template <typename Load> DEVICE void next(int i, const Load& load) const { release(i), load(i + STAGES); }
  // The rounds from `i` on are of other warpgroups. To wait for them keeps this warp from arriving twice where those
  // have not arrived once.
  template <typename Load> DEVICE void pass(int i, int rounds, const Load& load) const {
    for (; i < rounds; i++) await_full(i), next(i, load);
  }
};

// ---- matrix products -----------------------------------------------------------------------------------
// Sums of a warpgroup are [64, 64]: thread t has of row 16 (t / 32) + t % 32 / 4 the columns 8 j + 2 (t % 4) and the
// next at 4 j, and of the row 8 further the same at 4 j + 2. Two such j are what a thread needs of a left matrix.
DEVICE u64 descriptor(u32 address) {  // 8 rows are 1024 bytes; the next 16 features are 32 bytes further
  u64 r;
  asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(address >> 4 | 1 << 16), "r"(64 | 1 << 30));
  return r;
}
DEVICE void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int NEWEST> DEVICE void product_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWEST) : "memory"); }

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(d, i) F4(d, i), F4(d, i + 4), F4(d, i + 8), F4(d, i + 12)
#define R32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define PRODUCT(A, B, S, TAIL) \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " S ", 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." OPERANDS \
  " " R32 ", " A ", " B ", add, 1, 1, " TAIL ";\n}"
// the numbers are computed before the next wait for products
DEVICE void keep_here(float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) asm volatile("" : "+f"(s[i]));
}
// d (+)= a [64, 16] b [64, 16]^T, both in shared memory; `add` 0 overwrites
DEVICE void product(float (&d)[32], u64 a, u64 b, u32 add) {
  asm volatile(PRODUCT("%32", "%33", "%34", "0, 0") : F16(d, 0), F16(d, 16) : "l"(a), "l"(b), "r"(add));
}
// the same with a in registers
DEVICE void product(float (&d)[32], const u32* a, u64 b, u32 add) {
  asm volatile(PRODUCT("{%32,%33,%34,%35}", "%36", "%37", "0") : F16(d, 0), F16(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// d += a [64, 16] b [16, 64] with a in registers
DEVICE void product_across(float (&d)[32], const u32* a, u64 b) {
  asm volatile(PRODUCT("{%32,%33,%34,%35}", "%36", "%37", "1") : F16(d, 0), F16(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}
// d = rows of two tiles multiplied with each other
DEVICE void multiply_rows(float (&d)[32], u32 a, u32 b) {
#pragma unroll
  for (int j = 0; j < 4; j++) product(d, descriptor(a) + 2 * j, descriptor(b) + 2 * j, j > 0);
}
// d += a times a tile, whose rows are summed over
DEVICE void multiply_across(float (&d)[32], const u32 (&a)[16], u32 b) {
#pragma unroll
  for (int j = 0; j < 4; j++) product_across(d, a + 4 * j, descriptor(b) + 128 * j);
}

// ---- stores --------------------------------------------------------------------------------------------
// A warpgroup's sums, times a factor for each of a thread's two rows, as rows `first` and on of a matrix.
DEVICE void store_rows(u16* to, i64 stride, int first, int count, const float (&d)[32], float upper, float lower) {
  const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (row < count) *(u32*)(to + row * stride + 8 * j + column) = narrow2(d[4 * j] * upper, d[4 * j + 1] * upper);
    if (row + 8 < count) *(u32*)(to + (row + 8) * stride + 8 * j + column) = narrow2(d[4 * j + 2] * lower, d[4 * j + 3] * lower);
  }
}

// ---- dropout -------------------------------------------------------------------------------------------
// Forward keeps a word for each thread of a warpgroup and each tile of 64 queries and 64 keys: a bit, 1 where it is
// dropped, for each of the thread's 32 sums; bits i and i + 16 are those of the i-th word of a left matrix. Tiles of the
// same queries lie side by side, without those that a causal mask forbids. Backward takes bits by bytes, each with one
// instruction that makes predicates of them (R2P): two instructions a weight would be their shift and their mask.
DEVICE int tiles_above(int down, int columns) {
  const int shorter = CAUSAL ? min(down, columns) : 0;
  return shorter * (shorter + 1) / 2 + (down - shorter) * columns;
}
// of a tile of a head
DEVICE u32* words_of(const Arguments& g, i64 pair, int down, int across) {
  const int rows = (g.seq + ROWS - 1) / ROWS, columns = (g.keys + ROWS - 1) / ROWS;
  return g.dropped + (pair * tiles_above(rows, columns) + (tiles_above(down, columns) + across)) * 128;
}
