"""Parts that a model has in the place of those that its class makes, as LoRA's are, and own forwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import selector
from selector.models import layers

pytestmark = pytest.mark.usefixtures("stand_ins")

GROUPS = {"feed_forward": "recompute_first_linear", "dropout_add_norm": "stand_in"}


class LoRA(nn.Linear):
    """As made by LoRA, a layer of which the second factor begins as zero."""

    def __init__(self, of: nn.Linear) -> None:
        super().__init__(of.in_features, of.out_features)
        self.a = nn.Parameter(torch.randn(2, of.in_features))
        self.b = nn.Parameter(torch.zeros(of.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + linear(linear(x, self.a), self.b)


class Wrapped(nn.Module):
    """A layer around another one, whose weights it shows as its own."""

    def __init__(self, of: nn.Linear) -> None:
        super().__init__()
        self.base, self.more = of, nn.Linear(of.in_features, of.out_features)

    def __getattr__(self, name: str) -> Any:
        own = name in ("weight", "bias", "out_features")
        return getattr(self.base, name) if own else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.more(x)
        return y


class Plain(Wrapped):
    """The same without."""

    __getattr__ = nn.Module.__getattr__


class OwnNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class OwnDropout(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * input


class ReLU(nn.Module):
    """None of torch's, in spite of its name."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


def encoder(changes: dict[str, Callable[[Any], nn.Module]]) -> nn.Sequential:
    """Two layers in training, parts of the first replaced; torch's evaluation looks at no part's forward."""
    torch.manual_seed(0)
    made = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)]
    for name, change in changes.items():
        setattr(made[0], name, change(getattr(made[0], name)))
    return nn.Sequential(*made)


CHANGES: dict[str, dict[str, Callable[[Any], nn.Module]]] = {
    "subclass": {"linear1": LoRA},
    "wrapper": {"linear2": Wrapped},
    "norm": {"norm1": lambda _: OwnNorm(8)},
    "other norm": {"norm1": lambda _: nn.RMSNorm(8)},
    "dropout": {"dropout1": lambda _: OwnDropout()},
    "no dropout": {"dropout": lambda _: nn.Identity(), "dropout1": lambda _: nn.Identity()},
    "activation": {"activation": lambda _: ReLU()},
}


def moved(model: nn.Module) -> None:
    """Each weight is another one, as after some training."""
    torch.manual_seed(2)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))


@pytest.mark.parametrize("when", ["before", "since"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_group_with_other_parts_computes_what_they_do(change: str, when: str) -> None:
    model, x = encoder(CHANGES[change] if when == "before" else {}), torch.randn(2, 3, 8)
    replaced = {one.path for one in selector.optimize(model, x, overrides=GROUPS).replaced}
    assert {"1", "1.norm1", "1.norm2"} <= replaced
    if when == "since":
        for name, other in CHANGES[change].items():
            setattr(model[0], name, other(getattr(model[0], name)))
    original = copy.deepcopy(model)
    selector.restore(original)
    moved(model), moved(original)
    torch.testing.assert_close(model(x), original(x))


def test_a_wrapper_without_the_attributes_of_what_is_in_it_is_found_around() -> None:
    found = layers.find(encoder({"linear1": Plain}), torch.randn(2, 3, 8))
    assert {"0.linear1.base", "0.linear1.more", "0.linear2", "1"} <= {layer.path for layer in found}


@pytest.mark.parametrize("part", ["linear1", "linear2", "dropout", "norm1", "dropout2"])
def test_hooks_on_a_part_are_called_from_then_on(part: str) -> None:
    model, x, seen = encoder({}), torch.randn(2, 3, 8), []
    selector.optimize(model, x, overrides=GROUPS)
    hook = model[0].get_submodule(part).register_forward_hook(lambda module, *_: seen.append(module))
    model(x)
    assert seen == [model[0].get_submodule(part)]
    hook.remove()
    model(x)
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_samples_as_one_nested_tensor_are_torchs() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        report = selector.optimize(model, x, overrides=GROUPS)
        assert len(report.replaced) == 6
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), expected)


class Scaled(nn.Linear):
    def forward(self, x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        return scale * super().forward(x)


class Lists(nn.LayerNorm):
    def forward(self, xs: list[Tensor]) -> Tensor:  # type: ignore[override]
        return sum((super(Lists, self).forward(x) for x in xs), torch.zeros(()))


class Weight(nn.Linear):
    def forward(self) -> Tensor:  # type: ignore[override]
        return self.weight


class OwnArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.lists, self.weight, self.relu = Scaled(4, 4), Lists(4), Weight(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.lists([self.scaled(x, scale=2.0), x]) @ self.weight())
        return y


def test_subclasses_whose_forward_takes_other_arguments_are_no_layers() -> None:
    model, x = OwnArguments(), torch.randn(3, 4)
    assert [layer.path for layer in layers.find(model, x)] == ["relu"]
    report = selector.optimize(model, x, overrides={"relu": "stand_in"})
    assert [one.path for one in report.replaced] == ["relu"]
