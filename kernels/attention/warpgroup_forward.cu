// Attention forwards on Hopper (Dao et al., FlashAttention, 2022; Shah et al., FlashAttention-3, 2024): each warpgroup
// takes 64 queries over the keys by tiles of 64, with a running sum. Queries, weights and sums stay in registers; two
// CTAs a multiprocessor, so that products of one warpgroup run under the exponentials of another.
#include "warpgroup.cuh"

#define STAGES 4
#define MOST 16384.f  // a thread's weights of a tile may sum up to this before their base is raised: below float16's end
extern __shared__ __align__(1024) unsigned char shared[];

struct Rows {  // running figures of a thread's two rows, in units of log2
  float base[2], total[2];
};

// Weights of a tile from its products, exp2(s scale - base), packed as a left matrix; their sums go to `sum`.
DEVICE void weigh(const float (&s)[32], u32 (&weights)[16], float (&sum)[2], const Rows& rows, float scale) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int h = i % 2;
    const float x = scaled_power(s[2 * i], scale, rows.base[h]), y = scaled_power(s[2 * i + 1], scale, rows.base[h]);
    sum[h] += x + y;
    weights[i] = narrow2(x, y);
  }
}

// Raises the bases to the tile's maxima.
DEVICE void raise(const float (&s)[32], float (&acc)[32], Rows& rows, float scale) {
  float most[2] = {-INFINITE, -INFINITE};
#pragma unroll
  for (int i = 0; i < 32; i++) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float base = fmaxf(row_max(most[h]) * scale, rows.base[h]), shrink = power_of_2(rows.base[h] - base);
    rows.base[h] = base;
    rows.total[h] *= shrink;
#pragma unroll
    for (int i = 0; i < 16; i++) acc[i / 2 * 4 + 2 * h + i % 2] *= shrink;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention(const __grid_constant__ Arguments g) {
  const int down = (g.seq + ROWS - 1) / ROWS, blocks = (down + WARPGROUPS - 1) / WARPGROUPS, pair = blockIdx.x / blocks;
  const int block = CAUSAL ? blocks - 1 - blockIdx.x % blocks : blockIdx.x % blocks;  // the longest first
  const int b = pair / g.heads, h = pair % g.heads, thread = threadIdx.x % 128, lane = thread % 32;
  const int warpgroup = warpgroup_number(), first = (block * WARPGROUPS + warpgroup) * ROWS;
  const int row = first + thread / 32 * 16 + lane / 4;
  const int last_row = min(g.seq, (block + 1) * ROWS * WARPGROUPS) - 1;
  const int tiles = ((CAUSAL ? min(g.keys, last_row + 1) : g.keys) + ROWS - 1) / ROWS;
  const u32 base = shared_address(shared);
  const Ring<STAGES> ring{base + STAGES * 2 * TILE_BYTES};
  ring.init(1);
  barriers_ready();
  auto load = [&](int tile) {
    if (threadIdx.x != 0 || tile >= tiles) return;
    ring.await_empty(tile);
    const u32 to = base + tile % STAGES * 2 * TILE_BYTES;
    barrier_expect(ring.full(tile), 2 * TILE_BYTES);
    copy_tile(to, g.map_k, tile * ROWS, h / g.group, b, ring.full(tile));
    copy_tile(to + TILE_BYTES, g.map_v, tile * ROWS, h / g.group, b, ring.full(tile));
  };
  for (int tile = 0; tile < STAGES; tile++) load(tile);
  u32 q[16];  // as a left matrix
  const u16* from = g.q + g.at_q.of(b, h) + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int place = row + i % 2 * 8;
    q[i] = place < g.seq ? *(const u32*)(from + place * g.at_q.row + i / 2 * 8) : 0;
  }
  const float scale = g.scale * LOG2E;
  const Dropout dropout(g, pair, thread);
  const u32 number = first / ROWS * ((g.keys + ROWS - 1) / ROWS);  // of the first of these tiles in the head
  float acc[32] = {};
  u32 weights[16];
  Rows rows = {{-INFINITE, -INFINITE}, {0, 0}};
  const int seen = CAUSAL ? min(tiles, first / ROWS + 1) : tiles;  // the others are of the CTA's later queries alone
  for (int tile = 0; tile < seen; tile++) {
    const u32 keys = base + tile % STAGES * 2 * TILE_BYTES;
    float s[32];
    ring.await_full(tile);
    product_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) product(s, q + 4 * j, descriptor(keys) + 2 * j, j > 0);
    product_commit();
    const u32 dropped = THRESHOLD ? dropout.word(number + tile) : 0;
    product_wait<0>();  // for the last tile's too, which these came right behind
    if (tile > 0) ring.next(tile - 1, load);
    if ((CAUSAL && tile * ROWS == first) || (tile + 1) * ROWS > g.keys) {
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int key = tile * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (key >= g.keys || (CAUSAL && key > row + i / 2 % 2 * 8)) s[i] = -INFINITE;
      }
    }
    float sum[2];
    weigh(s, weights, sum, rows, scale);
    if (__any_sync(~0u, !(sum[0] <= MOST && sum[1] <= MOST))) {  // as in the first tile, without a base
      raise(s, acc, rows, scale);
      weigh(s, weights, sum, rows, scale);
    }
    rows.total[0] += sum[0], rows.total[1] += sum[1];
#pragma unroll
    for (int i = 0; i < 16 && THRESHOLD; i++) weights[i] = times2(weights[i], kept2(dropped, i));
    product_fence();
    multiply_across(acc, weights, keys + TILE_BYTES);
    product_commit();
  }
  product_wait<0>();
  ring.next(seen - 1, load);
  ring.pass(seen, tiles, load);
  const float upper = row_sum(rows.total[0]), lower = row_sum(rows.total[1]);
  store_rows(g.to_out + g.at_out.of(b, h), g.at_out.row, first, g.seq, acc, g.factor / upper, g.factor / lower);
  if (g.sums && lane % 4 == 0 && first < g.seq) {  // of weights times the factor; infinite beyond the last row
    float* to = g.sums + (i64)pair * down * ROWS;
    to[row] = row < g.seq ? rows.base[0] + __log2f(upper) - __log2f(g.factor) : INFINITE;
    to[row + 8] = row + 8 < g.seq ? rows.base[1] + __log2f(lower) - __log2f(g.factor) : INFINITE;
  }
}
