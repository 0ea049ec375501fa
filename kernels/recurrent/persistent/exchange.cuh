// How the CTAs of a group pass a step's results to each other, through L2. Included by kernel.cu.
//
// A version of a batch tile is h_0 or what one step leaves: [chunks, COLUMNS, 64] elements, each chunk the way
// that the matrix unit wants it in shared memory, so that it is copied as it is. There are two protocols:
//
// POLLED: the data are their own flags. Words that nobody has written hold EMPTY, which no result is (NaN is
//   made as 0x7fff), and readers load until none is EMPTY: one trip through L2 a step. Versions take turns in
//   SLOTS slots. A writer empties its words of the version before the one that it has read in full, when all
//   others have read it too, and fences before it writes its next but one (cf. Lamport's handshake).
// otherwise: a counter a tile, and bulk copies by a warp of its own: more latency (a fence, a counter, a copy),
//   but nothing for the workers to do, and copies of one tile run beside the product of another.

constexpr u32 EMPTY = 0xffffffff;
constexpr u32 SLOTS = POLLED ? 5 : 2;

DEVICE u8* version_of(const Parameters& p, const Place& at, u32 version, u32 tile) {
  const u32 place = (version % SLOTS * p.groups + at.group) * p.tiles + tile;
  return (u8*)p.exchange + (u64)place * ((BACKWARD ? GATES : 1) * at.gate_bytes);
}

// The part of the product's inner size, in chunks, that this CTA sums, and the first of this warpgroup's.
struct Range {
  u32 begin, chunks;
};
DEVICE Range range_of(const Place& at) {
  const u32 all = at.chunks_gate * (BACKWARD ? GATES : 1), each = (all + RANKS - 1) / RANKS, begin = min(each * at.rank, all);
  return {begin, min(each, all - begin)};
}

// ---- POLLED --------------------------------------------------------------------------------------------
// A warpgroup brings its chunks of a version to shared memory; pieces of 16 bytes, BATCH of a thread at once.
DEVICE void collect(const Parameters& p, const Place& at, u32 version, u32 tile, u32 chunks) {
  constexpr u32 LOADS = (CHUNKS_GROUP * COLUMNS + 15) / 16, BATCH = LOADS < 6 ? LOADS : COLUMNS < 32 ? 6 : 4;
  const u32 warpgroup = threadIdx.x / 128, skipped = warpgroup * CHUNKS_GROUP, begin = range_of(at).begin + skipped;
  const u8* from = version_of(p, at, version, tile) + begin * TILE_BYTES;
  const u32 to = shared_address(shared) + skipped * TILE_BYTES;
  const u32 rows = min(p.batch - min((at.part * p.tiles + tile) * COLUMNS, p.batch), COLUMNS);
  const bool ragged = p.hidden % 64 || rows < COLUMNS;  // words that nobody writes are not waited for
  for (u32 first = threadIdx.x % 128; first < chunks * COLUMNS * 8; first += BATCH * 128) {
    uint4 v[BATCH];
    u32 valid[BATCH];  // words of a piece that somebody writes
#pragma unroll
    for (u32 b = 0; b < BATCH; b++) {
      const u32 piece = first + b * 128, chunk = piece / (COLUMNS * 8), row = piece / 8 % COLUMNS;
      valid[b] = chunk < chunks ? 4 : 0;
      if (ragged && valid[b]) {
        const u32 unit = (begin + chunk) % at.chunks_gate * 64 + ((piece ^ row) & 7) * 8;
        valid[b] = row < rows && unit < p.hidden ? min((p.hidden - unit) / 2, 4u) : 0;
      }
      if (valid[b]) v[b] = load_fresh(from + (first + b * 128) * 16);
    }
    bool waiting = true;
    while (waiting) {
      waiting = false;
#pragma unroll
      for (u32 b = 0; b < BATCH; b++) waiting |= any_empty(v[b], valid[b]);
#pragma unroll
      for (u32 b = 0; b < BATCH; b++)
        if (waiting && any_empty(v[b], valid[b])) v[b] = load_fresh(from + (first + b * 128) * 16);
    }
#pragma unroll
    for (u32 b = 0; b < BATCH; b++) {
      if (ragged) {
        v[b].x = valid[b] > 0 ? v[b].x : 0, v[b].y = valid[b] > 1 ? v[b].y : 0;
        v[b].z = valid[b] > 2 ? v[b].z : 0, v[b].w = valid[b] > 3 ? v[b].w : 0;
      }
      if ((first + b * 128) / (COLUMNS * 8) < chunks) store_shared(to + (first + b * 128) * 16, v[b]);
    }
  }
  fence_products();
  named_sync(2 + warpgroup, 128);
}

// The thread whose fence orders what all workers have emptied before what they write from now on.
DEVICE void fence_turns(const Parameters& p) {
  const u32 base = shared_address(shared);
  for (u32 turn = 1; turn <= p.seq * p.tiles; turn++) {
    wait_for_shared(base + STORED, turn * (WORKERS / 32));
    fence_gpu();
    release_add_shared(base + FENCED);
  }
}

// ---- counters and bulk copies --------------------------------------------------------------------------
// The warp that waits for the other CTAs and copies what they wrote.
DEVICE void fetch(const Parameters& p, const Place& at) {
  const u32 lane = threadIdx.x & 31, base = shared_address(shared), arrivals = at.clusters * RANKS;
  const Range range = range_of(at);
  const u32 warpgroup = lane % WARPGROUPS, begin = warpgroup * CHUNKS_GROUP + lane / WARPGROUPS * CHUNKS_PIECE;
  const u32 end = min(min(begin + CHUNKS_PIECE, (warpgroup + 1) * CHUNKS_GROUP), range.chunks);
  u32 turn = 0;
  for (u32 i = BACKWARD; i < p.seq; i++) {
    for (u32 tile = 0; tile < p.tiles; tile++, turn++) {
      const u32 stage = turn % STAGES, parity = turn / STAGES & 1;
      if (lane < COUNTERS)
        wait_for(p.counters + ((at.group * p.tiles + tile) * COUNTERS + lane) * 32,
                 (arrivals + COUNTERS - 1 - lane) / COUNTERS * (i + !BACKWARD));
      __syncwarp();
      fence_copies();
      const u8* from = version_of(p, at, i, tile) + range.begin * TILE_BYTES;
      if (lane < WARPGROUPS * PIECES && begin < end) {  // a copy takes 70 cycles to issue: few and large ones
        barrier_wait(base + empty_barrier(stage, warpgroup), parity ^ 1);
        const u32 full = base + full_barrier(stage, warpgroup, lane / WARPGROUPS), bytes = (end - begin) * TILE_BYTES;
        barrier_expect(full, bytes);
        bulk_copy(base + (stage * CHUNKS + begin) * TILE_BYTES, from + begin * TILE_BYTES, bytes, full);
      }
      __syncwarp();
    }
  }
}

// The thread that tells the other CTAs. Its fence takes hundreds of cycles, which no worker has to wait for.
DEVICE void announce(const Parameters& p, const Place& at) {
  u32* const counter = p.counters + (at.group * p.tiles * COUNTERS + (at.cluster * RANKS + at.rank) % COUNTERS) * 32;
  u32 turn = 0;
  for (u32 i = BACKWARD; i <= p.seq; i++)  // forward, the first is h_0
    for (u32 tile = 0; tile < p.tiles; tile++) {
      wait_for_shared(shared_address(shared) + STORED, ++turn * (WORKERS / 32));
      release_add(counter + tile * COUNTERS * 32);
    }
}
