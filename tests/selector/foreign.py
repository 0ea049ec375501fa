"""Made-up measurements of others: a matrix product with three implementations whose times follow tiles."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPERATOR, DEVICE = "grouped_gemm", "NVIDIA H200"
TILES = {"small": (16, 1.0), "medium": (64, 2.5), "large": (256, 4.0)}  # tile, work a tile and microsecond


def rows(problems: int = 40, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Lines as a file has them; `large` fails where the layout is nt and the problem small."""
    draw = random.Random(seed)
    for _ in range(problems):
        m, n = (2 ** draw.randint(3, 12) for _ in range(2))
        values = {"m": m, "n": n, "alpha": draw.choice((0.5, 1)), "layout": draw.choice(("nn", "nt"))}
        for name, (tile, speed) in TILES.items():
            line = {"operator": OPERATOR, "device": DEVICE, "hyperparameters": values, "implementation": name}
            if name == "large" and values["layout"] == "nt" and m < 64:
                yield line | {"status": "crashed", "reason": "illegal access"}
                continue
            tiles = math.ceil(m / tile) * math.ceil(n / tile)
            time_ms = 0.002 * tile**0.5 + tiles * tile**2 / speed / 1e7 * draw.uniform(0.99, 1.01)
            yield line | {"milliseconds": time_ms, "bytes": 4 * m * n, "status": "ok"}


def write(path: Path, lines: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
