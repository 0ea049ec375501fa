"""Libraries of the extra `service`, and the error where one of them is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from kernel_selector.kernels.contract import SelectorError

LIBRARIES = (
    "fastapi",
    "fastapi_offline",
    "starlette",
    "jinja2",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "prometheus_client",
    "uvicorn",
    "httptools",
    "uvloop",
)
INSTALL = "pip install 'kernel-selector[service]'"


class MissingExtra(SelectorError, ImportError):
    """Library of an extra of this package that is not installed."""


def require_service() -> None:
    """Raise MissingExtra unless all libraries of the service are installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"The service needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed: {INSTALL}"
        )
