"""Triton kernels of additive attention, which never write the tensor inside the tanh.

A program holds a tile of k, BLOCK_S positions by BLOCK_D features, in registers and walks over decoder steps:
one row of q meets the whole tile, so that an element costs an addition, the tanh and few more. The special
function unit is the bound: it gives 16 tanh a clock and multiprocessor, on an H200 4.2e12 a second, while
additions and products come at 128. `tanh.approx` is one of its instructions; a tanh by a power and a
reciprocal is two. Packed 16-bit forms save nothing: ptxas makes two instructions of `tanh.approx.bf16x2`.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x, TANH: tl.constexpr):
    """tanh in float32: "approximate" to 2^-11 of itself, "precise" to 2e-7, and as "plain" anywhere."""
    if TANH == "approximate":
        y = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    elif TANH == "precise":
        # 1 - 2 / (1 + 2^(x 2 / ln 2)) in five instructions; Triton's exp and division take care of denormal
        # numbers, which are nothing beside the 1 here, and take ten more for that
        y = tl.inline_asm_elementwise(
            """
            {
                .reg .f32 t;
                mul.f32 t, $1, 0f4038AA3B;
                ex2.approx.ftz.f32 t, t;
                add.f32 t, t, 0f3F800000;
                rcp.approx.ftz.f32 t, t;
                fma.rn.f32 $0, t, 0fC0000000, 0f3F800000;
            }
            """,
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        y = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))  # exp = inf gives 1
    return y


@triton.jit
def _length_of(lengths_ptr, b, S):
    """Positions of sequence b that may be attended to."""
    length = S
    if lengths_ptr is not None:
        length = tl.minimum(tl.load(lengths_ptr + b), S).to(tl.int32)
    return length


@triton.jit
def _row(pointer, offsets, ok):
    return tl.load(pointer + offsets, ok, 0.0).to(tl.float32)


@triton.jit
def statistics_kernel(
    q_ptr,  # [B, T, N * D], strides given; the last is 1
    k_ptr,  # [B, S, N * D], as well
    mean_ptr,  # [B * N, T, S] float32
    rstd_ptr,  # [B * N, T, S] float32
    q_batch,
    q_step,
    k_batch,
    k_step,
    T,
    S,
    D,
    N,
    EPSILON: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Mean and reciprocal standard deviation of q[t] + k[s] over D, without these sums.

    The variance of a sum needs the two variances and the covariance, which is a product on tensor cores.
    """
    t_tiles, s_tiles = tl.cdiv(T, BLOCK_T), tl.cdiv(S, BLOCK_S)
    tile, bn = tl.program_id(0) % (t_tiles * s_tiles), tl.program_id(0) // (t_tiles * s_tiles)
    b, n = (bn // N).to(tl.int64), bn % N
    t = (tile // s_tiles) * BLOCK_T + tl.arange(0, BLOCK_T)
    s = (tile % s_tiles) * BLOCK_S + tl.arange(0, BLOCK_S)
    q_rows = q_ptr + b * q_batch + n * D + t[:, None].to(tl.int64) * q_step
    k_rows = k_ptr + b * k_batch + n * D + s[:, None].to(tl.int64) * k_step
    # added up over the features behind the loop: Triton 3.6 fails on sums inside of it in float32
    sum_q, squares_q = tl.zeros([BLOCK_T, BLOCK_D], tl.float32), tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    sum_k, squares_k = tl.zeros([BLOCK_S, BLOCK_D], tl.float32), tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    products = tl.zeros([BLOCK_T, BLOCK_S], tl.float32)
    for first in range(0, D, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        q = tl.load(q_rows + d[None, :], (t < T)[:, None] & (d < D)[None, :], 0.0)
        k = tl.load(k_rows + d[None, :], (s < S)[:, None] & (d < D)[None, :], 0.0)
        products = tl.dot(q, tl.trans(k), products, input_precision="ieee")
        q, k = q.to(tl.float32), k.to(tl.float32)
        sum_q += q
        squares_q += q * q
        sum_k += k
        squares_k += k * k
    mean = (tl.sum(sum_q, 1)[:, None] + tl.sum(sum_k, 1)[None, :]) / D
    square = (tl.sum(squares_q, 1)[:, None] + tl.sum(squares_k, 1)[None, :] + 2.0 * products) / D
    rstd = tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + EPSILON)
    place = (bn.to(tl.int64) * T + t[:, None]) * S + s[None, :]
    ok = (t < T)[:, None] & (s < S)[None, :]
    tl.store(mean_ptr + place, mean, ok)
    tl.store(rstd_ptr + place, rstd, ok)


@triton.jit
def scores_kernel(
    q_ptr,  # [B, T, N * D]
    k_ptr,  # [B, S, N * D]
    v_ptr,  # [N, D]
    gain_ptr,  # [D], or None without a layer norm, as the next three
    shift_ptr,  # [D]
    mean_ptr,  # [B * N, T, S] float32
    rstd_ptr,  # [B * N, T, S] float32
    lengths_ptr,  # int64 [B], or None
    scores_ptr,  # [B * N, T, S] float32; not written beyond lengths
    q_batch,
    q_step,
    k_batch,
    k_step,
    T,
    S,
    D,
    N,
    steps,  # that a program takes
    TANH: tl.constexpr,
    WHOLE: tl.constexpr,  # whether one block takes all of D
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """scores[t, s] = v . tanh(q[t] + k[s])."""
    s_tiles, t_splits = tl.cdiv(S, BLOCK_S), tl.cdiv(T, steps)
    tile, rest = tl.program_id(0) % s_tiles, tl.program_id(0) // s_tiles
    split, bn = rest % t_splits, rest // t_splits
    b, n = (bn // N).to(tl.int64), bn % N
    length = _length_of(lengths_ptr, b, S)
    if tile * BLOCK_S >= length:
        return
    s = tile * BLOCK_S + tl.arange(0, BLOCK_S)
    ok = s < length
    q_ptr += b * q_batch + n * D
    v_ptr += n * D
    k_rows = k_ptr + b * k_batch + n * D + s[:, None].to(tl.int64) * k_step
    blocks = tl.arange(0, BLOCK_D)
    if WHOLE:
        k_tile = tl.load(k_rows + blocks[None, :], ok[:, None] & (blocks < D)[None, :], 0.0).to(tl.float32)
        v_tile = _row(v_ptr, blocks, blocks < D)
        if gain_ptr is not None:
            gain_tile, shift_tile = _row(gain_ptr, blocks, blocks < D), _row(shift_ptr, blocks, blocks < D)
    # offsets are carried along: 64-bit products at each step would cost as much as the loads
    q_ptr += (split * steps).to(tl.int64) * q_step
    place = (bn.to(tl.int64) * T + split * steps) * S + s
    for _ in range(split * steps, tl.minimum(split * steps + steps, T)):
        if gain_ptr is not None:
            mean, rstd = tl.load(mean_ptr + place, ok, 0.0), tl.load(rstd_ptr + place, ok, 0.0)
        total = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
        for first in range(0, BLOCK_D if WHOLE else D, BLOCK_D):
            d = first + blocks
            inside = d < D
            if WHOLE:
                k, v = k_tile, v_tile
            else:
                k = tl.load(k_rows + d[None, :], ok[:, None] & inside[None, :], 0.0).to(tl.float32)
                v = _row(v_ptr, d, inside)
            e = _row(q_ptr, d, inside)[None, :] + k
            if gain_ptr is not None:
                if WHOLE:
                    gain, shift = gain_tile, shift_tile
                else:
                    gain, shift = _row(gain_ptr, d, inside), _row(shift_ptr, d, inside)
                e = (e - mean[:, None]) * rstd[:, None] * gain[None, :] + shift[None, :]
            total += _tanh(e, TANH) * v[None, :]  # v is 0 beyond D
        tl.store(scores_ptr + place, tl.sum(total, 1), ok)
        q_ptr += q_step
        place += S


@triton.jit
def softmax_kernel(
    scores_ptr,  # [B * N, T, S] float32
    weights_ptr,  # [B * N, T, S]
    lengths_ptr,  # int64 [B], or None
    rows,  # B * N * T
    S,
    heads_steps,  # N * T
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weights of ROWS rows, a softmax over the valid positions; zeros beyond, and where there are none."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    length = tl.zeros([ROWS], tl.int64) + S
    if lengths_ptr is not None:
        length = tl.minimum(tl.load(lengths_ptr + row // heads_steps, row < rows, 0), S)
    length = tl.where(row < rows, length, 0)
    places = (row * S)[:, None]
    highest, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    for first in range(0, S, BLOCK):
        s = first + tl.arange(0, BLOCK)
        x = tl.load(scores_ptr + places + s[None, :], s[None, :] < length[:, None], float("-inf"))
        higher = tl.maximum(highest, tl.max(x, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        highest = higher
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.where(total == 0.0, 1.0, total)
    for first in range(0, S, BLOCK):
        s = first + tl.arange(0, BLOCK)
        x = tl.load(scores_ptr + places + s[None, :], s[None, :] < length[:, None], float("-inf"))
        weights = tl.exp(x - base[:, None]) / total[:, None]
        inside = (row < rows)[:, None] & (s < S)[None, :]
        tl.store(weights_ptr + places + s[None, :], weights.to(weights_ptr.dtype.element_ty), inside)


@triton.jit
def softmax_backward_kernel(
    weights_ptr,  # [B * N, T, S]
    d_weights_ptr,  # [B * N, T, S]
    d_scores_ptr,  # [B * N, T, S] float32
    lengths_ptr,  # int64 [B], or None
    rows,
    S,
    heads_steps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """d_scores = weights (d_weights - weights . d_weights); zeros beyond lengths."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    length = tl.zeros([ROWS], tl.int64) + S
    if lengths_ptr is not None:
        length = tl.minimum(tl.load(lengths_ptr + row // heads_steps, row < rows, 0), S)
    length = tl.where(row < rows, length, 0)
    places = (row * S)[:, None]
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, S, BLOCK):
        s = first + tl.arange(0, BLOCK)
        valid = s[None, :] < length[:, None]
        weights = _row(weights_ptr + places, s[None, :], valid)
        total += tl.sum(weights * _row(d_weights_ptr + places, s[None, :], valid), 1)
    for first in range(0, S, BLOCK):
        s = first + tl.arange(0, BLOCK)
        valid = s[None, :] < length[:, None]
        weights = _row(weights_ptr + places, s[None, :], valid)
        d_scores = weights * (_row(d_weights_ptr + places, s[None, :], valid) - total[:, None])
        inside = (row < rows)[:, None] & (s < S)[None, :]
        tl.store(d_scores_ptr + places + s[None, :], d_scores, inside)
