"""The gate with elements dropped: it lets the true modules through, and no planted fault."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.gate import dropout as gate_dropout
from kernel_selector.kernels.gate.dropout import SHARE
from tests.grids import each_value, thinned

OPERATOR = registry.operator("lstm")
DTYPES = ["float64", "float32", "float16", "bfloat16"]


def make_gate(**hyperparameters):
    given = {"hidden": 24, "batch": 5, "seq": 9, "layers": 2, "dropout": 0.1, **hyperparameters}
    return Gate(OPERATOR.problem(given), "cpu")


@pytest.fixture(scope="module")
def gate():
    return make_gate()


class Layers(nn.LSTM):
    """nn.LSTM layer by layer, with `drop(x, p, place)` between layers."""

    def __init__(self, problem, drop):
        super().__init__(
            problem["input"], problem["hidden"], problem["layers"], dtype=getattr(torch, problem["dtype"])
        )
        self.drop, self.dropout = drop, problem["dropout"]

    def forward(self, x, hx):
        ends = []
        for row in range(self.num_layers):
            if row and self.dropout and self.training:
                x = self.drop(x, self.dropout, row)
            own = tuple(state[row : row + 1] for state in hx)
            weights = self._flat_weights[4 * row : 4 * row + 4]
            x, *last = torch._VF.lstm(x, own, weights, True, 1, 0.0, True, False, False)
            ends.append(last)
        return x, tuple(map(torch.cat, zip(*ends, strict=True)))


class TwoMasks(torch.autograd.Function):
    """Multiplies by one tensor, and the gradient by another."""

    @staticmethod
    def forward(ctx, x, forwards, backwards):
        ctx.save_for_backward(backwards)
        return x * forwards

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None, None


def mask(x: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    return (torch.rand(x.shape, generator=generator) >= p).to(x.dtype) / (1 - p)


OWN = torch.Generator().manual_seed(0)
REPLAY = "backward has another mask"
TORCHS = "from the undropped ones, those of torch"
# what is between layers, and what the gate says of it
FAULTS = {
    "redrawn in backward": (lambda x, p, _: TwoMasks.apply(x, mask(x, p), mask(x, p)), REPLAY),
    "first of two redrawn in backward": (
        lambda x, p, row: TwoMasks.apply(x, one := mask(x, p), mask(x, p) if row == 1 else one),
        REPLAY,
    ),
    "not scaled in backward": (lambda x, p, _: TwoMasks.apply(x, one := mask(x, p), one * (1 - p)), REPLAY),
    "scaled twice in backward": (lambda x, p, _: TwoMasks.apply(x, one := mask(x, p), one / (1 - p)), REPLAY),
    "shifted by one in backward": (
        lambda x, p, _: TwoMasks.apply(x, one := mask(x, p), one.roll(1, -1)),
        REPLAY,
    ),
    "not dropped in backward": (
        lambda x, p, _: TwoMasks.apply(x, mask(x, p), torch.ones_like(x)),
        "backward",
    ),
    "not scaled": (lambda x, p, _: x * mask(x, p) * (1 - p), TORCHS),
    "the others dropped": (lambda x, p, _: dropout(x, 1 - p), TORCHS),
    "half dropped": (lambda x, _p, _row: dropout(x, 0.5), TORCHS),
    "ignored": (lambda x, _p, _row: x, "nothing is dropped at random"),
    "one mask for all seeds": (
        lambda x, p, _: x * mask(x, p, torch.Generator().manual_seed(1)),
        "nothing is dropped at random",
    ),
    "from a generator of its own": (lambda x, p, _: x * mask(x, p, OWN), "after the same torch.manual_seed"),
    "backward from a generator of its own": (
        lambda x, p, _: TwoMasks.apply(x, mask(x, p), mask(x, p, OWN)),
        "gradient of argument[0] is another after the same torch.manual_seed",
    ),
    "nan where dropped": (lambda x, p, _: x / mask(x, p) * (1 - p) ** -2, "not finite"),
}


def check(gate, drop):
    return gate.check(Layers(gate.problem, drop))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_mask_fails(fault):
    gate = make_gate(layers=3 if "two" in fault else 2, batch=20)
    drop, reason = FAULTS[fault]
    result = check(gate, drop)
    assert not result.passed
    assert reason in result.detail
    assert f"with dropout set to {SHARE}: " in result.detail
    assert result.worst_error_ratio is None


WRONG = ["redrawn in backward", "ignored", "not scaled", "nan where dropped"]
IN_TURNS = [  # each dtype with the next fault; then the other pairs
    (dtype, WRONG[(number + turn) % len(WRONG)])
    for turn in range(len(WRONG))
    for number, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("dtype", "fault"), thinned(IN_TURNS, each_value))
def test_wrong_masks_fail_in_every_dtype(dtype, fault):
    gate = make_gate(dtype=dtype, batch=20, hidden=48)
    assert check(gate, lambda x, p, _: dropout(x, p)).passed
    result = check(gate, FAULTS[fault][0])
    assert not result.passed
    assert FAULTS[fault][1] in result.detail


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [{"hidden": 1, "batch": 1, "seq": 1}, {"hidden": 3, "batch": 1, "seq": 2, "layers": 3}, {"batch": 70}],
    ids=str,
)
def test_right_masks_pass(dtype, shape):
    result = check(make_gate(dtype=dtype, **shape), lambda x, p, _: dropout(x, p))
    assert result.passed, result.detail
    assert "with dropout set to 0; masks judged" in result.detail


def test_calls_that_drop_alike_by_chance_are_no_fault(monkeypatch):
    """Seventeen elements, of which a tenth is dropped: every thirtieth call drops what the one before did."""
    problem = registry.operator("dropout_add_norm").problem(rows=1, hidden=17, dropout=0.1)
    gate = Gate(problem, "cpu")
    module = registry.implementation("dropout_add_norm", "torch_dropout_add_norm").build(problem)
    for seed in range(1000, 1060):
        monkeypatch.setattr(gate_dropout, "SEED", seed)
        result = gate.check(module)
        assert result.passed, result.detail


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.1), ("float16", 0.5), ("bfloat16", 0.5)])
def test_a_mask_on_a_part_of_the_values_is_judged(dtype, share):
    gate = make_gate(dtype=dtype, batch=20)

    def part(masked):
        return lambda x, p, _: x + share * (masked(x, p) - x)

    # the distance from the undropped outputs is not torch's, which another check says: leave it out
    gate._dropout._unlike_torch = lambda *_: ""
    result = check(gate, part(dropout))
    assert result.passed, result.detail
    assert "masks judged" in result.detail
    assert REPLAY in check(gate, part(lambda x, p: FAULTS["redrawn in backward"][0](x, p, 1))).detail


def test_a_mask_that_changes_less_than_rounding_is_not_judged():
    gate = make_gate(dtype="bfloat16", batch=20)
    gate._dropout._unlike_torch = lambda *_: ""
    result = check(gate, lambda x, p, _: x + 0.01 * (dropout(x, p) - x))
    assert result.passed, result.detail
    assert "masks not judged in backward, where they change less than rounding may" in result.detail


def test_who_drops_where_torch_drops_nothing_fails(recwarn):
    class Dropping(Layers):
        def forward(self, x, hx):
            return super().forward(self.drop(x, self.dropout, 1), hx)

    gate = make_gate(layers=1)
    assert "torch drops nothing" in check(gate, None).detail
    result = gate.check(Dropping(gate.problem, lambda x, p, _: dropout(x, p)))
    assert not result.passed
    assert "output[0] has elements dropped, where torch drops nothing" in result.detail
    assert all("num_layers greater than 1" in str(one.message) for one in recwarn)


def test_nobody_is_held_to_a_seed_that_torchs_own_does_not_follow(gate, monkeypatch):
    # cuDNN's state of dropout is seeded once a process
    def build(problem):
        return Layers(problem, FAULTS["from a generator of its own"][0])

    monkeypatch.setattr(
        registry, "implementation", lambda *_: type("Own", (), {"build": staticmethod(build)})
    )
    gate = make_gate()
    result = gate.check(build(gate.problem))
    assert result.passed
    assert "masks not judged: as torch's own, they do not follow torch.manual_seed" in result.detail
    assert check(gate, lambda x, p, _: dropout(x, p)).passed
    assert REPLAY in check(gate, FAULTS["redrawn in backward"][0]).detail


def test_a_default_that_raises_bounds_nothing(monkeypatch):
    def build(_):
        raise RuntimeError("no kernel")

    right = Layers(OPERATOR.problem(hidden=24, batch=5, seq=9, layers=2, dropout=0.1), None)
    right.drop = lambda x, p, _: dropout(x, p)
    monkeypatch.setattr(
        registry, "implementation", lambda *_: type("Own", (), {"build": staticmethod(build)})
    )
    gate = make_gate()
    assert gate.check(right).passed
    assert REPLAY in check(gate, FAULTS["redrawn in backward"][0]).detail


def test_random_states_parameters_and_the_share_are_left_as_they_were(gate):
    module = Layers(gate.problem, lambda x, p, _: dropout(x, p))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = gate.check(module)
    assert torch.equal(torch.get_rng_state(), before)
    assert module.dropout == 0.1
    for name, value in gate.inputs.state_dict.items():
        assert torch.equal(module.state_dict()[name], value)
    assert gate.check(module) == first
    assert all(parameter.grad is None for parameter in module.parameters())


def test_nothing_is_dropped_in_inference():
    gate = make_gate(mode="inference")
    result = check(gate, FAULTS["redrawn in backward"][0])
    assert result.passed
    assert "dropout" not in result.detail
