"""Peak memory of a model's steps."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import nn

from kernel_selector.kernels.measure.memory import measure_memory

SHARE = 0.95  # of a device's memory that a step may take


class PeakMemory:
    """Peak of a model's steps in bytes, beside what was allocated before this was made.

    On a GPU it is what torch reserves of the device, CUDA graphs included; elsewhere weights, buffers and
    what a step allocates. What other arrangements of the model hold does not count.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._gpu = next((one.device for one in tensors if one.device.type == "cuda"), None)
        self._weights = sum(one.nbytes for one in tensors)
        self._at_first = self.reserved()

    @property
    def device_limit(self) -> int | None:
        """Bytes of the device's memory that may be used; None where it is not a GPU's."""
        if self._gpu is None:
            return None
        return int(SHARE * torch.cuda.get_device_properties(self._gpu).total_memory)

    def reserved(self) -> int:
        """Bytes that torch reserves on the GPU for what is in use; 0 on other devices."""
        if self._gpu is None:
            return 0
        give_memory_back()
        return torch.cuda.memory_reserved(self._gpu)

    def of(self, step: Callable[[], object], reserved_before: int | None = None) -> int | None:
        """Peak of a step of an arrangement; `reserved_before` was reserved before that was made, None: as
        much as at first. None while another profiler of torch runs, which counts allocations.
        """
        if self._gpu is not None:
            give_memory_back()
            torch.cuda.reset_peak_memory_stats(self._gpu)
            step()
            others = 0 if reserved_before is None else reserved_before - self._at_first
            return torch.cuda.max_memory_reserved(self._gpu) - others
        if torch._C._autograd._profiler_enabled():
            return None

        def run(_number: int, mark: Callable[[], None]) -> None:
            mark()
            step()

        return self._weights + measure_memory(run, "cpu").peak_bytes


def give_memory_back() -> None:
    """Collect garbage, and give the GPU's free memory back."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
