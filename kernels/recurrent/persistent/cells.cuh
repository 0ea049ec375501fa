// The pointwise part of a step: UNITS units x COLUMNS batch rows, two neighbouring units a thread, in float32.
// Included by kernel.cu. What a cell needs from memory is loaded a step ahead, and what nobody waits for is
// stored a step later, both while the other CTAs' results are waited for.

constexpr u32 PAIRS = UNITS * COLUMNS / 2;
constexpr u32 EACH = (PAIRS + WORKERS - 1) / WORKERS;  // of a thread
constexpr u32 INS = !BACKWARD ? GATES : LSTM ? 7 : GRU ? 6 : 2;
constexpr u32 OUTS = !BACKWARD ? (LSTM ? 6 : GRU ? 5 : 1) : LSTM ? 4 : GRU ? 4 : 1;

DEVICE u32 load2(const u16* p) { return *(const u32*)p; }
DEVICE void store2(u16* p, u32 v) { *(u32*)p = v; }

struct Pair {  // of units: where it lies in the first batch tile, fixed for a thread
  u32 index, sums, exchange;  // in the carried state; of its first gate's sums; bytes in a version of the state
  u32 column, unit;
  bool exists;

  DEVICE void place(const Parameters& p, const Place& at, u32 k) {
    const u32 j = threadIdx.x % 8;
    index = threadIdx.x + k * WORKERS, column = index / 8 % COLUMNS;
    const u32 rows = index / (8 * COLUMNS);
    unit = at.unit0 + rows * 16 + j * 2;
    sums = sum_index(RNN || BACKWARD ? rows : 0, j, column);
    exchange = unit / 64 * TILE_BYTES + swizzled(column, unit % 64);
    exists = index < PAIRS && unit < p.hidden;
  }
};

struct Cells {
  Pair pairs[EACH];
  u32 in[EACH][INS], ahead[EACH][INS], out[EACH][OUTS];

  DEVICE Cells(const Parameters& p, const Place& at) {
#pragma unroll
    for (u32 k = 0; k < EACH; k++) pairs[k].place(p, at, k);
  }

  static DEVICE u32 step_of(const Parameters& p, u32 i) { return BACKWARD ? p.seq - 1 - i : i; }
  static DEVICE u32 batch_of(const Parameters& p, const Place& at, const Pair& c, u32 tile) {
    return (at.part * p.tiles + tile) * COLUMNS + c.column;
  }
  // The time of a sequence's step s: direction 1 starts at the sequence's end.
  static DEVICE u32 time_of(const Place& at, u32 s, u32 length) { return at.direction && s < length ? length - 1 - s : s; }
  static DEVICE u64 state_index(const Parameters& p, const Place& at, const Pair& c, u32 batch) {  // in [D, B, H]
    return ((u64)at.direction * p.batch + batch) * p.hidden + c.unit;
  }
  static DEVICE u64 y_index(const Parameters& p, const Place& at, const Pair& c, u32 row) {  // in [rows, D*H]
    return (u64)row * (p.directions * p.hidden) + at.direction * p.hidden + c.unit;
  }

  // Sets a tile's carried state and, forward, passes h_0 on.
  DEVICE void begin(const Parameters& p, const Place& at, u32 tile, float2* carry) const {
    u8* const to = version_of(p, at, 0, tile);
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair c = pairs[k];
      const u32 b = batch_of(p, at, c, tile);
      if (c.index < PAIRS && !RNN) carry[c.index] = make_float2(0, 0);
      if (BACKWARD || !c.exists || b >= p.batch) continue;
      const u64 state = state_index(p, at, c, b);
      const u32 h = load2(p.first[0] + state);
      if (!RNN) carry[c.index] = wide2(LSTM ? load2(p.first[1] + state) : h);
      store_through(to + c.exchange, h == EMPTY ? 0x7fff7fff : h);  // both are NaN
      const u32 row = at.direction ? length_of(p, b) + 1 : 0;
      store2(p.y + y_index(p, at, c, row * p.batch + b), h);
      if (at.direction && row <= p.seq)  // read, times a gradient of 0
        store2(p.y + y_index(p, at, c, (p.seq + 1) * p.batch + b), 0);
    }
  }

  // The gradients of the initial states that no product is needed for.
  DEVICE void end(const Parameters& p, const Place& at, u32 tile, const float2* carry) const {
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const u32 b = batch_of(p, at, pairs[k], tile);
      if (pairs[k].exists && b < p.batch)
        store2(p.d_first[LSTM] + state_index(p, at, pairs[k], b), narrow2(carry[pairs[k].index]));
    }
  }

  // What step i of a tile needs, into `ahead`.
  DEVICE void load(const Parameters& p, const Place& at, u32 i, u32 tile) {
    const u32 s = step_of(p, i), hidden = p.hidden;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair& c = pairs[k];
      const u32 b = batch_of(p, at, c, tile);
#pragma unroll
      for (u32 j = 0; j < INS; j++) ahead[k][j] = 0;
      if (!c.exists || b >= p.batch) continue;
      const u32 length = length_of(p, b), t = time_of(at, s, length), row = t * p.batch + b;
      if (!RNN || !BACKWARD) {
        const u16* gates = at.gates + (u64)row * (GATES * hidden) + c.unit;
#pragma unroll
        for (u32 g = 0; g < GATES; g++) ahead[k][g] = load2(gates + g * hidden);
      }
      if (!BACKWARD) continue;
      const u32 before = time_of(at, s ? s - 1 : 0, length) * p.batch + b;
      if (p.dy && s < length) ahead[k][INS - 1] = load2(p.dy + y_index(p, at, c, row));
      const u16* extra = at.extra + c.unit;
      if (!RNN) ahead[k][GATES] = load2(extra + (u64)row * hidden);
      if (LSTM) ahead[k][5] = load2(s ? extra + (u64)before * hidden : p.first[1] + state_index(p, at, c, b));
      if (GRU) ahead[k][4] = load2(s ? p.y + y_index(p, at, c, before + p.batch) : p.first[0] + state_index(p, at, c, b));
      if (RNN) ahead[k][0] = load2(p.y + y_index(p, at, c, row + p.batch));
    }
  }
  DEVICE void advance() {
#pragma unroll
    for (u32 k = 0; k < EACH; k++)
#pragma unroll
      for (u32 j = 0; j < INS; j++) in[k][j] = ahead[k][j];
  }

  DEVICE void compute(const Parameters& p, const Place& at, u32 i, u32 tile, u32 buffer, bool sums) {
    u8* const to = version_of(p, at, i + 1, tile);
    u8* const old = version_of(p, at, i - 1, tile);
    float2* const carry = (float2*)(shared + AT_CARRY) + tile * PAIRS;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair& c = pairs[k];
      const u32 b = batch_of(p, at, c, tile);
      if (!c.exists || b >= p.batch) continue;
      float2 carried = RNN ? make_float2(0, 0) : carry[c.index];
      if (BACKWARD) {
        float2 dh = wide2(in[k][INS - 1]), dc = {0, 0};
        if (sums) {
          const float2 sum = sums_of(p, at, i, tile, buffer, c.sums);
          dh.x += sum.x, dh.y += sum.y;
        }
        if (p.d_last[0] && step_of(p, i) + 1 == length_of(p, b)) {
          const float2 d = wide2(load2(p.d_last[0] + state_index(p, at, c, b)));
          dh.x += d.x, dh.y += d.y;
          if (LSTM) dc = wide2(load2(p.d_last[1] + state_index(p, at, c, b)));
        }
        backward(in[k], out[k], dh, dc, carried);
#pragma unroll
        for (u32 g = 0; g < GATES; g++)  // of the product's operand: gru's last is that of W_hn h
          store_through(to + c.exchange + g * at.gate_bytes, out[k][GRU && g == 2 ? 3 : g]);
      } else {
        float2 a[GATES];
#pragma unroll
        for (u32 g = 0; g < GATES; g++) a[g] = sums_of(p, at, i, tile, buffer, c.sums + g * 8 * COLUMNS);
        if (GRU && p.bias[at.direction]) {
          const float2 v = wide2(load2(p.bias[at.direction] + c.unit));
          a[GATES - 1].x += v.x, a[GATES - 1].y += v.y;
        }
        forward(in[k], out[k], a, carried);
        store_through(to + c.exchange, out[k][OUTS - 1]);
      }
      if (!RNN) carry[c.index] = carried;
      if (POLLED && i > BACKWARD)  // all have read that version: take it back, for a later one
#pragma unroll
        for (u32 g = 0; g < (BACKWARD ? GATES : 1); g++) store_through(old + c.exchange + g * at.gate_bytes, EMPTY);
    }
  }

  static DEVICE void forward(const u32 (&in)[INS], u32 (&out)[OUTS], const float2 (&a)[GATES], float2& carried) {
    float x[2][GATES], o[2][OUTS];
#pragma unroll
    for (u32 g = 0; g < GATES; g++) {  // gru's last sum is added behind r
      x[0][g] = low(in[g]) + (GRU && g == 2 ? 0 : a[g].x);
      x[1][g] = high(in[g]) + (GRU && g == 2 ? 0 : a[g].y);
    }
    forward_cell(x[0], a[GATES - 1].x, o[0], carried.x);
    forward_cell(x[1], a[GATES - 1].y, o[1], carried.y);
#pragma unroll
    for (u32 j = 0; j < OUTS; j++) out[j] = narrow2(make_float2(o[0][j], o[1][j]));
  }
  static DEVICE void backward(const u32 (&in)[INS], u32 (&out)[OUTS], float2 dh, float2 dc, float2& carried) {
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
  static DEVICE void forward_cell(const float (&x)[GATES], float q, float (&out)[OUTS], float& carried) {
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
  static DEVICE void backward_cell(const float (&in)[INS], float (&out)[OUTS], float dh, float dc, float& carried) {
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

  // What step i of a tile left in `out`.
  DEVICE void store(const Parameters& p, const Place& at, u32 i, u32 tile) const {
    const u32 s = step_of(p, i), hidden = p.hidden;
#pragma unroll
    for (u32 k = 0; k < EACH; k++) {
      const Pair& c = pairs[k];
      const u32 b = batch_of(p, at, c, tile);
      if (!c.exists || b >= p.batch) continue;
      const u32 length = length_of(p, b), row = time_of(at, s, length) * p.batch + b;
      if (BACKWARD || (p.save && !RNN)) {
        u16* gates = (BACKWARD ? at.d_gates : at.gates) + (u64)row * (GATES * hidden) + c.unit;
#pragma unroll
        for (u32 g = 0; g < GATES; g++) store2(gates + g * hidden, out[k][g]);
      }
      const u64 extra = (u64)row * hidden + c.unit;
      if (BACKWARD && GRU) store2(p.d_extra[at.direction] + extra, out[k][OUTS - 1]);
      if (BACKWARD) continue;
      if (p.save && !RNN) store2(at.extra + extra, out[k][OUTS - 2]);
      // direction 1 keeps h_0 where the step after its first one looks for it, and zeros beyond
      if (!at.direction || s != length)
        store2(p.y + y_index(p, at, c, row + p.batch), at.direction && s > length ? 0 : out[k][OUTS - 1]);
      if (s + 1 == length) {
        store2(p.last[0] + state_index(p, at, c, b), out[k][OUTS - 1]);
        if (LSTM) store2(p.last[1] + state_index(p, at, c, b), out[k][OUTS - 2]);
      }
    }
  }
};
