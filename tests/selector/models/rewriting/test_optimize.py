"""Existing models are rewritten in place, checked, reported on, and restored."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import selector
from kernel_selector.db import Database
from kernel_selector.kernels import registry
from selector import InvalidRequest, UnknownImplementation, UnknownOperator, UnsupportedProblem
from selector import nn as drop_in
from tests.selector.process_groups import alone

pytestmark = pytest.mark.usefixtures("stand_ins")

OVERRIDES = {"lstm": "hoisted", "relu": "stand_in", "attention": "recompute"}


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 12, 2, dropout=0.1)
        self.head = nn.Linear(12, 20)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        y, _ = self.lstm(self.embedding(words))
        return {"loss": cross_entropy(self.head(y).view(-1, 20), words.view(-1)), "states": y}


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel()


@pytest.fixture
def words() -> Tensor:
    return torch.randint(20, (7, 3), generator=torch.Generator().manual_seed(0))


def losses(model: nn.Module, words: Tensor) -> list[float]:
    """Of a few steps without dropout."""
    model.lstm.dropout = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(words)["loss"]
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_language_model_trains_as_before(model: LanguageModel, words: Tensor) -> None:
    original = copy.deepcopy(model)
    identity, keys = model.lstm, list(model.state_dict())
    seen: list[nn.Module] = []
    model.lstm.register_forward_hook(lambda module, *_: seen.append(module))
    report = selector.optimize(model, words, overrides=OVERRIDES)
    assert [(one.path, one.implementation) for one in report.replaced] == [("lstm", "hoisted")]
    assert model.lstm is identity
    assert isinstance(model.lstm, drop_in.LSTM)
    assert "implementation=hoisted" in repr(model)
    assert list(model.state_dict()) == keys
    assert model.head.weight is model.embedding.weight
    assert model.training
    assert model.lstm.dropout == 0.1
    seen.clear()
    assert losses(model, words) == pytest.approx(losses(original, words), rel=1e-4)
    assert seen == [model.lstm] * 4


def test_restoring(model: LanguageModel, words: Tensor) -> None:
    attributes = set(model.lstm.__dict__)
    selector.optimize(model, words, overrides=OVERRIDES)
    assert selector.restore(model) == 1
    assert type(model.lstm) is nn.LSTM
    assert set(model.lstm.__dict__) == attributes
    assert selector.restore(model) == 0


def test_random_numbers_and_modes_are_as_before(model: LanguageModel, words: Tensor) -> None:
    model.head.eval()
    state = torch.random.get_rng_state()
    selector.optimize(model, words, overrides=OVERRIDES)
    assert torch.equal(state, torch.random.get_rng_state())
    assert (model.lstm.training, model.head.training) == (True, False)


def test_the_report_says_what_was_left_alone_and_why(model: LanguageModel, words: Tensor) -> None:
    report = selector.optimize(model, words, overrides=OVERRIDES)
    assert {one.path: one.why.partition(":")[0] for one in report.left_alone} == {
        "head": "its logits are an output of the model, which would be missing"
    }
    text = str(report)
    assert "1 layers replaced, 1 left alone." in text
    assert "lstm -> hoisted (asked for by name" in text
    assert "outputs and gradients agree with the original's" in text
    assert report.to_dict()["replaced"][0]["problem"].startswith("lstm hidden=12")


def test_without_evidence_nothing_is_replaced(model: LanguageModel, words: Tensor, tmp_path: Path) -> None:
    with Database.open(tmp_path / "empty.sqlite", create=True) as database:
        report = selector.optimize(model, words, database=database)
    assert report.replaced == ()
    assert type(model.lstm) is nn.LSTM
    assert "Nothing was replaced" in str(report)


def test_a_transformer() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 12)
    expected = copy.deepcopy(model).eval()(x)
    overrides = {"attention": "recompute", "feed_forward": "recompute_first_linear"}
    report = selector.optimize(model, x, overrides=overrides)
    assert {one.path for one in report.replaced} == {
        f"layers.{number}{part}" for number in (0, 1) for part in ("", ".self_attn")
    }
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), expected)
    model.train()
    assert selector.restore(model) == 4
    assert {type(module) for module in model.modules()} == {
        type(module) for module in copy.deepcopy(model).modules()
    }


def test_copies_files_and_compiled_models(model: LanguageModel, words: Tensor) -> None:
    selector.optimize(model, words, overrides=OVERRIDES)
    model.eval()
    expected = model(words)["states"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(words)["states"], expected)
        assert selector.restore(other) == 1
    torch.testing.assert_close(torch.compile(model, backend="eager")(words)["states"], expected)


def test_gradient_accumulation_and_checkpointing(model: LanguageModel, words: Tensor) -> None:
    selector.optimize(model, words, overrides=OVERRIDES)
    model.lstm.dropout = 0.0
    model(words)["loss"].backward()
    once = model.lstm.weight_hh_l0.grad.clone()
    checkpointed = torch.utils.checkpoint.checkpoint(lambda: model(words)["loss"], use_reentrant=False)
    checkpointed.backward()
    torch.testing.assert_close(model.lstm.weight_hh_l0.grad, 2 * once)


@pytest.mark.usefixtures("autocast_lstm")
def test_autocast(model: LanguageModel, words: Tensor) -> None:
    original = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        report = selector.optimize(model, words, overrides=OVERRIDES)
        assert report.replaced[0].problem["dtype"] == "bfloat16"
        model.eval(), original.eval()
        mine, other = model(words)["states"], original(words)["states"]
    torch.testing.assert_close(mine.float(), other.float(), rtol=0.03, atol=0.02)


def test_data_parallel_training(model: LanguageModel, words: Tensor) -> None:
    original = copy.deepcopy(model)
    with alone():
        selector.optimize(model, words, overrides=OVERRIDES)
        model.lstm.dropout = original.lstm.dropout = 0.0
        parallel = nn.parallel.DistributedDataParallel(model)
        for one in (parallel, original):
            one(words)["loss"].backward()
        for mine, other in zip(model.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)


class OwnLSTM(nn.LSTM):
    pass


def patched(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def hooked(model: nn.Module) -> nn.Module:
    model.linear1.register_forward_hook(lambda *_: None)
    return model


LEFT_ALONE = {
    "subclass": (nn.Sequential(OwnLSTM(4, 4)), "OwnLSTM is a subclass of LSTM"),
    "forward": (nn.Sequential(patched(nn.ReLU())), "its forward was replaced on this module"),
    "in place": (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), "it works in place"),
    "hooks": (
        nn.Sequential(hooked(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))),
        "Linear inside it has hooks, which would not be called",
    ),
    "ours": (nn.Sequential(drop_in.ReLU()), "it chooses by itself already"),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case: str) -> None:
    model, reason = LEFT_ALONE[case]
    kinds = [type(module) for module in model.modules()]
    overrides = {**OVERRIDES, "feed_forward": "recompute_first_linear"}
    del overrides["attention"]
    report = selector.optimize(model, torch.randn(2, 3, 4), overrides=overrides)
    assert any(reason in one.why for one in report.left_alone), report
    assert report.replaced == ()
    assert [type(module) for module in model.modules()] == kinds


def test_a_module_used_twice_is_replaced_once() -> None:
    shared = nn.ReLU()
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    report = selector.optimize(model, torch.randn(3, 4), overrides=OVERRIDES)
    assert len(report.replaced) == 1
    assert model[0] is model[2] is shared


def test_other_shapes_than_the_examples(model: LanguageModel, words: Tensor) -> None:
    selector.optimize(model, words, overrides=OVERRIDES)
    original = copy.deepcopy(model)
    selector.restore(original)
    for shape in ((3, 2), (9, 5), (1, 1)):
        other = torch.randint(20, shape)
        model.eval(), original.eval()
        torch.testing.assert_close(model(other)["states"], original(other)["states"])


def test_what_computes_something_else_is_put_back(
    model: LanguageModel, words: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(nn.LSTM):
        def forward(self, input: Any, hx: Any = None) -> Any:
            y, states = super().forward(input, hx)
            return y * 1.01, states

    right = registry.implementation("lstm", "hoisted")
    wrong = replace(right, build=lambda _problem: Wrong(12, 12, 2, dropout=0.1))
    monkeypatch.setitem(registry.implementations("lstm"), "hoisted", wrong)
    report = selector.optimize(model, words, overrides=OVERRIDES)
    assert report.replaced == ()
    assert "put back, because the model computed something else: output[" in report.left_alone[-1].why
    assert type(model.lstm) is nn.LSTM


def test_bad_arguments(model: LanguageModel, words: Tensor) -> None:
    with pytest.raises(InvalidRequest, match="model of type int"):
        selector.optimize(3, words)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="objective='speed': expected one of throughput, memory"):
        selector.optimize(model, words, objective="speed")
    with pytest.raises(
        UnknownOperator, match="overrides: 'lsmt' is neither a module of the model nor an operator"
    ):
        selector.optimize(model, words, overrides={"lsmt": "hoisted"})
    with pytest.raises(UnknownImplementation):
        selector.optimize(model, words, overrides={"lstm": "nothing"})
    with pytest.raises(UnsupportedProblem, match="only GPUs have CUDA graphs"):
        selector.optimize(model, words, overrides={"lstm": "fused_graph"})
    with pytest.raises(InvalidRequest, match="example_inputs of type int"):
        selector.optimize(model, 3)
    with pytest.raises(InvalidRequest, match="model is compiled already"):
        selector.optimize(torch.compile(model, backend="eager"), words)
    with torch.device("meta"), pytest.raises(InvalidRequest, match="on the meta device"):
        selector.optimize(LanguageModel(), words)
    assert type(model.lstm) is nn.LSTM
