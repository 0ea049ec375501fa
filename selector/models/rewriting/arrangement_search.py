"""Search for the fastest arrangement of a model: replacements are timed group by group and kept where a
step gets faster.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...nn.replay_state import hooked
from ..replay import replay as replaying
from ..replay.replay import ReplayedStack
from . import joint_linear as joining
from .arrangements import Arrangement
from .joint_linear import Joint
from .paired_timing import Limits, Outcome, Turn, outcome, time_pairs
from .report import factor
from .swap import Decision, undo
from .timing import Steps

SECONDS = 60.0  # for all comparisons of a model
MOST_SECONDS, LEAST_SECONDS = 10.0, 2.0  # for one of them
FEW = 1.0  # the same where modules have hooks: what these do beside, they do at every step
PASSES = 2 * (Limits.steps + 2)  # of the shortest comparison

NO_ROOM = "torch.OutOfMemoryError: there is no memory for both, to be timed in turns"
AS_GIVEN, OURS = "as given", "ours"


@dataclass(frozen=True)
class ReplacementGroup:
    """Replacements that are kept or undone together: those of one operator, or joined layers."""

    name: str
    decisions: Sequence[Decision] = ()
    joints: Sequence[Joint] = ()


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: the groups that are kept, and for the others the reason by name.

    `outcome` is of the model as given and as it is now, None where that is as given; `step_ms` what a step
    takes as given, None where nothing was timed.
    """

    kept: tuple[ReplacementGroup, ...]
    put_back: Mapping[str, str]
    outcome: Outcome | None
    step_ms: float | None
    stacks: Sequence[ReplayedStack] = ()  # that are replayed, or why not


@dataclass(frozen=True)
class _Trial:
    arrangement: Arrangement
    kinds: tuple[ReplacementGroup, ...] = ()
    stacks: tuple[ReplayedStack, ...] = ()  # of which a replay was tried

    @property
    def replayed(self) -> bool:
        return any(stack.refused is None for stack in self.stacks)


class _TrialFailed(Exception):
    """Error that a tried arrangement raised, in words."""


class ArrangementSearch:
    """Search over the replacement groups of a model."""

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        given: Arrangement,
        kinds: Sequence[ReplacementGroup],
        steps: Steps,
    ) -> None:
        self._model, self._example, self._steps = model, example_inputs, steps
        self._given, self._kinds = _Trial(given), tuple(kinds)
        self._ours = Arrangement(OURS, model)
        self._end = time.perf_counter() + SECONDS
        self._few = any(map(hooked, model.modules()))
        self._step_ms: float | None = None

    def comparison(self) -> Outcome | None:
        """Step times before and after all replacements, which stay; None where memory is too small for a
        step of the original model. Raises the errors of a step.
        """
        limits = Limits(seconds=FEW if self._few else LEAST_SECONDS)
        before, after = (self._turn(one) for one in (self._given.arrangement, self._ours))
        found: Outcome | None = None
        try:
            found = time_pairs(before, after, limits, enough=lambda found: found.narrow)
        except torch.OutOfMemoryError:
            _give_memory_back()
            after(1)  # what was asked for has to fit
        self._ours.apply()
        return found

    def fastest(self, *, replayed: bool = False) -> SearchResult:
        """Keep the replacement groups that make a step faster beyond noise, and undo all others; with
        `replayed`, of steps with CUDA graphs where these are faster. Raises the errors of the original
        model's step.
        """
        groups = self._groups()
        current = self._given
        stacks: tuple[ReplayedStack, ...] = ()
        last: Outcome | str = ""  # of the current arrangement against the model as given
        if replayed:
            current, last, stacks = self._replayed(left=len(groups) + 2)
        reasons: dict[str, str] = {}
        for number, group in enumerate(groups):
            wider, found = self._try(current, group, current.replayed, left=len(groups) - number + 1)
            if wider is current:
                reasons |= {kind.name: str(found) for kind in group}
            else:
                last = found if current is self._given else ""
                current, stacks = wider, wider.stacks or stacks
        if current is not self._given and not last:
            last = self._compared(self._given, current, left=1)
            if not (isinstance(last, Outcome) and last.faster):
                reasons |= {kind.name: _words(last) for kind in current.kinds}
                stacks = _refused(stacks, _words(last))
                current = self._given
        current.arrangement.apply()
        return SearchResult(
            kept=current.kinds,
            put_back=reasons,
            outcome=last if isinstance(last, Outcome) and current is not self._given else None,
            step_ms=self._step_ms,
            stacks=stacks,
        )

    def _replayed(self, *, left: int) -> tuple[_Trial, Outcome | str, tuple[ReplayedStack, ...]]:
        """Original model with replayed blocks where that is faster, else without; the comparison and the
        stacks.
        """
        self._given.arrangement.apply()
        alone = self._steps(Limits.steps)
        try:
            wider = self._arranged((), True)
        except _TrialFailed as error:
            return self._given, "", (ReplayedStack(path="", blocks=0, refused=str(error)),)
        if not wider.replayed:
            return self._given, "", wider.stacks
        found = self._compared(self._given, wider, left=left)
        if found == NO_ROOM:  # for launched steps beside the graphs: one after the other then
            try:
                found = outcome(list(zip(alone, self._tried(wider)(Limits.steps + 1)[1:], strict=True)))
            except _TrialFailed as error:
                found = str(error)
        if isinstance(found, Outcome) and found.faster:
            return wider, found, wider.stacks
        return self._given, "", _refused(wider.stacks, _words(found))

    def _groups(self) -> list[tuple[ReplacementGroup, ...]]:
        """Groups to try one by one, or all at once where steps take too long for that."""
        self._given.arrangement.apply()
        seconds = self._steps(1)[0] / 1e3
        apart = not self._few and seconds * PASSES * len(self._kinds) < SECONDS
        if apart or not self._kinds:
            return [(kind,) for kind in self._kinds]
        return [self._kinds]

    def _try(
        self, current: _Trial, more: Sequence[ReplacementGroup], replayed: bool, *, left: int
    ) -> tuple[_Trial, Outcome | str]:
        """Faster of the current arrangement and the one with more groups, and their comparison."""
        try:
            wider = self._arranged((*current.kinds, *more), replayed)
        except _TrialFailed as error:
            return current, _words(str(error))
        found = self._compared(current, wider, left=left)
        if isinstance(found, Outcome) and found.faster:
            return wider, found
        return current, _words(found)

    def _compared(self, current: _Trial, wider: _Trial, *, left: int) -> Outcome | str:
        """Paired timing of both arrangements, in this comparison's share of the remaining time."""
        seconds = max(LEAST_SECONDS, (self._end - time.perf_counter()) / left)
        limits = Limits(seconds=FEW if self._few else min(MOST_SECONDS, seconds))
        try:
            found = time_pairs(self._turn(current.arrangement), self._tried(wider), limits)
        except _TrialFailed as error:
            return str(error)
        except torch.OutOfMemoryError:  # of a step that fits where nothing else is held
            _give_memory_back()
            return NO_ROOM
        if current is self._given:
            self._step_ms = found.before_ms
        return found

    def _turn(self, arrangement: Arrangement) -> Turn:
        def turn(count: int) -> Sequence[float]:
            arrangement.apply()
            return self._steps(count)

        return turn

    def _tried(self, wider: _Trial) -> Turn:
        turn = self._turn(wider.arrangement)

        def guarded(count: int) -> Sequence[float]:
            with _breaking():
                return turn(count)

        return guarded

    def _arranged(self, kinds: tuple[ReplacementGroup, ...], replayed: bool) -> _Trial:
        """Model with the given groups only."""
        stacks: tuple[ReplayedStack, ...] = ()
        with _breaking():
            self._ours.apply()
            for kind in self._kinds:
                if kind not in kinds:
                    joining.part(self._model, kind.joints)
                    undo(self._model, kind.decisions)
            if replayed:
                stacks = tuple(replaying.turn_on(self._model, self._example))
            names = [kind.name for kind in kinds] or [AS_GIVEN]
            return _Trial(Arrangement(" and ".join(names), self._model), kinds, stacks)


@contextmanager
def _breaking() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever ours raises on this model, the model gets it not
        words = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    else:
        return
    _give_memory_back()  # what was raised held what it was short of
    raise _TrialFailed(words)


def _give_memory_back() -> None:
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _words(found: Outcome | str) -> str:
    """Reason why replacements were undone."""
    if isinstance(found, str):
        return found if found.startswith("put back") else f"put back, because a step of it raised {found}"
    how = "is slower here" if found.slower else "is not faster here"
    return f"put back, because it {how}: a step takes {factor(found)} times as long with it"


def _refused(stacks: Sequence[ReplayedStack], words: str) -> tuple[ReplayedStack, ...]:
    return tuple(one if one.refused else replace(one, refused=words) for one in stacks)


def replay(model: nn.Module, example_inputs: Any) -> list[ReplayedStack]:
    """Implementation of `selector.replay`."""
    replaying.check(model)
    replaying.turn_off(model)
    given = Arrangement(AS_GIVEN, model)
    try:
        steps = Steps(model, example_inputs, gradients=True)
        return list(ArrangementSearch(model, example_inputs, given, (), steps).fastest(replayed=True).stacks)
    except BaseException:
        given.apply()
        raise
