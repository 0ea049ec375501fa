"""Prints the OpenAPI document: `python -m kernel_selector.service.openapi > docs/openapi.json`."""

from __future__ import annotations

import json

from ..app import assemble
from ..settings import Settings


def text() -> str:
    """The document as it is committed."""
    return json.dumps(assemble(Settings.model_construct()).openapi(), indent=2) + "\n"


if __name__ == "__main__":
    print(text(), end="")
