"""A step's time is taken as a user's step goes, and leaves everything as it was."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from selector.models.rewriting.timing import Steps


class Waiting(nn.Module):
    """Takes 10 ms, draws random numbers, counts its calls, and gives what `form` makes of y."""

    def __init__(self, form: object = lambda y: y) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(2, 2), form
        self.register_buffer("calls", torch.zeros(()))
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> object:
        time.sleep(0.01)
        self.calls += 1
        self.modes.append(torch.is_grad_enabled())
        return self.form(nn.functional.dropout(self.linear(x), 0.5))  # type: ignore[operator]


@pytest.mark.parametrize("gradients", [True, False])
def test_steps_take_their_time_and_change_nothing(gradients: bool) -> None:
    model = Waiting().train(gradients)
    model.linear.bias.grad = torch.ones(2)
    random = torch.get_rng_state()
    steps = Steps(model, torch.ones(1, 2), gradients=gradients)
    took = steps(3)
    assert len(took) == 3
    assert all(ms >= 10 for ms in took)
    assert steps.passes == ("forward and backward" if gradients else "forward")
    assert model.calls == 0
    assert model.modes == []
    assert model.linear.weight.grad is None
    assert torch.equal(model.linear.bias.grad, torch.ones(2))
    assert torch.equal(torch.get_rng_state(), random)


def test_frozen_models_have_no_backward() -> None:
    steps = Steps(Waiting().requires_grad_(False), torch.ones(1, 2), gradients=True)
    assert steps.passes == "forward"
    steps(1)


FORMS = {
    "by name": (lambda y: {"loss": y.sum(), "logits": y * 2}, 1),
    "a scalar": (lambda y: (y.sum(), y * 2), 1),
    "all": (lambda y: (y, y * 2, y.argmax()), 2),
    "data class without": (lambda y: SimpleNamespace(y=y), 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_backward_begins_where_a_users_does(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, count = FORMS[form]
    seen: list[int] = []
    grad = torch.autograd.grad

    def counting(outputs: list[Tensor], *args: object, **kwargs: object) -> object:
        seen.append(len(outputs))
        return grad(outputs, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "grad", counting)
    Steps(Waiting(make), torch.ones(1, 2), gradients=True)(1)
    assert seen == [count] * bool(count)
