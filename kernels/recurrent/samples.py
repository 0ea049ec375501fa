"""Problems of the operators lstm, gru and rnn: small ones for tests, and where random ones are drawn from.

Apart from `operator`, whose source is part of the version of every implementation.
"""

from __future__ import annotations

from typing import Any

from ..contract import Space

LAYERS: tuple[dict[str, Any], ...] = (
    {"hidden": 1, "batch": 1, "seq": 1},
    {"hidden": 33, "input": 7, "batch": 3, "seq": 5},
    {"hidden": 63, "input": 1, "batch": 1, "seq": 9, "bias": False},
    {"hidden": 5, "batch": 33, "seq": 4, "bidirectional": True},
    {"hidden": 8, "input": 3, "batch": 2, "seq": 6, "layers": 2, "bidirectional": True, "bias": False},
    {"hidden": 12, "input": 9, "batch": 3, "seq": 6, "layers": 2, "bidirectional": True, "packed": True},
    {"hidden": 9, "batch": 5, "seq": 7, "batch_first": True, "layers": 2, "dropout": 0.5},
)
LAST = {"hidden": 16, "batch": 4, "seq": 40, "layers": 3}
EXAMPLES = (*LAYERS, LAST)

SPACES = {
    "cpu": Space(
        sizes={"hidden": (8, 512), "batch": (1, 64), "seq": (1, 64)},
        sometimes={"input": (8, 512)},
        values={"layers": ("1", "1", "2"), "mode": ("training", "inference")},
        max_flops=3e9,
    ),
    "cuda": Space(
        sizes={"hidden": (32, 2048), "batch": (1, 256), "seq": (1, 128)},
        sometimes={"input": (32, 2048)},
        values={
            "layers": ("1", "1", "2"),
            "dtype": ("float32", "float16", "bfloat16"),
            "mode": ("training", "inference"),
        },
        max_flops=2e11,
    ),
}
