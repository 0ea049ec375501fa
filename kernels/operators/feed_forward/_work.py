"""Work of a feed-forward layer, counted from the sources: operations, and bytes moved and kept."""

from __future__ import annotations

from dataclasses import dataclass

from ...activations.operator import ELEMENT_BYTES
from ...contract import Problem, Work

FLOPS = {"gelu": 36, "gelu_tanh": 36, "relu": 2, "silu": 15}  # of an element, both passes


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of what is between the products: passes over [N, F] in the problem's dtype, and what is kept.

    `dropout` adds to forward, backward and kept where the problem drops; `more_bytes` is kept of an element
    in addition.
    """

    forward: float = 2
    backward: float = 3
    kept: float = 2
    relu: float | None = None  # as `kept`, of relu
    dropout: tuple[float, float, float] = (0, 0, 0)
    more_bytes: float = 0
    products: int = 0  # made again
    launches: tuple[int, int] = (1, 2)  # forwards; backwards, with the bias gradient's sums

    def work(self, problem: Problem) -> Work:
        """The count for a problem."""
        rows, hidden, inner = problem["rows"], problem["hidden"], problem["inner"]
        training = problem["mode"] == "training"
        element, drops = ELEMENT_BYTES[problem["dtype"]], problem["dropout"] > 0 and training
        passes = self.forward + 2 + training * (self.backward + 4 + 2 * self.products)
        passes += drops * (self.dropout[0] + self.dropout[1])
        weights, ends = 2 * hidden * inner, 2 * rows * hidden
        moved = element * ((1 + 2 * training) * (weights + ends) + rows * inner * passes)
        tensors = self.kept if self.relu is None or problem["activation"] != "relu" else self.relu
        kept = rows * inner * (element * (tensors + drops * self.dropout[2]) + self.more_bytes)
        products = 2 + training * (4 + self.products)
        launches = 2 + self.launches[0] + training * (4 + self.products + self.launches[1] + problem["bias"])
        return Work(
            flops=rows * inner * (2 * hidden * products + FLOPS[problem["activation"]] * (1 + training) / 2),
            moved_bytes=moved,
            saved_bytes=training * (kept + element * rows * hidden),
            launches=launches,
            steps=3 + training * 4,
        )


work = Counts(relu=1).work
