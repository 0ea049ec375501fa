"""Operators and implementations, found by listing folders; there is no hand-kept list.

A folder of `kernels` with a `reference.py` is an operator; its `__init__` holds `OPERATOR`. Each other
file in it whose name has no leading underscore is an implementation.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .contract import Device, Implementation, Operator, Problem, UnknownImplementation, UnknownOperator
from .contract.errors import suggest

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).parent
NOT_BEHAVIOUR = {"contract", "registry"}  # what every implementation shares and none computes with


@cache
def operators() -> dict[str, Operator]:
    """Every operator by name, sorted."""
    names = sorted(path.parent.name for path in ROOT.glob("*/reference.py"))
    return {name: _module(name).OPERATOR for name in names}


def operator(name: str) -> Operator:
    """The operator of this name. Raises UnknownOperator, which lists the known ones."""
    try:
        return operators()[name]
    except (KeyError, TypeError):
        raise UnknownOperator(f"Unknown operator {name!r}. {suggest(name, operators())}") from None


@cache
def implementations(operator_name: str) -> dict[str, Implementation]:
    """Every implementation of an operator by name, sorted. Imports their files, and so torch."""
    default = operator(operator_name).default
    files = sorted((ROOT / operator_name).glob("[!_]*.py"))
    names = [file.stem for file in files if file.stem != "reference"]
    return {name: _implementation(operator_name, name, default) for name in names}


def implementation(operator_name: str, name: str) -> Implementation:
    """One implementation. Raises UnknownImplementation, which lists the known ones."""
    known = implementations(operator_name)
    try:
        return known[name]
    except (KeyError, TypeError):
        raise UnknownImplementation(
            f"Unknown implementation {name!r} of {operator_name}. {suggest(name, known)}"
        ) from None


def reference(problem: Problem) -> nn.Module:
    """The module that states a problem's equations, to be run in float64; never a candidate."""
    module: nn.Module = _module(f"{operator(problem.operator).name}.reference").build(problem)
    return module


def candidates(problem: Problem, device: Device) -> tuple[list[Implementation], dict[str, str]]:
    """The implementations that accept a problem on a device, and the others' reasons by name."""
    known = implementations(problem.operator)
    reasons = {name: found.unsupported(problem, device) for name, found in known.items()}
    accepted = [known[name] for name, reason in reasons.items() if reason is None]
    return accepted, {name: reason for name, reason in reasons.items() if reason is not None}


def _module(dotted: str) -> ModuleType:
    return importlib.import_module(f".{dotted}", __package__)


def _implementation(operator_name: str, name: str, default: str) -> Implementation:
    module: Any = _module(f"{operator_name}.{name}")
    return Implementation(
        operator=operator_name,
        name=name,
        version=source_version(ROOT / operator_name / f"{name}.py"),
        summary=(module.__doc__ or "").strip().splitlines()[0],
        default=name == default,
        unsupported=module.unsupported,
        build=module.build,
        work=getattr(module, "work", operator(operator_name).work),
    )


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


def _imported_files(path: Path) -> list[Path]:
    """The files of ours that the relative imports of one file name."""
    found: list[Path] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        folder = path.parents[node.level - 1]
        base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
        targets = [base, *(base / alias.name for alias in node.names)]
        found += [file for target in targets for file in (target.with_suffix(".py"), target / "__init__.py")]
    return [
        file
        for file in found
        if file.is_file() and file.relative_to(ROOT).parts[0].removesuffix(".py") not in NOT_BEHAVIOUR
    ]
