// All time steps of one recurrent layer in one launch, with the recurrent weights kept on chip (Diamos et al.,
// Persistent RNNs, 2016), forward or backward, both directions at once. Needs compute capability 9.0.
//
// Both passes are one product a step: `rows` [64] of this cluster's tile x `columns` [COLUMNS batch rows],
//   forward   sum over h_{t-1}, for the gates of UNITS units (lstm, gru) or for 64 units (rnn)
//   backward  sum over the gates' gradients of step t+1, for the dh of 64 units
// and then a pointwise cell on UNITS units x COLUMNS batch rows. The weights are the product's first operand
// and stay in registers (the first CHUNKS_REGISTER chunks of 64 of each warpgroup) and shared memory (the next
// CHUNKS_SHARED). Warpgroups split the sum, and so do the RANKS CTAs of a cluster: each reads only its part of
// the state, 1/RANKS of the bytes, which is what binds a backward step otherwise.
//
// What a step passes to the next travels through `exchange` in L2: see exchange.cuh. A group is a
// direction and a set of `tiles` batch tiles, which take turns; the steps of a tile wait for that tile alone.
//
// Compiled per configuration: CELL (0 lstm, 1 gru, 2 rnn tanh, 3 rnn relu), BACKWARD, BF16, COLUMNS,
// CHUNKS_REGISTER, CHUNKS_SHARED, WARPGROUPS, RANKS, CLUSTERED (0: the RANKS CTAs are no cluster and exchange
// sums through L2, for layouts of more clusters than the GPU has room for), POLLED, STAGES (1 if POLLED), PIECES.
#include "hopper.cuh"

#define LSTM (CELL == 0)
#define GRU (CELL == 1)
#define RNN (CELL >= 2)

struct Parameters {
  const u16* w[2];     // W_hh [G*H, H] of each direction
  u16* gates[2];       // [T, B, G*H]: forward: projected inputs, overwritten by activated gates; backward: those
  const u16* bias[2];  // gru: b_hn [H], or null
  u16* extra[2];       // [T, B, H]: lstm: c; gru: h_{t-1} W_hn^T + b_hn
  u16* y;              // [T+D, B, D*H]: h; h_0 of direction 0 in the first row, of direction 1 after its first step's
  const u16* first[2]; // h_0 and c_0, each [D, B, H]
  u16* last[2];        // h_T and c_T, each [D, B, H]
  const u16* dy;       // [T, B, D*H], or null
  const u16* d_last[2];  // of h_T and c_T, or null
  u16* d_gates[2];     // [T, B, G*H]: gradients of the gates before activation
  u16* d_extra[2];     // gru: [T, B, H]: of h_{t-1} W_hn^T
  u16* d_first[2];     // [D, B, H]: lstm: second is the gradient of c_0; gru: first is the part of h_0's that skips W
  const int* lengths;  // [B], or null
  u16* exchange;       // [SLOTS, groups, tiles, chunks, COLUMNS, 64]: EMPTY if POLLED, else zeros
  u32* counters;       // unless POLLED: [groups, tiles, COUNTERS, 32], zeros
  float* sums;         // unless CLUSTERED: [2, groups, tiles, clusters, RANKS, RANKS, UNITS, COLUMNS], EMPTY
  u32 seq, batch, hidden, directions, tiles, groups, save;
};

constexpr u32 GATES = LSTM ? 4 : GRU ? 3 : 1;
constexpr u32 UNITS = RNN || BACKWARD ? 64 / RANKS : 16;  // that this CTA's cells compute
constexpr u32 WORKERS = WARPGROUPS * 128;
constexpr u32 CHUNKS_GROUP = CHUNKS_REGISTER + CHUNKS_SHARED;  // of a warpgroup
constexpr u32 CHUNKS = CHUNKS_GROUP * WARPGROUPS;              // of this CTA
constexpr u32 CHUNKS_PIECE = (CHUNKS_GROUP + PIECES - 1) / PIECES;  // that one bulk copy brings
constexpr u32 TILE_BYTES = COLUMNS * 128;
constexpr bool IN_CLUSTER = RANKS > 1 && CLUSTERED, THROUGH_L2 = RANKS > 1 && !CLUSTERED;
constexpr u32 COUNTERS = 4;  // a quarter of the arrivals each: fewer atomics wait for each other

// ---- shared memory -------------------------------------------------------------------------------------
extern __shared__ __align__(1024) u8 shared[];
constexpr u32 AT_WEIGHTS = STAGES * CHUNKS * TILE_BYTES;
constexpr u32 AT_PARTIAL = AT_WEIGHTS + WARPGROUPS * CHUNKS_SHARED * 8192;  // [2, WARPGROUPS, 64, COLUMNS]
constexpr u32 AT_RECEIVED = AT_PARTIAL + 2 * WARPGROUPS * 64 * COLUMNS * 4;     // [RANKS, UNITS, COLUMNS]
constexpr u32 AT_BARRIERS = AT_RECEIVED + (IN_CLUSTER ? 64 * COLUMNS * 4 : 0);
constexpr u32 RECEIVE_BARRIER = AT_BARRIERS;        // sums are here
constexpr u32 CLEAR_BARRIER = RECEIVE_BARRIER + 8;  // and have been read in every CTA of the cluster
constexpr u32 STORED = CLEAR_BARRIER + 8;           // warps that have passed their cells on, over all turns
constexpr u32 FENCED = STORED + 4;                  // turns after which a fence was made
constexpr u32 AT_COPIES = FENCED + 4;               // barriers of the bulk copies
constexpr u32 AT_CARRY = (AT_COPIES + STAGES * WARPGROUPS * (PIECES + 1) * 8 + 15) / 16 * 16;  // [tiles, UNITS, COLUMNS]: c or h; their gradients

struct Place {  // of this CTA
  u32 group, direction, rank, cluster;  // cluster: index of the tile of units
  u32 part;                             // of the batch
  u32 unit0;                            // first of the units whose cells it computes
  u32 clusters;                         // of a group
  u32 chunks_gate, gate_bytes;          // of one gate in a version of the state; chunks are 64 wide
  u16 *gates, *extra, *d_gates;         // of its direction
};

// what the host reckons with
static_assert(AT_CARRY == SHARED_BYTES && sizeof(Parameters) == PARAMETER_BYTES);

DEVICE u32 full_barrier(u32 stage, u32 warpgroup, u32 piece) {
  return AT_COPIES + 8 * ((stage * WARPGROUPS + warpgroup) * (PIECES + 1) + piece);
}
DEVICE u32 empty_barrier(u32 stage, u32 warpgroup) { return full_barrier(stage, warpgroup, PIECES); }

DEVICE u32 length_of(const Parameters& p, u32 b) { return p.lengths ? p.lengths[b] : p.seq; }
#include "exchange.cuh"
#include "product.cuh"
#include "cells.cuh"

DEVICE Place place(const Parameters& p) {
  const u32 clusters = (p.hidden + UNITS * RANKS - 1) / (UNITS * RANKS), block = blockIdx.x / RANKS;
  const u32 rank = blockIdx.x % RANKS, group = block / clusters, cluster = block % clusters, parts = p.groups / p.directions;
  const u32 direction = group / parts, chunks = (p.hidden + 63) / 64;
  return {group, direction, rank, cluster, group % parts, (cluster * RANKS + rank) * UNITS, clusters, chunks, chunks * TILE_BYTES,
          p.gates[direction], p.extra[direction], p.d_gates[direction]};
}

DEVICE void make_barriers() {
  const u32 base = shared_address(shared);
  for (u32 s = 0; s < STAGES; s++)
    for (u32 g = 0; g < WARPGROUPS; g++) {
      for (u32 piece = 0; piece < PIECES; piece++) barrier_init(base + full_barrier(s, g, piece), 1);
      barrier_init(base + empty_barrier(s, g), 4);
    }
  barrier_init(base + RECEIVE_BARRIER, 1);
  barrier_init(base + CLEAR_BARRIER, RANKS * (WORKERS / 32));
  *(u32*)(shared + STORED) = *(u32*)(shared + FENCED) = 0;
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void work(const Parameters& p, const Place& at) {
  const u32 base = shared_address(shared), lane = threadIdx.x % 32;
  Weights w;
  Cells cells{p, at};
  for (u32 tile = 0; tile < p.tiles; tile++) cells.begin(p, at, tile, (float2*)(shared + AT_CARRY) + tile * PAIRS);
  named_sync(1, WORKERS);  // warps count together in STORED: none may be a turn ahead of another
  for (u32 tile = 0; tile < p.tiles; tile++)
    if (!BACKWARD && !POLLED && lane == 0) release_add_shared(base + STORED);
  load_weights(p, at, w);
  named_sync(1, WORKERS);
  cells.load(p, at, 0, 0);
  u32 turn = 0, items = 0;
  for (u32 i = 0; i < p.seq; i++) {
    for (u32 tile = 0; tile < p.tiles; tile++, items++) {
      const bool sums = !BACKWARD || i > 0;  // the last step's dh has no part from a later one
      const u32 buffer = turn % 2;  // a worker may be in its next product while others are in their cells
      // while the others' results are on their way
      if (items) cells.store(p, at, tile ? i : i - 1, tile ? tile - 1 : p.tiles - 1);
      cells.advance();
      const u32 next = tile + 1 == p.tiles ? 0 : tile + 1, step = next ? i : i + 1;
      if (step < p.seq) cells.load(p, at, step, next);
      if (sums) {
        multiply(p, at, w, i, tile, turn);
        named_sync(1, WORKERS);
        if (IN_CLUSTER && threadIdx.x == 0) barrier_expect(base + RECEIVE_BARRIER, 64 * COLUMNS * 4);
        if (IN_CLUSTER && turn) barrier_wait(base + CLEAR_BARRIER, turn - 1 & 1);
        if (RANKS > 1) scatter(p, at, i, tile, buffer);
        if (IN_CLUSTER) barrier_wait(base + RECEIVE_BARRIER, turn & 1);
        turn++;
      } else {
        named_sync(1, WORKERS);
      }
      if (POLLED && items >= p.tiles) wait_for_shared(base + FENCED, items - p.tiles + 1);
      cells.compute(p, at, i, tile, buffer, sums);
      __syncwarp();
      if (lane == 0) release_add_shared(base + STORED);
      if (IN_CLUSTER && sums && lane < RANKS) remote_arrive(in_cta(base + CLEAR_BARRIER, lane));
    }
  }
  cells.store(p, at, p.seq - 1, p.tiles - 1);
  if (BACKWARD && !RNN)
    for (u32 tile = 0; tile < p.tiles; tile++) cells.end(p, at, tile, (const float2*)(shared + AT_CARRY) + tile * PAIRS);
}

extern "C" __global__ void __launch_bounds__(WORKERS + 128, 1) recurrent(const __grid_constant__ Parameters p) {
  const Place at = place(p);
  if (threadIdx.x == 0) make_barriers();
  if (IN_CLUSTER) cluster_sync();
  else __syncthreads();
  if (threadIdx.x >= WORKERS) {
    registers_down<24>();
    if (POLLED && threadIdx.x == WORKERS) fence_turns(p);
    if (!POLLED && threadIdx.x < WORKERS + 32) fetch(p, at);
    if (!POLLED && threadIdx.x == WORKERS + 32) announce(p, at);
  } else {
    registers_up<160>();
    work(p, at);
  }
  if (IN_CLUSTER) cluster_sync();  // nobody leaves while others may write to its shared memory
}
