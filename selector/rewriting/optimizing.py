"""`selector.optimize` and `selector.restore`: an existing model with chosen implementations, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError, UnknownOperator
from kernel_selector.kernels.contract.errors import shorten, suggest

from .. import api, layers
from ..errors import InvalidRequest
from ..layers import Layer
from ..nn import ScaledDotProductAttention
from ..nn.selected import Selected, adopt
from ..nn.selection import Policy
from . import attention_interface, joining, replaying
from .checking import Tensors, difference, results
from .device_times import DeviceTimes
from .joining import Joint
from .places import Place, is_written_out, place_in, with_linear_heads
from .report import LeftAlone, Replaced, Report, reason_of
from .timing import Timed
from .wishes import DEVICE_TIME, Counted, Wishes, device_of

OBJECTIVES = {"throughput": "time", "memory": "memory", DEVICE_TIME: "time"}
REPLACED_CLASS = "_class_before_optimize"
PUT_BACK = "put back, because the model computed something else: "


@dataclass(frozen=True)
class _Decision:
    """A layer that gets an implementation at a place."""

    layer: Layer
    place: Place
    implementation: str
    why: str


def optimize(model: nn.Module, example_inputs: Any, wishes: Wishes) -> Report:
    """See `selector.optimize`."""
    _check(model, wishes)
    replaying.turn_off(model)
    listed = layers.find(model, example_inputs)
    found = with_linear_heads(listed)
    planned = Counted(wishes.plan)
    times = DeviceTimes(
        found if OBJECTIVES[wishes.objective] == "time" else (),
        device_of(model),
        wishes.database,
        replayed=wishes.objective == DEVICE_TIME,
    )
    joints, left = _joints(model, example_inputs, found, wishes, times)
    joined = {path for joint in joints for path in joint.paths}
    decisions = []
    for layer in found:
        if layer.path in joined:
            continue
        decided = _decided(model, layer, wishes, planned, times)
        if not isinstance(decided, str):
            decisions.append(decided)
        elif layer in listed:
            left.append(LeftAlone(path=layer.path, problem=layer.problem, why=decided))
    if not (decisions or joints):
        unchanged = "Nothing was replaced: the model is as it was."
        return Report(replaced=(), left_alone=tuple(left), notes=(unchanged, *times.advice))
    training = any(module.training for module in model.modules())
    timed = Timed(model, example_inputs, gradients=training) if wishes.for_speed_alone else None
    expected = results(model, example_inputs, gradients=training)
    replaced, put_back = _replace(model, example_inputs, decisions, expected, wishes)
    together, apart = _join(model, example_inputs, joints, expected)
    notes = ["Nothing was replaced."]
    if replaced or together:
        notes = [_agreed(training), *((timed.compared(),) if timed else ())]
    return Report(
        replaced=(*replaced, *together),
        left_alone=(*left, *put_back, *apart),
        notes=(*notes, *times.advice),
    )


def _agreed(training: bool) -> str:
    checked = "outputs and gradients" if training else "outputs"
    return f"Checked on the example: {checked} agree with the original's."


def restore(model: nn.Module) -> int:
    """See `selector.restore`."""
    replayed = replaying.turn_off(model)
    attention_interface.turn_off(model)
    return replayed + joining.part(model) + sum(_put_back(module) for module in list(model.modules()))


def _check(model: nn.Module, wishes: Wishes) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model of type {type(model).__name__}: expected a torch.nn.Module.")
    if hasattr(model, "_orig_mod"):
        raise InvalidRequest(
            "model is compiled already: call selector.optimize on the model itself, then torch.compile."
        )
    if any(tensor.is_meta for tensor in model.parameters()):
        raise InvalidRequest("model has weights on the meta device: load them first, then optimize.")
    if wishes.objective not in OBJECTIVES:
        raise InvalidRequest(
            f"objective={shorten(wishes.objective)}: expected one of {', '.join(OBJECTIVES)}."
        )
    paths = {path for path, _ in model.named_modules()}
    for name in wishes.overrides:
        if name not in paths and name not in registry.operators():
            known = suggest(name, registry.operators())
            raise UnknownOperator(
                f"overrides: {shorten(name)} is neither a module of the model nor an operator. {known}"
            )


def _decided(
    model: nn.Module, layer: Layer, wishes: Wishes, planned: Counted, times: DeviceTimes
) -> _Decision | str:
    """What a layer gets where it can be replaced, or why it is left alone."""
    place = place_in(model, layer)
    if isinstance(place, str):
        planned.next(layer, framework_only=True)
        return place
    return _decide(model, layer, place, wishes, planned.next(layer) or times.faster(layer.problem))


def _decide(
    model: nn.Module, layer: Layer, place: Place, wishes: Wishes, known: tuple[str, str] | None
) -> _Decision | str:
    """What a layer gets, or why it is left alone. `known`: what is best for the model as a whole, and why."""
    named = wishes.named(layer) or (known and known[0])
    try:
        choice = api.choose(
            layer.problem.operator,
            device=device_of(model),
            objective=OBJECTIVES[wishes.objective],
            override=named,
            database=wishes.database,
            **cast(dict[str, Any], dict(layer.problem.as_dict)),
        )
    except SelectorError as error:
        if named is not None:
            raise
        return str(error)
    why = reason_of(choice) if wishes.named(layer) or known is None else known[1]
    is_default = choice.implementation == registry.operator(layer.problem.operator).default
    if is_default and (choice.source == "default" or not is_written_out(model, layer)):
        caveats = "" if named else " ".join(choice.caveats)
        return f"torch's own is chosen ({why}). {caveats}".rstrip()
    return _Decision(layer, place, choice.implementation, why)


def _joints(
    model: nn.Module, example_inputs: Any, found: Sequence[Layer], wishes: Wishes, times: DeviceTimes
) -> tuple[list[Joint], list[LeftAlone]]:
    """Layers that are to be one product, and those that could be but for a reason."""
    if OBJECTIVES[wishes.objective] != "time":
        return [], []
    free = [layer for layer in found if wishes.named(layer) is None]

    def ms(problem: Problem, name: str | None) -> float | None:
        known = times.ms(problem, name)
        return _alone_ms(problem, name, device_of(model), wishes.database) if known is None else known

    every = joining.joints(model, example_inputs, free, ms)
    refused = [LeftAlone(path=one.path, problem=one.problem, why=one.why) for one in every if one.refused]
    return [one for one in every if not one.refused], refused


def _alone_ms(problem: Problem, name: str | None, device: str, database: Any) -> float | None:
    """What a layer takes by itself, the host's launching included, by one implementation or the fastest."""
    values: dict[str, Any] = dict(problem.as_dict)
    try:
        choice = api.choose(problem.operator, device=device, database=database, **values)
    except SelectorError:
        return None
    able = [one for one in choice.candidates if one.excluded is None and name in (None, one.name)]
    return min((one.time_ms for one in able if one.time_ms is not None), default=None)


def _replace(
    model: nn.Module, example_inputs: Any, decisions: list[_Decision], expected: Tensors, wishes: Wishes
) -> tuple[list[Replaced], list[LeftAlone]]:
    """Replace operator by operator, and put an operator back that changes what the model computes."""
    training = any(module.training for module in model.modules())
    replaced: list[_Decision] = []
    put_back: list[LeftAlone] = []
    for operator in dict.fromkeys(one.layer.problem.operator for one in decisions):
        own = [one for one in decisions if one.layer.problem.operator == operator]
        _swap(model, own, wishes)
        fault = _fault(model, example_inputs, expected, gradients=training)
        if fault is None:
            replaced += own
            continue
        restore(model)
        _swap(model, replaced, wishes)
        reason = PUT_BACK + fault
        put_back += [LeftAlone(path=one.layer.path, problem=one.layer.problem, why=reason) for one in own]
    done = [
        Replaced(
            path=one.layer.path, problem=one.layer.problem, implementation=one.implementation, why=one.why
        )
        for one in replaced
    ]
    return done, put_back


def _join(
    model: nn.Module, example_inputs: Any, joints: list[Joint], expected: Tensors
) -> tuple[list[Replaced], list[LeftAlone]]:
    """Make layers one product, and put all of them back where the model computes something else then."""
    joining.join(model, joints)
    fault = _fault(model, example_inputs, expected, gradients=True) if joints else None
    if fault is not None:
        joining.part(model)
        return [], [LeftAlone(path=one.path, problem=one.problem, why=PUT_BACK + fault) for one in joints]
    return [
        Replaced(path=one.path, problem=one.problem, implementation=joining.TORCHS, why=one.why)
        for one in joints
    ], []


def _fault(model: nn.Module, example_inputs: Any, expected: Tensors, *, gradients: bool) -> str | None:
    try:
        return difference(results(model, example_inputs, gradients=gradients), expected)
    except Exception as error:  # whatever an implementation raises on this model, the model gets it not
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _swap(model: nn.Module, decisions: Sequence[_Decision], wishes: Wishes) -> None:
    for module in dict.fromkeys(one.place.module for one in decisions):
        own = [one for one in decisions if one.place.module is module]
        policies = {
            one.place.name: Policy(
                implementation=wishes.named(one.layer),
                objective=OBJECTIVES[wishes.objective],
                database=wishes.database,
            )
            for one in own
        }
        if own[0].place.name == attention_interface.CHILD:
            (policy,) = policies.values()
            chooser: Selected = ScaledDotProductAttention()
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
    """A module of torch's as one of ours; with the operators that it has already."""
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
    """A problem, and what it is while nothing is dropped."""
    yield problem
    if problem.as_dict.get("dropout"):
        yield registry.operator(problem.operator).problem({**problem.as_dict, "dropout": 0.0})


def _put_back(module: nn.Module) -> int:
    if attention_interface.CHILD in module._modules:
        del module._modules[attention_interface.CHILD]
        return 1
    before = module.__dict__.pop(REPLACED_CLASS, None)
    if before is None:
        return 0
    del module.__dict__["_selections"]
    module.__class__ = before
    return 1
