"""Rows of the comparison `linear`: problems, the figures asked of them, and who is timed.

Figures of a cell (none where a side has no time). "Ours" is the fastest of ours, "users" the fastest of
what users have without us, each in its faster form of launched by the host and replayed as a CUDA graph.

- `registered`: the default's time over that of the best of all, ours and users'; `registered_eager` and
  `registered_graph`: the same of what the host launches, and of what is replayed. The default is one of
  all: none of these is below 1.
- `graph`, `eager`: how many times as fast the best of ours is as the best of users', both as CUDA graphs,
  or both launched by the host; `best`: each in its faster form; `default`: the same of the default alone.
- `compiled`: torch.compile's time over ours.
- `cublas_share`: the default's time over that of the fastest generated kernel, which is the share that
  this has of cuBLAS's rate; `probed_share`: its operations a second over those of a large product by
  cuBLAS that is measured once a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.figures import Figures, Judged
from benchmarks.common.peers import is_peer
from benchmarks.common.rows import Case, Goal, Row, lane_of, with_values
from kernel_selector.kernels.contract import Problem

BF16 = {"dtype": "bfloat16"}
FP16 = {"dtype": "float16"}
MODES = ("training", "inference")
# cuBLAS on tensors that are laid out in another way; the rest of ours are generated kernels
LAYOUTS = ("column_major", "padded", "split")

COMPILED = ("torch_compile", "peer_max_autotune", "peer_reduce_overhead")

# rows, in_features, out_features of the layers of a training step: rows are batch times length
RNN = (
    (1, 256, 1024),
    (64, 512, 2048),
    (128, 1024, 4096),
    (2048, 64, 256),
    (6400, 512, 2048),
    (12800, 1024, 4096),
)
NMT = (
    (128, 1024, 1024),
    (4096, 512, 512),
    (12800, 512, 2048),
    (12800, 2048, 512),
    (25600, 1024, 1024),
    (3200, 1024, 32317),
)
BERT = (
    (8, 1024, 1024),
    (640, 1024, 30522),
    (4096, 1024, 30522),
    (4096, 1024, 1024),
    (4096, 1024, 4096),
    (4096, 4096, 1024),
    (16384, 1024, 3072),
    (65536, 1024, 1024),
    (65536, 768, 3072),
)
GPT2 = (
    (1024, 768, 2304),
    (1024, 768, 50257),
    (8192, 768, 3072),
    (8192, 3072, 768),
    (8192, 768, 50257),
    (16384, 1600, 6400),
    (65536, 64, 64),
)
HALF = ((128, 1024, 4096), (4096, 1024, 4096), (8192, 3072, 768), (640, 1024, 30522), (65536, 1024, 1024))
SKINNY_ROWS = (1, 4, 8, 16, 32, 64)
SKINNY_FEATURES = ((1024, 4096), (4096, 1024), (4096, 4096))
ODD = (
    (333, 1000, 777),
    (100, 513, 2049),
    (1001, 1001, 1001),
    (2047, 1023, 4095),
    (4096, 1001, 1003),
    (8192, 777, 333),
    (640, 1023, 30522),
    (512, 1024, 4095),
)


def _layers(*sizes: tuple[int, int, int], **more: object) -> Iterator[Case]:
    for rows, in_features, out_features in sizes:
        yield "linear", {"rows": rows, "in_features": in_features, "out_features": out_features, **more}


def _skinny() -> Iterator[Case]:
    for mode in MODES:
        for features in SKINNY_FEATURES:
            yield from _layers(*((rows, *features) for rows in SKINNY_ROWS), mode=mode)


def _odd() -> Iterator[Case]:
    for mode in MODES:
        yield from _layers(*ODD, mode=mode)


def _fused() -> Iterator[Case]:
    """The two halves of a transformer's feed-forward block, and what follows attention."""
    for rows in (512, 2048, 8192):
        yield from _layers((rows, 1024, 4096), activation="gelu", dropout=0.1)
        yield from _layers((rows, 1024, 4096), activation="gelu", dropout=0.1, residual=True)
        yield from _layers((rows, 4096, 1024), dropout=0.1, residual=True)
        yield from _layers((rows, 1024, 1024), residual=True)


# of attention (scores and what they weigh), of the gates and directions of recurrent layers, and odd ones
BATCHED = (
    {"batch": 128, "rows": 512, "inner": 64, "columns": 512, "transposed": True},
    {"batch": 128, "rows": 512, "inner": 512, "columns": 64},
    {"batch": 16, "rows": 2048, "inner": 128, "columns": 2048, "transposed": True},
    {"batch": 4, "rows": 64, "inner": 512, "columns": 512},
    {"batch": 8, "rows": 64, "inner": 1024, "columns": 4096},
    {"batch": 2, "rows": 2048, "inner": 1024, "columns": 4096},
    {"batch": 100, "rows": 33, "inner": 65, "columns": 129},
    {"batch": 96, "rows": 577, "inner": 80, "columns": 577, "transposed": True},
)

ROWS = (
    Row(
        name="layers",
        title="linear layers of RNN, NMT, BERT-large and GPT-2 training: 1 to 65536 rows, 64 to 50257 wide",
        cases=(
            *with_values(_layers(*RNN, *NMT, *BERT, *GPT2), **BF16),
            *with_values(_layers(*HALF), **FP16),
        ),
        goals=(Goal("registered", 1.05, 1.2),),
        also=("torch_compile",),
    ),
    Row(
        name="odd_and_skinny",
        title="linear layers of 1 to 64 rows, and of sizes that are no multiples of 8, bf16",
        cases=with_values((*_skinny(), *_odd()), **BF16),
        goals=(Goal("registered", 1.3, 2),),
        also=("torch_compile",),
    ),
    Row(
        name="skinny",
        title="of these: 1 to 64 rows of 1024 and 4096 features",
        cases=with_values(_skinny(), **BF16),
        goals=(),
    ),
    Row(
        name="odd",
        title="of these: sizes that are no multiples of 8",
        cases=with_values(_odd(), **BF16),
        goals=(),
    ),
    Row(
        name="peers",
        title="some of these beside torch.compile in each of its modes too",
        cases=with_values(
            (
                *_layers((1, 4096, 4096), (64, 1024, 4096), *ODD[:1], (4096, 1024, 4096), (8192, 3072, 768)),
                *_layers((2048, 1024, 4096), activation="gelu", dropout=0.1),
            ),
            **BF16,
        ),
        goals=(),
        peers=True,
        also=COMPILED,
        careful=True,
    ),
    Row(
        name="fused",
        title="linear layers with bias, GELU, dropout 0.1 and a residual: 512 to 8192 rows, bf16, training",
        cases=with_values(_fused(), **BF16),
        goals=(Goal("default", 1.2, 1.5), Goal("compiled", 1.0, 1.15)),
        also=("torch_compile",),
        careful=True,
    ),
    Row(
        name="square",
        title="square products of 2048 to 8192, forwards, bf16 and fp16",
        cases=tuple(
            case
            for dtype in (BF16, FP16)
            for case in with_values(
                _layers(*((size, size, size) for size in (2048, 4096, 8192)), bias=False, mode="inference"),
                **dtype,
            )
        ),
        goals=(Goal("cublas_share", 0.90, 1.00),),
        careful=True,
    ),
    Row(
        name="float32",
        title="linear layers in float32, as exact as cuBLAS's: few rows, a layer of BERT, odd sizes",
        cases=(*_layers((8, 1024, 4096), (64, 4096, 1024), (2048, 1024, 4096), *ODD[:1]),),
        goals=(),
    ),
    Row(
        name="batched",
        title="batched products of attention, recurrent layers and odd sizes, training and inference, bf16",
        cases=(
            *with_values(
                (("batched_matmul", {**given, "mode": mode}) for given in BATCHED for mode in MODES), **BF16
            ),
            ("batched_matmul", BATCHED[0]),  # in float32
        ),
        goals=(Goal("registered", 1.0, 1.2),),
    ),
)


def of_users(name: str) -> bool:
    """Whether users have this implementation without us."""
    return name.startswith("torch_") or is_peer(name)


def generated(name: str) -> bool:
    """Whether an implementation's products are by generated kernels, and not cuBLAS's."""
    return not of_users(name) and name not in LAYOUTS


def _figures(judged: Judged) -> dict[str, Any]:
    return {
        "registered": judged.over("default", "all"),
        "registered_eager": judged.over("default", "all", "launched"),
        "registered_graph": judged.over("default", "all", "replayed"),
        "graph": judged.over("users", "ours", "replayed"),
        "eager": judged.over("users", "ours", "launched"),
        "default": judged.over("default", "ours"),
        "best": judged.over("users", "ours"),
        "compiled": judged.over("torch_compile", "ours"),
        "cublas_share": judged.over("default", generated),
        **judged.sides(),
        "generated": judged.fastest(generated),
        "probed_share": judged.share("flops", "matmul_flops_per_s", generated),
    }


ALWAYS = (
    "registered", "registered_eager", "registered_graph", "default", "best", "graph", "eager", "compiled",
    "cublas_share", "probed_share",
)  # fmt: skip
FIGURES = Figures(of_users=of_users, table=_figures, always=ALWAYS)


def lane(problem: Problem) -> int:
    """The lane of a problem, by its largest tensor."""
    given = problem.as_dict
    inner, columns = ("in_features", "out_features") if "in_features" in given else ("inner", "columns")
    widest = max(problem[inner], problem[columns])
    return lane_of(given.get("batch", 1) * problem["rows"] * widest)
