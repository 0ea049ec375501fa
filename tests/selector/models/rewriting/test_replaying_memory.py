"""The graphs' memory is used again when nobody reads it, and graphs read what a call was given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector.models.replay import capture as captures
from selector.models.replay import replay as replaying
from tests.selector.models.rewriting.replayed import Layers, Scaled, drawn, replays, turn_on


def agree(model: nn.Module, plain: nn.Module, *given: Any, steps: int = 2) -> None:
    """Outputs and gradients of some passes."""
    for _ in range(steps):
        for one in (model, plain):
            one.zero_grad()
        found, expected = model(*given), plain(*given)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_between_blocks_the_example_leaves_no_memory() -> None:
    model, mask = Layers(Scaled, lambda block, y, mask: block(y, mask)), drawn(1)
    model.start.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    calls = captures.without_activations(replaying.recorded(model, (drawn(0), mask), model.layers))
    held = [[one.untyped_storage().nbytes() > 0 for one in (*call.args, call.result)] for call in calls]
    of_block = [True, True]  # the first has nothing to train: it runs as before
    assert held == [[*of_block, True], [*of_block, False], [False, True, False]]
    assert [call.args[0].requires_grad for call in calls] == [False, False, True]
    assert calls[2].args[0] is calls[1].result
    assert calls[1].args[0] is calls[0].result


def test_what_was_one_argument_in_the_example_may_be_two() -> None:
    def call(block: nn.Module, y: Tensor, first: Tensor, last: Tensor) -> Tensor:
        return block(y, last if block.is_last else first)

    model = Layers(Scaled, call)
    for place, layer in enumerate(model.layers):
        layer.is_last = place == 2
    plain, mask = copy.deepcopy(model), drawn(1)
    turn_on(model, (drawn(0), mask, mask))
    agree(model, plain, drawn(2), drawn(3), drawn(4))
    assert replays(model) == (4, 6)
    agree(model, plain, drawn(2), mask, mask)
    assert replays(model) == (10, 12)


def test_an_argument_that_is_changed_between_blocks_is_not_read_late() -> None:
    def call(block: nn.Module, y: Tensor, mask: Tensor) -> Tensor:
        if block.changes:
            mask = mask.mul_(2)
        return block(y, mask)

    model = Layers(Scaled, call)
    for layer in model.layers:
        layer.changes = False
    turn_on(model, (drawn(0), drawn(1)))
    plain = copy.deepcopy(model)
    model.layers[1].changes = plain.layers[1].changes = True
    found, expected = model(drawn(2), drawn(3)), plain(drawn(2), drawn(3))
    torch.testing.assert_close(found, expected)
    assert replays(model) == (1, 3)


@pytest.mark.parametrize("both", [True, False])
def test_outputs_that_are_one_tensor_have_gradients_of_their_own(both: bool) -> None:
    def call(block: nn.Module, y: Any) -> Any:
        first, second = y if isinstance(y, tuple) else (y, y)
        return block(first + 2 * second if both else first)

    model = Layers(lambda: Scaled(lambda _module, y: (y, y)), call)
    whole, plain = nn.Sequential(model, First()), nn.Sequential(copy.deepcopy(model), First())
    turn_on(model, drawn(0))
    agree(whole, plain, drawn(2))
    assert replays(model) == (6, 6)


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0]


def test_a_gradient_that_is_passed_through_is_not_written_over() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3, 4))

        def forward(self, x: Tensor, before: Tensor) -> Tensor:
            return x + before + self.bias

    class Dense(Layers):
        def forward(self, x: Tensor, *_: Any) -> Tensor:
            first = self.start(x)
            second = self.layers[0](first, first)
            third = self.layers[1](second, first)
            return self.layers[2](third, second) + 3 * third.square()

    model = Dense(Sum)
    plain = copy.deepcopy(model)
    turn_on(model, drawn(0))
    agree(model, plain, drawn(2))
    assert replays(model) == (6, 6)


def another_buffer(block: Any) -> None:
    block.shift = torch.tensor(2.0)


def another_part(block: Any) -> None:
    block.drop = nn.ReLU()


def another_share(block: Any) -> None:
    block.drop.p = 1.0


def an_adapter(block: Any) -> None:
    block.linear = nn.Sequential(block.linear, nn.Linear(4, 4))


def another_bias(block: Any) -> None:
    block.linear.register_parameter("bias", nn.Parameter(torch.ones(4)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", [another_buffer, another_part, another_share, an_adapter, another_bias])
def test_modules_that_have_changed_run_by_themselves(change: Callable[[Any], None], after: bool) -> None:
    model = Layers(Scaled)
    turn_on(model, drawn(0))
    if after:
        model(drawn(1)).sum().backward()
    for layer in model.layers:
        torch.manual_seed(1)
        change(layer)
    plain = copy.deepcopy(model)
    before = replays(model)[0]
    agree(model, plain, drawn(2))
    assert replays(model)[0] == before


@pytest.mark.parametrize("keep", [Tensor.detach, lambda y: y.detach().numpy(), lambda y: y[1:]])
def test_what_is_held_of_an_output_stays(keep: Callable[[Tensor], Any]) -> None:
    model, held = Layers(Scaled), []
    turn_on(model, drawn(0))
    hook = model.layers[0].register_forward_hook(lambda _module, _args, y: held.append(keep(y)))
    model(drawn(1)).sum().backward()
    hook.remove()
    before = torch.as_tensor(held[0]).detach().clone()
    model(drawn(2)).sum().backward()
    torch.testing.assert_close(torch.as_tensor(held[0]).detach(), before, rtol=0, atol=0)
    assert replays(model) == (3, 6)
    held.clear()
    model(drawn(2)).sum().backward()
    assert replays(model) == (6, 9)


def test_what_is_held_of_a_gradient_between_blocks_stays() -> None:
    model, held = Layers(Scaled), []
    turn_on(model, drawn(0))

    def watch(_module: nn.Module, _args: Any, y: Tensor) -> None:
        y.register_hook(held.append)

    hook = model.layers[0].register_forward_hook(watch)
    model(drawn(1)).sum().backward()
    hook.remove()
    before = held[0].clone()
    (5 * model(drawn(2))).sum().backward()
    torch.testing.assert_close(held[0], before, rtol=0, atol=0)
    assert replays(model) == (3, 6)


def test_a_weight_that_is_changed_before_backward_is_refused() -> None:
    model = Layers(Scaled)
    turn_on(model, drawn(0))
    loss = model(drawn(1)).sum()
    with torch.no_grad():
        model.layers[1].linear.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_arguments_in_another_form_are_another_call() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, pair: Any, more: Tensor | None = None) -> Tensor:
            scale = pair[0] * pair[1] if isinstance(pair, tuple) else pair - more
            return self.linear(x) * scale

    model = Layers(Pair, lambda block, y, together, *pair: block(y, pair) if together else block(y, *pair))
    plain = copy.deepcopy(model)
    turn_on(model, (drawn(0), True, drawn(1), drawn(2)))
    agree(model, plain, drawn(3), False, drawn(1), drawn(2))
    assert replays(model)[0] == 0


def test_buffers_that_a_block_keeps_are_kept() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.linear(x))

    model = Layers(Normed)
    plain = copy.deepcopy(model)
    turn_on(model, drawn(0))
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        one.data.copy_(other)  # a tape runs while it records, which graphs do not
    agree(model, plain, drawn(2))
    assert replays(model) == (6, 6)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_not_trained_at_the_beginning_runs_as_before() -> None:
    model = Layers(Scaled)
    model.start.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    plain = copy.deepcopy(model)
    turn_on(model, drawn(0))
    for _ in range(2):
        for one in (model, plain):
            one(drawn(1)).square().sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert replays(model) == (4, 4)


def test_a_hook_on_a_block_may_give_something_else() -> None:
    model = Layers(Scaled)
    model.layers[0].register_forward_hook(lambda _module, _args, y: 2 * y)
    plain = copy.deepcopy(model)
    turn_on(model, drawn(0))
    agree(model, plain, drawn(2))
    assert replays(model) == (6, 6)


def test_tensors_of_inference_run_by_themselves() -> None:
    model = Layers(Scaled, lambda block, y, mask: block(y, mask))
    turn_on(model, (drawn(0), drawn(1)))
    with torch.inference_mode():
        mask = drawn(1)
    with torch.no_grad():
        model(drawn(2), mask)
    assert replays(model)[0] == 0


def test_what_was_compiled_is_captured_as_it_is() -> None:
    """Compiled anew, it would forget within which budget it was to keep tensors."""
    compilations = []

    def backend(graph: torch.fx.GraphModule, _example: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    call = torch.compile(lambda x: x.relu() + 1, backend=backend)
    call(torch.ones(3))
    with replaying._without_autocast_cache():
        call(torch.ones(3))
    assert len(compilations) == 1


def test_what_autocast_casts_is_no_graphs(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.set_autocast_enabled("cuda", False))
    torch.set_autocast_enabled("cuda", True)
    with replaying._without_autocast_cache():
        assert not torch.is_autocast_cache_enabled()
    assert torch.is_autocast_cache_enabled()
