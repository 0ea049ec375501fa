// Attention forwards on Hopper (Dao et al., FlashAttention, 2022; Shah et al., FlashAttention-3, 2024): each warpgroup
// takes 64 queries over the keys by tiles of 64, with a running sum. Queries, weights and sums stay in registers; two
// CTAs a multiprocessor, so that products of one warpgroup run under the exponentials of another.
#include "warpgroup.cuh"

#define STAGES 4
#define MOST 16384.f  // a thread's weights of a tile may sum up to this before their base is raised: below float16's end
extern __shared__ __align__(1024) unsigned char shared[];

// ---- dropout -------------------------------------------------------------------------------------------
// A word has a bit, 1 where it is dropped, for each of the 32 sums of a tile that a thread has, see words_of. Moved to
// bits 14 and 30 they are, inverted, 16-bit numbers 0 and 2: so that to drop is to multiply by them, on the otherwise
// idle units for that. The factor of what is kept is halved for it.
// Bits are 1 with probability THRESHOLD / 2^DRAWS: a word of random bits for each digit of it, and of that an "and" or
// an "or". The lowest digits, which one weight in 2^FRESH depends on, are drawn once for all tiles of a head, unless the
// share is so near to 0 or 1 that no higher digit differs. Random words are a multiply-with-carry generator's (MWC64X),
// of a hashed counter, two of each step: three instructions a digit of 32 weights, where Philox has 80 for four weights.
// Bits 11 apart, which are of other queries, are correlated by 0.02 at most.
#define FRESH (THRESHOLD < 32 || THRESHOLD > 4064 ? DRAWS : 7)
DEVICE u64 hashed(u64 x) {
  x = (x ^ x >> 32) * 0xE9846AF9B1A615Dull;
  x = (x ^ x >> 32) * 0xE9846AF9B1A615Dull;
  return x ^ x >> 28;
}
struct Dropout {
  u32 key, carry, lowest;  // of a head and a thread of a tile; words of the lowest digits
  DEVICE Dropout(const Arguments& g, u64 pair, u32 thread) {
    if (!THRESHOLD) return;
    const u64 start = hashed(*g.seed + (pair * 128 + thread) * 0x9E3779B97F4A7C15ull);
    u64 state = hashed(start);
    key = (u32)start, carry = (u32)(start >> 32) >> 1, lowest = 0;
    draw<0, DRAWS - FRESH>(state, lowest);
  }
  DEVICE u32 word(u32 tile) const {  // of all tiles of a head
    u32 x = key + tile * 0x9E3779B9u;
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x = (x ^ x >> 15) * 0xD35A2D97u;
    u64 state = (u64)carry << 32 | x;
    u32 found = lowest;
    draw<DRAWS - FRESH, DRAWS>(state, found);
    asm volatile("" : "+r"(found));  // before the next wait for products, and not behind it
    return found;
  }
  template <int FROM, int TO> DEVICE static void draw(u64& state, u32& found) {
    const int lowest = LOWEST;
#pragma unroll
    for (int i = FROM; i < TO; i++) {
      if (i < lowest) continue;  // digits below the lowest that is 1
      const bool again = (i - FROM) % 2;  // two words of each step: the higher half is turned for the second
      if (!again || i == lowest) state = (state & 0xffffffff) * 0xFFFEB81Bull + (state >> 32);
      const u32 carry = (u32)(state >> 32), drawn = (u32)state ^ (again ? carry << 11 | carry >> 21 : carry);
      found = THRESHOLD >> i & 1 ? found | drawn : found & drawn;
    }
  }
};
// 0 or 2 twice, of bits i and i + 16
DEVICE u32 kept2(u32 dropped, int i) { return ~(i < 15 ? dropped << (14 - i) : dropped >> 1) & 0x40004000; }
DEVICE u32 times2(u32 x, u32 y) { u32 r; asm(TIMES2 " %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); return r; }

// ---- weights -------------------------------------------------------------------------------------------
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
  const bool keeps = g.dropped && first < g.seq;
  u32* words = words_of(g, pair, first / ROWS, 0) + thread;
  asm("" : "+l"(words));  // computed here, and not again for each tile
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
    if (THRESHOLD && keeps) words[tile * 128] = dropped;
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
  const float factor = THRESHOLD ? g.factor / 2 : g.factor;
  store_rows(g.to_out + g.at_out.of(b, h), g.at_out.row, first, g.seq, acc, factor / upper, factor / lower);
  if (g.sums && lane % 4 == 0 && first < g.seq) {  // of weights times the factor; infinite beyond the last row
    float* to = g.sums + (i64)pair * down * ROWS;
    to[row] = row < g.seq ? rows.base[0] + __log2f(upper) - __log2f(g.factor) : INFINITE;
    to[row + 8] = row + 8 < g.seq ? rows.base[1] + __log2f(lower) - __log2f(g.factor) : INFINITE;
  }
}
