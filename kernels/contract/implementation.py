"""One way to compute an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .device import Device
from .problem import Problem

if TYPE_CHECKING:
    from torch import nn

# why an implementation that `replays` is not compiled with neighbours
REPLAYS = "it replays CUDA graphs of its own, which no graph of torch.compile holds"


@dataclass(frozen=True, init=False)
class Work:
    """Counted work of an implementation on a problem: the physical features of the cost model.

    Counted from the equations and the source, not measured. `saved_bytes` is what is kept between
    forward and backward (0 for inference); `steps` is the length of the longest chain of dependent
    kernels; `launches` the number of kernels or library calls over forward and backward.
    """

    flops: float
    moved_bytes: float
    saved_bytes: float
    launches: float
    steps: float

    def __init__(
        self, *, flops: float, moved_bytes: float, saved_bytes: float, launches: float, steps: float
    ) -> None:
        # thousands are made for a batch of choices, and the one that dataclass writes takes a third longer
        kept = vars(self)
        kept["flops"], kept["moved_bytes"], kept["saved_bytes"] = flops, moved_bytes, saved_bytes
        kept["launches"], kept["steps"] = launches, steps


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """An implementation as found by listing an operator's folder: one file, one implementation.

    `version` says by hashes what `build` does, `counted_by` what `work` counts. `unsupported(problem,
    device)` returns the reason why it refuses, or None; it looks at plain values and needs no GPU.
    `build(problem)` returns an `nn.Module` with the parameter names of the torch module it stands in for,
    on the CPU.
    `describe(problem, device)`, where there is one, says in words how it computes a problem, and why so.
    `runs(problem, device)`, where there is one, names the implementation whose code it runs for a problem.
    """

    operator: str
    name: str
    version: str
    summary: str
    default: bool
    unsupported: Callable[[Problem, Device], str | None]
    build: Callable[[Problem], nn.Module]
    work: Callable[[Problem], Work]
    describe: Callable[[Problem, Device], str] | None = None
    runs: Callable[[Problem, Device], str] | None = None
    counted_by: str = ""

    @property
    def replays(self) -> bool:
        """Whether it replays CUDA graphs of its own, as its name says: a graph of torch.compile holds none,
        and what runs there is another implementation.
        """
        return self.name.endswith("_graph")
