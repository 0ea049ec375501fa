"""Memory that nobody wrote shows itself: `torch.empty` and its kin give NaN while a module is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PATCHED = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch, "empty_permuted"),
    (Tensor, "new_empty"),
    (Tensor, "new_empty_strided"),
)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill floating-point tensors from Python's `torch.empty` family with NaN, in forward and backward.

    Not for use by two threads at once: the functions are replaced for the whole process.
    """
    originals = [(owner, name, getattr(owner, name)) for owner, name in PATCHED]
    try:
        for owner, name, original in originals:
            setattr(owner, name, _filling(original))
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _filling(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fill(*args: Any, **kwargs: Any) -> Tensor:
        tensor = original(*args, **kwargs)
        # a compiler's tensors have no memory, and in its graph the fill would be the implementation's
        if type(tensor) is Tensor and (tensor.is_floating_point() or tensor.is_complex()):
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return fill
