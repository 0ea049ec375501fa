// The product of a step and the way of its sums to the cells. Included by kernel.cu.

// Sums are kept as pairs of units, [blocks of 16 rows, 8, COLUMNS, 2] words with columns swapped so that both
// the matrix unit's order of writing and the cells' order of reading (8 pairs x 4 columns a warp) touch every
// bank once. Row r of a block is unit r % 8 * 2 + r / 8: a thread's two rows of a product are a pair.
DEVICE u32 sum_index(u32 block, u32 j, u32 column) {  // in pairs
  return (block * 8 + j) * COLUMNS + (column ^ (j >> 1) << 1 ^ (COLUMNS == 8 ? 0 : (j & 1) << 3));
}

// Two neighbours in a row of W_hh; 0 outside the matrix.
DEVICE u32 weight_words(const Parameters& p, const Place& at, u32 row, u32 column) {
  return row < GATES * p.hidden && column < p.hidden ? __ldg((const u32*)(p.w[at.direction] + (u64)row * p.hidden + column)) : 0;
}
// Of this cluster's tile, two rows (a pair of units) by two places of the sum (k and the next): a word a row.
DEVICE uint2 weights_of(const Parameters& p, const Place& at, u32 block, u32 j, u32 chunk, u32 k) {
  const u32 unit = at.cluster * (RNN || BACKWARD ? 64 : 16) + (RNN || BACKWARD ? block * 16 : 0) + j * 2;
  const u32 place = chunk % at.chunks_gate * 64 + k;  // of a sum over a gate's hidden, which is even
  if (unit >= p.hidden || place >= p.hidden) return make_uint2(0, 0);
  if (!BACKWARD) {
    const u32 row = (RNN ? 0 : block) * p.hidden + unit;
    return make_uint2(weight_words(p, at, row, place), weight_words(p, at, row + 1, place));
  }
  const u32 row = chunk / at.chunks_gate * p.hidden + place;  // places are rows of the matrix
  const u32 a = weight_words(p, at, row, unit), b = weight_words(p, at, row + 1, unit);
  return make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
}

struct Weights {  // of one warpgroup
  u32 fragments[CHUNKS_REGISTER][4][4];
  u32 chunks;  // that exist of CHUNKS_GROUP
};

DEVICE void load_weights(const Parameters& p, const Place& at, Weights& w) {
  const u32 warpgroup = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const Range range = range_of(at);
  const u32 skipped = warpgroup * CHUNKS_GROUP;
  w.chunks = range.chunks > skipped ? min(range.chunks - skipped, CHUNKS_GROUP) : 0;
  const bool whole = p.hidden % 64 == 0, empty = !RNN && !BACKWARD && warp >= GATES;  // gru has rows to spare
  const u32 first = (range.begin + skipped) * 64 + lane % 4 * 2, hidden = p.hidden;
  const u32 unit = at.cluster * (RNN || BACKWARD ? 64 : 16) + lane / 4 * 2 + (RNN || BACKWARD ? warp * 16 : 0);
  const u32 row = (RNN || BACKWARD ? 0 : warp * hidden) + unit;
  const u16* from = p.w[at.direction] + (BACKWARD ? (u64)first * hidden + unit : (u64)row * hidden + first);
#pragma unroll
  for (u32 c = 0; c < CHUNKS_REGISTER; c++)
#pragma unroll
    for (u32 j = 0; j < 8; j++) {  // a fragment has rows and columns 8 apart
      uint2 pair = make_uint2(0, 0);
      if (c < w.chunks && whole && !empty) {  // no check between the loads, so that a chunk's are on their way together
        const u16* at_place = from + (c * 64 + j * 8) * (BACKWARD ? hidden : 1);
        const u32 a = __ldg((const u32*)at_place), b = __ldg((const u32*)(at_place + hidden));
        pair = BACKWARD ? make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632)) : make_uint2(a, b);
      } else if (c < w.chunks && !empty) {
        pair = weights_of(p, at, warp, lane / 4, range.begin + skipped + c, j * 8 + lane % 4 * 2);
      }
      w.fragments[c][j / 2][j % 2 * 2] = pair.x, w.fragments[c][j / 2][j % 2 * 2 + 1] = pair.y;
    }
  for (u32 c = CHUNKS_REGISTER; c < w.chunks; c++) {
    u8* to = shared + AT_WEIGHTS + (warpgroup * CHUNKS_SHARED + c - CHUNKS_REGISTER) * 8192;
#pragma unroll 4
    for (u32 i = threadIdx.x % 128; i < 32 * 32; i += 128) {
      const u32 j = BACKWARD ? i % 32 : i / 32, k = (BACKWARD ? i / 32 : i % 32) * 2;
      const uint2 pair = weights_of(p, at, j / 8, j % 8, range.begin + skipped + c, k);
      *(u32*)(to + swizzled(j / 8 * 16 + j % 8, k)) = pair.x;
      *(u32*)(to + swizzled(j / 8 * 16 + j % 8 + 8, k)) = pair.y;
    }
  }
  fence_products();
}

// One warpgroup's part of the product, left in shared memory.
DEVICE void multiply(const Parameters& p, const Place& at, const Weights& w, u32 i, u32 tile, u32 turn) {
  const u32 warpgroup = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const u32 stage = turn % STAGES, parity = turn / STAGES & 1, base = shared_address(shared);
  float d[COLUMNS / 2] = {};
  if (POLLED) collect(p, at, i, tile, w.chunks);
#pragma unroll
  for (u32 c = 0; c < CHUNKS_GROUP; c++) {
    if (c >= w.chunks) break;
    if (!POLLED && c % CHUNKS_PIECE == 0) barrier_wait(base + full_barrier(stage, warpgroup, c / CHUNKS_PIECE), parity);
    const u32 state = base + (stage * CHUNKS + warpgroup * CHUNKS_GROUP + c) * TILE_BYTES;
    product_fence();
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u64 b = descriptor(state + j * 32);
      if (c < CHUNKS_REGISTER) product(d, w.fragments[c < CHUNKS_REGISTER ? c : 0][j], b, 1);
      else product(d, descriptor(base + AT_WEIGHTS + (warpgroup * CHUNKS_SHARED + c - CHUNKS_REGISTER) * 8192 + j * 32), b, 1);
    }
    product_commit();
  }
  product_wait();
  if (!POLLED && lane == 0) barrier_arrive(base + empty_barrier(stage, warpgroup));
  float2* sums = (float2*)(shared + AT_PARTIAL) + (turn % 2 * WARPGROUPS + warpgroup) * 32 * COLUMNS;
#pragma unroll
  for (u32 j = 0; j < COLUMNS / 8; j++)
    *(float4*)&sums[sum_index(warp, lane / 4, j * 8 + lane % 4 * 2)] =
        make_float4(d[4 * j], d[4 * j + 2], d[4 * j + 1], d[4 * j + 3]);
}

// Where a CTA's part of the sums for a CTA of its cluster goes, if they are no real cluster.
DEVICE float* sums_for(const Parameters& p, const Place& at, u32 i, u32 tile, u32 rank) {
  const u64 cluster = (((u64)(i & 1) * p.groups + at.group) * p.tiles + tile) * at.clusters + at.cluster;
  return p.sums + (cluster * RANKS + rank) * (64 * COLUMNS);
}

// Adds the warpgroups' parts and gives each CTA of the cluster those of its units.
DEVICE void scatter(const Parameters& p, const Place& at, u32 i, u32 tile, u32 buffer) {
  constexpr u32 ALL = 64 * COLUMNS / 4, SLICE = ALL / RANKS;
  const float4* parts = (const float4*)(shared + AT_PARTIAL) + buffer * WARPGROUPS * ALL;
  for (u32 k = threadIdx.x; k < ALL; k += WORKERS) {
    float4 sum = parts[k];
#pragma unroll
    for (u32 g = 1; g < WARPGROUPS; g++) {
      const float4 part = parts[g * ALL + k];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    const u32 to = k / SLICE, place = at.rank * SLICE + k % SLICE, base = shared_address(shared);
    if (CLUSTERED) send(in_cta(base + AT_RECEIVED + place * 16, to), in_cta(base + RECEIVE_BARRIER, to), sum);
    else __stcg((float4*)sums_for(p, at, i, tile, to) + place, sum);
  }
}

// Two elements of the product. Forward, a CTA's rows are those of several gates, 16 units each.
DEVICE float2 sums_of(const Parameters& p, const Place& at, u32 i, u32 tile, u32 buffer, u32 place) {
  float2 sum = {0, 0};
  if (THROUGH_L2) {
    float2* const from = (float2*)sums_for(p, at, i, tile, at.rank) + place;
    uint2 v[RANKS];
    bool waiting = true;
    while (waiting) {  // as in exchange.cuh, the data are their own flags
      waiting = false;
#pragma unroll
      for (u32 r = 0; r < RANKS; r++) v[r] = load_fresh2(from + r * (32 * COLUMNS / RANKS));
#pragma unroll
      for (u32 r = 0; r < RANKS; r++) waiting |= v[r].x == EMPTY || v[r].y == EMPTY;
    }
#pragma unroll
    for (u32 r = 0; r < RANKS; r++) {
      sum.x += __uint_as_float(v[r].x), sum.y += __uint_as_float(v[r].y);
      store_through(from + r * (32 * COLUMNS / RANKS), EMPTY), store_through((u32*)(from + r * (32 * COLUMNS / RANKS)) + 1, EMPTY);
    }
    return sum;
  }
  const float2* from = (const float2*)(shared + (RANKS > 1 ? AT_RECEIVED : AT_PARTIAL + buffer * WARPGROUPS * 64 * COLUMNS * 4)) + place;
#pragma unroll
  for (u32 part = 0; part < (RANKS > 1 ? RANKS : WARPGROUPS); part++) {
    const float2 v = from[part * (RANKS > 1 ? 32 * COLUMNS / RANKS : 32 * COLUMNS)];
    sum.x += v.x, sum.y += v.y;
  }
  return sum;
}
