"""Every implementation that there is, as plain dicts."""

from __future__ import annotations

from typing import Any

from kernel_selector.kernels import registry


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
