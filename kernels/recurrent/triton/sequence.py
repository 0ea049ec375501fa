"""The engine of one launch for all steps: chooses tiles, zeroes counters and starts the kernels.

Triton is imported when a layer runs: implementations are listed where it is not installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...contract import Device, Problem
from ...runtime.triton_launch import launch
from ..layer import Cell
from .layer import Tape, Upstream
from .projection import slot_count
from .tiles import STAGES, WARPS, Limits, Size, Tile, best_tile, has_tile

PATIENCE = 2**22  # polls, some seconds: after them a program gives NaN instead of hanging the GPU
SHARED_BYTES_LEAST = 100 * 2**10  # of a multiprocessor of compute capability 8.6, which has the least
SHARED_BYTES_RESERVED = 2**10  # of each multiprocessor, by CUDA


class SequenceLoop(NamedTuple):
    """The engine."""

    minor: bool = False

    @property
    def name(self) -> str:
        """See `layer.Engine`."""
        return f"{__name__}:SEQUENCE"

    def forward(self, tape: Tape) -> None:
        """See `layer.Engine`."""
        from .persistent import persistent_forward_kernel

        tile = _tile(tape, backward=False)
        weights = tape.weights[0] if len(tape.weights) == 1 else torch.stack(tape.weights)
        launch(
            persistent_forward_kernel, _grid(tape, tile),
            tape.slots, tape.hidden, tape.cells, tape.c, weights, _counters(tape, tile), tape.lengths,
            tape.slots.size(1), tape.hidden.size(1), PATIENCE,
            KEEP=tape.keep, **_options(tape, tile),
        )  # fmt: skip

    def backward(self, tape: Tape, upstream: Upstream) -> Tensor:
        """See `layer.Engine`."""
        from .persistent import persistent_backward_kernel

        tile = _tile(tape, backward=True)
        weights = torch.stack([weight.t() for weight in tape.weights])
        d_slots = torch.empty_like(tape.slots)
        launch(
            persistent_backward_kernel, _grid(tape, tile),
            tape.slots, d_slots, tape.hidden, tape.cells, upstream.y, upstream.h, upstream.c,
            weights, _counters(tape, tile), tape.lengths,
            tape.slots.size(1), tape.hidden.size(1), PATIENCE,
            **_options(tape, tile),
        )  # fmt: skip
        for direction, weight in enumerate(tape.weights):
            # the first step's gates still have to reach the initial state
            first = d_slots[direction, -1 if direction else 0]
            size = tape.hidden_size
            d_state = upstream.h[:, direction * size : (direction + 1) * size]
            d_state.add_(first[:, first.size(1) - weight.size(0) :] @ weight)
        return d_slots


SEQUENCE = SequenceLoop()


def refusal(problem: Problem, device: Device, cell: Cell) -> str | None:
    """Reason why the programs of a problem cannot all be resident on a device, or None."""
    if device.multiprocessors is None:
        return "all of its programs have to run at once, and the device's multiprocessors are not known"
    shared = device.shared_bytes_per_multiprocessor or SHARED_BYTES_LEAST
    limits = Limits(device.multiprocessors, shared - SHARED_BYTES_RESERVED)
    shape = (problem["hidden"], problem["batch"], 2 if problem["bidirectional"] else 1)
    element_bytes = 4 if problem["dtype"] == "float32" else 2
    passes = (False, True) if problem["mode"] == "training" else (False,)
    if all(has_tile(_size(cell, shape, element_bytes, backward), limits) for backward in passes):
        return None
    return _does_not_fit(shape, limits)


def _does_not_fit(shape: tuple[int, int, int], limits: Limits) -> str:
    hidden, batch, directions = shape
    return (
        f"no tiling of hidden={hidden}, batch={batch} and {directions} direction(s) lets all programs run at "
        f"once on {limits.programs} multiprocessors with {limits.shared_bytes} bytes of shared memory each"
    )


def _size(cell: Cell, shape: tuple[int, int, int], element_bytes: int, backward: bool) -> Size:
    hidden, batch, directions = shape
    gates = (1, 1) if backward else (slot_count(cell), cell.gates)
    # float32 weights are split for TF32: the compiler moves that out of forward's loop, whose product is
    # in no branch, and then both parts stay
    copies = 2 if element_bytes == 4 and not backward else 1
    depth = hidden * (cell.gates if backward else 1)
    return Size(hidden, batch, directions, depth, *gates, element_bytes, copies)


def _tile(tape: Tape, *, backward: bool) -> Tile:
    shape = (tape.hidden_size, tape.hidden.size(1), len(tape.weights))
    limits = _limits(tape.hidden.device)
    found = best_tile(_size(tape.cell, shape, tape.hidden.element_size(), backward), limits)
    if found is None:
        raise RuntimeError(_does_not_fit(shape, limits))
    return found


def _limits(device: torch.device) -> Limits:
    if device.type != "cuda":  # Triton's interpreter runs programs one after another: none may wait
        return Limits(programs=2**20, shared_bytes=2**30, tiles=1)
    properties: Any = torch.cuda.get_device_properties(device)
    return Limits(properties.multi_processor_count, properties.shared_memory_per_block_optin)


def _grid(tape: Tape, tile: Tile) -> tuple[int, int, int]:
    return tile.tiles, tile.groups, len(tape.weights)


def _counters(tape: Tape, tile: Tile) -> Tensor:
    from .products import COUNTER_STRIDE

    count = len(tape.weights) * tile.groups * COUNTER_STRIDE.value
    return torch.zeros(count, dtype=torch.int32, device=tape.hidden.device)


def _options(tape: Tape, tile: Tile) -> dict[str, Any]:
    return {
        "CELL": tape.cell.name,
        "H": tape.hidden_size,
        "G": tape.cell.gates,
        "BLOCK_B": tile.block_b,
        "BLOCK_H": tile.block_h,
        "BLOCK_K": tile.block_k,
        "SPLIT": tile.split,
        "RESIDENT": tile.resident,
        "num_warps": WARPS,
        "num_stages": STAGES,
    }
