"""Numerical comparison of a rewritten model with the original: outputs and gradients, without dropout.

Both round. What a deep model's gradients differ by on that account alone is found by running the original
once more with each weight one step of its dtype up or down: what another implementation differs by may be
twice as much, as at the gate, and as much as the gate's table allows in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from kernel_selector.kernels.gate.tolerance import TOLERANCES, Error, scales

from ..example import arguments_of, undisturbed
from .outputs import Outputs, used

Tensors = dict[str, Tensor]
KNOWN = {dtype for dtype, _ in TOLERANCES}


def results(
    model: nn.Module,
    example_inputs: Any,
    *,
    gradients: bool,
    outputs: Outputs | None = None,
    as_called: bool = False,
) -> Tensors:
    """Outputs by name and, with `gradients`, those of all parameters and inputs for a weighted sum of
    outputs.

    Modules are in evaluation mode but recurrent ones, which cuDNN only differentiates in training, and drop
    nothing. `as_called` leaves modes as they are, and inputs without gradients that the example wants none
    of: what was compiled for a step is then what runs. Only the `outputs` named count, where they are. The
    model is left as it was.
    """
    args, kwargs = arguments_of(example_inputs)
    leaves, form = tree_flatten((args, kwargs))
    own = {id(leaf): _leaf(leaf, gradients, as_called) for leaf in leaves}
    taken = {key: _changeable(leaf) for key, leaf in own.items()}
    given = [own[id(leaf)] for leaf in leaves]
    args, kwargs = tree_unflatten([taken[id(leaf)] for leaf in leaves], form)
    modes = nullcontext() if as_called else _without_dropout(model)
    with undisturbed(model), modes, torch.set_grad_enabled(gradients):
        given_back = {
            f"output[{place}]": leaf
            for place, leaf in enumerate(used(model(*args, **kwargs), outputs))
            if leaf.is_floating_point()
        }
        found = {name: tensor.detach().clone() for name, tensor in given_back.items()}
        if gradients:
            found |= _gradients(model, given, given_back)
    return found


class Original:
    """Reference results of a model before rewriting, with its rounding error.

    With `gradients`, those are compared as well; of the model's outputs only those named, where they are.
    `as_called` is for models that draw no random numbers, as of `results`.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        *,
        gradients: bool,
        outputs: Outputs | None = None,
        as_called: bool = False,
    ) -> None:
        self._results = partial(
            results, model, example_inputs, gradients=gradients, outputs=outputs, as_called=as_called
        )
        self._expected = self._results()
        with _perturbed_weights(model):
            found = self._results()
        self._rounded = dict(_errors(found, self._expected))
        self.seen = any(name.startswith("output") for name in self._expected)

    def differs(self) -> str | None:
        """Difference of the model's current results from the reference, in words; None where there is
        none.
        """
        return difference(self._results(), self._expected, self._rounded)


def difference(
    actual: Tensors, expected: Tensors, rounded: Mapping[str, float] = MappingProxyType({})
) -> str | None:
    """Difference beyond the gate's tolerances and twice the original's rounding error, in words, or None.

    Errors are taken as the gate takes them, relative to a tensor's own size; one whose size is less than the
    rounding of its group's, as gradients that cancel out are, is judged by its group.
    """
    if actual.keys() != expected.keys():
        return f"{', '.join(sorted(actual.keys() ^ expected.keys()))} on one side alone"
    for name, tensor in actual.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            return f"{name} is {list(tensor.shape)} of {tensor.dtype}, and was of another form"
    for name, error in _errors(actual, expected):
        allowed = max(TOLERANCES[actual[name].dtype, _kind(name)].cap, 2 * rounded.get(name, 0.0))
        if not error <= allowed:
            return f"{name} differs by {error:.2g} RMS of its size, allowed is {allowed:.2g}"
    return None


def _errors(actual: Tensors, expected: Tensors) -> Iterator[tuple[str, float]]:
    wide = _Float64Tensors(expected)
    own, pooled = scales(wide), _pooled(wide)
    for name, tensor in actual.items():
        if tensor.numel():
            group = pooled[_kind(name)]
            scale = own[name] if own[name] > torch.finfo(tensor.dtype).eps * group else group
            yield name, Error.of(tensor, wide[name], scale or 1.0).rms


def _kind(name: str) -> str:
    """Kind of a result: `output` or `gradient`."""
    return name.partition("[")[0].partition(" ")[0]


class _Float64Tensors(Mapping[str, Tensor]):
    """Mapping of tensors converted to float64 one at a time, because all at once need four times the
    memory of 16 bits.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].double()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _pooled(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    found = {}
    for kind in ("output", "gradient"):
        squares, count = 0.0, 0
        for name in tensors:
            if name.startswith(kind):
                tensor = tensors[name]
                squares, count = squares + float(tensor.square().sum()), count + tensor.numel()
        found[kind] = (squares / max(1, count)) ** 0.5
    return found


def _leaf(leaf: Any, gradients: bool, as_called: bool) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.detach().requires_grad_(gradients and (leaf.requires_grad or not as_called))
    return leaf


def _changeable(leaf: Any) -> Any:
    """Tensor that a model may change in place: for a leaf that requires gradients, a non-leaf."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def _gradients(model: nn.Module, given: list[Any], outputs: Tensors) -> Tensors:
    reached = [tensor for tensor in outputs.values() if tensor.requires_grad]
    wanted: Tensors = {
        f"gradient of parameter {name}": one for name, one in model.named_parameters() if one.requires_grad
    }
    wanted |= {
        f"gradient of argument[{place}]": leaf
        for place, leaf in enumerate(given)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    }
    if not reached or not wanted:
        return {}
    weights: list[Tensor] = []
    for tensor in reached:
        generator = torch.Generator(tensor.device).manual_seed(len(weights))
        drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        weights.append(drawn.to(tensor.dtype))
    found = torch.autograd.grad(reached, list(wanted.values()), weights, allow_unused=True)
    return {name: one for name, one in zip(wanted, found, strict=True) if one is not None}


@contextmanager
def _perturbed_weights(model: nn.Module) -> Iterator[None]:
    """Context in which each weight is multiplied at random by 1 + eps / 2 or 1 - eps / 2 of its dtype."""
    weights = [one.data for one in model.parameters() if one.dtype in KNOWN and type(one.data) is Tensor]
    before = [one.clone() for one in weights]
    generators: dict[torch.device, torch.Generator] = {}
    try:
        for one in weights:
            generator = generators.setdefault(one.device, torch.Generator(one.device).manual_seed(0))
            upwards = torch.rand(one.shape, generator=generator, device=one.device) < 0.5
            step = torch.where(upwards, 0.5, -0.5) * torch.finfo(_computed_in(one)).eps
            one.addcmul_(one, step.to(one.dtype))
        yield
    finally:
        for one, kept in zip(weights, before, strict=True):
            one.copy_(kept)


def _computed_in(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    shares = {module: module.dropout for module in modes if isinstance(module, nn.RNNBase)}
    try:
        model.eval()
        for recurrent in shares:
            recurrent.train()
            recurrent.dropout = 0.0
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for recurrent, share in shares.items():
            recurrent.dropout = share
