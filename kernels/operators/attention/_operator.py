"""Problems of attention: inputs, small examples for tests, and where random problems are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...contract import Inputs, Problem, Space

if TYPE_CHECKING:
    import torch

LOW = -128.0  # logits of the low rows: far below log(1.2e-38) = -87.3, the least exponent of float32
ALLOWED = 0.75  # share of the pairs that a boolean mask allows

EXAMPLES: tuple[dict[str, Any], ...] = (
    {"batch": 1, "heads": 2, "seq": 1, "head_dim": 8},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 33, "head_dim": 12, "causal": True},
    {"batch": 3, "heads": 2, "seq": 17, "kv_seq": 29, "head_dim": 5, "mask": "boolean"},
    {"batch": 2, "heads": 2, "seq": 40, "head_dim": 16, "mask": "padding", "bias": True},
    {"batch": 2, "heads": 2, "seq": 31, "kv_seq": 19, "head_dim": 24, "causal": True, "mask": "boolean"},
    {"batch": 2, "heads": 4, "kv_heads": 1, "seq": 19, "head_dim": 7, "causal": True, "bias": True},
    {"batch": 2, "heads": 3, "seq": 21, "head_dim": 8, "mask": "padding", "return_weights": True},
    {"batch": 2, "heads": 2, "seq": 24, "head_dim": 16, "dropout": 0.5},
    {"batch": 1, "heads": 1, "seq": 192, "head_dim": 32, "mask": "boolean"},  # 192 is an odd multiple of 64
    {"batch": 2, "heads": 4, "seq": 96, "head_dim": 32},
)

# max_flops caps the pairs of a query and a key too, of which the float64 reference keeps several tensors
SPACES = {
    "cpu": Space(
        sizes={"batch": (1, 16), "seq": (16, 512)},
        sometimes={"kv_seq": (16, 512), "kv_heads": (1, 1)},
        values={
            "heads": ("4", "8", "12"),
            "head_dim": ("32", "64", "64", "80", "128"),
            "causal": ("false", "true"),
            "mask": ("none", "none", "boolean", "padding"),
            "bias": ("false", "false", "false", "true"),
            "mode": ("training", "inference"),
        },
        max_flops=1e10,
    ),
    "cuda": Space(
        sizes={"batch": (1, 64), "seq": (64, 8192)},
        sometimes={"kv_seq": (64, 8192), "kv_heads": (1, 1)},
        values={
            "heads": ("8", "12", "16", "32"),
            "head_dim": ("32", "64", "64", "80", "96", "128", "128", "256"),
            "causal": ("false", "true"),
            "mask": ("none", "none", "boolean", "padding"),
            "bias": ("false", "false", "false", "true"),
            "dropout": ("0.0", "0.0", "0.1"),
            "dtype": ("float32", "float16", "bfloat16", "bfloat16"),
            "mode": ("training", "inference"),
        },
        max_flops=2e11,
    ),
}


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """q, k and v of a normal distribution, then the mask and the bias where the problem has them.

    With a mask every fourth row of the second half is low, see `_lower`; with a boolean one, row S // 3 of
    the last sequence may see nothing. Lengths of a padding mask are drawn from 1 to K, one of them K.
    """
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)
    batch, heads, seq, keys = (problem[name] for name in ("batch", "heads", "seq", "kv_seq"))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    q = normal(batch, heads, seq, problem["head_dim"])
    k, v = (normal(batch, problem["kv_heads"], keys, problem["head_dim"]) for _ in range(2))
    bias = 0.5 * normal(heads, seq, keys) if problem["bias"] else None
    extras = []
    if problem["mask"] == "boolean":
        mask = torch.rand((batch, 1, seq, keys), generator=generator, device=device) < ALLOWED
        mask[-1, :, seq // 3] = seq < 3
        extras.append(mask)
    elif problem["mask"] == "padding":
        lengths = torch.randint(1, keys + 1, (batch,), generator=generator, device=device)
        lengths[0] = keys
        extras.append((torch.arange(keys, device=device) < lengths[:, None])[:, None, None])
    if problem["mask"] != "none" and seq >= 8:
        _lower(q, k, bias)
    if bias is not None:
        extras.append(bias.to(dtype))
    return Inputs((q.to(dtype), k.to(dtype), v.to(dtype), *extras), {})


def _lower(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Make the logits of a few rows LOW, in place, all of them: their weights are equal.

    Other rows have no part in the feature that does it. Nothing of that hangs on rounding, so that
    implementations which round logits to 16 bits are judged by the same figures as elsewhere.
    """
    rows = slice(q.size(2) // 2, None, 4)
    q[..., 0] = 0
    q[:, :, rows] = 0
    q[:, :, rows, 0] = LOW / 2
    k[..., 0] = 2 * q.size(3) ** 0.5
    if bias is not None:
        bias[:, rows] = 0
