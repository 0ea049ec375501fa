// The pointwise part of a step: UNITS units x COLUMNS batch rows, two neighbouring units a thread, in float32.
// Included by kernel.cu. What a cell needs from memory is loaded while the product before it is waited for,
// and what nobody waits for is stored after what the other CTAs wait for.

constexpr u32 PAIRS = UNITS * COLUMNS / 2;
constexpr u32 EACH = (PAIRS + WORKERS - 1) / WORKERS;  // of a thread
constexpr u32 INS = !BACKWARD ? GATES : LSTM ? 7 : GRU ? 6 : 2;
constexpr u32 OUTS = !BACKWARD ? (LSTM ? 6 : GRU ? 5 : 1) : LSTM ? 4 : GRU ? 4 : 1;

struct Pair {  // of units: where it lies
  u32 index, block, j, column, unit, batch;
  bool exists;
};

DEVICE Pair pair_of(const Parameters& p, const Place& at, u32 tile, u32 k) {
  const u32 e = threadIdx.x + k * WORKERS, j = e & 7, column = e / 8 % COLUMNS, block = e / (8 * COLUMNS);
  const u32 unit = at.unit0 + block * 16 + j * 2, batch = (at.part * p.tiles + tile) * COLUMNS + column;
  return {e, block, j, column, unit, batch, e < PAIRS && unit < p.hidden && batch < p.batch};
}

DEVICE u32 load2(const u16* p) { return *(const u32*)p; }
DEVICE void store2(u16* p, u32 v) { *(u32*)p = v; }
DEVICE u64 state_index(const Parameters& p, const Place& at, const Pair& c) {  // in [D, B, H]
  return ((u64)at.direction * p.batch + c.batch) * p.hidden + c.unit;
}
DEVICE u64 y_index(const Parameters& p, const Place& at, const Pair& c, u32 row) {  // in [.., B, D*H]
  return ((u64)(row * p.batch + c.batch) * p.directions + at.direction) * p.hidden + c.unit;
}

// Sets a tile's carried state and, forward, passes h_0 on.
DEVICE void begin_tile(const Parameters& p, const Place& at, u32 tile, float2* carry) {
  u16* const to = version_of(p, at, 0, tile);
  for (u32 k = 0; k < EACH; k++) {
    const Pair c = pair_of(p, at, tile, k);
    if (c.index < PAIRS && !RNN) carry[c.index] = make_float2(0, 0);
    if (!BACKWARD && c.exists) {
      const u64 state = state_index(p, at, c);
      const u32 h = load2(p.first[0] + state);
      if (!RNN) carry[c.index] = wide2(LSTM ? load2(p.first[1] + state) : h);
      store_exchange(to, 0, c.column, c.unit, h == EMPTY ? 0x7fff7fff : h);  // both are NaN
      const u32 row = at.direction ? length_of(p, c.batch) + 1 : 0;
      store2(p.y + y_index(p, at, c, row), h);
      if (at.direction && row <= p.seq) store2(p.y + y_index(p, at, c, p.seq + 1), 0);  // read, times a gradient of 0
    }
  }
}

// The gradients of the initial states that no product is needed for.
DEVICE void end_tiles(const Parameters& p, const Place& at, const float2* carry) {
  if (!BACKWARD || RNN) return;
  for (u32 tile = 0; tile < p.tiles; tile++)
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pair_of(p, at, tile, k);
      if (c.exists) store2(p.d_first[LSTM] + state_index(p, at, c), narrow2(carry[tile * PAIRS + c.index]));
    }
}

struct Cells {
  u32 in[EACH][INS], out[EACH][OUTS], length[EACH];

  DEVICE static u32 step_of(const Parameters& p, u32 i) { return BACKWARD ? p.seq - 1 - i : i; }
  // The time of a sequence's step s: direction 1 starts at the sequence's end.
  DEVICE u32 time_of(const Place& at, u32 s, u32 k) const { return at.direction && s < length[k] ? length[k] - 1 - s : s; }

  DEVICE void load(const Parameters& p, const Place& at, u32 i, u32 tile) {
    const u32 s = step_of(p, i), hidden = p.hidden;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pair_of(p, at, tile, k);
#pragma unroll
      for (u32 j = 0; j < INS; j++) in[k][j] = 0;
      if (!c.exists) continue;
      length[k] = length_of(p, c.batch);
      const u32 t = time_of(at, s, k), row = t * p.batch + c.batch;
      const u16* gates = p.gates[at.direction] + (u64)row * (GATES * hidden) + c.unit;
      if (!RNN || !BACKWARD)
#pragma unroll
        for (u32 g = 0; g < GATES; g++) in[k][g] = load2(gates + g * hidden);
      if (!BACKWARD) continue;
      const u32 before = time_of(at, s ? s - 1 : 0, k);
      if (p.dy && s < length[k]) in[k][INS - 1] = load2(p.dy + y_index(p, at, c, t));
      const u16* extra = p.extra[at.direction] + c.unit;
      if (!RNN) in[k][GATES] = load2(extra + (u64)row * hidden);
      if (LSTM) in[k][5] = s ? load2(extra + (u64)(before * p.batch + c.batch) * hidden) : load2(p.first[1] + state_index(p, at, c));
      if (GRU) in[k][4] = s ? load2(p.y + y_index(p, at, c, before + 1)) : load2(p.first[0] + state_index(p, at, c));
      if (RNN) in[k][0] = load2(p.y + y_index(p, at, c, t + 1));
    }
  }

  DEVICE void compute(const Parameters& p, const Place& at, u32 i, u32 tile, u32 buffer, bool sums) {
    u16* const to = version_of(p, at, i + 1, tile);
    float2* const carry = (float2*)(shared + AT_CARRY) + tile * PAIRS;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pair_of(p, at, tile, k);
      if (!c.exists) continue;
      float2 carried = RNN ? make_float2(0, 0) : carry[c.index];
      if (BACKWARD) {
        float2 dh = wide2(in[k][INS - 1]), dc = {0, 0};
        if (sums) {
          const float2 sum = sums_of(p, at, i, tile, buffer, sum_index(c.block, c.j, c.column));
          dh.x += sum.x, dh.y += sum.y;
        }
        if (p.d_last[0] && step_of(p, i) + 1 == length[k]) {
          const u64 state = state_index(p, at, c);
          const float2 d = wide2(load2(p.d_last[0] + state));
          dh.x += d.x, dh.y += d.y;
          if (LSTM) dc = wide2(load2(p.d_last[1] + state));
        }
        backward(in[k], out[k], dh, dc, carried);
#pragma unroll
        for (u32 g = 0; g < GATES; g++)  // of the product's operand: gru's last is that of W_hn h
          store_exchange(to, g * at.chunks_gate, c.column, c.unit, out[k][GRU && g == 2 ? 3 : g]);
      } else {
        float2 a[GATES];
#pragma unroll
        for (u32 g = 0; g < GATES; g++) a[g] = sums_of(p, at, i, tile, buffer, sum_index(RNN ? c.block : g, c.j, c.column));
        if (GRU && p.bias[at.direction]) {
          const float2 b = wide2(load2(p.bias[at.direction] + c.unit));
          a[GATES - 1].x += b.x, a[GATES - 1].y += b.y;
        }
        forward(in[k], out[k], a, carried);
        store_exchange(to, 0, c.column, c.unit, out[k][OUTS - 1]);
      }
      if (!RNN) carry[c.index] = carried;
    }
    if (POLLED && i > BACKWARD) empty(version_of(p, at, i - 1, tile), p, at, tile);
  }

  // All have read this version: take it back, for a later one.
  DEVICE static void empty(u16* version, const Parameters& p, const Place& at, u32 tile) {
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pair_of(p, at, tile, k);
      if (!c.exists) continue;
#pragma unroll
      for (u32 g = 0; g < (BACKWARD ? GATES : 1); g++) store_exchange(version, g * at.chunks_gate, c.column, c.unit, EMPTY);
    }
  }

  DEVICE static void forward(const u32 (&in)[INS], u32 (&out)[OUTS], const float2 (&a)[GATES], float2& carried) {
    float x[2][GATES], o[2][OUTS];
#pragma unroll
    for (u32 g = 0; g < GATES; g++) x[0][g] = low(in[g]) + a[g].x * !(GRU && g == 2), x[1][g] = high(in[g]) + a[g].y * !(GRU && g == 2);
    forward_cell(x[0], a[GATES - 1].x, o[0], carried.x);
    forward_cell(x[1], a[GATES - 1].y, o[1], carried.y);
#pragma unroll
    for (u32 j = 0; j < OUTS; j++) out[j] = narrow2(make_float2(o[0][j], o[1][j]));
  }
  DEVICE static void backward(const u32 (&in)[INS], u32 (&out)[OUTS], float2 dh, float2 dc, float2& carried) {
    float x[2][INS], o[2][OUTS];
#pragma unroll
    for (u32 j = 0; j < INS; j++) x[0][j] = low(in[j]), x[1][j] = high(in[j]);
    backward_cell(x[0], o[0], dh.x, dc.x, carried.x);
    backward_cell(x[1], o[1], dh.y, dc.y, carried.y);
#pragma unroll
    for (u32 j = 0; j < OUTS; j++) out[j] = narrow2(make_float2(o[0][j], o[1][j]));
  }

  // From the gates before activation (gru: the last without its recurrent part q): activated gates, what is
  // kept beside them, h (last).
  DEVICE static void forward_cell(const float (&x)[GATES], float q, float (&out)[OUTS], float& carried) {
    if constexpr (LSTM) {
      out[0] = sigmoid(x[0]), out[1] = sigmoid(x[1]), out[2] = tanh_(x[2]), out[3] = sigmoid(x[3]);
      out[4] = carried = out[1] * carried + out[0] * out[2];
      out[5] = out[3] * tanh_(carried);
    } else if constexpr (GRU) {
      out[0] = sigmoid(x[0]), out[1] = sigmoid(x[1]), out[2] = tanh_(x[2] + out[0] * q), out[3] = q;
      out[4] = carried = out[2] + out[1] * (carried - out[2]);
    } else {
      out[0] = CELL == 2 ? tanh_(x[0]) : x[0] < 0 ? 0.f : x[0];  // NaN stays
    }
  }

  // From what forward kept and the gradient of h: gradients of the gates before activation.
  DEVICE static void backward_cell(const float (&in)[INS], float (&out)[OUTS], float dh, float dc, float& carried) {
    if constexpr (LSTM) {
      const float i = in[0], f = in[1], g = in[2], o = in[3], tc = tanh_(in[4]);
      dc += carried + dh * o * (1 - tc * tc);
      out[0] = dc * g * i * (1 - i), out[1] = dc * in[5] * f * (1 - f);
      out[2] = dc * i * (1 - g * g), out[3] = dh * tc * o * (1 - o);
      carried = dc * f;
    } else if constexpr (GRU) {
      const float r = in[0], z = in[1], n = in[2], q = in[3];
      dh += carried;
      out[2] = dh * (1 - z) * (1 - n * n), out[3] = out[2] * r;
      out[0] = out[2] * q * r * (1 - r), out[1] = dh * (in[4] - n) * z * (1 - z);
      carried = dh * z;
    } else {
      const float h = in[0];
      out[0] = CELL == 2 ? dh * (1 - h * h) : h > 0 ? dh : h == h ? 0.f : h;
    }
  }

  DEVICE void store(const Parameters& p, const Place& at, u32 i, u32 tile) const {
    const u32 s = step_of(p, i), hidden = p.hidden;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pair_of(p, at, tile, k);
      if (!c.exists) continue;
      const u32 t = time_of(at, s, k), row = t * p.batch + c.batch;
      u16* gates = (BACKWARD ? p.d_gates : p.gates)[at.direction] + (u64)row * (GATES * hidden) + c.unit;
      if (BACKWARD || (p.save && !RNN))
#pragma unroll
        for (u32 g = 0; g < GATES; g++) store2(gates + g * hidden, out[k][g]);
      const u64 extra = (u64)row * hidden + c.unit;
      if (BACKWARD && GRU) store2(p.d_extra[at.direction] + extra, out[k][OUTS - 1]);
      if (BACKWARD) continue;
      if (p.save && !RNN) store2(p.extra[at.direction] + extra, out[k][OUTS - 2]);
      // direction 1 keeps h_0 where the step after its first one looks for it, and zeros beyond
      if (!at.direction || s != length[k])
        store2(p.y + y_index(p, at, c, t + 1), at.direction && s > length[k] ? 0 : out[k][OUTS - 1]);
      if (s + 1 == length[k]) {
        store2(p.last[0] + state_index(p, at, c), out[k][OUTS - 1]);
        if (LSTM) store2(p.last[1] + state_index(p, at, c), out[k][OUTS - 2]);
      }
    }
  }
};
