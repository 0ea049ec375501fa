"""Class changes of a model's modules, and their reversal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem

from ...nn.selected import Selected, adopt
from ...nn.selection import Policy
from ..layers import Layer
from . import attention_interface
from .options import OBJECTIVES, OptimizeOptions
from .places import Place

REPLACED_CLASS = "_class_before_optimize"
_OURS = Selected.__module__.rpartition(".")[0]


@dataclass(frozen=True)
class Decision:
    """Implementation for a layer at a place."""

    layer: Layer
    place: Place
    implementation: str
    why: str
    caveats: tuple[str, ...] = ()  # of the evidence


def swap(model: nn.Module, decisions: Sequence[Decision], options: OptimizeOptions) -> None:
    """Change the class of each module of the decisions, with the decided implementation."""
    for module in dict.fromkeys(one.place.module for one in decisions):
        own = [one for one in decisions if one.place.module is module]
        policies = {
            one.place.name: Policy(
                implementation=options.named(one.layer),
                objective=OBJECTIVES[options.objective],
                database=options.database,
            )
            for one in own
        }
        if own[0].place.name == attention_interface.CHILD:
            (policy,) = policies.values()
            chooser: Selected = attention_interface.InterfaceAttention()
            chooser._start({"": policy})
            module.add_module(attention_interface.CHILD, chooser.train(module.training))
        else:
            chooser = _adopted(module, own[0].place.kind, policies)
        for one in own:
            name = "" if one.place.name == attention_interface.CHILD else one.place.name
            for problem in _with_and_without_dropout(one.layer.problem):
                chooser._selections[name].agree(problem, one.implementation)
    if any(one.place.name == attention_interface.CHILD for one in decisions):
        attention_interface.turn_on(model)


def _adopted(module: nn.Module, kind: type[Selected], policies: Mapping[str, Policy]) -> Selected:
    """Module changed to a drop-in class, with the operators that it already has."""
    before = type(module)
    if isinstance(module, Selected):
        kept = module._selections
        module._start(policies)
        module._selections = {**kept, **module._selections}
        return module
    adopt(module, kind, policies)
    setattr(module, REPLACED_CLASS, before)
    assert isinstance(module, Selected)
    return module


def _with_and_without_dropout(problem: Problem) -> Iterator[Problem]:
    """Problem with its dropout, and without."""
    yield problem
    if problem.as_dict.get("dropout"):
        yield registry.operator(problem.operator).problem({**problem.as_dict, "dropout": 0.0})


def class_before(module: nn.Module) -> type[nn.Module]:
    """Class of a module before it was replaced, or its class."""
    found: type[nn.Module] = module.__dict__.get(REPLACED_CLASS, type(module))
    return found


def undo(model: nn.Module, decisions: Sequence[Decision]) -> None:
    """Undo `swap`, complete or partial, for the given decisions."""
    for one in decisions:
        module, name = one.place.module, one.place.name
        if name == attention_interface.CHILD:
            module._modules.pop(name, None)
        elif isinstance(module, Selected):
            # another dict: arrangements that were taken before keep theirs
            module._selections = {key: one for key, one in module._selections.items() if key != name}
            if not module._selections:
                put_back(module)
    if not any(attention_interface.CHILD in module._modules for module in model.modules()):
        attention_interface.turn_off(model)


def put_back(module: nn.Module) -> int:
    """Restore the former class of one module; returns the number of changed modules, 0 or 1."""
    if attention_interface.CHILD in module._modules:
        del module._modules[attention_interface.CHILD]
        return 1
    before = module.__dict__.pop(REPLACED_CLASS, None)
    if before is None:
        return 0
    del module.__dict__["_selections"]
    ours = next(kind for kind in type(module).__mro__ if kind.__module__.startswith(_OURS))
    module.__class__ = rebased(type(module), ours, before)
    return 1


def rebased(kind: type, ours: type, before: type) -> type:
    """Class with `before` in the place of `ours` among its bases, as for parametrized modules."""
    if kind is ours:
        return before
    bases = tuple(rebased(one, ours, before) if issubclass(one, ours) else one for one in kind.__bases__)
    return type(kind)(kind.__name__, bases, dict(kind.__dict__))
