"""Operators and implementations, found by listing folders; there is no hand-kept list.

A folder of `operators` with a `reference.py` is an operator; its `__init__` holds `OPERATOR`. Each other
file in it whose name has no leading underscore is an implementation. `_delegates.py`, where there is one,
says in DELEGATES which implementations run the code of others, and `_retired.py` in RETIRED which ones there
were.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract import (
    BrokenImplementation,
    Device,
    Implementation,
    Operator,
    Problem,
    UnknownImplementation,
    UnknownOperator,
    Work,
)
from .contract.errors import shorten, suggest
from .versions import Versions, standing_for
from .versions.aliases import equivalents, successors

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).parent
FOLDER = ROOT / "operators"


@cache
def operators() -> dict[str, Operator]:
    """Every operator by name, sorted."""
    names = sorted(path.parent.name for path in FOLDER.glob("*/reference.py"))
    return {name: _operator(name) for name in names}


def operator(name: str) -> Operator:
    """The operator of this name. Raises UnknownOperator, which lists the known ones."""
    try:
        return operators()[name]
    except (KeyError, TypeError):
        raise UnknownOperator(f"Unknown operator {shorten(name)}. {suggest(name, operators())}") from None


@cache
def implementations(operator_name: str) -> dict[str, Implementation]:
    """Every implementation of an operator by name, sorted. Imports their files, and so torch."""
    default = operator(operator_name).default
    files = sorted((FOLDER / operator_name).glob("[!_]*.py"))
    names = [file.stem for file in files if file.stem != "reference"]
    found = {name: _implementation(operator_name, name, default) for name in names}
    _versions().release()
    return found


def implementation(operator_name: str, name: str) -> Implementation:
    """One implementation. Raises UnknownImplementation: the known ones, or what became of this one."""
    known = implementations(operator_name)
    try:
        return known[name]
    except (KeyError, TypeError):
        gone = retirement(operator_name, name)
        words = f"{gone} Known: {', '.join(known)}." if gone else suggest(name, known)
        raise UnknownImplementation(
            f"Unknown implementation {shorten(name)} of {operator_name}. {words}"
        ) from None


def standing_version(operator_name: str, name: str, recorded: str) -> str:
    """The present version of an implementation where a recorded one does the same; else the recorded one."""
    known = implementations(operator_name).get(name) if operator_name in operators() else None
    return recorded if known is None else standing_for(operator_name, name, recorded, known.version)


def versions_alike(operator_name: str, name: str, version: str) -> tuple[str, ...]:
    """Versions of an implementation that do the same as one: all earlier ones of the present, else itself."""
    now = implementation(operator_name, name).version
    same = equivalents(operator_name, name, now)
    return same if version in same else (version,)


def is_known_version(operator_name: str, name: str, version: str) -> bool:
    """Whether an implementation has this version now, or had it before one that does the same."""
    now = implementation(operator_name, name).version
    return version == now or version in successors().get((operator_name, name), {})


def named(operator_name: str, name: str) -> Implementation:
    """The implementation that a user's name stands for: of one that is gone, the one that took its place.

    Where that is another, `retirement` has the words to say so. Raises UnknownImplementation.
    """
    successor, _ = _retired(operator_name).get(name, (name, "")) if isinstance(name, str) else (name, "")
    return implementation(operator_name, successor)


def retirement(operator_name: str, name: str) -> str | None:
    """Reason why an implementation was taken out, and its successor, in words; None for other names."""
    found = _retired(operator_name).get(name) if isinstance(name, str) else None
    if found is None:
        return None
    successor, why = found
    return f"{name} of {operator_name} was taken out: {why}. {successor} takes its place."


def is_valid(problem: Problem) -> bool:
    """Whether today's operators make this problem: for stored ones, of which the rest cannot be used."""
    found = operators().get(problem.operator)
    return found is not None and found.makes(problem)


def reference(problem: Problem) -> nn.Module:
    """The module that states a problem's equations, to be run in float64; never a candidate."""
    name = operator(problem.operator).name
    file = FOLDER / name / "reference.py"
    module: nn.Module = _load(f"{name}.reference", file, needs=("build",)).build(problem)
    return module


def candidates(problem: Problem, device: Device) -> tuple[list[Implementation], dict[str, str]]:
    """The implementations that accept a problem on a device, and the others' reasons by name."""
    accepted: list[Implementation] = []
    reasons: dict[str, str] = {}
    for name, found in implementations(problem.operator).items():
        reason = found.unsupported(problem, device)
        if reason is None:
            accepted.append(found)
        else:
            reasons[name] = reason
    return accepted, reasons


def _load(dotted: str, file: Path, *, needs: tuple[str, ...]) -> Any:
    """The module of a file. Raises BrokenImplementation, which names the file and what is wrong."""
    try:
        module = importlib.import_module(f".{FOLDER.name}.{dotted}", __package__)
        missing = [name for name in needs if not getattr(module, name, None)]
        cause = f"it lacks {', '.join(missing)}" if missing else ""
    except (Exception, SystemExit) as error:
        raise _broken(file, f"{type(error).__name__}: {error}", needs) from error
    if cause:
        raise _broken(file, cause, needs)
    return module


def _broken(file: Path, cause: str, needs: tuple[str, ...]) -> BrokenImplementation:
    words = {
        "__doc__": "a docstring",
        "unsupported": "unsupported(problem, device)",
        "build": "build(problem)",
    }
    needed = " and ".join(words.get(name, name) for name in needs)
    return BrokenImplementation(
        f"{file} cannot be used: {cause.rstrip('.')}. It must import without errors and define {needed}: "
        "repair the file, or move it out of the folder."
    )


def _operator(name: str) -> Operator:
    file = FOLDER / name / "__init__.py"
    found = _load(name, file, needs=("OPERATOR",)).OPERATOR
    if not isinstance(found, Operator):
        raise _broken(file, f"its OPERATOR is {shorten(found)}, not an Operator", ("OPERATOR",))
    _cache_work(found)
    return found


def _cache_work(operator: Operator) -> None:
    """Cache an operator's work on each problem, also for implementations that call its `work` by name.

    Most implementations count on from what their operator counts, a dozen of them for one problem. To be
    called before they are imported.
    """
    work = operator.work
    if hasattr(work, "__wrapped__"):  # another operator has the same
        return
    home = vars(sys.modules[work.__module__])
    cached = cached_work(work, f"_work of {operator.name}")
    if home.get("work") is work:
        home["work"] = cached
    object.__setattr__(operator, "work", cached)


def cached_work(work: Callable[[Problem], Work], key: str) -> Callable[[Problem], Work]:
    """The same counts, made once for each problem and kept in its `__dict__`."""

    @wraps(work)
    def cached(problem: Problem) -> Work:
        kept: dict[str, Any] = vars(problem)
        found: Work | None = kept.get(key)
        if found is None:
            found = kept[key] = work(problem)
        return found

    return cached


def _implementation(operator_name: str, name: str, default: str) -> Implementation:
    file = FOLDER / operator_name / f"{name}.py"
    needs = ("__doc__", "unsupported", "build")
    module = _load(f"{operator_name}.{name}", file, needs=needs)
    try:
        version = _versions().of(file)
        counted_by = _versions().of_work(file)
    except (SyntaxError, ValueError, OSError) as error:  # of a file that it imports only when it runs
        raise _broken(file, f"{type(error).__name__}: {error}", needs) from error
    return Implementation(
        operator=operator_name,
        name=name,
        version=version,
        summary=module.__doc__.strip().partition("\n")[0],
        default=name == default,
        unsupported=module.unsupported,
        build=module.build,
        work=getattr(module, "work", operator(operator_name).work),
        describe=getattr(module, "describe", None),
        runs=_delegates(operator_name).get(name),
        counted_by=counted_by,
    )


@cache
def _delegates(operator_name: str) -> Mapping[str, Callable[[Problem, Device], str]]:
    """DELEGATES of an operator's `_delegates.py`, where it has one.

    Not in the implementations' own files: what is known of code that is not ours changes no measurement.
    """
    file = FOLDER / operator_name / "_delegates.py"
    if not file.exists():
        return {}
    found: Mapping[str, Callable[[Problem, Device], str]]
    found = _load(f"{operator_name}._delegates", file, needs=("DELEGATES",)).DELEGATES
    return found


@cache
def _versions() -> Versions:
    return Versions(ROOT)


@cache
def _retired(operator_name: str) -> Mapping[str, tuple[str, str]]:
    """RETIRED of an operator's `_retired.py`: by name of what is gone what took its place, and why."""
    file = FOLDER / operator(operator_name).name / "_retired.py"
    if not file.exists():
        return {}
    found: Mapping[str, tuple[str, str]]
    found = _load(f"{operator_name}._retired", file, needs=("RETIRED",)).RETIRED
    return found
