"""Launches of kernel.cu: what it is compiled with, its scratch memory and its argument."""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...contract import UnsupportedProblem
from ...runtime.nvrtc import Kernel, Launch
from ..layer import GRU, LSTM, RNN_RELU, RNN_TANH
from .plan import COUNTERS, WARPGROUPS, Plan, Shape, plan

SOURCE = Path(__file__).with_name("kernel.cu")
CELLS = (LSTM, GRU, RNN_TANH, RNN_RELU)  # by their number in kernel.cu
Tensors = tuple[Tensor | None, ...]


class Arguments(NamedTuple):
    """The tensors of kernel.cu's Parameters, in its order; tuples have one for each direction or state."""

    w: Tensors
    gates: Tensors
    bias: Tensors
    extra: Tensors
    y: Tensor
    first: Tensors
    last: Tensors = ()
    dy: Tensor | None = None
    d_last: Tensors = ()
    d_gates: Tensors = ()
    d_extra: Tensors = ()
    d_first: Tensors = ()
    lengths: Tensor | None = None

    def addresses(self) -> list[int]:
        """Address of each tensor; 0 in place of a missing one."""
        found = []
        for value in self:
            if isinstance(value, tuple):
                pair = [0 if tensor is None else tensor.data_ptr() for tensor in value]
                found += pair + [0] * (2 - len(pair))
            else:
                found.append(0 if value is None else value.data_ptr())
        return found


class Loop:
    """The time loop of one shape on one device, compiled."""

    PARAMETERS = struct.Struct("26Q7I4x")

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise UnsupportedProblem(
                f"persistent {shape.cell.name}: computes in float16 and bfloat16, not in {dtype}: convert "
                "module and inputs, call it under torch.autocast, or build another implementation."
            )
        count = torch.cuda.get_device_properties(device).multi_processor_count
        layout = plan(shape, count)
        if isinstance(layout, str):
            raise RuntimeError(f"persistent {shape.cell.name}: {layout}")
        turns = layout.groups * layout.tiles
        self._exchange_bytes = layout.slots * turns * shape.chunks * layout.columns * 128
        self._counter_bytes = 0 if layout.polled else turns * COUNTERS * 128
        tiles = turns * layout.clusters * layout.ranks
        self._sum_bytes = 0 if layout.clustered else 2 * tiles * 64 * layout.columns * 4
        self._fixed = (shape.batch, shape.hidden, shape.directions, layout.tiles, layout.groups)
        self._polled = layout.polled
        self._device = device
        cluster = layout.ranks if layout.clustered else 1
        self._launch = Launch(layout.blocks, layout.threads, cluster, layout.shared_bytes)
        self._kernel = kernel(defines(shape, dtype, layout))

    def __call__(self, arguments: Arguments, seq: int, *, save: bool) -> None:
        """Run `seq` steps; forward, `save` says whether backward will need gates and states."""
        exchange, sums = self._scratch(arguments.y)
        packed = self.PARAMETERS.pack(
            *arguments.addresses(),
            exchange.data_ptr(),
            exchange.data_ptr() + self._exchange_bytes,
            0 if sums is None else sums.data_ptr(),
            seq,
            *self._fixed,
            save,
        )
        self._kernel(self._launch, packed, self._device)

    def _scratch(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Memory through which CTAs talk: with all bits set where readers poll, else zeros."""
        size = self._exchange_bytes + self._counter_bytes
        if not self._sum_bytes:
            return like.new_full((size,), 255 * self._polled, dtype=torch.uint8), None
        if self._polled:
            both = like.new_full((size + self._sum_bytes,), 255, dtype=torch.uint8)
            return both, both[size:]
        return like.new_zeros(size, dtype=torch.uint8), like.new_full(
            (self._sum_bytes,), 255, dtype=torch.uint8
        )


@lru_cache(maxsize=256)
def loop(shape: Shape, dtype: torch.dtype, device: torch.device) -> Loop:
    """The loop of a shape, compiled at its first use.

    Raises RuntimeError where it does not fit, and UnsupportedProblem for other than 16-bit dtypes.
    """
    return Loop(shape, dtype, device)


def defines(shape: Shape, dtype: torch.dtype, layout: Plan) -> tuple[tuple[str, int], ...]:
    """Macros that kernel.cu is compiled with for a layout."""
    return (
        ("CELL", CELLS.index(shape.cell)),
        ("BACKWARD", int(shape.backward)),
        ("BF16", int(dtype == torch.bfloat16)),
        ("COLUMNS", layout.columns),
        ("CHUNKS_REGISTER", layout.register_chunks),
        ("CHUNKS_SHARED", layout.shared_chunks),
        ("WARPGROUPS", WARPGROUPS),
        ("RANKS", layout.ranks),
        ("CLUSTERED", int(layout.clustered)),
        ("POLLED", int(layout.polled)),
        ("STAGES", layout.stages),
        ("PIECES", layout.pieces),
        ("SHARED_BYTES", layout.fixed_shared_bytes),
        ("PARAMETER_BYTES", Loop.PARAMETERS.size),
    )


@cache
def kernel(configuration: tuple[tuple[str, int], ...]) -> Kernel:
    """The compiled kernel of a configuration, shared by all shapes that have it."""
    return Kernel(SOURCE, "recurrent", "90a", configuration)
