"""Two pieces of work that do not need each other, as branches of a graph that is being captured."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# operations of both products: larger ones fill the GPU by themselves
MOST_FLOPS = 4e10


def side_by_side(
    aside: Callable[[], tuple[Tensor | None, ...]],
    here: Callable[[], Tensor | None],
    on: Tensor,
    flops: float,
) -> tuple[tuple[Tensor | None, ...], Tensor | None]:
    """Results of both functions, run at the same time where the device's current stream is being captured.

    Elsewhere one is made after the other: for the host, events between streams cost more than they spare.
    """
    if not on.is_cuda or flops > MOST_FLOPS or not torch.cuda.is_current_stream_capturing():
        mine = here()
        return aside(), mine
    main, side = torch.cuda.current_stream(on.device), _side(on.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        found = aside()
    mine = here()
    main.wait_stream(side)
    for one in found:
        if (
            one is not None
        ):  # its memory is the other stream's: it must not be given away while this one reads
            one.record_stream(main)
    return found, mine


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
