"""Generated matrix products in Triton's interpreter: kinds of schedules, layouts, calls, a planted fault.

Run as a program, because the interpreter is chosen when kernels are imported. The first argument is the
check; standard output a line of JSON for what was compared. Nothing is printed for what fails: it raises.
"""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial

import interpreted  # chooses the interpreter
import pytest
import torch
import triton
import triton.language as tl
from torch.nn.functional import dropout, gelu, linear
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.matmul import generated
from kernel_selector.kernels.matmul.backward import row_sums, through_epilogue
from kernel_selector.kernels.matmul.epilogue import ACTIVATIONS, BIAS, DROPOUT, KEEP, ON_LEFT, RESIDUAL, SCALE
from kernel_selector.kernels.matmul.functions import drawn
from kernel_selector.kernels.matmul.launch import Epilogue, matmul
from kernel_selector.kernels.matmul.schedule import parse

SCHEDULES = (
    "16x32x32 warps=4 stages=3",
    "32x16x16 warps=4 stages=3 split=4",
    "128x64x32 warps=4 stages=3",
    "32x32x32 warps=4 stages=3 persistent",
    "32x32x32 warps=4 stages=3 bulk persistent",
    "64x128x32 warps=4 stages=3 bulk",
    "64x128x32 warps=4 stages=3 bulk split=2",
)


def close(actual, expected, scale=1.0):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-4 * scale, atol=1e-4 * scale)


def schedules() -> None:
    """Each kind of schedule, with odd sizes and matrices in rows or by columns."""
    done = 0
    for text in SCHEDULES:
        one = parse(text)
        for m, n, k in ((1, 1, 1), (33, 17, 63), (70, 132, 40), (64, 64, 64)):
            for flipped in (False, True):
                a = torch.randn(k, m).t() if flipped else torch.randn(m, k)
                b = torch.randn(n, k).t() if flipped else torch.randn(k, n)
                if one.bulk and any(size % 4 for size in (m, n, k)):
                    continue
                bias, r, z = torch.randn(n), torch.randn(m, n), torch.full((m, n), torch.nan)
                steps = (BIAS, KEEP, ACTIVATIONS["gelu"], RESIDUAL)
                y = matmul(a, b, Epilogue(steps, (bias, z, r)), schedule=one)
                close(z, a @ b + bias)
                close(y, gelu(a @ b + bias) + r)
                done += 1
    print(json.dumps(["schedules", done]))


def layouts() -> None:
    """Strides of any kind, batches, prologues, scaling, and another dtype for the output."""
    x = torch.randn(40, 50)
    spread, repeated, backwards = torch.randn(80, 100)[::2, ::2], torch.randn(50, 1).expand(50, 7), x[:, 3:43]
    one = parse("16x16x16 warps=1 stages=2")
    close(matmul(x, repeated, schedule=one), x @ repeated)
    close(matmul(spread, spread.t(), schedule=one), spread @ spread.t())
    close(matmul(backwards, x, schedule=one), backwards @ x)
    for text in SCHEDULES[:4]:
        a, b = torch.randn(3, 20, 33), torch.randn(3, 18, 33).transpose(1, 2)
        close(matmul(a, b, schedule=parse(text)), a @ b)
        close(matmul(a.transpose(1, 2), a, schedule=parse(text)), a.transpose(1, 2) @ a)
    for text in SCHEDULES[:1] + SCHEDULES[4:]:
        a, b = torch.randn(20, 64), torch.randn(64, 32)
        scaled = Epilogue((SCALE,), (0.25,), (ON_LEFT["silu"],))
        close(matmul(a, b, scaled, schedule=parse(text)), torch.nn.functional.silu(a) @ b / 4)
        scaled = Epilogue((), (), (ON_LEFT["scale"],), (3.0,))
        a, b = a.bfloat16(), b.bfloat16()
        y = matmul(a, b, scaled, schedule=parse(text), dtype=torch.float32)
        close(y, (3 * a).double() @ b.double())
    print(json.dumps(["layouts", 1]))


def module(name, **given):
    """An implementation of linear and its problem's default with the same parameters."""
    problem = registry.operator("linear").problem({"rows": 6, "in_features": 24, "out_features": 20, **given})
    built = registry.implementation("linear", name).build(problem)
    plain = registry.implementation("linear", "torch_linear").build(problem)
    built.load_state_dict(plain.state_dict())
    return built, plain


def calls() -> None:
    """Other calls than the gate's: shapes, autocast, checkpoints, frozen parameters, what raises."""
    for name in ("scheduled", "scheduled_gradients", "split_k", "persistent", "skinny", "cublas_then_fused"):
        built, plain = module(name, activation="gelu", residual=True)
        x, r = torch.randn(3, 7, 24), torch.randn(3, 7, 20)  # more rows than the problem's, and three axes
        close(built(x, r), plain(x, r))
        scattered = torch.randn(24, 7, 6).permute(2, 1, 0)[::2]
        close(built(scattered, r), plain(scattered, r))
        built.bias = plain.bias = torch.nn.Parameter(torch.randn(40)[::2])
        close(built(x, r), plain(x, r))
        with torch.autocast("cpu", torch.bfloat16):
            narrow, wide = built(x, r.bfloat16()), built(x, r)
        assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
        close(wide, plain(x, r), 300)
        x.requires_grad_()
        y = checkpoint(built, x, r, use_reentrant=False)
        grads = torch.autograd.grad(y.square().sum(), [x, built.weight, built.bias])
        expected = torch.autograd.grad(plain(x, r).square().sum(), [x, plain.weight, plain.bias])
        for actual, wanted in zip(grads, expected, strict=True):
            close(actual, wanted, 10)
        (gx,) = torch.autograd.grad(built(x, r).square().sum(), x, create_graph=True)
        refused(gx.sum().backward, RuntimeError, "once_differentiable")
        assert built(torch.randn(0, 24), torch.randn(0, 20)).shape == (0, 20)
        refused(partial(built, torch.randn(2, 24)), TypeError, "needs a residual")
        refused(
            partial(built, torch.randn(2, 25), torch.randn(2, 20)),
            RuntimeError,
            "cannot be multiplied",
        )
        refused(
            partial(built, torch.randn(2, 24), torch.randn(20)),
            RuntimeError,
            "this implementation does not",
        )
        refused(partial(built, torch.randn(2, 24).double(), torch.randn(2, 20)), RuntimeError, "dtype")
        print(json.dumps(["calls", name]), flush=True)
    compiled = torch.compile(lambda x, r: built(x, r) * 2, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of itself
        close(compiled(x.detach(), r), 2 * plain(x, r))


def refused(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()


def drops() -> None:
    """Dropout: p = 0, 1 and between; replayed in backward; seeds; evaluation; what is no probability."""
    for name in ("scheduled", "split_k", "persistent", "cublas_then_fused"):
        built, plain = module(name, activation="relu", dropout=0.5, residual=True, rows=40)
        x, r = torch.randn(40, 24, requires_grad=True), torch.zeros(40, 20)
        for share in (0.0, 1.0):
            built.dropout = plain.dropout = share
            close(built(x, r), plain(x, r))
        built.dropout = 0.5
        torch.manual_seed(3)
        y = built(x, r)
        torch.manual_seed(3)
        assert torch.equal(y, built(x, r))
        assert not torch.equal(y, built(x, r))
        whole = torch.relu(linear(x, built.weight, built.bias))
        kept = y != 0
        close(y, torch.where(kept, 2 * whole, 0))
        assert 0.3 < kept[whole > 0].float().mean() < 0.7
        weights = torch.randn(40, 20)
        (gradient,) = torch.autograd.grad((y * weights).sum(), x)
        close(gradient, (2 * weights * kept * (whole > 0)) @ built.weight)
        close(built.eval()(x, r), plain.eval()(x, r))
        built, _ = module(name, dropout=0.5, rows=40)
        y = built(x)
        (gradient,) = torch.autograd.grad((y * weights).sum(), x)
        close(gradient, (2 * weights * (y != 0)) @ built.weight)
        built, _ = module(name, dropout=0.5, residual=True)
        built.dropout = 1.5
        refused(partial(dropout, x, 1.5), ValueError, "dropout probability has to be between 0 and 1")
        refused(partial(built, x, r), ValueError, "dropout probability has to be between 0 and 1")
        print(json.dumps(["drops", name]), flush=True)


def masks() -> None:
    """What is dropped follows from seed and place alone, whatever the schedule."""
    a, b, seed = torch.rand(140, 64) + 1, torch.rand(64, 264) + 1, torch.tensor([7])
    fused, found = Epilogue((DROPOUT,), (seed, 0.5, 2.0)), []
    for text in (*SCHEDULES, "128x256x64 warps=8 stages=3 bulk persistent"):
        y = matmul(a, b, fused, schedule=parse(text))
        close(y, torch.where(y != 0, 2 * (a @ b), 0))
        found.append(y != 0)
    assert all(torch.equal(one, found[0]) for one in found)
    print(json.dumps(["masks", float(found[0].float().mean())]))


@triton.jit
def drawn_kernel(bits_ptr, row_ptr, four_ptr, seed_ptr):
    """Both words of one row, four columns and seed."""
    first, second = drawn(tl.load(seed_ptr), tl.load(row_ptr), tl.load(four_ptr))
    tl.store(bits_ptr, first.to(tl.int64))
    tl.store(bits_ptr + 1, second.to(tl.int64))


def draws() -> None:
    """Dropout's bits are Random123's known answers of philox2x32 with 7 rounds."""
    for low, high, key, bits in (
        (0, 0, 0, [0x257A3673, 0xCD26BE2A]),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, [0xBEDBBE6B, 0xE4C770B3]),
    ):
        found = torch.empty(2, dtype=torch.int64)
        four, seed = torch.tensor([low], dtype=torch.int32), high << 32 | key
        for row, above in ((0, 0), (0x12345678, 0x12345678 << 32)):
            given = (seed ^ above) - ((seed ^ above) >> 63 << 64)
            drawn_kernel[(1,)](found, torch.tensor([row], dtype=torch.int32), four, torch.tensor([given]))
            assert found.tolist() == bits
    print(json.dumps(["draws"]))


def sums() -> None:
    """Sums of rows, by one launch and by several, of few columns and odd ones; and of a matrix on its way."""
    for m, n in ((1, 5), (64, 40), (300, 33), (700, 8), (3000, 65)):
        given = torch.randn(m, n)
        close(row_sums(given, torch.float32), given.sum(0), 10)
        narrow = row_sums(given.bfloat16(), torch.bfloat16)
        close(narrow, given.bfloat16().float().sum(0), 100)
        z = torch.randn(m, n)
        how = {"activation": "silu", "p": 0.0, "dtype": torch.float32, "for_bias": True}
        dz, parts = through_epilogue(given, z, None, **how)
        slope = torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z)))
        close(dz, given * slope)
        close(row_sums(parts, torch.float32), dz.sum(0), 10)
        print(json.dumps(["sums", m, n]), flush=True)


def fault() -> None:
    """The gate finds a kernel that leaves out the last step of the depth."""
    plain = generated.matmul_source

    def wrong(schedule, form):
        return (
            plain(schedule, form)
            .replace("blocks = tl.cdiv(K, ", "blocks = tl.maximum(tl.cdiv(K, ")
            .replace("\n    first = 0", " - 1, 1)\n    first = 0")
        )

    from kernel_selector.kernels.gate import Gate

    problem = registry.operator("linear").problem(rows=20, in_features=300, out_features=40)
    file = registry.implementation("linear", "scheduled")
    gate = Gate(problem, "cpu")
    assert gate.check(file.build(problem)).passed
    generated.matmul_source = wrong
    generated.matmul_kernel.cache_clear()
    from kernel_selector.kernels.matmul import launch

    launch._plan.cache_clear()
    result = gate.check(file.build(problem))
    assert not result.passed
    print(json.dumps(["fault", result.detail]))


if __name__ == "__main__":
    interpreted.round_to_nearest()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    {
        "schedules": schedules,
        "layouts": layouts,
        "calls": calls,
        "drops": drops,
        "masks": masks,
        "draws": draws,
        "sums": sums,
        "fault": fault,
    }[sys.argv[1]]()
