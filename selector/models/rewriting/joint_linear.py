"""Joint products of linear layers with one input, such as query, key and value.

Only where the module that calls them is replaced as a whole: whoever calls layers one by one may use some of
them alone, differentiate each by itself, and change one between two calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

from ...nn import hugging_face
from ...nn.joined import JoinedAttention
from ...nn.replay_state import hooked
from ...text.units import format_ms
from ..example import arguments_of, undisturbed
from ..layers import Layer
from .places import full_name
from .swap import rebased

TORCHS = "torch_linear"
# full name of a class of theirs -> its name, which is also that of ours
KNOWN = {f"{home}.{name}": name for name, (home, _) in hugging_face.JOINED.items()}


@dataclass(frozen=True)
class Joint:
    """Layers of one module for a joint product, with the gain; or the reason against it."""

    path: str
    layers: tuple[Layer, ...]
    problem: Problem
    why: str
    refused: bool = False

    @property
    def paths(self) -> set[str]:
        """Paths of the layers."""
        return {layer.path for layer in self.layers}


# milliseconds of a problem by one implementation, or by the fastest; None where they are not known
Times = Callable[[Problem, str | None], float | None]


def joints(model: nn.Module, example_inputs: Any, layers: Sequence[Layer], times: Times) -> list[Joint]:
    """Groups of linear layers in training that one module calls once each with the same tensor."""
    linear = {
        layer.path: layer
        for layer in layers
        if layer.problem.operator == "linear" and layer.calls == 1 and layer.problem["mode"] == "training"
    }
    found = []
    for paths in _of_one_input(model, example_inputs, linear):
        own = tuple(linear[path] for path in paths)
        problem = _whole(own)
        gain = _gain(problem, own, times)
        if gain is not None:
            parent = paths[0].rpartition(".")[0]
            reason = _refusal(model.get_submodule(parent), paths, model)
            why = gain if reason is None else f"{gain}, which they are not: {reason}"
            found.append(Joint(parent, own, problem, why, refused=reason is not None))
    return found


def join(model: nn.Module, found: Sequence[Joint]) -> None:
    """Replace the module of each group by a class with a joint product."""
    for joint in found:
        module = model.get_submodule(joint.path)
        module.__class__ = getattr(hugging_face, KNOWN[full_name(type(module))])


def part(model: nn.Module, found: Sequence[Joint] | None = None) -> int:
    """Undo `join` for all groups or the given ones; returns how many were joined."""
    asked: Iterable[nn.Module] = model.modules()
    if found is not None:
        asked = [model.get_submodule(joint.path) for joint in found]
    modules = [module for module in asked if isinstance(module, JoinedAttention)]
    for module in modules:
        ours = next(kind for kind in type(module).__mro__ if JoinedAttention in kind.__bases__)
        module.__class__ = rebased(type(module), ours, ours.__bases__[1])
    return len(modules)


def _of_one_input(
    model: nn.Module, example_inputs: Any, linear: Mapping[str, Layer]
) -> list[tuple[str, ...]]:
    """Paths of linear layers with the same parent and input, in the order of their calls."""
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


def _refusal(parent: nn.Module, paths: Sequence[str], model: nn.Module) -> str | None:
    """Reason why layers of a module cannot be joined, or None."""
    kind = type(parent)
    if isinstance(parent, JoinedAttention):
        return "they are one product already"
    if full_name(kind) not in KNOWN:
        return (
            f"what {kind.__name__} calls one by one may be used, differentiated and changed one by one. One "
            "nn.Linear with the columns of all, split after it, is that product in a model of one's own; "
            f"modules replaced for it are Hugging Face's {' and '.join(KNOWN.values())}"
        )
    if {path.rpartition(".")[2] for path in paths} != set(JoinedAttention.MEMBERS):
        return f"{kind.__name__} is known to call {', '.join(JoinedAttention.MEMBERS)}"
    if "forward" in parent.__dict__ or kind.forward.__qualname__ != f"{kind.__name__}.forward":
        return f"the forward of {kind.__name__} was replaced"
    if list(signature(kind.forward).parameters) != list(signature(JoinedAttention.forward).parameters):
        return f"the forward of {kind.__name__} takes other arguments in this version of transformers"
    members = [model.get_submodule(path) for path in paths]
    for one in members:
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
    """Problem of one layer with the columns of all."""
    columns = sum(int(layer.problem["out_features"]) for layer in layers)
    return registry.operator("linear").problem({**layers[0].problem.as_dict, "out_features": columns})


def _gain(whole: Problem, layers: Sequence[Layer], times: Times) -> str | None:
    """Speedup of the joint product over separate layers, in words; None where there is none or it is
    unknown.
    """
    together, alone = times(whole, TORCHS), [times(layer.problem, None) for layer in layers]
    known = [ms for ms in alone if ms is not None]
    if together is None or len(known) < len(alone) or together >= sum(known):
        return None
    return f"{len(layers)} layers as one product, {format_ms(together)} for {format_ms(sum(known))}"
