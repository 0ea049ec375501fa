"""Linear layers of one input become one product: what they compute, what stays, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels.linear._joined import joined
from selector.nn.joined import GROUP, JoinedLinear
from selector.rewriting import optimizing

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
pytestmark = pytest.mark.usefixtures("everything_pays")


class Attention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 8, bias=bias), nn.Linear(6, 8, bias=bias)
        self.value, self.other = nn.Linear(6, 4, bias=bias), nn.Linear(4, 6, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1)
        return self.other(weights @ self.value(x)) + x


@pytest.fixture(autouse=True)
def faster_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizing, "_alone_ms", lambda _problem, name, *_: 1.5 if name else 1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention(bias=False)).train()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    given = x.clone().requires_grad_()
    loss = model(given).square().mean()
    return [loss, *torch.autograd.grad(loss, [given, *model.parameters()])]


def products(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers each joined product of a call has."""
    seen: list[int] = []

    def counting(given: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
        seen.append(len(weights))
        return joined(given, weights, biases)

    with monkeypatch.context() as patch:
        patch.setattr("selector.nn.joined.joined", counting)
        model(x)
    return seen


def test_the_parts_of_one_product_are_differentiated_as_products_of_their_own() -> None:
    layers = [nn.Linear(3, columns, dtype=torch.float64) for columns in (2, 5, 1)]
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    weights, biases = [one.weight for one in layers], [one.bias for one in layers]
    for given in ((), biases):
        every = [*weights, *given]
        assert torch.autograd.gradcheck(lambda x, *rest: joined(x, rest[:3], rest[3:]), (x, *every))
    for part, layer in zip(joined(x, weights, biases), layers, strict=True):
        torch.testing.assert_close(part, layer(x))
        part.add_(1)  # of its own, not a view
    weights[1].requires_grad_(False)
    found = torch.autograd.grad(
        sum(part.sum() for part in joined(x, weights, None)), [weights[0], weights[2]]
    )
    assert [one.shape for one in found] == [weights[0].shape, weights[2].shape]


def test_a_model_computes_trains_and_is_restored_as_before(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, keys = copy.deepcopy(model), list(model.state_dict())
    identities = list(model.parameters())
    report = selector.optimize(model, x)
    assert [(one.path, one.implementation) for one in report.replaced] == [
        ("0", "torch_linear"),
        ("1", "torch_linear"),
    ]
    assert report.replaced[0].problem["out_features"] == 20
    assert "3 layers as one product, 1.5 ms for 3 ms" in str(report)
    assert products(model, x, monkeypatch) == [3, 3]
    assert list(model.state_dict()) == keys
    assert all(mine is other for mine, other in zip(model.parameters(), identities, strict=True))
    torch.testing.assert_close(gradients(model, x), gradients(original, x))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, original)]
    for _ in range(3):
        for one, optimizer in zip((model, original), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(original.parameters()))
    assert selector.restore(model) == 2
    assert [type(one) for one in model.modules()] == [type(one) for one in original.modules()]
    assert GROUP not in model[0].query.__dict__


def test_hooks_see_their_layers_and_a_changed_input_is_computed_alone(model: nn.Module, x: Tensor) -> None:
    original = copy.deepcopy(model)
    selector.optimize(model, x)
    seen: list[tuple[Tensor, Tensor]] = []
    for one in (model, original):
        one[0].key.register_forward_hook(lambda _module, args, y: seen.append((args[0], y)))
        one[0].value.register_forward_pre_hook(lambda _module, args: (2 * args[0],))
    torch.testing.assert_close(gradients(model, x), gradients(original, x))
    torch.testing.assert_close(seen[0], seen[1])


def test_weights_that_are_computed_since_are_those_of_each_call(model: nn.Module, x: Tensor) -> None:
    original = copy.deepcopy(model)
    selector.optimize(model, x)
    for one in (model, original):
        torch.nn.utils.prune.l1_unstructured(one[0].value, "weight", 0.5)
        torch.nn.utils.parametrizations.weight_norm(one[0].key)
    for _ in range(2):
        torch.testing.assert_close(gradients(model, x), gradients(original, x))
        with torch.no_grad():
            for one in (model, original):
                one[0].value.weight_orig.mul_(2)
    selector.restore(model)
    assert type(model[0].query) is type(model[0].value) is nn.Linear
    torch.testing.assert_close(gradients(model, x), gradients(original, x))


def test_calls_that_are_not_differentiated_or_differ_are_torchs(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = copy.deepcopy(model)
    selector.optimize(model, x)
    with torch.no_grad():
        assert products(model, x, monkeypatch) == []
    layer, given = model[0].query, x.clone()
    expected = original[0].query(x), original[0].key(2 * x)
    torch.testing.assert_close(layer(given), expected[0])
    given.mul_(2)  # the same tensor, with other values
    torch.testing.assert_close(model[0].key(given), expected[1])
    torch.testing.assert_close(torch.func.vmap(model)(x), original(x))
    torch.testing.assert_close(model.to(torch.float64)(x.double()), original.to(torch.float64)(x.double()))


def test_under_autocast_and_torch_compile_it_gives_what_torch_does(model: nn.Module, x: Tensor) -> None:
    original = copy.deepcopy(model)
    selector.optimize(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = (gradients(one, x) for one in (model, original))
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), original(x))


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), _saved])
def test_copies_have_groups_of_their_own(
    copied: Callable[[nn.Module], nn.Module], model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector.optimize(model, x)
    other = copied(model)
    assert getattr(other[0].query, GROUP).members[0] is other[0].query
    assert products(other, x, monkeypatch) == [3, 3]
    expected = model(x)
    with torch.no_grad():
        model[0].query.weight.zero_()
    torch.testing.assert_close(other(x), expected)


class Subclass(nn.Linear):
    pass


def _hooked(one: Attention) -> None:
    one.key.register_forward_hook(lambda *_: None)


def _subclassed(one: Attention) -> None:
    one.key = Subclass(6, 8)


def _patched(one: Attention) -> None:
    one.key.forward = one.key.forward  # type: ignore[method-assign]


def _without_bias(one: Attention) -> None:
    one.key = nn.Linear(6, 8, bias=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_hooked, "they have hooks"),
        (_subclassed, "Subclass is a subclass of Linear"),
        (_patched, "forward of one was replaced"),
        (_without_bias, "differ in dtype, device or bias"),
    ],
)
def test_layers_that_differ_from_what_their_class_made_are_left_alone(
    change: Callable[[Attention], None], words: str, x: Tensor
) -> None:
    model = Attention().train()
    change(model)
    report = selector.optimize(model, x)
    assert report.replaced == ()
    assert any(one.path == "" and words in one.why for one in report.left_alone)


def test_layers_asked_for_by_name_in_inference_or_for_memory_stay_apart(model: nn.Module, x: Tensor) -> None:
    assert [
        one.path for one in selector.optimize(model, x, overrides={"0.key": "torch_linear"}).replaced
    ] == [
        "0",
        "1",
    ]
    assert type(model[0].key) is nn.Linear
    assert type(model[0].query) is JoinedLinear
    again = selector.optimize(model, x)
    assert any("one product already" in one.why for one in again.left_alone)
    selector.restore(model)
    assert selector.optimize(model, x, objective="memory").replaced == ()
    assert selector.optimize(model.eval(), x).replaced == ()


def test_what_is_no_faster_or_not_known_stays_apart(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for together in (3, None):
        monkeypatch.setattr(optimizing, "_alone_ms", lambda *given, ms=together: ms if given[1] else 1)
        assert selector.optimize(model, x).replaced == ()


def test_a_joint_that_computes_something_else_is_put_back(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selector.nn.joined.joined", lambda *given: tuple(2 * one for one in joined(*given)))
    report = selector.optimize(model, x)
    assert report.replaced == ()
    assert all("the model computed something else" in one.why for one in report.left_alone[-2:])
    assert type(model[0].query) is nn.Linear


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_query_key_and_value_of_hugging_faces_models(family: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = getattr(transformers, f"{family}Config")(
        **sizes, intermediate_size=32, max_position_embeddings=20
    )
    model = getattr(transformers, f"{family}ForMaskedLM")(config).train()
    words = torch.randint(3, 40, (2, 8))
    example = {"input_ids": words, "labels": words.clone()}
    report = selector.optimize(model, example)
    assert [one.path.rpartition(".")[2] for one in report.replaced] == ["self", "self"]
    assert [one.problem["out_features"] for one in report.replaced] == [48, 48]
    assert selector.restore(model) == 2
