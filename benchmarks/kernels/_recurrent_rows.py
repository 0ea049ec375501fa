"""Rows of the comparison `recurrent`: problems, the figures asked of them, and who is timed.

Figures of a cell (none where a side has no time):

- `graph`: how many times as fast the best of ours is as the best of what users have, both as CUDA graphs:
  captured as a whole, or by the implementation itself; `eager`: both launched by the host, without those of
  ours that replay graphs; `unfused`: as the loop of one product a gate.
- `graph_float16`: as torch's module in float16 as a CUDA graph, where ours computes in bfloat16: cuDNN has
  kernels for float16 alone that are faster. It is measured right after the problem, with as many samples.
- `best`: the best of what users have over the best of ours, each in its faster form; `users_us`, `us`:
  their microseconds a time step; `forward_us`: those of our forward pass alone.
- `held`: how many times as many bytes torch's module holds for backward as the fastest implementation
  that recomputes; `held_time`: that one's time over the best of all.
- `over_limit`: `us` over the estimate of what the hardware allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.common.figures import Figures, Judged, Side, quotient
from benchmarks.common.peers import is_peer
from benchmarks.common.rows import Case, Goal, Row, grid, shrunk, with_values

OPERATORS = ("lstm", "gru", "rnn")
HIDDENS = (128, 256, 512, 1024, 1536, 2048)
BATCHES = (1, 4, 16, 64, 128, 256)

# what users have without us, beside the module of torch, which is timed everywhere, eager and as a graph
USERS = ("cell_loop", "unfused", "torch_compile")
# a dozen launches a step, where the fused loop has two: on a GPU a third of all the time to be last
LOOPS = ("hoisted", "hoisted_batch_minor", "recompute")


def _deepbench() -> Iterator[Case]:
    """The training shapes of DeepBench's rnn_problems.h: 53."""
    for hidden, batch in product((1760, 2048, 2560), (16, 32, 64, 128)):
        yield "rnn", {"hidden": hidden, "batch": batch, "seq": 50, "nonlinearity": "relu"}
    lstm = [
        *product((512, 1024, 2048, 4096), (16, 32, 64, 128), (25,)),
        *product((1536,), (8, 16, 32), (50,)),
        *product((256,), (16, 32, 64), (150,)),
    ]
    gru = [
        *product((2816, 2560, 2048, 1536), (32,), (1500, 750, 375, 187)),
        *product((1024,), (32, 64), (1500,)),
        (512, 32, 1),
    ]
    for operator, shapes in (("lstm", lstm), ("gru", gru)):
        for hidden, batch, seq in shapes:
            yield operator, {"hidden": hidden, "batch": batch, "seq": seq}


BF16, FP16 = {"dtype": "bfloat16"}, {"dtype": "float16"}
ANY_CELL = Goal("worst", 1.0, 1.5)
ROWS = (
    *(
        Row(
            name=name,
            title=f"{title} training step, 16-bit (bf16), hidden 128 to 2048, batch 1 to 256, T=50",
            cases=with_values(grid((name,), hidden=HIDDENS, batch=BATCHES), **BF16),
            goals=(Goal("eager", 3, 6), *extra, ANY_CELL),
        )
        for name, title, extra in (
            ("lstm", "LSTM", (Goal("graph", 1.6, 3),)),
            ("gru", "GRU", ()),
            ("rnn", "vanilla RNN", ()),
        )
    ),
    Row(
        name="persistent",
        title="LSTM where cuDNN has a persistent kernel: fp16, hidden 128 to 1024, batch 16 to 128, T=50",
        cases=with_values(grid(("lstm",), hidden=range(128, 1025, 128), batch=(16, 32, 64, 128)), **FP16),
        goals=(Goal("eager", 1.2, 2), Goal("graph", 1.2, 2)),
    ),
    *(
        Row(
            name=f"long-{short}",
            title=f"LSTM, hidden 768, batch 16, T=1024, {short}",
            cases=with_values(grid(("lstm",), hidden=(768,), batch=(16,), seq=(1024,)), **dtype),
            goals=(Goal("forward_us", 2.2, 1.5), Goal("us", 6.0, 4.0)),
            careful=True,
        )
        for short, dtype in (("bf16", BF16), ("fp16", FP16))
    ),
    Row(
        name="batch-4",
        title="batch 4 against the unfused loop, fp16, hidden 512 to 1152, T=50",
        cases=with_values(grid(OPERATORS, hidden=(512, 1024, 1152), batch=(4,)), **FP16),
        goals=(Goal("unfused", 30, 60),),
        also=("unfused",),
    ),
    Row(
        name="recompute",
        title="LSTM that recomputes: hidden 1024, batch 256, T=50, bf16",
        cases=with_values(grid(("lstm",), hidden=(1024,), batch=(256,)), **BF16),
        goals=(Goal("held", 3, 5), Goal("held_time", 1.15, 1.0)),
        also=("recompute",),
    ),
    Row(
        name="layers",
        title="LSTM, GRU and vanilla RNN, 4 layers, and bidirectional: hidden 512, batch 64, T=50, bf16",
        cases=(
            *with_values(grid(OPERATORS, hidden=(512,), batch=(64,), layers=(4,)), **BF16),
            *with_values(grid(OPERATORS, hidden=(512,), batch=(64,), bidirectional=(True,)), **BF16),
        ),
        goals=(Goal("eager", 3, 5),),
    ),
    *(
        Row(
            name=name,
            title=f"LSTM, GRU and vanilla RNN inference, batch 1, {title}, hidden 128 to 2048, bf16",
            cases=with_values(
                grid(OPERATORS, hidden=HIDDENS, batch=(1,), seq=(seq,)), mode="inference", **BF16
            ),
            goals=(Goal("eager", 3, 6),),
        )
        for name, title, seq in (("sequence", "T=50", 50), ("step", "one step", 1))
    ),
    Row(
        name="deepbench",
        title="DeepBench's 53 training shapes (LSTM, GRU, vanilla with ReLU), fp16",
        cases=with_values(_deepbench(), **FP16),
        goals=(ANY_CELL,),
    ),
    Row(
        name="peers",
        title="some of these beside torch.compile too: hidden 256 and 1024, batch 16 and 64, T=50, bf16",
        cases=with_values(grid(OPERATORS, hidden=(256, 1024), batch=(16, 64)), **BF16),
        goals=(),
        peers=True,
        also=("peer_compiled", "peer_reduce_overhead"),
    ),
)


def small(row: Row) -> Row:
    """The row's first and last case with sizes for a CPU: for trying out the program, not the machine."""
    most = {"hidden": 8, "batch": 2, "seq": 3, "layers": 2}
    ends = (row.cases[0], row.cases[-1])
    cases = ((operator, {**most, "layers": 1, **given}) for operator, given in ends)
    return replace(row, cases=tuple(shrunk(case, most) for case in cases))


def timed(name: str, on_cpu: bool) -> bool:
    """Whether an implementation is timed on every problem: on CPUs also those of many launches."""
    return not (name in USERS or is_peer(name) or _is_graph(name) or (name in LOOPS and not on_cpu))


def of_users(name: str) -> bool:
    """Whether users have this implementation without us."""
    return name.startswith("torch_") or name in USERS or is_peer(name)


def _figures(judged: Judged) -> dict[str, Any]:
    seq, limit = judged.cell["problem"]["seq"], judged.cell["limit_us"]

    def us(side: Side, form: str = "either") -> float | None:
        ms = judged.ms(side, form)
        return ms and 1e3 * ms / seq

    def recomputes(name: str) -> bool:
        return "recompute" in name

    return {
        "graph": judged.over("users", "ours", "replayed"),
        "eager": judged.over("users", "ours", "launched"),
        "graph_float16": quotient(_float16_ms(judged), judged.ms("ours", "replayed")),
        "best": judged.over("users", "ours"),
        "us": us("ours"),
        "users_us": us("users"),
        "forward_us": us("ours", "forward"),
        "unfused": judged.over("unfused", "ours", "launched"),
        "held": judged.saved(judged.fastest(recomputes), "held"),
        "held_time": judged.over(recomputes, "all"),
        "winner": judged.fastest("ours"),
        "peer": judged.fastest("users"),
        "over_limit": quotient(us("ours"), limit and limit["total"]),
    }


def _float16_ms(judged: Judged) -> float | None:
    times = judged.cell.get("float16", {}).get("times", {})
    found: float | None = times.get("graph_forward_backward", {}).get("p50_ms")
    return found


ALWAYS = ("graph", "eager", "graph_float16", "us", "over_limit")
FIGURES = Figures(of_users=of_users, table=_figures, always=ALWAYS)


def _is_graph(name: str) -> bool:
    """Whether this is torch's module as a graph: each is timed so anyway, without copies out of the graph."""
    return name.startswith("torch_") and name.endswith("_graph")
