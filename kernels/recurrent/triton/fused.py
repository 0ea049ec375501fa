"""The engine of one matrix product and one pointwise kernel a step, in either layout.

The product adds to the projections in place; the kernel then does everything else of the step. Triton is
imported when a layer runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...runtime.triton_launch import launch
from .layer import Tape, Upstream
from .projection import slot_count

BLOCK = 512  # elements of a state that a program takes: 4 a thread
WARPS = 4


class FusedLoop(NamedTuple):
    """The engine: batch-major, or batch-minor with `minor`."""

    minor: bool

    @property
    def name(self) -> str:
        """See `layer.Engine`."""
        return f"{__name__}:{'BATCH_MINOR' if self.minor else 'BATCH_MAJOR'}"

    def forward(self, tape: Tape) -> None:
        """See `layer.Engine`."""
        from .pointwise import fused_forward_kernel

        for direction, weight in enumerate(tape.weights):
            walk = _Walk.of(tape, direction, self.minor)
            slots, states = tape.slots[direction], walk.states(tape.hidden).unbind(0)
            targets = walk.recurrent(slots).unbind(0)
            arguments = (slots, tape.hidden, tape.cells, tape.c, tape.lengths)
            for t, before in walk.steps:
                if self.minor:
                    targets[t].addmm_(weight, states[before])
                else:
                    targets[t].addmm_(states[before], weight.t())
                launch(
                    fused_forward_kernel, walk.grid, *arguments, t, before, *walk.sizes,
                    KEEP=tape.keep, **walk.options,
                )  # fmt: skip

    def backward(self, tape: Tape, upstream: Upstream) -> Tensor:
        """See `layer.Engine`."""
        from .pointwise import fused_backward_kernel

        d_slots = torch.empty_like(tape.slots)
        carries = tape.cell.name == "gru" or tape.lengths is not None
        for direction, weight in enumerate(tape.weights):
            walk = _Walk.of(tape, direction, self.minor)
            d_state = walk.states(upstream.h.unsqueeze(0))[0]
            product = d_state.to(tape.hidden.dtype, copy=True, memory_format=torch.contiguous_format)
            d_state.zero_()
            targets = walk.recurrent(d_slots[direction]).unbind(0)
            arguments = (
                tape.slots[direction], d_slots[direction], tape.hidden, tape.cells, upstream.y, product,
                upstream.h if carries else None, upstream.c, tape.lengths,
            )  # fmt: skip
            for t, before in reversed(walk.steps):
                launch(fused_backward_kernel, walk.grid, *arguments, t, before, *walk.sizes, **walk.options)
                if self.minor:
                    torch.mm(weight.t(), targets[t], out=product)
                else:
                    torch.mm(targets[t], weight, out=product)
            d_state.add_(product)
        return d_slots


BATCH_MAJOR, BATCH_MINOR = FusedLoop(minor=False), FusedLoop(minor=True)


class _Walk(NamedTuple):
    """How the kernels of one direction go over a tape."""

    steps: list[tuple[int, int]]  # (t, row of hidden with the state before it), in order of computation
    columns: slice  # of this direction, in the axis of `hidden` that has D*H
    skipped: int  # columns of the slots that no state goes to
    minor: bool
    grid: tuple[int, int, int]
    sizes: tuple[int, ...]  # the kernels' arguments from `length` on
    options: dict[str, Any]

    @classmethod
    def of(cls, tape: Tape, direction: int, minor: bool) -> _Walk:
        """The walk of one direction."""
        size, slots = tape.hidden_size, slot_count(tape.cell)
        batch = tape.hidden.size(2 if minor else 1)
        seq, width = tape.slots.size(1), len(tape.weights) * size
        rows, length = (size, batch) if minor else (batch, size)
        steps = [(t, t) for t in range(seq)] if direction == 0 else [(t, t + 2) for t in reversed(range(seq))]
        sizes = (
            length,
            rows * length,
            length if minor else slots * size,
            size * (batch if minor else 1),
            length if minor else width,
            direction * size * (batch if minor else 1),
            batch * slots * size,
            batch * width,
        )
        return cls(
            steps,
            slice(direction * size, (direction + 1) * size),
            (slots - tape.cell.gates) * size,
            minor,
            (-(-rows * length // BLOCK), 1, 1),
            sizes,
            {"CELL": tape.cell.name, "MINOR": minor, "BLOCK": BLOCK, "num_warps": WARPS},
        )

    def states(self, rows: Tensor) -> Tensor:
        """The direction's part of [.., B, D*H], or of [.., D*H, B]."""
        return rows[:, self.columns] if self.minor else rows[..., self.columns]

    def recurrent(self, slots: Tensor) -> Tensor:
        """The slots that states go to, of [T, B, S*H] or [T, S*H, B]."""
        return slots[:, self.skipped :] if self.minor else slots[..., self.skipped :]
