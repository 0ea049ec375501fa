"""The OpenAPI document as it is committed, with its examples: the application comes in, JSON goes out.

`python -m kernel_selector.service.openapi > docs/openapi.json` writes it.
"""
