"""`selector.optimize` and `selector.restore`: an existing model with chosen implementations, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError, UnknownOperator
from kernel_selector.kernels.contract.errors import shorten, suggest

from .. import api, layers
from ..errors import InvalidRequest
from ..layers import Layer
from ..plans.ledger import HEAD
from . import attention_interface, joining, replaying
from .checking import Original
from .device_times import DeviceTimes
from .heads import place_with, with_linear_heads
from .joining import Joint
from .outputs import require
from .places import Place, is_written_out
from .report import LeftAlone, Replaced, Report, reason_of
from .swapping import Decision, put_back, swap, undo
from .timing import Timed
from .wishes import DEVICE_TIME, OBJECTIVES, Counted, Wishes, device_of

PUT_BACK = "put back, because the model computed something else: "
UNSEEN = (
    "left as it was, because nothing that the model gives for the example can be compared: expected floating-"
    "point tensors, by themselves or in tuples, lists, mappings or data classes"
)


def optimize(model: nn.Module, example_inputs: Any, wishes: Wishes) -> Report:
    """See `selector.optimize`."""
    _check(model, wishes)
    replaying.turn_off(model)
    if wishes.outputs is not None:
        require(model, example_inputs, wishes.outputs)
    listed = layers.find(model, example_inputs)
    found = with_linear_heads(model, listed, wishes.outputs)
    times = DeviceTimes(
        found if OBJECTIVES[wishes.objective] == "time" else (),
        device_of(model),
        wishes.database,
        replayed=wishes.objective == DEVICE_TIME,
    )
    joints, left = _joints(model, example_inputs, found, wishes, times)
    joined = {path for joint in joints for path in joint.paths}
    decisions, alone = _decisions(
        model, [layer for layer in found if layer.path not in joined], wishes, times
    )
    asked = {(layer.path, layer.problem) for layer in listed}
    left += [one for one in alone if (one.path, one.problem) in asked]
    advice = (*_no_head(listed, wishes), *_unused(found, wishes), *times.advice)
    if not (decisions or joints):
        unchanged = "Nothing was replaced: the model is as it was."
        return Report(replaced=(), left_alone=tuple(left), notes=(unchanged, *advice))
    training = any(module.training for module in model.modules()) and not torch.is_inference_mode_enabled()
    outputs = wishes.outputs
    timed = None
    if wishes.for_speed_alone:
        timed = Timed(model, example_inputs, gradients=training, outputs=outputs)
    original = Original(model, example_inputs, gradients=training, outputs=outputs)
    with _all_or_nothing(model, decisions, joints):
        replaced, undone = _replace(model, decisions, original, wishes)
        together, apart = _join(model, joints, original)
        notes = ["Nothing was replaced."]
        if replaced or together:
            notes = [_agreed(training, wishes), *((timed.compared(),) if timed else ())]
    return Report(
        replaced=(*replaced, *together), left_alone=(*left, *undone, *apart), notes=(*notes, *advice)
    )


@contextmanager
def _all_or_nothing(model: nn.Module, decisions: list[Decision], joints: list[Joint]) -> Iterator[None]:
    """Where anything is raised meanwhile, the model is as it was before."""
    try:
        yield
    except BaseException:
        joining.part(model, joints)
        undo(model, decisions)
        raise


def _agreed(training: bool, wishes: Wishes) -> str:
    outputs = "outputs" if wishes.outputs is None else " and ".join(wishes.outputs)
    checked = f"{outputs} and gradients" if training else outputs
    return f"Checked on the example: {checked} agree with the original's."


def _no_head(listed: Sequence[Layer], wishes: Wishes) -> tuple[str, ...]:
    """That it is of no use that the loss alone is used, in words."""
    if wishes.outputs is None or any(layer.problem.operator == HEAD for layer in listed):
        return ()
    return (f"outputs={wishes.outputs!r} changed nothing: no linear layer with its cross-entropy was found.",)


def _unused(found: Sequence[Layer], wishes: Wishes) -> tuple[str, ...]:
    """Which overrides are for no layer, in words."""
    known = {name for layer in found for name in (layer.path, layer.problem.operator)}
    names = [repr(name) for name in wishes.overrides if name not in known]
    return (f"overrides for {', '.join(names)}: the example runs no such layer.",) if names else ()


def restore(model: nn.Module) -> int:
    """See `selector.restore`."""
    replayed = replaying.turn_off(model)
    attention_interface.turn_off(model)
    return replayed + joining.part(model) + sum(put_back(module) for module in list(model.modules()))


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
    if not isinstance(wishes.overrides, Mapping):
        raise InvalidRequest(
            f"overrides={shorten(wishes.overrides)}: expected names of implementations by operator or by a "
            "module's path, such as {'lstm': 'hoisted'}."
        )
    paths = {path for path, _ in model.named_modules()}
    for name in wishes.overrides:
        if name not in paths and name not in registry.operators():
            known = suggest(name, registry.operators())
            raise UnknownOperator(
                f"overrides: {shorten(name)} is neither a module of the model nor an operator. {known}"
            )


def _decisions(
    model: nn.Module, found: Sequence[Layer], wishes: Wishes, times: DeviceTimes
) -> tuple[list[Decision], list[LeftAlone]]:
    """What layers get, and which are left alone."""
    planned, decisions, left = Counted(wishes.plan), [], []
    for layer in found:
        decided = _decided(model, layer, wishes, planned, times)
        if isinstance(decided, str):
            left.append(LeftAlone(path=layer.path, problem=layer.problem, why=decided))
        else:
            decisions.append(decided)
    return decisions, left


def _decided(
    model: nn.Module, layer: Layer, wishes: Wishes, planned: Counted, times: DeviceTimes
) -> Decision | str:
    """What a layer gets where it can be replaced, or why it is left alone."""
    place = place_with(model, layer, wishes.outputs)
    if isinstance(place, str):
        planned.next(layer, framework_only=True)
        return place
    return _decide(model, layer, place, wishes, planned.next(layer) or times.faster(layer.problem))


def _decide(
    model: nn.Module, layer: Layer, place: Place, wishes: Wishes, known: tuple[str, str] | None
) -> Decision | str:
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
        gone = named and registry.retirement(layer.problem.operator, named)
        caveats = gone or ("" if named else " ".join(choice.caveats))
        return f"torch's own is chosen ({why}). {caveats}".rstrip()
    return Decision(layer, place, choice.implementation, why)


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
    model: nn.Module, decisions: list[Decision], original: Original, wishes: Wishes
) -> tuple[list[Replaced], list[LeftAlone]]:
    """Replace operator by operator, and put an operator back that changes what the model computes."""
    replaced: list[Decision] = []
    undone: list[LeftAlone] = []
    for operator in dict.fromkeys(one.layer.problem.operator for one in decisions):
        own = [one for one in decisions if one.layer.problem.operator == operator]
        swap(model, own, wishes)
        fault = _fault(original)
        if fault is None:
            replaced += own
            continue
        undo(model, own)
        undone += [LeftAlone(path=one.layer.path, problem=one.layer.problem, why=fault) for one in own]
    done = [
        Replaced(
            path=one.layer.path, problem=one.layer.problem, implementation=one.implementation, why=one.why
        )
        for one in replaced
    ]
    return done, undone


def _join(
    model: nn.Module, joints: list[Joint], original: Original
) -> tuple[list[Replaced], list[LeftAlone]]:
    """Make layers one product, and put all of them back where the model computes something else then."""
    joining.join(model, joints)
    fault = _fault(original) if joints else None
    if fault is not None:
        joining.part(model, joints)
        return [], [LeftAlone(path=one.path, problem=one.problem, why=fault) for one in joints]
    return [
        Replaced(path=one.path, problem=one.problem, implementation=joining.TORCHS, why=one.why)
        for one in joints
    ], []


def _fault(original: Original) -> str | None:
    """Why what was replaced last cannot stay, or None."""
    if not original.seen:
        return UNSEEN
    try:
        differs = original.differs()
    except Exception as error:  # whatever an implementation raises on this model, the model gets it not
        differs = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None if differs is None else PUT_BACK + differs
