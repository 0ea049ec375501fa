"""Arrangements of a model that a search tries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from ..replay.replay import ReplayedStack
from .arrangements import Arrangement
from .joint_linear import Joint
from .paired_timing import Outcome
from .peak_memory import give_memory_back
from .report import factor
from .swap import Decision

OURS = "ours"


@dataclass(frozen=True, eq=False)
class ReplacementGroup:
    """Replacements that are kept or undone together: those of one operator, or joined layers."""

    name: str
    decisions: Sequence[Decision] = ()
    joints: Sequence[Joint] = ()

    @property
    def layers(self) -> int:
        """Number of replaced layers."""
        return len(self.decisions) + len(self.joints)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Arrangement that is tried: the replacement groups in it, stacks of which a replay was tried, and
    seconds that compiling it took, None where it is not compiled.

    `outcome` is against the model as given, and `peak_bytes` of a step, None where they were not measured;
    `reserved_before` is what torch reserved of a GPU's memory before the arrangement was made.
    """

    name: str
    arrangement: Arrangement
    kinds: tuple[ReplacementGroup, ...] = ()
    stacks: tuple[ReplayedStack, ...] = ()
    compile_s: float | None = None
    outcome: Outcome | None = None
    peak_bytes: int | None = None
    reserved_before: int | None = None

    @property
    def replayed(self) -> bool:
        """Whether a stack is replayed."""
        return any(stack.refused is None for stack in self.stacks)

    @property
    def layers(self) -> int:
        """Number of replaced layers."""
        return sum(kind.layers for kind in self.kinds)


def alike(ones: Sequence[ReplacementGroup], others: Sequence[ReplacementGroup]) -> bool:
    """Whether two lists of groups give the same layers the same implementations."""
    return _replaced(ones) == _replaced(others)


def _replaced(kinds: Sequence[ReplacementGroup]) -> set[tuple[str, ...]]:
    single = {(one.layer.path, one.implementation) for kind in kinds for one in kind.decisions}
    return single.union(tuple(joint.paths) for kind in kinds for joint in kind.joints)


def all_replaced(model: nn.Module, kinds: Sequence[ReplacementGroup]) -> Trial:
    """Arrangement that a model has now, with all these replacement groups."""
    return Trial(name=OURS, arrangement=Arrangement(OURS, model), kinds=tuple(kinds))


class TrialFailed(Exception):
    """Error that a tried arrangement raised, in words."""


@contextmanager
def breaking() -> Iterator[None]:
    """Context that raises TrialFailed for whatever an arrangement raises, after its memory was given back."""
    try:
        yield
    except Exception as error:  # whatever ours or a compiler raises on this model, the model gets it not
        words = first_line(error)
    else:
        return
    give_memory_back()  # what was raised held what it was short of
    raise TrialFailed(words)


def first_line(error: BaseException) -> str:
    """Class and first line of an error, with the second where the first announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {said}"


def words_of(found: Outcome | str) -> str:
    """Reason why replacements were undone."""
    if isinstance(found, str):
        return found if found.startswith("put back") else f"put back, because a step of it raised {found}"
    how = "is slower here" if found.slower else "is not faster here"
    return f"put back, because it {how}: a step takes {factor(found)} times as long with it"
