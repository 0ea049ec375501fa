"""Implementations that are gone; measurements of them may still be stored, and their names be asked for."""

from __future__ import annotations

RETIRED = {
    "pre_transposed": (
        "torch_linear",  # the best of the others at 96 % of the shapes on an H200 where it was the best
        "it laid the weight out transposed in the caller's own parameter, which is wrong under "
        "DistributedDataParallel, FSDP and fused optimizers, and unties weights",
    ),
}
