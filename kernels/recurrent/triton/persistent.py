"""All time steps of a layer in one launch: the forward and the backward kernel, for Triton.

Programs (tile, group, direction): each computes BLOCK_H hidden units of BLOCK_B sequences, and keeps
their c, or the gradients that are carried from step to step, in registers. The tiles of one group and
direction need each other's states once a step: they meet at a counter of their own. All programs have
to be resident, so there may be no more than multiprocessors; a program that still waits in vain gives
NaN instead of hanging.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from .cells import gru_backward, gru_forward, lstm_backward, lstm_forward, rnn_backward, rnn_forward
from .products import (
    COUNTER_STRIDE,
    arrive,
    load_tile,
    product,
    resident_weights,
    split_gates,
    store_tile,
    wait,
)

NUMBERS = ["seq", "batch", "patience"]  # no value of them is worth a compilation of its own


@triton.jit(do_not_specialize=NUMBERS)
def persistent_forward_kernel(
    slots_ptr,  # [D, T, B, S*H]: projections; with KEEP they become activated gates
    hidden_ptr,  # [T + 2, B, D*H]: initial states in the first or last row, h_t in row t + 1
    cells_ptr,  # as hidden: c_t, with KEEP; lstm
    c_ptr,  # [B, D*H] float32: c_0, and then c_T; lstm
    weight_ptr,  # [D, G*H, H]
    counter_ptr,  # [D, groups, COUNTER_STRIDE] zeros
    length_ptr,  # [B] or None
    seq,
    batch,
    patience,
    CELL: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """The forward pass. A step waits for its tiles, multiplies, and stores h first of all."""
    S: tl.constexpr = 1 if G == 1 else 4
    COLUMNS: tl.constexpr = S * BLOCK_H
    tile, group, direction = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles, directions = tl.num_programs(0), tl.num_programs(2)
    counter_ptr += (direction * tl.num_programs(1) + group) * COUNTER_STRIDE
    b = group * BLOCK_B + tl.arange(0, BLOCK_B)
    unit = tile * BLOCK_H + tl.arange(0, BLOCK_H)
    row_ok, ok = b < batch, (b < batch)[:, None] & (unit < H)[None, :]
    width = directions * H
    place = b[:, None] * width + direction * H + unit[None, :]  # in a step's states
    slot = b[:, None] * (S * H) + unit[None, :]  # in a step's gates
    n = tl.arange(0, COLUMNS)
    gate = n // (2 * BLOCK_H) * 2 + n % 2 if S == 4 else n * 0
    column_unit = tile * BLOCK_H + (n // 2 % BLOCK_H if S == 4 else n)
    column, column_ok = (gate * H + column_unit) * H, (column_unit < H) & (gate < G)
    weight_ptr += direction.to(tl.int64) * G * H * H
    weights = resident_weights(weight_ptr, column, column_ok, H, BLOCK_K, SPLIT, RESIDENT)
    first = tl.where(direction == 0, 0, seq + 1).to(tl.int64)
    h = load_tile(hidden_ptr, first * batch * width + place, ok)
    if CELL == "lstm":
        c = load_tile(c_ptr, place, ok)
    if length_ptr is not None:
        length = tl.load(length_ptr + b, row_ok, 0)[:, None]
    for step in tl.range(0, seq, num_stages=1):  # no load may be moved above the wait
        t = tl.where(direction == 0, step, seq - 1 - step).to(tl.int64)
        before = hidden_ptr + tl.where(direction == 0, t, t + 2) * batch * width + direction * H
        step_ptr = slots_ptr + (direction * seq + t) * batch * (S * H)
        x_0 = load_tile(step_ptr, slot, ok)
        if S == 4:
            x_1 = load_tile(step_ptr, slot + H, ok)
            x_2 = load_tile(step_ptr, slot + 2 * H, ok)
            x_3 = load_tile(step_ptr, slot + 3 * H, ok)
        if step > 0:
            patience = wait(counter_ptr, tiles * step, patience)
        total = product(
            before, b, width, row_ok, weight_ptr, column, column_ok, weights,
            H, BLOCK_B, COLUMNS, BLOCK_K, SPLIT, RESIDENT,
        )  # fmt: skip
        h_before = h
        if CELL == "lstm":
            a_i, a_f, a_g, a_o = split_gates(total, BLOCK_B, BLOCK_H)
            c_before = c
            x_0, x_1, x_2, x_3, c, h = lstm_forward(x_0 + a_i, x_1 + a_f, x_2 + a_g, x_3 + a_o, c)
        elif CELL == "gru":
            a_r, a_z, a_q, _ = split_gates(total, BLOCK_B, BLOCK_H)
            x_3 += a_q
            x_0, x_1, x_2, h = gru_forward(x_0, x_1 + a_r, x_2 + a_z, x_3, h)
        else:
            h = rnn_forward(x_0 + total, CELL)
        h = tl.where(patience > 0, h, float("nan"))
        if length_ptr is not None:
            h = tl.where(t < length, h, h_before)
            if CELL == "lstm":
                c = tl.where(t < length, c, c_before)
        store_tile(hidden_ptr, (t + 1) * batch * width + place, ok, h)
        arrive(counter_ptr)
        if KEEP and S == 4:
            store_tile(step_ptr, slot, ok, x_0)
            store_tile(step_ptr, slot + H, ok, x_1)
            store_tile(step_ptr, slot + 2 * H, ok, x_2)
            store_tile(step_ptr, slot + 3 * H, ok, x_3)
            if CELL == "lstm":
                store_tile(cells_ptr, (t + 1) * batch * width + place, ok, c)
    if CELL == "lstm":
        store_tile(c_ptr, place, ok, c)


@triton.jit(do_not_specialize=NUMBERS)
def persistent_backward_kernel(
    slots_ptr,  # [D, T, B, S*H]: activated gates
    d_slots_ptr,  # as slots: their gradients before activation
    hidden_ptr,  # [T + 2, B, D*H]
    cells_ptr,  # as hidden; lstm
    dy_ptr,  # [T, B, D*H] or None
    dh_ptr,  # [B, D*H] float32: the last state's gradient, and then what no product has of the first's
    dc_ptr,  # as dh; lstm
    weight_ptr,  # [D, H, G*H]: W_hh transposed
    counter_ptr,  # [D, groups, COUNTER_STRIDE] zeros
    length_ptr,  # [B] or None
    seq,
    batch,
    patience,
    CELL: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """The backward pass: what the tiles exchange is the gradients of all gates, dh = da W_hh."""
    S: tl.constexpr = 1 if G == 1 else 4
    tile, group, direction = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles, directions = tl.num_programs(0), tl.num_programs(2)
    counter_ptr += (direction * tl.num_programs(1) + group) * COUNTER_STRIDE
    b = group * BLOCK_B + tl.arange(0, BLOCK_B)
    unit = tile * BLOCK_H + tl.arange(0, BLOCK_H)
    row_ok, unit_ok = b < batch, unit < H
    ok = row_ok[:, None] & unit_ok[None, :]
    width = directions * H
    place = b[:, None] * width + direction * H + unit[None, :]
    slot = b[:, None] * (S * H) + unit[None, :]
    weight_ptr += direction.to(tl.int64) * G * H * H
    column = unit * (G * H)
    weights = resident_weights(weight_ptr, column, unit_ok, G * H, BLOCK_K, SPLIT, RESIDENT)
    carried = load_tile(dh_ptr, place, ok)
    if CELL == "lstm":
        dc = load_tile(dc_ptr, place, ok)
    if length_ptr is not None:
        length = tl.load(length_ptr + b, row_ok, 0)[:, None]
    for step in tl.range(0, seq, num_stages=1):  # no load may be moved above the wait
        t = tl.where(direction == 0, seq - 1 - step, step).to(tl.int64)
        after = d_slots_ptr + (direction * seq + tl.where(direction == 0, t + 1, t - 1)) * batch * (S * H)
        step_ptr = slots_ptr + (direction * seq + t) * batch * (S * H)
        before = tl.where(direction == 0, t, t + 2) * batch * width + place
        dh = carried
        if dy_ptr is not None:
            dh += load_tile(dy_ptr, t * batch * width + place, ok)
        if S == 4:
            s_0, s_1 = load_tile(step_ptr, slot, ok), load_tile(step_ptr, slot + H, ok)
            s_2, s_3 = load_tile(step_ptr, slot + 2 * H, ok), load_tile(step_ptr, slot + 3 * H, ok)
        if CELL == "lstm":
            c, c_before = (
                load_tile(cells_ptr, (t + 1) * batch * width + place, ok),
                load_tile(cells_ptr, before, ok),
            )
        elif CELL == "gru":
            h_before = load_tile(hidden_ptr, before, ok)
        else:
            h = load_tile(hidden_ptr, (t + 1) * batch * width + place, ok)
        if step > 0:
            patience = wait(counter_ptr, tiles * step, patience)
            dh += product(
                after + (S - G) * H, b, S * H, row_ok, weight_ptr, column, unit_ok, weights,
                G * H, BLOCK_B, BLOCK_H, BLOCK_K, SPLIT, RESIDENT,
            )  # fmt: skip
            dh = tl.where(patience > 0, dh, float("nan"))
        carried = tl.zeros_like(dh)
        if CELL == "lstm":
            dc_after = dc
            s_0, s_1, s_2, s_3, dc = lstm_backward(dh, dc, s_0, s_1, s_2, s_3, c, c_before)
        elif CELL == "gru":
            s_0, s_1, s_2, s_3, carried = gru_backward(dh, s_0, s_1, s_2, s_3, h_before)
        else:
            s_0 = rnn_backward(dh, h, CELL)
        if length_ptr is not None:
            valid = t < length
            carried = tl.where(valid, carried, dh)
            s_0 = tl.where(valid, s_0, 0.0)
            if S == 4:
                s_1, s_2, s_3 = (
                    tl.where(valid, s_1, 0.0),
                    tl.where(valid, s_2, 0.0),
                    tl.where(valid, s_3, 0.0),
                )
            if CELL == "lstm":
                dc = tl.where(valid, dc, dc_after)
        step_ptr = d_slots_ptr + (direction * seq + t) * batch * (S * H)
        store_tile(step_ptr, slot, ok, s_0)
        if S == 4:
            store_tile(step_ptr, slot + H, ok, s_1)
            store_tile(step_ptr, slot + 2 * H, ok, s_2)
            store_tile(step_ptr, slot + 3 * H, ok, s_3)
        arrive(counter_ptr)
    store_tile(dh_ptr, place, ok, carried)
    if CELL == "lstm":
        store_tile(dc_ptr, place, ok, dc)
