"""Drop-in modules compute what torch's do, with torch's parameters, whatever is chosen."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels import registry
from selector import InvalidRequest, UnknownImplementation, UnsupportedProblem
from selector import nn as drop_in

pytestmark = pytest.mark.usefixtures("stand_ins")

# module of ours, of torch's, arguments, inputs, and implementations to try on a CPU
CASES: dict[str, tuple[str, tuple[Any, ...], tuple[tuple[int, ...], ...], tuple[str, ...]]] = {
    "lstm": ("LSTM", (5, 6, 2), ((4, 3, 5),), ("hoisted", "recompute", "cell_loop", "unfused")),
    "gru": ("GRU", (5, 6), ((4, 3, 5),), ("hoisted", "recompute")),
    "rnn": ("RNN", (5, 6), ((4, 3, 5),), ("hoisted", "unfused")),
    "relu": ("ReLU", (), ((3, 4),), ("stand_in",)),
    "gelu": ("GELU", ("tanh",), ((3, 4),), ("stand_in",)),
    "silu": ("SiLU", (), ((3, 4),), ("stand_in",)),
    "layer_norm": ("LayerNorm", (6, 1e-3), ((3, 4, 6),), ("stand_in",)),
    "rms_norm": ("RMSNorm", (6,), ((4, 6),), ("stand_in",)),
    "linear": ("Linear", (9, 7), ((3, 9),), ("padded", "column_major")),
}


def pair(operator: str, implementation: str | None = None) -> tuple[nn.Module, nn.Module]:
    """A module of ours and one of torch's with the same parameters."""
    name, arguments, _, _ = CASES[operator]
    torch.manual_seed(0)
    theirs = getattr(nn, name)(*arguments)
    ours = getattr(drop_in, name)(*arguments, implementation=implementation)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(operator: str) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape) for shape in CASES[operator][2]]


def results(module: nn.Module, given: list[Tensor]) -> list[Tensor]:
    """Outputs, and the gradients of inputs and parameters."""
    leaves = [one.clone().requires_grad_() for one in given]
    outputs = module(*leaves)
    y = outputs[0] if isinstance(outputs, tuple) else outputs
    wanted = [*leaves, *module.parameters()]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), wanted)]


def assert_alike(ours: nn.Module, theirs: nn.Module, given: list[Tensor]) -> None:
    for mine, other in zip(results(ours, given), results(theirs, given), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "implementation"),
    [(operator, name) for operator, case in CASES.items() for name in (None, *case[3])],
)
def test_every_choice_computes_what_torch_does(operator: str, implementation: str | None) -> None:
    ours, theirs = pair(operator, implementation)
    assert isinstance(ours, type(theirs))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert_alike(ours, theirs, inputs(operator))
    if implementation is not None:
        assert f"implementation={implementation}" in repr(ours)
        assert [choice.implementation for choice in ours.choices] == [implementation]


@pytest.mark.parametrize("operator", CASES)
def test_inference_is_a_choice_of_its_own(operator: str) -> None:
    ours, theirs = pair(operator, CASES[operator][3][0])
    given = inputs(operator)
    ours(*given)
    with torch.no_grad():
        y, expected = ours.eval()(*given), theirs.eval()(*given)
    first = [one[0] if isinstance(one, tuple) else one for one in (y, expected)]
    torch.testing.assert_close(*first)
    assert [choice.problem["mode"] for choice in ours.choices] == ["training", "inference"]


def test_choosing_takes_no_random_numbers() -> None:
    ours, _ = pair("lstm", "hoisted")
    given = inputs("lstm")
    state = torch.random.get_rng_state()
    ours(*given)
    assert torch.equal(state, torch.random.get_rng_state())


def test_parameters_are_shared_and_stay_the_users() -> None:
    ours, theirs = pair("lstm", "hoisted")
    given = inputs("lstm")
    ours(*given)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.mul_(0.5)
            other.mul_(0.5)
    assert_alike(ours, theirs, given)
    ours.double(), theirs.double()
    assert_alike(ours, theirs, [one.double() for one in given])
    fresh = {name: torch.randn_like(value) for name, value in ours.state_dict().items()}
    ours.load_state_dict(fresh, assign=True)
    theirs.load_state_dict(fresh)
    assert_alike(ours, theirs, [one.double() for one in given])


def test_other_parameters_for_a_call() -> None:
    ours, theirs = pair("linear", "column_major")
    (x,) = inputs("linear")
    ours(x)
    others = {name: torch.randn_like(value) for name, value in theirs.state_dict().items()}
    torch.testing.assert_close(
        torch.func.functional_call(ours, others, (x,)), torch.func.functional_call(theirs, others, (x,))
    )
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_parametrised_weight_is_computed_at_each_call() -> None:
    ours, theirs = pair("linear", "column_major")
    for module in (ours, theirs):
        torch.nn.utils.parametrizations.weight_norm(module)
    assert_alike(ours, theirs, inputs("linear"))


def test_copies_and_files() -> None:
    ours, theirs = pair("lstm", "hoisted")
    given = inputs("lstm")
    ours(*given)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert other.weight_hh_l0 is not ours.weight_hh_l0
        assert_alike(other, theirs, given)
        assert other.choices[0].implementation == "hoisted"


def test_shapes_of_one_class_share_a_choice() -> None:
    ours, _ = pair("lstm", "hoisted")
    for batch, seq in ((3, 5), (4, 7), (3, 8), (5, 8)):
        ours(torch.randn(seq, batch, 5))
    assert [(choice.problem["batch"], choice.problem["seq"]) for choice in ours.choices] == [(3, 5), (5, 8)]


def test_built_implementations_are_bounded() -> None:
    ours, _ = pair("linear", "column_major")
    for power in range(18):
        ours(torch.zeros(2**power, 9))
    assert len(ours.choices) == 16


def test_sizes_at_construction_choose_at_once() -> None:
    ours = drop_in.LSTM(5, 6, implementation="hoisted", sizes={"batch": 3, "seq": 4})
    assert ours.choices[0].problem["seq"] == 4
    with pytest.raises(InvalidRequest, match=r"sizes=\{'rows': 3\} for LSTM: expected batch, seq"):
        drop_in.LSTM(5, 6, sizes={"rows": 3})


def test_freezing() -> None:
    ours, theirs = pair("gru")
    with pytest.raises(InvalidRequest, match="before the first call"):
        ours.freeze()
    ours.freeze("hoisted")
    assert_alike(ours, theirs, inputs("gru"))
    assert "implementation=hoisted (frozen)" in repr(ours)
    assert ours.choices == []
    ours.unfreeze()
    ours(*inputs("gru"))
    assert ours.choices[0].source != "override"
    with pytest.raises(UnknownImplementation, match="Unknown implementation 'hoistd'"):
        ours.freeze("hoistd")


def test_an_implementation_that_is_gone_is_replaced_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="pre_transposed of linear was taken out"):
        ours = drop_in.Linear(9, 7, implementation="pre_transposed")
    with pytest.warns(UserWarning, match="torch_linear takes its place"):
        ours.freeze("pre_transposed")
    (selection,) = ours._selections.values()
    selection.frozen = "pre_transposed"  # as a file of an earlier version has it
    saved = pickle.dumps(ours)
    with pytest.warns(UserWarning, match="torch_linear takes its place"):
        loaded = pickle.loads(saved)
    (x,) = inputs("linear")
    torch.testing.assert_close(loaded(x), nn.functional.linear(x, loaded.weight, loaded.bias))


def test_what_refuses_a_problem_says_so() -> None:
    with pytest.raises(UnknownImplementation):
        drop_in.LSTM(5, 6, implementation="nonsense")
    ours = drop_in.LSTM(5, 6, implementation="fused_graph")
    with pytest.raises(UnsupportedProblem, match="only GPUs have CUDA graphs"):
        ours(*inputs("lstm"))
    ours = drop_in.LSTM(5, 6)
    ours.freeze("fused_graph")
    with pytest.raises(UnsupportedProblem, match=r"is frozen and cannot compute .* Call unfreeze"):
        ours(*inputs("lstm"))


def test_torch_words_its_own_errors() -> None:
    ours, theirs = pair("lstm", "hoisted")
    for bad in (torch.randn(4, 3, 7), torch.randn(2, 4, 3, 5)):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            theirs(bad)
        with pytest.raises(type(expected.value)):
            ours(bad)


def test_sizes_of_zero_are_torchs() -> None:
    ours, theirs = pair("linear", "column_major")
    assert ours(torch.zeros(0, 9)).shape == theirs(torch.zeros(0, 9)).shape == (0, 7)


@pytest.mark.parametrize("operator", ["lstm", "linear"])
def test_autocast(operator: str, request: pytest.FixtureRequest) -> None:
    if operator == "lstm":
        request.getfixturevalue("autocast_lstm")
    ours, theirs = pair(operator, CASES[operator][3][0])
    with torch.autocast("cpu", torch.bfloat16):
        mine, other = (module(*inputs(operator)) for module in (ours, theirs))
    y, expected = (one[0] if isinstance(one, tuple) else one for one in (mine, other))
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected.float(), rtol=0.03, atol=0.02)
    assert ours.choices[0].problem["dtype"] == "bfloat16"


def test_torch_compile_with_and_without_a_choice() -> None:
    for implementation in (None, "hoisted"):
        ours, theirs = pair("lstm", implementation)
        if implementation is None:
            ours.freeze("torch_lstm")
        compiled = torch.compile(nn.Sequential(ours), backend="eager")
        torch.testing.assert_close(compiled(*inputs("lstm"))[0], theirs(*inputs("lstm"))[0])


def test_torch_func_gets_torchs_own() -> None:
    ours, theirs = pair("linear", "column_major")
    x = torch.randn(4, 3, 9)
    torch.testing.assert_close(torch.func.vmap(ours)(x), torch.func.vmap(theirs)(x))


def test_a_packed_sequence() -> None:
    ours, theirs = pair("lstm", "hoisted")
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
    torch.testing.assert_close(ours(packed)[0].data, theirs(packed)[0].data)
    assert ours.choices[0].problem["packed"]


@pytest.mark.parametrize(("name", "home"), [("nn", "selector.nn"), ("layers", "selector.models.layers")])
def test_modules_are_imported_when_they_are_named(name: str, home: str) -> None:
    script = f"import sys, selector; assert 'torch' not in sys.modules; print(selector.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == home, run.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from selector.plans.training import Training as found",
        "import selector.plans.training; found = selector.plans.training.Training",
        "import selector.plans as former; found = former.training.Training",
        "import selector; found = selector.plans.training.Training",
        "from selector.layers import find; import selector; found = selector.Training",
    ],
)
def test_documented_modules_are_found_at_their_former_paths(code: str) -> None:
    names: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match="now"):
        exec(code, names)
    assert names["found"] is selector.Training


def test_the_attribute_of_the_package() -> None:
    assert selector.nn is drop_in
    assert registry.implementation("lstm", "hoisted").name == "hoisted"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = selector.nothing
