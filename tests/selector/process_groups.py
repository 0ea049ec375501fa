"""A process group of one process, for what data-parallel training does in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

REST_S = 0.2


@contextmanager
def alone() -> Iterator[None]:
    """A group of this process alone.

    Its threads let go of the tensors of their last work a moment after it is done, for which they need the
    interpreter's lock: who drops the group before waits for them with the lock, for ever.
    """
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        time.sleep(REST_S)
        torch.distributed.destroy_process_group()
