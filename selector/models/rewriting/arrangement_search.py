"""Search for the fastest arrangement of a model: as given, with replaced layers, replayed, compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ...nn.replays import count_from_now
from ...text.units import format_bytes
from ..replay import replay as replaying
from ..replay.replay import ReplayedStack
from . import compilation
from .arrangements import Arrangement, refuse_sharded, unwrapped
from .budget import Budget, Progress
from .compilation import CompiledCode, expected_seconds
from .equivalence import Original
from .paired_timing import Limits, Outcome, chained
from .report import TriedArrangement, factor
from .timing import Steps
from .trial import OURS, ReplacementGroup, Trial, TrialFailed, alike, all_replaced, words_of
from .trials import AS_GIVEN, FEW, LEAST_SECONDS, REPLAYED, REPLAYED_OURS, Trials

MOST_SECONDS = 10.0  # for one comparison
SET_ASIDE = 0.75  # of the time, at most, for the first compilation
PASSES = 2 * (Limits.steps + 2)  # of the shortest comparison

# those that are compiled with replaced layers, and the same without
OURS_INSIDE = {"compiled_ours": "compiled", "reduce_overhead_ours": "reduce_overhead"}
NO_STACK = "it has no stack of blocks that can be replayed"
SAME_LAYERS = f"its layers are those of {REPLAYED}"
NO_LAYERS = "none of its layers can be replaced"
ALL_COMPILED = "all of its layers are left to the compiler, which is said to be faster"
NOT_IN_FASTEST = "put back, because the fastest arrangement is without it: {}"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Arrangements to try by name and the reasons why others are not, with the limits of the search.

    `fixed`: all replacements stay, whatever they cost. `for_replay`: they were chosen for replayed steps.
    `original` makes the reference results. `least_memory`: nothing may take more memory than the
    replacements.
    """

    names: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    memory_bytes: int | None = None
    fixed: bool = False
    for_replay: bool = False
    least_memory: bool = False
    original: Callable[[], Original] | None = None
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search: the fastest arrangement by name, the groups that it has, and for the others the
    reason by name.

    `outcome` is of the model as given and as it is now, None where that is as given; `step_ms` what a step
    takes as given, None where nothing was timed; `rows` are of all arrangements.
    """

    name: str
    kept: tuple[ReplacementGroup, ...]
    put_back: Mapping[str, str]
    outcome: Outcome | None
    step_ms: float | None = None
    stacks: Sequence[ReplayedStack] = ()  # that are replayed, or why not
    rows: tuple[TriedArrangement, ...] = ()


class ArrangementSearch:
    """Search for the fastest arrangement among those wanted."""

    def __init__(self, model: nn.Module, trials: Trials, wanted: Wanted) -> None:
        self._model, self._trials, self._wanted = model, trials, wanted
        self._current = trials.given  # the fastest so far
        self._last: Outcome | str = ""  # of that against the model as given
        self._step_ms: float | None = None
        self._reasons: dict[str, str] = {}  # why groups were put back
        self._stacks: tuple[ReplayedStack, ...] = ()
        self._rows: dict[str, TriedArrangement] = {}
        self._compiled: list[Trial | None] = []  # None for those that failed
        # the fastest that is not compiled
        self._launched: tuple[Trial, tuple[ReplayedStack, ...]] = (self._current, self._stacks)
        self._to_come = 0  # comparisons, at least
        self._place = 0, 0  # of an arrangement among all, and their number

    def fastest(self) -> SearchResult:
        """Leave the model in its fastest arrangement. Raises the errors of the original model's step."""
        names = self._order()
        compiling = any(name in compilation.MODES and name not in self._wanted.left_out for name in names)
        code = CompiledCode() if compiling else None
        try:
            with compilation.many_entries() if compiling else nullcontext():
                self._begin()
                for number, name in enumerate(names, 1):
                    self._to_come = len(names) - number + 1
                    self._place = number, len(names)
                    self._try(name)
                self._settle()
        except BaseException:
            if code is not None:
                code.drop()
            raise
        self._current.arrangement.apply()
        if code is not None:
            alone = len(self._compiled) == 1
            self._compiled.clear()
            self._trials.drop_others(code, kept=self._current.compile_s is not None, alone=alone)
        count_from_now(self._model)
        return self._result()

    def _order(self) -> list[str]:
        """Names in the order in which they are tried: what takes no compiler first."""
        names = [name for name in self._wanted.names if not (self._wanted.fixed and name == OURS)]
        if self._wanted.for_replay:
            names.sort(key=lambda name: name != REPLAYED)
        return names

    def _begin(self) -> None:
        """Time the model as given; or all replacements against it, where these stay."""
        trials = self._trials
        if self._wanted.fixed and trials.kinds:
            found = trials.comparison()
            self._current = replace(trials.ours, outcome=found)
            self._last = found or ""
        else:
            self._step_ms = trials.take(trials.given, 2)[-1]
        self._note(self._current)

    def _try(self, name: str) -> None:
        if name in self._wanted.left_out:
            self._leave_out(name, self._wanted.left_out[name])
        elif name == OURS:
            self._add_groups()
        elif name in (REPLAYED, REPLAYED_OURS):
            self._replay(name)
        else:
            self._compile(name)

    def _tell(self, name: str) -> None:
        """Tell whoever asked for progress that an arrangement begins."""
        if self._wanted.progress is not None:
            self._wanted.progress(f"{name} ({self._wanted.budget.left:.0f} s left)", *self._place)

    def _add_groups(self) -> None:
        """Keep the replacement groups that make a step faster beyond noise, one by one."""
        begun, groups = self._current, self._groups()
        self._to_come += len(groups)
        found: Outcome | str = "" if groups else NO_LAYERS
        wider = begun
        if groups:
            self._tell(OURS)
        for group in groups:
            current = self._current
            try:
                kinds = (*current.kinds, *group)
                wider = self._trials.made(OURS, kinds, replayed=current.replayed)
                found = self._compared(wider)
            except TrialFailed as error:
                found = str(error)
            self._to_come -= 1
            if not self._taken(wider, found):
                self._reasons |= {kind.name: words_of(found) for kind in group}
        if self._current is not begun:
            self._note(self._current)
            if self._current.replayed:
                self._leave_out(OURS, "its layers are in the replayed one")
        elif isinstance(found, str):
            self._leave_out(OURS, found)
        elif len(groups) == 1:
            self._note_lost(replace(wider, name=OURS), found)
        else:
            self._leave_out(OURS, "no kind of its layers makes a step faster")

    def _replay(self, name: str) -> None:
        """Replay blocks as CUDA graphs where that is faster: of the current arrangement, or with the layers
        that are fastest there.
        """
        kinds = self._kinds_replayed(name)
        if isinstance(kinds, str):
            self._leave_out(name, kinds)
            return
        self._tell(name)
        alone = self._trials.take(self._current, Limits.steps)
        try:
            wider = self._trials.made(name, kinds, replayed=True)
        except TrialFailed as error:
            self._not_replayed((ReplayedStack(path="", blocks=0, refused=str(error)),))
            self._leave_out(name, str(error))
            return
        if not wider.replayed:
            self._not_replayed(wider.stacks)
            self._leave_out(name, NO_STACK)
            return
        found = self._compared(wider, alone)
        wider = self._with_peak(wider)
        fault = self._too_large(wider)
        if fault is None and self._taken(wider, found):
            self._note(self._current)
        else:
            self._not_replayed(_refused(wider.stacks, fault or words_of(found)))
            self._note_lost(wider, found, fault)

    def _kinds_replayed(self, name: str) -> tuple[ReplacementGroup, ...] | str:
        """Replacement groups to replay blocks with, or the reason why they are not replayed."""
        if name == REPLAYED:
            return self._current.kinds
        if self._wanted.fixed or self._wanted.for_replay:
            return SAME_LAYERS
        kinds = self._trials.inside[name].kinds
        if kinds and self._current.replayed and alike(kinds, self._current.kinds):
            return SAME_LAYERS
        return kinds or NO_LAYERS

    def _not_replayed(self, stacks: tuple[ReplayedStack, ...]) -> None:
        """Note stacks that are not replayed, unless the current arrangement replays some."""
        if not self._current.replayed:
            self._stacks = stacks

    def _compile(self, name: str) -> None:
        """Compile the whole model where that is faster and fits; that it computes the same is left to
        the end, since that may take another compilation.
        """
        if not self._compiled:
            self._launched = (self._current, self._stacks)
        kinds = self._kinds_within(name)
        reason = self._why_not(name, kinds)
        if reason is not None:
            self._leave_out(name, reason)
            return
        self._tell(name)
        graphs = name in compilation.GRAPHS
        alone = self._trials.take(self._current, Limits.steps) if graphs else None
        try:
            wider = self._trials.made(name, kinds, clock=self._wanted.budget.clock)
        except TrialFailed as error:
            self._compiled.append(None)
            self._leave_out(name, f"compiling failed: {error}")
            return
        found = self._compared(wider, alone)
        fault = None
        if isinstance(found, Outcome) and found.faster:
            wider = self._with_peak(wider)
            fault = self._too_large(wider)
        self._compiled.append(replace(wider, outcome=None if fault else self._against_given(found)))
        if fault is None and self._taken(wider, found):
            self._stacks = _refused(self._stacks, f"the model is faster {name}")
            self._note(self._current)
        else:
            self._note_lost(wider, found, fault)

    def _kinds_within(self, name: str) -> tuple[ReplacementGroup, ...]:
        """Replacement groups to compile with: none, or those that were decided for it; for autotuning those
        of the fastest that was compiled.
        """
        if self._wanted.fixed:
            return self._trials.kinds
        if name in OURS_INSIDE.values():
            return ()
        if name in OURS_INSIDE:
            return self._trials.inside[name].kinds
        timed = [one for one in self._compiled if one is not None and one.outcome is not None]
        return min(timed, key=self._step_of).kinds if timed else self._current.kinds

    def _why_not(self, name: str, kinds: tuple[ReplacementGroup, ...]) -> str | None:
        """Reason why an arrangement is not compiled, or None."""
        if name in OURS_INSIDE.values() and kinds:
            return f"the layers that were asked for stay: {name}_ours compiles with them"
        if name in OURS_INSIDE and not kinds:
            return ALL_COMPILED if self._trials.kinds else NO_LAYERS
        budget, seconds = self._wanted.budget, self._expected_s(name)
        if seconds <= budget.left:
            return None
        return (
            f"{budget.left:.0f} s of the budget of {budget.seconds:.0f} s were left, and compiling takes "
            f"about {seconds:.0f} s: give a larger one, such as budget='10m'"
        )

    def _expected_s(self, name: str) -> float:
        last = next((one.compile_s for one in reversed(self._compiled) if one is not None), None)
        return expected_seconds(self._model, name, last)

    def _fault(self, compiled: Trial) -> str | None:
        """Reason why a compiled arrangement cannot stay: its memory or its results. None: it can."""
        fault = self._too_large(self._with_peak(compiled))
        if fault is not None or self._wanted.original is None:
            return fault
        return self._trials.differs(compiled, self._wanted.original)

    def _too_large(self, wider: Trial) -> str | None:
        """Reason why a step of an arrangement takes too much memory, or None."""
        limits = [self._wanted.memory_bytes or self._trials.device_limit]
        if self._wanted.least_memory:
            limits.append(self._rows[self._current.name].peak_bytes)
        limit, peak = min((one for one in limits if one is not None), default=None), wider.peak_bytes
        if limit is None or peak is None or peak <= limit:
            return None
        return f"a step takes {format_bytes(peak)}, and allowed are {format_bytes(limit)}"

    def _groups(self) -> list[tuple[ReplacementGroup, ...]]:
        """Groups to try one by one, or all at once where steps take too long for that."""
        kinds = self._trials.kinds
        seconds = (self._step_ms or 0.0) / 1e3 * PASSES * len(kinds)
        if not kinds or (not self._trials.few and seconds < self._wanted.budget.seconds):
            return [(kind,) for kind in kinds]
        return [kinds]

    def _compared(self, wider: Trial, alone: Sequence[float] | None = None) -> Outcome | str:
        """Paired timing against the current arrangement, in this comparison's share of the remaining time."""
        found = self._trials.compared(self._current, wider, self._seconds(), alone)
        if self._current is self._trials.given and isinstance(found, Outcome):
            self._step_ms = found.before_ms
        return found

    def _seconds(self) -> float:
        """Seconds for one comparison: a share of what is left with a first compilation set aside."""
        if self._trials.few:
            return FEW
        wanted, left = self._wanted, self._wanted.budget.left
        able = [name for name in wanted.names if name in compilation.MODES and name not in wanted.left_out]
        if able and not self._compiled:
            left -= min(SET_ASIDE * left, self._expected_s(able[0]))
        return min(MOST_SECONDS, max(LEAST_SECONDS, left / (self._to_come + 1)))

    def _taken(self, wider: Trial, found: Outcome | str) -> bool:
        """Whether an arrangement is faster than the current one, which it then becomes."""
        if not (isinstance(found, Outcome) and found.faster):
            return False
        against = self._against_given(found)
        self._last = found if self._current is self._trials.given else ""
        self._current = replace(wider, outcome=against)
        self._stacks = wider.stacks or self._stacks
        return True

    def _against_given(self, found: Outcome | str) -> Outcome | None:
        """Comparison with the current arrangement as one with the model as given, where both were timed."""
        if isinstance(found, str) or self._current is self._trials.given:
            return found if isinstance(found, Outcome) else None
        return None if self._current.outcome is None else chained(self._current.outcome, found)

    def _settle(self) -> None:
        """Check the fastest where it is compiled, and compare what was added step by step with the model as
        given, which stays where it is no slower.
        """
        while self._current.compile_s is not None and (fault := self._fault(self._current)):
            self._fall_back(fault)
        if self._current is self._trials.given or self._last or self._wanted.fixed:
            return
        self._to_come, best, self._current = 0, self._current, self._trials.given
        self._last = self._compared(best)
        if isinstance(self._last, Outcome) and self._last.faster:
            self._current = replace(best, outcome=self._last)
            self._note(self._current)
        else:
            words = words_of(self._last)
            self._reasons |= {kind.name: words for kind in best.kinds}
            self._stacks = _refused(self._stacks, words)
            self._note_lost(best, self._last)

    def _fall_back(self, fault: str) -> None:
        """Make the next fastest the current arrangement, in place of one that cannot stay."""
        wrong = self._current
        self._rows[wrong.name] = _row(wrong, fault)
        compiled = (one for one in self._compiled if one is not None and one.outcome is not None)
        able = [one for one in compiled if one.name != wrong.name]
        self._compiled = [one if one in able else None for one in self._compiled]
        launched, stacks = self._launched
        best = min((launched, *able), key=self._step_of)
        self._current, self._last = best, ""
        if best is launched:
            self._stacks = stacks
        self._note(best)

    def _step_of(self, trial: Trial) -> float:
        """Milliseconds of a step of an arrangement; infinite where it was not timed."""
        if trial.outcome is not None:
            return trial.outcome.after_ms
        return (self._step_ms or 0.0) if trial is self._trials.given else float("inf")

    def _note(self, trial: Trial) -> None:
        self._rows[trial.name] = _row(self._with_peak(trial))

    def _note_lost(self, trial: Trial, found: Outcome | str, fault: str | None = None) -> None:
        lost = replace(trial, outcome=self._against_given(found))
        if isinstance(found, str):
            self._rows[trial.name] = _row(lost, f"a step of it raised {found}")
            return
        how = "slower" if found.slower else "not faster"
        why = fault or f"{how} than {self._current.name}: {factor(found)} times as long"
        self._rows[trial.name] = _row(self._with_peak(lost), why)

    def _with_peak(self, trial: Trial) -> Trial:
        """Arrangement with the peak of a step, measured where that was not done."""
        if trial.peak_bytes is not None:
            return trial
        return replace(trial, peak_bytes=self._trials.peak_bytes(trial))

    def _leave_out(self, name: str, why: str) -> None:
        self._rows[name] = TriedArrangement(name=name, why=why)

    def _result(self) -> SearchResult:
        current, given = self._current, self._trials.given
        words = NOT_IN_FASTEST.format(current.name)
        rows = [
            replace(row, step_ms=row.step_ms or self._step_ms) if name == AS_GIVEN else row
            for name, row in self._rows.items()
        ]
        return SearchResult(
            name=current.name,
            kept=current.kinds,
            put_back={kind.name: self._reasons.get(kind.name, words) for kind in self._trials.kinds},
            outcome=None if current is given else current.outcome,
            step_ms=self._step_ms,
            stacks=self._stacks,
            rows=tuple(rows),
        )


def _row(trial: Trial, why: str | None = None) -> TriedArrangement:
    return TriedArrangement(
        name=trial.name,
        step_ms=None if trial.outcome is None else trial.outcome.after_ms,
        times=trial.outcome,
        peak_bytes=trial.peak_bytes,
        compile_s=trial.compile_s,
        replaced=trial.layers,
        why=why,
    )


def _refused(stacks: Sequence[ReplayedStack], words: str) -> tuple[ReplayedStack, ...]:
    return tuple(one if one.refused else replace(one, refused=words) for one in stacks)


def replay(model: nn.Module, example_inputs: Any) -> list[ReplayedStack]:
    """Implementation of `selector.replay`."""
    model = unwrapped(model)
    replaying.check(model)
    refuse_sharded(model)
    replaying.turn_off(model)
    given = Arrangement(AS_GIVEN, model)
    try:
        steps = Steps(model, example_inputs, gradients=True)
        trials = Trials(model, example_inputs, given, all_replaced(model, ()), steps)
        return list(ArrangementSearch(model, trials, Wanted(names=(REPLAYED,))).fastest().stacks)
    except BaseException:
        given.apply()
        raise
