"""Operations, bytes and launches of attention, by what is done with the weights [B, H, S, K]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...contract import Problem, Work

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def pairs(problem: Problem) -> int:
    """Queries times keys of all sequences and heads: elements of the weights."""
    return int(problem["batch"] * problem["heads"] * problem["seq"] * problem["kv_seq"])


def visible_pairs(problem: Problem) -> int:
    """Pairs that a causal mask leaves, else all; other masks are not known before they are drawn."""
    seq, keys = problem["seq"], problem["kv_seq"]
    if not problem["causal"]:
        return pairs(problem)
    short = min(seq, keys)
    per_head = short * (short + 1) // 2 + (seq - short) * keys
    return int(problem["batch"] * problem["heads"] * per_head)


def rows(problem: Problem) -> int:
    """Queries of all sequences and heads."""
    return int(problem["batch"] * problem["heads"] * problem["seq"])


def output_bytes(problem: Problem) -> int:
    """Bytes of out, and of the weights where they are returned."""
    returned = pairs(problem) if problem["return_weights"] else 0
    return int(rows(problem) * problem["head_dim"] + returned) * ELEMENT_BYTES[problem["dtype"]]


def key_elements(problem: Problem) -> int:
    """Elements of the keys, and of the values."""
    return int(problem["batch"] * problem["kv_heads"] * problem["kv_seq"] * problem["head_dim"])


def nothing(_problem: Problem) -> int:
    """Zero: bytes kept beside the outputs, where nothing is."""
    return 0


def row_sums(problem: Problem) -> int:
    """One float32 a query: the logarithm of the sum of exponentials, from which weights are rebuilt."""
    return 4 * rows(problem)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of one implementation, forwards and backwards.

    `products` are matrix products over all pairs, `passes` the times that a tensor of all pairs is read or
    written, in the problem's dtype; `kept` are bytes between forward and backward beside the outputs.
    `skips` says whether pairs that a causal mask forbids are left out.
    """

    products: tuple[float, float]
    launches: tuple[int, int]
    passes: tuple[float, float] = (0, 0)
    kept: Callable[[Problem], int] = nothing
    skips: bool = True

    def work(self, problem: Problem) -> Work:
        """The counts of a problem."""
        training = problem["mode"] == "training"
        element = ELEMENT_BYTES[problem["dtype"]]
        ends_at = 2 if training else 1
        counted = visible_pairs(problem) if self.skips else pairs(problem)
        # in and out: q, k, v and out once, and backwards these, four gradients and the row sums
        ends = 2 * (rows(problem) * problem["head_dim"] + key_elements(problem)) * (3 if training else 1)
        extras = problem["heads"] * problem["seq"] * problem["kv_seq"] * problem["bias"] * (1 + 2 * training)
        if problem["mask"] == "boolean":
            extras += problem["batch"] * problem["seq"] * problem["kv_seq"] * (1 + training) // element
        saved = self.kept(problem) + output_bytes(problem) if training else 0
        return Work(
            flops=2 * sum(self.products[:ends_at]) * counted * problem["head_dim"],
            moved_bytes=(ends + extras + sum(self.passes[:ends_at]) * pairs(problem)) * element,
            saved_bytes=saved,
            launches=sum(self.launches[:ends_at]),
            steps=sum(self.launches[:ends_at]),
        )


# q k^T and P v; backwards the gradients of both products' factors
LEAST = Counts(products=(2, 4), launches=(1, 1))
# one kernel forwards; backwards the weights are rebuilt, and the row sums of out times its gradient taken
FLASH = Counts(products=(2, 5), launches=(1, 3), kept=row_sums)
