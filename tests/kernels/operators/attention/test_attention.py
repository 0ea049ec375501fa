"""Attention on a CPU: the reference beside torch, what modules accept and refuse, dropout, and the gate."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import InvalidHyperparameter
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.attention import _dropout_mask, recompute, tempo
from kernel_selector.kernels.operators.attention._module import Attention, Call
from kernel_selector.kernels.operators.attention._sdpa import in_rows, joined

SMALL = {"batch": 2, "heads": 4, "seq": 9, "kv_seq": 13, "head_dim": 6}
MANUAL = ["tempo", "recompute"]  # those with a backward pass by hand
HERE = ["torch_sdpa", "sdpa_math", "written_out", *MANUAL]


def problem_of(**more):
    return registry.operator("attention").problem({**SMALL, **more})


def module_of(name, **more):
    return registry.implementation("attention", name).build(problem_of(**more))


def inputs_of(seed=0, dtype="float64", **more):
    made = registry.operator("attention").make_inputs(problem_of(dtype=dtype, **more), "cpu", seed)
    return tuple(one.requires_grad_() if one.is_floating_point() else one for one in made.args)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "boolean", "padding"])
@pytest.mark.parametrize("bias", [False, True])
def test_reference_is_torchs_function(causal, mask, bias):
    more = {"causal": causal, "mask": mask, "bias": bias, "kv_heads": 2}
    reference = registry.reference(problem_of(**more)).double()
    q, k, v, *extras = arguments = inputs_of(**more)
    given = Call(
        q, k, v, extras[0] if mask != "none" else None, extras[-1] if bias else None, causal, 0, False
    )
    attn_mask, is_causal = joined(given)
    expected = scaled_dot_product_attention(q, k, v, attn_mask, 0, is_causal, enable_gqa=True)
    torch.testing.assert_close(reference(*arguments), expected)


def test_named_backends_get_rows_and_views_of_ordinary_layouts_are_not_copied():
    _, k, v, mask = inputs_of(mask="boolean", dtype="float32")
    packed = torch.randn(2, 7, 3, 4, 6).permute(2, 0, 3, 1, 4)  # [B, H, S, D] of one projection
    plain = Call(*packed, mask, None, False, 0, False)
    assert all(one is other for one, other in zip(in_rows(plain)[:4], plain[:4], strict=True))
    wide = Call(
        packed[0].mT.contiguous().mT, k[:1].expand(2, -1, -1, -1), v[:, :1].expand(-1, 4, -1, -1),
        mask.mT.contiguous().mT, None, False, 0, False,
    )  # fmt: skip
    for one, other in zip(in_rows(wide)[:4], wide[:4], strict=True):
        assert one.is_contiguous()
        assert torch.equal(one, other)


def test_named_backends_get_gradients_of_their_own_memory():
    q, k, v = inputs_of(dtype="float32")
    out = module_of("sdpa_math", dtype="float32")(q, k, v)
    given = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        out.grad_fn.register_prehook(lambda gradients: given.append(gradients[0].stride()))
    out.sum().backward()
    assert given == [torch.empty_like(out).contiguous().stride()]


def test_rows_that_see_nothing_are_zero_and_so_are_their_gradients():
    for name in HERE:
        arguments = inputs_of(mask="boolean")
        out = module_of(name, mask="boolean", dtype="float64")(*arguments)
        blind = ~arguments[3].any(-1).squeeze(1)  # [B, S]
        assert blind.any()
        assert (out.transpose(1, 2)[blind] == 0).all()
        gradients = torch.autograd.grad(out.square().sum(), arguments[:3])
        assert all(one.isfinite().all() for one in gradients)
        assert (gradients[0].transpose(1, 2)[blind] == 0).all()


def test_low_rows_underflow_where_no_maximum_is_subtracted():
    q, k, *_ = inputs_of(mask="boolean", dtype="float32")
    low = (q[:, :, 4] * k[:, :, 0]).sum(-1) / 6**0.5
    torch.testing.assert_close(low, torch.full_like(low, -128.0))
    assert (torch.tensor(-128.0).exp() * 13) == 0


@pytest.mark.parametrize("name", MANUAL)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"causal": True, "kv_heads": 2, "bias": True},
        {"mask": "boolean", "return_weights": True},
        {"mask": "padding", "bias": True, "return_weights": True, "causal": True},
    ],
)
def test_gradients_by_hand(name, more, monkeypatch):
    monkeypatch.setattr(recompute, "MOST_ELEMENTS", 300)  # three blocks of queries
    module = module_of(name, dtype="float64", **more)
    arguments = inputs_of(**more)
    assert torch.autograd.gradcheck(module, arguments, fast_mode=True)


@pytest.mark.parametrize("name", MANUAL)
def test_second_derivatives_raise(name):
    arguments = inputs_of()
    (gradient,) = torch.autograd.grad(
        module_of(name, dtype="float64")(*arguments).sum(), arguments[:1], create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", MANUAL)
def test_backward_replays_the_dropped_weights(name, monkeypatch):
    monkeypatch.setattr(recompute, "MOST_ELEMENTS", 300)
    q, k, v = inputs_of(dropout=0.5)
    module = module_of(name, dropout=0.5, return_weights=True, dtype="float64")
    torch.manual_seed(3)
    out, weights = module(q, k, v)
    assert 0.3 < (weights == 0).double().mean() < 0.7
    plain = module_of("written_out", return_weights=True, dtype="float64")(q, k, v)[1]
    kept = (weights != 0) * 2.0
    torch.testing.assert_close(weights, plain * kept)
    expected = torch.autograd.grad((plain * kept @ v).square().sum(), (q, k, v))
    found = torch.autograd.grad(out.square().sum(), (q, k, v))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.manual_seed(3)
    torch.testing.assert_close(module(q, k, v)[0], out, rtol=0, atol=0)
    assert not torch.equal(module(q, k, v)[0], out)


@pytest.mark.parametrize("name", [*HERE])
def test_dropout_acts_in_training_alone_and_may_be_everything(name):
    q, k, v = inputs_of(dtype="float32")
    module = module_of(name)
    module.dropout = 1.0
    out = module(q, k, v)
    assert (out == 0).all()
    assert all((one == 0).all() for one in torch.autograd.grad(out.sum(), (q, k, v)))
    still = module.eval()(q, k, v)
    torch.testing.assert_close(still, module_of("torch_sdpa")(q, k, v))
    module.train()
    for share in (-0.1, 1.5, float("nan")):
        module.dropout = share
        with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
            module(q, k, v)


def test_replayed_dropout_is_even():
    seeds = torch.tensor([2**40 + 7, 8, -5])
    rows = torch.arange(4096)[:, None] + 2**33
    drawn = torch.stack([_dropout_mask.kept(seed[None], rows, 1000, 0.25) for seed in seeds]).double()
    assert abs(drawn.mean() - 0.75) < 1e-3
    for axis, size in ((1, 4096), (2, 1000)):  # shares by column and by row spread as those of coins do
        assert drawn.mean(axis).std() == pytest.approx((0.1875 / size) ** 0.5, rel=0.1)
    pairs = (drawn[:, 1:] - 0.75) * (drawn[:, :-1] - 0.75), (drawn[..., 1:] - 0.75) * (drawn[..., :-1] - 0.75)
    assert all(abs(one.mean()) < 1e-3 for one in pairs)
    assert abs(((drawn[0] - 0.75) * (drawn[1] - 0.75)).mean()) < 1e-3


@pytest.mark.parametrize("keys", [1, 8, 13])
def test_bits_are_unpacked_as_they_were_packed(keys):
    keep = torch.rand(3, 2, 5, keys) < 0.5
    packed = tempo.packed(keep)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, 2, 5, -(-keys // 8))
    assert torch.equal(tempo.unpacked(packed, keys), keep)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k, v: (q, k, v[:, :, :5]), "of one shape"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3]), "heads of k must divide"),
        (lambda q, k, v: (q[:1], k, v), "first and last dimension"),
        (lambda q, k, v: (q[..., :3], k, v), "first and last dimension"),
        (lambda q, k, v: (q[0], k[0], v[0]), r"must be \[B, H, S, D\]"),
        (lambda q, k, v: (q.double(), k, v), "one dtype"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, change, said):
    with pytest.raises(RuntimeError, match=said):
        module_of(name)(*change(*inputs_of(dtype="float32")))


@pytest.mark.parametrize(
    ("more", "change", "said"),
    [
        ({"mask": "boolean"}, lambda mask: mask.float(), "must be boolean"),
        ({"mask": "boolean"}, lambda mask: mask[:, :, :4], "must be boolean"),
        ({"mask": "padding"}, lambda mask: mask[..., :4], "must be boolean"),
        ({"bias": True}, lambda bias: bias[:1], "bias must be"),
        ({"bias": True}, lambda bias: bias.double(), "one dtype"),
    ],
)
def test_masks_and_biases_that_do_not_fit_are_refused(more, change, said):
    *qkv, extra = inputs_of(dtype="float32", **more)
    with pytest.raises(RuntimeError, match=said):
        module_of("torch_sdpa", **more)(*qkv, change(extra))
    with pytest.raises(TypeError, match=f"takes q, k, v, {'mask' if 'mask' in more else 'bias'}: got 3"):
        module_of("torch_sdpa", **more)(*qkv)


@pytest.mark.parametrize("name", HERE)
def test_empty_batches_and_what_is_not_finite(name):
    module = module_of(name)
    q, k, v = inputs_of(dtype="float32")
    out = module(q[:0], k[:0], v[:0])
    assert out.shape == (0, 4, 9, 6)
    assert all(one.shape == (2, *one.shape[1:]) for one in torch.autograd.grad(out.sum(), (q, k, v)))
    spoilt = q.detach().clone()
    spoilt[0, 1, 2, 3] = float("inf")
    out = module(spoilt, k, v)
    assert out[0, 1, 2].isnan().all()
    assert out.isnan().sum() == 6


@pytest.mark.parametrize("name", HERE)
def test_autocast_is_as_torchs(name):
    arguments = inputs_of(dtype="float32", bias=True)
    module = module_of(name, bias=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(*arguments)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), module(*arguments), rtol=0.05, atol=0.05)
    assert {one.dtype for one in torch.autograd.grad(out.sum(), arguments)} == {torch.float32}


@pytest.mark.parametrize("name", MANUAL)
def test_checkpointing_and_compilers_around_it(name):
    q, k, v = inputs_of(dtype="float32")
    module = module_of(name, dropout=0.5)
    torch.manual_seed(1)
    loss = module(q, k, v).square().sum()
    expected = torch.autograd.grad(loss, (q, k, v))
    torch.manual_seed(1)
    again = torch.utils.checkpoint.checkpoint(
        lambda *given: module(*given).square().sum(), q, k, v, use_reentrant=False
    )
    assert torch.equal(loss, again)
    for one, other in zip(torch.autograd.grad(again, (q, k, v)), expected, strict=True):
        assert torch.equal(one, other)
    module.eval()
    compiled = torch.compile(lambda *given: module(*given) * 2, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), module(q, k, v) * 2)


def test_a_mask_that_is_ignored_for_one_row_is_found():
    problem = problem_of(mask="boolean", batch=2, seq=40, head_dim=16)

    def attend(call):
        mask = call.mask.clone()
        mask[0, :, 5] = True
        return scaled_dot_product_attention(call.q, call.k, call.v, mask)

    gate = Gate(problem, "cpu")
    assert gate.check(module_of("torch_sdpa", mask="boolean", seq=40, head_dim=16)).passed
    assert not gate.check(Attention(problem, attend)).passed


def test_a_gradient_that_is_nan_in_low_rows_is_found():
    problem = problem_of(mask="boolean", seq=64)

    class Faulty(nn.Module):
        def forward(self, q, k, v, mask):
            s = (q @ k.mT / 6**0.5).masked_fill(~mask, -torch.inf)
            sums = s.exp().sum(-1, keepdim=True)  # without the maximum: 0 in low rows
            careless = torch.where(sums > 0, s.exp() / sums, 0.0) @ v
            return scaled_dot_product_attention(q, k, v, mask) + 0 * careless

    result = Gate(problem, "cpu").check(Faulty())
    assert not result.passed
    assert "not finite" in result.detail


@pytest.mark.parametrize(
    ("name", "more", "device", "said"),
    [
        ("sdpa_flash", {"mask": "boolean", "dtype": "bfloat16"}, H200, "no mask"),
        ("sdpa_flash", {"causal": True, "dtype": "bfloat16"}, H200, "bottom right"),
        ("sdpa_flash", {}, H200, "16-bit"),
        ("sdpa_flash", {"dropout": 0.1}, CPU, "no dropout"),
        ("sdpa_flash", {"bias": True}, CPU, "no gradient of a bias"),
        ("sdpa_efficient", {}, H200, "no multiple"),
        ("sdpa_efficient", {}, CPU, "for GPUs"),
        ("sdpa_cudnn", {"dtype": "bfloat16"}, H200, "multiples of 8"),
        ("sdpa_cudnn", {"dtype": "bfloat16", "head_dim": 64, "bias": True}, H200, "gradient of a bias"),
        ("sdpa_cudnn", {"dtype": "bfloat16", "head_dim": 64, "kv_seq": 1}, H200, "single key"),
        ("sdpa_math", {"return_weights": True}, CPU, "returns no weights"),
        ("written_out", {"dtype": "bfloat16"}, CPU, "rounds logits"),
        ("flex", {"dropout": 0.1, "head_dim": 64}, H200, "dropout"),
        ("flex", {"bias": True, "head_dim": 64}, H200, "atomics"),
        ("flex", {}, H200, "16 to 256"),
        ("torch_compile", {}, CPU, "C++ compiler"),
        ("fused", {}, CPU, "compiles for GPUs"),
        ("fused", {"dtype": "float64"}, H200, "not float64"),
        ("fused", {"head_dim": 300, "dtype": "float16"}, H200, "256 features"),
        ("fused", {"head_dim": 200}, H200, "128 features"),
        ("fused", {"return_weights": True}, H200, "weights"),
    ],
)
def test_refusals_say_why(name, more, device, said):
    assert said in registry.implementation("attention", name).unsupported(problem_of(**more), device)


def test_heads_that_cannot_be_shared_out_are_refused():
    with pytest.raises(InvalidHyperparameter, match="kv_heads=3 does not divide heads=4"):
        problem_of(kv_heads=3)
