"""CUDA kernels of our own for Hopper's warpgroup products; dropout costs a few instructions a weight.

For heads of 64 features of 16 bits without mask and bias, as in BERT and GPT-2. Tiles of 64 queries by 64
keys, whose weights never leave the registers of a warpgroup. The least time is that of the products on
tensor cores: 4 B H S K D operations forwards and 14 B H S K D backwards, half of it if causal; on an H200
all take two to three times as long, for the arithmetic of exponentials and dropout. Dropout is in units of
1 / 4096: for each share a kernel is compiled at its first use, which must not be under the capture of a
CUDA graph. Forward draws it from a seed and keeps a bit of each weight, which backward reads twice: half of
out's bytes at 512 keys, eight times as many at 8192, and half of that if causal. Drawing again would be a
tenth of its instructions. Backward has a kernel for dq and one for dk and dv, without atomics: equal calls
give equal bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, UnsupportedProblem, Work
from ...runtime.dropout import draw_seed
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ._module import Attention, Call, Outputs
from ._warpgroup.launch import HEAD_DIM, ROWS, Kept, aligned, backward, forward, kept_for_backward, out_for
from ._work import Counts, pairs, row_sums, visible_pairs

CAPABILITY = (9, 0)
MOST_BLOCKS = 2**31  # of a launch
ELEMENT_BITS = 16


def work(problem: Problem) -> Work:
    """Seven products backwards; where something drops, a bit of each pair is written and read twice."""
    bits = visible_pairs(problem) / pairs(problem) if problem["dropout"] else 0
    passes = (0, 3 * bits / ELEMENT_BITS)
    return Counts(products=(2, 7), launches=(1, 2), passes=passes, kept=_kept_bytes).work(problem)


def _kept_bytes(problem: Problem) -> int:
    return row_sums(problem) + (visible_pairs(problem) // 8 if problem["dropout"] else 0)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what is not Hopper, other heads and dtypes, masks, biases, and to return the weights."""
    if device.compute_capability != CAPABILITY:
        return "its matrix instructions are those of compute capability 9.0 alone"
    if problem["dtype"] not in ("float16", "bfloat16"):
        return f"multiplies 16-bit elements, not {problem['dtype']}"
    if problem["head_dim"] != HEAD_DIM:
        return f"is written for heads of {HEAD_DIM} features"
    if problem["mask"] != "none" or problem["bias"]:
        return "has no masks but the causal one, and no bias"
    if problem["return_weights"]:
        return "never has the weights in memory that are to be returned"
    tiles = max(problem["seq"], problem["kv_seq"]) // ROWS + 1
    if problem["batch"] * problem["heads"] * tiles >= MOST_BLOCKS:
        return "counts its blocks with 31 bits, and these are too many"
    return None


def build(problem: Problem) -> nn.Module:
    """Attention by CUDA kernels."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call. Raises UnsupportedProblem for tensors that the kernels would read wrongly."""
    _check(call)
    return LAYER(call if not call.dropout else call._replace(seed=draw_seed(call.q.device)))[0]


def _memory(call: Call, needs: Call) -> Made:
    return Made((out_for(call.q),), tuple(kept_for_backward(call)) if any(needs[:3]) else ())


def _forward(call: Call, needs: Call) -> Made:
    made = _memory(call, needs)
    forward(_ready(call), made.outputs[0], Kept(*made.kept))
    return made


def _backward(saved: Saved, upstream: Gradients, _needs: Call) -> dict[str, Tensor]:
    (d_out,) = upstream
    if d_out is None:
        return {}
    d_q, d_k, d_v = backward(_ready(saved.call), Kept(*saved.kept), saved.outputs[0], d_out)
    return {"q": d_q, "k": d_k, "v": d_v}


LAYER = TwoPassLayer(
    "attention_warpgroup",
    Call,
    Passes(_forward, _memory, _backward, ("q", "k", "v"), saves_outputs=1),
)


def _check(call: Call) -> None:
    q, k, v = call[:3]
    if q.dtype not in (torch.float16, torch.bfloat16) or q.size(3) != HEAD_DIM or 0 in (*q.shape, *k.shape):
        raise UnsupportedProblem(
            f"warpgroup attention computes heads of {HEAD_DIM} features in float16 and bfloat16, with a "
            f"query and a key at least, not {tuple(q.shape)} and {tuple(k.shape)} in {q.dtype}: convert "
            "the inputs, call it under torch.autocast, or build another implementation."
        )
    if not q.is_cuda or not q.device == k.device == v.device:
        raise UnsupportedProblem(
            f"warpgroup attention is for tensors of one NVIDIA GPU, not of {q.device}, {k.device} and "
            f"{v.device}: move them, or build another implementation."
        )


def _ready(call: Call) -> Call:
    q, k, v = (aligned(one) for one in call[:3])
    return call._replace(q=q, k=k, v=v)
