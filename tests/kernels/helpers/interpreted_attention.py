"""Other calls of attention's Triton kernels than the gate's, in Triton's interpreter: run as a program.

Prints "all" when dropout, frozen tensors, strides, empty batches and NaN are as they should be.
"""

from __future__ import annotations

import json
import warnings

import interpreted  # noqa: F401 - chooses the interpreter
import pytest
import torch
import triton
import triton.language as tl

from kernel_selector.kernels import registry
from kernel_selector.kernels.operators.attention import fused
from kernel_selector.kernels.operators.attention._triton.pairs import kept, row_seeds

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 37, "kv_seq": 150, "head_dim": 12}


@triton.jit
def kept_kernel(seed_ptr, out_ptr, keys, share, BLOCK: tl.constexpr):
    """One row of what dropout keeps."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)[None, :]
    seeds = row_seeds(tl.load(seed_ptr), (row + tl.arange(0, 1)).to(tl.int64))[:, None]
    places = out_ptr + row * keys + columns
    tl.store(places, kept(seeds, columns, share).to(tl.int8), columns < keys)


def given(**more):
    """A problem's module and inputs."""
    problem = registry.operator("attention").problem({**SIZES, **more})
    arguments = registry.operator("attention").make_inputs(problem, "cpu", 0).args
    arguments = [one.requires_grad_() if one.is_floating_point() else one for one in arguments]
    return fused.build(problem), registry.reference(problem), arguments


def dropout_is_replayed() -> None:
    """out and gradients are those of the weights that the seed keeps, in tiles of either direction."""
    share = 0.4
    module, _, (q, k, v, mask, bias) = given(mask="padding", bias=True, dropout=share, causal=True)
    torch.manual_seed(5)
    out = module(q, k, v, mask, bias)
    torch.manual_seed(5)
    seed = torch.empty(1, dtype=torch.int64).random_()
    keep = torch.empty(2, 4, 37, 150, dtype=torch.int8)
    kept_kernel[(2 * 4 * 37,)](seed, keep, 150, share, BLOCK=256)
    assert abs(keep.float().mean() - 0.6) < 0.01
    s = q @ k.repeat_interleave(2, 1).mT / 12**0.5 + bias
    s = s.masked_fill(~(mask & torch.ones(37, 150, dtype=torch.bool).tril()), -torch.inf)
    expected = s.softmax(-1) * keep / (1 - share) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    weights = torch.randn_like(out)
    found, wanted = (torch.autograd.grad((one * weights).sum(), (q, k, v, bias)) for one in (out, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    module.dropout = 1.0
    assert (module(q, k, v, mask, bias) == 0).all()
    module.eval()
    assert torch.equal(module(q, k, v, mask, bias), module(q, k, v, mask, bias))


def other_forms() -> None:
    """Views of one packed projection, masks and gradients of any strides, frozen tensors, empty batches."""
    module, reference, (q, k, v, mask, bias) = given(kv_heads=4, kv_seq=37, mask="boolean", bias=True)
    packed = torch.randn(2, 37, 3, 4, 12, requires_grad=True)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    mask = mask.mT.contiguous().mT
    out = module(q, k, v, mask, bias)
    assert out.stride() == torch.empty(2, 37, 4, 12).transpose(1, 2).stride()
    above = torch.randn(4, 12, 2, 37).permute(2, 0, 3, 1)
    found = torch.autograd.grad(out, (packed, bias), above)
    wanted = torch.autograd.grad(reference(q, k, v, mask, bias), (packed, bias), above)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    frozen = [one.detach() for one in (q, k, v)]
    out = module(*frozen, mask, bias)
    (alone,) = torch.autograd.grad(out, (bias,), above)
    torch.testing.assert_close(alone, wanted[1], rtol=1e-3, atol=1e-4)
    empty = module(q[:0], k[:0], v[:0], mask[:0], bias)
    assert empty.shape == (0, 4, 37, 12)
    assert (torch.autograd.grad(empty.sum(), (bias,))[0] == 0).all()


def bad_values() -> None:
    """What is not finite stays in its row, as in torch; a second derivative raises."""
    module, _, (q, k, v) = given()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the interpreter's own, of NaN
        spoilt = q.clone()
        spoilt[0, 1, 2, 3] = float("nan")
        out = module(spoilt, k, v)
    assert out[0, 1, 2].isnan().all()
    assert out.isnan().sum() == 12
    (gradient,) = torch.autograd.grad(module(q, k, v).sum(), (q,), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dropout_is_replayed()
    other_forms()
    bad_values()
    print(json.dumps("all"))
