"""Query, key and value of BERT's attention become one product; others stay apart, and are told why.

What the module then does, against three layers: tests/selector/nn/test_joined.py.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels.operators.linear._joined import joined
from selector.models.rewriting.decisions import DecidedLayers
from selector.nn.joined import JoinedAttention

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
pytestmark = pytest.mark.usefixtures("everything_pays")


@pytest.fixture(autouse=True)
def faster_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecidedLayers, "_alone_ms", lambda _self, _problem, name, _: 1.5 if name else 1)


def published(family: str = "Bert", **more: Any) -> Any:
    """A small one of Hugging Face's, with two layers."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, **more}
    config = getattr(transformers, f"{family}Config")(
        **sizes, intermediate_size=32, max_position_embeddings=20
    )
    return getattr(transformers, f"{family}ForMaskedLM")(config).train()


@pytest.fixture
def model() -> Any:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return published(**still)


@pytest.fixture
def example() -> dict[str, Tensor]:
    words = torch.randint(3, 40, (2, 8), generator=torch.Generator().manual_seed(1))
    return {"input_ids": words, "labels": words.clone()}


def attention(model: Any, layer: int = 0) -> Any:
    return model.bert.encoder.layer[layer].attention.self


def places(report: Any) -> list[str]:
    return [one.path for one in report.replaced if "as one product" in one.why]


EVERY = [f"bert.encoder.layer.{number}.attention.self" for number in range(2)]


def gradients(model: Any, example: dict[str, Tensor]) -> list[Tensor]:
    loss = model(**example).loss
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def products(model: Any, example: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers each joined product of a call has."""
    seen: list[int] = []

    def counting(given: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
        seen.append(len(weights))
        return joined(given, weights, biases)

    with monkeypatch.context() as patch:
        patch.setattr("selector.nn.joined.joined", counting)
        model(**example)
    return seen


def test_a_plan_says_whether_they_become_one(model: Any, example: dict[str, Tensor]) -> None:
    """That of a published model has the product, that of a torch model has three layers."""
    linear = {"in_features": 16, "rows": 16, "dtype": "float32", "mode": "training"}
    one = {"operator": "linear", "implementation": "torch_linear", "count": 2}
    product = SimpleNamespace(**one, hyperparameters={**linear, "out_features": 48})
    apart = SimpleNamespace(**{**one, "count": 8}, hyperparameters={**linear, "out_features": 16})
    single = SimpleNamespace(**{**vars(product), "count": 1})
    for plan, expected in (([product, apart], EVERY), ([single, apart], EVERY[:1]), ([apart], []), ([], [])):
        assert places(selector.optimize(model, example, plan=plan)) == expected
        selector.restore(model)
    assert places(selector.optimize(model, example, memory_limit="1GiB")) == EVERY


def test_a_model_computes_trains_and_is_restored_as_before(
    model: Any, example: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, keys = copy.deepcopy(model), list(model.state_dict())
    identities = list(model.parameters())
    report = selector.optimize(model, example)
    assert places(report) == EVERY
    (first, _) = [one for one in report.replaced if one.path in EVERY]
    assert (first.implementation, first.problem["out_features"]) == ("torch_linear", 48)
    assert "3 layers as one product, 1.5 ms for 3 ms" in str(report)
    assert products(model, example, monkeypatch) == [3, 3]
    with torch.no_grad():
        assert products(model, example, monkeypatch) == []
    assert list(model.state_dict()) == keys
    assert all(mine is other for mine, other in zip(model.parameters(), identities, strict=True))
    torch.testing.assert_close(gradients(model, example), gradients(original, example))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, original)]
    for _ in range(3):
        for one, optimizer in zip((model, original), optimizers, strict=True):
            optimizer.zero_grad()
            one(**example).loss.backward()
            optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(original.parameters()))
    assert selector.restore(model) == len(report.replaced)
    assert [type(one) for one in model.modules()] == [type(one) for one in original.modules()]
    assert attention(model).__dict__.keys() == attention(original).__dict__.keys()


def test_restore_keeps_a_parametrization_of_the_module(model: Any, example: dict[str, Tensor]) -> None:
    selector.optimize(model, example)
    nn.utils.parametrizations.weight_norm(attention(model).key)
    scale = nn.Parameter(torch.ones(1))
    attention(model).scale = scale
    nn.utils.parametrize.register_parametrization(attention(model), "scale", nn.Identity())
    expected = gradients_of_used(model, example)
    selector.restore(model)
    assert not isinstance(attention(model), JoinedAttention)
    torch.testing.assert_close(gradients_of_used(model, example), expected)


def gradients_of_used(model: Any, example: dict[str, Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(model(**example).loss, list(model.parameters()), allow_unused=True))


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), _saved])
def test_copies_are_joined_by_themselves(
    copied: Callable[[nn.Module], Any],
    model: Any,
    example: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    selector.optimize(model, example)
    other = copied(model)
    assert products(other, example, monkeypatch) == [3, 3]
    expected = model(**example).loss
    with torch.no_grad():
        attention(model).query.weight.zero_()
    torch.testing.assert_close(other(**example).loss, expected)


class Subclass(nn.Linear):
    pass


def _hooked(one: Any) -> None:
    one.key.register_forward_hook(lambda *_: None)


def _subclassed(one: Any) -> None:
    one.key = Subclass(16, 16)


def _patched(one: Any) -> None:
    one.key.forward = one.key.forward


def _without_bias(one: Any) -> None:
    one.key = nn.Linear(16, 16, bias=False)


def _replaced(one: Any) -> None:
    one.forward = one.forward


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_hooked, "they have hooks"),
        (_subclassed, "Subclass is a subclass of Linear"),
        (_patched, "forward of one was replaced"),
        (_without_bias, "differ in dtype, device or bias"),
        (_replaced, "the forward of BertSelfAttention was replaced"),
    ],
)
def test_layers_that_differ_from_what_their_class_made_are_left_alone(
    change: Callable[[Any], None], words: str, model: Any, example: dict[str, Tensor]
) -> None:
    change(attention(model))
    report = selector.optimize(model, example)
    assert places(report) == EVERY[1:]
    assert any(one.path == EVERY[0] and words in one.why for one in report.left_alone)


def test_a_forward_of_another_version_is_left_alone(
    model: Any, example: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: Any = type(attention(model))
    before = theirs.forward

    def forward(self: Any, hidden_states: Tensor, head_mask: Tensor | None = None, **rest: Any) -> Any:
        assert head_mask is None
        return before(self, hidden_states, **rest)

    forward.__qualname__ = before.__qualname__
    monkeypatch.setattr(theirs, "forward", forward)
    report = selector.optimize(model, example)
    assert places(report) == []
    assert any("takes other arguments in this version" in one.why for one in report.left_alone)


class Heads(nn.Module):
    """Layers of one input that a module of the user's own calls one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic, self.extra = (nn.Linear(6, 8) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.actor(x), self.critic(x), self.extra(x)


def test_layers_that_are_called_one_by_one_stay_apart_and_a_report_says_what_would_be_faster() -> None:
    model, x = nn.Sequential(Heads()).train(), torch.randn(5, 6)
    report = selector.optimize(model, x)
    assert report.replaced == ()
    assert [type(one) for one in model[0].children()] == [nn.Linear] * 3
    (said,) = (one.why for one in report.left_alone if one.path == "0")
    assert said.startswith("3 layers as one product, 1.5 ms for 3 ms, which they are not: what Heads calls")
    assert "One nn.Linear with the columns of all, split after it" in said
    assert "BertSelfAttention and RobertaSelfAttention" in said
    actor, critic, _ = model(x)
    actor.sum().backward()
    assert model[0].critic.weight.grad is None
    critic.sum().backward()
    assert model[0].extra.weight.grad is None


def test_layers_asked_for_by_name_in_inference_or_for_memory_stay_apart(
    model: Any, example: dict[str, Tensor]
) -> None:
    named = selector.optimize(model, example, overrides={f"{EVERY[0]}.key": "torch_linear"})
    assert places(named) == []
    selector.optimize(model, example)
    again = selector.optimize(model, example)
    assert any("one product already" in one.why for one in again.left_alone)
    selector.restore(model)
    assert places(selector.optimize(model, example, objective="memory")) == []
    selector.restore(model)
    assert places(selector.optimize(model.eval(), example)) == []


def test_what_is_no_faster_or_not_known_stays_apart(
    model: Any, example: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for together in (3, None):
        monkeypatch.setattr(DecidedLayers, "_alone_ms", lambda *given, ms=together: ms if given[2] else 1)
        report = selector.optimize(model, example)
        assert places(report) == []
        assert "as one product" not in str(report)


def test_a_joint_that_computes_something_else_is_put_back(
    model: Any, example: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selector.nn.joined.joined", lambda *given: tuple(2 * one for one in joined(*given)))
    report = selector.optimize(model, example)
    assert places(report) == []
    assert all("the model computed something else" in one.why for one in report.left_alone[-2:])
    assert not any(isinstance(one, JoinedAttention) for one in model.modules())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_robertas_and_models_within_ones_own(implementation: str, example: dict[str, Tensor]) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = published("Roberta", attn_implementation=implementation)

        def forward(self, **words: Tensor) -> Any:
            return self.inner(**words)

    model = Own().train()
    report = selector.optimize(model, example)
    assert places(report) == [f"inner.roberta.encoder.layer.{number}.attention.self" for number in range(2)]
    assert selector.restore(model) == len(report.replaced)
