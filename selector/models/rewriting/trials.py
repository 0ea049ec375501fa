"""Making, timing and checking of the arrangements that a search tries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ...nn.replay_state import hooked
from ..replay import replay as replaying
from ..replay.replay import ReplayedStack
from . import compilation
from . import joint_linear as joining
from .arrangements import Arrangement
from .equivalence import Original
from .paired_timing import Limits, Outcome, Turn, outcome, time_pairs
from .peak_memory import PeakMemory, give_memory_back
from .swap import undo
from .timing import Steps
from .trial import OURS, ReplacementGroup, Trial, TrialFailed, breaking

LEAST_SECONDS = 2.0  # for one comparison
FEW = 1.0  # the same where modules have hooks: what these do beside, they do at every step

# what torch.compile looks at of an input that may be changed in place
LOOKED_AT = r"The \.grad attribute of a Tensor that is not a leaf"
AS_GIVEN, REPLAYED, REPLAYED_OURS = "as given", "replayed", "replayed_ours"
NO_ROOM = "torch.OutOfMemoryError: there is no memory for both, to be timed in turns"


class Trials:
    """Arrangements of a model with all replacements in it: made, timed in turns, and compared with the
    original.

    `ours` has the replacements for a model whose layers are launched, `inside` those for a compiled or a
    replayed one, by the name of the arrangement.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        given: Arrangement,
        ours: Trial,
        steps: Steps,
        inside: Mapping[str, Trial] = MappingProxyType({}),
    ) -> None:
        self._model, self._example, self._steps = model, example_inputs, steps
        self.given = Trial(name=AS_GIVEN, arrangement=given)
        self.ours, self.inside = ours, inside
        self.few = any(map(hooked, model.modules()))
        self._peak = PeakMemory(model)

    @property
    def kinds(self) -> tuple[ReplacementGroup, ...]:
        """All replacement groups of the model as it is launched."""
        return self.ours.kinds

    @property
    def device_limit(self) -> int | None:
        """Bytes of the GPU that a step may take; None on other devices."""
        return self._peak.device_limit

    def take(self, trial: Trial, count: int) -> list[float]:
        """Milliseconds of each of `count` steps of an arrangement, which the model then has."""
        trial.arrangement.apply()
        return self._steps(count)

    def made(
        self,
        name: str,
        kinds: tuple[ReplacementGroup, ...],
        *,
        replayed: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> Trial:
        """Arrangement with the given groups only, replayed, or with a clock for it compiled in the mode of
        its name. Raises TrialFailed.
        """
        before, seconds = self._peak.reserved(), None
        stacks: tuple[ReplayedStack, ...] = ()
        with breaking():
            every = next(one for one in (self.ours, *self.inside.values()) if set(kinds) <= set(one.kinds))
            every.arrangement.apply()
            for kind in every.kinds:
                if kind not in kinds:
                    joining.part(self._model, kind.joints)
                    undo(self._model, kind.decisions)
            if replayed:
                stacks = tuple(replaying.turn_on(self._model, self._example))
            if clock is not None:
                start = clock()
                compilation.turn_on(self._model, compilation.MODES[name])
                self._steps(1)
                seconds = clock() - start
            return Trial(
                name=REPLAYED if replayed and name == OURS else name,
                arrangement=Arrangement(name, self._model),
                kinds=kinds,
                stacks=stacks,
                compile_s=seconds,
                reserved_before=before,
            )

    def compared(
        self, current: Trial, wider: Trial, seconds: float, alone: Sequence[float] | None = None
    ) -> Outcome | str:
        """Paired timing of both arrangements, or what the second one raised.

        Where memory is short for the graphs of one beside the other, steps `alone` stand for those in turns.
        """
        try:
            return time_pairs(self._turn(current), self._guarded(wider), Limits(seconds=seconds))
        except TrialFailed as error:
            return str(error)
        except torch.OutOfMemoryError:  # of a step that fits where nothing else is held
            give_memory_back()
        if alone is None:
            return NO_ROOM
        try:
            return outcome(list(zip(alone, self._guarded(wider)(len(alone) + 1)[1:], strict=True)))
        except TrialFailed as error:
            return str(error)

    def comparison(self) -> Outcome | None:
        """Step times before and after all replacements, which stay; None where memory is too small for a
        step of the original model. Raises the errors of a step.
        """
        limits = Limits(seconds=FEW if self.few else LEAST_SECONDS)
        before, after = self._turn(self.given), self._turn(self.ours)
        found: Outcome | None = None
        try:
            found = time_pairs(before, after, limits, enough=lambda found: found.narrow)
        except torch.OutOfMemoryError:
            give_memory_back()
            after(1)  # what was asked for has to fit
        self.ours.arrangement.apply()
        return found

    def peak_bytes(self, trial: Trial) -> int | None:
        """Peak of a step of an arrangement; None where it cannot be had."""
        try:
            with breaking():
                return self._peak.of(lambda: self.take(trial, 1), trial.reserved_before)
        except TrialFailed:  # of memory for this one beside what the others hold
            return None

    def differs(self, trial: Trial, original: Callable[[], Original]) -> str | None:
        """Reason why an arrangement's results are not those of the model as given, or None."""
        self.given.arrangement.apply()
        try:
            with breaking(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=LOOKED_AT)
                reference = original()
                if not reference.seen:
                    return "nothing that the model gives for the example can be compared"
                trial.arrangement.apply()
                differs = reference.differs()
        except TrialFailed as error:
            return f"comparing its results raised {error}"
        return None if differs is None else f"the model computed something else: {differs}"

    def drop_others(self, code: compilation.CompiledCode, *, kept: bool, alone: bool) -> None:
        """Drop what was compiled but for the model's present arrangement, where that is `kept` as compiled;
        nothing where it was compiled `alone`.
        """
        if not (kept and alone):
            code.drop()
            give_memory_back()
            code = compilation.CompiledCode()
            if kept:
                self._steps(2)  # traced again, and found in the compiler's cache
        if kept:
            compilation.keep(self._model, code)

    def _turn(self, trial: Trial) -> Turn:
        return lambda count: self.take(trial, count)

    def _guarded(self, trial: Trial) -> Turn:
        def guarded(count: int) -> Sequence[float]:
            with breaking():
                return self.take(trial, count)

        return guarded
