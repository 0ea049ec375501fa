"""Rows of the comparison `sublayers`: problems, the figures asked of them, and who is timed.

Figures of a cell (none where a side has no time). "Ours" is the fastest of ours, "users" the fastest of
what users have without us, each in its faster form of launched by the host and replayed as a CUDA graph.

- `graph`, `eager`: how many times as fast the best of ours is as the best of users', both as CUDA graphs,
  or both launched by the host; `best`: each in its faster form; `default`: the same of the default alone.
- `registered`: the default's time over that of the best of all, ours and users'; where the default has
  none, because it is wrong or refuses, the users' best stands in for it.
- `copy_share`: the least bytes that have to be moved, over ours' time, over the rate of a large copy.
- `copy_alike`: the time of one copy of as many bytes, timed alike, over ours.
- `held`, `peak`: how many times as many bytes the default holds for backward, and takes at its peak, as
  the fastest of ours; `held_users`, `peak_users`: the same of the thriftiest that users have.
- `lightest`: who of ours holds least (in inference: has the least peak); `lightest_held`,
  `lightest_peak`: the default's bytes over its own; `lightest_time`: its time over the best of all.
- `prices`: for each that takes fewer bytes than the fastest of all, the milliseconds that each saved MiB
  costs, of `held` and of `peak` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from benchmarks.common.figures import Figures, Judged, quotient, rounded
from benchmarks.common.peers import LOSS, PEERS, is_peer
from benchmarks.common.rows import Case, Cell, Goal, Row, grid, lane_of, shrunk, with_values
from kernel_selector.kernels.contract import Problem

BF16 = {"dtype": "bfloat16"}
ROW_COUNTS = (4096, 16384, 65536)
HIDDENS = (768, 1024, 4096, 8192)
# a compiler takes seconds for each shape: these are timed in the rows alone that ask for them
COMPILED = ("torch_compile", "torch_compile_sum", "flex")
# what users have without us, beside whatever is named after torch and after SDPA's backends
USERS = ("eager", "flex", "written_out")

# scores of a problem, at most: in float64 the reference keeps several tensors of 4 GiB then
MOST_SCORES = 2**29
# hyperparameters whose product is the elements of a problem's largest tensor; else rows and hidden
LARGEST: Mapping[str, tuple[str, ...]] = {
    "attention": ("batch", "heads", "seq", "kv_seq"),
    "additive_attention": ("batch", "target", "source", "hidden"),
    "linear_cross_entropy": ("rows", "vocabulary"),
    "feed_forward": ("rows", "inner"),
    **dict.fromkeys(("gelu", "relu", "silu"), ("elements",)),
}
MIB = 2**20


def _norms() -> Iterator[Case]:
    """Layer norm, GELU and dropout-add-norm over the same tensors, training and inference."""
    for mode in ("training", "inference"):
        for operator in ("layer_norm", "dropout_add_norm"):
            yield from grid((operator,), rows=ROW_COUNTS, hidden=HIDDENS, mode=(mode,))
        for elements in dict.fromkeys(rows * hidden for rows in ROW_COUNTS for hidden in HIDDENS):
            yield "gelu", {"elements": elements, "mode": mode}


def _attention() -> Iterator[Case]:
    """Head dimensions 64 and 128 by sequences of 128 to 8192, one of them and as many as fit; 46 problems.

    Of one sequence 16 heads, of many as many heads and sequences as MOST_SCORES leaves, 8 to 32 and 64
    at most. Each of these shapes is measured plain, causal, and with a boolean mask; the last two drop a
    tenth at head dimension 64, as BERT does, and nothing at 128. The larger shapes of dimension 128
    are measured causal in inference too.
    """
    for seq in (128, 512, 2048, 8192):
        room = MOST_SCORES // seq**2
        many = next((b, h) for b in (64, 8, 1) for h in (32, 16, 8) if b * h <= room)
        shapes = dict.fromkeys([(1, 16), many] if room >= 16 else [many])
        for head_dim, (batch, heads) in ((head_dim, shape) for head_dim in (64, 128) for shape in shapes):
            shape = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim}
            dropout = {"dropout": 0.1} if head_dim == 64 else {}
            yield "attention", shape
            yield "attention", {**shape, "causal": True, **dropout}
            yield "attention", {**shape, "mask": "boolean", **dropout}
            if head_dim == 128 and (batch, heads) == many:
                yield "attention", {**shape, "causal": True, "mode": "inference"}


BERT = {"batch": 8, "heads": 16, "seq": 512, "head_dim": 64}
ODD: tuple[Mapping[str, object], ...] = (
    {**BERT, "seq": 704, "mask": "boolean"},  # where cuDNN's backward gives NaN
    {**BERT, "seq": 577, "head_dim": 80},  # ViT-H
    {**BERT, "bias": True},  # T5, AlphaFold
    {**BERT, "return_weights": True},
    {**BERT, "mask": "padding", "dropout": 0.1},
    {**BERT, "causal": True, "mask": "boolean"},
    {"batch": 1, "heads": 32, "kv_heads": 8, "seq": 2048, "head_dim": 128, "causal": True},
    {**BERT, "dtype": "float32"},
)
TRANSLATION = {"batch": 128, "target": 100, "source": 100, "hidden": 512}

ROWS = (
    Row(
        name="norms_bandwidth",
        title="layer norm, dropout-add-norm, GELU: 4096 to 65536 rows, hidden 768 to 8192, bf16",
        cases=with_values(_norms(), **BF16),
        goals=(Goal("copy_share", 0.80, 0.92), Goal("best", 1.0, 1.2)),
        also=COMPILED,
    ),
    Row(
        name="attention",
        title="attention: head dimension 64 and 128, seq 128 to 8192, plain, causal and masked, bf16",
        cases=with_values(_attention(), **BF16),
        goals=(Goal("registered", 1.0, 1.1),),
    ),
    Row(
        name="attention_odd",
        title="attention where torch's fused kernels refuse or fail: odd sizes, bias, weights, groups, fp32",
        cases=tuple(("attention", {**BF16, **given}) for given in ODD),
        goals=(Goal("registered", 1.0, 1.1),),
        also=COMPILED,
    ),
    Row(
        name="additive",
        title="additive attention: batch 128, target 100, source 100, hidden 512, bf16",
        cases=(("additive_attention", {**TRANSLATION, **BF16}),),
        goals=(
            Goal("peak", 20, 50),
            Goal("peak_users", 2, 5),
            Goal("default", 3, 8),
            Goal("best", 1.3, 2),
        ),
        also=COMPILED,
        careful=True,
    ),
    Row(
        name="additive_more",
        title="the same in float32, of one decoder step, with a layer norm inside",
        cases=tuple(
            ("additive_attention", {**TRANSLATION, **BF16, **given})
            for given in ({"dtype": "float32"}, {"target": 1}, {"layer_norm": True})
        ),
        goals=(Goal("best", 1.0, 2),),
        also=COMPILED,
        careful=True,
    ),
    Row(
        name="loss",
        title="linear layer with cross entropy: 8192 rows, hidden 1024, vocabulary 30522 and 128256, bf16",
        cases=with_values(
            grid(
                ("linear_cross_entropy",),
                rows=(8192,),
                hidden=(1024,),
                vocabulary=(30522, 128256),
                labelled=(1.0, 0.15),
            ),
            **BF16,
        ),
        goals=(Goal("peak", 4, 10), Goal("default", 1.0, 1.3)),
        also=COMPILED,
        careful=True,
    ),
    Row(
        name="feed_forward",
        title="feed-forward block: 2048 to 32768 rows, hidden 1024, inner 4096, dropout 0.1, bf16",
        cases=with_values(
            grid(
                ("feed_forward",),
                rows=(2048, 8192, 32768),
                hidden=(1024,),
                inner=(4096,),
                activation=("gelu", "relu", "silu"),
            ),
            dropout=0.1,
            **BF16,
        ),
        goals=(Goal("best", 0.99, 1.05), Goal("lightest_held", 1.3, 2)),
        also=COMPILED,
        careful=True,
    ),
    Row(
        name="peers",
        title="some of these, and RMS norm, beside torch.compile in each of its modes, losses without logits "
        "and Liger's kernels too, bf16",
        cases=with_values(
            (
                *grid(("layer_norm", "rms_norm", "dropout_add_norm"), rows=(16384,), hidden=(1024, 4096)),
                ("gelu", {"elements": 16384 * 4096}),
                ("attention", {**BERT, "causal": True}),
                ("feed_forward", {"rows": 8192, "hidden": 1024, "inner": 4096, "dropout": 0.1}),
                *grid((LOSS,), rows=(8192,), hidden=(1024,), vocabulary=(30522, 128256)),
            ),
            **BF16,
        ),
        goals=(),
        peers=True,
        also=(*COMPILED, *(peer.name for peer in PEERS)),
        careful=True,
    ),
)


def small(row: Row) -> Row:
    """The first and last case of each operator with sizes for a CPU: for trying out the program."""
    most: dict[str, int] = {
        **dict.fromkeys(("rows", "seq", "kv_seq", "source"), 5),
        **dict.fromkeys(("batch", "heads", "kv_heads", "target"), 2),
        **dict.fromkeys(("hidden", "head_dim"), 8),
        **dict.fromkeys(("inner", "vocabulary", "elements", "in_features", "out_features", "columns"), 32),
    }

    of_operator: dict[str, list[Case]] = {}
    for operator, given in row.cases:
        of_operator.setdefault(operator, []).append(shrunk((operator, given), most))
    ends = [case for cases in of_operator.values() for case in (cases[0], cases[-1])]
    return replace(row, cases=tuple(ends))


def timed(name: str, _on_cpu: bool) -> bool:
    """Whether an implementation is timed on every problem."""
    return name not in COMPILED and not is_peer(name)


def of_users(name: str) -> bool:
    """Whether users have this implementation without us."""
    return name.startswith(("torch_", "sdpa_")) or name in USERS or is_peer(name)


def _figures(judged: Judged) -> dict[str, Any]:
    ours = judged.fastest("ours")
    training = judged.cell["problem"]["mode"] == "training"
    lightest = judged.thriftiest("ours", "held" if training else "peak") if ours else None

    def least(measure: str) -> int | None:
        return judged.memory(judged.thriftiest("users", measure), measure)

    return {
        "graph": judged.over("users", "ours", "replayed"),
        "eager": judged.over("users", "ours", "launched"),
        "default": judged.over("default", "ours"),
        "best": judged.over("users", "ours"),
        "registered": judged.over("default", "all") or judged.over("users", "all"),
        **judged.sides(),
        "copy_share": judged.share("moved_bytes", "copy_bytes_per_s", "ours"),
        "copy_alike": quotient(judged.cell.get("copy_ms"), judged.ms("ours")),
        "held": judged.saved(ours, "held"),
        "held_users": quotient(least("held"), judged.memory(ours, "held")),
        "peak": judged.saved(ours, "peak"),
        "peak_users": quotient(least("peak"), judged.memory(ours, "peak")),
        "lightest": lightest,
        "lightest_held": judged.saved(lightest, "held"),
        "lightest_peak": judged.saved(lightest, "peak"),
        "lightest_time": judged.over(lightest, "all"),
        "prices": _prices(judged),
    }


def _prices(judged: Judged) -> dict[str, dict[str, float]] | None:
    """Milliseconds for each MiB that a candidate saves against the fastest, by measure and name."""
    best = judged.best("all")
    if best is None:
        return None
    found: dict[str, dict[str, float]] = {"held": {}, "peak": {}}
    for measure, name in product(found, judged.cell["candidates"]):
        ms, size, most = judged.ms(name), judged.memory(name, measure), judged.memory(best[1], measure)
        if ms and most and size and size < most:
            found[measure][name] = rounded((ms - best[0]) / ((most - size) / MIB))
    return found


ALWAYS = ("graph", "eager", "best", "copy_share", "copy_alike", "registered", "held", "peak", "lightest_held")
FIGURES = Figures(of_users=of_users, table=_figures, always=ALWAYS)


def prepared(cell: Cell) -> bool:
    """Whether to fill caches with a problem: not with a large one of which nothing is made for its shape."""
    return not lane(cell.problem) or bool(set(COMPILED).intersection(cell.implementations))


def lane(problem: Problem) -> int:
    """The lane of a problem, by its largest tensor."""
    sizes = (problem.as_dict.get(name) for name in LARGEST.get(problem.operator, ("rows", "hidden")))
    return lane_of(prod(size for size in sizes if isinstance(size, int)))
