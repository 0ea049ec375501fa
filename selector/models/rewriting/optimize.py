"""Rewriting of an existing model with selected implementations: `selector.optimize` and
`selector.restore`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import shorten, suggest
from kernel_selector.kernels.contract.record import COMPILED, LAUNCHED
from kernel_selector.kernels.runtime import torch_compile

from ...errors import InvalidRequest
from ..example import draws_random_numbers
from ..replay import replay as replaying
from . import attention_interface, compilation
from . import joint_linear as joining
from .arrangement_search import OURS_INSIDE, ArrangementSearch, SearchResult, Wanted
from .arrangements import Arrangement, refuse_sharded, unwrapped
from .budget import Budget
from .decisions import DecidedLayers, Decisions
from .equivalence import Original
from .joint_linear import Joint
from .options import DEVICE_TIME, OBJECTIVES, OptimizeOptions, device_of
from .outputs import require
from .report import LeftAlone, Replaced, Report, TriedArrangement, headline
from .swap import Decision, put_back, swap, undo
from .timing import Steps
from .trial import OURS, ReplacementGroup, Trial, all_replaced, first_line
from .trials import AS_GIVEN, REPLAYED, REPLAYED_OURS, Trials

PUT_BACK = "put back, because the model computed something else: "
RAISED = "put back, because the model raised "
UNCHANGED = "Nothing was replaced: the model is as it was."
NO_ROOM = "A step was not timed: there is no memory for one of the model as it was."
TIMED_HERE = (
    "What was tried is what measurements promise, most of them of other machines; what stays was timed here."
)
OVERWRITTEN = (
    "What a call of the model returns is overwritten by the next call, as with torch.compile's "
    "mode='reduce-overhead': clone what is kept for longer."
)
NO_GPU = "it needs an NVIDIA GPU"
# regimes of the arrangements that have replaced layers of their own, and whether these are replayed
INSIDE = {REPLAYED_OURS: (LAUNCHED, True), **dict.fromkeys(OURS_INSIDE, (COMPILED, False))}
ON_GPUS_ALONE = ("reduce_overhead", "reduce_overhead_ours")  # autotuning is of use elsewhere, too
UNSEEN = (
    "left as it was, because nothing that the model gives for the example can be compared: expected floating-"
    "point tensors, by themselves or in tuples, lists, mappings or data classes"
)


def optimize(model: nn.Module, example_inputs: Any, options: OptimizeOptions) -> Report:
    """Implementation of `selector.optimize`."""
    model = unwrapped(model)
    _check(model, options)
    budget = Budget(options.search.budget_s)
    given = Arrangement(AS_GIVEN, model)
    with _all_or_nothing(given):
        replaying.turn_off(model, for_good=False)
        compilation.turn_off(model)
        left_out = _left_out(model, options)
        if options.outputs is not None:
            require(model, example_inputs, options.outputs)
        layers = DecidedLayers(model, example_inputs, options)
        chosen = layers.decisions()
        if not (chosen or set(options.arrangements) - {OURS, *left_out}):
            given.apply()
            return Report(
                first_line=UNCHANGED,
                replaced=(),
                left_alone=chosen.left,
                notes=chosen.notes,
                arrangements=tuple(TriedArrangement(name=name, why=why) for name, why in left_out.items()),
                kept=AS_GIVEN,
            )
        try:
            inside = _inside(layers, options, left_out)
            return _tried(model, example_inputs, options, given, (chosen, inside), left_out, budget)
        except torch.OutOfMemoryError as error:
            given.apply()
            return Report(
                first_line="Nothing was replaced, for want of memory to compare: the model is as it was.",
                replaced=(),
                left_alone=(*chosen.left, *_left(chosen.single, chosen.joints, first_line(error))),
                notes=chosen.notes,
                kept=AS_GIVEN,
            )


def _inside(
    layers: DecidedLayers, options: OptimizeOptions, left_out: Mapping[str, str]
) -> dict[str, Decisions]:
    """Decisions for the replayed and the compiled model by the name of the arrangement, of those that are
    tried; none where what is replaced was asked for.
    """
    if not options.for_speed_alone:
        return {}
    tried = [name for name in INSIDE if name in options.arrangements and name not in left_out]
    found = {
        (regime, replayed): layers.decisions(regime, replayed=replayed)
        for regime, replayed in dict.fromkeys(INSIDE[name] for name in tried)
    }
    return {name: found[INSIDE[name]] for name in tried}


def _tried(
    model: nn.Module,
    example_inputs: Any,
    options: OptimizeOptions,
    given: Arrangement,
    decisions: tuple[Decisions, Mapping[str, Decisions]],
    left_out: Mapping[str, str],
    budget: Budget,
) -> Report:
    """Replace the layers whose results match and leave the model in its fastest arrangement, where there is a
    choice; returns the report. `decisions`: those as launched, and those for the replayed and the compiled
    model by the name of the arrangement.
    """
    chosen, decided_inside = decisions
    training = any(module.training for module in model.modules()) and not torch.is_inference_mode_enabled()
    wanted = _wanted(model, example_inputs, options, training, left_out, budget)
    original = Original(model, example_inputs, gradients=training, outputs=options.outputs)
    inside: dict[str, Trial] = {}
    for name, decisions_inside in decided_inside.items():
        alike = next((other for other in inside if decided_inside[other] is decisions_inside), None)
        if alike is None:
            kinds, _ = _right(model, original, options, decisions_inside)
            inside[name] = all_replaced(model, kinds)
            given.apply()
        else:
            inside[name] = inside[alike]
    kinds, left = _right(model, original, options, chosen)
    steps = Steps(model, example_inputs, gradients=training, outputs=options.outputs)
    trials = Trials(model, example_inputs, given, all_replaced(model, kinds), steps, inside)
    if options.for_speed_alone or set(options.arrangements) - {OURS}:
        verdict = ArrangementSearch(model, trials, wanted).fastest()
    elif kinds:
        verdict = SearchResult(name=OURS, kept=trials.kinds, put_back={}, outcome=trials.comparison())
    else:
        given.apply()
        verdict = SearchResult(name=AS_GIVEN, kept=(), put_back={}, outcome=None)
    for kind in kinds:
        if kind not in verdict.kept:
            left += _left(kind.decisions, kind.joints, verdict.put_back[kind.name])
    replaced = tuple(row for kind in verdict.kept for row in _rows(kind))
    more = decided_inside[verdict.name].notes if verdict.name in decided_inside else ()
    said = headline(steps.passes, verdict.outcome, verdict.step_ms)
    if not options.for_speed_alone and verdict.outcome is None:
        said = NO_ROOM if verdict.kept else UNCHANGED
    notes = [_agreed(training, options)] if verdict.kept or verdict.name in compilation.MODES else []
    if options.for_speed_alone and kinds:
        notes.append(TIMED_HERE)
    if verdict.name in compilation.GRAPHS:
        notes.append(OVERWRITTEN)
    return Report(
        first_line=said,
        replaced=replaced,
        left_alone=tuple(one for one in (*chosen.left, *left) if _place(one) not in map(_place, replaced)),
        notes=tuple(dict.fromkeys((*notes, *map(str, verdict.stacks), *chosen.notes, *more))),
        times=verdict.outcome,
        arrangements=verdict.rows,
        kept=verdict.name,
    )


def _wanted(
    model: nn.Module,
    example_inputs: Any,
    options: OptimizeOptions,
    training: bool,
    left_out: Mapping[str, str],
    budget: Budget,
) -> Wanted:
    """Arrangements that a search tries, by the options, for a model that is as it was."""
    search, compiling = options.search, set(options.arrangements) & set(compilation.MODES) - set(left_out)
    # with dropout results are compared without it, which compiles what is faster a second time
    drawing = bool(compiling) and draws_random_numbers(model, example_inputs)
    return Wanted(
        names=options.arrangements,
        left_out=left_out,
        budget=budget,
        memory_bytes=search.memory_bytes,
        fixed=not options.for_speed_alone,
        for_replay=options.objective == DEVICE_TIME,
        least_memory=OBJECTIVES[options.objective] == "memory",
        original=partial(
            Original,
            model,
            example_inputs,
            gradients=training,
            outputs=options.outputs,
            as_called=not drawing,
        ),
        progress=search.progress,
    )


@contextmanager
def _all_or_nothing(given: Arrangement) -> Iterator[None]:
    """Context that restores the model after an error."""
    try:
        yield
    except BaseException:
        given.apply()
        raise


def _left_out(model: nn.Module, options: OptimizeOptions) -> dict[str, str]:
    """Arrangements that cannot be tried with this model on its device, with the reasons."""
    device, found = device_of(model), {}
    compiled = [name for name in options.arrangements if name in compilation.MODES]
    if compiled and (reason := torch_compile.unavailable(torch.device(device).type)):
        found = dict.fromkeys(compiled, reason)
    elif not device.startswith("cuda"):
        found = {name: NO_GPU for name in compiled if name in ON_GPUS_ALONE}
    if reason := _not_replayed(model):
        found |= {name: reason for name in (REPLAYED, REPLAYED_OURS) if name in options.arrangements}
    return found


def _not_replayed(model: nn.Module) -> str | None:
    """Reason why a model is not replayed as CUDA graphs, or None."""
    if not device_of(model).startswith("cuda"):
        return NO_GPU
    return None if model.training else "the model is in evaluation mode, and training is replayed"


def _agreed(training: bool, options: OptimizeOptions) -> str:
    outputs = "outputs" if options.outputs is None else " and ".join(options.outputs)
    checked = f"{outputs} and gradients" if training else outputs
    return f"Checked on the example: {checked} agree with the original's."


def restore(model: nn.Module) -> int:
    """Implementation of `selector.restore`."""
    undone = compilation.turn_off_within(model) + replaying.turn_off(model)
    attention_interface.turn_off(model)
    return undone + joining.part(model) + sum(put_back(module) for module in list(model.modules()))


def _check(model: nn.Module, options: OptimizeOptions) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model of type {type(model).__name__}: expected a torch.nn.Module.")
    if hasattr(model, "_orig_mod"):
        raise InvalidRequest(
            "model is compiled already: call selector.optimize on the model itself, then torch.compile."
        )
    if model._compiled_call_impl is not None and compilation.kept_code(model) is None:
        raise InvalidRequest(
            "model was compiled by model.compile(): expected one that is not, since compiling is among what "
            "is tried. Call selector.optimize before model.compile, or in its place."
        )
    refuse_sharded(model)
    if any(tensor.is_meta for tensor in model.parameters()):
        raise InvalidRequest("model has weights on the meta device: load them first, then optimize.")
    if options.objective not in OBJECTIVES:
        raise InvalidRequest(
            f"objective={shorten(options.objective)}: expected one of {', '.join(OBJECTIVES)}."
        )
    if not isinstance(options.overrides, Mapping):
        raise InvalidRequest(
            f"overrides={shorten(options.overrides)}: expected names of implementations by operator or by a "
            "module's path, such as {'lstm': 'hoisted'}."
        )
    paths = {path for path, _ in model.named_modules()}
    for name in options.overrides:
        if name not in paths and name not in registry.operators():
            known = suggest(name, registry.operators())
            raise UnknownOperator(
                f"overrides: {shorten(name)} is neither a module of the model nor an operator. {known}"
            )


def _right(
    model: nn.Module, original: Original, options: OptimizeOptions, chosen: Decisions
) -> tuple[list[ReplacementGroup], list[LeftAlone]]:
    """Replacement groups whose results match the original's, and the layers of undone groups."""
    operators = dict.fromkeys(one.layer.problem.operator for one in chosen.single)
    kinds = [
        ReplacementGroup(name, [one for one in chosen.single if one.layer.problem.operator == name])
        for name in operators
    ]
    if chosen.joints:
        kinds.append(ReplacementGroup("layers as one product", joints=chosen.joints))
    right: list[ReplacementGroup] = []
    left: list[LeftAlone] = []
    for kind in kinds:
        swap(model, kind.decisions, options)
        joining.join(model, kind.joints)
        fault = _fault(original)
        if fault is None:
            right.append(kind)
            continue
        joining.part(model, kind.joints)
        undo(model, kind.decisions)
        left += _left(kind.decisions, kind.joints, fault)
    return right, left


def _fault(original: Original) -> str | None:
    """Reason why the last replacement cannot stay, or None."""
    if not original.seen:
        return UNSEEN
    try:
        differs = original.differs()
    except Exception as error:  # whatever an implementation raises on this model, the model gets it not
        return RAISED + first_line(error)
    return None if differs is None else PUT_BACK + differs


def _left(decisions: Sequence[Decision], joints: Sequence[Joint], why: str) -> list[LeftAlone]:
    """Report rows of undone replacements."""
    found = [(one.layer.path, one.layer.problem) for one in decisions]
    found += [(one.path, one.problem) for one in joints]
    return [LeftAlone(path=path, problem=problem, why=why) for path, problem in found]


def _place(row: LeftAlone | Replaced) -> tuple[str, str]:
    return row.path, row.problem.operator


def _rows(kind: ReplacementGroup) -> Iterator[Replaced]:
    """Report rows of kept replacements."""
    for one in kind.decisions:
        layer = one.layer
        yield Replaced(path=layer.path, problem=layer.problem, implementation=one.implementation, why=one.why)
    for joint in kind.joints:
        yield Replaced(path=joint.path, problem=joint.problem, implementation=joining.TORCHS, why=joint.why)
