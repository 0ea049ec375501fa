"""A flash kernel of our own in Triton, with masks, biases and their gradients, grouped heads and any head.

What torch's kernels leave to one another or to its math backend is here in one place: a causal mask beside
another mask, a bias whose gradient is added up over the sequences on chip, padding that costs no work, rows
that may see no key, heads of any size up to 256, float32. Between forward and backward are out and one
float32 a query; dropout is replayed from a seed. Deterministic: no atomics.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.dropout import draw_seed
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from ...runtime.triton_launch import launch
from ._module import Attention, Call, Outputs, side_by_side
from ._triton.tiles import Tile, Tiles, most_features, padded, tiles_of
from ._work import ELEMENT_BYTES, Counts, row_sums, rows

LEAST_CAPABILITY = (8, 0)
LEAST_BLOCK = 16  # of any tile
MOST_PROGRAMS = 2**31  # of a launch


def work(problem: Problem) -> Work:
    """Seven products backwards, and two for a bias; no passes over pairs but those of the bias itself."""
    bias = bool(problem["bias"])
    return Counts(products=(2, 7 + 2 * bias), launches=(1, 2 + bias), kept=row_sums).work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, float64, large heads, and to return the weights."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16 and asynchronous copies"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    most = most_features(ELEMENT_BYTES[problem["dtype"]])
    if problem["head_dim"] > most:
        return f"has {problem['dtype']} tiles for heads of up to {most} features"
    if problem["return_weights"]:
        return "never has the weights in memory that are to be returned"
    keys = problem["batch"] * problem["kv_heads"] * problem["kv_seq"]
    tiles = problem["heads"] * problem["seq"] * problem["kv_seq"] // LEAST_BLOCK if problem["bias"] else 0
    if max(rows(problem), keys, tiles) // LEAST_BLOCK >= MOST_PROGRAMS:
        return "counts its programs with 31 bits, and these are too many"
    return None


def build(problem: Problem) -> nn.Module:
    """Attention by Triton kernels."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call."""
    return LAYER(call if not call.dropout else call._replace(seed=draw_seed(call.q.device)))[0]


def _memory(call: Call, needs: Call) -> Made:
    return Made((like(call.q),), (_row_sums(call),) if any(needs[:5]) else ())


def _row_sums(call: Call) -> Tensor:
    return call.q.new_empty(call.q.shape[:3], dtype=torch.float32)


def _forward(call: Call, needs: Call) -> Made:
    """out, and the row sums [B, H, S] for backward. Triton is imported here."""
    from ._triton.forward import attention_forward_kernel

    made = _memory(call, needs)
    out, sums, seed = made.outputs[0], made.kept[0] if made.kept else None, call.seed
    q, k, v = (side_by_side(one) for one in call[:3])
    mask, bias, mask_strides = _extras(call)
    tiles, by_pair = _tiles(q), mask is not None and mask.size(2) > 1
    tile = tiles.busy_out if by_pair or bias is not None or seed is not None else tiles.out
    launch(
        attention_forward_kernel, (-(-q.size(2) // tile.block_m) * q.size(0) * q.size(1),),
        q, k, v, out, mask, bias, seed, sums, *_strides(q, k, v, out), *mask_strides, *_scalars(call),
        **_options(call, tile),
    )  # fmt: skip
    return made


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
    """Gradients of q, k, v and the bias."""
    from ._triton.backward import attention_keys_kernel, attention_queries_kernel

    call, (out,), (sums,), (d_out,) = *saved, upstream
    if d_out is None:
        return {}
    seed = call.seed
    q, k, v, d_out = (side_by_side(one) for one in (*call[:3], d_out))
    mask, bias, mask_strides = _extras(call)
    batch, heads, seq, _ = q.shape
    groups, keys = k.shape[1:3]
    tiles = _tiles(q)
    delta, d_q, d_k, d_v, d_bias = torch.empty_like(sums), like(q), None, None, None
    extras, scalars = (mask, bias, seed, sums, delta), _scalars(call)
    inputs = _strides(q, k, v)
    ends = (*_strides(out, d_out), *mask_strides, *_strides(d_q))
    launch(
        attention_queries_kernel, (-(-seq // tiles.queries.block_m) * batch * heads,),
        q, k, v, out, d_out, *extras, d_q, *inputs, *ends, *scalars,
        **_options(call, tiles.queries),
    )  # fmt: skip
    if needs.k or needs.v:
        d_k, d_v = like(k), like(v)
        ends = (*_strides(d_out), *mask_strides, *_strides(d_k, d_v))
        launch(
            attention_keys_kernel, (-(-keys // tiles.keys.block_n) * batch * groups,),
            q, k, v, d_out, *extras, d_k, d_v, *inputs, *ends, *scalars,
            **_options(call, tiles.keys),
        )  # fmt: skip
    if needs.bias and call.bias is not None:
        d_bias = _bias_gradient(call, (q, k, v, d_out, *extras), mask_strides)
    return {"q": d_q, "k": d_k, "v": d_v, "bias": d_bias}


LAYER = TwoPassLayer(
    "attention",
    Call,
    Passes(_forward, _memory, _backward, ("q", "k", "v", "mask", "bias", "seed"), saves_outputs=1),
)


def _bias_gradient(
    call: Call, tensors: tuple[Tensor | None, ...], mask_strides: tuple[int, int, int]
) -> Tensor:
    """[H, S, K], of the kernel's first nine arguments."""
    from ._triton.bias import attention_bias_kernel

    q, k, v, d_out = cast(tuple[Tensor, ...], tensors[:4])
    d_bias = torch.empty((q.size(1), q.size(2), k.size(2)), dtype=q.dtype, device=q.device)
    tile = _tiles(q).bias
    launch(
        attention_bias_kernel,
        (-(-q.size(2) // tile.block_m) * -(-k.size(2) // tile.block_n) * q.size(1),),
        *tensors, d_bias, *_strides(q, k, v, d_out), *mask_strides, q.size(0), *_scalars(call),
        **_options(call, tile),
    )  # fmt: skip
    return d_bias


def like(tensor: Tensor) -> Tensor:
    """Memory for a result, in the order of memory of a tensor, so that views of it stay views."""
    result = torch.empty_like(tensor)
    if side_by_side(result) is result:
        return result
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _extras(call: Call) -> tuple[Tensor | None, Tensor | None, tuple[int, int, int]]:
    """The mask as bytes, the bias, and the mask's strides: 0 where all of a dimension have one."""
    bias = None if call.bias is None else call.bias.contiguous()
    if call.mask is None:
        return None, bias, (0, 0, 0)
    mask = side_by_side(call.mask).view(torch.uint8)
    b, h, s = (
        0 if size == 1 else stride for size, stride in zip(mask.shape[:3], mask.stride(), strict=False)
    )
    return mask, bias, (b, h, s)


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _scalars(call: Call) -> tuple[float, ...]:
    """The kernels' arguments from `heads` to `factor`."""
    heads, seq = call.q.shape[1:3]
    groups, keys = call.k.shape[1:3]
    factor = 1 / (1 - call.dropout) if call.dropout < 1 else 0.0
    return heads, heads // max(groups, 1), seq, keys, call.scale, call.dropout, factor


def _options(call: Call, tile: Tile) -> dict[str, Any]:
    features = call.q.size(3)
    return {
        "CAUSAL": call.causal,
        "ONE_ROW": call.mask is not None and call.mask.size(2) == 1,
        "D": features,
        "BLOCK_D": padded(features),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        # three products of TF32 for one of float32: as exact as torch's kernels, and faster than without
        "PRECISION": "tf32x3" if call.q.dtype == torch.float32 else "ieee",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _tiles(q: Tensor) -> Tiles:
    return tiles_of(q.size(3), q.element_size(), _capability(q.device))


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)
