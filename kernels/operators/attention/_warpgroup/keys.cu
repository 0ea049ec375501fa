// Attention backwards on Hopper, the gradients of keys and values: a warpgroup takes 64 keys over the queries by tiles
// of 64, with rows and columns exchanged, so that weights and their gradients are left matrices as they come out of
// the products before. Each result has one writer, which adds up in one order: equal calls give equal bits.
#include "warpgroup.cuh"

#define STAGES 2
#define FLOATS_BYTES (ROWS * 4)
#define WORDS_BYTES (128 * 4)
extern __shared__ __align__(1024) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention(const __grid_constant__ Arguments g) {
  static_assert(WARPGROUPS == 1, "keys of the CTA are those of one tile");
  const int blocks = (g.keys + ROWS - 1) / ROWS, pair = blockIdx.x / blocks, block = blockIdx.x % blocks;
  const int groups = g.heads / g.group, b = pair / groups, of_keys = pair % groups;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, first = block * ROWS, key = first + warp * 16 + lane / 4;
  const int down = (g.seq + ROWS - 1) / ROWS, skipped = CAUSAL ? min(block, down) : 0, steps = (down - skipped) * g.group;
  const u32 base = shared_address(shared), stages = base + 2 * TILE_BYTES, at_floats = stages + STAGES * 2 * TILE_BYTES;
  unsigned char* floats = shared + 2 * TILE_BYTES + STAGES * 2 * TILE_BYTES;
  const int floats_bytes = 2 * FLOATS_BYTES + WORDS_BYTES;
  const Ring<STAGES> ring{at_floats + STAGES * floats_bytes};
  ring.init(1);
  barriers_ready();
  int next_head = of_keys * g.group, next_tile = skipped;  // of the step that is loaded next
  auto load = [&](int step) {
    if (thread != 0 || step >= steps) return;
    const int stage = step % STAGES;
    ring.await_empty(step);
    const u32 to = stages + stage * 2 * TILE_BYTES, small = at_floats + stage * floats_bytes, bar = ring.full(step);
    const i64 pair = (i64)b * g.heads + next_head, rows = (pair * down + next_tile) * ROWS;
    barrier_expect(bar, (2 + (step == 0) * 2) * TILE_BYTES + 2 * FLOATS_BYTES + (THRESHOLD ? WORDS_BYTES : 0));
    if (step == 0) {
      copy_tile(base, g.map_k, first, of_keys, b, bar);
      copy_tile(base + TILE_BYTES, g.map_v, first, of_keys, b, bar);
    }
    copy_tile(to, g.map_q, next_tile * ROWS, next_head, b, bar);
    copy_tile(to + TILE_BYTES, g.map_d_out, next_tile * ROWS, next_head, b, bar);
    copy_words(small, g.sums + rows, FLOATS_BYTES, bar);
    copy_words(small + FLOATS_BYTES, g.delta + rows, FLOATS_BYTES, bar);
    if (THRESHOLD) copy_words(small + 2 * FLOATS_BYTES, words_of(g, pair, next_tile, block), WORDS_BYTES, bar);
    if (++next_tile == down) next_tile = skipped, next_head++;  // the next head that shares these keys
  };
  for (int step = 0; step < STAGES - 1; step++) load(step);
  const float scale = g.scale * LOG2E;
  const u32 at_word = lane / 4 % 2 * 16 + warp * 4;  // of this thread's keys: those of the other warps are beside them
  float d_k[32] = {}, d_v[32] = {};
  int diagonal = 0;  // the step of a head's tile on the diagonal
  for (int step = 0; step < steps; step++) {
    const int stage = step % STAGES;
    const u32 q = stages + stage * 2 * TILE_BYTES, d_out = q + TILE_BYTES;
    const float* sums = (const float*)(floats + stage * floats_bytes) + lane % 4 * 2;
    const u32* words = (const u32*)(floats + stage * floats_bytes + 2 * FLOATS_BYTES) + lane % 4 * 8 + lane / 8;
    ring.await_full(step);
    float s[32], d_p[32];
    product_fence();
    multiply_rows(s, base, q);
    product_commit();
    multiply_rows(d_p, base + TILE_BYTES, d_out);
    product_commit();
    load(step + STAGES - 1);
    product_wait<1>();
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 sum = *(const float2*)(sums + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * j + i] = scaled_power(s[4 * j + i], scale, i % 2 ? sum.y : sum.x);
    }
    if (CAUSAL && step == diagonal) {
      diagonal += down - skipped;
#pragma unroll
      for (int i = 0; i < 32; i++)
        if (key + i / 2 % 2 * 8 > first + i / 4 * 8 + lane % 4 * 2 + i % 2) s[i] = 0;
    }
    keep_here(s);
    product_wait<0>();
    u32 weights[16], d_s[16];
#pragma unroll
    for (int part = 0; part < 4; part++) {  // 16 queries
      // of even and of odd queries: four bits of either for this thread's two keys
      const u32 even = THRESHOLD ? words[part * 32] : 0, odd = THRESHOLD ? words[part * 32 + 4] : 0;
      const u32 bits = __funnelshift_r(even, even, at_word) & 15 | __funnelshift_r(odd, odd, at_word - 4) & ~15;
      float w[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {  // in the order of bits: 8 queries further, 8 keys further, odd queries
        const int j = i % 2 * 4 + i / 2 % 2 * 2 + i / 4;
        w[j] = THRESHOLD && bits & 1u << i ? 0 : s[8 * part + j];
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = 8 * part + 2 * i;
        const float2 delta = *(const float2*)(sums + ROWS + j / 4 * 8);
        weights[j / 2] = narrow2(w[2 * i], w[2 * i + 1]);
        d_s[j / 2] = narrow2(fmaf(w[2 * i], d_p[j], -s[j] * delta.x), fmaf(w[2 * i + 1], d_p[j + 1], -s[j + 1] * delta.y));
      }
    }
    product_fence();
    multiply_across(d_v, weights, d_out);
    multiply_across(d_k, d_s, q);
    product_commit();
    product_wait<0>();
    ring.release(step);
  }
  store_rows(g.d_k + g.at_d_k.of(b, of_keys), g.at_d_k.row, first, g.keys, d_k, g.scale, g.scale);
  store_rows(g.d_v + g.at_d_v.of(b, of_keys), g.at_d_v.row, first, g.keys, d_v, 1, 1);
}
