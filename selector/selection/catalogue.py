"""Every operator and implementation that there is, as plain dicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import shorten, suggest
from kernel_selector.kernels.versions import holds

from ..workloads.imported_operator import ImportedOperator


def imported(operator: str) -> bool:
    """Whether an operator that there is comes from measurements of others: its kernels are elsewhere."""
    return operator not in registry.operators()


def is_present(operator: str, implementation: str, version: str) -> bool:
    """Whether a recorded version of an implementation does what that of today does, if there is one."""
    now = None if imported(operator) else registry.implementations(operator).get(implementation)
    return now is not None and holds(operator, implementation, version, now.version)


def unknown_operator(name: object, found: Iterable[str]) -> UnknownOperator:
    """The error for an operator that is neither ours nor among the imported ones."""
    return UnknownOperator(
        f"Unknown operator {shorten(name)}. {suggest(name, {*registry.operators(), *found})}"
    )


def operators(found: Iterable[ImportedOperator]) -> list[dict[str, Any]]:
    """JSON-ready: operators with hyperparameters and implementations, the given imported ones last."""
    ours = [
        {
            **operator.describe(),
            "imported": False,
            "devices": None,
            "implementations": [
                {"name": item.name, "summary": item.summary, "default": item.default}
                for item in registry.implementations(name).values()
            ],
        }
        for name, operator in registry.operators().items()
    ]
    return ours + [operator.describe() for operator in found]


def implementations() -> list[dict[str, Any]]:
    """JSON-ready: operator, name, version, summary and whether it is the default."""
    return [
        {
            "operator": operator,
            "name": item.name,
            "version": item.version,
            "summary": item.summary,
            "default": item.default,
        }
        for operator in registry.operators()
        for item in registry.implementations(operator).values()
    ]
