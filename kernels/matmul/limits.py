"""Limits of a GPU that schedules have to keep, from plain values."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ..contract import Device

RESERVED_SHARED = 1024  # of each block, for the driver
REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread


class Limits(NamedTuple):
    """A GPU's limits; those of an H200 unless told."""

    multiprocessors: int = 132
    shared_bytes: int = 232_448  # of a block
    capability: tuple[int, int] = (9, 0)

    @property
    def bulk_copies(self) -> bool:
        """Whether tiles can be copied by descriptor, as one instruction (TMA)."""
        return self.capability >= (9, 0)

    @property
    def warpgroups(self) -> bool:
        """Whether four warps multiply together from shared memory (wgmma)."""
        return self.capability[0] == 9


def limits_of(device: Device) -> Limits:
    """The limits of a described device; what is not known is as on an H200."""
    plain = Limits()
    shared = device.shared_bytes_per_multiprocessor
    return Limits(
        device.multiprocessors or plain.multiprocessors,
        plain.shared_bytes if shared is None else shared - RESERVED_SHARED,
        device.compute_capability or plain.capability,
    )


@cache
def limits_here(device: torch.device) -> Limits:
    """The limits of a GPU of this machine; on a CPU, where kernels are interpreted, those of an H200."""
    import torch

    if device.type != "cuda":
        return Limits()
    found: Any = torch.cuda.get_device_properties(device)
    return Limits(
        found.multi_processor_count, found.shared_memory_per_block_optin, (found.major, found.minor)
    )
