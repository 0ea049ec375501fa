"""The attention kernels for Hopper without a GPU: what they refuse and are given, and that all compile."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from kernel_selector.kernels import devices, registry
from kernel_selector.kernels.contract import UnsupportedProblem
from kernel_selector.kernels.operators.attention import warpgroup
from kernel_selector.kernels.operators.attention._module import Call
from kernel_selector.kernels.operators.attention._warpgroup import launch as _warpgroup
from kernel_selector.kernels.runtime import nvrtc

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


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize(("name", "causal", "threshold"), [*product(PASSES, (False, True), (0, 410))])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiles(name, causal, threshold, dtype):
    given = _warpgroup.defines(name, dtype, causal=causal, drops=threshold)
    code = nvrtc.compiled(_warpgroup.SOURCES[name], "90a", given)
    assert code.startswith(b"\x7fELF")
    assert b"attention" in code


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", PASSES)
def test_arguments_that_host_and_kernel_lay_out_differently_do_not_compile(name):
    given = dict(_warpgroup.defines(name, torch.bfloat16, causal=False, drops=0), ARGUMENT_BYTES=64)
    with pytest.raises(RuntimeError, match="the host packs it"):
        nvrtc.compiled(_warpgroup.SOURCES[name], "90a", tuple(given.items()))


def test_each_row_has_its_warpgroup():
    assert _warpgroup.blocks("forward", (2, 4, 2, 200, 500)) == 2 * 4 * 2
    assert _warpgroup.blocks("queries", (2, 4, 2, 200, 500)) == 2 * 4 * 2
    assert _warpgroup.blocks("keys", (2, 4, 2, 200, 500)) == 2 * 2 * 8
    assert _warpgroup.row_figures(torch.empty(2, 4, 200, 64)).shape == (2, 4, 256)


@pytest.mark.parametrize(
    ("seq", "keys", "causal", "tiles"),
    [
        (200, 500, False, 4 * 8),
        (200, 500, True, 1 + 2 + 3 + 4),
        (500, 200, True, 1 + 2 + 3 + 4 * 5),
        (1, 1, True, 1),
    ],
)
def test_a_bit_is_kept_of_each_weight_of_the_tiles_that_are_computed(seq, keys, causal, tiles):
    q, k = torch.empty(2, 4, seq, 64), torch.empty(2, 2, keys, 64)
    call = Call(q, k, k, None, None, causal, 0.1, False)
    kept = _warpgroup.kept_for_backward(call)
    assert kept.dropped.shape == (2, 4, tiles, 128)
    assert kept.dropped.dtype == torch.int32
    assert kept.sums.shape == (2, 4, _up(seq))
    assert _warpgroup.kept_for_backward(call._replace(dropout=0.0)).dropped is None


def _up(rows):
    return -(-rows // 64) * 64


def test_work_counts_the_bits_that_are_kept():
    def of(**more):
        problem = registry.operator("attention").problem({**SIZES, "seq": 512, "kv_seq": 512, **more})
        return registry.implementation("attention", "warpgroup").work(problem)

    plain, drops = of(), of(dropout=0.1)
    bits = 2 * 4 * 512 * 512 // 8
    assert drops.saved_bytes - plain.saved_bytes == bits
    assert drops.moved_bytes - plain.moved_bytes == 3 * bits
    halved = of(dropout=0.1, causal=True).saved_bytes - of(causal=True).saved_bytes
    assert bits / 2 <= halved < bits / 2 * 1.01
    alone = {"mode": "inference"}
    assert of(dropout=0.1, **alone).saved_bytes == 0
    assert of(dropout=0.1, **alone).moved_bytes == of(**alone).moved_bytes


@pytest.mark.parametrize(
    ("share", "threshold"), [(0, 0), (0.5, 2048), (0.1, 410), (1e-9, 1), (0.99999, 4095), (1, 4095)]
)
def test_shares_are_rounded_and_what_is_kept_is_scaled_by_what_is_dropped(share, threshold):
    assert _warpgroup.threshold(share) == threshold
    expected = 0.0 if share == 1 else 1 / (1 - threshold / 4096)
    assert _warpgroup.factor(share) == pytest.approx(expected)
    given = dict(_warpgroup.defines("keys", torch.float16, causal=False, drops=threshold))
    assert threshold == 0 or threshold >> given["LOWEST"] & 1


def words(threshold, count):
    """Words of dropped bits as forward.cu draws them, from random states: tiles [2, count]."""
    draw = np.random.default_rng(threshold)
    digits = _warpgroup.DRAWS
    fresh = digits if threshold < 32 or threshold > 4064 else 7
    lowest = (threshold & -threshold).bit_length() - 1

    def drawn(found, first, last):
        state = draw.integers(2**63, size=found.shape, dtype=np.uint64)
        for digit in range(max(first, lowest), last):
            again = (digit - first) % 2 == 1
            if not again or digit == lowest:
                state = (state & np.uint64(0xFFFFFFFF)) * np.uint64(0xFFFEB81B) + (state >> np.uint64(32))
            low, high = state.astype(np.uint32), (state >> np.uint64(32)).astype(np.uint32)
            word = low ^ (high << np.uint32(11) | high >> np.uint32(21) if again else high)
            found = found | word if threshold >> digit & 1 else found & word
        return found

    shared = drawn(np.zeros(count, np.uint32), 0, digits - fresh)
    tiles = np.stack([drawn(shared, digits - fresh, digits) for _ in range(2)])
    return np.unpackbits(tiles.view(np.uint8), bitorder="little").reshape(2, count, 32)


@pytest.mark.parametrize("threshold", [1, 31, 32, 33, 205, 410, 1229, 2048, 3072, 4064, 4095])
def test_bits_are_drawn_with_the_share_and_apart(threshold):
    bits, share = words(threshold, 2**17), threshold / 4096
    deviation = (share * (1 - share)) ** 0.5
    assert abs(bits.mean() - share) < 5 * deviation / bits.size**0.5
    assert np.abs(bits.mean((0, 1)) - share).max() < 5 * deviation / 2**9
    centred = (bits - share) / deviation
    few = 3 / (2**17 * deviation**2)  # three more bits together than expected
    between_tiles = (centred[0] * centred[1]).mean(0)
    assert np.abs(between_tiles).max() < 0.05 + few
    assert abs(between_tiles.mean()) < 0.01
    inside = np.corrcoef(centred[0].T) - np.eye(32)
    assert np.abs(inside).max() < 0.05 + few


@pytest.mark.parametrize(
    "more",
    [{"dtype": torch.float32}, {"size": (1, 1, 8, 32)}, {"size": (1, 1, 0, 64)}, {"dtype": torch.float16}],
)
def test_tensors_that_kernels_would_read_wrongly_are_refused(more):
    q = torch.zeros(more.get("size", (1, 1, 8, 64)), dtype=more.get("dtype", torch.bfloat16))
    with pytest.raises(UnsupportedProblem, match="build another implementation"):
        warpgroup.attend(Call(q, q, q, None, None, False, 0.0, False))


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
