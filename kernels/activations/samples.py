"""Problems of the operators gelu, relu and silu: small ones for tests, and where random ones are drawn from.

Apart from `operator`, whose source is part of the version of every implementation.
"""

from __future__ import annotations

from typing import Any

from ..contract import Space

EXAMPLES: tuple[dict[str, Any], ...] = (
    {"elements": 1},
    {"elements": 33},
    {"elements": 4096},
    {"elements": 100003},
)

SPACES = {
    "cpu": Space(
        sizes={"elements": (2**10, 2**22)},
        values={"mode": ("training", "inference")},
        max_flops=1e9,
    ),
    "cuda": Space(
        sizes={"elements": (2**16, 2**29)},
        values={
            "dtype": ("float32", "float16", "bfloat16"),
            "mode": ("training", "inference"),
        },
        max_flops=1e12,
    ),
}
