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

FORMS = {
    "layers": ("1", "1", "2"),
    "bidirectional": ("false", "false", "false", "true"),
    "batch_first": ("false", "true"),
    "packed": ("false", "false", "false", "false", "false", "true"),
    "dropout": ("0.0", "0.0", "0.2"),
    "mode": ("training", "inference"),
}
SPACES = {
    "cpu": Space(
        sizes={"hidden": (8, 512), "batch": (1, 64), "seq": (1, 64)},
        sometimes={"input": (1, 512)},
        values=FORMS,
        max_flops=3e9,
    ),
    "cuda": Space(
        sizes={"hidden": (16, 2048), "batch": (1, 512), "seq": (1, 256)},
        sometimes={"input": (1, 2048)},
        values={**FORMS, "dtype": ("float32", "float16", "bfloat16")},
        max_flops=2e11,
    ),
}
