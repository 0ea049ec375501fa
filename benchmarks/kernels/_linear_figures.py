"""From stored times to figures of matrix products: of one cell, and of a row of cells.

Figures of a cell (none where a side has no time). "Ours" is the fastest of ours, "users" the fastest of
what users have without us, each in its faster form of launched by the host and replayed as a CUDA graph.

- `registered`: the default's time over that of the best of all, ours and users'; `registered_eager` and
  `registered_graph`: the same of what the host launches, and of what is replayed. The default is one of
  all: none of these is below 1.
- `eager`, `graph`: how many times as fast the best of ours is as the default, both launched by the host,
  or both replayed; `default`: each in its faster form; `best`: users' time over ours.
- `compiled`: torch.compile's time over ours.
- `cublas_share`: the default's time over that of the fastest generated kernel, which is the share that
  this has of cuBLAS's rate; `probed_share`: its operations a second over those of a large product by
  cuBLAS that is measured once a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import figures as _figures
from benchmarks.common.figures import StoredCell, anyone, best, only, ratio, rounded
from benchmarks.common.rows import Row
from benchmarks.kernels._linear_rows import generated, of_users

ALWAYS = (
    "registered", "registered_eager", "registered_graph", "default", "best", "eager", "graph", "compiled",
    "cublas_share", "probed_share",
)  # fmt: skip


def figures(cell: StoredCell) -> dict[str, Any]:
    """All figures of a cell, with the names of the best."""
    kinds, default = _figures.kinds(cell), only(cell["default"])
    forms = {"eager": kinds[:1], "graph": kinds[1:]}
    ours, users, everyone, torchs, written = (
        best(cell, kinds, wanted) for wanted in (_ours, of_users, anyone, default, generated)
    )
    found: dict[str, Any] = {
        "registered": ratio(torchs, everyone),
        **{
            f"registered_{form}": ratio(best(cell, kind, default), best(cell, kind, anyone))
            for form, kind in forms.items()
        },
        **{form: ratio(best(cell, kind, default), best(cell, kind, _ours)) for form, kind in forms.items()},
        "default": ratio(torchs, ours),
        "best": ratio(users, ours),
        "compiled": ratio(best(cell, kinds, only("torch_compile")), ours),
        "cublas_share": ratio(torchs, written),
        "ms": ours and rounded(ours[0]),
        "users_ms": users and rounded(users[0]),
        "default_ms": torchs and rounded(torchs[0]),
        "winner": ours and ours[1],
        "peer": users and users[1],
        "fastest": everyone and everyone[1],
        "generated": written and written[1],
    }
    if written and cell["matmul_flops_per_s"]:
        found["probed_share"] = rounded(cell["flops"] / (written[0] / 1e3) / cell["matmul_flops_per_s"])
    return {name: value for name, value in found.items() if value is not None}


def summary(row: Row, cells: Mapping[str, StoredCell]) -> dict[str, Any]:
    """The row's line: geometric means, the worst cell, and each goal with its verdict."""
    return _figures.summary(row, cells, ALWAYS)


def _ours(name: str) -> bool:
    return not of_users(name)
