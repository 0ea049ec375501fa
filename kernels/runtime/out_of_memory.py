"""Errors by which torch, its libraries and the system say that memory ran out."""

from __future__ import annotations

import torch

TEXTS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "bad_alloc",
    "ALLOC_FAILED",
    "Storage size calculation overflowed",
    "invalid configuration: size",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: by its class, or by the text of a RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in TEXTS)
