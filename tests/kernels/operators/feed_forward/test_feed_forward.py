"""feed_forward: against torch, dropout, other calls than the gate's, refusals, and kernels without a GPU."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200, T4
from programs import run
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.operators.feed_forward import _eager
from tests.grids import each_entry, each_value, in_turns, pairs_of, thinned

HERE = ["fused", "recompute_activation", "recompute_first_linear"]
TRITON = [*HERE, "from_output", "int8_activation"]
ACTIVATIONS = ["gelu", "gelu_tanh", "relu", "silu"]


def problem_of(**given):
    return registry.operator("feed_forward").problem({"rows": 12, "hidden": 6, "inner": 20, **given})


def build(name, **given):
    torch.manual_seed(0)
    return registry.implementation("feed_forward", name).build(problem_of(**given))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_default_is_the_layer_within_torchs_encoder(activation, bias):
    module = build("torch_feed_forward", activation=activation, bias=bias)
    encoder = nn.TransformerEncoderLayer(6, 2, 20, dropout=0, activation=activation, bias=bias)
    encoder.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(3, 4, 6)
    torch.testing.assert_close(module(x), encoder._ff_block(x))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_reference_is_the_default_in_float64(activation):
    problem = problem_of(activation=activation, dtype="float64")
    reference, module = registry.reference(problem).double(), build("torch_feed_forward", **problem.as_dict)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(reference(x), module(x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_finite_differences(activation, name):
    module = build(name, activation=activation, dtype="float64", rows=3)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: module(x), (x, *module.parameters()))


@pytest.mark.parametrize("name", HERE)
def test_dropout_is_replayed(name):
    """With one mask the layer is linear in W2: its gradient tells which elements the two passes dropped."""
    module = build(name, activation="relu", dropout=0.5, dtype="float64", rows=40)
    with torch.no_grad():
        module.linear1.bias.fill_(9.0)  # so that every element has a slope
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = module(x)
    assert torch.autograd.gradcheck(lambda x, *_: seeded(module, x), (x, *module.parameters()))
    torch.manual_seed(3)
    assert torch.equal(y, module(x))
    assert not torch.equal(y, module(x))
    dx = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    assert torch.equal(dx, torch.autograd.grad(y.sum(), x)[0])
    torch.manual_seed(3)
    again = checkpoint(module, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], dx)
    assert torch.equal(module.eval()(x), module(x))


def seeded(module, x):
    torch.manual_seed(3)
    return module(x)


@pytest.mark.parametrize("name", HERE)
def test_shares_of_dropout_at_and_beyond_the_ends(name):
    module = build(name)
    x = torch.randn(5, 6)
    plain = module(x)
    module.dropout = 0.0
    assert torch.equal(module(x), plain)
    module.dropout = 1.0
    torch.testing.assert_close(module(x), module.linear2.bias.expand(5, 6))
    for share in (-0.1, 1.5):
        module.dropout = share
        with pytest.raises(
            ValueError, match=f"dropout probability has to be between 0 and 1, but got {share}"
        ):
            module(x)
    module.dropout = 0.25
    module.linear1.bias.data.fill_(5.0)
    with torch.no_grad():
        mean = torch.stack([module(x) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, module.eval()(x), rtol=0, atol=0.25)  # 6 standard errors


@pytest.mark.parametrize("name", HERE)
def test_other_calls_are_as_torchs(name):
    module, plain = build(name), build("torch_feed_forward")
    for shape in ((6,), (0, 6), (2, 0, 6), (2, 3, 6)):
        given = torch.randn(shape)
        results = []
        for one in (module, plain):
            x = given.clone().requires_grad_()
            y = one(x)
            results.append((y, *torch.autograd.grad(y.sum(), (x, *one.parameters()))))
        torch.testing.assert_close(*results)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="same dtype"):
        module(torch.randn(3, 6, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(3, 6, requires_grad=True)
        y, expected = module(x), plain(x)
    assert y.dtype == expected.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == module.linear1.weight.grad.dtype == torch.float32
    module.requires_grad_(False)
    module.linear2.weight.requires_grad_(True)
    assert torch.autograd.grad(module(torch.randn(3, 6)).sum(), module.linear2.weight)[0].isfinite().all()


@pytest.mark.parametrize("name", HERE)
def test_a_second_derivative_is_an_error(name):
    module = build(name)
    x = torch.randn(3, 6, requires_grad=True)
    (dx,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad((dx + x).sum(), x)


# torch.compile looks at the .grad of what comes out of a graph break, and silences its own warning
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", HERE)
def test_within_torch_compile(name):
    module = build(name)
    x = torch.randn(3, 6)
    compiled = torch.compile(lambda x: module(x * 2) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), module(x * 2) + 1)


@pytest.mark.parametrize("name", HERE)
def test_the_slope_of_the_other_gelu_is_found(name, monkeypatch):
    problem = problem_of(rows=100)
    gate = Gate(problem, "cpu")
    assert gate.check(build(name, rows=100)).passed
    right = _eager._pull_back
    monkeypatch.setattr(_eager, "_pull_back", lambda dy, h, _activation: right(dy, h, "gelu_tanh"))
    assert not gate.check(build(name, rows=100)).passed


def problems():
    """Blocks of each activation, with and without dropout and biases, of one row and in inference."""
    shapes = [
        {"rows": 40, "hidden": 16, "inner": 264, "activation": "gelu", "dropout": 0.1},
        {"rows": 33, "hidden": 7, "inner": 65, "activation": "gelu_tanh"},
        {"rows": 20, "hidden": 24, "inner": 131, "activation": "silu", "bias": False},
        {"rows": 1, "hidden": 1, "inner": 1},
    ]
    given = [{"operator": "feed_forward", **shape, "dtype": "bfloat16"} for shape in shapes]
    return [*given, {**given[0], "mode": "inference"}]


def problems_of_two_ways():
    """Blocks whose kernels depend on the type: ReLU with dropout, and GELU."""
    relu = {"operator": "feed_forward", "rows": 33, "hidden": 9, "inner": 72, "dropout": 0.5}
    given = [{**relu, "activation": "relu", "dtype": dtype} for dtype in ("float16", "float32", "bfloat16")]
    return [*given, *({**relu, "activation": "gelu", "dtype": dtype} for dtype in ("float32", "float16"))]


@pytest.mark.parametrize("given", in_turns(problems(), TRITON, each_entry))
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    # in eight bits a row with outliers leaves its other numbers few steps: the gate rejects that alone
    coarse = [one for one in results if one[1] == "int8_activation" and "rows out of the ord" in one[3]]
    assert [result for result in results if not result[2] and result not in coarse] == []


@pytest.mark.parametrize("given", in_turns(problems_of_two_ways(), HERE, each_entry))
def test_kernels_of_each_type_pass_the_gate_in_the_interpreter(given):
    fitted = ["from_output"]  # to what 16 bits show
    given = [
        {**one, "implementations": one["implementations"] + fitted * (one["dtype"] == "float16")}
        for one in given
    ]
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


PAIRS = [
    (name, activation)
    for turn, name in enumerate(sorted({*HERE, *TRITON}))
    for activation in ACTIVATIONS[turn % 4 :] + ACTIVATIONS[: turn % 4]
    if name in (HERE if activation == "relu" else TRITON)
]


@pytest.mark.parametrize(("name", "activation"), thinned(PAIRS, each_value))
def test_kernels_replay_dropout_and_take_other_calls_in_the_interpreter(name, activation):
    given = [{"rows": 37, "hidden": 8, "inner": 150, "activation": activation, "dtype": "bfloat16"}]
    assert len(run("interpreted_feed_forward.py", name, given=given)) == 1


def cases():
    """The kernels as each implementation launches them."""
    tile = {"ROWS": 16, "GROUPS": 16}
    extra = {"bits_ptr", "codes_ptr", "scale_ptr", "seed_ptr"}
    for target, dtype, kind in ((80, "fp32", "gelu"), (80, "fp16", "silu"), (90, "bf16", "gelu_tanh")):
        forward = {"target": target, "dtype": dtype, "kernel": "feed_forward_forward_kernel"}
        forward["constants"] = {"KIND": kind, **tile}
        for present in (set(), {"seed_ptr"}, {"bits_ptr"}, {"codes_ptr", "scale_ptr"}):
            yield {**forward, "absent": sorted(extra - present)}
        backward = {**forward, "kernel": "feed_forward_backward_kernel"}
        constants = {"KIND": kind, "STEPS": 8, "OUTPUT": False, **tile}
        for absent in ({"a_ptr"}, {"a_ptr", "seed_ptr"}, {"sums_ptr"}):
            yield {**backward, "constants": constants, "absent": sorted(absent | extra - {"seed_ptr"})}
        output = {**backward, "constants": {**constants, "OUTPUT": True}}
        yield {**output, "absent": ["a_ptr", "codes_ptr", "scale_ptr"]}
        codes = ["bits_ptr", "kept_ptr", "seed_ptr"]
        yield {**backward, "constants": {**constants, "STEPS": 1}, "absent": codes}
    yield {
        **output,
        "constants": {**output["constants"], "KIND": "relu"},
        "absent": ["a_ptr", *sorted(extra)],
    }


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here_and_load_16_bytes_at_once():
    given = list(cases())
    results = run("compiled_activations.py", given=given)
    assert len(results) == len(given)
    assert [case for case, wide in results if not wide] == []


@pytest.mark.parametrize(
    ("name", "given", "device", "reason"),
    [
        ("fused", {"dtype": "float64"}, H200, "not float64"),
        ("fused", {}, T4, "compute capability 8.0"),
        ("from_output", {"dtype": "float32"}, H200, "fitted to 5e-4"),
        ("from_output", {}, CPU, "compiles for GPUs"),
        ("from_output", {"dtype": "bfloat16", "activation": "relu"}, H200, "no bits for relu"),
        ("int8_activation", {"dtype": "float16"}, H200, "0.7 %"),
        ("int8_activation", {"dtype": "bfloat16", "activation": "relu"}, H200, "slope of relu jumps"),
        ("torch_compile", {}, CPU, "C++ compiler"),
    ],
)
def test_refusals_say_why(name, given, device, reason):
    implementation = registry.implementation("feed_forward", name)
    large = {"rows": 64, "inner": 64}
    assert reason in implementation.unsupported(problem_of(**large, **given), device)
    assert implementation.unsupported(problem_of(**large, dtype="bfloat16"), H200) is None


@pytest.mark.parametrize(("inner", "refused"), [(15, True), (16, False)])
def test_slopes_are_fitted_where_many_elements_average_their_errors(inner, refused):
    unsupported = registry.implementation("feed_forward", "from_output").unsupported
    reason = unsupported(problem_of(rows=64, inner=inner, dtype="bfloat16"), H200)
    assert ("do not average" in reason) if refused else reason is None


def test_what_is_kept_between_the_passes():
    given = {"rows": 8192, "hidden": 1024, "inner": 4096, "dtype": "bfloat16"}
    kept = {
        name: (one.work(problem_of(**given)).saved_bytes - 8192 * 1024 * 2) / (8192 * 4096)
        for name, one in registry.implementations("feed_forward").items()
    }
    expected = {"fused": 4, "recompute_activation": 2, "recompute_first_linear": 0}
    expected |= {"from_output": 2.125, "int8_activation": 1.03125}
    assert {name: kept[name] for name in expected} == pytest.approx(expected)
