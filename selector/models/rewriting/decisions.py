"""Decisions for the layers of a model: which get another implementation, by the measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError
from kernel_selector.kernels.contract.record import LAUNCHED

from ...selection.selector import shared_selector
from .. import layers
from ..layers import Layer
from ..saved_tensors import HEAD
from . import joint_linear as joining
from .device_times import LEFT_TO_THE_COMPILER, DeviceTimes
from .heads import place_with, with_linear_heads
from .joint_linear import Joint
from .options import DEVICE_TIME, OBJECTIVES, OptimizeOptions, PlanImplementations, device_of
from .places import Place, is_written_out
from .report import LeftAlone, each_once, reason_of
from .swap import Decision

WITHOUT_LOGITS = "left to the compiler, without the logits that it would store as an output"
NO_SUCH_LAYER = "the example runs no layer of these hyperparameters; plan for the batch that the example has."
NOT_NAMED = "torch's own stays: neither overrides nor a plan name it, and with these no layer is timed"


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Replacements that were decided for a model's layers, layers that stay, and notes."""

    single: list[Decision]
    joints: list[Joint]
    left: tuple[LeftAlone, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self.single or self.joints)


Left = tuple[str, tuple[str, ...]]  # why a layer is left alone, and the caveats of that


class DecidedLayers:
    """Decisions for the layers that an example runs of a model: launched, or within a compiled one.

    Within a compiled model they go by measurements of layers that are compiled with neighbours; where what
    the compiler makes of a layer is the fastest, the layer is left to it; a loss head then has torch's own
    implementation, without logits. In replayed blocks they go by the device's time alone.
    """

    def __init__(self, model: nn.Module, example_inputs: Any, options: OptimizeOptions) -> None:
        self._model, self._example, self._options = model, example_inputs, options
        self._device = device_of(model)
        self._listed = layers.find(model, example_inputs)
        self._found = with_linear_heads(model, self._listed, options.outputs)

    def decisions(self, regime: str = LAUNCHED, *, replayed: bool = False) -> Decisions:
        """Decisions for the model as it is launched or compiled, or `replayed`, as where that is the
        objective.
        """
        options = self._options
        by_name_alone = options.leaves_unnamed and options.plan is None
        by_time = OBJECTIVES[options.objective] == "time" and not by_name_alone
        times = DeviceTimes(
            self._found if by_time and regime == LAUNCHED else (),
            self._device,
            options.database,
            replayed=replayed or options.objective == DEVICE_TIME,
        )
        planned, single = PlanImplementations(options.plan), []
        joints, left = self._joints(times, planned, regime) if by_time else ([], [])
        joined = {path for joint in joints for path in joint.paths}
        asked = {(layer.path, layer.problem) for layer in self._listed}
        caveats: dict[str, None] = {}
        for layer in self._found:
            if layer.path in joined:
                continue
            decided = self._decided(layer, planned, times, regime)
            if isinstance(decided, Decision):
                single.append(decided)
                caveats |= dict.fromkeys(decided.caveats)
            else:
                why, more = decided
                caveats |= dict.fromkeys(more)
                if (layer.path, layer.problem) in asked:
                    left.append(LeftAlone(path=layer.path, problem=layer.problem, why=why))
        notes = (*each_once(caveats), *self._no_head(), *self._unused(planned), *times.advice)
        return Decisions(single=single, joints=joints, left=tuple(left), notes=notes)

    def _decided(
        self, layer: Layer, planned: PlanImplementations, times: DeviceTimes, regime: str
    ) -> Decision | Left:
        """Decision for a layer that can be replaced, or the reason why it stays."""
        place = place_with(self._model, layer, self._options.outputs)
        if isinstance(place, str):
            planned.next(layer.problem, framework_only=True)
            return place, ()
        known = planned.next(layer.problem)
        if known is None:
            if self._options.leaves_unnamed and self._options.named(layer) is None:
                return NOT_NAMED, ()
            known = times.faster(layer.problem)
        decided = self._decide(layer, place, known, regime)
        if regime == LAUNCHED or not isinstance(decided, Decision):
            return decided
        if decided.implementation not in LEFT_TO_THE_COMPILER:
            return decided
        if layer.problem.operator == HEAD:  # whose logits no compiler leaves out while they are an output
            return replace(decided, implementation=registry.operator(HEAD).default, why=WITHOUT_LOGITS)
        return f"left to the compiler ({decided.why})", decided.caveats

    def _decide(
        self, layer: Layer, place: Place, known: tuple[str, str] | None, regime: str
    ) -> Decision | Left:
        """Decision for a layer, or the reason why it stays. `known`: the best implementation for the whole
        model, and why.
        """
        options, operator = self._options, registry.operator(layer.problem.operator)
        named = options.named(layer) or (known and known[0])
        try:
            choice = shared_selector(options.database).choose(
                operator.name,
                device=self._device,
                objective=OBJECTIVES[options.objective],
                override=named,
                regime=regime,
                **cast(dict[str, Any], dict(layer.problem.as_dict)),
            )
        except SelectorError as error:
            if named is not None:
                raise
            return str(error), ()
        why = reason_of(choice) if options.named(layer) or known is None else known[1]
        caveats = () if named else choice.caveats
        is_default = choice.implementation == operator.default
        if is_default and (choice.source == "default" or not is_written_out(self._model, layer)):
            gone = registry.retirement(operator.name, named) if named else None
            return f"torch's own is chosen ({why})", (gone,) if gone else caveats
        return Decision(layer, place, choice.implementation, why, caveats)

    def _joints(
        self, times: DeviceTimes, planned: PlanImplementations, regime: str
    ) -> tuple[list[Joint], list[LeftAlone]]:
        """Groups of layers to join, and those that cannot be joined with the reason. Of a plan of the user's
        those alone whose product it names, as plans of published models do.
        """
        free = [layer for layer in self._found if self._options.named(layer) is None]

        def ms(problem: Problem, name: str | None) -> float | None:
            known = times.ms(problem, name)
            return self._alone_ms(problem, name, regime) if known is None else known

        every = joining.joints(self._model, self._example, free, ms)
        if self._options.leaves_unnamed and self._options.search.memory_bytes is None:
            every = [one for one in every if planned.next(one.problem)]
        refused = [LeftAlone(path=one.path, problem=one.problem, why=one.why) for one in every if one.refused]
        return [one for one in every if not one.refused], refused

    def _alone_ms(self, problem: Problem, name: str | None, regime: str) -> float | None:
        """Milliseconds of a layer by itself, launch included, or compiled with neighbours, with a named
        implementation or the fastest.
        """
        values: dict[str, Any] = dict(problem.as_dict)
        try:
            choice = shared_selector(self._options.database).choose(
                problem.operator, device=self._device, regime=regime, **values
            )
        except SelectorError:
            return None
        able = [one for one in choice.candidates if one.excluded is None and name in (None, one.name)]
        return min((one.time_ms for one in able if one.time_ms is not None), default=None)

    def _no_head(self) -> tuple[str, ...]:
        """Note that `outputs=("loss",)` has no effect for a model without a loss head."""
        outputs = self._options.outputs
        if outputs is None or any(layer.problem.operator == HEAD for layer in self._listed):
            return ()
        return (f"outputs={outputs!r} changed nothing: no linear layer with its cross-entropy was found.",)

    def _unused(self, planned: PlanImplementations) -> tuple[str, ...]:
        """Notes on overrides and kinds of layers in a plan that match no layer."""
        known = {name for layer in self._found for name in (layer.path, layer.problem.operator)}
        names = [repr(name) for name in self._options.overrides if name not in known]
        notes = [f"overrides for {', '.join(names)}: the example runs no such layer."] if names else []
        if self._options.search.memory_bytes is None:  # else the plan is of this example
            notes += [f"the plan has {one}: {NO_SUCH_LAYER}" for one in planned.untouched]
        return tuple(notes)
