"""Storage of parameters belongs to the caller: no implementation that runs on a processor changes it."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import parameter_storage as storage
import pytest
from made_devices import CPU
from torch import nn
from torch.nn.functional import linear

from kernel_selector.kernels import registry

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]


def example(operator):
    """The last example, without what makes two runs differ."""
    return {**registry.operator(operator).examples[-1], **({"dropout": 0.0} if _drops(operator) else {})}


def _drops(operator):
    return "dropout" in {one.name for one in registry.operator(operator).hyperparameters}


def runs_here(operator, name):
    problem = registry.operator(operator).problem(example(operator))
    return registry.implementation(operator, name).unsupported(problem, CPU) is None


HERE = [
    (operator, name)
    for operator in registry.operators()
    for name in registry.implementations(operator)
    if runs_here(operator, name)
]
STATEFUL = [pair for pair in HERE if storage.built(*pair, example(pair[0]))[0].state_dict()]


EVERY = [(operator, name) for operator in registry.operators() for name in registry.implementations(operator)]


def buildable(operator, name):
    """A module for the last of the examples that the implementation builds one for, wherever that runs."""
    for shape in reversed(registry.operator(operator).examples):
        try:
            return registry.implementation(operator, name).build(registry.operator(operator).problem(shape))
        except (NotImplementedError, TypeError, ValueError):
            continue
    raise AssertionError(f"{operator}.{name} builds none of the examples")


@pytest.mark.parametrize(("operator", "name"), EVERY)
def test_every_module_is_copied_and_pickled(operator, name):
    module = buildable(operator, name)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert storage.layouts(other) == storage.layouts(module)


@pytest.fixture(scope="module")
def one_process():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GLOO_SOCKET_IFNAME", "lo")
        with storage.process_group("gloo"):
            yield


@pytest.mark.parametrize(("operator", "name"), STATEFUL)
def test_storage_is_kept(operator, name):
    storage.assert_kept(*storage.built(operator, name, example(operator)))
    module, args = storage.built(operator, name, example(operator))
    next(module.parameters()).requires_grad_(False)
    storage.assert_kept(storage.flattened(module), args)


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("operator", "name"), STATEFUL)
@pytest.mark.usefixtures("one_process")
def test_steps_of_wrapped_modules_are_those_of_the_bare_one(operator, name, how):
    bare, wrapped = (
        storage.losses(*storage.built(operator, name, example(operator)), one) for one in ("bare", how)
    )
    assert wrapped == pytest.approx(bare, rel=1e-4)


class Transposing(nn.Linear):
    """Lays its weight out transposed when it is called."""

    def forward(self, x, _residual):
        self.weight.data = self.weight.data.t().contiguous().t()
        return linear(x, self.weight, self.bias)


class Replacing(Transposing):
    """Has another parameter of the same values after a call."""

    def forward(self, x, _residual):
        self.weight = nn.Parameter(self.weight.detach())
        return linear(x, self.weight, self.bias)


class Scaling(Transposing):
    """Changes its weight's values in a backward pass."""

    def forward(self, x, _residual):
        y = linear(x, self.weight, self.bias)
        if y.requires_grad:
            y.register_hook(self._scale)
        return y

    def _scale(self, _gradient):
        self.weight.data.mul_(1.5)


class Unfreezing(Transposing):
    """Has its weight frozen after a call, or not frozen any more."""

    def forward(self, x, _residual):
        self.weight.requires_grad_(not self.weight.requires_grad)
        return linear(x, self.weight, self.bias)


def _transposed(*sizes):
    module = nn.Linear(*sizes)
    module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    return module


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Transposing, "a call without gradients"),
        (Replacing, "a call without gradients"),
        (Unfreezing, "a call without gradients"),
        (Scaling, "a backward pass changed weight"),
        (_transposed, "built as no module of torch's is"),
    ],
)
def test_what_changes_storage_is_found_out(kind, words, monkeypatch):
    def build(problem):
        return kind(problem["in_features"], problem["out_features"], problem["bias"])

    known = registry.implementations("linear")
    planted = dataclasses.replace(known["column_major"], name="planted", build=build)
    monkeypatch.setattr(registry, "implementations", lambda _: {**known, "planted": planted})
    with pytest.raises(AssertionError, match=words):
        storage.assert_kept(*storage.built("linear", "planted", example("linear")))
