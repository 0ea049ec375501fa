"""Linear layers of one input, such as query, key and value, that a model gets as one product."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

from ..example import arguments_of, undisturbed
from ..layers import Layer
from ..nn.joined import GROUP, Group, JoinedLinear
from ..nn.replay_state import hooked
from ..units import format_ms
from .swapping import rebased

TORCHS = "torch_linear"


@dataclass(frozen=True)
class Joint:
    """Layers of one module that are to be one product, and why; or why they are not."""

    path: str
    layers: tuple[Layer, ...]
    problem: Problem
    why: str
    refused: bool = False

    @property
    def paths(self) -> set[str]:
        """Of its layers."""
        return {layer.path for layer in self.layers}


# milliseconds of a problem by one implementation, or by the fastest; None where they are not known
Times = Callable[[Problem, str | None], float | None]


def joints(model: nn.Module, example_inputs: Any, layers: Sequence[Layer], times: Times) -> list[Joint]:
    """The groups among linear layers in training that one module calls with the same tensor, once each."""
    linear = {
        layer.path: layer
        for layer in layers
        if layer.problem.operator == "linear" and layer.calls == 1 and layer.problem["mode"] == "training"
    }
    found = []
    for paths in _of_one_input(model, example_inputs, linear):
        own = tuple(linear[path] for path in paths)
        parent = paths[0].rpartition(".")[0]
        reason = _refusal([model.get_submodule(path) for path in paths])
        if reason is not None:
            found.append(Joint(parent, own, own[0].problem, reason, refused=True))
            continue
        problem = _whole(own)
        why = _gain(problem, own, times)
        if why is not None:
            found.append(Joint(parent, own, problem, why))
    return found


def join(model: nn.Module, found: Sequence[Joint]) -> None:
    """Let the layers of each joint compute together."""
    for joint in found:
        members: list[Any] = [model.get_submodule(layer.path) for layer in joint.layers]
        group = Group(members)
        for member in members:
            member.__class__ = JoinedLinear
            setattr(member, GROUP, group)


def part(model: nn.Module, found: Sequence[Joint] | None = None) -> int:
    """Undo `join`, of all or of the joints given. The number of groups that there were."""
    groups = set()
    asked: Iterable[Any] = model.modules()
    if found is not None:
        asked = (model.get_submodule(layer.path) for joint in found for layer in joint.layers)
    members = [module for module in asked if isinstance(module, JoinedLinear)]
    for member in members:
        groups.add(member.__dict__.pop(GROUP))
        member.__class__ = rebased(type(member), JoinedLinear, nn.Linear)
    return len(groups)


def _of_one_input(
    model: nn.Module, example_inputs: Any, linear: Mapping[str, Layer]
) -> list[tuple[str, ...]]:
    """Paths of layers with the same parent and the same input, in the order of their calls."""
    calls: dict[tuple[str, int], list[str]] = defaultdict(list)
    inputs: list[Tensor] = []  # kept, so that no other tensor gets the identity of one

    def noting(path: str) -> Callable[..., None]:
        def note(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if args:
                inputs.append(args[0])
                calls[path.rpartition(".")[0], id(args[0])].append(path)

        return note

    hooks = [model.get_submodule(path).register_forward_pre_hook(noting(path)) for path in linear]
    args, kwargs = arguments_of(example_inputs)
    try:
        with undisturbed(model), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return [tuple(paths) for paths in calls.values() if len(set(paths)) == len(paths) > 1]


def _refusal(members: Sequence[nn.Module]) -> str | None:
    """Why layers cannot be computed together, or None."""
    for one in members:
        if type(one) is JoinedLinear:
            return "they are one product already"
        if type(one) is not nn.Linear:
            return f"{type(one).__name__} is a subclass of Linear, and may compute something else"
        if hooked(one):
            return "they have hooks, which may change what they are called with"
        if "forward" in one.__dict__:
            return "the forward of one was replaced"
        if not one.weight.is_floating_point():
            return "their weights are quantised"
    kinds = Counter((one.weight.dtype, one.weight.device, one.bias is None) for one in members)
    return None if len(kinds) == 1 else "their weights differ in dtype, device or bias"


def _whole(layers: Sequence[Layer]) -> Problem:
    """One layer with the columns of all."""
    columns = sum(int(layer.problem["out_features"]) for layer in layers)
    return registry.operator("linear").problem({**layers[0].problem.as_dict, "out_features": columns})


def _gain(whole: Problem, layers: Sequence[Layer], times: Times) -> str | None:
    """How much faster one product is than the best of each, in words; None where it is not, or unknown."""
    together, alone = times(whole, TORCHS), [times(layer.problem, None) for layer in layers]
    known = [ms for ms in alone if ms is not None]
    if together is None or len(known) < len(alone) or together >= sum(known):
        return None
    return f"{len(layers)} layers as one product, {format_ms(together)} for {format_ms(sum(known))}"
