"""Blocks that are replayed train as they do without: on the CPU runs stand in for CUDA graphs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels.contract import Problem
from selector import Selector
from selector import nn as drop_in
from selector.models.replay import capture as captures
from selector.models.replay import replay as replaying
from selector.models.rewriting import optimize as optimizing
from selector.models.rewriting import timing, trials
from selector.models.rewriting.device_times import DeviceTimes
from selector.models.rewriting.swap import REPLACED_CLASS
from selector.nn.replays import Replayed
from tests.selector.models.rewriting.replayed import Block, Model, counts, draws, record, trained, turn_on


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_as_without(model: Model, given: Any, accumulate: int) -> None:
    plain = copy.deepcopy(model)
    turn_on(model, given)
    assert all(isinstance(layer, Replayed) and isinstance(layer, Block) for layer in model.layers)
    found, expected = trained(model, draws(6), accumulate), trained(plain, draws(6), accumulate)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert counts(model) == (18, 18)
    assert "replayed=18 of 18 calls in training" in repr(model)


def test_gradients_are_the_callers_to_keep(model: Model, given: Any) -> None:
    turn_on(model, given)
    model(*given).sum().backward()
    kept = [(one.grad, one.grad.clone()) for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    (2 * model(*draws(1)[0])).sum().backward()
    assert len(kept) == len(list(model.parameters()))
    for gradient, before in kept:
        torch.testing.assert_close(gradient, before, rtol=0, atol=0)


def test_inputs_frozen_weights_and_a_leaf_get_the_gradients_they_should() -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)).train()
    blocks[0].weight.requires_grad_(False)
    blocks[2].weight = blocks[1].weight  # tied
    plain = copy.deepcopy(blocks)
    x = torch.randn(3, 4).requires_grad_()
    turn_on(blocks, x)
    for module, leaf in ((blocks, x), (plain, other := x.detach().clone().requires_grad_())):
        for _ in range(2):
            module(leaf).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    for one, its in zip(blocks.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, its.grad)


def test_blocks_of_which_optimize_replaced_some_are_one_stack(model: Model, given: Any) -> None:
    class Replaced(Block):
        pass

    plain = copy.deepcopy(model)
    model.layers[1].__class__ = Replaced
    assert not list(replaying.find(model))
    setattr(model.layers[1], REPLACED_CLASS, Block)
    turn_on(model, given)
    found, expected = trained(model, draws(3)), trained(plain, draws(3))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert counts(model) == (9, 9)


class Turns(nn.Module):
    """What it computes hangs on how often it ran before, as what is dropped does on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("turn", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.turn.add_(1)
        return x + self.turn.clone() * self.inner(x)


def test_a_graph_is_judged_by_a_run_that_began_as_it_did() -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(Turns(), Turns()).train()
    plain, x = copy.deepcopy(blocks), torch.randn(3, 4)

    def captured(run: Any) -> Any:  # computes nothing, unlike its stand-in
        before = [one.clone() for one in blocks.buffers()]
        found = record(run)
        for one, was in zip(blocks.buffers(), before, strict=True):
            one.data.copy_(was)
        return found

    turn_on(blocks, x, captured)
    for _ in range(3):
        torch.testing.assert_close(blocks(x), plain(x))


def test_what_an_earlier_pass_still_needs_is_left_to_it(model: Model, given: Any) -> None:
    plain = copy.deepcopy(model)
    turn_on(model, given)
    (x, mask), (other, other_mask) = draws(2)
    first, second = model(x, mask).sum(), model(other, other_mask).sum()
    assert counts(model) == (3, 6)
    (first + second).backward()
    (plain(x, mask).sum() + plain(other, other_mask).sum()).backward()
    for one, its in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, its.grad)
    del first, second
    model(x, mask)  # dropped without backward
    model(x, mask).sum().backward()
    assert counts(model) == (9, 12)


def test_what_a_block_gave_stays_as_long_as_it_is_held(model: Model, given: Any) -> None:
    turn_on(model, given)
    held: list[Tensor] = []
    hook = model.layers[0].register_forward_hook(lambda _module, _args, result: held.append(result[0]))
    model(*given).sum().backward()
    hook.remove()
    before = held[0].detach().clone()
    model(*draws(1)[0]).sum().backward()
    torch.testing.assert_close(held[0].detach(), before, rtol=0, atol=0)
    assert counts(model) == (3, 6)
    held.clear()
    model(*given).sum().backward()
    assert counts(model) == (6, 9)


def test_a_second_backward_is_refused(model: Model, given: Any) -> None:
    turn_on(model, given)
    loss = model(*given).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_second_derivative_is_refused(model: Model, given: Any) -> None:
    turn_on(model, given)
    (first,) = torch.autograd.grad(model(*given).sum(), [model.embedding.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


def test_an_output_that_is_changed_in_place_is_refused() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.changes = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), False

        def forward(self, x: Tensor) -> Tensor:
            y = self.layers[0](x)
            if self.changes:
                with torch.no_grad():
                    y.add_(1)
            return self.layers[1](y)

    model, x = Changing().train(), torch.ones(2, 4)
    turn_on(model, x)
    model.changes = True
    with pytest.raises(RuntimeError, match="changed in place"):
        model(x).sum().backward()


def test_copies_and_weights_are_as_before(model: Model, given: Any) -> None:
    names = list(model.state_dict())
    turn_on(model, given)
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(layer) for layer in other.layers] == [Block] * 3
        torch.testing.assert_close(other(*given), model(*given))
    assert selector.restore(model) == 3
    assert [type(layer) for layer in model.layers] == [Block] * 3
    assert selector.restore(model) == 0


def theirs(kind: str) -> nn.Module:
    """A tiny model of Hugging Face's without dropout."""
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    torch.manual_seed(0)
    if kind == "gpt2":
        shares = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 32}
        ends = {"bos_token_id": 1, "eos_token_id": 2}
        config = transformers.GPT2Config(vocab_size=50, use_cache=False, **ends, **sizes, **shares)
        return transformers.GPT2LMHeadModel(config).train()
    shares = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=50, attn_implementation="sdpa", **sizes, **shares)
    return transformers.BertForMaskedLM(config).train()


LOSS_ALONE = {"outputs": ("loss",), "overrides": {"linear_cross_entropy": "chunked"}}


@pytest.mark.parametrize("options", [None, {}, LOSS_ALONE])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_hugging_faces_layers_are_replayed(kind: str, options: Any, sqlite_database: Any) -> None:
    def words(seed: int) -> dict[str, Tensor]:
        ids = torch.randint(3, 50, (2, 16), generator=torch.Generator().manual_seed(seed))
        return {"input_ids": ids, "labels": ids.clone()}

    model = theirs(kind)
    plain = copy.deepcopy(model)
    if options is not None:
        selector.optimize(model, words(0), database=sqlite_database, **options)
    turn_on(model, words(0))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, plain)]
    for step in range(3):
        # what a training loop holds while the next step begins: outputs and their loss
        found, expected = model(**words(step)), plain(**words(step))
        assert (found.logits is None) == (options is LOSS_ALONE)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4, atol=1e-5)
        found.loss.backward()
        expected.loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert "replayed=9 of 9 calls in training" in repr(model)


@pytest.fixture
def graphs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`replay` and `optimize` take a model on a CPU, and tapes stand in for CUDA graphs."""

    @contextmanager
    def beside(_device: torch.device) -> Iterator[captures.Recorder]:
        with torch.enable_grad():
            yield record

    monkeypatch.setattr(replaying, "_capture_stream", beside)
    monkeypatch.setattr(replaying, "check", lambda _model: None)


def steps_take(monkeypatch: pytest.MonkeyPatch, replayed_ms: float) -> None:
    """10 ms launched, and so long with blocks replayed; one step is run."""
    step = timing.Steps.__call__

    def steps(self: timing.Steps, count: int) -> list[float]:
        step(self, 1)
        replaying_now = any(isinstance(part, Replayed) for part in self._model.modules())
        return [replayed_ms if replaying_now else 10.0] * count

    monkeypatch.setattr(timing.Steps, "__call__", steps)


@pytest.mark.usefixtures("graphs_on_a_cpu")
@pytest.mark.parametrize("faster", [True, False])
def test_graphs_are_kept_where_steps_are_faster_with_them(
    model: Model, given: tuple[Tensor, Tensor], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(monkeypatch, 5.0 if faster else 12.0)
    classes = [type(block) for block in model.layers]
    for _ in range(2):  # again, of a model that is replayed
        (stack,) = selector.replay(model, given)
        assert (stack.refused is None) is faster
        assert all(isinstance(block, Replayed) is faster for block in model.layers)
    if not faster:
        assert "is slower here: a step takes 1.20 (1.20 to 1.20) times as long with it" in str(stack)
        assert [type(block) for block in model.layers] == classes
    else:
        trained(model, draws(2))
        assert counts(model) == (6, 6)
        assert selector.restore(model) == 3


@pytest.mark.usefixtures("graphs_on_a_cpu")
def test_where_memory_is_short_for_both_they_are_timed_one_after_the_other(
    model: Model, given: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_pairs(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    steps_take(monkeypatch, 5.0)
    monkeypatch.setattr(trials, "time_pairs", time_pairs)
    (stack,) = selector.replay(model, given)
    assert stack.refused is None
    assert all(isinstance(block, Replayed) for block in model.layers)


def steps_of_replayed_blocks(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Steps take 10 ms, 5 with replayed blocks, and `factor` times that with norms of ours."""

    def steps(self: timing.Steps, count: int) -> list[float]:
        layers: Any = self._model
        ms = 5.0 if isinstance(layers.layers[0], Replayed) else 10.0
        return [ms * (factor if isinstance(layers.layers[0].norm, drop_in.LayerNorm) else 1)] * count

    monkeypatch.setattr(optimizing, "_not_replayed", lambda _model: None)
    monkeypatch.setattr(timing.Steps, "__call__", steps)


@pytest.mark.usefixtures("graphs_on_a_cpu", "stand_ins")
@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_device_time_is_that_of_replayed_steps(
    model: Model, given: tuple[Tensor, Tensor], factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Selector.choose

    def promising(self: Selector, operator: str, **more: Any) -> Any:
        return choose(
            self, operator, **{**more, "override": "stand_in" if operator == "layer_norm" else None}
        )

    monkeypatch.setattr(Selector, "choose", promising)
    steps_of_replayed_blocks(monkeypatch, factor)
    report = selector.optimize(model, given, objective="device_time")
    after = 5 * min(factor, 1)
    assert report.first_line.startswith(f"A step (forward and backward) took 10 ms and takes {after:.3g} ms")
    assert len(report.replaced) == (3 if factor < 1 else 0)
    assert "3 blocks of layers: replayed in training" in report.notes
    rows = {one.name: one for one in report.arrangements}
    assert (report.kept, rows["replayed"].step_ms, rows["replayed"].replaced) == (
        "replayed",
        after,
        len(report.replaced),
    )
    assert rows["ours"].why == (
        "its layers are in the replayed one"
        if factor < 1
        else "slower than replayed: 1.20 (1.20 to 1.20) times as long"
    )
    assert all(isinstance(block, Replayed) for block in model.layers)
    trained(model, draws(2))
    assert counts(model) == (6, 6)
    selector.restore(model)
    assert not any(isinstance(part, Replayed) for part in model.modules())


@pytest.mark.usefixtures("graphs_on_a_cpu", "stand_ins")
@pytest.mark.parametrize(
    ("factor", "why"),
    [
        (0.8, None),
        (1.2, "slower than replayed: 1.20 (1.20 to 1.20) times as long"),
        (None, "none of its layers can be replaced"),
    ],
)
def test_replayed_blocks_get_the_layers_that_are_fastest_on_the_device(
    model: Model,
    given: tuple[Tensor, Tensor],
    factor: float | None,
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faster(self: DeviceTimes, problem: Problem) -> tuple[str, str] | None:
        named = problem.operator == "layer_norm" and factor is not None and self._replayed
        return ("stand_in", "1 us of the device's time") if named else None

    monkeypatch.setattr(DeviceTimes, "faster", faster)
    steps_of_replayed_blocks(monkeypatch, factor or 1)
    report = selector.optimize(model, given, arrangements=("ours", "replayed", "replayed_ours"))
    rows = {one.name: one for one in report.arrangements}
    assert rows["replayed"].step_ms == 5.0
    assert rows["replayed_ours"].why == why
    assert report.kept == ("replayed" if why else "replayed_ours")
    assert [one.path for one in report.replaced] == ([] if why else [f"layers.{at}.norm" for at in range(3)])
    assert "3 blocks of layers: replayed in training" in report.notes
    assert all(isinstance(block, Replayed) for block in model.layers)
    trained(model, draws(2))
    assert counts(model) == (6, 6)
    selector.restore(model)
    assert not any(isinstance(part, Replayed) for part in model.modules())


@pytest.mark.usefixtures("graphs_on_a_cpu", "stand_ins")
@pytest.mark.parametrize("objective", ["throughput", "device_time"])
def test_the_same_layers_are_not_replayed_twice(
    model: Model, given: tuple[Tensor, Tensor], objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faster(_times: DeviceTimes, problem: Problem) -> tuple[str, str] | None:
        return ("stand_in", "less of the device's time") if problem.operator == "layer_norm" else None

    monkeypatch.setattr(DeviceTimes, "faster", faster)
    steps_of_replayed_blocks(monkeypatch, 0.8)
    report = selector.optimize(
        model, given, arrangements=("ours", "replayed", "replayed_ours"), objective=objective
    )
    rows = {one.name: one for one in report.arrangements}
    assert (report.kept, rows["replayed"].replaced) == ("replayed", 3)
    assert rows["replayed_ours"].why == "its layers are those of replayed"


def test_a_replayed_model_that_nothing_is_faster_in_stays_replayed(
    model: Model, given: tuple[Tensor, Tensor], sqlite_database: Any
) -> None:
    turn_on(model, given)
    assert selector.optimize(model, given, database=sqlite_database).replaced == ()
    trained(model, draws(2))
    assert counts(model) == (6, 6)
