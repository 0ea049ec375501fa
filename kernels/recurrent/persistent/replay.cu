// Rebuilds what a forward pass of kernel.cu with `save` leaves for backward, from gates before activation:
// activates them in place and, for lstm, runs over time once more for c, in float32 as the forward pass did.
// Nothing passes between units or sequences, so any number of CTAs may be resident. A thread has two
// neighbouring units of one sequence, and loads AHEAD steps ahead.
//
// Compiled per CELL (0 lstm, 1 gru) and BF16.
#define COLUMNS 8  // of a product, which hopper.cuh has a form of; none is used here
#include "hopper.cuh"

#define LSTM (CELL == 0)

struct Parameters {
  u16* gates[2];       // [T, B, G*H] of each direction, before activation; gru: the last without its recurrent part
  u16* extra[2];       // [T, B, H]: lstm: c, written; gru: h_{t-1} W_hn^T + b_hn, read
  const u16* c_0;      // lstm: [D, B, H]
  const int* lengths;  // [B], or null
  u32 seq, batch, hidden, directions;
  u32 steps, parts;  // time is cut into parts of that many steps: lstm has one
};
static_assert(sizeof(Parameters) == PARAMETER_BYTES);

constexpr u32 GATES = LSTM ? 4 : 3, WORDS = 4;  // read at each step: gates, gru: and the extra
constexpr u32 AHEAD = 4;

struct Units {  // two of one sequence
  u16 *gates, *extra;
  u32 batch, b, hidden, reversed;  // how many steps are in reversed order: a sequence's length in direction 1

  DEVICE u64 row(u32 s) const { return (u64)(s < reversed ? reversed - 1 - s : s) * batch + b; }

  DEVICE void load(u32 (&words)[WORDS], u32 s) const {
    const u16* const from = gates + row(s) * (GATES * hidden);
#pragma unroll
    for (u32 g = 0; g < GATES; g++) words[g] = *(const u32*)(from + g * hidden);
    if (!LSTM) words[WORDS - 1] = *(const u32*)(extra + row(s) * hidden);
  }

  DEVICE void step(const u32 (&words)[WORDS], u32 s, float2& c) const {
    float x[WORDS], y[WORDS];
#pragma unroll
    for (u32 j = 0; j < WORDS; j++) x[j] = low(words[j]), y[j] = high(words[j]);
    activate(x, c.x);
    activate(y, c.y);
    u16* const to = gates + row(s) * (GATES * hidden);
#pragma unroll
    for (u32 g = 0; g < GATES; g++) *(u32*)(to + g * hidden) = narrow2(make_float2(x[g], y[g]));
    if (LSTM) *(u32*)(extra + row(s) * hidden) = narrow2(c);
  }

  static DEVICE void activate(float (&x)[WORDS], float& c) {
    x[0] = sigmoid(x[0]), x[1] = sigmoid(x[1]);
    x[2] = tanh_(LSTM ? x[2] : x[2] + x[0] * x[3]);
    if (LSTM) x[3] = sigmoid(x[3]), c = x[1] * c + x[0] * x[2];
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) replay(const __grid_constant__ Parameters p) {
  const u32 pairs = p.hidden / 2;
  const u64 index = (u64)(blockIdx.x / p.parts) * THREADS + threadIdx.x, sequence = index / pairs;
  if (sequence >= (u64)p.directions * p.batch) return;
  const u32 direction = sequence / p.batch, b = sequence % p.batch, unit = index % pairs * 2;
  const u32 reversed = !direction ? 0 : p.lengths ? p.lengths[b] : p.seq;
  const Units units = {p.gates[direction] + unit, p.extra[direction] + unit, p.batch, b, p.hidden, reversed};
  const u32 first = blockIdx.x % p.parts * p.steps, end = min(first + p.steps, p.seq);

  float2 c = {0, 0};
  if (LSTM) c = wide2(*(const u32*)(p.c_0 + sequence * p.hidden + unit));
  u32 words[AHEAD][WORDS];
#pragma unroll
  for (u32 k = 0; k < AHEAD; k++)
    if (first + k < end) units.load(words[k], first + k);
#pragma unroll 1
  for (u32 s = first; s < end; s += AHEAD)
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) {
      if (s + k >= end) break;
      u32 now[WORDS];
#pragma unroll
      for (u32 j = 0; j < WORDS; j++) now[j] = words[k][j];
      if (s + k + AHEAD < end) units.load(words[k], s + k + AHEAD);
      units.step(now, s + k, c);
    }
}
