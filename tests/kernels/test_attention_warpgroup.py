"""The attention kernels for Hopper without a GPU: what they refuse and are given, and that all compile."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernel_selector.kernels import devices, registry
from kernel_selector.kernels.attention import _warpgroup
from kernel_selector.kernels.attention._module import Call
from kernel_selector.kernels.recurrent.persistent import nvrtc

H200 = devices.known_device("h200")
SIZES = {"batch": 2, "heads": 4, "seq": 200, "head_dim": 64, "dtype": "bfloat16"}
PASSES = sorted(_warpgroup.SOURCES)


def refusal(device=H200, **more):
    problem = registry.operator("attention").problem({**SIZES, **more})
    return registry.implementation("attention", "warpgroup").unsupported(problem, device)


@pytest.mark.parametrize(
    "more",
    [{}, {"dtype": "float16", "causal": True}, {"kv_heads": 2, "kv_seq": 33}, {"dropout": 0.1}, {"seq": 1}],
)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_takes(more, mode):
    assert refusal(**more, mode=mode) is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"dtype": "float32"}, "16-bit"),
        ({"head_dim": 128}, "64 features"),
        ({"mask": "padding"}, "no masks"),
        ({"bias": True}, "no bias"),
        ({"return_weights": True}, "never has the weights"),
        ({"batch": 2**20, "heads": 65536}, "too many"),
        ({"device": devices.known_device("a100 40gb")}, "9.0"),
    ],
)
def test_says_what_it_does_not_do(more, reason):
    assert reason in refusal(**more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_SELECTOR_CACHE", str(tmp_path))
    nvrtc.compiled.cache_clear()
    yield tmp_path
    nvrtc.compiled.cache_clear()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "causal", "threshold"), [*product(PASSES, (False, True), (0, 410))])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiles(name, causal, threshold, dtype):
    given = _warpgroup.defines(name, dtype, causal=causal, threshold=threshold)
    code = nvrtc.compiled(_warpgroup.SOURCES[name], "90a", given)
    assert code.startswith(b"\x7fELF")
    assert b"attention" in code


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", PASSES)
def test_arguments_that_host_and_kernel_lay_out_differently_do_not_compile(name):
    given = dict(_warpgroup.defines(name, torch.bfloat16, causal=False, threshold=0), ARGUMENT_BYTES=64)
    with pytest.raises(RuntimeError, match="the host packs it"):
        nvrtc.compiled(_warpgroup.SOURCES[name], "90a", tuple(given.items()))


def test_the_version_covers_its_cuda_sources():
    files = {path.name for path in registry._closure(registry.ROOT / "attention" / "warpgroup.py")}
    sources = {path.name for path in _warpgroup.SOURCES.values()}
    assert {*sources, "warpgroup.cuh", "_warpgroup.py", "nvrtc.py"} <= files


def test_each_row_has_its_warpgroup():
    assert _warpgroup.blocks("forward", (2, 4, 2, 200, 500)) == 2 * 4 * 2
    assert _warpgroup.blocks("queries", (2, 4, 2, 200, 500)) == 2 * 4 * 2
    assert _warpgroup.blocks("keys", (2, 4, 2, 200, 500)) == 2 * 2 * 8
    assert _warpgroup.row_figures(torch.empty(2, 4, 200, 64)).shape == (2, 4, 256)


def of(dropout):
    q = torch.empty(1, 1, 8, 64)
    return Call(q, q, q, None, None, False, dropout, False)


@pytest.mark.parametrize(
    ("share", "threshold", "factor"),
    [(0, 0, 1), (0.5, 2048, 1), (0.1, 410, 5 / 9), (1e-9, 1, 0.5), (1, 4095, 0)],
)
def test_shares_are_rounded_and_never_to_none(share, threshold, factor):
    assert _warpgroup._threshold(of(share)) == threshold
    assert _warpgroup._factor(share) == pytest.approx(factor)
    given = dict(_warpgroup.defines("keys", torch.float16, causal=False, threshold=threshold))
    assert threshold == 0 or threshold >> given["LOWEST"] & 1


def test_copies_only_what_the_copy_engine_cannot_read():
    whole = torch.zeros(2, 5, 3 * 4 * 64, dtype=torch.bfloat16)
    q = whole.chunk(3, -1)[1].view(2, 5, 4, 64).transpose(1, 2)
    assert _warpgroup.aligned(q) is q
    apart = torch.zeros(2, 4, 5, 65, dtype=torch.bfloat16)[..., :64]
    turned = torch.zeros(2, 4, 64, 5, dtype=torch.bfloat16).transpose(2, 3)
    shifted = torch.zeros(2 * 4 * 5 * 64 + 1, dtype=torch.bfloat16)[1:].view(2, 4, 5, 64)
    expanded = torch.zeros(2, 1, 5, 64, dtype=torch.bfloat16).expand(2, 4, 5, 64)
    for tensor in (apart, turned, shifted, expanded):
        found = _warpgroup.aligned(tensor)
        assert found.is_contiguous()
        assert torch.equal(found, tensor)
