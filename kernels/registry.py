"""Operators and implementations, found by listing folders; there is no hand-kept list.

A folder of `kernels` with a `reference.py` is an operator; its `__init__` holds `OPERATOR`. Each other
file in it whose name has no leading underscore is an implementation. `_runs.py`, where there is one, says in
RUNS which implementations run the code of others, and `_retired.py` in RETIRED which ones there were.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
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
)
from .contract.errors import shorten, suggest
from .remembered import remember

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).parent
CUDA_SUFFIXES = (".cu", ".cuh")
INCLUDE = re.compile(r'^#include "([\w.]+)"', re.MULTILINE)
NOT_BEHAVIOUR = {"contract", "registry"}  # what every implementation shares and none computes with


@cache
def operators() -> dict[str, Operator]:
    """Every operator by name, sorted."""
    names = sorted(path.parent.name for path in ROOT.glob("*/reference.py"))
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
    files = sorted((ROOT / operator_name).glob("[!_]*.py"))
    names = [file.stem for file in files if file.stem != "reference"]
    return {name: _implementation(operator_name, name, default) for name in names}


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


def named(operator_name: str, name: str) -> Implementation:
    """The implementation that a user's name stands for: of one that is gone, the one that took its place.

    Where that is another, `retirement` has the words to say so. Raises UnknownImplementation.
    """
    successor, _ = _retired(operator_name).get(name, (name, "")) if isinstance(name, str) else (name, "")
    return implementation(operator_name, successor)


def retirement(operator_name: str, name: str) -> str | None:
    """What became of an implementation that there was, or None."""
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
    file = ROOT / name / "reference.py"
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
        module = importlib.import_module(f".{dotted}", __package__)
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
    file = ROOT / name / "__init__.py"
    found = _load(name, file, needs=("OPERATOR",)).OPERATOR
    if not isinstance(found, Operator):
        raise _broken(file, f"its OPERATOR is {shorten(found)}, not an Operator", ("OPERATOR",))
    remember(found)
    return found


def _implementation(operator_name: str, name: str, default: str) -> Implementation:
    file = ROOT / operator_name / f"{name}.py"
    needs = ("__doc__", "unsupported", "build")
    module = _load(f"{operator_name}.{name}", file, needs=needs)
    try:
        version = source_version(file)
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
        runs=_runs(operator_name).get(name),
    )


@cache
def _runs(operator_name: str) -> Mapping[str, Callable[[Problem, Device], str]]:
    """RUNS of an operator's `_runs.py`, where it has one.

    Not in the implementations' own files: what is known of code that is not ours changes no measurement.
    """
    file = ROOT / operator_name / "_runs.py"
    if not file.exists():
        return {}
    found: Mapping[str, Callable[[Problem, Device], str]]
    found = _load(f"{operator_name}._runs", file, needs=("RUNS",)).RUNS
    return found


@cache
def _retired(operator_name: str) -> Mapping[str, tuple[str, str]]:
    """RETIRED of an operator's `_retired.py`: by name of what is gone what took its place, and why."""
    file = ROOT / operator(operator_name).name / "_retired.py"
    if not file.exists():
        return {}
    found: Mapping[str, tuple[str, str]]
    found = _load(f"{operator_name}._retired", file, needs=("RETIRED",)).RETIRED
    return found


def source_version(file: Path) -> str:
    """A hash of a file and of every file of ours that it imports, directly or through others."""
    digest = hashlib.sha256()
    for path in sorted(_closure(file)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _closure(file: Path) -> set[Path]:
    seen: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting.extend(_imported_files(path))
    return seen


def _imported_files(path: Path) -> tuple[Path, ...]:
    return _files_named_in(path, path.read_text())


@cache  # implementations share most of their files, and parsing is nearly all of the time
def _files_named_in(path: Path, source: str) -> tuple[Path, ...]:
    """The files of ours that one file names: by relative imports, or CUDA sources beside it."""
    if path.suffix in CUDA_SUFFIXES:
        return tuple(path.with_name(name) for name in INCLUDE.findall(source))
    found: list[Path] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and str(node.value).endswith(CUDA_SUFFIXES):
            found.append(path.with_name(str(node.value)))
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        folder = path.parents[node.level - 1]
        base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
        targets = [base, *(base / alias.name for alias in node.names)]
        found += [file for target in targets for file in (target.with_suffix(".py"), target / "__init__.py")]
    return tuple(
        file
        for file in found
        if file.is_file() and file.relative_to(ROOT).parts[0].removesuffix(".py") not in NOT_BEHAVIOUR
    )
