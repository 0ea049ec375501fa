// Attention backwards on Hopper, the gradient of the queries: each warpgroup takes 64 of them over the keys by tiles
// of 64, rebuilds the weights from the forward pass's sums, and adds up dq in registers. Writes delta too.
#include "warpgroup.cuh"

#define STAGES 4
extern __shared__ __align__(1024) unsigned char shared[];

// Of a thread's two rows: the sum over the features of out times its gradient, by the factor of what is kept.
DEVICE void deltas(const Arguments& g, int b, int h, int row, float (&delta)[2]) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int place = row + 8 * i;
    const u16 *out = g.out + g.at_out.of(b, h) + place * g.at_out.row, *d_out = g.d_out + g.at_d_out.of(b, h) + place * g.at_d_out.row;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8 && place < g.seq; j++) {
      const u32 x = *(const u32*)(out + 8 * j + column), y = *(const u32*)(d_out + 8 * j + column);
      sum += low(x) * low(y) + high(x) * high(y);
    }
    delta[i] = g.factor > 0 ? row_sum(sum) / g.factor : 0;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) attention(const __grid_constant__ Arguments g) {
  const int down = (g.seq + ROWS - 1) / ROWS, blocks = (down + WARPGROUPS - 1) / WARPGROUPS, pair = blockIdx.x / blocks;
  const int block = CAUSAL ? blocks - 1 - blockIdx.x % blocks : blockIdx.x % blocks;
  const int b = pair / g.heads, h = pair % g.heads, thread = threadIdx.x % 128, lane = thread % 32;
  const int warpgroup = warpgroup_number(), first = (block * WARPGROUPS + warpgroup) * ROWS;
  const int row = first + thread / 32 * 16 + lane / 4;
  const int last_row = min(g.seq, (block + 1) * ROWS * WARPGROUPS) - 1;
  const int tiles = ((CAUSAL ? min(g.keys, last_row + 1) : g.keys) + ROWS - 1) / ROWS;
  const u32 base = shared_address(shared), stages = base + 2 * WARPGROUPS * TILE_BYTES;
  const Ring<STAGES> ring{stages + STAGES * 2 * TILE_BYTES};
  ring.init(1);
  barriers_ready();
  auto load = [&](int tile) {
    if (threadIdx.x != 0 || tile >= tiles) return;
    ring.await_empty(tile);
    const u32 to = stages + tile % STAGES * 2 * TILE_BYTES, bar = ring.full(tile);
    barrier_expect(bar, (2 + (tile == 0) * 2 * WARPGROUPS) * TILE_BYTES);
    copy_tile(to, g.map_k, tile * ROWS, h / g.group, b, bar);
    copy_tile(to + TILE_BYTES, g.map_v, tile * ROWS, h / g.group, b, bar);
    for (int i = 0; i < WARPGROUPS && tile == 0; i++) {
      copy_tile(base + i * TILE_BYTES, g.map_q, (block * WARPGROUPS + i) * ROWS, h, b, bar);
      copy_tile(base + (WARPGROUPS + i) * TILE_BYTES, g.map_d_out, (block * WARPGROUPS + i) * ROWS, h, b, bar);
    }
  };
  for (int tile = 0; tile < STAGES; tile++) load(tile);
  float delta[2], sums[2];
  deltas(g, b, h, row, delta);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const i64 place = (i64)pair * down * ROWS + row + 8 * i;
    const bool inside = first < g.seq;
    sums[i] = inside ? g.sums[place] : INFINITE;
    if (inside && lane % 4 == 0) g.delta[place] = delta[i];
  }
  const u32 q = base + warpgroup * TILE_BYTES, d_out = q + WARPGROUPS * TILE_BYTES;
  const float scale = g.scale * LOG2E;
  float d_q[32] = {};
  u32 d_s[16];
  // the others are of the CTA's later queries alone, and no tiles are of no queries
  const int seen = first >= g.seq ? 0 : CAUSAL ? min(tiles, first / ROWS + 1) : tiles;
  const u32* words = THRESHOLD ? words_of(g, pair, first / ROWS, 0) + thread : nullptr;
  u32 next = THRESHOLD && seen > 0 ? *words : 0;  // loaded a tile ahead
  for (int tile = 0; tile < seen; tile++) {
    const u32 keys = stages + tile % STAGES * 2 * TILE_BYTES;
    float s[32], d_p[32];
    ring.await_full(tile);
    product_fence();
    multiply_rows(s, q, keys);
    product_commit();
    multiply_rows(d_p, d_out, keys + TILE_BYTES);
    product_commit();
    const u32 dropped = next;
    if (THRESHOLD && tile + 1 < seen) next = *(words += 128);
    product_wait<1>();
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = scaled_power(s[i], scale, sums[i / 2 % 2]);
    if ((CAUSAL && tile * ROWS == first) || (tile + 1) * ROWS > g.keys) {
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int key = tile * ROWS + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (key >= g.keys || (CAUSAL && key > row + i / 2 % 2 * 8)) s[i] = 0;
      }
    }
    keep_here(s);
    product_wait<0>();
#pragma unroll
    for (int part = 0; part < 4 && THRESHOLD; part++) {  // bytes of the word
      const u32 bits = dropped >> 8 * part;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        float& sum = d_p[part % 2 * 16 + 2 * i + part / 2];
        sum = bits & 1u << i ? 0 : sum;
      }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
      d_s[i] = narrow2(s[2 * i] * (d_p[2 * i] - delta[i % 2]), s[2 * i + 1] * (d_p[2 * i + 1] - delta[i % 2]));
    product_fence();
    multiply_across(d_q, d_s, keys);
    product_commit();
    product_wait<0>();
    ring.next(tile, load);
  }
  ring.pass(seen, tiles, load);
  store_rows(g.d_q + g.at_d_q.of(b, h), g.at_d_q.row, first, g.seq, d_q, g.scale, g.scale);
}
